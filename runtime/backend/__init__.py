"""Connections to Redis-protocol servers, standalone and cluster, and the embedded server.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "address",
    "cluster",
    "connection",
    "embedded",
    "identity",
    "link",
    "servers",
    "standalone",
]
