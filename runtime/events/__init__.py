"""Events: value and encoding, one log per lane, one reader per process, deltas.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "bodies",
    "deltas",
    "event",
    "log",
    "notices",
    "positions",
    "reader",
    "traces",
    "unfinished",
]
