"""Forks: a new session that begins with what was said in another one, up to a message.

The copies keep their times, so they are history: nobody answers them. Their ids are derived from the new
session and the originals', so a fork that was broken off can be gone on with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
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
from breadcrumbs.runtime.schema_names import (
    AGENT_CANCEL,
    AGENT_CONTEXT,
    AGENT_ERROR,
    SESSION_RECORD,
    STATE_CHANGE,
)
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

_LEFT_BEHIND: Final = frozenset((SESSION_RECORD, STATE_CHANGE, AGENT_CONTEXT, AGENT_ERROR, AGENT_CANCEL))
"""What is about the first session itself, or about turns in it: not part of what was said."""
_ABOUT_CONTEXTS: Final = frozenset(("context_id", "context_version"))

_AT_ONCE: Final = 32
_COPIED_BYTES: Final = 1 << 20
"""How many bytes of breadcrumbs are copied at a time; one breadcrumb may be larger."""


@dataclass(frozen=True, slots=True)
class ForkOptions:
    """The end of a fork, and the facts of the new session."""

    message_id: UUID | None = None
    """The last message to copy. None: all of them."""
    title: str | None = None
    user_id: str | None = None
    request: str | None = None
    """Names the request that the fork is for: the same request again gives the same fork. None: it is not repeated."""


async def fork(
    store: Store, principal: Principal, origin: str, session: str, options: ForkOptions
) -> Written:
    """Make `session` from the breadcrumbs of `origin`, up to a message or all of them.

    The state is the one that `origin` had then, as far as the breadcrumbs that set it still exist.
    """
    owner = principal.owner_id
    until = None
    request = options.request
    if options.message_id is not None:
        last = await message_in(store, principal, origin, options.message_id)
        until = SortKey(last.created, last.id.bytes)
    survey = await _surveyed(store, principal, origin, until)
    if store.quotas is not None:
        await store.quotas.check(owner, Usage(survey.size, len(survey.copies), 1))
    try:
        written = await store.create(
            owner,
            _record(session, origin, survey, options),
            by=principal.agent_id,
            id=None if request is None else _fork_id(store, owner, session),
            options=CreateOptions(session_version=0),
        )
    except VersionMismatch:
        raise _taken(session) from None
    copies = survey.copies
    if written.found and request is not None:
        # Whoever comes again goes on where the first try stopped, and no further than that was to go.
        first = (await store.get(owner, written.id, count_read=False)).context.get("forked_from")
        if not isinstance(first, dict) or first.get("request") != request:
            raise _taken(session)
        end = first.get("until", 0)
        copies = {id: created for id, created in copies.items() if created <= end}
        written = replace(written, replayed=True)
    ids = {str(id): _fork_id(store, owner, session, str(id)) for id in copies}
    async for some in _batches(store, principal, origin, copies):
        async with anyio.create_task_group() as tasks:
            for crumb in some:
                tasks.start_soon(_copy, store, crumb, session, ids)
    return written


class _Survey:
    """The facts about a session that its fork needs. It does not hold the breadcrumbs, which may be large."""

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        self.state = _State(principal)
        self.copies: dict[UUID, int] = {}
        """The breadcrumbs to copy, each with the time of its creation."""
        self.size = 0
        """Bytes of the breadcrumbs to copy."""
        self.last: tuple[UUID, int] | None = None
        """The last breadcrumb, to copy or not, and the time of its creation."""

    def add(self, crumb: Breadcrumb, first: Breadcrumb | None) -> None:
        """Look at the next breadcrumb. `first`: its first version, where it may have set the state."""
        copied = _is_copied(crumb, self._principal)
        self.last = crumb.id, crumb.created
        if copied:
            self.copies[crumb.id] = crumb.created
            self.size += len(crumb.json)
        if first is not None:
            self.state.add(crumb, first, copied=copied)


async def _surveyed(store: Store, principal: Principal, session: str, until: SortKey | None) -> _Survey:
    """Look at the breadcrumbs of a session up to a place, the oldest first."""
    survey = _Survey(principal)
    async for crumb in store.walk(principal.owner_id, Query(session_id=session, sort="created_at")):
        if until is not None and SortKey(crumb.created, crumb.id.bytes) > until:
            break
        sets_state = crumb.schema_name in STATEFUL or crumb.version > 1
        first = await _first_version(store, crumb) if sets_state else None
        survey.add(_with_usable_state(crumb), first)
    return survey


async def _batches(
    store: Store, principal: Principal, session: str, copies: dict[UUID, int]
) -> AsyncIterator[list[Breadcrumb]]:
    """Read the breadcrumbs to copy again, a few at a time. A breadcrumb that became unreadable is left out."""
    batch: list[Breadcrumb] = []
    size, end = 0, max(copies.values(), default=0)
    async for crumb in store.walk(principal.owner_id, Query(session_id=session, sort="created_at")):
        if crumb.created > end:
            break
        if crumb.id not in copies or not _is_copied(crumb, principal):
            continue
        if batch and (len(batch) == _AT_ONCE or size + len(crumb.json) > _COPIED_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(_with_usable_state(crumb))
        size += len(crumb.json)
    if batch:
        yield batch


async def _copy(store: Store, crumb: Breadcrumb, session: str, ids: dict[str, UUID]) -> None:
    try:
        await store.restore(_copied(crumb, session, ids), [])
    except AlreadyExists:
        pass  # by a first try


def _with_usable_state(crumb: Breadcrumb) -> Breadcrumb:
    """Later versions may say anything in their place of the state: a new breadcrumb may not."""
    try:
        state_changes(crumb.schema_name or "", crumb.context)
    except InvalidInput:
        context = {name: value for name, value in crumb.context.items() if name != "state_delta"}
        return replace(crumb, json=orjson.dumps({**crumb.document, "context": context}))
    return crumb


async def _first_version(store: Store, crumb: Breadcrumb) -> Breadcrumb:
    """State is what the first version said: later ones are corrections of a text."""
    if crumb.version == 1:
        return crumb
    try:
        return await store.get_version(crumb.owner_id, crumb.id, 1)
    except NotFound:
        return crumb


def _record(session: str, origin: str, survey: _Survey, options: ForkOptions) -> BreadcrumbCreate:
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
        "user_id": user_id,  # null: it is no user's, whoever spoke first in the other
    }
    if title is not None:
        context["title"] = title
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
    """Return the id of the record of a fork, or of the copy of an original."""
    return derive_id_in_session(store, owner, session, "fork", str(owner), session, *original)


def _taken(session: str) -> AlreadyExists:
    return AlreadyExists(f"there is a session {session!r} already: choose another id, or leave it out")


def _is_copied(crumb: Breadcrumb, principal: Principal) -> bool:
    return (
        crumb.schema_name not in _LEFT_BEHIND
        and not any(tag.startswith("consumer:") for tag in crumb.tags)
        and crumb.max_reads == 0  # it was meant to be read so many times, and no more
        and policy.may_read(principal, crumb)
    )


def _copied(crumb: Breadcrumb, session: str, ids: dict[str, UUID]) -> Breadcrumb:
    document = dict(crumb.document)
    document["tags"] = [SESSION + session if tag.startswith(SESSION) else tag for tag in crumb.tags]
    context = {
        name: _renamed(value, ids) for name, value in crumb.context.items() if name not in _ABOUT_CONTEXTS
    }
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


def _renamed(value: Any, ids: dict[str, UUID]) -> Any:
    """What names one of the originals names its copy."""
    if isinstance(value, str):
        return str(ids[value]) if value in ids else value
    if isinstance(value, list):
        return [_renamed(item, ids) if isinstance(item, str) else item for item in value]
    return value


class _State:
    """The state that breadcrumbs lead to, one after the other.

    State from breadcrumbs that this token may not read stays behind, as they do.
    """

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        self._there: dict[str, tuple[bytes, StateReaders]] = {}
        self._copied: dict[str, bytes] = {}

    def add(self, crumb: Breadcrumb, first: Breadcrumb, *, copied: bool) -> None:
        """Apply the next breadcrumb. State is what its first version said."""
        principal = self._principal
        guard = StateReaders.of_crumb(first).joined(StateReaders.of_crumb(crumb))
        readable = policy.may_read_content(principal, first) and policy.may_read_content(principal, crumb)
        for name, value in _changes(first, credentials=readable).items():
            self._there[name] = (value if policy.may_read_state(principal, guard) else REMOVED, guard)
        if copied:
            self._copied |= _changes(crumb)

    def record(self) -> tuple[dict[str, Any], StateReaders]:
        """The context that gives the fork this state, together with the copies; and its readers."""
        there, copied = self._there, self._copied
        state = {name: value for name, (value, _) in there.items() if value != REMOVED}
        too_much = [name for name, value in copied.items() if value != REMOVED and name not in state]
        delta = {name: orjson.loads(value) for name, value in state.items() if value != copied.get(name)}
        record: dict[str, Any] = {"state_delta": {**delta, **dict.fromkeys(too_much)}}
        if nulls := [name for name, value in delta.items() if value is None]:
            record["null_is_a_value"] = nulls
        guard = reduce(StateReaders.joined, (there[name][1] for name in delta), StateReaders())
        if not guard.secret and strip_credentials(delta) is not delta:
            # As with the events that brought these credentials: what else there is of the state is for everybody.
            return {**record, ONLY_CREDENTIALS: True}, replace(guard, secret=True)
        return record, guard


def _changes(crumb: Breadcrumb, *, credentials: bool = True) -> dict[str, bytes]:
    context = crumb.context if credentials else strip_credentials(crumb.context)
    changes = state_changes(crumb.schema_name or "", context)
    return {name: value for name, value in changes.items() if not is_about_session(name)}
