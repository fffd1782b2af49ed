"""Reads of all stored breadcrumbs, and checks of their lanes and indexes. Too slow for the path of a request.

A breadcrumb is named by 32 bytes: its owner and its id. Names are grouped by lane, so that one command reads many.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson

from breadcrumbs.runtime.backend.connection import Script, ScriptCall
from breadcrumbs.runtime.backend.servers import scan_key_batches
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import home_lane
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.keys import BODY
from breadcrumbs.runtime.store.store import Store

NAME_BYTES: Final = 32
_READ_BYTES: Final = 4 << 20
"""Bytes of bodies that one read returns at most, or one body."""
_READ_COUNT: Final = 500
"""Bodies that one read returns at most. A script blocks the server, so it is limited."""
_SCAN_COUNT: Final = 10_000
_BODIES: Final = Script("bodies")


class StoredBreadcrumb(NamedTuple):
    """The newest version of a breadcrumb in its stored form, with its parsed JSON and its lane."""

    lane: int
    owner: UUID
    raw_id: bytes
    body: bytes
    document: dict[str, Any]
    sessions: tuple[str, ...]
    """See `tagged_sessions`."""

    @property
    def id(self) -> UUID:
        return UUID(bytes=self.raw_id)

    @property
    def crumb(self) -> Breadcrumb:
        return record.decode(self.owner, self.id, self.body).with_document(self.document)


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """Names of breadcrumbs of one lane."""

    lane: int
    names: bytes
    """The names without separators: `NAME_BYTES` each."""

    @property
    def count(self) -> int:
        return len(self.names) // NAME_BYTES


async def list_groups(store: Store, owner: UUID | None, size: int) -> list[NamedGroup]:
    """Return the names of all breadcrumbs of an owner, or of all owners, each once, in groups up to a size.

    Breadcrumbs that are written meanwhile can be missing. All names are kept in memory.
    """
    found: dict[int, bytearray] = {}
    async for lane, names in _scan_names(store, owner):
        found.setdefault(lane, bytearray()).extend(b"".join(names))
    groups: list[NamedGroup] = []
    for lane in sorted(found):
        # A scan can return a key twice. Ids begin with a time, so sorted breadcrumbs of one session are close together
        # and share commands.
        packed = found.pop(lane)
        names = sorted({bytes(packed[at : at + NAME_BYTES]) for at in range(0, len(packed), NAME_BYTES)})
        groups += [NamedGroup(lane, b"".join(names[at : at + size])) for at in range(0, len(names), size)]
    return groups


async def _scan_names(store: Store, owner: UUID | None) -> AsyncIterator[tuple[int, list[bytes]]]:
    prefixes = {store.keys.prefix(lane) + BODY: lane for lane in range(store.lanes)}
    # The namespace has no glob characters (see settings). Other kinds of keys can match the pattern, too.
    pattern = store.keys.prefix(0).partition(b"{")[0] + b"{L*}" + BODY + b"*"
    async for keys in scan_key_batches(store.connection, pattern, count=_SCAN_COUNT):
        found: dict[int, list[bytes]] = {}
        for key in keys:
            name = key[-NAME_BYTES:]
            lane = prefixes.get(key[:-NAME_BYTES])
            if lane is not None and (owner is None or name.startswith(owner.bytes)):
                found.setdefault(lane, []).append(name)
        for lane, names in found.items():
            yield lane, names


async def load_group(store: Store, group: NamedGroup) -> AsyncIterator[list[StoredBreadcrumb]]:
    """Yield the breadcrumbs of a group in batches. Missing and expired ones are omitted."""
    lane, packed = group.lane, group.names
    prefix = store.keys.prefix(lane) + BODY
    names = [packed[at : at + NAME_BYTES] for at in range(0, len(packed), NAME_BYTES)]
    start = 0
    while start < len(names):
        wanted = names[start : start + _READ_COUNT]
        (bodies,) = await store.connection.call_all(
            [(lane, ScriptCall(_BODIES, [prefix + name for name in wanted], [_READ_BYTES]))]
        )
        start += len(bodies)
        yield _parse(lane, wanted, bodies, store.now())


async def get_stored(store: Store, owner: UUID, id: UUID) -> Breadcrumb | None:
    """Return the newest version of a breadcrumb, even if it has expired, or None."""
    _, body = await store.look_up(owner, id)
    return None if body is None else record.decode(owner, id, body)


async def find_sessions(store: Store, owner: UUID, ids: Iterable[UUID]) -> dict[UUID, tuple[str, ...] | None]:
    """Return the sessions in the tags of breadcrumbs, expired or not. None: there is no such breadcrumb."""
    found: dict[UUID, tuple[str, ...] | None] = {}
    by_lane: dict[int, list[UUID]] = {}
    for id in ids:
        by_lane.setdefault(home_lane(id, store.lanes), []).append(id)
    for lane, in_lane in by_lane.items():
        start = 0
        while start < len(in_lane):
            wanted = in_lane[start : start + _READ_COUNT]
            keys = [store.keys.body(lane, owner, id.bytes) for id in wanted]
            (bodies,) = await store.connection.call_all([(lane, ScriptCall(_BODIES, keys, [_READ_BYTES]))])
            start += len(bodies)
            for id, body in zip(wanted, bodies, strict=False):
                if body is not None:
                    found[id] = tagged_sessions(_document(body))
                else:  # it is imported and in another lane, or it does not exist
                    crumb = await get_stored(store, owner, id)
                    found[id] = None if crumb is None else tagged_sessions(crumb.document)
    return found


def tagged_sessions(document: dict[str, Any]) -> tuple[str, ...]:
    """Return the sessions in the tags. A valid breadcrumb has at most one."""
    sessions = [tag[len(SESSION) :] for tag in document["tags"] if tag.startswith(SESSION)]
    return tuple(sessions) if len(sessions) < 2 else tuple(sorted(set(sessions)))


def describe_wrong_lane(store: Store, stored: StoredBreadcrumb, session: str) -> str | None:
    """Return a message if a breadcrumb is in the wrong lane, else None."""
    lane = store.keys.session_lane(stored.owner, session)
    if lane == stored.lane:
        return None
    return f"it belongs to session {session!r} in lane {lane}, but is stored in lane {stored.lane}"


async def find_unindexed(store: Store, stored: Sequence[StoredBreadcrumb]) -> list[StoredBreadcrumb]:
    """Return the breadcrumbs that are missing from the index of their session.

    A breadcrumb can be changed or deleted between two reads, so missing ones are checked again.
    """
    missing = await _not_indexed(store, stored)
    again: list[StoredBreadcrumb] = []
    for one in missing:
        _, body = await store.look_up(one.owner, one.id)
        if body is not None:
            again.append(_stored(one.lane, one.owner, one.raw_id, body))
    return await _not_indexed(store, again)


def _parse(
    lane: int, names: Sequence[bytes], bodies: Sequence[bytes | None], now: int
) -> list[StoredBreadcrumb]:
    owners: dict[bytes, UUID] = {}
    parsed: list[StoredBreadcrumb] = []
    for name, body in zip(names, bodies, strict=False):
        if body is None or record.is_gone_raw(body, now):
            continue
        raw_owner = name[:16]
        owner = owners.get(raw_owner) or owners.setdefault(raw_owner, UUID(bytes=raw_owner))
        parsed.append(_stored(lane, owner, name[16:], body))
    return parsed


def _stored(lane: int, owner: UUID, raw_id: bytes, body: bytes) -> StoredBreadcrumb:
    document = _document(body)
    return StoredBreadcrumb(lane, owner, raw_id, body, document, tagged_sessions(document))


def _document(body: bytes) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(record.json_of(body))
    return document


async def _not_indexed(store: Store, stored: Sequence[StoredBreadcrumb]) -> list[StoredBreadcrumb]:
    by_index: dict[tuple[int, bytes], list[StoredBreadcrumb]] = {}
    for one in stored:
        session = one.sessions[0] if one.sessions else ""
        schema = one.document.get("schema_name") or ""
        index = store.keys.by_session(one.lane, one.owner, session, schema)
        by_index.setdefault((one.lane, index), []).append(one)
    scores = await store.connection.call_all(
        [
            (lane, (b"ZMSCORE", index, *[one.raw_id for one in group]))
            for (lane, index), group in by_index.items()
        ]
    )
    return [
        one
        for group, found in zip(by_index.values(), scores, strict=True)
        for one, score in zip(group, found, strict=True)
        if score is None
    ]
