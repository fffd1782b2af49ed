"""`llm_hints`: choose and format the part of a breadcrumb that models see.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "hints",
    "jsonpath",
]
