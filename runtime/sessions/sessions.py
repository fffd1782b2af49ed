"""Sessions: creation, access, lists and deletion. A session exists as soon as a breadcrumb is written into it.

The rules are here: principals, visibility, tokens of deleted sessions. `runtime/store/session_store.py` reads the data.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import anyio
import orjson

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.access.redaction import visible_state
from breadcrumbs.runtime.breadcrumb.breadcrumb import LARGE_BYTES, Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION, check_session_id, session_of, user_tags
from breadcrumbs.runtime.errors import AnotherSession, NotFound, StoreUnavailable
from breadcrumbs.runtime.sessions.messages import text_of
from breadcrumbs.runtime.store.cursors import decrypt_session_cursor, encrypt_session_cursor
from breadcrumbs.runtime.store.lookup import WALK_BYTES
from breadcrumbs.runtime.store.options import CreateOptions, SessionVersion
from breadcrumbs.runtime.store.session_deletion import (
    bury_session,
    close_session,
    deletion_time,
    list_closed_sessions,
)
from breadcrumbs.runtime.store.session_facts import FactsRequest, SessionFacts
from breadcrumbs.runtime.store.session_store import Belonging, SessionStore
from breadcrumbs.runtime.store.state import STATE_HOLDER, state_changes
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.written import Written
from breadcrumbs.runtime.workers.dead_letters import DeadLetters

_AT_ONCE: Final = 100

_MOST_LOOKS: Final = 50
"""Attempts of a write whose session ends or begins meanwhile."""

_MOST_SEEN: Final = 2_000
"""A page ends early, with a cursor, after so many sessions: a filter may reject nearly all of them."""

_LOADED_AT_ONCE: Final = 32
"""Sessions of a list that are read in one batch."""
_BEGINNING: Final = 400
"""Characters of a large message that a list keeps."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that exists, with the part of its state that one reader may see."""

    created: int
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SessionPage:
    items: list[SessionFacts]
    next_cursor: str | None


class Sessions:
    """The sessions of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stored = SessionStore(store)

    async def last_write_time(self, owner: UUID, session: str) -> int:
        """Return the newest time that the clock of a session's lane has given to a write."""
        return await self._stored.last_write_time(owner, session)

    async def creation_times(self, owner: UUID, sessions: list[str]) -> list[int | None]:
        """Return when sessions began, in one round trip; None for a session that does not exist."""
        return await self._stored.creation_times(owner, sessions)

    async def open_sessions(self, reader: Principal, sessions: list[str]) -> list[OpenSession | None]:
        """Return sessions with their state, in one round trip; None for a session that does not exist."""
        return [
            None if stored is None else OpenSession(stored.created, visible_state(reader, stored.held))
            for stored in await self._stored.states(reader.owner_id, sessions)
        ]

    async def get(self, owner: UUID, session: str, *, first_message: bool = False) -> SessionFacts:
        """Return the facts of a session; `first_message`: with the first message of a user in it."""
        check_session_id(session)
        (facts,) = await self._stored.facts(FactsRequest(owner, [session], first_message))
        if facts is None:
            raise NotFound(f"there is no session {session!r}")
        return facts

    async def belonging(self, owner: UUID, session: str) -> Belonging | None:
        """Return the user of a session, in one round trip except for old sessions; None: it does not exist."""
        check_session_id(session)
        return await self._stored.belonging(owner, session)

    async def last_deletion(self, owner: UUID, session: str) -> int | None:
        """Return the time of the last deletion of a session of this name, or None if none is known.

        A session of this name may exist now. If the name is not recorded but records were dropped, this is the time of
        the newest dropped record, so a caller that compares times fails closed. In microseconds, by the clock of the
        session's lane.
        """
        check_session_id(session)
        return await self._stored.last_deletion(owner, session)

    async def check_token(self, principal: Principal, *, missing_is_fine: bool = False) -> None:
        """Check that the session of a narrowed token was not deleted since the token was issued.

        `missing_is_fine`: a read of a session that does not exist shows nothing. A write would begin the next one.
        """
        if principal.session_id is None:
            return
        held = await self.belonging(principal.owner_id, principal.session_id)
        if held is not None or not missing_is_fine:
            await self._check_not_deleted(principal, principal.session_id, held)

    async def _check_not_deleted(self, principal: Principal, session: str, held: Belonging | None) -> None:
        deleted = (
            await self.last_deletion(principal.owner_id, session) if held is None else held.deleted_before
        )
        policy.check_session_not_deleted(principal, deleted or 0)

    def create_as(
        self,
        principal: Principal,
        new: BreadcrumbCreate,
        *,
        idempotency_key: str | None = None,
        session_version: SessionVersion = None,
    ) -> Awaitable[Written]:
        """Write a breadcrumb of a principal into a session that exists for it, or begin a session with it.

        A context of another session, made for the new message, would show a narrowed token what others said there.
        `session_version`: see `CreateOptions`.
        """

        def write(began: int | None) -> Awaitable[Written]:
            return self._store.create(
                principal.owner_id,
                new,
                by=principal.agent_id,
                idempotency_key=idempotency_key,
                options=CreateOptions(session_version=session_version, session_began=began),
            )

        # Not `async` itself: this is the hot path, and each coroutine in it costs a step per resumption.
        session = session_of(new.tags) or new.context.get("session_id")
        # A narrowed token writes into the session that was checked, or into none. `BreadcrumbCreate` checks the name.
        if not principal.is_narrowed or not isinstance(session, str):
            return write(None)
        return self._write_checked(principal, session, session_version, write)

    async def _write_checked(
        self,
        principal: Principal,
        session: str,
        session_version: SessionVersion,
        write: Callable[[int | None], Awaitable[Written]],
    ) -> Written:
        """Write into the session that the principal may see, or begin one that it may begin."""
        for _ in range(_MOST_LOOKS):
            held = await self.belonging(principal.owner_id, session)
            if held is None:
                visible = session_version is None and policy.may_begin_session(principal, session)
            else:
                visible = policy.may_see_session(principal, session, held.user)
            if not visible:
                raise NotFound(f"there is no session {session!r}")
            if principal.session_id is not None:
                await self._check_not_deleted(principal, session, held)
            try:
                return await write(0 if held is None else held.created)
            except AnotherSession:
                continue  # the session ended or began meanwhile: check the new one
        raise StoreUnavailable(f"session {session!r} begins and ends all the time: try again")

    async def state_for(self, reader: Principal, session: str) -> dict[str, Any]:
        """Return what a principal may read of a session's state; empty if there is none."""
        return visible_state(reader, await self._stored.state(reader.owner_id, session))

    async def check_room(self, owner: UUID, session: str, schema: str, context: dict[str, Any]) -> None:
        """Raise `StateTooLarge` if a breadcrumb would make a state too large. The write itself decides in the end."""
        await self._stored.check_state_size(owner, session, state_changes(schema, context))

    async def earlier_session_until(self, principal: Principal) -> int:
        """Time up to which events may belong to an earlier session with the name of the token's session; 0: none."""
        owner, session = principal.owner_id, principal.session_id
        if session is None:
            return 0
        held = await self.belonging(owner, session)
        if held is not None:
            # The breadcrumbs of a deleted session are removed after the deletion was noted: until the next one begins.
            return max(held.deleted_before, held.created - 1) if held.deleted_before else 0
        deleted = await self.last_deletion(owner, session) or 0
        # A token from before the deletion is for the deleted session: it may see that session's last events.
        return principal.issued if principal.issued > deleted > 0 else 0

    async def page(
        self,
        owner: UUID,
        *,
        limit: int = 50,
        cursor: str | None = None,
        keep: Callable[[SessionFacts], bool] | None = None,
    ) -> SessionPage:
        """Return sessions without their state, the last active one first. `keep` selects some of them.

        `next_cursor` is None exactly if there are no more sessions.
        """
        secret = self._store.secret
        last = None if cursor is None else decrypt_session_cursor(secret, owner, cursor)
        found: list[SessionFacts] = []
        seen = 0
        while True:
            # A filter may reject most sessions: fetch at least 100 at a time.
            wanted = limit + 1 - len(found) if keep is None else max(_AT_ONCE, limit + 1 - len(found))
            page = await self._stored.names_after(owner, last, wanted)
            seen += len(page.names)
            listed = [entry for entry in page.names if not entry[1].startswith(STATE_HOLDER.encode())]
            all_facts = await self._listed_facts(owner, [name.decode() for _, name in listed])
            for entry, facts in zip(listed, all_facts, strict=True):
                if facts is not None and (keep is None or keep(facts)):
                    if len(found) == limit and last is not None:
                        return SessionPage(found, encrypt_session_cursor(secret, owner, *last))
                    found.append(facts)
                last = entry
            if not page.has_more:
                return SessionPage(found, None)
            last = page.names[-1]
            if seen >= _MOST_SEEN:
                return SessionPage(found, encrypt_session_cursor(secret, owner, *last))

    async def delete(self, owner: UUID, session: str, *, expected_version: int | None = None) -> int:
        """Delete a session with everything in it, and return the number of breadcrumbs removed.

        Nothing can be written into it from the beginning of the deletion. If the process dies, the housekeeping or a
        repeated request finishes the deletion.
        """
        check_session_id(session)
        held = await self.belonging(owner, session)
        # A token that is narrowed to a user sees only events with that user's tag.
        tags = [SESSION + session, *user_tags(None if held is None else held.user)]
        deletion = await close_session(
            self._store, owner, session, tags=tags, expected_version=expected_version
        )
        return await self._clear(owner, session, deletion)

    async def finish_deletions(self, lane: int) -> int:
        """Continue the deletions of a lane whose process died. Safe to run in several processes at once."""
        closed = await list_closed_sessions(self._store, lane)
        for one in closed:
            deletion = await deletion_time(self._store, one)
            if deletion is not None:
                await self._clear(one.owner, one.session, deletion)
        return len(closed)

    async def _clear(self, owner: UUID, session: str, deletion: int) -> int:
        """Remove everything from a session whose deletion began then, and return the number of breadcrumbs removed.

        Several processes may do this at once. When one of them has ended the deletion, the others stop: the name may be
        used again.
        """
        removed, ended = await self._remove_breadcrumbs(owner, session, deletion)
        if ended:
            return removed
        letters = DeadLetters(self._store)
        for letter in await letters.all(owner, session=session):
            if letter.event <= deletion:
                try:
                    await letters.discard(letter)
                except NotFound:
                    pass  # another process deletes the same session
        await bury_session(self._store, owner, session, deletion)
        return removed

    async def _remove_breadcrumbs(self, owner: UUID, session: str, deletion: int) -> tuple[int, bool]:
        """Remove all breadcrumbs; return their number, and whether the deletion was ended by another process."""
        store, removed = self._store, list[bool]()

        async def delete(crumb: Breadcrumb) -> None:
            removed.append(await store.delete_with_session(session, crumb, deletion))

        query = Query(session_id=session, limit=_AT_ONCE, max_bytes=WALK_BYTES, without_contexts=True)
        # Repeated until the list is empty: writes that were under way when the session closed have landed meanwhile.
        # Expired breadcrumbs are removed too: when swept later, they would count for the next session of this name.
        while page := (await store.list(owner, query, with_expired=True)).items:
            async with anyio.create_task_group() as tasks:
                for crumb in page:
                    tasks.start_soon(delete, crumb)
            if not all(removed):
                return removed.count(True), True
        return len(removed), False

    async def _listed_facts(self, owner: UUID, sessions: list[str]) -> list[SessionFacts | None]:
        """Return the facts that a list shows. First messages may be large, so few are loaded at a time."""
        found: list[SessionFacts | None] = []
        for start in range(0, len(sessions), _LOADED_AT_ONCE):
            group = sessions[start : start + _LOADED_AT_ONCE]
            request = FactsRequest(owner, group, first_message=True, with_state=False)
            for facts in await self._stored.facts(request):
                message = None if facts is None else facts.first_message
                if facts is not None and message is not None and len(message.json) > LARGE_BYTES:
                    facts = replace(facts, first_message=_beginning_of(message))
                found.append(facts)
        return found


def _beginning_of(message: Breadcrumb) -> Breadcrumb:
    """Return a large message with only the beginning of its text in its context."""
    text = text_of(message)[:_BEGINNING]
    return replace(message, json=orjson.dumps({**message.document, "context": {"message": text}}))
