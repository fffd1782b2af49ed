"""Middleware: metrics, the check of Host and Origin headers, and the limit on unsent replies.

`__all__` lists the modules that other packages may import.
"""

__all__ = ["metrics", "origin_check", "unsent"]
