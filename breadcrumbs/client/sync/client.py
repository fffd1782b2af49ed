# Generated from breadcrumbs/client/aio/client.py by `python -m tests.support.sync_client`. Do not edit.
"""The client of a server."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Self, Unpack
from uuid import uuid4

from breadcrumbs.client.http import ServerAccess
from breadcrumbs.client.options import EventOptions, Listing, Message, TokenRequest
from breadcrumbs.client.replies import Reply, parse_token
from breadcrumbs.client.requests import (
    Payload,
    breadcrumb_path,
    create_request,
    create_session_request,
    custom_request,
    delete_request,
    get_request,
    message_request,
    token_request,
    update_request,
)
from breadcrumbs.client.sync.connection import ServerConnection
from breadcrumbs.client.sync.events import follow_events
from breadcrumbs.client.sync.listing import list_breadcrumbs, list_sessions, list_versions
from breadcrumbs.client.sync.session import Session
from breadcrumbs.client.values import (
    Breadcrumb,
    Event,
    SessionInfo,
    Token,
    Version,
    Written,
    breadcrumb_of,
    session_info_of,
)


class Client:
    """A Breadcrumbs server.

        with Client() as client:
            answer = client.session("demo").say("Hello")

    Missing arguments come from `CRUMB_URL`, `CRUMB_TOKEN` and `CRUMB_API_KEY`; the default is a server on this
    machine. Reads, and writes with an idempotency key (`create`, `post` and `say` always send one), are retried
    when the connection breaks or the server is unavailable. Nothing is ever written twice.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        api_key: str | None = None,
        timeout: float = 30.0,
        retries: int = 5,
    ) -> None:
        server = ServerAccess.resolve(url, token, api_key)
        self._connection = ServerConnection(server, timeout=timeout, retries=retries)

    @property
    def url(self) -> str:
        return self._connection.url

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Breadcrumbs

    def create(
        self,
        schema_name: str | None = None,
        context: Mapping[str, Any] | None = None,
        *,
        title: str = "",
        tags: Iterable[str] = (),
        session: str | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Written:
        """Write a new breadcrumb. `fields` are those of the HTTP interface: `ttl`, `visibility`, …

        The same `idempotency_key` a second time returns the first result again. Without one, a new key is made.
        """
        document = {"schema_name": schema_name, "title": title, "tags": tags, "context": context, **fields}
        request = create_request(document, session=session, idempotency_key=idempotency_key)
        return self._connection.write(request)

    def post(self, text: str, session: str | None = None, **message: Unpack[Message]) -> Written:
        """Post a user's message without waiting. `client.session(…).say(text)` waits for the answer."""
        return self._connection.write(message_request(text, session, message))

    def get(self, id: str) -> Breadcrumb:
        """Return a breadcrumb as a model sees it, its hints applied."""
        return self._connection.fetch(get_request(breadcrumb_path(id)), breadcrumb_of)

    def get_full(self, id: str) -> Breadcrumb:
        """Return a breadcrumb as it was written. Owner, TTL and the rest are in its `document`."""
        return self._connection.fetch(get_request(f"{breadcrumb_path(id)}/full"), breadcrumb_of)

    def update(
        self, id: str, *, expected_version: int | None = None, merge_context: bool = False, **fields: Any
    ) -> Written:
        """Replace fields: `title`, `tags`, `context`, … With `merge_context` the context is merged (RFC 7396).

        Raises `VersionMismatch` if `expected_version` is no longer the newest. Without one the last write wins.
        """
        request = update_request(id, fields, expected_version=expected_version, merge_context=merge_context)
        return self._connection.write(request)

    def delete(self, id: str, *, expected_version: int | None = None) -> None:
        """Delete a breadcrumb with all its versions."""
        self._connection.perform(delete_request(breadcrumb_path(id), expected_version))

    def history(self, id: str) -> tuple[Version, ...]:
        """Return all versions, the newest first."""
        return list_versions(self._connection, id)

    def list(self, **wanted: Unpack[Listing]) -> Generator[Breadcrumb, None, None]:
        """Yield breadcrumbs that match all filters, the newest first, over as many pages as it takes."""
        return list_breadcrumbs(self._connection, **wanted)

    def events(self, **wanted: Unpack[EventOptions]) -> Generator[Event, None, None]:
        """Yield events from now on, or since an event, without end. Reconnects and misses nothing.

        Besides writes there are `Delta`s (pieces of answers, which may get lost) and, after an absence that was
        too long, a `Gap`.
        """
        return follow_events(self._connection, wanted)

    # Sessions

    def session(self, id: str | None = None) -> Session:
        """Return a session, whether it exists or not. Without an id, a new one."""
        return Session(self._connection, id or str(uuid4()))

    def sessions(
        self, *, user_id: str | None = None, limit: int | None = None
    ) -> Generator[SessionInfo, None, None]:
        """Yield the sessions, the last active one first. With a `user_id`, those of one user."""
        return list_sessions(self._connection, user_id, limit)

    def create_session(
        self,
        id: str | None = None,
        *,
        title: str | None = None,
        user_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Session:
        """Create a session with a title, a user, a state. Otherwise not needed: the first message creates it."""
        fields = {"id": id, "title": title, "user_id": user_id, "state": state}
        request = create_session_request(fields, idempotency_key)
        return self.session((self._connection.fetch(request, session_info_of)).id)

    # Everything else

    def token(self, **wanted: Unpack[TokenRequest]) -> Token:
        """Return a token for somebody else, narrowed to a session or a user if asked for."""
        return self._connection.fetch(token_request(wanted), parse_token)

    def request(  # noqa: PLR0913 - the same keywords as httpx
        self,
        method: str,
        path: str,
        *,
        params: Sequence[tuple[str, str]] | Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        idempotent: bool | None = None,
    ) -> Reply:
        """Send a request to any path of the HTTP interface, with the credentials of this client.

        Raises the error of a refused request, like every other method. An `idempotent` request is retried;
        by default that is one with a safe method or with an `idempotency-key` header. A successful reply must be
        JSON unless `headers` has an `accept` of its own.
        """
        payload = Payload(json, content, headers)
        return self._connection.perform(custom_request(method, path, params, payload, idempotent))
