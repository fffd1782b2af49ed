"""What to fetch for a context, and which part of it a model may see.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "model_view",
    "schema_hints",
    "sources",
]
