"""What is left of an older context: references, from which the very same can be rendered again.

The newest version of a context names its items in full. The history keeps them as rows, because a session of
a thousand turns has a thousand of them:

    items      [id, version, number of the source (-1: none), place (c, e, s), rank, tokens, matched tags?]
    left_out   [id, version, number of the source, reason, tokens?]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args
from uuid import UUID

import orjson

from breadcrumbs.context_builder.assembly import TRIGGER, Place, Reason
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb

_PLACES: dict[str, Place] = {place[0]: place for place in get_args(Place)}
_REASONS = frozenset(get_args(Reason))
# Can be told from the rest: `as_of`, and the references.
_NOT_KEPT = ("parts", "as_of_time")


class NoContext(ValueError):
    """A breadcrumb that is not a context of the context builder's making, or not one that we can read."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One breadcrumb that a context holds, or has left out."""

    id: UUID
    version: int
    source: str
    number: int | None
    """Which of the context's sources found it; None: it is the trigger, and none did."""


@dataclass(frozen=True, slots=True)
class Kept(Reference):
    place: Place
    rank: int
    tokens: int
    matched: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dropped(Reference):
    reason: Reason
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a context says about itself."""

    consumer_id: str
    trigger_id: UUID
    trigger_version: int
    as_of: int
    config: str
    tokens: int
    budget: int
    counted_by: str
    checksum: str
    sources: list[dict[str, Any]]
    items: list[Kept]
    left_out: list[Dropped]
    left_out_besides: int
    notes: list[str]
    hints: dict[str, tuple[UUID, int]]
    """By schema: the definition whose hints were used, and its version."""


def references_only(old: Breadcrumb) -> bytes:
    """An older version of a context, without what can be rendered again from its references."""
    context = {key: value for key, value in old.context.items() if key not in _NOT_KEPT}
    try:
        explain = context["explain"]
        context["explain"] = explain | {
            "items": [_row(item) for item in explain["items"]],
            "left_out": [_dropped_row(out) for out in explain["left_out"]],
        }
    except (KeyError, TypeError, AttributeError, IndexError):
        pass  # somebody else has written it: what we do not understand stays as it is
    return orjson.dumps(old.document | {"context": context})


def _row(item: Any) -> Any:
    if isinstance(item, list):
        return item
    row = [
        item["id"], item["version"], item.get("number", -1), item["place"][0], item["rank"], item["tokens"],
    ]  # fmt: skip
    return [*row, item["matched"]] if "matched" in item else row


def _dropped_row(out: Any) -> Any:
    if isinstance(out, list):
        return out
    row = [out["id"], out["version"], out.get("number", -1), out["reason"]]
    return [*row, out["tokens"]] if "tokens" in out else row


def recorded(context: Breadcrumb) -> Recorded:
    """What a context of any age says about itself."""
    try:
        return _read(context.context)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise NoContext(f"breadcrumb {context.id} is no context, or not one of ours") from error


def _read(context: Mapping[str, Any]) -> Recorded:
    explain = context["explain"]
    sources: list[dict[str, Any]] = [dict(source) for source in explain["sources"]]
    keys = [str(source["key"]) for source in sources]
    return Recorded(
        str(context["consumer_id"]),
        UUID(context["trigger_id"]),
        int(context["trigger_version"]),
        _time(context["as_of"]),
        str(context["config"]),
        int(explain["tokens"]),
        int(explain["budget"]),
        str(explain["counted_by"]),
        str(explain["checksum"]),
        sources,
        [_kept(item, keys) for item in explain["items"]],
        [_dropped(out, keys) for out in explain["left_out"]],
        int(explain.get("left_out_besides", 0)),
        [str(note) for note in explain["notes"]],
        {
            str(schema): (UUID(found["id"]), int(found["version"]))
            for schema, found in explain.get("hints", {}).items()
        },
    )


def _time(value: Any) -> int:
    time = int(value)
    if not 0 <= time <= times.LATEST:
        raise ValueError(time)
    return time


def _kept(item: Any, keys: list[str]) -> Kept:
    if isinstance(item, list):
        id, version, number, place, rank, tokens, *matched = item
        place, tags = _PLACES[place], matched[0] if matched else ()
    else:
        id, version, number, rank, tokens = (
            item["id"], item["version"], item.get("number", -1), item["rank"], item["tokens"],
        )  # fmt: skip
        place, tags = _PLACES[item["place"][0]], item.get("matched", ())
    matched_tags = tuple(str(tag) for tag in tags)
    return Kept(UUID(id), int(version), *_source(number, keys), place, int(rank), int(tokens), matched_tags)


def _dropped(out: Any, keys: list[str]) -> Dropped:
    if isinstance(out, list):
        id, version, number, reason, *more = out
        tokens = more[0] if more else None
    else:
        id, version, number, reason = out["id"], out["version"], out.get("number", -1), out["reason"]
        tokens = out.get("tokens")
    if reason not in _REASONS:
        raise ValueError(reason)
    return Dropped(
        UUID(id), int(version), *_source(number, keys), reason, None if tokens is None else int(tokens)
    )


def _source(number: Any, keys: list[str]) -> tuple[str, int | None]:
    return (TRIGGER, None) if number == -1 else (keys[number], int(number))
