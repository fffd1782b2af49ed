"""The explanation of a context: where each item comes from, and why other breadcrumbs were left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Final

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.text import plain_text

_EXCERPT_CHARACTERS: Final = 140


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedItem:
    """One breadcrumb in a context, in the order of the prompt."""

    source: str
    number: int | None = None
    """Index of the source that found it. None: it is the trigger, and no source found it."""
    place: str
    rank: int
    """0: the newest that the source found."""
    tokens: int
    id: str | None = None
    version: int | None = None
    schema_name: str | None = None
    session_id: str | None = None
    """Set if it is not the session of the context."""
    created_at: str | None = None
    title: str = ""
    excerpt: str = ""
    matched: tuple[str, ...] = ()
    """The tags of the source that the breadcrumb carries."""
    is_trigger: bool = False
    gone: bool = False
    """The breadcrumb was deleted or has expired."""
    hidden: bool = False
    """The reader may not see the breadcrumb."""

    def as_dict(self) -> dict[str, Any]:
        return _set_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedLeftOut:
    """One breadcrumb that a source found and that is not in the context."""

    source: str
    number: int | None = None
    reason: str
    tokens: int | None = None
    id: str | None = None
    version: int | None = None
    schema_name: str | None = None
    created_at: str | None = None
    title: str = ""
    gone: bool = False
    hidden: bool = False

    def as_dict(self) -> dict[str, Any]:
        return _set_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explains one version of a context, or a preview."""

    consumer_id: str
    session_id: str | None
    context_id: str | None = None
    """None: a preview, which is not stored."""
    version: int | None = None
    made_at: str | None = None
    trigger_id: str
    trigger_version: int
    as_of: str
    config: str
    """Digest of the config."""
    tokens: int
    budget: int
    counted_by: str
    sources: list[dict[str, Any]]
    items: list[ExplainedItem]
    left_out: list[ExplainedLeftOut]
    left_out_besides: int = 0
    """How many more were left out than are named here."""
    notes: list[str] = field(default_factory=list)
    next_start: int | None = None
    """Where the next page begins, counting the items and then what was left out; None: the last page."""

    def as_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"consumer_id": self.consumer_id}
        for name in ("session_id", "context_id", "version", "made_at"):
            if (value := getattr(self, name)) is not None:
                document[name] = value
        return document | {
            "trigger_id": self.trigger_id,
            "trigger_version": self.trigger_version,
            "as_of": self.as_of,
            "config": self.config,
            "tokens": self.tokens,
            "budget": self.budget,
            "counted_by": self.counted_by,
            "sources": self.sources,
            "items": [item.as_dict() for item in self.items],
            "left_out": [out.as_dict() for out in self.left_out],
            "left_out_besides": self.left_out_besides,
            "notes": self.notes,
        }


def _set_fields(value: ExplainedItem | ExplainedLeftOut) -> dict[str, Any]:
    """Return the fields that are set. 0 counts as set."""
    values = ((entry.name, getattr(value, entry.name)) for entry in fields(value))
    return {
        name: value
        for name, value in values
        if value is not None and value is not False and value not in ("", ())
    }


def part_sizes(items: Iterable[ExplainedItem]) -> dict[str, int]:
    """Return the tokens of each part of the prompt, in its order."""
    sizes: dict[str, int] = {}
    for item in items:
        name = "conversation" if item.place == "conversation" else f"{item.source} ({item.place})"
        sizes[name] = sizes.get(name, 0) + item.tokens
    return sizes


def describe_breadcrumb(crumb: Breadcrumb) -> dict[str, Any]:
    """Return the fields that explanations copy from a breadcrumb."""
    return {
        "id": str(crumb.id),
        "version": crumb.version,
        "schema_name": crumb.schema_name,
        "created_at": crumb.created_at,
        "title": crumb.title,
    }


def make_excerpt(content: dict[str, Any] | None) -> str:
    """Return the beginning of the content as one line of text."""
    if content is None:
        return ""
    words = " ".join(plain_text(content)[: 4 * _EXCERPT_CHARACTERS].split())
    return words if len(words) <= _EXCERPT_CHARACTERS else words[: _EXCERPT_CHARACTERS - 1] + "…"
