"""Streams: fan-out of events to the clients of a process, and waiting for answers.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "chain_watch",
    "conditions",
    "hub",
    "slots",
    "stream_event",
    "subscription",
    "watch",
]
