"""Reduction of contexts: when the TTL of a context ends, its references stay and its rendered parts are removed.

A context of the context builder is the record of why an agent said something. It is therefore not deleted like other
breadcrumbs with a TTL. The parts, which are most of its bytes, can be rendered again from the references.

A context has no time of expiry in its header, so every read finds it. Only the expiry queue has the time of its
reduction. Contexts without a session are an exception: they are deleted like other breadcrumbs, because no session
would delete them later.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import orjson

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, Content

_DERIVED_KEYS: Final = ("parts", "as_of_time")
"""Keys that older and reduced versions do not store: they are computed from `as_of` and the references."""
_CONTEXT_KEYS: Final = frozenset(("consumer_id", "trigger_id", "as_of", "explain"))

SHORT_ID_LENGTH: Final = 22
"""Length of an id in base64, without padding."""
SOURCE_DEFAULTS: Final[Mapping[str, Any]] = {"method": "recent", "scope": "current"}
"""Values that the description of a source does not store."""
USUAL_PLACE: Final = "c"
"""Place of an item in a short row."""


def references_only(crumb: Breadcrumb) -> bytes:
    """Return the JSON of a context without its parts, and with its references as compact rows.

    The parts can be rendered again from the references.
    """
    context = {key: value for key, value in crumb.context.items() if key not in _DERIVED_KEYS}
    try:
        explain = context["explain"]
        context["explain"] = explain | {
            "sources": [_source_row(source) for source in explain["sources"]],
            "items": _item_rows(explain["items"]),
            "left_out": [_left_out_row(out) for out in explain["left_out"]],
        }
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        pass  # a client wrote a breadcrumb of another form, keep it unchanged
    return orjson.dumps(crumb.document | {"context": context})


def is_reducible(crumb: Breadcrumb) -> bool:
    """Return whether the runtime wrote this breadcrumb as a context of a session, reduced or not.

    Breadcrumbs of this form that a client wrote expire as the client has asked for.
    """
    return crumb.created_by is None and crumb.session_id is not None and _is_context(crumb.context)


def is_reduced(crumb: Breadcrumb) -> bool:
    """Return whether this is a context without its parts."""
    return is_reducible(crumb) and "parts" not in crumb.context


def reduced_instead_of_deleted(content: Content) -> Content:
    """Return the content of a context with an expiry that reduces it. Other content is returned unchanged."""
    expiry = content.expiry
    if content.session_id is None or not expiry.after or expiry.max_reads:
        return content
    if not _is_context(content.document.get("context", {})):
        return content
    return content._replace(expiry=replace(expiry, reduces=True))


def time_of_reduction(crumb: Breadcrumb, default_lifetime: int) -> int:
    """Return the time in microseconds when an imported context is reduced. 0: never.

    `default_lifetime`: lifetime of breadcrumbs of its schema without a TTL of their own, in microseconds.
    """
    if "parts" not in crumb.context:
        return crumb.updated
    if crumb.expires:
        return crumb.expires
    lifetime = default_lifetime
    config = crumb.document.get("ttl_config")
    if isinstance(config, dict) and isinstance(seconds := config.get("duration_seconds"), int | float):
        lifetime = int(seconds * 1_000_000)
    return crumb.updated + lifetime if lifetime else 0


def _is_context(context: Mapping[str, Any]) -> bool:
    return context.keys() >= _CONTEXT_KEYS


@lru_cache(8_192)  # the contexts of a session refer to the same breadcrumbs
def _short_id(id: str) -> str:
    """Return an id in base64. It is shorter than the usual form, and each turn stores many ids."""
    return b2a_base64(bytes.fromhex(id.replace("-", "")), newline=False)[:SHORT_ID_LENGTH].decode()


def _source_row(source: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in source.items() if SOURCE_DEFAULTS.get(name) != value}


def _item_rows(items: list[Any]) -> list[Any]:
    """Return the rows of items. Most items are in their first version and in the conversation: a short row."""
    return [
        [_short_id(item["id"]), item.get("number", -1), item["rank"], item["tokens"]]
        if type(item) is dict
        and item["version"] == 1
        and item["place"][0] == USUAL_PLACE
        and "cut" not in item
        and "matched" not in item
        else _long_row(item)
        for item in items
    ]


def _long_row(item: Any) -> Any:
    if isinstance(item, list):
        return item
    id, version, number, place = (
        _short_id(item["id"]), item["version"], item.get("number", -1), item["place"][0],
    )  # fmt: skip
    row = [id, version, number, place, item["rank"], item["tokens"]]
    if "cut" in item:
        return [*row, item.get("matched", []), [item["cut"]["kept"], item["cut"]["of"]]]
    return [*row, item["matched"]] if "matched" in item else row


def _left_out_row(out: Any) -> Any:
    if isinstance(out, list):
        return out
    row = [_short_id(out["id"]), out["version"], out.get("number", -1), out["reason"]]
    return [*row, out["tokens"]] if "tokens" in out else row
