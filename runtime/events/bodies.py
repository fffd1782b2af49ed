"""Loads the breadcrumbs that events name."""

from __future__ import annotations

from typing import Final

import structlog

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.write_cache import HEADER_BYTES

_MAX_LOADED_BYTES: Final = 1 << 20  # per call; a single breadcrumb may be larger
_MAX_UNMEASURED_BYTES: Final = 4 << 20
"""Events whose breadcrumbs cannot exceed this size together are loaded without measuring them first."""

_log = structlog.get_logger("breadcrumbs.events")


def has_body(event: Event) -> bool:
    """Return whether an event names a breadcrumb that can still exist."""
    return event.operation not in ("deleted", "session_deleted")


def cached_version(store: Store, event: Event) -> Breadcrumb | None:
    """Return the version that an event names if this process has just written it."""
    return store.write_cache.get_permanent(event.owner_id, event.id, event.version, event.at)


async def load_or_cached(store: Store, events: list[Event]) -> list[Breadcrumb | None]:
    """Do the same as `load_versions`, but use cached versions that this process has just written."""
    found = [cached_version(store, event) for event in events]
    if uncached := [number for number, crumb in enumerate(found) if crumb is None]:
        loaded = await load_versions(store, [events[number] for number in uncached])
        for number, crumb in zip(uncached, loaded, strict=False):
            found[number] = crumb
        if len(loaded) < len(uncached):
            del found[uncached[len(loaded)] :]  # end at the first event that was not loaded
    return found


async def load_versions(store: Store, events: list[Event]) -> list[Breadcrumb | None]:
    """Load the version that each event names, even if it has been overwritten.

    An entry is None if the breadcrumb was deleted, has expired or is damaged. The result is shorter than `events` if
    more would exceed `_MAX_LOADED_BYTES`. It has at least one entry.
    """
    number, overwritten = await _measure(store, events)
    events = events[:number]
    current = await store.connection.call_all(
        [
            (event.lane, (b"GETRANGE", key, 0, HEADER_BYTES) if old else (b"GET", key))
            for event, old in zip(events, overwritten, strict=False)
            for key in (store.keys.body(event.lane, event.owner_id, event.id.bytes),)
        ]
    )
    found: list[Breadcrumb | None] = []
    now = store.now()
    for event, body, old in zip(events, current, overwritten, strict=False):
        crumb = _decode_body(event, body, header_only=old) if body else None
        found.append(None if crumb is None or record.is_gone(crumb, now) else crumb)
    earlier = [
        number
        for number, crumb in enumerate(found)
        if crumb is not None and crumb.version != events[number].version
    ]
    bodies = await store.connection.call_all(
        [(events[number].lane, (b"HGET", *_history_field(store, events[number]))) for number in earlier]
    )
    for number, body in zip(earlier, bodies, strict=True):
        found[number] = None if body is None else _decode_body(events[number], body)
    return found


async def _measure(store: Store, events: list[Event]) -> tuple[int, list[bool]]:
    """Return how many events fit into one load, and which versions were overwritten.

    A small batch is not measured. Its flags are all False, and `load_versions` compares the versions instead.
    """
    if len(events) <= 1 or len(events) * store.max_content_bytes <= _MAX_UNMEASURED_BYTES:
        return len(events), [False] * len(events)
    sizes = await store.connection.call_all(
        [
            (event.lane, command)
            for event in events
            for command in (
                (b"STRLEN", store.keys.body(event.lane, event.owner_id, event.id.bytes)),
                (b"HSTRLEN", *_history_field(store, event)),
            )
        ]
    )
    overwritten = [bool(size) for size in sizes[1::2]]
    total = number = 0
    for current, earlier in zip(sizes[::2], sizes[1::2], strict=True):
        total += earlier or current
        if number and total > _MAX_LOADED_BYTES:
            break
        number += 1
    return number, overwritten


def _history_field(store: Store, event: Event) -> tuple[bytes, int]:
    return store.keys.history(event.lane, event.owner_id, event.id.bytes), event.version


def _decode_body(event: Event, body: bytes, *, header_only: bool = False) -> Breadcrumb | None:
    """Decode a stored breadcrumb. Return None if it is damaged, so that it does not block the other events."""
    try:
        crumb = record.decode(event.owner_id, event.id, body)
        if header_only:
            return crumb
        crumb.document["context"]  # raises if the body is damaged
        return crumb.without_parsed_json()
    except (LookupError, ValueError, TypeError) as error:
        _log.warning("skipped unreadable breadcrumb", id=str(event.id), lane=event.lane, error=repr(error))
        return None
