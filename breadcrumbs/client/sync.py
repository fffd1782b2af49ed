"""The client for ordinary code: a call waits for its result."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal, Self, TypeVar, Unpack, overload
from uuid import uuid4

import httpx

from breadcrumbs.client import sessions, turns
from breadcrumbs.client.core import json_of
from breadcrumbs.client.effects import (
    Channel,
    Effect,
    Item,
    Open,
    Operation,
    Pause,
    Read,
    Reply,
    Request,
    Send,
    Series,
    Shut,
    as_item,
)
from breadcrumbs.client.http import (
    client_options,
    core_of,
    is_stream,
    lost,
    reply_of,
    send_options,
    stream_options,
)
from breadcrumbs.client.options import (
    Listing,
    Message,
    Saying,
    SessionChange,
    Subscription,
    TokenRequest,
    Waiting,
)
from breadcrumbs.client.values import (
    Answer,
    Breadcrumb,
    ChatMessage,
    Delta,
    Event,
    Retried,
    SessionInfo,
    Token,
    Version,
    Written,
)

T = TypeVar("T")


class _Stream(Channel):
    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.pieces = response.iter_raw()


class Client:
    """A Breadcrumbs server.

        with Client() as client:
            answer = client.session("demo").say("Hello")

    What is not given comes from `CRUMB_URL`, `CRUMB_TOKEN` and `CRUMB_API_KEY`, and then is a server on this
    machine. Reads, and writes that carry an idempotency key (`create`, `post` and `say` always do), are tried
    again when the connection breaks or the server cannot do it now; nothing is ever written twice.
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
        self._core = core_of(url, token, api_key, retries)
        self._http = httpx.Client(**client_options(self._core, timeout))

    @property
    def url(self) -> str:
        return self._core.url

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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

        The same `idempotency_key` a second time gives the first result again; without one, a new one is made.
        """
        document = {"schema_name": schema_name, "title": title, "tags": tags, "context": context, **fields}
        return self._run(self._core.create(document, session=session, idempotency_key=idempotency_key))

    def post(self, text: str, session: str | None = None, **message: Unpack[Message]) -> Written:
        """Post a user's message and go on. To wait for the answer: `client.session(…).say(text)`."""
        return self._run(self._core.post(text, session, **message))

    def get(self, id: str) -> Breadcrumb:
        """A breadcrumb as a model would see it, its hints applied."""
        return self._run(self._core.get(id))

    def get_full(self, id: str) -> Breadcrumb:
        """A breadcrumb as it was written; owner, TTL and the rest are in its `document`."""
        return self._run(self._core.get(id, full=True))

    def update(
        self, id: str, *, expected_version: int | None = None, merge_context: bool = False, **fields: Any
    ) -> Written:
        """Replace fields: `title`, `tags`, `context`, … With `merge_context` the context is merged (RFC 7396).

        An `expected_version` that is no longer the newest is a `VersionMismatch`; without one the last wins.
        """
        return self._run(
            self._core.update(id, fields, expected_version=expected_version, merge_context=merge_context)
        )

    def delete(self, id: str, *, expected_version: int | None = None) -> None:
        """Remove a breadcrumb with all its versions."""
        self._run(self._core.delete(id, expected_version=expected_version))

    def history(self, id: str) -> tuple[Version, ...]:
        """All versions, the newest first."""
        return self._run(self._core.history(id))

    def list(self, **wanted: Unpack[Listing]) -> Generator[Breadcrumb, None, None]:
        """Breadcrumbs that match all filters, the newest first, over as many pages as it takes."""
        return self._each(self._core.pages(**wanted))

    def events(self, **wanted: Unpack[Subscription]) -> Generator[Event, None, None]:
        """What happens from now on, or since an event, without end. Reconnects by itself and misses nothing.

        Besides writes there are `Delta`s (pieces of answers; these may get lost) and, after an absence that was
        too long, a `Gap`.
        """
        return self._each(turns.events(self._core, wanted))

    def token(self, **wanted: Unpack[TokenRequest]) -> Token:
        """A token for somebody who should not have yours, narrowed to a session or a user if need be."""
        return self._run(self._core.token(wanted))

    def session(self, id: str | None = None) -> Session:
        """A session, there already or not; without an id a new one."""
        return Session(self, id or str(uuid4()))

    def sessions(
        self, *, user_id: str | None = None, limit: int | None = None
    ) -> Generator[SessionInfo, None, None]:
        """The sessions, the last active one first; those of one user, where a `user_id` is given."""
        return self._each(sessions.listed(self._core, user_id=user_id, limit=limit))

    def create_session(
        self,
        id: str | None = None,
        *,
        title: str | None = None,
        user_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Session:
        """Begin a session with a title, a user, a state. Not needed otherwise: the first message begins one."""
        fields = {"id": id, "title": title, "user_id": user_id, "state": state}
        made = self._run(sessions.created(self._core, fields, idempotency_key=idempotency_key))
        return Session(self, made.id)

    def request(
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
        """Send a request to any path of the server."""
        sent = dict(headers or {})
        if json is not None:
            content = json_of(json)
            sent.setdefault("content-type", "application/json")
        pairs = tuple(params.items() if isinstance(params, Mapping) else params or ())
        repeatable = method == "GET" or "idempotency-key" in sent if idempotent is None else idempotent
        return self._run(self._core.perform(Request(method, path, pairs, content, sent, repeatable)))

    # Carrying out effects

    def _run(self, operation: Operation[T]) -> T:
        return self._first(as_item(operation))

    def _first(self, series: Series[T]) -> T:
        with closing(self._each(series)) as items:
            return next(items)

    def _each(self, series: Series[T]) -> Generator[T, None, None]:
        streams: set[_Stream] = set()
        try:
            step = next(series)
            while True:
                if isinstance(step, Item):
                    yield step.value
                    step = next(series)
                    continue
                try:
                    result = self._carry_out(step, streams)
                except httpx.HTTPError as error:
                    step = series.throw(lost(error))
                else:
                    step = series.send(result)
        except StopIteration:
            return
        finally:
            series.close()
            for stream in streams:
                stream.response.close()

    def _carry_out(self, effect: Effect, streams: set[_Stream]) -> object:
        match effect:
            case Send():
                return reply_of(self._http.request(**send_options(effect, self._http.timeout)))
            case Open():
                response = self._http.send(self._http.build_request(**stream_options(effect)), stream=True)
                if not is_stream(response):
                    response.read()
                    return reply_of(response)
                stream = _Stream(response)
                streams.add(stream)
                return stream
            case Read(_Stream() as stream):
                return next(stream.pieces, b"")
            case Shut(_Stream() as stream):
                streams.discard(stream)
                stream.response.close()
            case Pause(seconds):
                time.sleep(seconds)
        return None


class Session:
    """One conversation. What is said here is seen here and nowhere else."""

    def __init__(self, client: Client, id: str) -> None:
        self._client = client
        self._conversation = turns.Conversation(client._core, id)
        self.id = id

    @overload
    def say(self, text: str, *, wait: Literal[True] = True, **options: Unpack[Saying]) -> Answer: ...
    @overload
    def say(self, text: str, *, wait: Literal[False], **options: Unpack[Saying]) -> Written: ...
    def say(self, text: str, *, wait: bool = True, **options: Unpack[Saying]) -> Answer | Written:
        """Post a message and wait for its answer: the first one, or that of one `agent`.

        `AgentFailed` says why there is none, `NoAnswer` that the time limit has passed.
        """
        if not wait:
            return self._client._run(self._conversation.post(text, options))
        answer: Answer = self._client._first(self._conversation.turn(text, "answer", options))
        return answer

    def stream(self, text: str, **options: Unpack[Saying]) -> Generator[Delta | Answer, None, None]:
        """Like `say`, with the pieces of the answer while it is being made; last comes the whole answer."""
        return self._client._each(self._conversation.turn(text, "pieces", options))

    def turn(
        self, text: str, *, last_event_id: str | None = None, **options: Unpack[Saying]
    ) -> Generator[Written | Event | Answer, None, None]:
        """Like `stream`, with everything that happens in the session: tools, contexts, what others say.

        First comes what was written. With a `last_event_id`, what happened since that event comes too.
        """
        return self._client._each(
            self._conversation.turn(text, "everything", options, last_event_id=last_event_id)
        )

    def wait(self, message_id: str, **options: Unpack[Waiting]) -> Answer:
        """Wait for the answer to a message that was posted before, if it is not there already."""
        answer: Answer = self._client._first(self._conversation.wait(message_id, "answer", options))
        return answer

    def messages(self, last: int | None = None) -> tuple[ChatMessage, ...]:
        """What users and agents said, the oldest first: all of it, or the `last` so many."""
        return self._client._run(self._conversation.messages(last))

    def cancel(self, reason: str | None = None) -> Written:
        """Stop what is being answered here. Who waits for it gets an `AgentFailed` that is `cancelled`."""
        return self._client._run(self._conversation.cancel(reason))

    def info(self) -> SessionInfo:
        """What is known of this session: version, title, counts, state."""
        return self._client._run(sessions.read(self._client._core, self.id))

    def change(self, *, expected_version: int | None = None, **changes: Unpack[SessionChange]) -> SessionInfo:
        """Change its title or its state, pause it or let it go on: all that is given, or nothing."""
        return self._client._run(
            sessions.changed(self._client._core, self.id, changes, expected_version=expected_version)
        )

    def delete(self, *, expected_version: int | None = None) -> int:
        """Delete it with everything in it; how many breadcrumbs that were. What is being answered stops."""
        return self._client._run(
            sessions.deleted(self._client._core, self.id, expected_version=expected_version)
        )

    def fork(
        self, message_id: str | None = None, *, id: str | None = None, title: str | None = None
    ) -> Session:
        """A new session with what was said here, up to a message, that one included; or with all of it."""
        fields = {"message_id": message_id, "id": id, "title": title}
        made = self._client._run(sessions.forked(self._client._core, self.id, fields))
        return Session(self._client, made.id)

    def retry(self, message_id: str | None = None) -> Retried:
        """Run a turn again that failed, the newest one unless told which. Gives the id of its message, for `wait`."""
        return self._client._run(sessions.retried(self._client._core, self.id, message_id))

    def __repr__(self) -> str:
        return f"<Session {self.id} at {self._client.url}>"
