"""The raw contents of a store's server: every key with its value, and every event."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from breadcrumbs.runtime.store.store import Store

Keyspace = dict[bytes, tuple[str, Any]]

_LANE = re.compile(rb"[^{]*\{L(\d+)\}(.)", re.DOTALL)


async def keyspace(store: Store) -> Keyspace:
    """Every key of the server, of all nodes and all namespaces, with its type and its value.

    The markers of the identity are left out. They are metadata, and only a cluster has them. The version keys of shared
    breadcrumbs are left out too. They have no data, change with each write and expire by themselves.
    """
    found: Keyspace = {}
    keys: set[bytes] = set()
    for lane in store.connection.node_lanes():
        keys.update(await store.connection.call(lane, b"KEYS", b"*"))
    for key in sorted(key for key in keys if kind_of(key) not in ("I", "v")):
        lane = lane_of(key)
        kind = (await store.connection.call(lane, b"TYPE", key)).decode()
        match kind:
            case "string":
                value = await store.connection.call(lane, b"GET", key)
            case "hash":
                flat = await store.connection.call(lane, b"HGETALL", key)
                value = dict(zip(flat[::2], flat[1::2], strict=True))
            case "zset":
                flat = await store.connection.call(lane, b"ZRANGE", key, 0, -1, b"WITHSCORES")
                value = {
                    member: int(float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)
                }
            case "set":
                value = set(await store.connection.call(lane, b"SMEMBERS", key))
            case "stream":
                value = [
                    (id, tuple(fields))
                    for id, fields in await store.connection.call(lane, b"XRANGE", key, b"-", b"+")
                ]
            case _:
                raise AssertionError(f"{key!r} is a {kind}")
        found[key] = (kind, value)
    return found


def lane_of(key: bytes) -> int:
    match = _LANE.match(key)
    return int(match[1]) if match else 0


def kind_of(key: bytes) -> str:
    """The byte with the kind of a key, or `meta`."""
    match = _LANE.match(key)
    return match[2].decode() if match else "meta"


def without(space: Keyspace, kinds: str) -> Keyspace:
    return {key: value for key, value in space.items() if kind_of(key) not in kinds}


def keys_that_mention(space: Keyspace, id: UUID) -> list[bytes]:
    """Keys whose name or value holds the id's bytes, in whatever form the value has."""
    return [key for key, (_, value) in space.items() if id.bytes in key or _mentions(value, id.bytes)]


def _mentions(value: Any, needle: bytes) -> bool:
    if isinstance(value, bytes):
        return needle in value
    if isinstance(value, dict):
        return any(_mentions(part, needle) for pair in value.items() for part in pair)
    if isinstance(value, Iterable):
        return any(_mentions(part, needle) for part in value)
    return False


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of an event stream, taken apart."""

    kind: str
    owner: UUID
    id: UUID
    version: int
    schema_name: str
    tags: list[str]
    private_to: UUID | None
    at: int
    lane: int


async def events(store: Store) -> list[Event]:
    """All events of all lanes in the order of their times."""
    found = []
    for lane in range(store.lanes):
        for stamp, fields in await store.connection.call(
            lane, b"XRANGE", store.keys.events(lane), b"-", b"+"
        ):
            name, payload = fields
            assert name == b"e"
            time, sequence = stamp.split(b"-")
            assert sequence == b"0"
            version, _, note = payload[33:].partition(b" ")
            said = orjson.loads(note)
            found.append(
                Event(
                    kind=payload[:1].decode(),
                    owner=UUID(bytes=payload[1:17]),
                    id=UUID(bytes=payload[17:33]),
                    version=int(version),
                    schema_name=said[0],
                    tags=said[1],
                    private_to=UUID(said[2]) if said[2:] and said[2] else None,
                    at=int(time),
                    lane=lane,
                )
            )
    return sorted(found, key=lambda event: (event.at, event.lane))
