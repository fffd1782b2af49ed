"""Facts about sessions, and the reads that load them.

The scripts that write breadcrumbs also write the version, the times and the state of the session. So the facts are
always up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.session_rule import USER, USER_MESSAGE_TAG, user_in
from breadcrumbs.runtime.schema_names import USER_MESSAGE
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.batched_reads import Read, read_command
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.state import ABOUT_NAMES, About, decode_about, decode_state
from breadcrumbs.runtime.store.store import Store


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The facts about one session."""

    id: str
    version: int
    created: int
    active: int
    """Time of the last write."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of breadcrumbs by schema name."""
    raw_state: list[bytes] = field(default_factory=list)
    """The state in its stored form."""
    about: About = field(default_factory=About)
    first_message: Breadcrumb | None = None

    @property
    def state(self) -> dict[str, Any]:
        """The whole state, including values that only some principals may read."""
        return decode_state(self.raw_state)

    @property
    def user(self) -> str | None:
        """The user that the session belongs to, or None."""
        return session_user(self.about, self.created, self.first_message)


def session_user(about: About, created: int, first_message: Breadcrumb | None) -> str | None:
    """Return the user that a session belongs to, or None.

    The user in the record of the session takes precedence over the user that began it.
    """
    if about.disowned:
        return None
    user = about.began_by if about.user_id is None else about.user_id
    if user is not None:
        return user if USER + user != USER_MESSAGE_TAG else None
    # Older stores do not record the user. The first message counts only if the session began with it.
    if first_message is not None and first_message.created == created:
        return user_in(first_message.tags)
    return None


@dataclass(frozen=True, slots=True)
class FactsRequest:
    """Selects sessions of an owner and the facts to read."""

    owner: UUID
    sessions: Sequence[str]
    first_message: bool = False
    with_state: bool = True
    """False: `SessionFacts.raw_state` contains only the entries about the session itself."""


async def read_facts(store: Store, request: FactsRequest) -> list[SessionFacts | None]:
    """Return the facts of sessions in two round trips. None for a session that does not exist."""
    owner, sessions, keys = request.owner, request.sessions, store.keys
    lanes = [keys.session_lane(owner, session) for session in sessions]
    distinct = sorted(set(lanes))
    with_message = sessions if request.first_message else ()
    results = await store.read_batch(
        *(_record_read(keys, owner, session, with_state=request.with_state) for session in sessions),
        *(_schemas_read(keys, owner, lane) for lane in distinct),
        *(_first_id_read(keys, owner, session) for session in with_message),
    )
    records, rest = results[: len(sessions)], results[len(sessions) :]
    schemas, first_ids = dict(zip(distinct, rest, strict=False)), rest[len(distinct) :]
    details = await store.read_batch(
        *(
            _counts_read(keys, owner, session, schemas[lane])
            for lane, session in zip(lanes, sessions, strict=True)
        ),
        *(
            _body_read(store, owner, session, first_id)
            for session, first_id in zip(with_message, first_ids, strict=True)
        ),
    )
    messages = dict(zip(with_message, details[len(sessions) :], strict=True))
    return [
        None if found is None else found.facts(session, counts, messages.get(session))
        for session, found, counts in zip(sessions, records, details, strict=False)
    ]


async def read_first_message(store: Store, owner: UUID, session: str) -> Breadcrumb | None:
    """Return the first user message of a session, or None if there is none."""
    (first_id,) = await store.read_batch(_first_id_read(store.keys, owner, session))
    (message,) = await store.read_batch(_body_read(store, owner, session, first_id))
    return message


def flatten_fields(names: Sequence[str], values: Sequence[bytes | None]) -> list[bytes]:
    """Return the existing fields of an HMGET reply in the form of an HGETALL reply."""
    pairs = zip(names, values, strict=True)
    return [part for name, value in pairs if value is not None for part in (name.encode(), value)]


@dataclass(frozen=True, slots=True)
class _StoredRecord:
    """The record and the state of a session that exists."""

    version: int
    created: int
    active: int
    raw_state: list[bytes]

    def facts(self, session: str, counts: dict[str, int], first: Breadcrumb | None) -> SessionFacts:
        about = decode_about(self.raw_state)
        return SessionFacts(
            session, self.version, self.created, self.active, counts, self.raw_state, about, first
        )


def _record_read(keys: Keys, owner: UUID, session: str, *, with_state: bool) -> Read[_StoredRecord | None]:
    """Read the record of a session. None: the session does not exist or is being deleted."""
    lane = keys.session_lane(owner, session)
    state = keys.state(lane, owner, session)

    def decode(replies: list[Any]) -> _StoredRecord | None:
        (version, created, closing), active, raw_state = replies
        if version is None or closing is not None:
            return None
        return _StoredRecord(
            int(version),
            int(created or float(active or 0)),
            int(float(active or created or 0)),
            raw_state if with_state else flatten_fields(ABOUT_NAMES, raw_state),
        )

    return Read(
        [
            (lane, (b"HMGET", keys.session(lane, owner, session), b"version", b"created", b"closing")),
            (lane, (b"ZSCORE", keys.sessions(lane, owner), session)),
            (lane, (b"HGETALL", state) if with_state else (b"HMGET", state, *ABOUT_NAMES)),
        ],
        decode,
    )


def _schemas_read(keys: Keys, owner: UUID, lane: int) -> Read[list[str]]:
    """Read the schema names that an owner has breadcrumbs of in a lane."""
    command = (b"SMEMBERS", keys.schemas(lane, owner))
    return read_command(lane, command, lambda names: sorted(name.decode() for name in names))


def _counts_read(keys: Keys, owner: UUID, session: str, schemas: list[str]) -> Read[dict[str, int]]:
    """Read the number of breadcrumbs in a session by schema, without zeros."""
    lane = keys.session_lane(owner, session)

    def decode(replies: list[Any]) -> dict[str, int]:
        return {schema: int(count) for schema, count in zip(schemas, replies, strict=True) if int(count)}

    commands = [(lane, (b"ZCARD", keys.by_session(lane, owner, session, schema))) for schema in schemas]
    return Read(commands, decode)


def _first_id_read(keys: Keys, owner: UUID, session: str) -> Read[bytes | None]:
    """Read the id of the first message in a session. None: there is no message."""
    lane = keys.session_lane(owner, session)
    command = (b"ZRANGE", keys.by_session(lane, owner, session, USER_MESSAGE), 0, 0)
    return read_command(lane, command, lambda ids: ids[0] if ids else None)


def _body_read(store: Store, owner: UUID, session: str, id: bytes | None) -> Read[Breadcrumb | None]:
    """Read a breadcrumb in a session. None: it is deleted or expired, or `id` is None."""
    if id is None:
        return Read([], lambda _: None)
    lane = store.keys.session_lane(owner, session)

    def decode(body: bytes | None) -> Breadcrumb | None:
        crumb = None if body is None else record.decode_raw(owner, id, body)
        return None if crumb is None or record.is_gone(crumb, store.now()) else crumb

    return read_command(lane, (b"GET", store.keys.body(lane, owner, id)), decode)
