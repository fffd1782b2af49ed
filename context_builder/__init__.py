"""Context builder: builds one context per message and consumer, as a JSON config describes.

`builder.py` handles the events, `assembly.py` selects the items, and `explain.py` explains stored contexts.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "assembly",
    "audit",
    "audit_checkpoint",
    "builder",
    "config",
    "config_checks",
    "config_file",
    "config_warnings",
    "configs_in_force",
    "context_tests",
    "diff",
    "explain",
    "explanation",
    "http",
    "item_cuts",
    "known_names",
    "old_configs",
    "past",
    "prefix_reuse",
    "preview",
    "published_configs",
    "rebuild",
    "referenced",
    "references",
    "tokens",
]
