"""Store of breadcrumbs. Each write is one Lua script, and therefore atomic.

The store has no dependency on HTTP, tokens or agents. Every method takes the owner first, and the owner is part of
every key. The data of other tenants is not filtered out: it is under other keys.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, overload
from uuid import UUID

import anyio

from breadcrumbs.runtime.backend.connection import Connection, Script
from breadcrumbs.runtime.breadcrumb import ttl
from breadcrumbs.runtime.breadcrumb.breadcrumb import (
    Breadcrumb,
    BreadcrumbCreate,
    BreadcrumbUpdate,
    Content,
    build_content,
)
from breadcrumbs.runtime.breadcrumb.ids import home_lane, lane_for, new_id
from breadcrumbs.runtime.breadcrumb.names import hidden_character
from breadcrumbs.runtime.breadcrumb.query import MAX_LIMIT, Page, Query
from breadcrumbs.runtime.breadcrumb.session_rule import check_name, check_new_session_id
from breadcrumbs.runtime.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    SessionGone,
    StoreError,
    StoreUnavailable,
    VersionMismatch,
)
from breadcrumbs.runtime.store import history, listing, lookup, record
from breadcrumbs.runtime.store.batched_reads import NeedsFullScan, Read, ReadBatch, read_head, recent_of
from breadcrumbs.runtime.store.clock import ServerClock
from breadcrumbs.runtime.store.fence import Fence
from breadcrumbs.runtime.store.history import VersionPage
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.lookup import WALK_BYTES, retry_once
from breadcrumbs.runtime.store.opening import FORMATS, Address, open_connection
from breadcrumbs.runtime.store.options import CreateOptions, SessionVersion, StoreOptions, UpdateOptions
from breadcrumbs.runtime.store.quotas import QuotaGate, Usage
from breadcrumbs.runtime.store.reduction import (
    is_reducible,
    reduced_instead_of_deleted,
    references_only,
    time_of_reduction,
)
from breadcrumbs.runtime.store.script_calls import (
    COUNTED_SCRIPTS,
    PLAIN_SCRIPTS,
    CallArguments,
    Creation,
    ScriptCalls,
    Update,
    WriteKind,
    WriteScripts,
    together,
)
from breadcrumbs.runtime.store.script_replies import (
    CreateReply,
    DeleteReply,
    ReduceReply,
    Reply,
    check_commit,
    check_import,
    decode_create,
    decode_delete,
    decode_update,
)
from breadcrumbs.runtime.store.shared_cache import SharedCache, note_shared_write
from breadcrumbs.runtime.store.state import StateReaders, is_about_session, stored_changes
from breadcrumbs.runtime.store.write_cache import WriteCache
from breadcrumbs.runtime.store.written import Written

_STORE_DEFAULTS: Final = StoreOptions()
_CREATE_DEFAULTS: Final = CreateOptions()
_UPDATE_DEFAULTS: Final = UpdateOptions()

_REPAIR: Final = Script("repair")

_HEADER_BYTES: Final = 128
"""Maximum size of a stored body without its JSON, in bytes."""

_MAX_ATTEMPTS: Final = 200
"""Maximum attempts of a write. An attempt fails if another writer was faster."""

_TTL_FIELDS: Final = frozenset(("ttl", "ttl_type", "ttl_config"))

_T = TypeVar("_T")
_U = TypeVar("_U")
_V = TypeVar("_V")
List: TypeAlias = list  # inside `Store`, the name `list` is a method


class Store:
    """Breadcrumbs of all owners on one Redis-protocol server or cluster."""

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        *,
        secret: bytes,
        identity: str | None = None,
        options: StoreOptions = _STORE_DEFAULTS,
    ) -> None:
        self.connection = connection
        self.keys = keys
        self.lanes = keys.lanes
        self.secret = secret
        self.identity = identity
        """Random id of the store, the same for all processes. None: the server could not store one."""
        self.format = FORMATS[0]
        self.max_content_bytes = options.max_content_bytes
        self.max_state_bytes = options.max_state_bytes
        self.clock = ServerClock(connection)
        self.write_cache = WriteCache()
        self.shared_cache = SharedCache()
        self.quotas: QuotaGate | None = None
        """None: no quotas are set."""
        if options.quotas is not None and options.quotas.are_set:
            self.quotas = QuotaGate(connection, keys, options.quotas)
        self._ttl_defaults = options.ttl_defaults
        self._calls = ScriptCalls(
            keys, idempotency_seconds=options.idempotency_seconds, max_state_bytes=options.max_state_bytes
        )
        self.group_of: Mapping[int, int] = {
            lane: number for number, group in enumerate(connection.reader_groups()) for lane in group
        }
        """Lanes with the same number can be read by one script call."""
        self.is_one_server = len(set(self.group_of.values())) == 1

    @classmethod
    async def open(
        cls,
        url: Address,
        *,
        lanes: int | None = None,
        namespace: str = "bc",
        options: StoreOptions = _STORE_DEFAULTS,
    ) -> Store:
        """Connect to a store. The first process that opens it decides the number of lanes.

        Raise `StoreReplaced` if the options expect another identity.
        """
        connection, keys, secret, format, identity = await open_connection(url, namespace, lanes, options)
        try:
            store = cls(connection, keys, secret=secret, identity=identity, options=options)
            store.use_format(format)
            await store.clock.synchronize()
        except BaseException:
            await connection.close()
            raise
        return store

    def use_format(self, format: str) -> None:
        """Write in a format from now on: see formats.py."""
        self.format = format
        if format != FORMATS[0]:
            self._calls.omit_tags()

    async def close(self) -> None:
        await self.connection.close()

    async def ping(self) -> None:
        """Raise `StoreUnavailable` if the server does not reply, and `StoreReplaced` if it has lost the store."""
        await self.connection.call(0, b"PING")
        await self.connection.verify()

    def now(self) -> int:
        """Return the estimated time of the server, in microseconds."""
        return self.clock.now()

    # Creating

    def content(self, new: BreadcrumbCreate) -> Content:
        """Check a new breadcrumb and return its stored content.

        Without an expiry of its own it gets the default of its schema.
        """
        return build_content(new, default_ttl=self._default_ttl(new.schema_name))

    async def create(
        self,
        owner: UUID,
        new: BreadcrumbCreate,
        *,
        by: UUID | None = None,
        idempotency_key: str | None = None,
        id: UUID | None = None,
        options: CreateOptions = _CREATE_DEFAULTS,
    ) -> Written:
        """Write a new breadcrumb.

        The same `idempotency_key` (per owner and session) with the same content returns the first result again. With
        other content it raises `IdempotencyMismatch`. An `id` (see `derived_id`) that exists already is reported as
        `Written.found`, because a derived id identifies one breadcrumb only.
        """
        content = self.content(new) if options.content is None else options.content
        if idempotency_key is not None:
            check_idempotency_key(idempotency_key)
        session, fence = content.session_id, options.fence
        lane = self._lane_of(owner, session, idempotency_key, id)
        creation = Creation(
            lane,
            owner,
            new_id(lane) if id is None else id,
            new,
            content,
            by,
            idempotency_key,
            options.counts,
            _expected_version(session, options.session_version),
            options.session_began,
            None if fence is None else fence.since,
        )
        others = [
            Creation(lane, owner, other_id, other, self.content(other), by)
            for other_id, other in options.along
        ]
        if self.quotas is None or fence is not None:
            reply = await self._run_create(creation, others, fence)
        else:
            reply = await self._run_create_within_quota(self.quotas, creation, others)
        written = decode_create(reply, creation)
        if others and written.breadcrumb is not None:
            written = written._replace(along=self._decode_others(reply, others))
        await self._note_write(owner, session)
        if written.breadcrumb is not None:
            self.write_cache.put(written.breadcrumb, permanent=_is_permanent(content))
        return written

    def _decode_others(self, reply: Reply, others: List[Creation]) -> tuple[Breadcrumb | None, ...]:
        """Return the breadcrumbs that were written along with the first one."""
        written = [decode_create(one, other).breadcrumb for one, other in zip(reply[5], others, strict=True)]
        for crumb, other in zip(written, others, strict=True):
            if crumb is not None:
                self.write_cache.put(crumb, permanent=_is_permanent(other.content))
        return tuple(written)

    def _run_create(
        self, creation: Creation, others: List[Creation], fence: Fence | None = None
    ) -> Awaitable[Reply]:
        # Not `async`: this is the hot path, and each coroutine adds a step to every resumption.
        lane, scripts = creation.lane, self._scripts(creation.owner)
        call = self._create_call(creation)
        script, committing = scripts.create, scripts.create_commit
        if fence is not None and fence.spent is not None:
            committing = scripts.create_commit_spent
        if others:
            script, committing = scripts.create_together, scripts.create_together_commit
            if fence is not None and fence.spent is not None:
                committing = scripts.create_together_commit_spent
            call = together([call, *map(self._create_call, others)])
        if fence is not None:
            return retry_once(lambda: self._run_commit(lane, committing, fence, call))
        return retry_once(lambda: self.connection.run(lane, script, *call))

    def _create_call(self, creation: Creation) -> CallArguments:
        call = self._calls.create(creation)
        return self._counted(creation.lane, creation.owner, creation.id, "create", call)

    async def _run_create_within_quota(
        self, quotas: QuotaGate, creation: Creation, others: List[Creation]
    ) -> Reply:
        owner, everything = creation.owner, (creation, *others)
        size = sum(len(one.content.json) + _HEADER_BYTES for one in everything)
        growth = Usage(size, len(everything), await self._count_new_sessions(quotas, creation))
        try:
            async with quotas.admitted(owner, growth):
                return await self._run_create(creation, others)
        except QuotaExceeded:
            # A repeated request adds nothing, so it gets the first result in spite of the quota. The script decides
            # whether it is a repetition. `_is_written` avoids sending a body that would be refused anyway.
            if await self._is_written(creation):
                reply = await self._run_create(creation._replace(replay_only=True), others)
                if reply[0] != CreateReply.NO_EARLIER_RESULT:
                    return reply
            raise

    async def _count_new_sessions(self, quotas: QuotaGate, creation: Creation) -> int:
        """Return 1 if the write begins a session and sessions are limited, else 0."""
        quota, session = quotas.quota(creation.owner), creation.content.session_id
        if session is None or quota is None or quota.sessions is None:
            return 0
        key = self.keys.session(creation.lane, creation.owner, session)
        exists = await self.connection.call(creation.lane, b"HEXISTS", key, b"version")
        return 0 if exists else 1

    async def _is_written(self, creation: Creation) -> bool:
        """Return whether the idempotency key or the id of a write exists already."""
        lane, owner = creation.lane, creation.owner
        if creation.idempotency_key is None:
            key = self.keys.body(lane, owner, creation.id.bytes)
        else:
            session = creation.content.session_id or ""
            key = self.keys.idempotency(lane, owner, session, creation.idempotency_key)
        return bool(await self.connection.call(lane, b"EXISTS", key))

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
        """Write a breadcrumb of the runtime itself, or its next version.

        `after`: the newest version that the caller has read. It can be outdated. `slim` returns the JSON of the old
        version that the history stores. At the end of its TTL, a context is reduced to its references: see
        reduction.py.
        """
        content = reduced_instead_of_deleted(self.content(new))
        options = CreateOptions(content=content, fence=fence, counts=False)
        for _ in range(_MAX_ATTEMPTS):
            if after is None:
                written = await self.create(owner, new, id=id, options=options)
                if written.breadcrumb is not None:
                    return written.breadcrumb
            else:
                old_body = record.encode(after, json=slim(after))
                update = Update(
                    home_lane(id, self.lanes), after, content, new.visibility, None, history_body=old_body
                )
                crumb = await self._overwrite(update, fence)
                if crumb is not None:
                    return crumb
            after = await self._current(owner, id)
            if after is not None and after.json == content.json:
                return after  # written by an earlier attempt of this call, whose reply was lost
        raise _too_many_writers()

    async def _overwrite(self, update: Update, fence: Fence) -> Breadcrumb | None:
        """Write the next version, or return None if `update.base` is not the newest version."""
        try:
            written = decode_update(await self._run_update(update, fence), update)
        except NotFound:
            return None
        if written is None or written.breadcrumb is None:
            return None
        self.write_cache.put(written.breadcrumb, permanent=_is_permanent(update.content))
        return written.breadcrumb

    async def _current(self, owner: UUID, id: UUID) -> Breadcrumb | None:
        """Return the newest version. Remove it if it has expired, because it would block the next one."""
        lane, body = await lookup.look_up(self, owner, id)
        if body is None:
            return None
        crumb = record.decode(owner, id, body)
        if not record.is_gone(crumb, self.now()):
            return crumb
        reply = await self._run_delete(lane, crumb, only_expired=True)
        return crumb if reply == DeleteReply.NOT_EXPIRED else None  # the server's clock decides

    # Updating

    async def update(
        self,
        owner: UUID,
        id: UUID,
        change: BreadcrumbUpdate,
        *,
        by: UUID | None = None,
        expected_version: int | None = None,
        options: UpdateOptions = _UPDATE_DEFAULTS,
    ) -> Written:
        """Write the next version. Without `expected_version` the last writer wins."""
        unconfirmed: Update | None = None
        for attempt in range(_MAX_ATTEMPTS):
            lane, base = await lookup.find(self, owner, id)
            if unconfirmed is not None:
                crumb = await self._find_unconfirmed(lane, base, unconfirmed)
                if crumb is not None:
                    await self._note_write(owner, base.session_id)
                    return Written(id, crumb.version, crumb.created, crumb.updated, breadcrumb=crumb)
            admitted = change if options.admit is None else options.admit(base, change)
            if expected_version is not None and base.version != expected_version:
                raise VersionMismatch(base.version, expected_version)
            after = base.apply_change(admitted, merge_context=options.merge_context)
            update = self._next_version(lane, base, after, change, by)
            try:
                state = await self._values_with_new_readers(lane, base, after)
                written = decode_update(await self._run_update(update._replace(state=state)), update)
            except StoreUnavailable:
                if unconfirmed is not None:
                    raise
                unconfirmed = update
                continue
            if written is not None:
                await self._note_write(owner, base.session_id)
                return written
            # Another writer was faster. Without a pause, the same would happen again to all but one of many writers.
            await anyio.sleep(random.uniform(0, 0.001 * min(attempt + 1, 50)))  # noqa: S311
        raise _too_many_writers()

    def _next_version(
        self,
        lane: int,
        base: Breadcrumb,
        after: BreadcrumbCreate,
        change: BreadcrumbUpdate,
        by: UUID | None,
    ) -> Update:
        """Build the next version: check its content and decide its expiry."""
        changes_expiry = bool(change.model_fields_set & _TTL_FIELDS) or (
            # A default expiry changes with the schema. An explicit one stays.
            after.schema_name != base.schema_name and base.document.keys().isdisjoint(_TTL_FIELDS)
        )
        default = self._default_ttl(after.schema_name) if changes_expiry else _default_of(base)
        content = build_content(after, default_ttl=default)
        # Several changes can add up to more than the limit, even if each of them is small.
        if len(content.json) > max(self.max_content_bytes, len(base.json)):
            raise InvalidInput(
                f"this change would make the breadcrumb larger than {self.max_content_bytes:,} bytes",
                where="context",
            )
        return Update(lane, base, content, after.visibility, by, changes_expiry)

    async def _find_unconfirmed(self, lane: int, base: Breadcrumb, unconfirmed: Update) -> Breadcrumb | None:
        """Return the version written by an attempt without a reply, or None.

        Other writers can have added newer versions since.
        """
        number = unconfirmed.base.version + 1
        if base.version < number:
            return None
        written = base if base.version == number else await lookup.get_older(self, lane, base, number)
        if (
            written is None
            or written.json != unconfirmed.content.json
            or written.updated_by != unconfirmed.by
        ):
            return None
        return written

    async def _values_with_new_readers(
        self, lane: int, base: Breadcrumb, after: BreadcrumbCreate
    ) -> Mapping[str, bytes]:
        """Return the state values that a breadcrumb set, with their new readers.

        Empty: the readers do not change.
        """
        readers = StateReaders.of(after.context, after.sensitivity, after.visibility, base.created_by)
        if base.session_id is None or readers == StateReaders.of_crumb(base):
            return {}
        first = base if base.version == 1 else await lookup.get_older(self, lane, base, 1)
        if first is None:  # imported without its first version: see `ScriptCalls.restore`
            return {}
        changes = stored_changes(
            first.schema_name or "", first.context, readers.joined(StateReaders.of_crumb(first))
        )
        return {name: value for name, value in changes.items() if not is_about_session(name)}

    async def _run_update(self, update: Update, fence: Fence | None = None) -> Reply:
        lane, base = update.lane, update.base
        owner, scripts = base.owner_id, self._scripts(base.owner_id)
        call = self._calls.update(update, since=None if fence is None else fence.since)
        call = self._counted(lane, owner, base.id, "update", call)
        reply: Reply
        if fence is not None:
            return await self._run_commit(lane, scripts.update_commit, fence, call)
        if self.quotas is None:
            reply = await self.connection.run(lane, scripts.update, *call)
            return reply
        # The old version moves to the history, so the whole new version is added.
        async with self.quotas.admitted(owner, Usage(bytes=len(update.content.json) + _HEADER_BYTES)):
            reply = await self.connection.run(lane, scripts.update, *call)
        return reply

    # Deleting

    async def delete(
        self,
        owner: UUID,
        id: UUID,
        *,
        expected_version: int | None = None,
        allowed: Callable[[Breadcrumb], bool] | None = None,
    ) -> None:
        """Remove a breadcrumb, its history and its index entries.

        `allowed`: checks the breadcrumb first. If it returns False, `NotFound` is raised as for a missing breadcrumb.
        """
        for attempt in range(_MAX_ATTEMPTS):
            try:
                lane, base = await lookup.find(self, owner, id)
            except NotFound:
                if attempt:
                    return  # removed by the last attempt or by another client
                raise
            if allowed is not None and not allowed(base):
                raise NotFound("breadcrumb not found")
            if expected_version is not None and base.version != expected_version:
                raise VersionMismatch(base.version, expected_version)
            reply = await retry_once(partial(self._run_delete, lane, base))
            if reply != DeleteReply.VERSION_CONFLICT:
                await self._remove_signpost(lane, base)
                return
        raise _too_many_writers()

    async def delete_with_session(self, session: str, crumb: Breadcrumb, deletion: int) -> bool:
        """Remove a breadcrumb, expired or not, during the deletion of its session.

        `deletion`: the time that identifies the deletion. Returns False if that deletion has ended. A session
        with this name is a new one then.
        """
        lane = self.keys.session_lane(crumb.owner_id, session)
        reply = await retry_once(partial(self._run_delete, lane, crumb, deletion=deletion))
        if reply == DeleteReply.DELETION_ENDED:
            return False
        await self._remove_signpost(lane, crumb)
        return True

    async def delete_expired(self, lane: int, crumb: Breadcrumb) -> bool:
        """Remove a breadcrumb if it has expired. Return whether it was removed.

        The server's clock decides.
        """
        if await self._run_delete(lane, crumb, only_expired=True) != DeleteReply.REMOVED:
            return False
        await self._remove_signpost(lane, crumb)
        return True

    async def reduce(self, lane: int, crumb: Breadcrumb) -> bool:
        """Reduce a context to its references if its TTL has ended. Return whether it was reduced."""
        call = self._calls.reduce(lane, crumb, references_only(crumb))
        call = self._counted(lane, crumb.owner_id, crumb.id, "reduce", call)
        reply = await self.connection.run(lane, self._scripts(crumb.owner_id).reduce, *call)
        return bool(reply[0] == ReduceReply.REDUCED)

    async def delete_leftover(self, lane: int, crumb: Breadcrumb, session_version: str) -> bool:
        """Remove a context if its session still has this version. Return whether it was removed.

        The session ends with its last breadcrumb. A new message changes the version, and then the context stays.
        """
        call = self._calls.end(lane, crumb, session_version)
        call = self._counted(lane, crumb.owner_id, crumb.id, "delete", call)
        reply = decode_delete(await self.connection.run(lane, self._scripts(crumb.owner_id).delete, *call))
        if reply != DeleteReply.REMOVED:
            return False
        await self._remove_signpost(lane, crumb)
        return True

    async def _run_delete(
        self, lane: int, base: Breadcrumb, *, only_expired: bool = False, deletion: int | None = None
    ) -> DeleteReply:
        call = self._calls.delete(lane, base, only_expired=only_expired, deletion=deletion)
        call = self._counted(lane, base.owner_id, base.id, "delete", call)
        reply = decode_delete(await self.connection.run(lane, self._scripts(base.owner_id).delete, *call))
        await self._note_write(base.owner_id, base.session_id)
        return reply

    # Importing

    async def restore(self, crumb: Breadcrumb, history: List[Breadcrumb]) -> None:
        """Write an exported breadcrumb with its id, version, times and history.

        It counts towards quotas, but it is never refused for them, nor for the size of the session's state.
        """
        owner = crumb.owner_id
        if (await self.look_up(owner, crumb.id))[1] is not None:
            raise AlreadyExists(f"breadcrumb {crumb.id} already exists")
        lane = self._lane_of(owner, crumb.session_id, None, crumb.id)
        home = home_lane(crumb.id, self.lanes)
        if home != lane:
            await self.connection.call(home, b"SET", self.keys.signpost(home, owner, crumb.id.bytes), lane)
        reduced_at = 0
        if is_reducible(crumb):
            reduced_at = time_of_reduction(crumb, self._default_ttl(crumb.schema_name).after)
        call = self._calls.restore(lane, crumb, history, reduced_at)
        call = self._counted(lane, owner, crumb.id, "import", call)
        reply = await self.connection.run(lane, self._scripts(owner).restore, *call)
        await self._note_write(owner, crumb.session_id)
        try:
            check_import(reply, crumb)
        except SessionGone:
            await self._remove_signpost(lane, crumb)
            raise

    async def extend_history(self, newest: Breadcrumb, versions: List[Breadcrumb]) -> bool:
        """Add older versions to a restored breadcrumb, unless it was updated since.

        False: the breadcrumb does not exist.
        """
        owner = newest.owner_id
        lane, body = await self.look_up(owner, newest.id)
        if body is None:
            return False
        call = self._calls.extend(lane, newest, versions)
        call = self._counted(lane, owner, newest.id, "extend", call)
        await self.connection.run(lane, self._scripts(owner).extend, *call)
        return True

    async def repair_indexes(self, lane: int, crumb: Breadcrumb) -> int:
        """Add the missing index entries of a breadcrumb and correct wrong ones. Return their number."""
        return int(await self.connection.run(lane, _REPAIR, *self._calls.repair(lane, crumb)))

    async def _remove_signpost(self, lane: int, crumb: Breadcrumb) -> None:
        """Remove the signpost of a breadcrumb that is not in its home lane."""
        home = home_lane(crumb.id, self.lanes)
        if home != lane:
            await self.connection.call(home, b"DEL", self.keys.signpost(home, crumb.owner_id, crumb.id.bytes))

    # Running scripts

    def _scripts(self, owner: UUID) -> WriteScripts:
        return PLAIN_SCRIPTS if self.quotas is None or self.quotas.quota(owner) is None else COUNTED_SCRIPTS

    def _counted(
        self, lane: int, owner: UUID, id: UUID, kind: WriteKind, call: CallArguments
    ) -> CallArguments:
        """Wrap a call so that it counts usage, if the owner has a quota."""
        if self.quotas is None or self.quotas.quota(owner) is None:
            return call
        return self._calls.counted(lane, owner, id, kind, call)

    async def _note_write(self, owner: UUID, session: str | None) -> None:
        """Make a write visible to the caches of all processes, if it has no session."""
        if session is None:
            await note_shared_write(self.connection, self.keys, owner)

    async def _run_commit(self, lane: int, script: Script, fence: Fence, call: CallArguments) -> Reply:
        """Run a script as a worker's commit."""
        if fence.lease.lane != lane:
            raise StoreError(
                f"a commit under the lease of lane {fence.lease.lane} cannot write into lane {lane}"
            )
        reply: Reply = await self.connection.run(lane, script, *self._calls.commit(fence, call))
        check_commit(reply, lane)
        return reply

    # Reading. Methods that only forward a call are not `async`: that would add a step to every reply.

    def get(self, owner: UUID, id: UUID, *, count_read: bool = True) -> Coroutine[Any, Any, Breadcrumb]:
        """Return the newest version. Counts as a read if the breadcrumb has a read limit."""
        return lookup.get(self, owner, id, count_read=count_read)

    async def exists(self, owner: UUID, id: UUID) -> bool:
        """Return whether a breadcrumb is stored in the home lane of its id.

        Expired breadcrumbs count until they are removed. Signposts are not followed.
        """
        lane = home_lane(id, self.lanes)
        return bool(await self.connection.call(lane, b"EXISTS", self.keys.body(lane, owner, id.bytes)))

    def get_version(self, owner: UUID, id: UUID, version: int) -> Coroutine[Any, Any, Breadcrumb]:
        """Return one version of a breadcrumb, the newest or an earlier one."""
        return lookup.get_version(self, owner, id, version)

    def look_up(self, owner: UUID, id: UUID) -> Coroutine[Any, Any, tuple[int, bytes | None]]:
        """Return the lane of a breadcrumb and its body, expired or not."""
        return lookup.look_up(self, owner, id)

    async def history(self, owner: UUID, id: UUID) -> List[Breadcrumb]:
        """Return all versions, the newest first."""
        return [version async for version in self.versions(owner, id)]

    def versions(self, owner: UUID, id: UUID) -> AsyncIterator[Breadcrumb]:
        """Yield all versions, the newest first, with at most `WALK_BYTES` in memory."""
        return history.iterate_versions(self, owner, id)

    def history_page(
        self,
        owner: UUID,
        id: UUID,
        *,
        before: int | None = None,
        limit: int = MAX_LIMIT,
        max_bytes: int = WALK_BYTES,
    ) -> Coroutine[Any, Any, VersionPage]:
        """Return versions before `before`, the newest first, limited in number and bytes."""
        return history.read_page(self, owner, id, before=before, limit=limit, max_bytes=max_bytes)

    def last_usable(
        self, crumb: Breadcrumb, parse: Callable[[Breadcrumb], _T | None]
    ) -> Coroutine[Any, Any, _T | None]:
        """Return the result of `parse` for the newest earlier version that parses, or None."""
        return history.last_usable(self, crumb, parse)

    def list(self, owner: UUID, query: Query, *, with_expired: bool = False) -> Coroutine[Any, Any, Page]:
        """Return one page of breadcrumbs. `next_cursor` is None on the last page.

        `with_expired`: include breadcrumbs that have expired but are not removed yet.
        """
        return listing.page(self, owner, query, with_expired=with_expired)

    @overload
    async def read_batch(self, read: Read[_T], /) -> tuple[_T]: ...

    @overload
    async def read_batch(self, first: Read[_T], second: Read[_U], /) -> tuple[_T, _U]: ...

    @overload
    async def read_batch(
        self, first: Read[_T], second: Read[_U], third: Read[_V], /
    ) -> tuple[_T, _U, _V]: ...

    @overload
    async def read_batch(self, *reads: Read[Any]) -> tuple[Any, ...]: ...

    async def read_batch(self, *reads: Read[Any]) -> tuple[Any, ...]:
        """Return the results of several reads, in one round trip per node."""
        batch = ReadBatch(reads, self.group_of)
        return await batch.resolve(await retry_once(lambda: self.connection.call_all(batch.commands)))

    async def recent(
        self, owner: UUID, session_id: str, schema_name: str, limit: int = 10
    ) -> List[Breadcrumb]:
        """Return the last breadcrumbs of a schema in a session, the newest first.

        One round trip is usually enough.
        """
        return await read_head(self, recent_of(self, owner, session_id, schema_name, limit))

    async def recent_at_once(
        self, owner: UUID, session_id: str, schema_name: str, limit: int
    ) -> List[Breadcrumb] | None:
        """Like `recent`, but None if one round trip is not enough."""
        read = recent_of(self, owner, session_id, schema_name, limit)
        try:
            return await read_head(self, replace(read, fallback=None))
        except NeedsFullScan:
            return None

    async def walk(self, owner: UUID, query: Query) -> AsyncIterator[Breadcrumb]:
        """Yield all breadcrumbs that a query finds, with at most `WALK_BYTES` in memory."""
        cursor = None
        query = replace(query, max_bytes=min(query.max_bytes or WALK_BYTES, WALK_BYTES))
        while True:
            page = await self.list(owner, replace(query, cursor=cursor))
            for crumb in page.items:
                yield crumb
            cursor = page.next_cursor
            if cursor is None:
                return

    def schemas(self, owner: UUID, lanes: List[int]) -> Coroutine[Any, Any, dict[int, List[str]]]:
        """Return the schema names of an owner's breadcrumbs, by lane."""
        return lookup.list_schemas(self, owner, lanes)

    async def schema_names(self, owner: UUID) -> frozenset[str]:
        """Return the schema names of all breadcrumbs of an owner."""
        by_lane = await self.schemas(owner, list(range(self.lanes)))
        return frozenset(name for names in by_lane.values() for name in names if name)

    async def forget_usage(self, owner: UUID) -> None:
        """Remove the usage counters of an owner. If there is a quota, the next write counts again."""
        await self.connection.call_all(
            [(lane, (b"DEL", self.keys.usage(lane, owner))) for lane in range(self.lanes)]
        )

    def _lane_of(self, owner: UUID, session: str | None, idempotency_key: str | None, id: UUID | None) -> int:
        if session is not None:
            return self.keys.session_lane(owner, session)
        if idempotency_key is not None:
            return lane_for(owner, "key", idempotency_key, self.lanes)
        return secrets.randbelow(self.lanes) if id is None else home_lane(id, self.lanes)

    def _default_ttl(self, schema_name: str | None) -> ttl.Expiry:
        return self._ttl_defaults.get(schema_name or "", ttl.NEVER)


def _expected_version(session: str | None, version: SessionVersion) -> SessionVersion:
    """Return the version that the session must have. A name with hidden characters cannot begin a session."""
    if session is None or hidden_character(session) is None:
        return version
    if version == 0:
        check_new_session_id(session)
    # A session that an older version of Breadcrumbs began under such a name continues.
    return "*" if version is None else version


def _is_permanent(content: Content) -> bool:
    """Return whether only a deletion or an update ends a version. A context that is reduced keeps its version."""
    return ttl.is_never(content.expiry) or content.expiry.reduces


def _default_of(crumb: Breadcrumb) -> ttl.Expiry:
    """Return the default expiry that a breadcrumb got when it was written. The setting can have changed since."""
    return ttl.Expiry(at=crumb.expires) if crumb.document.get("ttl_source") == "schema-default" else ttl.NEVER


def _too_many_writers() -> StoreUnavailable:
    return StoreUnavailable("too many concurrent writes to this breadcrumb: try again")


def check_idempotency_key(key: str) -> None:
    """Raise `InvalidInput` unless the key is one line of at most 255 characters."""
    try:
        check_name(key)
    except ValueError as error:
        raise InvalidInput(f"the Idempotency-Key is invalid: {error}", where="Idempotency-Key") from None
    if len(key) > 255:
        raise InvalidInput(
            "the Idempotency-Key is too long: it can have at most 255 characters", where="Idempotency-Key"
        )
