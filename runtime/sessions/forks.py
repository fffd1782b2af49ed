"""Forks: new sessions that start with a copy of another session, up to a message.

The copies are written like imported breadcrumbs: they keep their times, and no agent answers them. Their ids are
derived from the new session and the original ids, so an interrupted fork can be resumed without duplicates.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final
from uuid import UUID

import anyio
import orjson

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.credentials import strip_credentials
from breadcrumbs.runtime.breadcrumb.query import Query, SortKey
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION, user_tags
from breadcrumbs.runtime.errors import AlreadyExists, InvalidInput, NotFound, VersionMismatch
from breadcrumbs.runtime.events.traces import trace_of_write
from breadcrumbs.runtime.schema_names import (
    AGENT_CANCEL,
    AGENT_CONTEXT,
    AGENT_ERROR,
    AGENT_STEP,
    FEEDBACK,
    RECEIPT,
    RUNTIME_KEYS,
    SESSION_RECORD,
    STATE_CHANGE,
    TOOL_STARTED,
    USER_MESSAGE,
)
from breadcrumbs.runtime.sessions.feedback_copies import copy_feedback
from breadcrumbs.runtime.sessions.messages import message_in
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.placement import derive_id_in_session
from breadcrumbs.runtime.store.quotas import Usage
from breadcrumbs.runtime.store.state import (
    ONLY_CREDENTIALS,
    REMOVED,
    STATEFUL,
    StateReaders,
    is_about_session,
    state_changes,
)
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.written import Written
from breadcrumbs.runtime.telemetry import tracing

_NOT_COPIED: Final = frozenset(
    (
        SESSION_RECORD,
        STATE_CHANGE,
        AGENT_CONTEXT,
        AGENT_ERROR,
        AGENT_CANCEL,
        AGENT_STEP,
        TOOL_STARTED,
        FEEDBACK,
    )
)
"""Schemas that describe the original session or its turns. They are not part of the conversation.

Feedback is copied after the answers, because it can be newer than the last copied message.
"""
_CONTEXT_REFERENCES: Final = frozenset(("context_id", "context_version"))
"""Keys that refer to a context. They are removed, because contexts are not copied."""

_NESTED_REFERENCES: Final = RUNTIME_KEYS - {"state_delta", "adk"}
"""Keys of the runtime in which ids are also replaced in nested values. The others contain data of users."""

_BATCH_SIZE: Final = 32
"""Maximum number of breadcrumbs that are copied concurrently."""
_BATCH_BYTES: Final = 1 << 20
"""Maximum size of a batch. A single breadcrumb can be larger."""


@dataclass(frozen=True, slots=True)
class ForkOptions:
    """Options of a fork."""

    message_id: UUID | None = None
    """Last message to copy. None copies the whole session."""
    before_id: UUID | None = None
    """First message that is not copied. Not together with `message_id`."""
    title: str | None = None
    user_id: str | None = None
    """User of the new session. None: no user, even if the original session has one."""
    model: str | None = None
    """Model of the new session. None: agents use their own."""
    agent: str | None = None
    """Agent of the new session. None: all agents answer."""
    request: str | None = None
    """Identifies the request. A repeated request resumes the same fork. None if the request cannot be repeated."""


async def fork(
    store: Store, principal: Principal, origin: str, session: str, options: ForkOptions
) -> Written:
    """Create `session` as a copy of `origin`, up to a message or to the end.

    The new session has the state that `origin` had at that message, as far as the breadcrumbs that set it still exist.
    Breadcrumbs and state that the principal may not read are not copied. Raise `AlreadyExists` if `session` exists.
    """
    owner = principal.owner_id
    request = options.request
    survey = await _survey_session(store, principal, origin, await _end(store, principal, origin, options))
    if (spans := tracing.active) is not None and survey.last_message is not None:
        spans.add_link(await trace_of_write(store, survey.last_message))
    if store.quotas is not None:
        await store.quotas.check(owner, Usage(survey.size, len(survey.copies), 1))
    try:
        written = await store.create(
            owner,
            _session_record(session, origin, survey, options),
            by=principal.agent_id,
            id=None if request is None else _fork_id(store, owner, session),
            options=CreateOptions(session_version=0),
        )
    except VersionMismatch:
        raise _already_exists(session) from None
    copies = survey.copies
    if written.found and request is not None:
        # A repeated request resumes the fork. It copies no breadcrumbs that are newer than the last one that the first
        # request found.
        first = (await store.get(owner, written.id, count_read=False)).context.get("forked_from")
        if not isinstance(first, dict) or first.get("request") != request:
            raise _already_exists(session)
        end = first.get("until", 0)
        copies = {id: created for id, created in copies.items() if created <= end}
        written = written._replace(replayed=True)
    ids = {str(id): _fork_id(store, owner, session, str(id)) for id in copies}
    async for batch in _batches(store, principal, origin, copies):
        async with anyio.create_task_group() as tasks:
            for crumb in batch:
                tasks.start_soon(_copy, store, crumb, session, ids)
    await copy_feedback(store, principal, origin, session, ids)
    return written


class _Survey:
    """Facts about a session that its fork needs.

    The breadcrumbs themselves are not kept, except the last message, because they can be large.
    """

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        self.state = _ForkState(principal)
        self.copies: dict[UUID, int] = {}
        """Ids of the breadcrumbs to copy, each with its time of creation."""
        self.size = 0
        """Total bytes of the breadcrumbs to copy."""
        self.last: tuple[UUID, int] | None = None
        """Id and time of creation of the last breadcrumb, even if it is not copied."""
        self.last_message: Breadcrumb | None = None
        """The last message of a user that is copied."""

    def add(self, crumb: Breadcrumb, first: Breadcrumb | None) -> None:
        """Add the next breadcrumb.

        `first` is the first version of the breadcrumb, or None if the breadcrumb cannot have set state.
        """
        copied = _is_copied(crumb, self._principal)
        self.last = crumb.id, crumb.created
        if copied:
            self.copies[crumb.id] = crumb.created
            if crumb.schema_name == USER_MESSAGE:
                self.last_message = crumb
            self.size += len(crumb.json)
        if first is not None:
            self.state.add(crumb, first, copied=copied)


async def _end(
    store: Store, principal: Principal, origin: str, options: ForkOptions
) -> Callable[[SortKey], bool]:
    """Return a function that tells whether a breadcrumb is after the end of the fork."""
    named = options.message_id or options.before_id
    if named is None:
        return lambda key: False
    message = await message_in(store, principal, origin, named)
    end = SortKey(message.created, message.id.bytes)
    if options.message_id is None:
        return lambda key: key >= end
    return lambda key: key > end


async def _survey_session(
    store: Store, principal: Principal, session: str, is_after: Callable[[SortKey], bool]
) -> _Survey:
    """Survey the breadcrumbs of a session, oldest first, until `is_after`."""
    survey = _Survey(principal)
    async for crumb in store.walk(principal.owner_id, Query(session_id=session, sort="created_at")):
        if is_after(SortKey(crumb.created, crumb.id.bytes)):
            break
        sets_state = crumb.schema_name in STATEFUL or crumb.version > 1
        first = await _first_version(store, crumb) if sets_state else None
        survey.add(_with_usable_state(crumb), first)
    return survey


async def _batches(
    store: Store, principal: Principal, session: str, copies: dict[UUID, int]
) -> AsyncIterator[list[Breadcrumb]]:
    """Read the breadcrumbs of `copies` in batches.

    This is the second read, after the survey. Skip breadcrumbs that the principal may no longer read.
    """
    batch: list[Breadcrumb] = []
    size, end = 0, max(copies.values(), default=0)
    async for crumb in store.walk(principal.owner_id, Query(session_id=session, sort="created_at")):
        if crumb.created > end:
            break
        if crumb.id not in copies or not _is_copied(crumb, principal):
            continue
        if batch and (len(batch) == _BATCH_SIZE or size + len(crumb.json) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(_with_usable_state(crumb))
        size += len(crumb.json)
    if batch:
        yield batch


async def _copy(store: Store, crumb: Breadcrumb, session: str, ids: dict[str, UUID]) -> None:
    try:
        await store.restore(_copy_of(crumb, session, ids), [])
    except AlreadyExists:
        pass  # copied by an earlier request


def _with_usable_state(crumb: Breadcrumb) -> Breadcrumb:
    """Return the breadcrumb without an invalid `state_delta`.

    An update can store an invalid `state_delta`, but the store rejects a new breadcrumb with one.
    """
    try:
        state_changes(crumb.schema_name or "", crumb.context)
    except InvalidInput:
        context = {name: value for name, value in crumb.context.items() if name != "state_delta"}
        return replace(crumb, json=orjson.dumps({**crumb.document, "context": context}))
    return crumb


async def _first_version(store: Store, crumb: Breadcrumb) -> Breadcrumb:
    """Return the first version, or the newest one if the first is not stored.

    Only the first version sets state. Later versions do not change it.
    """
    if crumb.version == 1:
        return crumb
    try:
        return await store.get_version(crumb.owner_id, crumb.id, 1)
    except NotFound:
        return crumb


def _session_record(session: str, origin: str, survey: _Survey, options: ForkOptions) -> BreadcrumbCreate:
    """Return the session record of the fork."""
    title, user_id = options.title, options.user_id
    forked_from: dict[str, Any] = {"session_id": origin}
    if survey.last is not None:
        last, created = survey.last
        forked_from |= {"message_id": str(last), "until": created}
    if options.request is not None:
        forked_from["request"] = options.request
    state, guard = survey.state.record()
    context: dict[str, Any] = {
        "session_id": session,
        **state,
        "forked_from": forked_from,
        "user_id": user_id,  # null: the fork belongs to no user, even if the original session does
    }
    if title is not None:
        context["title"] = title
    if options.model is not None:
        context["model"] = options.model
    if options.agent is not None:
        context["agent"] = options.agent
    return BreadcrumbCreate.parse(
        {
            "schema_name": SESSION_RECORD,
            "title": title or "",
            "tags": [SESSION + session, *user_tags(user_id)],
            "context": context,
            "sensitivity": "secret" if guard.secret else None,
            "visibility": "private" if guard.private_to is not None else None,
        }
    )


def _fork_id(store: Store, owner: UUID, session: str, *original: str) -> UUID:
    """Return the id of a fork's session record, or of the copy of `original`."""
    return derive_id_in_session(store, owner, session, "fork", str(owner), session, *original)


def _already_exists(session: str) -> AlreadyExists:
    return AlreadyExists(f"session {session!r} already exists: choose another id, or omit it")


def _is_copied(crumb: Breadcrumb, principal: Principal) -> bool:
    return (
        crumb.schema_name not in _NOT_COPIED
        and not any(tag.startswith("consumer:") for tag in crumb.tags)
        and crumb.max_reads == 0  # a copy could be read more often than the limit allows
        and policy.may_read(principal, crumb)
    )


def _copy_of(crumb: Breadcrumb, session: str, ids: dict[str, UUID]) -> Breadcrumb:
    """Return the copy of a breadcrumb in the fork.

    Ids of originals are replaced by those of their copies.
    """
    document = dict(crumb.document)
    document["tags"] = [SESSION + session if tag.startswith(SESSION) else tag for tag in crumb.tags]
    context = {
        name: _map_all_ids(value, ids) if name in _NESTED_REFERENCES else _map_ids(value, ids)
        for name, value in crumb.context.items()
        if name not in _CONTEXT_REFERENCES
    }
    if isinstance(receipt := context.pop(RECEIPT, None), dict) and crumb.created_by is None:
        # The prompt of the answer was made in the original session, so only the original answer can prove it. Clients
        # can write any receipt into their own breadcrumbs and into an edit, so these are not trusted.
        earlier = receipt.get("copy_of") if crumb.version == 1 else None
        context[RECEIPT] = {"copy_of": earlier or str(crumb.id)}
    document["context"] = {**context, "session_id": session}
    return Breadcrumb(
        ids[str(crumb.id)],
        crumb.owner_id,
        1,
        crumb.created,
        crumb.updated,
        crumb.expires,
        0,
        crumb.created_by,
        crumb.updated_by,
        orjson.dumps(document),
    )


def _map_all_ids(value: Any, ids: dict[str, UUID]) -> Any:
    """Replace ids of originals by the ids of their copies, also in nested lists and objects."""
    if isinstance(value, dict):
        return {name: _map_all_ids(item, ids) for name, item in value.items()}
    if isinstance(value, list):
        return [_map_all_ids(item, ids) for item in value]
    return _map_ids(value, ids)


def _map_ids(value: Any, ids: dict[str, UUID]) -> Any:
    """Replace ids of originals by the ids of their copies. Nested values are data of the author and not changed."""
    if isinstance(value, str):
        return str(ids[value]) if value in ids else value
    if isinstance(value, list):
        return [_map_ids(item, ids) if isinstance(item, str) else item for item in value]
    return value


class _ForkState:
    """State of a session, computed from its breadcrumbs in order.

    State that the principal may not read is left out, like the breadcrumbs that set it.
    """

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        self._values: dict[str, tuple[bytes, StateReaders]] = {}
        self._set_by_copies: dict[str, bytes] = {}
        """State that the copies set in the fork."""

    def add(self, crumb: Breadcrumb, first: Breadcrumb, *, copied: bool) -> None:
        """Apply the next breadcrumb. Only its first version sets state."""
        principal = self._principal
        guard = StateReaders.of_crumb(first).joined(StateReaders.of_crumb(crumb))
        readable = policy.may_read_content(principal, first) and policy.may_read_content(principal, crumb)
        for name, value in _changes(first, credentials=readable).items():
            self._values[name] = (value if policy.may_read_state(principal, guard) else REMOVED, guard)
        if copied:
            self._set_by_copies |= _changes(crumb)

    def record(self) -> tuple[dict[str, Any], StateReaders]:
        """Return the state part of the session record, and its readers.

        The part sets the values that the copies do not set. It removes values that the copies set, but that are not
        part of the state.
        """
        values, copied = self._values, self._set_by_copies
        state = {name: value for name, (value, _) in values.items() if value != REMOVED}
        surplus = [name for name, value in copied.items() if value != REMOVED and name not in state]
        delta = {name: orjson.loads(value) for name, value in state.items() if value != copied.get(name)}
        record: dict[str, Any] = {"state_delta": {**delta, **dict.fromkeys(surplus)}}
        if nulls := [name for name, value in delta.items() if value is None]:
            record["null_is_a_value"] = nulls
        guard = reduce(StateReaders.joined, (values[name][1] for name in delta), StateReaders())
        if not guard.secret and strip_credentials(delta) is not delta:
            # Only the credentials are secret, as in the original breadcrumbs. All principals may read the other values.
            return {**record, ONLY_CREDENTIALS: True}, replace(guard, secret=True)
        return record, guard


def _changes(crumb: Breadcrumb, *, credentials: bool = True) -> dict[str, bytes]:
    """Return the state that a breadcrumb sets, without title, user and pause of the session."""
    context = crumb.context if credentials else strip_credentials(crumb.context)
    changes = state_changes(crumb.schema_name or "", context)
    return {name: value for name, value in changes.items() if not is_about_session(name)}
