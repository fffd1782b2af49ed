"""Stored form of a breadcrumb: a text header, two agent ids, and its JSON.

`<version> <created> <updated> <expires> <max_reads>\n<created_by: 16 bytes><updated_by: 16 bytes><json>`

The header is text because the scripts rewrite it. The JSON does not change after it was validated. The id and the
owner are part of the key.
"""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, Content
from breadcrumbs.runtime.breadcrumb.ids import uuid_of
from breadcrumbs.runtime.telemetry.tracing import carried

_NO_AGENT = bytes(16)
_MAX_CACHED_BYTES = 4_096  # larger bodies are parsed again with each read
_MAX_CACHED = 2_048  # breadcrumbs


def encode_without_header(content: Content, created_by: UUID | None, updated_by: UUID | None) -> bytes:
    """Return a body without its header, which the script writes."""
    return (
        (created_by.bytes if created_by else _NO_AGENT)
        + (updated_by.bytes if updated_by else _NO_AGENT)
        + content.json
    )


def encode(crumb: Breadcrumb, *, json: bytes | None = None) -> bytes:
    """Return the body of an existing breadcrumb. `json`: replaces its own JSON."""
    return b"%d %d %d %d %d\n%s%s%s" % (
        crumb.version,
        crumb.created,
        crumb.updated,
        crumb.expires,
        crumb.max_reads,
        crumb.created_by.bytes if crumb.created_by else _NO_AGENT,
        crumb.updated_by.bytes if crumb.updated_by else _NO_AGENT,
        crumb.json if json is None else json,
    )


def decode(owner: UUID, id: UUID, body: bytes) -> Breadcrumb:
    """Return the breadcrumb in a stored body."""
    return decode_raw(owner, id.bytes, body)


def decode_pairs(owner: UUID, pairs: list[bytes]) -> list[Breadcrumb]:
    """Return the breadcrumbs of a reply: id, body, id, body …"""
    raw_owner = owner.bytes
    return [
        (_decode_cached if len(body) <= _MAX_CACHED_BYTES else _decode)(raw_owner, id, body)
        for id, body in zip(pairs[::2], pairs[1::2], strict=True)
    ]


def decode_raw(owner: UUID, id: bytes, body: bytes) -> Breadcrumb:
    """Like `decode`, but takes the id as bytes.

    Small bodies are cached, because every turn reads its conversation again. The same version then returns the same
    object.
    """
    decode = _decode_cached if len(body) <= _MAX_CACHED_BYTES else _decode
    return decode(owner.bytes, id, body)


def _decode(raw_owner: bytes, raw_id: bytes, body: bytes) -> Breadcrumb:
    header, _, tail = body.partition(b"\n")
    version, created, updated, expires, max_reads = header.split(b" ")
    created_by, updated_by = tail[:16], tail[16:32]
    return Breadcrumb(
        uuid_of(int.from_bytes(raw_id)),
        _known_uuid(raw_owner),
        int(version),
        int(created),
        int(updated),
        int(expires),
        int(max_reads),
        None if created_by == _NO_AGENT else _known_uuid(created_by),
        None if updated_by == _NO_AGENT else _known_uuid(updated_by),
        tail[32:],
    )


_decode_cached = lru_cache(_MAX_CACHED)(_decode)
_known_uuid = lru_cache(1_024)(lambda raw: UUID(bytes=raw))  # owners and agents: few, and in every body


def clear_cache() -> None:
    """Forget the cached breadcrumbs, for measurements."""
    _decode_cached.cache_clear()


def is_gone(crumb: Breadcrumb, now: int) -> bool:
    """Return whether a breadcrumb has expired. A used-up read limit sets `expires`, so reads need no other check."""
    return crumb.expires != 0 and crumb.max_reads >= 0 and crumb.expires <= now


def is_gone_raw(body: bytes, now: int) -> bool:
    """Like `is_gone`, for a stored body."""
    _, _, _, expires, max_reads = body[: body.index(b"\n")].split(b" ")
    return expires != b"0" and int(max_reads) >= 0 and int(expires) <= now


def json_of(body: bytes) -> memoryview:
    """Return the JSON in a stored body, without a copy."""
    return memoryview(body)[body.index(b"\n") + 1 + 2 * len(_NO_AGENT) :]


def event_note(
    schema_name: str,
    tags: list[str] | tuple[str, ...],
    private_to: UUID | None,
    *,
    only_for: str | None = None,
    imported: bool = False,
    traced: bool = True,
) -> bytes:
    """Return the part of an event after owner, id and version.

    It is enough to filter events without the body, also after the breadcrumb is deleted. It carries the trace of the
    running task, which is therefore no part of the breadcrumb, its digest or its history. `traced` False: it does not.
    """
    note: list[object] = [schema_name, tags]
    trace = carried.get() if traced and not imported else None
    if trace is not None:
        return orjson.dumps(
            [*note, None if private_to is None else str(private_to), only_for, imported, trace]
        )
    if private_to is not None or only_for is not None or imported:
        note.append(None if private_to is None else str(private_to))
    if only_for is not None or imported:
        note.append(only_for)
    if imported:
        note.append(imported)
    return orjson.dumps(note)
