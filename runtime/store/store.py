"""The store: breadcrumbs in, breadcrumbs out, each write one script.

Nothing here knows of HTTP, of tokens or of agents. Every method takes the owner first, and the owner is
part of every key: what belongs to another tenant is not filtered out, it is somewhere else.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import anyio

from breadcrumbs.runtime.backend.connection import Connection, Script
from breadcrumbs.runtime.breadcrumb import ttl
from breadcrumbs.runtime.breadcrumb.breadcrumb import (
    Breadcrumb,
    BreadcrumbCreate,
    BreadcrumbUpdate,
    Content,
    check_name,
    check_new_session_id,
    content_of,
)
from breadcrumbs.runtime.breadcrumb.ids import home_lane, lane_for, new_id
from breadcrumbs.runtime.breadcrumb.json_input import MAX_BODY_BYTES
from breadcrumbs.runtime.breadcrumb.names import hidden_character
from breadcrumbs.runtime.breadcrumb.query import MAX_LIMIT, Page, Query
from breadcrumbs.runtime.errors import (
    AlreadyExists,
    AnotherSession,
    IdempotencyMismatch,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    SessionGone,
    StateTooLarge,
    StoreError,
    StoreFull,
    StoreUnavailable,
    VersionMismatch,
)
from breadcrumbs.runtime.store import listing, record
from breadcrumbs.runtime.store.batched_reads import Asking, NotTold, Question, recent_of
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.lease import Lease, LeaseLost
from breadcrumbs.runtime.store.opening import Address, opened
from breadcrumbs.runtime.store.quotas import QuotaGate, Quotas, Usage
from breadcrumbs.runtime.store.script_calls import Arguments, Does, Expects, Writes, together
from breadcrumbs.runtime.store.state import MAX_STATE_BYTES, Guard, held_changes, is_about_session
from breadcrumbs.runtime.store.write_cache import Fresh

_READ, _BODIES = Script("read"), Script("bodies")


class _Scripts(NamedTuple):
    """The scripts that write breadcrumbs."""

    create: Script
    create_together: Script
    create_commit: Script
    update: Script
    update_commit: Script
    delete: Script
    restore: Script
    extend: Script

    @classmethod
    def inside(cls, *wrappers: str) -> _Scripts:
        recording = ("deletions", *wrappers)
        return cls(
            Script("create", inside=recording),
            Script("create", inside=(*recording, "together")),
            Script("create", inside=(*recording, "commit")),
            Script("update", inside=recording),
            Script("update", inside=(*recording, "commit")),
            Script("delete", inside=recording),
            Script("import", inside=recording),
            Script("extend", inside=wrappers),
        )


_PLAIN, _COUNTED = _Scripts.inside(), _Scripts.inside("counted")

_VERSIONS_AT_ONCE: Final = 256
_HEADER: Final = 128
"""Bytes of a stored body beside its JSON, at most."""
WALK_BYTES: Final = 4 << 20
"""How many bytes of stored bodies a walk or a history reads at once."""

_T = TypeVar("_T")
List: TypeAlias = list  # inside Store, `list` is its method


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did, as the store has it."""

    id: UUID
    version: int
    created: int
    updated: int
    replayed: bool = False
    """True: nothing was written, this is the first result of the same idempotency key."""
    found: bool = False
    """True: nothing was written, the id was there already; perhaps from a first try whose answer was lost."""
    session_version: int | None = None
    """The version that this gave to its session; unknown where nothing was written."""


@dataclass(frozen=True, slots=True)
class Fence:
    """What makes a write a worker's commit: the lease it is made under, and the event it is the answer to."""

    lease: Lease
    event: int | None = None
    """The time of the event to acknowledge; None: the turn goes on."""
    low: int = 0
    """Every event up to here is done."""
    dead_letter: bytes = b""
    """What the event becomes where the turn failed (JSON)."""
    since: int | None = None
    """The time of the event that led to this: a session that was deleted after it takes nothing."""


@dataclass(frozen=True, slots=True)
class VersionPage:
    """Some versions of a breadcrumb, the newest first."""

    newest: Breadcrumb
    """The version that the store has now, which need not be among them."""
    versions: list[Breadcrumb]
    next_before: int | None
    """Where the next page begins (see `Store.history_page`); None: this was the end."""


class Store:
    """Breadcrumbs of all owners on one Redis-protocol server or cluster."""

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        *,
        secret: bytes,
        ttl_defaults: Mapping[str, ttl.Expiry] | None = None,
        idempotency_seconds: int = 86_400,
        max_content_bytes: int = MAX_BODY_BYTES,
        max_state_bytes: int = MAX_STATE_BYTES,
        quotas: Quotas | None = None,
    ) -> None:
        self.connection = connection
        self.keys = keys
        self.lanes = keys.lanes
        self.secret = secret
        self._ttl_defaults = ttl_defaults or {}
        self._writes = Writes(keys, idempotency_seconds=idempotency_seconds, max_state_bytes=max_state_bytes)
        self.max_content_bytes = max_content_bytes
        self.max_state_bytes = max_state_bytes
        self.quotas = QuotaGate(connection, keys, quotas) if quotas is not None and quotas.are_set else None
        """None: there are no quotas."""
        self._clock_offset = 0
        self._clock_error = 0
        self._group_of = {
            lane: number for number, group in enumerate(connection.reader_groups()) for lane in group
        }
        self.fresh = Fresh()

    @classmethod
    async def open(
        cls,
        url: Address,
        *,
        lanes: int | None = None,
        namespace: str = "bc",
        ttl_defaults: Mapping[str, ttl.Expiry] | None = None,
        idempotency_seconds: int = 86_400,
        max_content_bytes: int = MAX_BODY_BYTES,
        max_state_bytes: int = MAX_STATE_BYTES,
        quotas: Quotas | None = None,
    ) -> Store:
        """Connect, and agree with whoever was here first on the number of lanes."""
        connection, keys, secret = await opened(url, namespace, lanes)
        try:
            store = cls(
                connection,
                keys,
                secret=secret,
                ttl_defaults=ttl_defaults,
                idempotency_seconds=idempotency_seconds,
                max_content_bytes=max_content_bytes,
                max_state_bytes=max_state_bytes,
                quotas=quotas,
            )
            await store.read_clock()
        except BaseException:
            await connection.close()
            raise
        return store

    async def close(self) -> None:
        await self.connection.close()

    # Writing

    def content(self, new: BreadcrumbCreate) -> Content:
        """What would be stored: checked, and with the lifetime that its schema has here."""
        return content_of(new, default_ttl=self._default_ttl(new.schema_name))

    async def create(
        self,
        owner: UUID,
        new: BreadcrumbCreate,
        *,
        by: UUID | None = None,
        idempotency_key: str | None = None,
        id: UUID | None = None,
        fence: Fence | None = None,
        content: Content | None = None,
        counts: bool = True,
        session_version: int | Literal["*"] | None = None,
        session_began: int | None = None,
        along: Sequence[tuple[UUID, BreadcrumbCreate]] = (),
    ) -> Written:
        """Write a new breadcrumb.

        The same `idempotency_key` (per owner and session) and the same content give the first result
        again; other content is an `IdempotencyMismatch`. An `id` (see `derived_id`) that is there already
        is the same: what it names was written before. `content`: that of `new`, where it is known already.
        `counts`: the session's version goes up, and it counts as active now. `session_version`: the version that
        the session must have; 0: it must not exist, `*`: it must exist. `session_began`: when it must
        have begun, or `AnotherSession`; 0: it must not exist. `along`: what else a new session begins with, each with
        an id that only it can have; all or nothing. A commit has nothing along.
        """
        if content is None:
            content = self.content(new)
        if idempotency_key is not None:
            check_idempotency_key(idempotency_key)
        hidden = content.session_id is not None and hidden_character(content.session_id) is not None
        if hidden and session_version is None:
            session_version = "*"  # a session that an older version began goes on; none begins
        elif hidden and session_version == 0:
            check_new_session_id(content.session_id or "")
        lane = self._lane_of(owner, content.session_id, idempotency_key, id=id)
        if id is None:
            id = new_id(lane)
        expects = Expects(
            idempotency_key,
            counts,
            session_version,
            session_began,
            None if fence is None else fence.since,
        )
        contents = [(other_id, other, self.content(other)) for other_id, other in along]

        def creation(
            id: UUID, new: BreadcrumbCreate, content: Content, expects: Expects
        ) -> tuple[List[bytes], Arguments]:
            call = self._writes.creation(lane, owner, id, new, content, by, expects)
            return self._counted(lane, owner, id, "create", call)

        others = [creation(other_id, other, theirs, Expects()) for other_id, other, theirs in contents]
        all_scripts = self._scripts(owner)
        first_script = all_scripts.create_together if along else all_scripts.create
        size = len(content.json) + sum(len(theirs.json) for _, _, theirs in contents)
        session = content.session_id

        def run(expects: Expects) -> Awaitable[Any]:
            keys, args = creation(id, new, content, expects)
            if along:
                keys, args = together([(keys, args), *others])
            return self._safely(
                lambda: self._run(lane, (first_script, all_scripts.create_commit), fence, keys, args)
            )

        if self.quotas is None or fence is not None:
            reply = await run(expects)
        else:
            growth = Usage(
                size + (1 + len(along)) * _HEADER, 1 + len(along), await self._begins(owner, session)
            )
            try:
                async with self.quotas.admitted(owner, growth):
                    reply = await run(expects)
            except QuotaExceeded:
                # A repeated request adds nothing: it gets the result of the first. The script decides whether it is
                # one. The look before saves sending a body that is refused anyway.
                if not await self._is_written(lane, owner, id, session, idempotency_key):
                    raise
                reply = await run(replace(expects, replays=True))
                if int(reply[0]) == 9:
                    raise
        match int(reply[0]):
            case 0:
                version = int(reply[4]) if session is not None else None
                written = Written(id, 1, int(reply[2]), int(reply[3]), session_version=version)
                self._as_written(owner, written, content, by, by)
                return written
            case 1:
                first = UUID(bytes=reply[4])
                # Our own id: a first try of this very call, whose answer was lost on the way.
                return Written(first, int(reply[1]), int(reply[2]), int(reply[3]), replayed=first != id)
            case 2:
                raise IdempotencyMismatch(
                    "this Idempotency-Key was used before with another body: use a new key for a new breadcrumb"
                )
            case 5:
                raise SessionGone(
                    f"session {session!r} is being deleted: nothing more can be written into it"
                )
            case 6:
                if hidden and not int(reply[1]):
                    check_new_session_id(session or "")
                if session_version == "*":
                    raise NotFound(f"there is no session {session!r}")
                raise VersionMismatch(int(reply[1]), session_version or 0)
            case 7:
                raise AnotherSession(f"session {session!r} is another one than it was")
            case 8:
                raise StateTooLarge(session or "", int(reply[1]), int(reply[2]))
            case _:
                # 3, the id is taken: by ourselves, in a first try whose answer was lost on the way.
                return Written(id, int(reply[1]), int(reply[2]), int(reply[3]), found=True)

    async def _begins(self, owner: UUID, session: str | None) -> int:
        """How many sessions a write into this one begins."""
        quota = None if self.quotas is None else self.quotas.quota(owner)
        if session is None or quota is None or quota.sessions is None:
            return 0
        lane = lane_for(owner, "session", session, self.lanes)
        known = await self.connection.call(
            lane, b"HEXISTS", self.keys.session(lane, owner, session), b"version"
        )
        return 0 if known else 1

    async def _is_written(
        self, lane: int, owner: UUID, id: UUID, session: str | None, idempotency_key: str | None
    ) -> bool:
        key = self.keys.body(lane, owner, id.bytes)
        if idempotency_key is not None:
            key = self.keys.idempotency(lane, owner, session or "", idempotency_key)
        return bool(await self.connection.call(lane, b"EXISTS", key))

    def _scripts(self, owner: UUID) -> _Scripts:
        return _PLAIN if self.quotas is None or self.quotas.quota(owner) is None else _COUNTED

    def _counted(
        self, lane: int, owner: UUID, id: UUID, does: Does, call: tuple[List[bytes], Arguments]
    ) -> tuple[List[bytes], Arguments]:
        """A run of a script, with what it takes to count the owner's usage where there is a quota."""
        if self.quotas is None or self.quotas.quota(owner) is None:
            return call
        return self._writes.counted(lane, owner, id, does, call)

    async def put(
        self,
        owner: UUID,
        id: UUID,
        new: BreadcrumbCreate,
        *,
        after: Breadcrumb | None,
        slim: Callable[[Breadcrumb], bytes],
        fence: Fence,
    ) -> Breadcrumb:
        """Write a breadcrumb of the runtime's own, or its next version; `slim` says what history keeps of the old.

        `after` is the newest version that the caller knows of; it need not be right.
        """
        content = self.content(new)
        for _ in range(200):
            if after is None:
                written = await self.create(owner, new, content=content, id=id, fence=fence, counts=False)
                if not written.found:
                    return self._as_written(owner, written, content, None, None)
            else:
                older = record.whole(after, json=slim(after))
                lane = home_lane(id, self.lanes)
                reply = await self._run_update(
                    lane, after, content, new.visibility, None, True, fence=fence, older=older
                )
                if int(reply[0]) == 0:
                    written = Written(id, int(reply[1]), int(reply[2]), int(reply[3]))
                    return self._as_written(owner, written, content, after.created_by, None)
            after = await self._in_the_way(owner, id)
            if after is not None and after.json == content.json:
                return after  # a first try of this very call, whose answer was lost on the way
        raise StoreUnavailable("too many writers at this breadcrumb: try again")

    async def _in_the_way(self, owner: UUID, id: UUID) -> Breadcrumb | None:
        """What is there now. What has expired and is not swept yet would block its successor: it goes."""
        lane, body = await self.look_up(owner, id)
        if body is None:
            return None
        crumb = record.decode(owner, id, body)
        if not record.is_gone(crumb, self.now()):
            return crumb
        reply = await self._run_delete(lane, crumb, only_expired=True)
        return crumb if int(reply[0]) == 3 else None  # 3: not yet, by the server's clock

    def _as_written(
        self,
        owner: UUID,
        written: Written,
        content: Content,
        created_by: UUID | None,
        updated_by: UUID | None,
    ) -> Breadcrumb:
        """What was just written, as it would be read, but for its expiry; kept for whoever reads it next."""
        crumb = Breadcrumb(
            written.id,
            owner,
            written.version,
            written.created,
            written.updated,
            0,
            0,
            created_by,
            updated_by,
            content.json,
        ).saying(content.document)
        self.fresh.note(crumb, lasts=content.expiry == ttl.NEVER)
        return crumb

    async def _run(
        self,
        lane: int,
        scripts: tuple[Script, Script],
        fence: Fence | None,
        keys: List[bytes],
        args: Arguments,
    ) -> Any:
        """Run a write: as it is, or as a worker's commit."""
        if fence is None:
            return await self.connection.run(lane, scripts[0], keys, args)
        if fence.lease.lane != lane:
            raise StoreError(
                f"a commit under the lease of lane {fence.lease.lane} cannot write into lane {lane}"
            )
        keys, args = self._writes.commit(fence, keys, args)
        reply = await self.connection.run(lane, scripts[1], keys, args)
        if int(reply[0]) == 4:
            raise LeaseLost(f"lane {lane} belongs to another worker")
        return reply

    async def update(
        self,
        owner: UUID,
        id: UUID,
        change: BreadcrumbUpdate,
        *,
        by: UUID | None = None,
        expected_version: int | None = None,
        merge_context: bool = False,
        admit: Callable[[Breadcrumb, BreadcrumbUpdate], BreadcrumbUpdate] | None = None,
    ) -> Written:
        """Write the next version. Without `expected_version` the last writer wins.

        `admit` checks the change against the version that it is made from, and may correct it.
        """
        tried: tuple[int, bytes] | None = None
        touches_ttl = bool(change.model_fields_set & {"ttl", "ttl_type", "ttl_config"})
        for attempt in range(200):
            lane, base = await self._find(owner, id)
            if tried is not None and (landed := await self._landed(lane, base, tried, by)) is not None:
                return Written(id, landed.version, landed.created, landed.updated)  # only the answer was lost
            admitted = change if admit is None else admit(base, change)
            if expected_version is not None and base.version != expected_version:
                raise VersionMismatch(base.version, expected_version)
            after = base.changed_by(admitted, merge_context=merge_context)
            limit_changes = touches_ttl or (
                # A default goes with its schema; a limit of its own stays.
                after.schema_name != base.schema_name
                and base.document.keys().isdisjoint(("ttl", "ttl_type", "ttl_config"))
            )
            default = self._default_ttl(after.schema_name) if limit_changes else _default_of(base)
            content = content_of(after, default_ttl=default)
            # Changes that each fit could add up to something that no longer does.
            if len(content.json) > max(self.max_content_bytes, len(base.json)):
                raise InvalidInput(
                    f"with this change the breadcrumb would be larger than {self.max_content_bytes:,} bytes",
                    where="context",
                )
            try:
                guarded = await self._guarded_anew(lane, base, after)
                reply = await self._run_update(
                    lane, base, content, after.visibility, by, limit_changes, state=guarded
                )
            except StoreUnavailable:
                if tried is not None:
                    raise
                tried = (base.version, content.json)
                continue
            match int(reply[0]):
                case 0:
                    return Written(id, int(reply[1]), int(reply[2]), int(reply[3]))
                case 2:
                    raise NotFound("no such breadcrumb")
            # Overtaken. Of many who come again at once all but one would be overtaken again.
            await anyio.sleep(random.uniform(0, 0.001 * min(attempt + 1, 50)))  # noqa: S311
        raise StoreUnavailable("too many writers at this breadcrumb: try again")

    async def _landed(
        self, lane: int, base: Breadcrumb, tried: tuple[int, bytes], by: UUID | None
    ) -> Breadcrumb | None:
        """The version that a try without an answer has written, if it has; others may have written since."""
        made_from, json = tried
        if base.version <= made_from:
            return None
        written = base if base.version == made_from + 1 else await self._older(lane, base, made_from + 1)
        return written if written is not None and (written.json, written.updated_by) == (json, by) else None

    async def _guarded_anew(
        self, lane: int, base: Breadcrumb, after: BreadcrumbCreate
    ) -> Mapping[str, bytes]:
        """What a breadcrumb has set of its session's state, where a change of it changes who may read that."""
        guard = Guard.of(after.context, after.sensitivity, after.visibility, base.created_by)
        if base.session_id is None or guard == Guard.of_crumb(base):
            return {}
        first = base if base.version == 1 else await self._older(lane, base, 1)
        if first is None:  # imported without its beginning: see restore
            return {}
        changes = held_changes(first.schema_name or "", first.context, guard.joined(Guard.of_crumb(first)))
        return {name: value for name, value in changes.items() if not is_about_session(name)}

    async def _run_update(
        self,
        lane: int,
        base: Breadcrumb,
        content: Content,
        visibility: str | None,
        by: UUID | None,
        limit_changes: bool,
        *,
        fence: Fence | None = None,
        older: bytes = b"",
        state: Mapping[str, bytes] | None = None,
    ) -> List[Any]:
        call = self._writes.update(
            lane,
            base,
            content,
            visibility,
            by,
            limit_changes,
            since=None if fence is None else fence.since,
            older=older,
            state=state or {},
        )
        owner, scripts = base.owner_id, self._scripts(base.owner_id)
        keys, args = self._counted(lane, owner, base.id, "update", call)

        async def write() -> List[Any]:
            reply: list[Any] = await self._run(
                lane, (scripts.update, scripts.update_commit), fence, keys, args
            )
            return reply

        if self.quotas is None or fence is not None:
            reply = await write()
        else:
            # The old version goes into the history, so all of the new one comes on top.
            async with self.quotas.admitted(owner, Usage(bytes=len(content.json) + _HEADER)):
                reply = await write()
        if int(reply[0]) == 5:
            raise SessionGone(
                f"session {content.session_id!r} is being deleted: nothing more can be written into it"
            )
        return reply

    async def delete(
        self,
        owner: UUID,
        id: UUID,
        *,
        expected_version: int | None = None,
        allowed: Callable[[Breadcrumb], bool] | None = None,
    ) -> None:
        """Remove a breadcrumb, its history and its index entries."""
        for attempt in range(200):
            try:
                lane, base = await self._find(owner, id)
            except NotFound:
                if attempt:
                    return  # we, or somebody else at the same moment
                raise
            if allowed is not None and not allowed(base):
                raise NotFound("no such breadcrumb")
            if expected_version is not None and base.version != expected_version:
                raise VersionMismatch(base.version, expected_version)
            reply = await self._safely(lambda lane=lane, base=base: self._run_delete(lane, base))  # type: ignore[misc]
            if int(reply[0]) != 1:
                await self._take_signpost_down(lane, base)
                return
        raise StoreUnavailable("too many writers at this breadcrumb: try again")

    async def delete_with_session(self, lane: int, crumb: Breadcrumb, deletion: int) -> bool:
        """Remove a breadcrumb, expired or not, as part of the deletion of its session, which began then.

        False: that deletion has ended, and what has the session's name now is none of its business.
        """
        reply = await self._safely(lambda: self._run_delete(lane, crumb, deletion=deletion))
        if int(reply[0]) == 5:
            return False
        await self._take_signpost_down(lane, crumb)
        return True

    async def _take_signpost_down(self, lane: int, crumb: Breadcrumb) -> None:
        home = home_lane(crumb.id, self.lanes)
        if home != lane:
            await self.connection.call(home, b"DEL", self.keys.signpost(home, crumb.owner_id, crumb.id.bytes))

    async def _run_delete(
        self, lane: int, base: Breadcrumb, *, only_expired: bool = False, deletion: int | None = None
    ) -> List[Any]:
        call = self._writes.deletion(lane, base, only_expired=only_expired, deletion=deletion)
        keys, args = self._counted(lane, base.owner_id, base.id, "delete", call)
        reply: list[Any] = await self.connection.run(lane, self._scripts(base.owner_id).delete, keys, args)
        return reply

    async def restore(self, crumb: Breadcrumb, history: List[Breadcrumb]) -> None:
        """Write a breadcrumb that existed before, with its id, version, times and history.

        It counts against quotas and is never refused for them, nor for the size of the session's state.
        """
        owner = crumb.owner_id
        if (await self.look_up(owner, crumb.id))[1] is not None:
            raise AlreadyExists(f"breadcrumb {crumb.id} is there already")
        lane = self._lane_of(owner, crumb.session_id, None, id=crumb.id)
        home = home_lane(crumb.id, self.lanes)
        if home != lane:
            await self.connection.call(home, b"SET", self.keys.signpost(home, owner, crumb.id.bytes), lane)
        call = self._writes.restoration(lane, crumb, history)
        keys, args = self._counted(lane, owner, crumb.id, "import", call)
        reply = await self.connection.run(lane, self._scripts(owner).restore, keys, args)
        if int(reply[0]) == 3:
            raise AlreadyExists(f"breadcrumb {crumb.id} is there already")
        if int(reply[0]) == 5:
            await self._take_signpost_down(lane, crumb)
            raise SessionGone(f"session {crumb.session_id!r} is being deleted: import it afterwards")

    async def extend_history(self, newest: Breadcrumb, versions: List[Breadcrumb]) -> bool:
        """Add older versions to a breadcrumb that was restored. One that has other versions by now stays as it is.

        False: there is no such breadcrumb.
        """
        owner, id = newest.owner_id, newest.id
        lane, body = await self.look_up(owner, id)
        if body is None:
            return False
        older: Arguments = []
        for version in versions:
            older += [version.version, record.whole(version)]
        names = [self.keys.body(lane, owner, id.bytes), self.keys.history(lane, owner, id.bytes)]
        call: tuple[list[bytes], Arguments] = (names, [newest.version, newest.created, *older])
        keys, args = self._counted(lane, owner, id, "extend", call)
        await self.connection.run(lane, self._scripts(owner).extend, keys, args)
        return True

    # Reading

    async def get(self, owner: UUID, id: UUID, *, count_read: bool = True) -> Breadcrumb:
        """The newest version. Counts as a read where the TTL counts reads."""
        lane, crumb = await self._find(owner, id)
        if crumb.max_reads and count_read:
            body = await self.connection.run(
                lane,
                _READ,
                [self.keys.body(lane, owner, id.bytes), self.keys.expiries(lane)],
                [id.bytes, owner.bytes],
            )
            if body is None:
                raise NotFound("no such breadcrumb")
            return record.decode(owner, id, body)
        return crumb

    async def exists(self, owner: UUID, id: UUID) -> bool:
        """Return whether a breadcrumb is stored in the lane that its id names."""
        lane = home_lane(id, self.lanes)
        return bool(await self.connection.call(lane, b"EXISTS", self.keys.body(lane, owner, id.bytes)))

    async def get_version(self, owner: UUID, id: UUID, version: int) -> Breadcrumb:
        """One version: what an event speaks of, also after it was overwritten."""
        lane, crumb = await self._find(owner, id)
        if crumb.version == version:
            return crumb
        older = await self._older(lane, crumb, version)
        if older is None:
            raise NotFound(f"breadcrumb {id} has no version {version}")
        return older

    async def _older(self, lane: int, crumb: Breadcrumb, version: int) -> Breadcrumb | None:
        history = self.keys.history(lane, crumb.owner_id, crumb.id.bytes)
        body = await self.connection.call(lane, b"HGET", history, version)
        return None if body is None else record.decode(crumb.owner_id, crumb.id, body)

    async def history(self, owner: UUID, id: UUID) -> List[Breadcrumb]:
        """All versions, the newest first."""
        return [version async for version in self.versions(owner, id)]

    async def versions(self, owner: UUID, id: UUID) -> AsyncIterator[Breadcrumb]:
        """All versions, the newest first, with at most `WALK_BYTES` of them in memory."""
        before = None
        while True:
            page = await self.history_page(owner, id, before=before)
            for version in page.versions:
                yield version
            before = page.next_before
            if before is None:
                return

    async def history_page(
        self,
        owner: UUID,
        id: UUID,
        *,
        before: int | None = None,
        limit: int = MAX_LIMIT,
        max_bytes: int = WALK_BYTES,
    ) -> VersionPage:
        """Some versions, the newest first: those before version `before`, up to a number and a size, at least one."""
        lane, newest = await self._find(owner, id)
        history = self.keys.history(lane, owner, id.bytes)
        found: list[Breadcrumb] = []
        if before is None or newest.version < before:
            found, before = [newest], newest.version
        left = await self._numbers_before(lane, history, newest.version, before)
        size = sum(len(version.json) for version in found)
        while left and len(found) < limit and (size < max_bytes or not found):
            asked = left[: min(limit - len(found), _VERSIONS_AT_ONCE)]
            bodies = await self.connection.run(lane, _BODIES, [history], [max_bytes - size, *asked])
            older = [record.decode(owner, id, body) for body in bodies if body is not None]
            if found and size + sum(len(version.json) for version in older) > max_bytes:
                break  # the first one did not fit: it begins the next page
            found += older
            size += sum(len(version.json) for version in older)
            left = left[len(bodies) :]
            if len(bodies) < len(asked):
                break
        return VersionPage(newest, found, left[0] + 1 if left else None)

    async def _numbers_before(self, lane: int, history: bytes, newest: int, before: int) -> Sequence[int]:
        """The numbers of the versions before `before` that are there, the newest first."""
        if await self.connection.call(lane, b"HLEN", history) == newest - 1:
            return range(before - 1, 0, -1)
        # An import has left some out, or the breadcrumb was just updated.
        numbers = (int(number) for number in await self.connection.call(lane, b"HKEYS", history))
        return sorted((number for number in numbers if number < before), reverse=True)

    async def last_usable(self, crumb: Breadcrumb, read: Callable[[Breadcrumb], _T | None]) -> _T | None:
        """What the newest of the earlier versions comes to that can be read at all; None: there is none."""
        if crumb.version == 1:
            return None
        try:
            async for version in self.versions(crumb.owner_id, crumb.id):
                if version.version < crumb.version and (found := read(version)) is not None:
                    return found
        except NotFound:
            pass
        return None

    def list(self, owner: UUID, query: Query, *, with_expired: bool = False) -> Coroutine[Any, Any, Page]:
        """One page; `next_cursor` is there exactly as long as there is more.

        `with_expired`: also what has expired and is not swept yet, for whoever clears up.
        """
        # Not `async` itself: that would be one more step between a reader and every reply.
        return listing.page(self, owner, query, with_expired=with_expired)

    async def ask(self, *questions: Question[Any]) -> None:
        """Find the answers to some questions, all in one round trip per node."""
        asking = Asking(questions, self._group_of)
        await asking.take(await self._safely(lambda: self.connection.call_all(asking.commands)))

    async def recent(
        self, owner: UUID, session_id: str, schema_name: str, limit: int = 10
    ) -> List[Breadcrumb]:
        """The last breadcrumbs of a schema in a session, the newest first, in one round trip."""
        question = recent_of(self, owner, session_id, schema_name, limit)
        await self.ask(question)
        return question.answer

    async def recent_at_once(
        self, owner: UUID, session_id: str, schema_name: str, limit: int
    ) -> List[Breadcrumb] | None:
        """Like `recent`, but None where one round trip is not enough."""
        question = recent_of(self, owner, session_id, schema_name, limit)
        question.otherwise = None
        try:
            await self.ask(question)
        except NotTold:
            return None
        return question.answer

    async def walk(self, owner: UUID, query: Query) -> AsyncIterator[Breadcrumb]:
        """Everything a query finds, page by page, with at most `WALK_BYTES` of it in memory."""
        cursor = None
        query = replace(query, max_bytes=min(query.max_bytes or WALK_BYTES, WALK_BYTES))
        while True:
            page = await self.list(owner, replace(query, cursor=cursor))
            for crumb in page.items:
                yield crumb
            cursor = page.next_cursor
            if cursor is None:
                return

    async def schemas(self, owner: UUID, lanes: List[int]) -> dict[int, List[str]]:
        """The schema names that an owner has breadcrumbs of, by lane."""
        replies = await self.connection.call_all(
            [(lane, (b"SMEMBERS", self.keys.schemas(lane, owner))) for lane in lanes]
        )
        return {
            lane: sorted(name.decode() for name in names) for lane, names in zip(lanes, replies, strict=True)
        }

    async def _find(self, owner: UUID, id: UUID) -> tuple[int, Breadcrumb]:
        lane, body = await self._safely(lambda: self.look_up(owner, id))
        if body is not None:
            crumb = record.decode(owner, id, body)
            if not record.is_gone(crumb, self.now()):
                return lane, crumb
        raise NotFound("no such breadcrumb")

    async def look_up(self, owner: UUID, id: UUID) -> tuple[int, bytes | None]:
        """The lane of a breadcrumb and its body, expired or not."""
        lane = home_lane(id, self.lanes)
        body: bytes | None = await self.connection.call(lane, b"GET", self.keys.body(lane, owner, id.bytes))
        if body is None:
            elsewhere = await self.connection.call(lane, b"GET", self.keys.signpost(lane, owner, id.bytes))
            if elsewhere is not None:
                lane = int(elsewhere)
                body = await self.connection.call(lane, b"GET", self.keys.body(lane, owner, id.bytes))
        return lane, body

    async def forget_usage(self, owner: UUID) -> None:
        """Remove the counters of an owner's usage. Where there is a quota, the next write counts again."""
        await self.connection.call_all(
            [(lane, (b"DEL", self.keys.usage(lane, owner))) for lane in range(self.lanes)]
        )

    # Expiry

    async def purge_expired(self, lane: int, *, most: int = 500) -> int:
        """Remove what has expired in a lane from everywhere. Safe to run in several processes at once."""
        await self.read_clock()
        members = await self.connection.call(
            lane, b"ZRANGEBYSCORE", self.keys.expiries(lane), 0, self.now(), b"LIMIT", 0, most
        )
        purged = 0
        for member in members:
            owner, id = UUID(bytes=member[:16]), UUID(bytes=member[16:])
            body = await self.connection.call(lane, b"GET", self.keys.body(lane, owner, id.bytes))
            if body is None:
                await self.connection.call(lane, b"ZREM", self.keys.expiries(lane), member)
                continue
            crumb = record.decode(owner, id, body)
            reply = await self._run_delete(lane, crumb, only_expired=True)
            if int(reply[0]) != 0:
                continue
            purged += 1
            await self._take_signpost_down(lane, crumb)
        return purged

    # The server's clock, as well as we know it

    def now(self) -> int:
        """Microseconds by the server's clock: its times decide what has expired."""
        return time.time_ns() // 1000 + self._clock_offset

    def now_at_least(self) -> int:
        """What the server's clock has reached for certain, however wrong we are about it."""
        return self.now() - self._clock_error

    async def read_clock(self) -> None:
        """Compare clocks. A question that took long says little: of three, the quickest counts."""
        error = 1 << 60
        for _ in range(3):
            before = time.time_ns() // 1000
            seconds, microseconds = await self.connection.call(0, b"TIME")
            after = time.time_ns() // 1000
            if after - before < error:
                error = after - before
                self._clock_offset = int(seconds) * 1_000_000 + int(microseconds) - (before + after) // 2
        self._clock_error = error // 2 + 1

    # Small things

    async def ping(self) -> None:
        await self.connection.call(0, b"PING")

    def _lane_of(
        self, owner: UUID, session: str | None, idempotency_key: str | None, *, id: UUID | None = None
    ) -> int:
        if session is not None:
            return lane_for(owner, "session", session, self.lanes)
        if idempotency_key is not None:
            return lane_for(owner, "key", idempotency_key, self.lanes)
        return secrets.randbelow(self.lanes) if id is None else home_lane(id, self.lanes)

    def _default_ttl(self, schema_name: str | None) -> ttl.Expiry:
        return self._ttl_defaults.get(schema_name or "", ttl.NEVER)

    async def _safely(self, action: Callable[[], Awaitable[_T]]) -> _T:
        """Run what may run twice: once more after a lost link, because a restarted server is a common one."""
        try:
            return await action()
        except StoreFull:
            raise
        except StoreUnavailable:
            await anyio.sleep(0.05)
            return await action()


def _default_of(crumb: Breadcrumb) -> ttl.Expiry:
    """What the schema gave it when it was written, whatever the default is today."""
    return ttl.Expiry(at=crumb.expires) if crumb.document.get("ttl_source") == "schema-default" else ttl.NEVER


def check_idempotency_key(key: str) -> None:
    """A key is text of one line that fits into 255 characters."""
    try:
        check_name(key)
    except ValueError as error:
        raise InvalidInput(f"the Idempotency-Key is not usable: {error}", where="Idempotency-Key") from None
    if len(key) > 255:
        raise InvalidInput("an Idempotency-Key has at most 255 characters", where="Idempotency-Key")
