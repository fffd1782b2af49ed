"""Settings of a process, from flags, environment variables and a file.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "answering",
    "connection_limits",
    "rates",
    "settings",
    "variables",
]
