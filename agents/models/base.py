"""The boundary of all models: the request, the reply and the errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from breadcrumbs.runtime.errors import BreadcrumbsError

PromptRole = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model wants a tool to run. `arguments` is the JSON text as the model wrote it, broken or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One message of a prompt. A `tool` message says by `tool_call_id` which call it answers."""

    role: PromptRole
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the model may call; `parameters` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything a model gets to see. What is unset is left to the model's own default."""

    messages: tuple[PromptMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A whole answer. `finish_reason` is the provider's own word (`stop`, `length`, `content_filter`, …)."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage | None = None
    finish_reason: str | None = None


OnDelta = Callable[[str], Awaitable[None]]
"""Takes the next piece of an answer's text. The pieces joined are the text of the reply."""


class Model(Protocol):
    """Safe to share: any number of `complete` calls may run at once. `close` may be called twice."""

    name: str

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply: ...

    async def close(self) -> None: ...


class ModelError(BreadcrumbsError):
    """The model gave no usable answer. `reason` can be shown to a user; it never holds a key.

    `retry` tells whether the same request may work later, `retry_after` how many seconds the model asked for.
    """

    def __init__(self, reason: str, *, retry: bool, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.retry_after = retry_after


class TransientModelError(ModelError):
    """An error after which the same request may succeed."""

    def __init__(self, reason: str, *, retry_after: float | None = None) -> None:
        super().__init__(reason, retry=True, retry_after=retry_after)
