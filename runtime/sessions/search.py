"""Search: finds sessions by their titles, and messages by their texts.

The search scans the sessions that a principal may see, last active first. One request reads a bounded number of
sessions and messages. If it stops before the end, it returns a cursor. The scan needs no index, so its results are
complete for any store.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.text import printable_line
from breadcrumbs.runtime.errors import InvalidCursor, InvalidInput, NotFound
from breadcrumbs.runtime.sessions.messages import PageRange, cursor_before, message_view, read_page
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.cursors import (
    decrypt_search_cursor,
    decrypt_session_cursor,
    encrypt_search_cursor,
    encrypt_session_cursor,
)
from breadcrumbs.runtime.store.session_facts import SessionFacts
from breadcrumbs.runtime.store.store import Store

MAX_SEARCH_LENGTH: Final = 200
"""Maximum number of characters of a search."""
_MAX_MESSAGES: Final = 2_000
"""Messages that one request reads at most, plus one page."""
_MAX_BYTES: Final = 8 << 20
"""Size of the messages that one request reads at most, plus one page. Long messages take the most time."""
_MAX_SESSION_PAGES: Final = 10
_SESSIONS_PER_PAGE: Final = 20
_MESSAGES_PER_PAGE: Final = 100
_PAGE_BYTES: Final = 1 << 20
_ROLES: Final = frozenset(("user", "assistant", "error"))
"""Roles of the messages that are searched. Inputs and outputs of tools are not."""
_CHARACTERS_BEFORE: Final = 40
_CHARACTERS_AFTER: Final = 120


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A search, and the part of its results to return."""

    words: tuple[str, ...]
    """Words in lower case. A text matches if it contains all of them."""
    limit: int
    """Maximum number of sessions, and of messages."""
    cursor: str | None = None
    user: str | None = None
    """Only sessions of this user."""


@dataclass(slots=True)
class SearchPage:
    """Page of results. A session is listed if its title or one of its messages matches."""

    sessions: list[SessionFacts] = field(default_factory=list)
    matches: list[dict[str, str]] = field(default_factory=list)
    """Matching messages, those of the last active session first, newest first."""
    next_cursor: str | None = None


class _Position(NamedTuple):
    """Point that a search has reached. The sessions before this one in the list are finished."""

    active: int
    session: str
    before: str | None = None
    """Cursor of the messages that are left in the session. None if the session is finished."""


def search_words(text: str) -> tuple[str, ...]:
    """Return the distinct words of a search. Raise `InvalidInput` if there are none or the text is too long."""
    if len(text) > MAX_SEARCH_LENGTH:
        raise InvalidInput(f"q has {len(text)} characters: use at most {MAX_SEARCH_LENGTH}", where="q")
    words = tuple(dict.fromkeys(printable_line(text).casefold().split()))
    if not words:
        raise InvalidInput("q is empty: send at least one word", where="q")
    return words


async def search(store: Store, principal: Principal, request: SearchRequest) -> SearchPage:
    """Return a page of the sessions and messages that contain all words."""
    return await _Search(store, principal, request).run()


class _Search:
    def __init__(self, store: Store, principal: Principal, request: SearchRequest) -> None:
        self._store = store
        self._principal = principal
        self._request = request
        self._sessions = Sessions(store)
        self._page = SearchPage()
        self._messages_left = _MAX_MESSAGES
        self._bytes_left = _MAX_BYTES
        self._reached: _Position | None = None
        """Point to continue at. None if the search is complete."""

    async def run(self) -> SearchPage:
        async for facts, before in self._walk():
            rest = await self._scan(facts, before)
            if rest is not None or self._is_spent:
                self._reached = _Position(facts.active, facts.id, rest)
                break
        if self._reached is not None:
            self._page.next_cursor = self._encode(self._reached)
        return self._page

    @property
    def _is_spent(self) -> bool:
        return self._has_read_enough or len(self._page.sessions) >= self._request.limit

    @property
    def _has_read_enough(self) -> bool:
        return self._messages_left <= 0 or self._bytes_left <= 0

    # Sessions

    async def _walk(self) -> AsyncIterator[tuple[SessionFacts, str | None]]:
        """Yield the sessions to search, each with the cursor of the messages that are left."""
        start = None if self._request.cursor is None else self._decode(self._request.cursor)
        only = self._principal.session_id
        first, before = (only, None) if start is None else (start.session, start.before)
        if first is not None and (start is None or before is not None):
            facts = await self._visible(first)
            if facts is not None:
                yield facts, before
        if only is None:
            async for listed in self._walk_list(start):
                yield listed, None

    async def _walk_list(self, start: _Position | None) -> AsyncIterator[SessionFacts]:
        """Yield the sessions of the list. Set `_reached` if the list has more than one request may read."""
        owner, secret = self._principal.owner_id, self._store.secret
        cursor = (
            None
            if start is None
            else encrypt_session_cursor(secret, owner, start.active, start.session.encode())
        )
        for _ in range(_MAX_SESSION_PAGES):
            page = await self._sessions.page(
                owner, limit=_SESSIONS_PER_PAGE, cursor=cursor, keep=self._filter()
            )
            for facts in page.items:
                yield facts
            cursor = page.next_cursor
            if cursor is None:
                return
            if len(page.items) < _SESSIONS_PER_PAGE:
                break  # the filter rejected most of many sessions
        if cursor is not None:
            active, name = decrypt_session_cursor(secret, owner, cursor)
            self._reached = _Position(active, name.decode())

    def _filter(self) -> Callable[[SessionFacts], bool] | None:
        is_filtered = self._request.user is not None or policy.needs_session_user(self._principal)
        return self._keeps if is_filtered else None

    def _keeps(self, facts: SessionFacts) -> bool:
        is_visible = policy.may_see_session(self._principal, facts.id, facts.user)
        return is_visible and self._request.user in (None, facts.user)

    async def _visible(self, session: str) -> SessionFacts | None:
        """Return a session, or None if it was deleted or the principal may not see it."""
        try:
            facts = await self._sessions.get(self._principal.owner_id, session, first_message=True)
        except NotFound:
            return None
        return facts if self._keeps(facts) else None

    # Messages

    async def _scan(self, facts: SessionFacts, before: str | None) -> str | None:
        """Search a session, newest message first. Return the cursor of the rest, or None if it is finished."""
        is_listed = False

        def list_session() -> None:
            nonlocal is_listed
            if not is_listed:
                self._page.sessions.append(facts)
            is_listed = True

        if before is None and self._matches(facts.about.title or ""):
            list_session()
        while True:
            page = await read_page(
                self._store,
                self._principal,
                facts.id,
                PageRange(limit=_MESSAGES_PER_PAGE, before=before, max_bytes=_PAGE_BYTES),
            )
            self._messages_left -= max(len(page.messages), 1)
            self._bytes_left -= sum(len(message.json) for message in page.messages)
            for message in reversed(page.messages):
                if (found := self._match(facts.id, message)) is None:
                    continue
                list_session()
                self._page.matches.append(found)
                if len(self._page.matches) >= self._request.limit:
                    return cursor_before(self._store, self._principal, facts.id, message)
            if page.before is None or self._has_read_enough:
                return page.before
            before = page.before

    def _match(self, session: str, message: Breadcrumb) -> dict[str, str] | None:
        view: dict[str, Any] = message_view(message.without_parsed_json(), self._principal)
        text = view.get("text", "")
        if view["role"] not in _ROLES or not self._matches(text):
            return None
        return {
            "session_id": session,
            "message_id": view["id"],
            "role": view["role"],
            "created_at": view["created_at"],
            "excerpt": _excerpt(text, self._request.words[0]),
        }

    def _matches(self, text: str) -> bool:
        folded = text.casefold()
        return all(word in folded for word in self._request.words)

    # Cursors

    def _encode(self, position: _Position) -> str:
        payload = orjson.dumps([self._digest(), *position])
        return encrypt_search_cursor(self._store.secret, self._principal.owner_id, payload)

    def _decode(self, cursor: str) -> _Position:
        payload = decrypt_search_cursor(self._store.secret, self._principal.owner_id, cursor)
        digest, *position = orjson.loads(payload)
        if digest != self._digest():
            raise InvalidCursor(
                "the cursor belongs to another search: use it with the same q and user_id", where="cursor"
            )
        return _Position(*position)

    def _digest(self) -> str:
        """Return a digest of the search and the principal's session, so that a cursor fits only these."""
        parts = [sorted(self._request.words), self._request.user, self._principal.session_id]
        return blake2b(orjson.dumps(parts), digest_size=8).hexdigest()


def _excerpt(text: str, word: str) -> str:
    """Return the part of a text around a word, as one line."""
    found = re.search(re.escape(word), text, re.IGNORECASE)
    # Some characters have another length in lower case. The excerpt then starts at the beginning.
    start = 0 if found is None else max(0, found.start() - _CHARACTERS_BEFORE)
    end = (start if found is None else found.start()) + len(word) + _CHARACTERS_AFTER
    return ("…" if start else "") + printable_line(text[start:end]) + ("…" if end < len(text) else "")
