"""Reads that are sent together, in one round trip per node.

A turn needs the trigger, the last messages, the existing context, and more. Each separate read would need a task and a
write to the socket. Tasks and socket writes are the main cost of a turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script, ScriptCall
from breadcrumbs.runtime.backend.link import Command
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import home_lane
from breadcrumbs.runtime.breadcrumb.query import Query, check_limit
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.store import listing, lookup, record
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.lookup import ReadContext, retry_once
from breadcrumbs.runtime.store.state import (
    ACTIVE,
    AGENT,
    MODEL,
    About,
    Choices,
    decode_about,
    decode_choices,
    decode_state,
    paused_at,
)
from breadcrumbs.runtime.store.write_cache import HEADER_BYTES

_RECENT = Script("recent")

RECENT_BYTES: Final = 16 << 20
"""Maximum size of the bodies that one run of recent.lua returns. Must match that script."""

T = TypeVar("T")
Keep: TypeAlias = Callable[[Breadcrumb], bool]


class NeedsFullScan(Exception):
    """The replies are not enough to decode the result. `Read.fallback` finds it."""


class IndexHead(NamedTuple):
    """Command for the newest entries of an index with their bodies.

    Its reply is id, body, id, body …, the newest first.
    """

    key: bytes
    bodies: bytes
    """Prefix of the body keys, up to the id."""
    limit: int


@dataclass(slots=True)  # not frozen: that would double the creation time, and every turn creates many
class Read(Generic[T]):
    """Commands of a read, each with its lane, and the function that decodes their replies."""

    commands: Sequence[tuple[int, Command | IndexHead]]
    decode: Callable[[list[Any]], T]
    fallback: Callable[[], Awaitable[T]] | None = None
    """A slower read for the case that `decode` raises `NeedsFullScan`. None: the caller handles the exception."""


class ReadBatch:
    """Commands of several reads. All index heads on one server become one script call.

    The script calls come last. So what they read is not older than the results of other commands to the same server.
    """

    def __init__(self, reads: Sequence[Read[Any]], group_of: Mapping[int, int]) -> None:
        self._reads = reads
        self.commands: list[tuple[int, Command | ScriptCall]] = []
        self._parts: list[tuple[int, int | None]] = []
        """For each command: the index of its reply, and of its part in that reply. None: the whole reply."""
        runs: dict[int, tuple[int, ScriptCall]] = {}
        heads: list[tuple[int, int, int]] = []
        """For each index head: its index in `_parts`, its group, and its part."""
        for read in reads:
            for lane, command in read.commands:
                if not isinstance(command, IndexHead):
                    self._parts.append((len(self.commands), None))
                    self.commands.append((lane, command))
                    continue
                group = group_of[lane]
                if group not in runs:
                    runs[group] = lane, ScriptCall(_RECENT, [], [])
                run = runs[group][1]
                heads.append((len(self._parts), group, len(run.keys)))
                self._parts.append((0, 0))
                run.keys.append(command.key)
                run.args.extend((command.bodies, command.limit - 1))
        numbers = {group: len(self.commands) + index for index, group in enumerate(runs)}
        self.commands += runs.values()
        for index, group, part in heads:
            self._parts[index] = numbers[group], part

    async def resolve(self, replies: list[Any]) -> tuple[Any, ...]:
        """Return the result of each read."""
        parts = [replies[number] if part is None else replies[number][part] for number, part in self._parts]
        results: list[Any] = []
        first = 0
        for read in self._reads:
            end = first + len(read.commands)
            try:
                results.append(read.decode(parts[first:end]))
            except NeedsFullScan:
                if read.fallback is None:
                    raise
                results.append(await read.fallback())
            first = end
        return tuple(results)


async def read_head(context: ReadContext, read: Read[T]) -> T:
    """Return the result of a read that has one index head, without a batch."""
    ((lane, head),) = cast(Sequence[tuple[int, IndexHead]], read.commands)
    call = context.connection.run
    replies = await retry_once(lambda: call(lane, _RECENT, [head.key], [head.bodies, head.limit - 1]))
    try:
        return read.decode(replies)
    except NeedsFullScan:
        if read.fallback is None:
            raise
        return await read.fallback()


class SessionRead(Protocol):
    """Description of a read of one session. `workers/session_cache.py` answers many of them from memory."""

    def build(self, context: ReadContext) -> Read[Any]: ...


def build_reads(context: ReadContext, reads: Iterable[Read[Any] | SessionRead]) -> list[Read[Any]]:
    """Return the reads with their commands."""
    return [read if isinstance(read, Read) else read.build(context) for read in reads]


class RecentRead(NamedTuple):
    """See `recent_of`."""

    owner: UUID
    session_id: str
    schema_name: str
    limit: int
    max_bytes: int = RECENT_BYTES

    def build(self, context: ReadContext) -> Read[list[Breadcrumb]]:
        owner, session_id, schema_name, limit, max_bytes = self
        return recent_of(context, owner, session_id, schema_name, limit, max_bytes=max_bytes)


class CountRead(NamedTuple):
    """See `count_of`."""

    owner: UUID
    session_id: str
    schema_name: str
    before: int

    def build(self, context: ReadContext) -> Read[int]:
        return count_of(context, self.owner, self.session_id, self.schema_name, before=self.before)


class PauseRead(NamedTuple):
    """See `pause_of`."""

    owner: UUID
    session_id: str

    def build(self, context: ReadContext) -> Read[int | None]:
        return pause_of(context, self.owner, self.session_id)


class ChoicesRead(NamedTuple):
    """See `choices_of`."""

    owner: UUID
    session_id: str

    def build(self, context: ReadContext) -> Read[Choices]:
        return choices_of(context, self.owner, self.session_id)


class NewestRead(NamedTuple):
    """See `newest_of`. The breadcrumb belongs to the session of the turn."""

    owner: UUID
    id: UUID

    def build(self, context: ReadContext) -> Read[Breadcrumb | None]:
        return newest_of(context, self.owner, self.id)


class VersionRead(NamedTuple):
    """See `version_of`. The breadcrumb belongs to the session of the turn."""

    owner: UUID
    id: UUID
    version: int

    def build(self, context: ReadContext) -> Read[Breadcrumb | None]:
        return version_of(context, self.owner, self.id, self.version)


class SharedRead(NamedTuple):
    """See `recent_shared`."""

    owner: UUID
    schema_name: str
    limit: int
    keep: Keep
    max_bytes: int = RECENT_BYTES

    def build(self, context: ReadContext) -> Read[list[Breadcrumb]]:
        owner, schema_name, limit, keep, max_bytes = self
        return recent_shared(context, owner, schema_name, limit, keep, max_bytes=max_bytes)

    def find(self, context: ReadContext) -> tuple[list[Breadcrumb], bytes] | None:
        """Return the cached result and its version, which must be checked. None: it is not cached."""
        entry = context.shared_cache.get_unchecked((self.owner, self.schema_name, self.limit))
        if entry is None:
            return None
        try:
            wanted = _HeadFilter(self.schema_name, self.limit, self.keep)
            return _merge_heads(entry.heads, wanted, context.clock.now()), entry.version or b""
        except NeedsFullScan:
            return None


class LastWriteRead(NamedTuple):
    """Reads the time of the last write in a lane. 0: there was none."""

    lane: int

    def build(self, context: ReadContext) -> Read[int]:
        return read_command(self.lane, (b"GET", context.keys.clock(self.lane)), lambda time: int(time or 0))


def read_command(lane: int, command: Command, decode: Callable[[Any], T]) -> Read[T]:
    """Return a read of one command."""
    return Read([(lane, command)], lambda replies: decode(replies[0]))


def version_of(context: ReadContext, owner: UUID, id: UUID, version: int) -> Read[Breadcrumb | None]:
    """Read one version of a breadcrumb. None: the breadcrumb or this version is deleted or expired."""

    def check(crumb: Breadcrumb | None) -> Breadcrumb | None:
        if crumb is None or record.is_gone(crumb, context.clock.now()):
            return None
        if crumb.version != version:
            raise NeedsFullScan  # the history has this version
        return crumb

    async def fallback() -> Breadcrumb | None:
        try:
            return await lookup.get_version(context, owner, id, version)
        except NotFound:
            return None

    if context.write_cache.has(owner, id, version):
        return _read_cached(context, owner, id, check, fallback)
    return _read_body(context, owner, id, check, fallback)


def newest_of(context: ReadContext, owner: UUID, id: UUID) -> Read[Breadcrumb | None]:
    """Read the newest version of a breadcrumb without counting the read. None: deleted or expired."""

    def check(crumb: Breadcrumb | None) -> Breadcrumb | None:
        return None if crumb is None or record.is_gone(crumb, context.clock.now()) else crumb

    async def fallback() -> Breadcrumb | None:
        try:
            return await lookup.get(context, owner, id, count_read=False)
        except NotFound:
            return None

    if context.write_cache.has(owner, id):
        return _read_cached(context, owner, id, check, fallback)
    return _read_body(context, owner, id, check, fallback)


def _read_cached(
    context: ReadContext,
    owner: UUID,
    id: UUID,
    check: Callable[[Breadcrumb | None], Breadcrumb | None],
    fallback: Callable[[], Awaitable[Breadcrumb | None]],
) -> Read[Breadcrumb | None]:
    """Read only the header of a cached breadcrumb. It shows whether the cached version is the newest."""

    def decode(replies: list[Any]) -> Breadcrumb | None:
        header = replies[0]
        crumb = context.write_cache.get_by_header(owner, id, header) if header else None
        if header and crumb is None:
            raise NeedsFullScan  # the cached version is outdated
        return check(crumb)

    lane = home_lane(id, context.keys.lanes)
    body = context.keys.body(lane, owner, id.bytes)
    return Read([(lane, (b"GETRANGE", body, 0, HEADER_BYTES))], decode, fallback)


def _read_body(
    context: ReadContext,
    owner: UUID,
    id: UUID,
    check: Callable[[Breadcrumb | None], Breadcrumb | None],
    fallback: Callable[[], Awaitable[Breadcrumb | None]],
) -> Read[Breadcrumb | None]:
    def decode(replies: list[Any]) -> Breadcrumb | None:
        body, signpost = replies
        if body is None and signpost is not None:
            raise NeedsFullScan  # the breadcrumb is in another lane
        return check(None if body is None else record.decode(owner, id, body))

    keys, raw = context.keys, id.bytes
    lane = home_lane(id, keys.lanes)
    return Read(
        [(lane, (b"GET", keys.body(lane, owner, raw))), (lane, (b"GET", keys.signpost(lane, owner, raw)))],
        decode,
        fallback,
    )


def count_of(
    context: ReadContext, owner: UUID, session_id: str, schema_name: str, *, before: int | None = None
) -> Read[int]:
    """Count the breadcrumbs of a schema in a session, or those created before a time."""
    lane = context.keys.session_lane(owner, session_id)
    newest = b"+inf" if before is None else b"(%d" % before
    key = context.keys.by_session(lane, owner, session_id, schema_name)
    return read_command(lane, (b"ZCOUNT", key, b"-inf", newest), int)


def state_of(context: ReadContext, owner: UUID, session_id: str) -> Read[tuple[dict[str, Any], About]]:
    """Read the state of a session and the facts about it."""
    lane = context.keys.session_lane(owner, session_id)
    command = (b"HGETALL", context.keys.state(lane, owner, session_id))
    return read_command(lane, command, lambda flat: (decode_state(flat), decode_about(flat)))


def pause_of(context: ReadContext, owner: UUID, session_id: str) -> Read[int | None]:
    """Read the time since which a session is paused. None: it is not paused."""
    lane = context.keys.session_lane(owner, session_id)
    return read_command(lane, (b"HGET", context.keys.state(lane, owner, session_id), ACTIVE), paused_at)


def choices_of(context: ReadContext, owner: UUID, session_id: str) -> Read[Choices]:
    """Read the model and the agent that were chosen for a session."""
    lane = context.keys.session_lane(owner, session_id)
    command = (b"HMGET", context.keys.state(lane, owner, session_id), MODEL, AGENT)
    return read_command(lane, command, decode_choices)


def recent_of(
    context: ReadContext,
    owner: UUID,
    session_id: str,
    schema_name: str,
    limit: int,
    *,
    max_bytes: int = RECENT_BYTES,
) -> Read[list[Breadcrumb]]:
    """Read the last breadcrumbs of a schema in a session, the newest first.

    `max_bytes`: limit of their size if the reads of a batch together exceed `RECENT_BYTES`.
    """
    keys = context.keys
    lane = keys.session_lane(owner, session_id)
    head = IndexHead(
        keys.by_session(lane, owner, session_id, schema_name), keys.body(lane, owner, b""), limit
    )

    def build_query() -> Query:
        return Query(session_id=session_id, schema_name=schema_name, limit=limit, max_bytes=max_bytes)

    wanted = _HeadFilter(schema_name, limit, None)
    return _read_heads(context, owner, [(lane, head)], wanted, build_query)


def recent_shared(
    context: ReadContext,
    owner: UUID,
    schema_name: str,
    limit: int,
    keep: Keep | None = None,
    *,
    max_bytes: int = RECENT_BYTES,
) -> Read[list[Breadcrumb]]:
    """Read the last sessionless breadcrumbs of a schema that `keep` accepts, the newest first.

    If they are cached, the read checks only whether they are up to date.
    """
    check_limit(limit)
    wanted, key = _HeadFilter(schema_name, limit, keep), (owner, schema_name, limit)
    heads = _sessionless_heads(context.keys, owner, schema_name, limit)
    lane = context.keys.shared_lane(owner)
    version_read = lane, (b"GET", context.keys.shared(lane, owner))
    version: bytes | None = None

    def take(replies: list[Any]) -> list[Breadcrumb]:
        found = _decode_heads(replies, owner)
        context.shared_cache.put(key, version, found)
        return _merge_heads(found, wanted, context.clock.now())

    async def list_all() -> list[Breadcrumb]:
        query = Query(sessionless=True, schema_name=schema_name, limit=limit, max_bytes=max_bytes, keep=keep)
        return (await listing.page(context, owner, query)).items

    if context.is_one_server and not context.shared_cache.has(key):

        def decode_all(replies: list[Any]) -> list[Breadcrumb]:
            nonlocal version
            version = replies[0]
            return take(replies[1:])

        return Read(
            [version_read, *heads], decode_all, list_all
        )  # the version is read first, see `ReadBatch`

    def decode(replies: list[Any]) -> list[Breadcrumb]:
        nonlocal version
        version = replies[0]
        found = context.shared_cache.get(key, version)
        if found is None:
            raise NeedsFullScan
        return _merge_heads(found, wanted, context.clock.now())

    async def read_all() -> list[Breadcrumb]:
        batch = ReadBatch([Read(heads, take, list_all)], context.group_of)
        (found,) = await batch.resolve(await retry_once(lambda: context.connection.call_all(batch.commands)))
        return cast(list[Breadcrumb], found)

    return Read([version_read], decode, read_all)


def newest_tagged(
    context: ReadContext, owner: UUID, schema_name: str, tag: str, keep: Keep
) -> Read[list[Breadcrumb]]:
    """Read the newest breadcrumb of a schema with a tag that `keep` accepts.

    The result is a list of at most one breadcrumb.
    """

    def build_query() -> Query:
        return Query(schema_name=schema_name, all_tags=(tag,), limit=1, max_bytes=RECENT_BYTES, keep=keep)

    heads = _tag_heads(context.keys, owner, tag)
    return _read_heads(context, owner, heads, _HeadFilter(schema_name, 1, keep), build_query)


@lru_cache(1_024)
def _sessionless_heads(
    keys: Keys, owner: UUID, schema_name: str, limit: int
) -> tuple[tuple[int, IndexHead], ...]:
    """Return one index head per lane. Cached, because every turn needs the same ones."""
    return tuple(
        (lane, IndexHead(keys.by_session(lane, owner, "", schema_name), keys.body(lane, owner, b""), limit))
        for lane in range(keys.lanes)
    )


@lru_cache(1_024)
def _tag_heads(keys: Keys, owner: UUID, tag: str) -> tuple[tuple[int, IndexHead], ...]:
    return tuple(
        (lane, IndexHead(keys.by_tag(lane, owner, tag), keys.body(lane, owner, b""), 1))
        for lane in range(keys.lanes)
    )


class _HeadFilter(NamedTuple):
    """Filter and limit for the entries of index heads."""

    schema_name: str
    limit: int
    keep: Keep | None


def _read_heads(
    context: ReadContext,
    owner: UUID,
    heads: Sequence[tuple[int, IndexHead]],
    wanted: _HeadFilter,
    build_query: Callable[[], Query],
) -> Read[list[Breadcrumb]]:
    """Read the result of a query from the heads of one index in several lanes.

    If the heads are not enough, the fallback builds and runs the query. It is not built before, because this is the
    hot path.
    """
    check_limit(wanted.limit)

    def decode(replies: list[Any]) -> list[Breadcrumb]:
        return _merge_heads(_decode_heads(replies, owner), wanted, context.clock.now())

    async def fallback() -> list[Breadcrumb]:
        return (await listing.page(context, owner, build_query())).items

    return Read(heads, decode, fallback)


def _decode_heads(replies: list[Any], owner: UUID) -> list[list[Breadcrumb]]:
    """Return the breadcrumbs of index heads. Raises `NeedsFullScan` if a body is missing."""
    heads = []
    for head in replies:
        if head and head[-1] is None:
            # The body limit is reached, or the slot is being migrated and this body is on the other node.
            raise NeedsFullScan
        heads.append(record.decode_pairs(owner, head))
    return heads


def _merge_heads(heads: Sequence[Sequence[Breadcrumb]], wanted: _HeadFilter, now: int) -> list[Breadcrumb]:
    """Return the newest accepted breadcrumbs of all heads. Raises `NeedsFullScan` if older entries can be missing."""
    schema, limit, keep = wanted
    found: list[Breadcrumb] = []
    complete_since = 0
    for head in heads:
        accepted = [
            crumb
            for crumb in head
            if not record.is_gone(crumb, now)
            and crumb.schema_name == schema
            and (keep is None or keep(crumb))
        ]
        found += accepted
        if len(accepted) < len(head) >= limit:
            # Rejected entries fill a part of this head, so the index can contain more accepted ones further back.
            complete_since = max(complete_since, head[-1].created)
    if len(heads) > 1:
        found.sort(key=lambda crumb: (crumb.created, crumb.id.bytes), reverse=True)
    if complete_since and (len(found) < limit or found[limit - 1].created <= complete_since):
        raise NeedsFullScan
    return found[:limit]
