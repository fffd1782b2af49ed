"""What the scripts that write are run with: their keys and arguments, in the order that their headers give.

A script knows what it gets by number only. Whoever changes a header in `runtime/store/lua` changes this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from uuid import UUID

import orjson

from breadcrumbs.runtime.breadcrumb import ttl
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, Content, user_in
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.indexes import indexes, indexes_of
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.state import Guard, held_changes

if TYPE_CHECKING:
    from breadcrumbs.runtime.store.store import Fence

DELETION_REMEMBERED: Final = 31 * 86_400
"""Seconds that the deletion of a session is kept: longer than any turn, and than any token that can be requested."""

MAX_DELETIONS: Final = 20_000
"""Deleted sessions kept per owner and lane. Above it the oldest are dropped, and checks of older times fail closed."""

Does: TypeAlias = Literal["create", "update", "delete", "import", "extend"]
Arguments: TypeAlias = list[bytes | str | int]
Call: TypeAlias = tuple[list[bytes], Arguments]
"""The keys and the arguments of one run of a script."""


@dataclass(frozen=True, slots=True)
class Expects:
    """What a create is to find, and what it is to leave with its session. See `Store.create`."""

    idempotency_key: str | None = None
    counts: bool = True
    version: int | Literal["*"] | None = None
    began: int | None = None
    since: int | None = None
    replays: bool = False
    """True: nothing is written, only the result of an earlier run is looked for."""


class Writes:
    """Spells the runs of one store's scripts."""

    def __init__(self, keys: Keys, *, idempotency_seconds: int, max_state_bytes: int) -> None:
        self._keys = keys
        self._max_state_bytes = max_state_bytes
        self._idempotency_seconds = idempotency_seconds

    def creation(
        self,
        lane: int,
        owner: UUID,
        id: UUID,
        new: BreadcrumbCreate,
        content: Content,
        by: UUID | None,
        expects: Expects,
    ) -> Call:
        keys = self._keys
        body = keys.body(lane, owner, id.bytes)
        digest = b""
        idempotency = body
        if expects.idempotency_key is not None:
            digest = blake2b(canonical(orjson.loads(content.json)), digest_size=16).digest()
            idempotency = keys.idempotency(lane, owner, content.session_id or "", expects.idempotency_key)
        expiry, session = content.expiry, content.session_id
        state: Arguments = []
        if session is not None:
            guard = Guard.of(new.context, new.sensitivity, new.visibility, by)
            for name, value in held_changes(content.schema_name, new.context, guard).items():
                state += [name, value]
            if state:
                state.insert(0, self._max_state_bytes)
        return [
            body,
            keys.events(lane),
            keys.clock(lane),
            keys.expiries(lane),
            keys.schemas(lane, owner),
            idempotency,
            *self._session_keys(lane, owner, session, body),
            self._state_key(lane, owner, session, body),
            self._deletions_key(lane, owner, session, body),
            *indexes(keys, lane, owner, content.schema_name, session, content.indexed_tags),
        ], [
            id.bytes,
            owner.bytes,
            record.rest(content, by, by),
            expiry.at,
            expiry.after,
            _max_reads(expiry),
            content.schema_name,
            record.event_note(content.schema_name, content.tags, private_to(new.visibility, by)),
            digest,
            self._idempotency_seconds,
            session or "",
            int(expects.counts and session is not None),
            "" if expects.version is None or session is None else expects.version,
            "" if expects.since is None else expects.since,
            "" if expects.began is None or session is None else expects.began,
            _user_json(content.tags),
            int(expects.replays),
            *state,
        ]

    def update(
        self,
        lane: int,
        base: Breadcrumb,
        content: Content,
        visibility: str | None,
        by: UUID | None,
        limit_changes: bool,
        *,
        since: int | None,
        older: bytes,
        state: Mapping[str, bytes],
    ) -> Call:
        """`older`: what history keeps of `base`; empty: all of it."""
        owner, session = base.owner_id, content.session_id
        old = indexes_of(self._keys, lane, base)
        new = indexes(self._keys, lane, owner, content.schema_name, session, content.indexed_tags)
        leave = [key for key in old if key not in new]
        join = [key for key in new if key not in old]
        keys = self._keys_of(lane, base)
        return [
            *keys,
            self._state_key(lane, owner, session if state else None, keys[0]),
            self._deletions_key(lane, owner, None if since is None else session, keys[0]),
            *leave,
            *join,
        ], [
            base.id.bytes,
            owner.bytes,
            record.rest(content, base.created_by, by),
            content.expiry.at if limit_changes else "keep",
            content.expiry.after,
            _max_reads(content.expiry),
            base.version,
            record.event_note(content.schema_name, content.tags, private_to(visibility, base.created_by)),
            len(leave),
            base.schema_name or "",
            content.schema_name,
            older,
            session or "",
            int(not older and session is not None),
            "" if since is None else since,
            *(part for change in state.items() for part in change),
        ]

    def deletion(self, lane: int, base: Breadcrumb, *, only_expired: bool, deletion: int | None) -> Call:
        """`deletion`: the deletion of its session that this is part of."""
        owner, keys = base.owner_id, self._keys_of(lane, base)
        return [
            *keys,
            self._state_key(lane, owner, base.session_id, keys[0]),
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
            "" if deletion is None else deletion,
            DELETION_REMEMBERED,
        ]

    def restoration(self, lane: int, crumb: Breadcrumb, history: Sequence[Breadcrumb]) -> Call:
        owner, keys = crumb.owner_id, self._keys_of(lane, crumb)
        older: Arguments = []
        for version in history:
            older += [version.version, record.whole(version)]
        # State is what the first version said: later ones are corrections of a text.
        first = min(history, key=lambda version: version.version, default=crumb)
        state = {}
        if crumb.session_id is not None and first.version == 1:
            guard = Guard.of_crumb(first).joined(Guard.of_crumb(crumb))
            state = held_changes(first.schema_name or "", first.context, guard)
        return [
            *keys,
            self._state_key(lane, owner, crumb.session_id, keys[0]),
            self._deletions_key(lane, owner, crumb.session_id, keys[0]),
            *indexes_of(self._keys, lane, crumb),
        ], [
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
                private_to(crumb.visibility, crumb.created_by),
                imported=True,
            ),
            crumb.session_id or "",
            len(state),
            _user_json(first.tags),
            *(part for change in state.items() for part in change),
            *older,
        ]

    def counted(self, lane: int, owner: UUID, id: UUID, does: Does, call: Call) -> Call:
        """A run whose effect on its owner's usage is counted."""
        keys, args = call
        history = keys[0] if does == "create" else self._keys.history(lane, owner, id.bytes)
        return [*keys, history, self._keys.usage(lane, owner)], [*args, does]

    def commit(self, fence: Fence, keys: list[bytes], args: Arguments) -> Call:
        """A run as a worker's commit."""
        lease, names = fence.lease, self._keys
        lane, kind = lease.lane, lease.kind
        return [
            *keys,
            names.lease(lane, kind),
            names.done(lane, kind),
            names.low(lane, kind),
            names.attempts(lane, kind),
            names.dead_letters(lane, kind),
        ], [*args, lease.value, "" if fence.event is None else fence.event, fence.low, fence.dead_letter]

    def _keys_of(self, lane: int, crumb: Breadcrumb) -> list[bytes]:
        """What the scripts that change a breadcrumb expect first; its body before all."""
        keys, owner, id = self._keys, crumb.owner_id, crumb.id.bytes
        body = keys.body(lane, owner, id)
        return [
            body,
            keys.events(lane),
            keys.clock(lane),
            keys.expiries(lane),
            keys.schemas(lane, owner),
            keys.history(lane, owner, id),
            keys.updated(lane, owner),
            *self._session_keys(lane, owner, crumb.session_id, body),
        ]

    def _session_keys(self, lane: int, owner: UUID, session: str | None, instead: bytes) -> list[bytes]:
        if session is None:
            return [instead, instead]
        return [self._keys.session(lane, owner, session), self._keys.sessions(lane, owner)]

    def _state_key(self, lane: int, owner: UUID, session: str | None, instead: bytes) -> bytes:
        """Of its own, for scripts that need it: a key that is not there holds up whoever names it in a moving lane."""
        return instead if session is None else self._keys.state(lane, owner, session)

    def _deletions_key(self, lane: int, owner: UUID, session: str | None, instead: bytes) -> bytes:
        return instead if session is None else self._keys.deletions(lane, owner)


def together(calls: Sequence[Call]) -> Call:
    """Several runs as one: all or nothing."""
    keys: list[bytes] = []
    args: Arguments = [len(calls)]
    for own_keys, own_args in calls:
        keys += own_keys
        args += [len(own_keys), len(own_args), *own_args]
    return keys, args


def private_to(visibility: str | None, agent: UUID | None) -> UUID | None:
    """The only agent who may know of a breadcrumb that is its own."""
    return agent if visibility == "private" else None


def _max_reads(expiry: ttl.Expiry) -> int:
    return -expiry.max_reads if expiry.needs_all else expiry.max_reads


def _user_json(tags: Sequence[str]) -> bytes:
    """Who begins a session with a breadcrumb that has these tags."""
    user = user_in(tags)
    return b"" if user is None else orjson.dumps(user)
