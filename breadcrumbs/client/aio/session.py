"""A session: messages, answers, state and turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal, Unpack, overload

from breadcrumbs.client.aio.chains import answer_follower
from breadcrumbs.client.aio.connection import AsyncServerConnection
from breadcrumbs.client.aio.listing import list_breadcrumbs
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
    """One conversation. Its messages are not visible in other sessions."""

    def __init__(self, connection: AsyncServerConnection, id: str) -> None:
        self._connection = connection
        self.id = id

    @overload
    async def say(self, text: str, *, wait: Literal[True] = True, **options: Unpack[Saying]) -> Answer: ...
    @overload
    async def say(self, text: str, *, wait: Literal[False], **options: Unpack[Saying]) -> Written: ...
    async def say(self, text: str, *, wait: bool = True, **options: Unpack[Saying]) -> Answer | Written:
        """Post a message and wait for its answer.

        This is the first answer, or the answer of one `agent`, or with `wait_for="last"` the last answer of all agents
        that react to the message and to its answers. Raises `AgentFailed` with the reason if the agent
        failed, and `NoAnswer` after the timeout. Without `wait`, returns as soon as the message is stored.
        """
        if not wait:
            return await self._connection.write(message_request(text, self.id, options))
        turn = answer_follower(self._connection, self.id, "answer", options)
        async with aclosing(turn.say(text, options)) as items:
            answer: Answer = await anext(items)
        return answer

    def stream(self, text: str, **options: Unpack[Saying]) -> AsyncGenerator[Delta | Answer, None]:
        """Like `say`, but also yield pieces of the answer while it is written. The answer comes last."""
        return answer_follower(self._connection, self.id, "pieces", options).say(text, options)

    def turn(
        self, text: str, *, last_event_id: str | None = None, **options: Unpack[Saying]
    ) -> AsyncGenerator[Written | Event | Answer, None]:
        """Like `stream`, but yield every event of the session: tools, contexts, messages of other users.

        The first item is the `Written` message. With `last_event_id`, events after that one are also yielded.
        """
        turn = answer_follower(self._connection, self.id, "everything", options, last_event_id=last_event_id)
        return turn.say(text, options)

    async def wait(self, message_id: str, **options: Unpack[Waiting]) -> Answer:
        """Return the answer to a message that was posted earlier. Waits if it is not stored yet."""
        turn = answer_follower(self._connection, self.id, "answer", options)
        async with aclosing(turn.wait(message_id)) as items:
            answer: Answer = await anext(items)
        return answer

    async def messages(self, last: int | None = None) -> tuple[ChatMessage, ...]:
        """Return the messages of users and agents, oldest first. `last` limits them to that many of the newest."""
        found: list[Breadcrumb] = []
        for schema in (USER_MESSAGE, AGENT_RESPONSE):
            newest = list_breadcrumbs(
                self._connection, session=self.id, schema_name=schema, sort="-created_at", limit=last
            )
            found += [crumb async for crumb in newest]
        found.sort(key=lambda crumb: crumb.created_at)
        return tuple(chat_message(crumb) for crumb in (found if last is None else found[-last:]))

    async def cancel(self, reason: str | None = None) -> Written:
        """Stop the answers in progress. Callers waiting for them get an `AgentFailed` with `cancelled` set."""
        return await self._connection.write(cancel_request(self.id, reason))

    async def info(self) -> SessionInfo:
        """Return the version, title, counts and state of the session."""
        return await self._connection.fetch(get_request(session_path(self.id)), session_info_of)

    async def change(
        self, *, expected_version: int | None = None, **changes: Unpack[SessionChange]
    ) -> SessionInfo:
        """Change the title or the state, pause or resume the session. All changes are one atomic write."""
        request = change_session_request(self.id, changes, expected_version)
        return await self._connection.fetch(request, session_info_of)

    async def delete(self, *, expected_version: int | None = None) -> int:
        """Delete the session and everything in it. Return the number of deleted breadcrumbs.

        Answers in progress are stopped.
        """
        request = delete_request(session_path(self.id), expected_version)
        return await self._connection.fetch(request, parse_deleted)

    async def fork(
        self,
        message_id: str | None = None,
        *,
        before_id: str | None = None,
        id: str | None = None,
        title: str | None = None,
    ) -> AsyncSession:
        """Create a session with copies of the messages.

        All messages are copied, or those up to and including `message_id`, or those before `before_id`.
        """
        fields = {"message_id": message_id, "before_id": before_id, "id": id, "title": title}
        info = await self._connection.fetch(fork_request(self.id, fields), session_info_of)
        return AsyncSession(self._connection, info.id)

    async def retry(self, message_id: str | None = None) -> Retried:
        """Run a failed turn again, by default the newest. Return the id of its message for `wait`."""
        return await self._connection.fetch(retry_request(self.id, message_id), parse_retried)

    def __repr__(self) -> str:
        return f"<AsyncSession {self.id} at {self._connection.url}>"
