"""Keys and arguments of the scripts that write, in the order of each script's header.

A script refers to its keys and arguments by number only. A change of a header in `runtime/store/lua` needs the same
change here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

import orjson

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.breadcrumb import ttl
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, Content
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.breadcrumb.session_rule import user_in
from breadcrumbs.runtime.schema_names import AGENT_CANCEL, FEEDBACK
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.fence import Fence
from breadcrumbs.runtime.store.indexes import Indexes, IndexPlanner, indexes_of
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.options import SessionVersion
from breadcrumbs.runtime.store.spending import spent_call
from breadcrumbs.runtime.store.state import StateReaders, may_set_state, stored_changes
from breadcrumbs.runtime.store.tag_index import CHAT_SCHEMAS
from breadcrumbs.runtime.telemetry.tracing import carried

DELETION_RECORD_SECONDS: Final = 31 * 86_400
"""Seconds for which a deleted session is recorded. No turn and no requested token lasts longer."""

MAX_DELETIONS: Final = 20_000
"""Recorded deletions per owner and lane. Above it the oldest are dropped, and checks of older times fail closed."""

MAX_CHECKED_SESSION: Final = 64
"""Breadcrumbs up to which a session with a reduced context is checked for messages: see expiry.py."""

WriteKind: TypeAlias = Literal["create", "update", "delete", "import", "extend", "reduce"]
Arguments: TypeAlias = list[bytes | str | int]
CallArguments: TypeAlias = tuple[list[bytes], Arguments]
"""Keys and arguments of one run of a script."""


class WriteScripts(NamedTuple):
    """The scripts that write breadcrumbs."""

    create: Script
    create_together: Script
    create_commit: Script
    create_commit_spent: Script
    create_together_commit: Script
    create_together_commit_spent: Script
    update: Script
    update_commit: Script
    delete: Script
    restore: Script
    extend: Script
    reduce: Script

    @classmethod
    def inside(cls, *wrappers: str) -> WriteScripts:
        """Return the scripts, each inside `wrappers`. The first one is the innermost."""
        recording = ("deletions", *wrappers)
        return cls(
            Script("create", inside=recording),
            Script("create", inside=(*recording, "together")),
            Script("create", inside=(*recording, "commit")),
            Script("create", inside=(*recording, "commit", "spent")),
            Script("create", inside=(*recording, "together", "commit")),
            Script("create", inside=(*recording, "together", "commit", "spent")),
            Script("update", inside=recording),
            Script("update", inside=(*recording, "commit")),
            Script("delete", inside=recording),
            Script("import", inside=recording),
            Script("extend", inside=wrappers),
            Script("reduce", inside=wrappers),
        )


PLAIN_SCRIPTS: Final = WriteScripts.inside()
COUNTED_SCRIPTS: Final = WriteScripts.inside("counted")
"""The same scripts for owners with a quota. They update the usage counters of the owner."""


class Creation(NamedTuple):
    """One run of create.lua. `CreateOptions` explains the conditions."""

    lane: int
    owner: UUID
    id: UUID
    new: BreadcrumbCreate
    content: Content
    by: UUID | None
    idempotency_key: str | None = None
    counts: bool = True
    session_version: SessionVersion = None
    session_began: int | None = None
    since: int | None = None
    """See `Fence.since`."""
    replay_only: bool = False
    """True: write nothing, only return the result of an earlier run."""


class Update(NamedTuple):
    """One run of update.lua."""

    lane: int
    base: Breadcrumb
    """The version that the new one is based on."""
    content: Content
    visibility: str | None
    by: UUID | None
    changes_expiry: bool = True
    """False: the expiry and the number of remaining reads do not change."""
    history_body: bytes = b""
    """The body to store in the history instead of `base`. Empty: `base` itself."""
    state: Mapping[str, bytes] = {}
    """Values of the session's state that the breadcrumb set and whose readers change."""


class _Common(NamedTuple):
    """Parts of a call of create.lua that breadcrumbs with the same session, schema and tags have in common."""

    body_prefix: bytes
    """The key of a body, up to the id."""
    keys: list[bytes]
    """All keys after the body."""
    raw_owner: bytes
    note: bytes
    """The event of a breadcrumb that is neither private nor traced."""
    user: bytes
    unindexed: list[int | bytes]


class ScriptCalls:
    """Builds the script calls of one store."""

    def __init__(self, keys: Keys, *, idempotency_seconds: int, max_state_bytes: int) -> None:
        self._keys = keys
        self._max_state_bytes = max_state_bytes
        self._idempotency_seconds = idempotency_seconds
        self._planner = IndexPlanner(keys)
        # Most messages of a session have the same tags, so their keys and events are built once.
        self._common = lru_cache(4_096)(self._build_common)
        self._beside_body = lru_cache(4_096)(self._build_beside_body)
        self._worker_keys = lru_cache(4_096)(self._build_worker_keys)

    def omit_tags(self) -> None:
        """Leave out the index entries of declared tags from now on: see tag_index.py."""
        self._planner.omits_tags = True
        self._common.cache_clear()

    def create(self, creation: Creation) -> CallArguments:
        """Return a call of create.lua."""
        lane, content, by = creation.lane, creation.content, creation.by
        schema, session = content.schema_name, content.session_id
        # An integer instead of the UUID: it is hashed and compared much faster.
        common = self._common(lane, creation.owner.int, schema, session, content.tags)
        raw_id = creation.id.bytes
        keys = [common.body_prefix + raw_id, *common.keys]
        digest = b""
        if creation.idempotency_key is not None:
            digest = content_digest(content)
            keys[5] = self._keys.idempotency(lane, creation.owner, session or "", creation.idempotency_key)
        only_for = private_to(creation.new.visibility, by)
        note = common.note
        if only_for is not None or carried.get() is not None:
            note = record.event_note(schema, content.tags, only_for)
        expiry = content.expiry
        return keys, [
            raw_id,
            common.raw_owner,
            record.encode_without_header(content, by, by),
            expiry.at,
            _lifetime(expiry),
            _max_reads(expiry),
            schema,
            note,
            digest,
            self._idempotency_seconds,
            session or "",
            int(creation.counts and session is not None),
            "" if session is None else _or_empty(creation.session_version),
            _or_empty(creation.since),
            "" if session is None else _or_empty(creation.session_began),
            common.user,
            int(creation.replay_only),
            len(common.unindexed),
            *common.unindexed,
            *self._state_changes(creation),
        ]

    def _build_common(
        self, lane: int, owner: int, schema: str, session: str | None, tags: tuple[str, ...]
    ) -> _Common:
        keys, owner_id = self._keys, UUID(int=owner)
        events = keys.events(lane)
        indexes = self._planner.plan(lane, owner_id, schema, session, tags)
        return _Common(
            keys.body(lane, owner_id, b""),
            [
                events,
                keys.clock(lane),
                keys.expiries(lane),
                keys.schemas(lane, owner_id),
                events,  # in place of the idempotency key
                *([events] * 4 if session is None else keys.all_of_session(lane, owner_id, session)),
                keys.unindexed_tags(lane, owner_id) if indexes.unindexed else events,
                *indexes.keys,
            ],
            owner_id.bytes,
            record.event_note(schema, tags, None, traced=False),
            _user_json(tags),
            indexes.unindexed,
        )

    def _state_changes(self, creation: Creation) -> Arguments:
        """Return the size limit of the state and its changes. Empty: no changes."""
        if creation.content.session_id is None or not may_set_state(creation.content.schema_name):
            return []
        new = creation.new
        readers = StateReaders.of(new.context, new.sensitivity, new.visibility, creation.by)
        changes = stored_changes(creation.content.schema_name, new.context, readers)
        return [self._max_state_bytes, *_flatten(changes)] if changes else []

    def update(self, update: Update, *, since: int | None) -> CallArguments:
        """Return a call of update.lua. `since`: see `Fence.since`."""
        lane, base, content = update.lane, update.base, update.content
        owner, session = base.owner_id, content.session_id
        leave, join = self._index_changes(lane, base, content)
        keys = self._keys_of(lane, base)
        return [
            *keys,
            self._state_key(lane, owner, session if update.state else None, keys[0]),
            self._deletions_key(lane, owner, None if since is None else session, keys[0]),
            self._unindexed_key(lane, owner, (base.schema_name or "", content.schema_name), keys[0]),
            *leave,
            *join.keys,
        ], [
            base.id.bytes,
            owner.bytes,
            record.encode_without_header(content, base.created_by, update.by),
            content.expiry.at if update.changes_expiry else "keep",
            _lifetime(content.expiry),
            _max_reads(content.expiry),
            base.version,
            record.event_note(
                content.schema_name, content.tags, private_to(update.visibility, base.created_by)
            ),
            len(leave),
            base.schema_name or "",
            content.schema_name,
            update.history_body,
            session or "",
            int(not update.history_body and session is not None and base.schema_name != FEEDBACK),
            _or_empty(since),
            len(join.unindexed),
            *join.unindexed,
            *_flatten(update.state),
        ]

    def _index_changes(self, lane: int, base: Breadcrumb, content: Content) -> tuple[list[bytes], Indexes]:
        """Return the indexes that an update leaves, and those that it joins."""
        if content.schema_name == (base.schema_name or "") and content.tags == tuple(base.tags):
            return [], Indexes([], [])
        new = self._planner.plan(lane, base.owner_id, content.schema_name, content.session_id, content.tags)
        # The writer of `base` can have used another declaration of tags. `possible` are the indexes that can contain
        # it, and `certain` those that do.
        possible, certain = indexes_of(self._keys, lane, base), self._planner.plan_crumb(lane, base).keys
        leave = [key for key in possible if key not in new.keys]
        return leave, Indexes([key for key in new.keys if key not in certain], new.unindexed)

    def delete(
        self, lane: int, base: Breadcrumb, *, only_expired: bool, deletion: int | None
    ) -> CallArguments:
        """Return a call of delete.lua. `deletion`: the time that identifies the deletion of the session, if any."""
        owner, keys = base.owner_id, self._keys_of(lane, base)
        return [
            *keys,
            self._state_key(lane, owner, base.session_id, keys[0]),
            self._unindexed_key(lane, owner, (base.schema_name or "",), keys[0]),
            *indexes_of(self._keys, lane, base),
        ], [
            base.id.bytes,
            owner.bytes,
            base.version,
            record.event_note(
                base.schema_name or "", base.tags, private_to(base.visibility, base.created_by)
            ),
            base.schema_name or "",
            "*" if deletion is not None else int(only_expired),
            int(not only_expired),
            base.session_id or "",
            _or_empty(deletion),
            DELETION_RECORD_SECONDS,
            MAX_CHECKED_SESSION,
        ]

    def end(self, lane: int, base: Breadcrumb, session_version: str) -> CallArguments:
        """Return a call of delete.lua for a context of a session that has nothing but reduced contexts."""
        keys, args = self.delete(lane, base, only_expired=True, deletion=None)
        args[5] = "v" + session_version
        return keys, args

    def reduce(self, lane: int, crumb: Breadcrumb, json: bytes) -> CallArguments:
        """Return a call of reduce.lua. `json`: the content of the reduced context."""
        keys, owner, session = self._keys, crumb.owner_id, crumb.session_id or ""
        return [
            keys.body(lane, owner, crumb.id.bytes),
            keys.expiries(lane),
            keys.session(lane, owner, session),
        ], [
            crumb.id.bytes,
            owner.bytes,
            session,
            crumb.version,
            record.encode(crumb, json=json).partition(b"\n")[2],
            MAX_CHECKED_SESSION,
        ]

    def restore(
        self, lane: int, crumb: Breadcrumb, history: Sequence[Breadcrumb], reduced_at: int
    ) -> CallArguments:
        """Return a call of import.lua. `reduced_at`: time when a context is reduced, 0: it is no context."""
        owner, keys = crumb.owner_id, self._keys_of(lane, crumb)
        indexes = self._planner.plan_crumb(lane, crumb)
        # Only the first version sets the state. Later versions do not change it.
        first = min(history, key=lambda version: version.version, default=crumb)
        state = {}
        if crumb.session_id is not None and first.version == 1:
            readers = StateReaders.of_crumb(first).joined(StateReaders.of_crumb(crumb))
            state = stored_changes(first.schema_name or "", first.context, readers)
        return [
            *keys,
            self._state_key(lane, owner, crumb.session_id, keys[0]),
            self._deletions_key(lane, owner, crumb.session_id, keys[0]),
            self._unindexed_key(lane, owner, (crumb.schema_name or "",), keys[0]),
            *indexes.keys,
        ], [
            crumb.id.bytes,
            owner.bytes,
            record.encode(crumb),
            crumb.version,
            crumb.created,
            crumb.updated,
            reduced_at or (crumb.expires if crumb.max_reads >= 0 else 0),
            crumb.schema_name or "",
            record.event_note(
                crumb.schema_name or "",
                crumb.tags,
                private_to(crumb.visibility, crumb.created_by),
                imported=True,
            ),
            crumb.session_id or "",
            len(state),
            _user_json(first.tags),
            len(indexes.unindexed),
            *indexes.unindexed,
            *_flatten(state),
            *_flatten_versions(history),
        ]

    def repair(self, lane: int, crumb: Breadcrumb) -> CallArguments:
        """Return a call of repair.lua."""
        keys, owner, indexes = self._keys, crumb.owner_id, self._planner.plan_crumb(lane, crumb)
        return [
            keys.body(lane, owner, crumb.id.bytes),
            keys.expiries(lane),
            keys.schemas(lane, owner),
            keys.updated(lane, owner),
            keys.unindexed_tags(lane, owner),
            *indexes.keys,
        ], [crumb.id.bytes, owner.bytes, crumb.version, crumb.schema_name or "", *indexes.unindexed]

    def extend(self, lane: int, newest: Breadcrumb, history: Sequence[Breadcrumb]) -> CallArguments:
        """Return a call of extend.lua."""
        owner, id = newest.owner_id, newest.id.bytes
        return [self._keys.body(lane, owner, id), self._keys.history(lane, owner, id)], [
            newest.version,
            newest.created,
            *_flatten_versions(history),
        ]

    def counted(
        self, lane: int, owner: UUID, id: UUID, kind: WriteKind, call: CallArguments
    ) -> CallArguments:
        """Return a call of the same script, wrapped in counted.lua."""
        keys, args = call
        history = keys[0] if kind == "create" else self._keys.history(lane, owner, id.bytes)
        return [*keys, history, self._keys.usage(lane, owner)], [*args, kind]

    def commit(self, fence: Fence, call: CallArguments) -> CallArguments:
        """Return a call of the same script, wrapped in commit.lua and, if it records usage, in spent.lua."""
        committed = self._commit(fence, call)
        if fence.spent is None:
            return committed
        return spent_call(self._keys, fence.lease.lane, fence.spent, committed)

    def _commit(self, fence: Fence, call: CallArguments) -> CallArguments:
        (keys, args), names, lease, ended, asked = call, self._keys, fence.lease, fence.ended, fence.requested
        trigger, shared = fence.cached.trigger, fence.cached.shared
        lane = lease.lane
        of_worker = self._worker_keys(lane, lease.kind)
        lease_key = of_worker[0]
        return [
            *keys,
            *of_worker,
            lease_key if ended is None else names.running(lane, ended.owner, ended.session),
            lease_key if asked is None else names.by_session(lane, asked.owner, asked.session, AGENT_CANCEL),
            lease_key if trigger is None else names.body(lane, trigger[0], trigger[1].bytes),
            lease_key if shared is None else names.shared(names.shared_lane(shared[0]), shared[0]),
        ], [
            *args,
            lease.value,
            _or_empty(fence.event),
            fence.low,
            fence.dead_letter,
            b"" if ended is None else ended.fields,
            "" if asked is None else asked.at,
            b"" if shared is None else shared[1],
        ]

    def _keys_of(self, lane: int, crumb: Breadcrumb) -> list[bytes]:
        """Return the first keys of the scripts that change a breadcrumb. The body comes first."""
        keys, owner, id = self._keys, crumb.owner_id, crumb.id.bytes
        before, after = self._beside_body(lane, owner.int, crumb.session_id)
        return [keys.body(lane, owner, id), *before, keys.history(lane, owner, id), *after]

    def _build_beside_body(
        self, lane: int, owner: int, session: str | None
    ) -> tuple[list[bytes], list[bytes]]:
        """Return the keys before and after the history that all breadcrumbs of a session have in common."""
        keys, owner_id = self._keys, UUID(int=owner)
        events, updated = keys.events(lane), keys.updated(lane, owner_id)
        of_session = [events, events]  # placeholders
        if session is not None:
            of_session = [keys.session(lane, owner_id, session), keys.sessions(lane, owner_id)]
        return (
            [events, keys.clock(lane), keys.expiries(lane), keys.schemas(lane, owner_id)],
            [updated, *of_session],
        )

    def _build_worker_keys(self, lane: int, kind: str) -> list[bytes]:
        """Return the keys of a kind of worker in a lane, in the order of commit.lua."""
        keys = self._keys
        return [
            build(lane, kind) for build in (keys.lease, keys.done, keys.low, keys.attempts, keys.dead_letters)
        ]

    def _state_key(self, lane: int, owner: UUID, session: str | None, placeholder: bytes) -> bytes:
        """Return the state key, or the placeholder if the key is not used.

        Unused keys are not passed, because during slot migration a missing key delays the script.
        """
        return placeholder if session is None else self._keys.state(lane, owner, session)

    def _unindexed_key(self, lane: int, owner: UUID, schemas: Iterable[str], placeholder: bytes) -> bytes:
        """Return the key of the unindexed tags, or the placeholder if none of the schemas has any."""
        if self._planner.omits_tags and not CHAT_SCHEMAS.isdisjoint(schemas):
            return self._keys.unindexed_tags(lane, owner)
        return placeholder

    def _deletions_key(self, lane: int, owner: UUID, session: str | None, placeholder: bytes) -> bytes:
        return placeholder if session is None else self._keys.deletions(lane, owner)


def together(calls: Sequence[CallArguments]) -> CallArguments:
    """Return one call of together.lua. It makes all the calls, or none."""
    keys: list[bytes] = []
    args: Arguments = [len(calls)]
    for own_keys, own_args in calls:
        keys += own_keys
        args += [len(own_keys), len(own_args), *own_args]
    return keys, args


def content_digest(content: Content) -> bytes:
    """Return the digest by which repeated requests with the same idempotency key are recognized."""
    return blake2b(canonical(content.document), digest_size=16).digest()


def private_to(visibility: str | None, agent: UUID | None) -> UUID | None:
    """Return the only agent that may see a breadcrumb. None: all agents may."""
    return agent if visibility == "private" else None


def _or_empty(value: int | str | None) -> int | str:
    return "" if value is None else value


def _flatten(changes: Mapping[str, bytes]) -> Arguments:
    return [part for change in changes.items() for part in change]


def _flatten_versions(history: Sequence[Breadcrumb]) -> Arguments:
    return [part for version in history for part in (version.version, record.encode(version))]


def _lifetime(expiry: ttl.Expiry) -> int:
    return -expiry.after if expiry.reduces else expiry.after


def _max_reads(expiry: ttl.Expiry) -> int:
    return -expiry.max_reads if expiry.needs_all else expiry.max_reads


def _user_json(tags: Sequence[str]) -> bytes:
    """Return the user of a session that begins with these tags, as JSON. Empty: no user."""
    user = user_in(tags)
    return b"" if user is None else orjson.dumps(user)
