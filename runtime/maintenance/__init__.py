"""Maintenance of a store: checks, hygiene, export and import, and an overview.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "archive_lines",
    "backup_chain",
    "backup_export",
    "check_catalogue",
    "checks",
    "export_import",
    "export_manifest",
    "hygiene",
    "load_history",
    "overview",
    "store_values",
    "worker_drain",
]
