"""What a model may see of a breadcrumb, and of which ones nothing: the same in a context and in a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.hints.hints import apply_hints
from breadcrumbs.runtime.retrieval.schema_hints import own_hints
from breadcrumbs.runtime.schema_names import INTERNAL

_INFRASTRUCTURE: Final = frozenset(
    (
        "session_id", "trigger_id", "creator", "conversation_id", "hops", "context_id", "context_version",
        "llm_hints", "adk", "state_delta",
    )
)  # fmt: skip


def withheld(crumb: Breadcrumb) -> Literal["secret", "private", "internal"] | None:
    """Why a breadcrumb is shown to no model."""
    if crumb.sensitivity == "secret":
        return "secret"
    if crumb.visibility == "private":
        return "private"
    schema = crumb.schema_name
    return "internal" if schema in INTERNAL or (schema or "").startswith("system.") else None


def hints_for(
    crumb: Breadcrumb, definitions: Mapping[str, Breadcrumb]
) -> tuple[Mapping[str, Any] | None, Breadcrumb | None]:
    """The hints of a breadcrumb, and the definition they were taken from where they are not its own."""
    hints = own_hints(crumb)
    if hints:
        return hints, None
    definition = definitions.get(crumb.schema_name or "")
    hints = None if definition is None else own_hints(definition)
    return (hints, definition) if hints else (None, None)


def view_of(crumb: Breadcrumb, hints: Mapping[str, Any] | None) -> dict[str, Any]:
    """The content as a model gets it: its hints applied, the glue of the runtime taken out."""
    content = apply_hints(crumb.context, hints) if hints else crumb.context
    return {key: value for key, value in content.items() if key not in _INFRASTRUCTURE}
