"""References from a stored context to its breadcrumbs.

The same prompt can be rendered again from the references. The newest version of a context stores its references as
objects. Older versions and reduced contexts store them as compact rows (`runtime/store/reduction.py`), because a
session of a thousand turns has a thousand versions:

    items      [id, version, index of the source (-1: none), place (c, e, s), rank, tokens, matched tags?, cut?]
               [id, index of the source, rank, tokens]     version 1 in the conversation, without tags and cut
    left_out   [id, version, index of the source (-1: none), reason, tokens?]

The ids of rows are in base64. Stores of earlier versions also have rows with ids in the usual form. The descriptions of
sources do not store `SOURCE_DEFAULTS`.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, get_args
from uuid import UUID

from breadcrumbs.context_builder.assembly import TRIGGER, Assembled, ContextItem, ItemPlace, Reason
from breadcrumbs.context_builder.item_cuts import Cut
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.store.reduction import SHORT_ID_LENGTH, SOURCE_DEFAULTS, USUAL_PLACE

_PLACES: dict[str, ItemPlace] = {place[0]: place for place in get_args(ItemPlace)}
_REASONS = frozenset(get_args(Reason))
_SHORT_ROW_LENGTH: Final = 4


class NotAContext(ValueError):
    """The breadcrumb was not written by the context builder, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One breadcrumb that a context contains or has left out."""

    id: UUID
    version: int
    source: str
    number: int | None
    """Index of the source that found it. None for a trigger that no source found."""


@dataclass(frozen=True, slots=True)
class ItemReference(Reference):
    """A breadcrumb in the context."""

    place: ItemPlace
    rank: int
    tokens: int
    matched: tuple[str, ...]
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class LeftOutReference(Reference):
    """A breadcrumb that was left out."""

    reason: Reason
    tokens: int | None


@dataclass(frozen=True, slots=True)
class ContextRecord:
    """The stored facts about how a context was built."""

    consumer_id: str
    trigger_id: UUID
    trigger_version: int
    as_of: int
    config: str
    """Hash of the config."""
    tokens: int
    budget: int
    counted_by: str
    checksum: str
    sources: list[dict[str, Any]]
    items: list[ItemReference]
    left_out: list[LeftOutReference]
    left_out_besides: int
    """Number of left-out breadcrumbs that are not listed in `left_out`."""
    notes: list[str]
    hints: dict[str, tuple[UUID, int]]
    """Id and version of the definitions whose hints were used, by schema name."""


def read_record(context: Breadcrumb) -> ContextRecord:
    """Return the record of any version of a context, or raise `NotAContext`."""
    try:
        return _decode_record(context.context)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise NotAContext(f"breadcrumb {context.id} is not a context of the context builder") from error


def _decode_record(context: Mapping[str, Any]) -> ContextRecord:
    explain = context["explain"]
    sources: list[dict[str, Any]] = [{**SOURCE_DEFAULTS, **source} for source in explain["sources"]]
    keys = [str(source["key"]) for source in sources]
    return ContextRecord(
        str(context["consumer_id"]),
        UUID(context["trigger_id"]),
        int(context["trigger_version"]),
        _decode_time(context["as_of"]),
        str(context["config"]),
        int(explain["tokens"]),
        int(explain["budget"]),
        str(explain["counted_by"]),
        str(explain["checksum"]),
        sources,
        [_decode_item(item, keys) for item in explain["items"]],
        [_decode_left_out(out, keys) for out in explain["left_out"]],
        int(explain.get("left_out_besides", 0)),
        [str(note) for note in explain["notes"]],
        {
            str(schema): (UUID(found["id"]), int(found["version"]))
            for schema, found in explain.get("hints", {}).items()
        },
    )


def gathered_references(assembled: Assembled, trigger: Breadcrumb) -> dict[str, Any]:
    """Return the references of a prompt without a stored context, for the receipt of its answer."""
    references: dict[str, Any] = {
        "trigger": [trigger.id_text, trigger.version],
        "keys": [source["key"] for source in assembled.sources],
        "items": [_gathered_row(item) for item in assembled.items],
    }
    if assembled.definitions:
        references["hints"] = {
            schema: [crumb.id_text, crumb.version] for schema, crumb in assembled.definitions.items()
        }
    return references


def _gathered_row(item: ContextItem) -> list[Any]:
    number = -1 if item.number is None else item.number
    row = [item.crumb.id_text, item.crumb.version, number, item.place[0], item.rank, item.tokens]
    return row if item.cut is None else [*row, [], list(item.cut)]


def read_gathered(references: Any) -> ContextRecord:
    """Return the record of `gathered_references`. Raise `NotAContext` if it cannot be read."""
    try:
        keys = [str(key) for key in references["keys"]]
        items = [_decode_item(item, keys) for item in references["items"]]
        trigger_id, trigger_version = references["trigger"]
        hints = references.get("hints", {})
        return ContextRecord(
            consumer_id="",
            trigger_id=UUID(trigger_id),
            trigger_version=int(trigger_version),
            as_of=0,
            config="",
            tokens=sum(item.tokens for item in items),
            budget=0,
            counted_by="",
            checksum="",
            sources=[{"key": key} for key in keys],
            items=items,
            left_out=[],
            left_out_besides=0,
            notes=[],
            hints={str(schema): (UUID(id), int(version)) for schema, (id, version) in hints.items()},
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise NotAContext("the references of the receipt cannot be read") from error


def _decode_time(value: Any) -> int:
    time = int(value)
    if not 0 <= time <= times.LATEST:
        raise ValueError(time)
    return time


def _decode_item(item: Any, keys: list[str]) -> ItemReference:
    if isinstance(item, list):
        if len(item) == _SHORT_ROW_LENGTH:
            id, number, rank, tokens = item
            item = [id, 1, number, USUAL_PLACE, rank, tokens]
        id, version, number, place, rank, tokens, *more = item
        place, tags = _PLACES[place], more[0] if more else ()
        cut = more[1] if len(more) > 1 else None
    else:
        id, version, number, rank, tokens = (
            item["id"], item["version"], item.get("number", -1), item["rank"], item["tokens"],
        )  # fmt: skip
        place, tags = _PLACES[item["place"][0]], item.get("matched", ())
        cut = (item["cut"]["kept"], item["cut"]["of"]) if "cut" in item else None
    matched_tags = tuple(str(tag) for tag in tags)
    return ItemReference(
        _decode_id(id),
        int(version),
        *_decode_source(number, keys),
        place,
        int(rank),
        int(tokens),
        matched_tags,
        None if cut is None else Cut(int(cut[0]), int(cut[1])),
    )


def _decode_left_out(out: Any, keys: list[str]) -> LeftOutReference:
    if isinstance(out, list):
        id, version, number, reason, *more = out
        tokens = more[0] if more else None
    else:
        id, version, number, reason = out["id"], out["version"], out.get("number", -1), out["reason"]
        tokens = out.get("tokens")
    if reason not in _REASONS:
        raise ValueError(reason)
    return LeftOutReference(
        _decode_id(id),
        int(version),
        *_decode_source(number, keys),
        reason,
        None if tokens is None else int(tokens),
    )


@lru_cache(4_096)  # the contexts of a session refer to the same breadcrumbs
def _decode_id(text: str) -> UUID:
    return UUID(bytes=a2b_base64(text + "==")) if len(text) == SHORT_ID_LENGTH else UUID(text)


def _decode_source(number: Any, keys: list[str]) -> tuple[str, int | None]:
    return (TRIGGER, None) if number == -1 else (keys[number], int(number))
