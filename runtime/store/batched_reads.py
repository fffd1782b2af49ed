"""Questions to a store that are asked together: all of them in one round trip.

A turn needs the trigger, the last messages, the context there is, and more. Asked one by one, each costs a
task and a write of its own, and a turn is mostly that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Run, Script
from breadcrumbs.runtime.backend.link import Command
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import home_lane, lane_for
from breadcrumbs.runtime.breadcrumb.query import Query, check_limit
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.store import listing, lookup, record
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.lookup import ReadContext
from breadcrumbs.runtime.store.write_cache import HEADER_BYTES

_RECENT = Script("recent")

RECENT_BYTES: Final = 16 << 20
"""How much a question for recent breadcrumbs reads: the newest that fit. As in recent.lua."""

T = TypeVar("T")


class NotTold(Exception):
    """The replies do not say: the question has to be asked in another way."""


class End(NamedTuple):
    """The newest entries of an index with their bodies: id, body, id, body …, the newest first."""

    key: bytes
    bodies: bytes
    """The key of a body up to its id."""
    limit: int


@dataclass(slots=True)
class Question(Generic[T]):
    """The commands that answer a question, each with its lane, and how to read their replies."""

    commands: Sequence[tuple[int, Command | End]]
    read: Callable[[list[Any]], T]
    otherwise: Callable[[], Awaitable[T]] | None = None
    """Answers where `read` says `NotTold`; slower."""
    _answers: list[T] = field(default_factory=list)

    @property
    def answer(self) -> T:
        """What was found out; there once it was asked."""
        return self._answers[-1]

    async def take(self, replies: list[Any]) -> None:
        try:
            self._answers.append(self.read(replies))
        except NotTold:
            if self.otherwise is None:
                raise
            self._answers.append(await self.otherwise())


class Asking:
    """Some questions as the commands that leave together: all ends of indexes on one server are one script."""

    def __init__(self, questions: Sequence[Question[Any]], group_of: Mapping[int, int]) -> None:
        self._questions = questions
        self.commands: list[tuple[int, Command | Run]] = []
        self._places: list[tuple[int, int | None]] = []
        """Where the reply to each command of each question is: a whole one, or which part of it."""
        runs: dict[int, tuple[int, Run]] = {}
        for question in questions:
            for lane, command in question.commands:
                if not isinstance(command, End):
                    self._places.append((len(self.commands), None))
                    self.commands.append((lane, command))
                    continue
                group = group_of[lane]
                if group not in runs:
                    runs[group] = len(self.commands), Run(_RECENT, [], [])
                    self.commands.append((lane, runs[group][1]))
                place, run = runs[group]
                self._places.append((place, len(run.keys)))
                run.keys.append(command.key)
                run.args.extend((command.bodies, command.limit - 1))

    async def take(self, replies: list[Any]) -> None:
        """Give each question what it is told."""
        parts = [replies[place] if part is None else replies[place][part] for place, part in self._places]
        first = 0
        for question in self._questions:
            end = first + len(question.commands)
            await question.take(parts[first:end])
            first = end


def plain(lane: int, command: Command, read: Callable[[Any], T]) -> Question[T]:
    """What one command answers."""
    return Question([(lane, command)], lambda replies: read(replies[0]))


def version_of(context: ReadContext, owner: UUID, id: UUID, version: int) -> Question[Breadcrumb | None]:
    """One version of a breadcrumb; None: deleted or expired, all of it or this version."""

    def read(crumb: Breadcrumb | None) -> Breadcrumb | None:
        if crumb is None or record.is_gone(crumb, context.clock.now()):
            return None
        if crumb.version != version:
            raise NotTold  # it is history
        return crumb

    async def otherwise() -> Breadcrumb | None:
        try:
            return await lookup.get_version(context, owner, id, version)
        except NotFound:
            return None

    return _body(context, owner, id, version, read, otherwise)


def newest_of(context: ReadContext, owner: UUID, id: UUID) -> Question[Breadcrumb | None]:
    """The newest version of a breadcrumb, without counting it as a read; None: deleted or expired."""

    def read(crumb: Breadcrumb | None) -> Breadcrumb | None:
        return None if crumb is None or record.is_gone(crumb, context.clock.now()) else crumb

    async def otherwise() -> Breadcrumb | None:
        try:
            return await lookup.get(context, owner, id, count_read=False)
        except NotFound:
            return None

    return _body(context, owner, id, None, read, otherwise)


def _body(
    context: ReadContext,
    owner: UUID,
    id: UUID,
    version: int | None,
    read: Callable[[Breadcrumb | None], Breadcrumb | None],
    otherwise: Callable[[], Awaitable[Breadcrumb | None]],
) -> Question[Breadcrumb | None]:
    lane, keys, raw = home_lane(id, context.keys.lanes), context.keys, id.bytes
    if context.write_cache.has(owner, id, version):
        # We have written it: is it still there, and still that one?
        def still(replies: list[Any]) -> Breadcrumb | None:
            header = replies[0]
            crumb = context.write_cache.get_by_header(owner, id, header) if header else None
            if header and crumb is None:
                raise NotTold  # somebody else has written since
            return read(crumb)

        return Question(
            [(lane, (b"GETRANGE", keys.body(lane, owner, raw), 0, HEADER_BYTES))], still, otherwise
        )

    def decoded(replies: list[Any]) -> Breadcrumb | None:
        body, signpost = replies
        if body is None and signpost is not None:
            raise NotTold  # it lives in another lane
        return read(None if body is None else record.decode(owner, id, body))

    return Question(
        [(lane, (b"GET", keys.body(lane, owner, raw))), (lane, (b"GET", keys.signpost(lane, owner, raw)))],
        decoded,
        otherwise,
    )


def recent_of(
    context: ReadContext,
    owner: UUID,
    session_id: str,
    schema_name: str,
    limit: int,
    *,
    max_bytes: int = RECENT_BYTES,
) -> Question[list[Breadcrumb]]:
    """The last breadcrumbs of a schema in a session, the newest first.

    `max_bytes`: how much of them there may be where the questions asked together exceed `RECENT_BYTES`.
    """
    lane, keys = lane_for(owner, "session", session_id, context.keys.lanes), context.keys
    end = End(keys.by_session(lane, owner, session_id, schema_name), keys.body(lane, owner, b""), limit)
    otherwise = Query(session_id=session_id, schema_name=schema_name, limit=limit, max_bytes=max_bytes)
    return _recent(context, owner, [(lane, end)], otherwise)


def recent_shared(
    context: ReadContext,
    owner: UUID,
    schema_name: str,
    limit: int,
    keep: Callable[[Breadcrumb], bool] | None = None,
    *,
    max_bytes: int = RECENT_BYTES,
) -> Question[list[Breadcrumb]]:
    """The last breadcrumbs of a schema that belong to no session and that `keep` admits, the newest first."""
    ends = _outside_sessions(context.keys, owner, schema_name, limit)
    otherwise = Query(sessionless=True, schema_name=schema_name, limit=limit, max_bytes=max_bytes, keep=keep)
    return _recent(context, owner, ends, otherwise)


def newest_tagged(
    context: ReadContext, owner: UUID, schema_name: str, tag: str, keep: Callable[[Breadcrumb], bool]
) -> Question[list[Breadcrumb]]:
    """The newest breadcrumb of a schema with a tag that `keep` admits; none, or one."""
    otherwise = Query(schema_name=schema_name, all_tags=(tag,), limit=1, max_bytes=RECENT_BYTES, keep=keep)
    return _recent(context, owner, _tagged(context.keys, owner, tag), otherwise)


@lru_cache(1_024)
def _outside_sessions(keys: Keys, owner: UUID, schema_name: str, limit: int) -> tuple[tuple[int, End], ...]:
    """One in each lane. Every turn asks for the same ones."""
    return tuple(
        (lane, End(keys.by_session(lane, owner, "", schema_name), keys.body(lane, owner, b""), limit))
        for lane in range(keys.lanes)
    )


@lru_cache(1_024)
def _tagged(keys: Keys, owner: UUID, tag: str) -> tuple[tuple[int, End], ...]:
    return tuple(
        (lane, End(keys.by_tag(lane, owner, tag), keys.body(lane, owner, b""), 1))
        for lane in range(keys.lanes)
    )


def _recent(
    context: ReadContext, owner: UUID, ends: Sequence[tuple[int, End]], query: Query
) -> Question[list[Breadcrumb]]:
    """What a query finds at the ends of one index in some lanes, as far as they tell."""
    schema, limit, keep = query.schema_name, query.limit, query.keep
    check_limit(limit)

    def read(replies: list[Any]) -> list[Breadcrumb]:
        now, alive, seen_since = context.clock.now(), [], 0
        for end in replies:
            left_out, oldest = False, 0
            for place in range(0, len(end), 2):
                if end[place + 1] is None:
                    # The index is on its way to another node of a cluster, and this body is not there with it.
                    raise NotTold
                crumb = record.decode_raw(owner, end[place], end[place + 1])
                oldest = crumb.created
                if (
                    record.is_gone(crumb, now)
                    or crumb.schema_name != schema
                    or not (keep is None or keep(crumb))
                ):
                    left_out = True
                else:
                    alive.append(crumb)
            if left_out and len(end) >= 2 * limit:
                # Not swept yet or not admitted, and in the way of what lies further back.
                seen_since = max(seen_since, oldest)
        if len(replies) > 1:
            alive.sort(key=lambda crumb: (crumb.created, crumb.id.bytes), reverse=True)
        if seen_since and (len(alive) < limit or alive[limit - 1].created <= seen_since):
            raise NotTold
        return alive[:limit]

    async def otherwise() -> list[Breadcrumb]:
        return (await listing.page(context, owner, query)).items

    return Question(ends, read, otherwise)
