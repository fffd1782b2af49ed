"""Explanation of a context.

It contains the source of each item, and the reason why other breadcrumbs were left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Final

from breadcrumbs.context_builder.item_cuts import Cut
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.schema_names import ATTACHMENT_SCHEMAS

_EXCERPT_CHARACTERS: Final = 140


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedItem:
    """One breadcrumb in a context, in the order of the prompt."""

    source: str
    number: int | None = None
    """Index of the source that found it. None for a trigger that no source found."""
    place: str
    rank: int
    """Position in the results of the source. 0 is the newest."""
    tokens: int
    id: str | None = None
    version: int | None = None
    schema_name: str | None = None
    session_id: str | None = None
    """Session of the breadcrumb, if it is not the session of the context."""
    created_at: str | None = None
    title: str = ""
    excerpt: str = ""
    matched: tuple[str, ...] = ()
    """Tags of the source that the breadcrumb has."""
    is_trigger: bool = False
    cut: Cut | None = None
    """Set if the source's `max_tokens` shortened the texts of the breadcrumb."""
    gone: bool = False
    """The breadcrumb was deleted or has expired."""
    hidden: bool = False
    """The reader may not see the breadcrumb."""

    def as_dict(self) -> dict[str, Any]:
        document = _set_fields(self)
        if self.cut is not None:
            document["cut"] = self.cut._asdict()
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedLeftOut:
    """One breadcrumb that a source found, but that is not in the context."""

    source: str
    number: int | None = None
    reason: str
    tokens: int | None = None
    """Size of the breadcrumb. Set only if it did not fit into the budget."""
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
    """Explanation of one version of a context, or of a preview."""

    consumer_id: str
    session_id: str | None
    context_id: str | None = None
    """None for a preview, which is not stored."""
    version: int | None = None
    made_at: str | None = None
    trigger_id: str
    trigger_version: int
    as_of: str
    """Breadcrumbs written after this time are not included."""
    config: str
    """Hash of the config."""
    tokens: int
    budget: int
    counted_by: str
    sources: list[dict[str, Any]]
    items: list[ExplainedItem]
    left_out: list[ExplainedLeftOut]
    left_out_besides: int = 0
    """Number of left-out breadcrumbs that are not listed in `left_out`."""
    unread_schemas: list[str] = field(default_factory=list)
    """Schemas of the session that no source reads."""
    notes: list[str] = field(default_factory=list)
    reuse: dict[str, Any] | None = None
    """How much of the context repeats the previous one. None for a preview and for the first context."""
    next_start: int | None = None
    """Index of the first reference on the next page, see `PageLimits.start`. None on the last page."""

    def as_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"consumer_id": self.consumer_id}
        for name in ("session_id", "context_id", "version", "made_at"):
            if (value := getattr(self, name)) is not None:
                document[name] = value
        if self.unread_schemas:
            document["unread_schemas"] = self.unread_schemas
        if self.reuse is not None:
            document["reuse"] = self.reuse
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

    def reuse_lines(self) -> list[str]:
        """Return a line about the part of the context that repeats the previous one, and one about the break."""
        reuse = self.reuse
        if reuse is None:
            return []
        sizes = f"{reuse['bytes']:,} of {reuse['of_bytes']:,} bytes"
        lines = [f"{reuse['percent']:g} % repeats version {reuse['previous_version']}: {sizes}"]
        if found := reuse.get("broken"):
            now, before = (_name_item(found.get(name) or {}) for name in ("item", "before"))
            lines.append(f"breaks at item {reuse['items'] + 1}: {now}, before: {before}")
        return lines

    def gaps(self) -> list[str]:
        """Return a line for each source that its limit cut or whose tags found nothing, and for unread schemas.

        A source without tags that found nothing is normal: there are no such breadcrumbs yet.
        """
        lines = []
        for source in self.sources:
            what = f"{source['key']} ({source.get('schema_name') or 'any schema'})"
            if source.get("more"):
                limit = (
                    f"limit {source['key_limit']} of the key"
                    if "key_limit" in source
                    else f"limit {source.get('limit')}"
                )
                lines.append(f"{what}: older ones are left out, {limit}")
            elif source.get("found") == 0 and (source.get("any_tags") or source.get("all_tags")):
                lines.append(f"{what}: found nothing")
        if self.unread_schemas:
            lines.append(f"no source reads {', '.join(self.unread_schemas)}, which this session has")
        return lines


def _name_item(described: dict[str, Any]) -> str:
    """Return a few words about an item at which two contexts differ."""
    if not described:
        return "the end"
    if described.get("hidden"):
        return f"{described.get('source')} (hidden)"
    if described.get("gone"):
        return f"{described.get('source')} (deleted or expired)"
    return f"{described.get('schema_name') or 'no schema'} {str(described.get('title', ''))[:40]!r}"


def _set_fields(value: ExplainedItem | ExplainedLeftOut) -> dict[str, Any]:
    """Return the fields with a value.

    0 counts as a value, but None, False and empty texts do not.
    """
    values = ((entry.name, getattr(value, entry.name)) for entry in fields(value))
    return {
        name: value
        for name, value in values
        if value is not None and value is not False and value not in ("", ())
    }


def part_sizes(items: Iterable[ExplainedItem]) -> dict[str, int]:
    """Return the tokens of each part, in the order of the prompt. Attachments are counted apart."""
    sizes: dict[str, int] = {}
    for item in items:
        is_attachment = item.place == "conversation" and item.schema_name in ATTACHMENT_SCHEMAS
        name = "attachments" if is_attachment else part_name(item)
        sizes[name] = sizes.get(name, 0) + item.tokens
    return sizes


def part_name(item: ExplainedItem) -> str:
    """Return the name of the part that an item belongs to, for people."""
    return "conversation" if item.place == "conversation" else f"{item.source} ({item.place})"


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
