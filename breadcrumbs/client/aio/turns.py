"""Turns of a session: posting a message and waiting for its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, Literal, TypeAlias

from breadcrumbs.client.aio.connection import AsyncServerConnection
from breadcrumbs.client.aio.events import AsyncEventFollower, DeadlinePassed
from breadcrumbs.client.errors import NoAnswer, ServerUnreachable
from breadcrumbs.client.options import Message, Waiting
from breadcrumbs.client.outcomes import ShownText, is_delta_of, outcome_of, stored_outcome, wanted_answer
from breadcrumbs.client.requests import filter_params, message_request, outcome_request
from breadcrumbs.client.values import Answer, Delta, Event, Gap, Written

_DEFAULT_TIMEOUT_SECONDS: Final = 120.0

Show: TypeAlias = Literal["everything", "pieces", "answer"]
"""Items to yield: every event of the session, pieces of the answer, or only the answer."""


class AsyncAnswerFollower:
    """Waits for the answer to one message of a session, and yields events until then."""

    def __init__(
        self,
        connection: AsyncServerConnection,
        session_id: str,
        show: Show,
        options: Waiting,
        *,
        last_event_id: str | None = None,
    ) -> None:
        self._connection = connection
        self._session_id = session_id
        self._show = show
        self._agent = options.get("agent")
        self._wanted = wanted_answer(options)
        self._timeout = options.get("timeout", _DEFAULT_TIMEOUT_SECONDS)
        self._events = AsyncEventFollower(
            connection,
            filter_params({"session": session_id}),
            last_event_id=last_event_id,
            timeout=self._timeout,
            on_connection=options.get("on_connection"),
        )
        self._shown = ShownText()

    async def say(self, text: str, message: Message) -> AsyncGenerator[Any, None]:
        """Post a message and yield items until it is answered. The answer comes last."""
        try:
            # Connect before posting, so that no event about the message is missed.
            await self._connect()
            written = await self._post(text, message)
            if self._show == "everything":
                yield written
            # A replayed message was posted before. Its answer can be stored already, and no event would follow.
            async with aclosing(self._until_answered(written.id, check_stored=written.replayed)) as items:
                async for item in items:
                    yield item
        finally:
            await self._events.close()

    async def wait(self, message_id: str) -> AsyncGenerator[Any, None]:
        """Yield items until a message that was posted earlier is answered. The answer comes last."""
        try:
            try:
                await self._events.connect()
            except DeadlinePassed:
                raise self._no_answer(message_id) from None
            async with aclosing(self._until_answered(message_id, check_stored=True)) as items:
                async for item in items:
                    yield item
        finally:
            await self._events.close()

    async def _connect(self) -> None:
        try:
            await self._events.connect()
        except DeadlinePassed:
            raise NoAnswer(self._timeout_message(), trigger_id="") from None

    async def _post(self, text: str, message: Message) -> Written:
        request = message_request(text, self._session_id, message)
        try:
            return await self._connection.write(request, deadline=self._events.deadline)
        except ServerUnreachable as error:
            if not self._events.is_over:
                raise
            raise NoAnswer(
                f"{self._timeout_message()}. It is unknown whether the message was stored", trigger_id=""
            ) from error

    async def _until_answered(self, message_id: str, *, check_stored: bool) -> AsyncGenerator[Any, None]:
        answer = await self._stored_outcome(message_id) if check_stored else None
        while answer is None:
            try:
                event = await self._events.next_event()
            except DeadlinePassed:
                raise self._no_answer(message_id) from None
            if self._is_shown(event, message_id):
                shown = self._shown.add(event) if isinstance(event, Delta) else event
                if shown is not None:
                    yield shown
            answer = await self._outcome_in(event, message_id)
        if self._show == "pieces" and (rest := self._shown.rest_of(answer)) is not None:
            yield rest
        yield answer

    def _is_shown(self, event: Event, message_id: str) -> bool:
        if self._show == "pieces":
            return is_delta_of(event, message_id, self._agent)
        return self._show == "everything"

    async def _outcome_in(self, event: Event, message_id: str) -> Answer | None:
        if isinstance(event, Gap):
            return await self._stored_outcome(message_id)
        if event.operation == "created":
            return outcome_of(event.breadcrumb_id, event, message_id, self._agent)
        return None

    async def _stored_outcome(self, message_id: str) -> Answer | None:
        """Return the stored answer, or None. The server ignores errors from before a retry."""
        request = outcome_request(self._session_id, message_id, self._agent)
        try:
            reply = await self._connection.perform(request, deadline=self._events.deadline)
        except ServerUnreachable:
            if self._events.is_over:
                raise self._no_answer(message_id) from None
            raise
        return self._connection.replies.read(
            reply, lambda document: stored_outcome(document, message_id, self._agent)
        )

    def _no_answer(self, message_id: str) -> NoAnswer:
        return NoAnswer(f"no answer within {self._timeout:g} s", trigger_id=message_id)

    def _timeout_message(self) -> str:
        return f"{self._connection.url} did not answer within {self._timeout:g} s"
