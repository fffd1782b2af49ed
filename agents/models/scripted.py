"""Models for tests. They return replies that the test defines, without a network.

    model = ScriptedModel(["Hello!", ModelError("overloaded", retry=True), "Hello again!"])
    model = FunctionModel(lambda request: f"you wrote {request.messages[-1].content}")

Both stream their text word by word, as a real model does, and record every request in `requests`. They do not validate
replies. So a test can also return a reply that the client of a real model would reject, such as an empty one.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable

from breadcrumbs.agents.models.base import ModelError, ModelReply, ModelRequest, OnDelta
from breadcrumbs.agents.models.streaming import stream_words


class ScriptedModel:
    """Returns its replies in order, one per call. An exception in the list is raised instead."""

    def __init__(self, replies: Iterable[ModelReply | str | Exception], *, name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._replies = list(replies)

    @property
    def remaining(self) -> int:
        """Number of replies that have not been returned yet."""
        return max(0, len(self._replies) - len(self.requests))

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Return the next reply, or raise it if it is an exception."""
        self.requests.append(request)
        calls = len(self.requests)
        if calls > len(self._replies):
            raise ModelError(
                f"{self.name}: called {calls} times, but the script has {len(self._replies)} replies",
                retry=False,
            )
        reply = self._replies[calls - 1]
        if isinstance(reply, Exception):
            raise reply
        return await _stream_reply(reply, on_delta)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class FunctionModel:
    """Returns the result of a function of the request. The function can be async."""

    def __init__(
        self,
        function: Callable[[ModelRequest], ModelReply | str | Awaitable[ModelReply | str]],
        *,
        name: str = "function",
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._function = function

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Return the result of the function."""
        self.requests.append(request)
        result = self._function(request)
        if inspect.isawaitable(result):
            result = await result
        return await _stream_reply(result, on_delta)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


async def _stream_reply(result: ModelReply | str, on_delta: OnDelta | None) -> ModelReply:
    reply = ModelReply(text=result, finish_reason="stop") if isinstance(result, str) else result
    await stream_words(reply.text, on_delta)
    return reply
