"""`llm_hints`: which part of a breadcrumb models see. Paths, templates, and their checks.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "hints",
    "jsonpath",
]
