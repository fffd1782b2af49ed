"""Decides which breadcrumbs and which part of their content a model may see.

Context building and the search tool use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.images import ATTACHED_IMAGES
from breadcrumbs.runtime.hints.hints import apply_hints
from breadcrumbs.runtime.retrieval.schema_hints import own_hints
from breadcrumbs.runtime.schema_names import HIDDEN_KEYS, INTERNAL_SCHEMAS, REASONING, RECEIPT

_NOT_FOR_HINTS: Final = (REASONING, RECEIPT)


def withheld_reason(crumb: Breadcrumb) -> Literal["secret", "private", "internal"] | None:
    """Return why a breadcrumb is hidden from models, or None if it is visible."""
    if crumb.sensitivity == "secret":
        return "secret"
    if crumb.visibility == "private":
        return "private"
    schema = crumb.schema_name
    return "internal" if schema in INTERNAL_SCHEMAS or (schema or "").startswith("system.") else None


def find_hints(
    crumb: Breadcrumb, definitions: Mapping[str, Breadcrumb]
) -> tuple[Mapping[str, Any] | None, Breadcrumb | None]:
    """Return the hints that apply to a breadcrumb, and the schema definition that contains them.

    The definition is None if the breadcrumb has its own hints.
    """
    hints = crumb.own_hints
    if hints:
        return hints, None
    if not definitions:
        return None, None
    definition = definitions.get(crumb.schema_name or "")
    hints = None if definition is None else own_hints(definition)
    return (hints, definition) if hints else (None, None)


def model_content(crumb: Breadcrumb, hints: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the content as a model sees it, with hints applied and hidden keys removed. It must not be modified."""
    if not hints:
        return crumb.visible_context
    # Some keys are removed before the hints, because a template could copy them to another key.
    shown = {key: value for key, value in crumb.context.items() if key not in _NOT_FOR_HINTS}
    if ATTACHED_IMAGES in shown:
        shown[ATTACHED_IMAGES] = crumb.visible_context[ATTACHED_IMAGES]
    content = apply_hints(shown, hints)
    return {key: value for key, value in content.items() if key not in HIDDEN_KEYS}
