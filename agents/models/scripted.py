"""Models for tests: they answer what the test says, without a network.

    model = ScriptedModel(["Hello!", ModelError("overloaded", retry=True), "Hello again!"])
    model = FunctionModel(lambda request: f"you wrote {request.messages[-1].content}")

Both pass their text on word by word, as a real model does, and keep every request in `requests`. They return exactly
what they were given, even a reply that a real model's client would reject (an empty one, for example).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable

from breadcrumbs.agents.models.base import ModelError, ModelReply, ModelRequest, OnDelta
from breadcrumbs.agents.models.streaming import stream_words


class ScriptedModel:
    """Gives its replies in order, one a call. An exception in the list is raised when its turn comes."""

    def __init__(self, replies: Iterable[ModelReply | str | Exception], *, name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._replies = list(replies)

    @property
    def remaining(self) -> int:
        """How many replies have not been given yet."""
        return max(0, len(self._replies) - len(self.requests))

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.requests.append(request)
        asked = len(self.requests)
        if asked > len(self._replies):
            raise ModelError(
                f"{self.name}: asked {asked} times, but the script has {len(self._replies)} replies",
                retry=False,
            )
        reply = self._replies[asked - 1]
        if isinstance(reply, Exception):
            raise reply
        return await _stream_reply(reply, on_delta)

    async def close(self) -> None:
        return None


class FunctionModel:
    """Answers with what a function (plain or async) makes of the request."""

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
        self.requests.append(request)
        answer = self._function(request)
        if inspect.isawaitable(answer):
            answer = await answer
        return await _stream_reply(answer, on_delta)

    async def close(self) -> None:
        return None


async def _stream_reply(answer: ModelReply | str, on_delta: OnDelta | None) -> ModelReply:
    reply = ModelReply(text=answer, finish_reason="stop") if isinstance(answer, str) else answer
    await stream_words(reply.text, on_delta)
    return reply
