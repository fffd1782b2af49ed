"""Wraps the application: metrics, the check of host and origin, the limit on unsent replies.

`__all__` lists the modules that other packages may import.
"""

__all__ = ["metrics", "origin_check", "unsent"]
