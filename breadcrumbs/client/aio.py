"""The client for async code. `sync.py` says what each call does; here they are awaited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Literal, Self, TypeVar, Unpack, overload
from uuid import uuid4

import anyio
import httpx

from breadcrumbs.client import sessions, turns
from breadcrumbs.client.effects import (
    Channel,
    Effect,
    Item,
    Open,
    Operation,
    Pause,
    Read,
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
        self.pieces = response.aiter_raw()


class AsyncClient:
    """A Breadcrumbs server; the same as `Client`, awaited.

    async with AsyncClient() as client:
        answer = await client.session("demo").say("Hello")
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
        self._http = httpx.AsyncClient(**client_options(self._core, timeout))

    @property
    def url(self) -> str:
        return self._core.url

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def create(
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
        """See `Client.create`."""
        document = {"schema_name": schema_name, "title": title, "tags": tags, "context": context, **fields}
        return await self._run(self._core.create(document, session=session, idempotency_key=idempotency_key))

    async def post(self, text: str, session: str | None = None, **message: Unpack[Message]) -> Written:
        """See `Client.post`."""
        return await self._run(self._core.post(text, session, **message))

    async def get(self, id: str) -> Breadcrumb:
        """See `Client.get`."""
        return await self._run(self._core.get(id))

    async def get_full(self, id: str) -> Breadcrumb:
        """See `Client.get_full`."""
        return await self._run(self._core.get(id, full=True))

    async def update(
        self, id: str, *, expected_version: int | None = None, merge_context: bool = False, **fields: Any
    ) -> Written:
        """See `Client.update`."""
        return await self._run(
            self._core.update(id, fields, expected_version=expected_version, merge_context=merge_context)
        )

    async def delete(self, id: str, *, expected_version: int | None = None) -> None:
        """See `Client.delete`."""
        await self._run(self._core.delete(id, expected_version=expected_version))

    async def history(self, id: str) -> tuple[Version, ...]:
        """See `Client.history`."""
        return await self._run(self._core.history(id))

    def list(self, **wanted: Unpack[Listing]) -> AsyncGenerator[Breadcrumb, None]:
        """See `Client.list`."""
        return self._each(self._core.pages(**wanted))

    def events(self, **wanted: Unpack[Subscription]) -> AsyncGenerator[Event, None]:
        """See `Client.events`."""
        return self._each(turns.events(self._core, wanted))

    async def token(self, **wanted: Unpack[TokenRequest]) -> Token:
        """See `Client.token`."""
        return await self._run(self._core.token(wanted))

    def session(self, id: str | None = None) -> AsyncSession:
        """See `Client.session`."""
        return AsyncSession(self, id or str(uuid4()))

    def sessions(
        self, *, user_id: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[SessionInfo, None]:
        """See `Client.sessions`."""
        return self._each(sessions.listed(self._core, user_id=user_id, limit=limit))

    async def create_session(
        self,
        id: str | None = None,
        *,
        title: str | None = None,
        user_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncSession:
        """See `Client.create_session`."""
        fields = {"id": id, "title": title, "user_id": user_id, "state": state}
        made = await self._run(sessions.created(self._core, fields, idempotency_key=idempotency_key))
        return AsyncSession(self, made.id)

    # Carrying out effects

    async def _run(self, operation: Operation[T]) -> T:
        return await self._first(as_item(operation))

    async def _first(self, series: Series[T]) -> T:
        async with aclosing(self._each(series)) as items:
            return await anext(items)

    async def _each(self, series: Series[T]) -> AsyncGenerator[T, None]:
        streams: set[_Stream] = set()
        try:
            step = next(series)
            while True:
                if isinstance(step, Item):
                    yield step.value
                    step = next(series)
                    continue
                try:
                    result = await self._carry_out(step, streams)
                except httpx.HTTPError as error:
                    step = series.throw(lost(error))
                else:
                    step = series.send(result)
        except StopIteration:
            return
        finally:
            series.close()
            with anyio.CancelScope(shield=True):  # a cancelled reader must not leave its connection behind
                for stream in streams:
                    await stream.response.aclose()

    async def _carry_out(self, effect: Effect, streams: set[_Stream]) -> object:
        match effect:
            case Send():
                return reply_of(await self._http.request(**send_options(effect, self._http.timeout)))
            case Open():
                opening = self._http.build_request(**stream_options(effect))
                response = await self._http.send(opening, stream=True)
                if not is_stream(response):
                    await response.aread()
                    return reply_of(response)
                stream = _Stream(response)
                streams.add(stream)
                return stream
            case Read(_Stream() as stream):
                return await anext(stream.pieces, b"")
            case Shut(_Stream() as stream):
                streams.discard(stream)
                await stream.response.aclose()
            case Pause(seconds):
                await anyio.sleep(seconds)
        return None


class AsyncSession:
    """One conversation; the same as `Session`, awaited."""

    def __init__(self, client: AsyncClient, id: str) -> None:
        self._client = client
        self._conversation = turns.Conversation(client._core, id)
        self.id = id

    @overload
    async def say(self, text: str, *, wait: Literal[True] = True, **options: Unpack[Saying]) -> Answer: ...
    @overload
    async def say(self, text: str, *, wait: Literal[False], **options: Unpack[Saying]) -> Written: ...
    async def say(self, text: str, *, wait: bool = True, **options: Unpack[Saying]) -> Answer | Written:
        """See `Session.say`."""
        if not wait:
            return await self._client._run(self._conversation.post(text, options))
        answer: Answer = await self._client._first(self._conversation.turn(text, "answer", options))
        return answer

    def stream(self, text: str, **options: Unpack[Saying]) -> AsyncGenerator[Delta | Answer, None]:
        """See `Session.stream`."""
        return self._client._each(self._conversation.turn(text, "pieces", options))

    def turn(
        self, text: str, *, last_event_id: str | None = None, **options: Unpack[Saying]
    ) -> AsyncGenerator[Written | Event | Answer, None]:
        """See `Session.turn`."""
        return self._client._each(
            self._conversation.turn(text, "everything", options, last_event_id=last_event_id)
        )

    async def wait(self, message_id: str, **options: Unpack[Waiting]) -> Answer:
        """See `Session.wait`."""
        answer: Answer = await self._client._first(self._conversation.wait(message_id, "answer", options))
        return answer

    async def messages(self, last: int | None = None) -> tuple[ChatMessage, ...]:
        """See `Session.messages`."""
        return await self._client._run(self._conversation.messages(last))

    async def cancel(self, reason: str | None = None) -> Written:
        """See `Session.cancel`."""
        return await self._client._run(self._conversation.cancel(reason))

    async def info(self) -> SessionInfo:
        """See `Session.info`."""
        return await self._client._run(sessions.read(self._client._core, self.id))

    async def change(
        self, *, expected_version: int | None = None, **changes: Unpack[SessionChange]
    ) -> SessionInfo:
        """See `Session.change`."""
        return await self._client._run(
            sessions.changed(self._client._core, self.id, changes, expected_version=expected_version)
        )

    async def delete(self, *, expected_version: int | None = None) -> int:
        """See `Session.delete`."""
        return await self._client._run(
            sessions.deleted(self._client._core, self.id, expected_version=expected_version)
        )

    async def fork(
        self, message_id: str | None = None, *, id: str | None = None, title: str | None = None
    ) -> AsyncSession:
        """See `Session.fork`."""
        fields = {"message_id": message_id, "id": id, "title": title}
        made = await self._client._run(sessions.forked(self._client._core, self.id, fields))
        return AsyncSession(self._client, made.id)

    async def retry(self, message_id: str | None = None) -> Retried:
        """See `Session.retry`."""
        return await self._client._run(sessions.retried(self._client._core, self.id, message_id))

    def __repr__(self) -> str:
        return f"<AsyncSession {self.id} at {self._client.url}>"
