"""Building blocks of the routes: operations, requests, replies, problems and the OpenAPI document.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "bodies",
    "call",
    "conditions",
    "docs",
    "listing",
    "openapi",
    "operations",
    "parameters",
    "problems",
    "replies",
    "schemas",
    "session_schemas",
]
