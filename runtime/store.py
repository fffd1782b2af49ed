"""The store: breadcrumbs in, breadcrumbs out, each write one script.

Nothing here knows of HTTP, of tokens or of agents. Every method takes the owner first, and the owner is
part of every key: what belongs to another tenant is not filtered out, it is somewhere else.
"""

from __future__ import annotations

import random
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, TypeVar
from uuid import UUID

import anyio
import orjson

from breadcrumbs.runtime import record, ttl
from breadcrumbs.runtime.breadcrumb import (
    SESSION,
    Breadcrumb,
    BreadcrumbCreate,
    BreadcrumbUpdate,
    Content,
    check_name,
    content_of,
    user_in,
)
from breadcrumbs.runtime.connection import (
    ClusterConnection,
    Connection,
    Script,
    StandaloneConnection,
    parse_address,
)
from breadcrumbs.runtime.edge import MAX_BODY_BYTES, canonical
from breadcrumbs.runtime.errors import (
    AlreadyExists,
    AnotherSession,
    IdempotencyMismatch,
    InvalidInput,
    NotFound,
    SessionGone,
    StartupError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    VersionMismatch,
)
from breadcrumbs.runtime.events import Event, Operation
from breadcrumbs.runtime.fresh import Fresh
from breadcrumbs.runtime.ids import MAX_LANES, home_lane, lane_for, new_id
from breadcrumbs.runtime.keys import Keys
from breadcrumbs.runtime.lease import Lease, LeaseLost
from breadcrumbs.runtime.query import (
    MOST_SCANNED,
    Index,
    Merge,
    Page,
    Place,
    Query,
    open_cursor,
    sign_cursor,
)
from breadcrumbs.runtime.questions import Asking, Question, recent_of
from breadcrumbs.runtime.session_state import Guard, held_changes, is_about_session
from breadcrumbs.runtime.tail import Tail

DEFAULT_LANES = 16
FORMAT = "1"

DELETION_REMEMBERED = 7 * 86_400
"""For how many seconds a turn that began before a deletion could still try to write. Nobody thinks that long."""

_CREATE, _UPDATE, _DELETE = Script("create"), Script("update"), Script("delete")
_CREATE_TOGETHER = Script("create", inside="together")
_IMPORT, _READ = Script("import"), Script("read")
_COMMIT_CREATE, _COMMIT_UPDATE = Script("create", inside="commit"), Script("update", inside="commit")

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
class _Expects:
    """What a create is to find, and what it is to leave with its session. See `Store.create`."""

    idempotency_key: str | None = None
    counts: bool = True
    version: int | Literal["*"] | None = None
    began: int | None = None
    since: int | None = None


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
    ) -> None:
        self.connection = connection
        self.keys = keys
        self.lanes = keys.lanes
        self.secret = secret
        self._ttl_defaults = ttl_defaults or {}
        self._idempotency_seconds = idempotency_seconds
        self._max_content_bytes = max_content_bytes
        self._clock_offset = 0
        self._clock_error = 0
        self._group_of = {
            lane: number for number, group in enumerate(connection.reader_groups()) for lane in group
        }
        self.tail = Tail(self)
        self.fresh = Fresh()
        self.onlookers: list[Callable[[Event], None]] = []
        """Are told what is being written in sessions, before it is there. It may come to nothing."""

    @classmethod
    async def open(
        cls,
        url: str | Callable[[int], Connection],
        *,
        lanes: int | None = None,
        namespace: str = "bc",
        ttl_defaults: Mapping[str, ttl.Expiry] | None = None,
        idempotency_seconds: int = 86_400,
        max_content_bytes: int = MAX_BODY_BYTES,
    ) -> Store:
        """Connect, and agree with whoever was here first on the number of lanes.

        `url` is an address, or a function that makes a connection for a number of lanes.
        """
        if lanes is not None and not 1 <= lanes <= MAX_LANES:
            raise StartupError(f"the number of lanes must be from 1 to {MAX_LANES}")
        wanted = lanes or DEFAULT_LANES
        connection = await _connect(url, namespace, wanted)
        try:
            keys = Keys(namespace, wanted)
            meta = await _read_meta(connection, keys)
            if len(meta) < 3:  # a server that is full cannot be written to, but its store can be opened
                for field, value in (
                    ("lanes", wanted),
                    ("format", FORMAT),
                    ("secret", secrets.token_hex(32)),
                ):
                    await connection.call(0, b"HSETNX", keys.meta, field, value)
                meta = await _read_meta(connection, keys)
            if meta[b"format"].decode() != FORMAT:
                raise StartupError(
                    f"this store has format {meta[b'format'].decode()}, this version of Breadcrumbs writes {FORMAT}"
                )
            stored = int(meta[b"lanes"])
            if stored != wanted:
                if lanes is not None:
                    raise StartupError(
                        f"this store has {stored} lanes, but {lanes} were asked for: leave the setting out, or "
                        "export, start with an empty store and import"
                    )
                await connection.close()
                connection = await _connect(url, namespace, stored)
                keys = Keys(namespace, stored)
            store = cls(
                connection,
                keys,
                secret=bytes.fromhex(meta[b"secret"].decode()),
                ttl_defaults=ttl_defaults,
                idempotency_seconds=idempotency_seconds,
                max_content_bytes=max_content_bytes,
            )
            await store.read_clock()
        except BaseException:
            await connection.close()
            raise
        return store

    async def close(self) -> None:
        await self.tail.close()
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
        `counts`: the session's version goes up and it was
        active just now. `session_version`: the version that the session must have; 0: it must not exist, `*`:
        it must exist. `session_began`: when it must have begun, or `AnotherSession`; 0: it must not exist.
        `along`: what else a new session begins with, each with an id that only it can have; all or nothing. A commit
        has nothing along.
        """
        if content is None:
            content = self.content(new)
        if idempotency_key is not None:
            check_idempotency_key(idempotency_key)
        lane = self._lane_of(owner, content.session_id, idempotency_key, id=id)
        if id is None:
            id = new_id(lane)
        expects = _Expects(
            idempotency_key,
            counts,
            session_version,
            session_began,
            None if fence is None else fence.since,
        )
        keys, args = self._creation(lane, owner, id, new, content, by, expects)
        scripts = (_CREATE, _COMMIT_CREATE)
        if along:
            scripts = (_CREATE_TOGETHER, _COMMIT_CREATE)
            args = [1 + len(along), len(keys), len(args), *args]
            for other_id, other in along:
                more = self._creation(lane, owner, other_id, other, self.content(other), by, _Expects())
                keys += more[0]
                args += [len(more[0]), len(more[1]), *more[1]]
        session = content.session_id
        self._tell("created", lane, owner, id, 1, content, new.visibility, by)
        reply = await self._safely(lambda: self._run(lane, scripts, fence, keys, args))
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
                if session_version == "*":
                    raise NotFound(f"there is no session {session!r}")
                raise VersionMismatch(int(reply[1]), session_version or 0)
            case 7:
                raise AnotherSession(f"session {session!r} is another one than it was")
            case _:
                # 3, the id is taken: by ourselves, in a first try whose answer was lost on the way.
                return Written(id, int(reply[1]), int(reply[2]), int(reply[3]), found=True)

    def _creation(
        self,
        lane: int,
        owner: UUID,
        id: UUID,
        new: BreadcrumbCreate,
        content: Content,
        by: UUID | None,
        expects: _Expects,
    ) -> tuple[List[bytes], List[bytes | str | int]]:
        """What create.lua is run with."""
        keys = self.keys
        body = keys.body(lane, owner, id.bytes)
        digest = b""
        idempotency = body
        if expects.idempotency_key is not None:
            digest = blake2b(canonical(orjson.loads(content.json)), digest_size=16).digest()
            idempotency = keys.idempotency(lane, owner, content.session_id or "", expects.idempotency_key)
        expiry, session = content.expiry, content.session_id
        state: list[bytes | str | int] = []
        if session is not None:
            guard = Guard.of(new.context, new.sensitivity, new.visibility, by)
            for name, value in held_changes(content.schema_name, new.context, guard).items():
                state += [name, value]
        return [
            body,
            keys.events(lane),
            keys.clock(lane),
            keys.expiries(lane),
            keys.schemas(lane, owner),
            idempotency,
            *self._session_keys(lane, owner, session, body),
            self._state_key(lane, owner, session, body),
            *self._indexes(lane, owner, content.schema_name, content.session_id, content.indexed_tags),
        ], [
            id.bytes,
            owner.bytes,
            record.rest(content, by, by),
            expiry.at,
            expiry.after,
            _max_reads(expiry),
            content.schema_name,
            record.event_note(content.schema_name, content.tags, _private_to(new.visibility, by)),
            digest,
            self._idempotency_seconds,
            session or "",
            int(expects.counts and session is not None),
            "" if expects.version is None or session is None else expects.version,
            "" if expects.since is None else expects.since,
            "" if expects.began is None or session is None else expects.began,
            _user_json(content.tags),
            *state,
        ]

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
                following = after.version + 1
                self._tell("updated", lane, owner, id, following, content, new.visibility, after.created_by)
                reply = await self._run_update(
                    lane, owner, after, content, new.visibility, None, True, fence=fence, older=older
                )
                if int(reply[0]) == 0:
                    written = Written(id, int(reply[1]), int(reply[2]), int(reply[3]))
                    return self._as_written(owner, written, content, after.created_by, None)
            after = await self._in_the_way(owner, id)
            if after is not None and after.json == content.json:
                return after  # a first try of this very call, whose answer was lost on the way
        raise StoreUnavailable("too many writers at this breadcrumb: try again")

    def _tell(
        self,
        operation: Operation,
        lane: int,
        owner: UUID,
        id: UUID,
        version: int,
        content: Content,
        visibility: str | None,
        writer: UUID | None,
    ) -> None:
        """Say what is being written to those who will have to do with it."""
        if content.session_id is None or not self.onlookers:
            return
        private_to = _private_to(visibility, writer)
        event = Event(
            operation,
            owner,
            id,
            version,
            content.schema_name or None,
            content.document["tags"],
            private_to,
            lane,
            0,
        )
        for told in self.onlookers:
            told(event)

    async def _in_the_way(self, owner: UUID, id: UUID) -> Breadcrumb | None:
        """What is there now. What has expired and is not swept yet would block its successor: it goes."""
        lane, body = await self._look_up(owner, id)
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
        args: List[bytes | str | int],
    ) -> Any:
        """Run a write: as it is, or as a worker's commit."""
        if fence is None:
            return await self.connection.run(lane, scripts[0], keys, args)
        lease, names = fence.lease, self.keys
        if lease.lane != lane:
            raise StoreError(f"a commit under the lease of lane {lease.lane} cannot write into lane {lane}")
        reply = await self.connection.run(
            lane,
            scripts[1],
            [
                *keys,
                names.lease(lane, lease.kind),
                names.done(lane, lease.kind),
                names.low(lane, lease.kind),
                names.attempts(lane, lease.kind),
                names.dead_letters(lane, lease.kind),
            ],
            [*args, lease.value, "" if fence.event is None else fence.event, fence.low, fence.dead_letter],
        )
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
        allowed: Callable[[Breadcrumb], bool] | None = None,
    ) -> Written:
        """Write the next version. Without `expected_version` the last writer wins.

        `allowed` sees the breadcrumb before it is changed; where it says no, there is nothing to change.
        """
        tried: tuple[int, bytes] | None = None
        touches_ttl = bool(change.model_fields_set & {"ttl", "ttl_type", "ttl_config"})
        for attempt in range(200):
            lane, base = await self._find(owner, id)
            if tried is not None and (landed := await self._landed(lane, base, tried, by)) is not None:
                return Written(id, landed.version, landed.created, landed.updated)  # only the answer was lost
            if allowed is not None and not allowed(base):
                raise NotFound("no such breadcrumb")
            if expected_version is not None and base.version != expected_version:
                raise VersionMismatch(base.version, expected_version)
            after = base.changed_by(change, merge_context=merge_context)
            limit_changes = touches_ttl or (
                # A default goes with its schema; a limit of its own stays.
                after.schema_name != base.schema_name
                and base.document.keys().isdisjoint(("ttl", "ttl_type", "ttl_config"))
            )
            default = self._default_ttl(after.schema_name) if limit_changes else _default_of(base)
            content = content_of(after, default_ttl=default)
            # Changes that each fit could add up to something that no longer does.
            if len(content.json) > max(self._max_content_bytes, len(base.json)):
                raise InvalidInput(
                    f"with this change the breadcrumb would be larger than {self._max_content_bytes:,} bytes",
                    where="context",
                )
            try:
                guarded = await self._guarded_anew(lane, base, after)
                reply = await self._run_update(
                    lane, owner, base, content, after.visibility, by, limit_changes, state=guarded
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
        owner: UUID,
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
        old = self._indexes_of(lane, base)
        new = self._indexes(lane, owner, content.schema_name, content.session_id, content.indexed_tags)
        leave = [key for key in old if key not in new]
        join = [key for key in new if key not in old]
        session = content.session_id
        reply: list[Any] = await self._run(
            lane,
            (_UPDATE, _COMMIT_UPDATE),
            fence,
            [
                *self._keys_of(lane, base),
                self._state_key(
                    lane, owner, session if state else None, self.keys.body(lane, owner, base.id.bytes)
                ),
                *leave,
                *join,
            ],
            [
                base.id.bytes,
                owner.bytes,
                record.rest(content, base.created_by, by),
                content.expiry.at if limit_changes else "keep",
                content.expiry.after,
                _max_reads(content.expiry),
                base.version,
                record.event_note(
                    content.schema_name, content.tags, _private_to(visibility, base.created_by)
                ),
                len(leave),
                base.schema_name or "",
                content.schema_name,
                older,
                session or "",
                int(not older and session is not None),
                "" if fence is None or fence.since is None else fence.since,
                *(part for change in (state or {}).items() for part in change),
            ],
        )
        if int(reply[0]) == 5:
            raise SessionGone(f"session {session!r} is being deleted: nothing more can be written into it")
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
        owner, keys = base.owner_id, self.keys
        reply: list[Any] = await self.connection.run(
            lane,
            _DELETE,
            [
                *self._keys_of(lane, base),
                self._state_key(lane, owner, base.session_id, keys.body(lane, owner, base.id.bytes)),
                *self._indexes_of(lane, base),
            ],
            [
                base.id.bytes,
                owner.bytes,
                base.version,
                record.event_note(
                    base.schema_name or "", base.tags, _private_to(base.visibility, base.created_by)
                ),
                base.schema_name or "",
                "*" if deletion is not None else int(only_expired),
                int(not only_expired),
                base.session_id or "",
                "" if deletion is None else deletion,
                DELETION_REMEMBERED,
            ],
        )
        return reply

    async def restore(self, crumb: Breadcrumb, history: List[Breadcrumb]) -> None:
        """Write a breadcrumb that existed before, with its id, version, times and history."""
        owner, keys = crumb.owner_id, self.keys
        if (await self._look_up(owner, crumb.id))[1] is not None:
            raise AlreadyExists(f"breadcrumb {crumb.id} is there already")
        lane = self._lane_of(owner, crumb.session_id, None, id=crumb.id)
        home = home_lane(crumb.id, self.lanes)
        if home != lane:
            await self.connection.call(home, b"SET", keys.signpost(home, owner, crumb.id.bytes), lane)
        older: list[bytes | str | int] = []
        for version in history:
            older += [version.version, record.whole(version)]
        # State is what the first version said: later ones are corrections of a text.
        first = min(history, key=lambda version: version.version, default=crumb)
        state = {}
        if crumb.session_id is not None and first.version == 1:
            guard = Guard.of_crumb(first).joined(Guard.of_crumb(crumb))
            state = held_changes(first.schema_name or "", first.context, guard)
        reply = await self.connection.run(
            lane,
            _IMPORT,
            [
                *self._keys_of(lane, crumb),
                self._state_key(lane, owner, crumb.session_id, keys.body(lane, owner, crumb.id.bytes)),
                *self._indexes_of(lane, crumb),
            ],
            [
                crumb.id.bytes,
                owner.bytes,
                record.whole(crumb),
                crumb.version,
                crumb.created,
                crumb.updated,
                crumb.expires if crumb.max_reads >= 0 else 0,
                crumb.schema_name or "",
                record.event_note(
                    crumb.schema_name or "",
                    crumb.tags,
                    _private_to(crumb.visibility, crumb.created_by),
                    imported=True,
                ),
                crumb.session_id or "",
                len(state),
                _user_json(first.tags),
                *(part for change in state.items() for part in change),
                *older,
            ],
        )
        if int(reply[0]) == 3:
            raise AlreadyExists(f"breadcrumb {crumb.id} is there already")
        if int(reply[0]) == 5:
            if home != lane:
                await self.connection.call(home, b"DEL", keys.signpost(home, owner, crumb.id.bytes))
            raise SessionGone(f"session {crumb.session_id!r} is being deleted: import it afterwards")

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
        lane, crumb = await self._find(owner, id)
        bodies = await self.connection.call(lane, b"HVALS", self.keys.history(lane, owner, id.bytes))
        older = (record.decode(owner, id, body) for body in bodies)
        # What was the newest a moment ago may have become history since.
        versions = {version.version: version for version in (crumb, *older)}
        return [versions[number] for number in sorted(versions, reverse=True)]

    async def last_usable(self, crumb: Breadcrumb, read: Callable[[Breadcrumb], _T | None]) -> _T | None:
        """What the newest of the earlier versions comes to that can be read at all; None: there is none."""
        if crumb.version == 1:
            return None
        try:
            versions = await self.history(crumb.owner_id, crumb.id)
        except NotFound:
            return None
        earlier = (read(version) for version in versions if version.version < crumb.version)
        return next((found for found in earlier if found is not None), None)

    async def list(self, owner: UUID, query: Query, *, with_expired: bool = False) -> Page:
        """One page; `next_cursor` is there exactly as long as there is more.

        `with_expired`: also what has expired and is not swept yet, for whoever clears up.
        """
        query.check()
        start = open_cursor(self.secret, owner, query) or query.start
        indexes = await self._plan(owner, query)
        wanted = query.offset + query.limit
        found: list[tuple[Place, Breadcrumb]] = []
        shown: set[bytes] = set()
        began = self.now() - self._clock_error
        scanned, place, more = 0, start, bool(indexes)
        spread = 1 if len(indexes) <= 1 else 2
        merge = Merge(
            indexes,
            self._read_range(query),
            descending=query.descending,
            start=start,
            piece=spread * (wanted + 1) // max(1, len(indexes)) + 1,
        )
        batch = wanted + 1
        # The cursor of a page that ends early knows nothing of an offset: that much has to be found first.
        while more and len(found) <= wanted and (scanned < MOST_SCANNED or len(found) < query.offset):
            taken = await merge.take(batch)
            more = len(taken) == batch
            scanned += len(taken)
            bodies = await self._bodies(
                owner, [(index.lane, at.id) for at, index in taken], with_expired=with_expired
            )
            for (at, _), crumb in zip(taken, bodies, strict=True):
                place = at
                if crumb is None or at.id in shown or not query.accepts(crumb):
                    continue
                # In the order of updates a breadcrumb stands where it was last written, and what is written
                # while we read still stands where we saw it.
                if not query.by_update or at.score == crumb.updated or crumb.updated >= began:
                    shown.add(at.id)
                    found.append((at, crumb))
                    if len(found) > wanted:
                        break
            batch = min(1_000, max(64, 2 * batch))
        items = found[query.offset : wanted]
        if len(found) > wanted:
            return self._page(owner, query, items, items[-1][0])
        return self._page(owner, query, items, place if more else None)

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

    async def walk(self, owner: UUID, query: Query) -> AsyncIterator[Breadcrumb]:
        """Everything a query finds, page by page."""
        cursor = None
        while True:
            page = await self.list(owner, replace(query, cursor=cursor))
            for crumb in page.items:
                yield crumb
            cursor = page.next_cursor
            if cursor is None:
                return

    def _page(
        self, owner: UUID, query: Query, items: List[tuple[Place, Breadcrumb]], end: Place | None
    ) -> Page:
        cursor = None if end is None else sign_cursor(self.secret, owner, query, end)
        return Page([crumb for _, crumb in items], cursor)

    async def _plan(self, owner: UUID, query: Query) -> List[Index]:
        """The smallest set of indexes that holds everything the query can find."""
        sessions = query.sessions
        if len(sessions) > 1:
            return []
        if query.sessionless:
            base = [] if sessions else await self._sessionless_indexes(owner, query.schema_name)
            lanes = list(range(self.lanes))
        elif sessions:
            base = await self._session_indexes(
                owner, next(iter(sessions)), query.schema_name, query.schema_names
            )
            lanes = [lane_for(owner, "session", next(iter(sessions)), self.lanes)]
        else:
            base = await self._smallest(await self._alternatives(owner, query))
            lanes = sorted({index.lane for index in base}) if not query.by_update else list(range(self.lanes))
        if query.by_update:
            base = base + [Index(lane, self.keys.updated(lane, owner)) for lane in lanes]
        return base

    async def _alternatives(self, owner: UUID, query: Query) -> List[List[Index]]:
        lanes, keys = range(self.lanes), self.keys
        choices = [
            [Index(lane, keys.by_tag(lane, owner, tag)) for lane in lanes]
            for tag in dict.fromkeys(query.all_tags)
        ]
        if query.schema_name is not None:
            choices.append([Index(lane, keys.by_schema(lane, owner, query.schema_name)) for lane in lanes])
        if query.any_tags:
            union: list[Index] = []
            for tag in dict.fromkeys(query.any_tags):
                if tag.startswith(SESSION):
                    union += await self._session_indexes(owner, tag[len(SESSION) :], query.schema_name)
                else:
                    union += [Index(lane, keys.by_tag(lane, owner, tag)) for lane in lanes]
            choices.append(union)
        if not choices:
            schemas = await self.schemas(owner, list(lanes))
            choices.append(
                [
                    Index(lane, keys.by_schema(lane, owner, schema))
                    for lane, names in schemas.items()
                    for schema in names
                ]
            )
        return choices

    async def _smallest(self, choices: List[List[Index]]) -> List[Index]:
        if len(choices) == 1:
            return choices[0]
        flat = [index for choice in choices for index in choice]
        sizes = iter(await self.connection.call_all([(index.lane, (b"ZCARD", index.key)) for index in flat]))
        totals = [sum(next(sizes) for _ in choice) for choice in choices]
        return choices[totals.index(min(totals))]

    async def _session_indexes(
        self, owner: UUID, session: str, schema: str | None, schemas: Sequence[str] = ()
    ) -> List[Index]:
        lane = lane_for(owner, "session", session, self.lanes)
        if schema is not None:
            return [Index(lane, self.keys.by_session(lane, owner, session, schema))]
        names = schemas or (await self.schemas(owner, [lane]))[lane]
        return [Index(lane, self.keys.by_session(lane, owner, session, name)) for name in names]

    async def _sessionless_indexes(self, owner: UUID, schema: str | None) -> List[Index]:
        lanes = list(range(self.lanes))
        if schema is not None:
            return [Index(lane, self.keys.by_session(lane, owner, "", schema)) for lane in lanes]
        schemas = await self.schemas(owner, lanes)
        return [
            Index(lane, self.keys.by_session(lane, owner, "", name))
            for lane in lanes
            for name in schemas[lane]
        ]

    async def schemas(self, owner: UUID, lanes: List[int]) -> dict[int, List[str]]:
        """The schema names that an owner has breadcrumbs of, by lane."""
        replies = await self.connection.call_all(
            [(lane, (b"SMEMBERS", self.keys.schemas(lane, owner))) for lane in lanes]
        )
        return {
            lane: sorted(name.decode() for name in names) for lane, names in zip(lanes, replies, strict=True)
        }

    def _read_range(
        self, query: Query
    ) -> Callable[[List[tuple[Index, int, int, int]]], Awaitable[List[List[Place]]]]:
        # An update since T means a creation since T, or an entry among the updates since T: both are ranges.
        floor = query.updated_since if query.by_update and query.updated_since is not None else 0

        async def read(asked: list[tuple[Index, int, int, int]]) -> list[list[Place]]:
            command, lowest = (b"ZREVRANGEBYSCORE", floor) if query.descending else (b"ZRANGEBYSCORE", None)
            replies = await self.connection.call_all(
                [
                    (
                        index.lane,
                        (
                            command,
                            index.key,
                            max(score, floor) if lowest is None else score,
                            b"+inf" if lowest is None else lowest,
                            b"WITHSCORES",
                            b"LIMIT",
                            passed,
                            count,
                        ),
                    )
                    for index, score, passed, count in asked
                ]
            )
            return [
                [Place(int(float(score)), id) for id, score in zip(flat[::2], flat[1::2], strict=True)]
                for flat in replies
            ]

        return read

    async def _bodies(
        self, owner: UUID, places: List[tuple[int, bytes]], *, with_expired: bool
    ) -> List[Breadcrumb | None]:
        """Load bodies, one command per lane; what expired meanwhile is not there unless asked for."""
        by_lane: dict[int, list[int]] = defaultdict(list)
        for position, (lane, _) in enumerate(places):
            by_lane[lane].append(position)
        replies = await self.connection.call_all(
            [
                (lane, (b"MGET", *(self.keys.body(lane, owner, places[at][1]) for at in positions)))
                for lane, positions in by_lane.items()
            ]
        )
        now = self.now()
        crumbs: list[Breadcrumb | None] = [None] * len(places)
        for positions, bodies in zip(by_lane.values(), replies, strict=True):
            for at, body in zip(positions, bodies, strict=True):
                if body is not None:
                    crumb = record.decode_raw(owner, places[at][1], body)
                    crumbs[at] = crumb if with_expired or not record.is_gone(crumb, now) else None
        return crumbs

    async def _find(self, owner: UUID, id: UUID) -> tuple[int, Breadcrumb]:
        lane, body = await self._safely(lambda: self._look_up(owner, id))
        if body is not None:
            crumb = record.decode(owner, id, body)
            if not record.is_gone(crumb, self.now()):
                return lane, crumb
        raise NotFound("no such breadcrumb")

    async def _look_up(self, owner: UUID, id: UUID) -> tuple[int, bytes | None]:
        """The lane of a breadcrumb and its body, expired or not."""
        lane = home_lane(id, self.lanes)
        body: bytes | None = await self.connection.call(lane, b"GET", self.keys.body(lane, owner, id.bytes))
        if body is None:
            elsewhere = await self.connection.call(lane, b"GET", self.keys.signpost(lane, owner, id.bytes))
            if elsewhere is not None:
                lane = int(elsewhere)
                body = await self.connection.call(lane, b"GET", self.keys.body(lane, owner, id.bytes))
        return lane, body

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

    def _keys_of(self, lane: int, crumb: Breadcrumb) -> List[bytes]:
        """What the scripts that change a breadcrumb expect first, in their order."""
        keys, owner, id = self.keys, crumb.owner_id, crumb.id.bytes
        return [
            keys.body(lane, owner, id),
            keys.events(lane),
            keys.clock(lane),
            keys.expiries(lane),
            keys.schemas(lane, owner),
            keys.history(lane, owner, id),
            keys.updated(lane, owner),
            *self._session_keys(lane, owner, crumb.session_id, keys.body(lane, owner, id)),
        ]

    def _session_keys(self, lane: int, owner: UUID, session: str | None, instead: bytes) -> List[bytes]:
        if session is None:
            return [instead, instead]
        return [self.keys.session(lane, owner, session), self.keys.sessions(lane, owner)]

    def _state_key(self, lane: int, owner: UUID, session: str | None, instead: bytes) -> bytes:
        """Of its own, for scripts that need it: a key that is not there holds up whoever names it in a moving lane."""
        return instead if session is None else self.keys.state(lane, owner, session)

    def _indexes(
        self, lane: int, owner: UUID, schema: str, session: str | None, tags: set[str]
    ) -> List[bytes]:
        """The indexes of a breadcrumb, its schema's first: the scripts rely on that."""
        found = [
            self.keys.by_schema(lane, owner, schema),
            self.keys.by_session(lane, owner, session or "", schema),
        ]
        found += [self.keys.by_tag(lane, owner, tag) for tag in tags]
        return found

    def _indexes_of(self, lane: int, crumb: Breadcrumb) -> List[bytes]:
        tags = {tag for tag in crumb.tags if not tag.startswith(SESSION)}
        return self._indexes(lane, crumb.owner_id, crumb.schema_name or "", crumb.session_id, tags)

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


def _max_reads(expiry: ttl.Expiry) -> int:
    return -expiry.max_reads if expiry.needs_all else expiry.max_reads


def _user_json(tags: Sequence[str]) -> bytes:
    """Who begins a session with a breadcrumb that has these tags."""
    user = user_in(tags)
    return b"" if user is None else orjson.dumps(user)


def _private_to(visibility: str | None, agent: UUID | None) -> UUID | None:
    return agent if visibility == "private" else None


def check_idempotency_key(key: str) -> None:
    """A key is text of one line that fits into 255 characters."""
    try:
        check_name(key)
    except ValueError as error:
        raise InvalidInput(f"the Idempotency-Key is not usable: {error}", where="Idempotency-Key") from None
    if len(key) > 255:
        raise InvalidInput("an Idempotency-Key has at most 255 characters", where="Idempotency-Key")


async def _read_meta(connection: Connection, keys: Keys) -> dict[bytes, bytes]:
    pairs = await connection.call(0, b"HGETALL", keys.meta)
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


async def _connect(url: str | Callable[[int], Connection], namespace: str, lanes: int) -> Connection:
    if callable(url):
        return url(lanes)
    if "+cluster://" in url:
        keys = Keys(namespace, lanes)
        return await ClusterConnection.open(url, [keys.prefix(lane) for lane in range(lanes)])
    return StandaloneConnection(parse_address(url), lanes=lanes)
