"""Names of models as people may see them."""

from __future__ import annotations


def public_name(name: str) -> str:
    """Return the name of a model without the URL of its server, which only the operator should see."""
    return name.partition("#")[2] or name if "://" in name else name
