"""Values without I/O: breadcrumbs, ids, times, tags, selectors, queries, expiry, JSON input.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "breadcrumb",
    "cached",
    "credentials",
    "field_messages",
    "ids",
    "images",
    "json_input",
    "json_positions",
    "names",
    "nearest_names",
    "query",
    "roots",
    "selectors",
    "session_rule",
    "tags",
    "text",
    "times",
    "ttl",
    "validation",
]
