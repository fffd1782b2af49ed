"""Settings of a process: flags, environment, file; rates and connection limits as values.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "connection_limits",
    "rates",
    "settings",
]
