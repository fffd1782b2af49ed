"""One session of a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal, Unpack, overload

from breadcrumbs.client.aio.connection import AsyncServerConnection
from breadcrumbs.client.aio.listing import list_breadcrumbs
from breadcrumbs.client.aio.turns import AsyncAnswerFollower
from breadcrumbs.client.options import Saying, SessionChange, Waiting
from breadcrumbs.client.outcomes import chat_message
from breadcrumbs.client.replies import parse_deleted, parse_retried
from breadcrumbs.client.requests import (
    cancel_request,
    change_session_request,
    delete_request,
    fork_request,
    get_request,
    message_request,
    retry_request,
    session_path,
)
from breadcrumbs.client.values import (
    Answer,
    Breadcrumb,
    ChatMessage,
    Delta,
    Event,
    Retried,
    SessionInfo,
    Written,
    session_info_of,
)
from breadcrumbs.runtime.schema_names import AGENT_RESPONSE, USER_MESSAGE


class AsyncSession:
    """One conversation. Messages here are seen here and nowhere else."""

    def __init__(self, connection: AsyncServerConnection, id: str) -> None:
        self._connection = connection
        self.id = id

    @overload
    async def say(self, text: str, *, wait: Literal[True] = True, **options: Unpack[Saying]) -> Answer: ...
    @overload
    async def say(self, text: str, *, wait: Literal[False], **options: Unpack[Saying]) -> Written: ...
    async def say(self, text: str, *, wait: bool = True, **options: Unpack[Saying]) -> Answer | Written:
        """Post a message and wait for its answer: the first one, or that of one `agent`.

        Raises `AgentFailed` with the reason if there is none, and `NoAnswer` after the time limit.
        """
        if not wait:
            return await self._connection.write(message_request(text, self.id, options))
        turn = AsyncAnswerFollower(self._connection, self.id, "answer", options)
        async with aclosing(turn.say(text, options)) as items:
            answer: Answer = await anext(items)
        return answer

    def stream(self, text: str, **options: Unpack[Saying]) -> AsyncGenerator[Delta | Answer, None]:
        """Like `say`, with the pieces of the answer while it is made. The whole answer comes last."""
        return AsyncAnswerFollower(self._connection, self.id, "pieces", options).say(text, options)

    def turn(
        self, text: str, *, last_event_id: str | None = None, **options: Unpack[Saying]
    ) -> AsyncGenerator[Written | Event | Answer, None]:
        """Like `stream`, with every event of the session: tools, contexts, other people's messages.

        The first item is the `Written` message. With a `last_event_id`, the events since then come too.
        """
        turn = AsyncAnswerFollower(
            self._connection, self.id, "everything", options, last_event_id=last_event_id
        )
        return turn.say(text, options)

    async def wait(self, message_id: str, **options: Unpack[Waiting]) -> Answer:
        """Wait for the answer to a message that was posted before, unless it is stored already."""
        turn = AsyncAnswerFollower(self._connection, self.id, "answer", options)
        async with aclosing(turn.wait(message_id)) as items:
            answer: Answer = await anext(items)
        return answer

    async def messages(self, last: int | None = None) -> tuple[ChatMessage, ...]:
        """Return the messages of users and agents, the oldest first: all of them, or the `last` so many."""
        found: list[Breadcrumb] = []
        for schema in (USER_MESSAGE, AGENT_RESPONSE):
            newest = list_breadcrumbs(
                self._connection, session=self.id, schema_name=schema, sort="-created_at", limit=last
            )
            found += [crumb async for crumb in newest]
        found.sort(key=lambda crumb: crumb.created_at)
        return tuple(chat_message(crumb) for crumb in (found if last is None else found[-last:]))

    async def cancel(self, reason: str | None = None) -> Written:
        """Stop the answers in progress. A waiter gets an `AgentFailed` that is `cancelled`."""
        return await self._connection.write(cancel_request(self.id, reason))

    async def info(self) -> SessionInfo:
        """Return the version, title, counts and state of the session."""
        return await self._connection.fetch(get_request(session_path(self.id)), session_info_of)

    async def change(
        self, *, expected_version: int | None = None, **changes: Unpack[SessionChange]
    ) -> SessionInfo:
        """Change the title or the state, pause or resume the session: all that is given, or nothing."""
        request = change_session_request(self.id, changes, expected_version)
        return await self._connection.fetch(request, session_info_of)

    async def delete(self, *, expected_version: int | None = None) -> int:
        """Delete the session with everything in it, and return how many breadcrumbs it had.

        Answers in progress stop.
        """
        request = delete_request(session_path(self.id), expected_version)
        return await self._connection.fetch(request, parse_deleted)

    async def fork(
        self, message_id: str | None = None, *, id: str | None = None, title: str | None = None
    ) -> AsyncSession:
        """Create a session with the messages of this one: up to and including a message, or all of them."""
        fields = {"message_id": message_id, "id": id, "title": title}
        made = await self._connection.fetch(fork_request(self.id, fields), session_info_of)
        return AsyncSession(self._connection, made.id)

    async def retry(self, message_id: str | None = None) -> Retried:
        """Run a failed turn again, by default the newest. Return the id of its message, for `wait`."""
        return await self._connection.fetch(retry_request(self.id, message_id), parse_retried)

    def __repr__(self) -> str:
        return f"<AsyncSession {self.id} at {self._connection.url}>"
