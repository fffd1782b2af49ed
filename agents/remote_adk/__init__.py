"""Agents on an ADK server. The server answers, and Breadcrumbs stores the session.

`__all__` lists the modules that other packages may import.
"""

__all__ = ["servers", "turn"]
