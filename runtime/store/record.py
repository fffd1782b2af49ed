"""How a breadcrumb lies in the store: a short text header, the two agents, and the JSON as it came.

`<version> <created> <updated> <expires> <max_reads>\n<created_by: 16 bytes><updated_by: 16 bytes><json>`

The header is text because the scripts rewrite it; the JSON is never touched again after it was validated.
What every reader gets besides (id, owner) is in the key.
"""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, Content

_NOBODY = bytes(16)
_LONGEST_REMEMBERED = 4_096
_MOST_REMEMBERED = 2_048


def rest(content: Content, created_by: UUID | None, updated_by: UUID | None) -> bytes:
    """The body without its header, which the script writes."""
    return (
        (created_by.bytes if created_by else _NOBODY)
        + (updated_by.bytes if updated_by else _NOBODY)
        + content.json
    )


def whole(crumb: Breadcrumb, *, json: bytes | None = None) -> bytes:
    """The whole body, for what existed before. `json`: with this instead of its own."""
    return b"%d %d %d %d %d\n%s%s%s" % (
        crumb.version,
        crumb.created,
        crumb.updated,
        crumb.expires,
        crumb.max_reads,
        crumb.created_by.bytes if crumb.created_by else _NOBODY,
        crumb.updated_by.bytes if crumb.updated_by else _NOBODY,
        crumb.json if json is None else json,
    )


def decode(owner: UUID, id: UUID, body: bytes) -> Breadcrumb:
    return decode_raw(owner, id.bytes, body)


def decode_raw(owner: UUID, id: bytes, body: bytes) -> Breadcrumb:
    """The same object for the same version: a conversation is read again with every turn."""
    read = _remembered if len(body) <= _LONGEST_REMEMBERED else _read
    return read(owner.bytes, id, body)


def _read(raw_owner: bytes, raw_id: bytes, body: bytes) -> Breadcrumb:
    header, _, tail = body.partition(b"\n")
    version, created, updated, expires, max_reads = header.split(b" ")
    created_by, updated_by = tail[:16], tail[16:32]
    return Breadcrumb(
        UUID(bytes=raw_id),
        _owner(raw_owner),
        int(version),
        int(created),
        int(updated),
        int(expires),
        int(max_reads),
        None if created_by == _NOBODY else UUID(bytes=created_by),
        None if updated_by == _NOBODY else UUID(bytes=updated_by),
        tail[32:],
    )


_remembered = lru_cache(_MOST_REMEMBERED)(_read)
_owner = lru_cache(1_024)(lambda raw: UUID(bytes=raw))


def is_gone(crumb: Breadcrumb, now: int) -> bool:
    """Whether its time is up. Read limits end by setting `expires`, so this is the only question."""
    return crumb.expires != 0 and crumb.max_reads >= 0 and crumb.expires <= now


def event_note(
    schema_name: str,
    tags: list[str] | tuple[str, ...],
    private_to: UUID | None,
    *,
    only_for: str | None = None,
    imported: bool = False,
) -> bytes:
    """What an event says besides id and version: enough to filter without the body, also after a delete."""
    note: list[object] = [schema_name, tags]
    if private_to is not None or only_for is not None or imported:
        note.append(None if private_to is None else str(private_to))
    if only_for is not None or imported:
        note.append(only_for)
    if imported:
        note.append(imported)
    return orjson.dumps(note)
