"""Values without I/O: breadcrumbs, ids, times, tags, selectors, queries, expiry, JSON input.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "breadcrumb",
    "cached",
    "credentials",
    "ids",
    "images",
    "json_input",
    "names",
    "query",
    "selectors",
    "session_rule",
    "tags",
    "text",
    "times",
    "ttl",
    "validation",
]
