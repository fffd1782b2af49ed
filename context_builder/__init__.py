"""The context builder: makes one context per message, from a JSON config that people edit.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "audit",
    "builder",
    "config",
    "config_checks",
    "config_file",
    "configs_in_force",
    "diff",
    "explain",
    "explanation",
    "http",
    "preview",
    "rebuild",
]
