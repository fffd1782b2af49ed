"""Agents on an ADK server. The server answers; the session is stored here.

`__all__` lists the modules that other packages may import.
"""

__all__ = ["servers", "turn"]
