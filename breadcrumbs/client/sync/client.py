# Generated from breadcrumbs/client/aio/client.py by `python -m tests.support.sync_client`. Do not edit.
"""The client: breadcrumbs, events, sessions and tokens of one server."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Self, Unpack
from uuid import uuid4

from breadcrumbs.client.feedback import (
    Feedback,
    FeedbackCounts,
    FeedbackFilters,
    FeedbackListing,
    Rating,
    count_request,
    counts_of,
    feedback_of,
    feedback_path,
    own_feedback_of,
    rate_request,
    withdraw_request,
)
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
from breadcrumbs.client.sync.listing import list_breadcrumbs, list_feedback, list_sessions, list_versions
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
    """Client of a Breadcrumbs server.

        with Client() as client:
            answer = client.session("demo").say("Hello")

    Missing arguments are read from `CRUMB_URL`, `CRUMB_TOKEN` and `CRUMB_API_KEY`. The default URL is a server on
    this machine. Reads, and writes with an idempotency key, are retried if the connection breaks or the server is
    unavailable. Methods that create breadcrumbs or sessions always send a key, so a retry never writes twice.

    `timeout` is the httpx timeout of each attempt, in seconds. `retries` is the number of attempts after the first.
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
        """The address of the server, without a slash at the end."""
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
        """Create a breadcrumb. `fields` are further fields of the HTTP API: `ttl`, `visibility`, …

        A second call with the same `idempotency_key` returns the result of the first. By default a new key is
        generated.
        """
        document = {"schema_name": schema_name, "title": title, "tags": tags, "context": context, **fields}
        request = create_request(document, session=session, idempotency_key=idempotency_key)
        return self._connection.write(request)

    def post(self, text: str, session: str | None = None, **message: Unpack[Message]) -> Written:
        """Post a user's message without waiting for the answer. `client.session(…).say(text)` waits."""
        return self._connection.write(message_request(text, session, message))

    def get(self, id: str) -> Breadcrumb:
        """Return a breadcrumb as models see it, with its hints applied."""
        return self._connection.fetch(get_request(breadcrumb_path(id)), breadcrumb_of)

    def get_full(self, id: str) -> Breadcrumb:
        """Return a breadcrumb as it is stored. Its `document` also has owner, visibility and TTL."""
        return self._connection.fetch(get_request(f"{breadcrumb_path(id)}/full"), breadcrumb_of)

    def update(
        self, id: str, *, expected_version: int | None = None, merge_context: bool = False, **fields: Any
    ) -> Written:
        """Replace fields such as `title`, `tags` and `context`.

        With `merge_context` the context is merged instead (RFC 7396). Raises `VersionMismatch` if
        `expected_version` is not the current version. Without it, the last write wins.
        """
        request = update_request(id, fields, expected_version=expected_version, merge_context=merge_context)
        return self._connection.write(request)

    def delete(self, id: str, *, expected_version: int | None = None) -> None:
        """Delete a breadcrumb and all its versions.

        Raises `VersionMismatch` if `expected_version` is not the current version.
        """
        self._connection.perform(delete_request(breadcrumb_path(id), expected_version))

    def history(self, id: str) -> tuple[Version, ...]:
        """Return all versions of a breadcrumb, newest first."""
        return list_versions(self._connection, id)

    def list(self, **wanted: Unpack[Listing]) -> Generator[Breadcrumb, None, None]:
        """Yield all breadcrumbs that match the filters, newest first by default."""
        return list_breadcrumbs(self._connection, **wanted)

    def events(self, **wanted: Unpack[EventOptions]) -> Generator[Event, None, None]:
        """Yield events without end, from now on or after `last_event_id`.

        Reconnects without missing events. Also yields `Delta`s, which are pieces of answers and can get lost, and
        a `Gap` if the server no longer has all events since the last connection.
        """
        return follow_events(self._connection, wanted)

    # Feedback

    def feedback(self, answer_id: str, rating: Rating, note: str | None = None) -> Feedback:
        """Rate an answer, `up` or `down`, with an optional note. A second rating replaces the first.

        Each user has one rating per answer. Models never see it.
        """
        return self._connection.fetch(rate_request(answer_id, rating, note), feedback_of)

    def get_feedback(self, answer_id: str) -> Feedback | None:
        """Return the feedback of this client's user on an answer, or None."""
        return self._connection.fetch(get_request(feedback_path(answer_id)), own_feedback_of)

    def withdraw_feedback(self, answer_id: str) -> None:
        """Delete the feedback of this client's user on an answer, if there is any."""
        self._connection.perform(withdraw_request(answer_id))

    def list_feedback(self, **wanted: Unpack[FeedbackListing]) -> Generator[Feedback, None, None]:
        """Yield the feedback that matches the filters, newest first."""
        return list_feedback(self._connection, **wanted)

    def count_feedback(self, **wanted: Unpack[FeedbackFilters]) -> FeedbackCounts:
        """Count ratings per config version, agent and model, by default those of the last 30 days."""
        return self._connection.fetch(count_request(wanted), counts_of)

    # Sessions

    def session(self, id: str | None = None) -> Session:
        """Return a session, which need not exist yet. Without an id, a new one."""
        return Session(self._connection, id or str(uuid4()))

    def sessions(
        self, *, user_id: str | None = None, limit: int | None = None
    ) -> Generator[SessionInfo, None, None]:
        """Yield sessions, last active first, optionally only those of one user."""
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
        """Create a session with a title, a user or a state.

        A session without these need not be created: its first message does that.
        """
        fields = {"id": id, "title": title, "user_id": user_id, "state": state}
        request = create_session_request(fields, idempotency_key)
        return self.session((self._connection.fetch(request, session_info_of)).id)

    # Tokens and other requests

    def token(self, **wanted: Unpack[TokenRequest]) -> Token:
        """Issue a token, optionally limited to one session or one user."""
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
        """Send a request to any path of the HTTP API.

        The request has the credentials of this client. Raises the same errors as the other methods. An `idempotent`
        request is retried. By default a request is idempotent if its method is safe or it has an `idempotency-key`
        header. A successful reply must be JSON unless `headers` contains `accept`.
        """
        payload = Payload(json, content, headers)
        return self._connection.perform(custom_request(method, path, params, payload, idempotent))
