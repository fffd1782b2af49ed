"""Fetches breadcrumbs for contexts, and decides which part of them a model may see.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "histories",
    "model_view",
    "part_digests",
    "past",
    "schema_hints",
    "sources",
]
