"""Sessions: creation, access, lists and deletion.

A session exists as soon as a breadcrumb is written into it. This module applies the access rules: principals,
visibility, and tokens of deleted sessions. `runtime/store/session_store.py` reads the data.
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
from breadcrumbs.runtime.errors import AnotherSession, NotFound, StoreUnavailable, Unauthenticated
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

_ANY_VERSION: Final = CreateOptions()
_BATCH_SIZE: Final = 100
"""Sessions or breadcrumbs that are fetched at a time."""

_MAX_ATTEMPTS: Final = 50
"""Maximum number of attempts at a write whose session is created or deleted at the same time."""

_MAX_EXAMINED: Final = 2_000
"""Maximum number of sessions to examine for one page. A filter can reject nearly all, so a page then ends early with a
cursor."""

_FACTS_BATCH: Final = 32
"""Sessions of a list that are read in one batch."""
_PREVIEW_CHARACTERS: Final = 400
"""Characters of a large message that a list keeps."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Existing session, with the part of its state that a principal may read."""

    created: int
    """Time of creation, in microseconds."""
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Page of a list of sessions."""

    items: list[SessionFacts]
    next_cursor: str | None


class Sessions:
    """Sessions of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stored = SessionStore(store)

    async def last_write_time(self, owner: UUID, session: str) -> int:
        """Return the time (microseconds) of the last write in a session's lane."""
        return await self._stored.last_write_time(owner, session)

    async def creation_times(self, owner: UUID, sessions: list[str]) -> list[int | None]:
        """Return the creation times of sessions in one round trip.

        An entry is None if the session does not exist.
        """
        return await self._stored.creation_times(owner, sessions)

    async def open_sessions(self, reader: Principal, sessions: list[str]) -> list[OpenSession | None]:
        """Return sessions with the state that `reader` may read, in one round trip.

        An entry is None if the session does not exist.
        """
        return [
            None if stored is None else OpenSession(stored.created, visible_state(reader, stored.raw_state))
            for stored in await self._stored.states(reader.owner_id, sessions)
        ]

    async def get(self, owner: UUID, session: str, *, first_message: bool = False) -> SessionFacts:
        """Return the facts of a session.

        `first_message` also reads the first message of a user. Raise `NotFound` if the session does not exist.
        """
        check_session_id(session)
        (facts,) = await self._stored.facts(FactsRequest(owner, [session], first_message))
        if facts is None:
            raise NotFound(f"session {session!r} not found")
        return facts

    async def belonging(self, owner: UUID, session: str) -> Belonging | None:
        """Return the user and the times of a session.

        Return None if the session does not exist. This takes one round trip. Sessions of older versions, without a
        stored user, take up to three.
        """
        check_session_id(session)
        return await self._stored.belonging(owner, session)

    async def last_deletion(self, owner: UUID, session: str) -> int | None:
        """Return the time of the last deletion of a session of this name.

        The time is in microseconds, by the clock of the session's lane. Return None if no deletion is recorded. A new
        session of this name can exist now. If there is no record of this name but older records were dropped, return
        the time of the newest dropped record. A caller that compares times then fails closed.
        """
        check_session_id(session)
        return await self._stored.last_deletion(owner, session)

    async def check_token(self, principal: Principal, *, missing_is_fine: bool = False) -> None:
        """Check that the session of a narrowed token was not deleted.

        Raise `Unauthenticated` if it was deleted after the token was issued. `missing_is_fine` skips the check if the
        session does not exist. It is for the end of a write, which can be the deletion of the session itself.
        """
        if principal.session_id is None:
            return
        existing = await self.belonging(principal.owner_id, principal.session_id)
        if existing is not None or not missing_is_fine:
            await self._check_not_deleted(principal, principal.session_id, existing)

    async def is_new_for(self, principal: Principal, session: str) -> bool:
        """Return whether a token is narrowed to a session that does not exist yet and that it may create.

        False if the session was deleted after the token was issued.
        """
        if principal.session_id != session or not policy.may_begin_session(principal, session):
            return False
        try:
            await self.check_token(principal)
        except Unauthenticated:
            return False
        return await self.belonging(principal.owner_id, session) is None

    async def _check_not_deleted(
        self, principal: Principal, session: str, existing: Belonging | None
    ) -> None:
        deleted = (
            await self.last_deletion(principal.owner_id, session)
            if existing is None
            else existing.deleted_before
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
        """Write a breadcrumb into a session that the principal may see, or create the session.

        Without this check, a narrowed token could write into another session and read its messages in the context that
        is built for the answer. For `session_version`, see `CreateOptions`. Raise `NotFound` if the principal may not
        see the session.
        """

        def write(options: CreateOptions) -> Awaitable[Written]:
            return self._store.create(
                principal.owner_id,
                new,
                by=principal.agent_id,
                idempotency_key=idempotency_key,
                options=options,
            )

        # This method is not `async`, because it is on the hot path and each coroutine adds a step per resumption.
        options = _ANY_VERSION if session_version is None else CreateOptions(session_version=session_version)
        if not principal.is_narrowed:
            return write(options)
        # A narrowed token writes into the session that was checked, or into no session. `BreadcrumbCreate` validates
        # the name.
        session = session_of(new.tags) or new.context.get("session_id")
        if not isinstance(session, str):
            return write(options)
        return self._write_checked(principal, session, options, write)

    async def _write_checked(
        self,
        principal: Principal,
        session: str,
        options: CreateOptions,
        write: Callable[[CreateOptions], Awaitable[Written]],
    ) -> Written:
        """Write into a session that the principal may see, or create one that it may create."""
        for _ in range(_MAX_ATTEMPTS):
            existing = await self.belonging(principal.owner_id, session)
            if existing is None:
                visible = options.session_version is None and policy.may_begin_session(principal, session)
            else:
                visible = policy.may_see_session(principal, session, existing.user)
            if not visible:
                raise NotFound(f"session {session!r} not found")
            if principal.session_id is not None:
                await self._check_not_deleted(principal, session, existing)
            try:
                return await write(
                    replace(options, session_began=0 if existing is None else existing.created)
                )
            except AnotherSession:
                continue  # the session was created or deleted after the check
        raise StoreUnavailable(f"session {session!r} is created and deleted repeatedly: try again")

    async def state_for(self, reader: Principal, session: str) -> dict[str, Any]:
        """Return the part of a session's state that a principal may read."""
        return visible_state(reader, await self._stored.state(reader.owner_id, session))

    async def check_room(self, owner: UUID, session: str, schema: str, context: dict[str, Any]) -> None:
        """Raise `StateTooLarge` if a breadcrumb would exceed the size limit of the state.

        This is an early check. The write itself checks the limit again.
        """
        await self._stored.check_state_size(owner, session, state_changes(schema, context))

    async def earlier_session_until(self, principal: Principal) -> int:
        """Return the time up to which events can belong to an earlier session.

        The earlier session had the same name as the session of the token. The token may not see its events. Return 0 if
        the token may see all events of this name, or if it is not limited to one session.
        """
        owner, session = principal.owner_id, principal.session_id
        if session is None:
            return 0
        existing = await self.belonging(owner, session)
        if existing is not None:
            # The breadcrumbs of a deleted session are removed after its deletion was recorded. The events of these
            # removals can occur until the next session of this name begins.
            return max(existing.deleted_before, existing.created - 1) if existing.deleted_before else 0
        deleted = await self.last_deletion(owner, session) or 0
        # A token issued before the deletion belongs to the deleted session, and may see its last events.
        return principal.issued if principal.issued > deleted > 0 else 0

    async def page(
        self,
        owner: UUID,
        *,
        limit: int = 50,
        cursor: str | None = None,
        keep: Callable[[SessionFacts], bool] | None = None,
        user: str | None = None,
    ) -> SessionPage:
        """Return a page of sessions without their state, last active first.

        `keep` filters them. `user`: the only user whose sessions `keep` can accept, so that the others need not be
        read. `next_cursor` is None if and only if there are no more sessions.
        """
        if user is not None and not await self._stored.update_user_indexes(owner):
            user = None
        secret = self._store.secret
        last = None if cursor is None else decrypt_session_cursor(secret, owner, cursor)
        found: list[SessionFacts] = []
        examined = 0
        while True:
            # A filter can reject most sessions, so fetch at least 100 at a time.
            rejects_few = keep is None or user is not None
            wanted = limit + 1 - len(found) if rejects_few else max(_BATCH_SIZE, limit + 1 - len(found))
            page = await self._stored.names_after(owner, last, wanted, user=user)
            examined += len(page.names)
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
            if examined >= _MAX_EXAMINED:
                return SessionPage(found, encrypt_session_cursor(secret, owner, *last))

    async def delete(self, owner: UUID, session: str, *, expected_version: int | None = None) -> int:
        """Delete a session and its breadcrumbs. Return the number of breadcrumbs removed.

        Writes into the session are refused from the start of the deletion. If the process dies, the housekeeping or a
        repeated request finishes the deletion.
        """
        check_session_id(session)
        existing = await self.belonging(owner, session)
        # The event needs the user's tag, because a token that is limited to a user sees only events with that tag.
        tags = [SESSION + session, *user_tags(None if existing is None else existing.user)]
        deletion = await close_session(
            self._store, owner, session, tags=tags, expected_version=expected_version
        )
        return await self._clear(owner, session, deletion)

    async def finish_deletions(self, lane: int) -> int:
        """Finish the interrupted deletions of a lane, and return their number.

        A deletion is interrupted if its process died. Several processes can run this at the same time.
        """
        closed = await list_closed_sessions(self._store, lane)
        for one in closed:
            deletion = await deletion_time(self._store, one)
            if deletion is not None:
                await self._clear(one.owner, one.session, deletion)
        return len(closed)

    async def _clear(self, owner: UUID, session: str, deletion: int) -> int:
        """Remove everything from a session whose deletion began at `deletion`.

        Return the number of breadcrumbs removed. Several processes can do this at the same time. When one of them has
        finished the deletion, the others stop, because a new session of this name can exist.
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
                    pass  # discarded by another process that deletes the same session
        await bury_session(self._store, owner, session, deletion)
        return removed

    async def _remove_breadcrumbs(self, owner: UUID, session: str, deletion: int) -> tuple[int, bool]:
        """Remove all breadcrumbs. Return their number, and whether another process finished the deletion."""
        store, removed = self._store, list[bool]()

        async def delete(crumb: Breadcrumb) -> None:
            removed.append(await store.delete_with_session(session, crumb, deletion))

        query = Query(session_id=session, limit=_BATCH_SIZE, max_bytes=WALK_BYTES, without_contexts=True)
        # Repeat until the list is empty, because writes that were in flight when the session closed can still arrive.
        # Expired breadcrumbs are removed, too. If they were purged later, they would count for the next session of
        # this name.
        while page := (await store.list(owner, query, with_expired=True)).items:
            async with anyio.create_task_group() as tasks:
                for crumb in page:
                    tasks.start_soon(delete, crumb)
            if not all(removed):
                return removed.count(True), True
        return len(removed), False

    async def _listed_facts(self, owner: UUID, sessions: list[str]) -> list[SessionFacts | None]:
        """Return the facts for a list of sessions.

        First messages can be large, so they are read in small batches.
        """
        found: list[SessionFacts | None] = []
        for start in range(0, len(sessions), _FACTS_BATCH):
            batch = sessions[start : start + _FACTS_BATCH]
            request = FactsRequest(owner, batch, first_message=True, with_state=False)
            for facts in await self._stored.facts(request):
                message = None if facts is None else facts.first_message
                if facts is not None and message is not None and len(message.json) > LARGE_BYTES:
                    facts = replace(facts, first_message=_shorten_message(message))
                found.append(facts)
        return found


def _shorten_message(message: Breadcrumb) -> Breadcrumb:
    """Return a copy of a message with only the beginning of its text."""
    text = text_of(message)[:_PREVIEW_CHARACTERS]
    return replace(message, json=orjson.dumps({**message.document, "context": {"message": text}}))
