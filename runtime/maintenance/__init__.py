"""Checks of `crumb doctor`, hygiene, export and import, the overview of operations.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "checks",
    "export_import",
    "hygiene",
    "overview",
]
