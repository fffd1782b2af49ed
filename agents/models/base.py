"""The interface of all models: request, reply and errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

from breadcrumbs.runtime.errors import BreadcrumbsError

PromptRole = Literal["system", "user", "assistant", "tool"]

ErrorKind = Literal[
    "connection", "timeout", "server", "rate limit", "credit", "key", "model", "context length", "other"
]
"""Class of a model error. It decides whether the next model of a fallback list is called (`fallback.py`).

`model`: the server does not know the model. `other`: the request or the answer itself is at fault, so another model
must not be called with it: an invalid request, a content filter, an answer that is too long.
"""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Request of a model to run a tool. `arguments` is the JSON text as the model wrote it, valid or not."""

    id: str
    name: str
    arguments: str


ATTACHMENT: Final = "attachment"
"""Name of a message with a page that the user attached."""


class PromptImage(NamedTuple):
    """An image of a prompt."""

    source: str
    """Id of the message that it is attached to."""
    digest: str
    """SHA-256 of the image."""
    media_type: str
    size: int
    """Size in bytes."""
    data: str = ""
    """The image as base64. Empty: it is not loaded."""


class PromptMessage(NamedTuple):
    """One message of a prompt. A `tool` message is the result of the call `tool_call_id`.

    A prompt has dozens of messages. A named tuple is created in a third of the time of a frozen dataclass.
    """

    role: PromptRole
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    images: tuple[PromptImage, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the model may call. `parameters` is the JSON Schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class CallObserver(Protocol):
    """Is told about a model call while it runs. A model that cannot tell does not use it."""

    async def reason(self, text: str) -> None:
        """Take the next piece of the model's reasoning. It is not part of the reply's text."""
        ...

    def retrying(self, reason: str, seconds: float) -> None:
        """Note that a call failed and is repeated after some seconds. `reason` contains no secrets."""
        ...

    def switched(self, model: str, *, failed: bool) -> None:
        """Note that the call goes on with another model. `failed`: the model before it was called and failed."""
        ...

    def log_fields(self) -> Mapping[str, str]:
        """Return the fields that name the turn in a log line about the call."""
        ...


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The input of a model call. Options that are None are left to the model's default."""

    messages: tuple[PromptMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    observer: CallObserver | None = field(default=None, repr=False, compare=False)
    cache_key: str = ""
    """Equal for prompts with the same beginning. Only some providers accept it. Empty: none."""
    parallel_tool_calls: bool | None = None
    """Whether one reply may call several tools."""
    output_schema: Mapping[str, Any] | None = None
    """JSON Schema that the text of the reply has to match."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Number of tokens that a model call used. None: the server did not report it."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """The part of `prompt_tokens` that the provider read from its prompt cache."""
    reasoning_tokens: int | None = None
    """The part of `completion_tokens` that the model used for its reasoning."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form in which a request is encoded. A request and its dialect determine the bytes of the body."""

    model: str
    """Name of the model in the body."""
    stream: bool = False
    omit: tuple[str, ...] = ()
    """Optional fields that the server has refused, sorted."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """Facts about the request that was answered, and about its response."""

    dialect: Dialect
    digest: bytes
    """SHA-256 of the body. Keys are in the headers, so the body contains no secrets."""
    attempts: int = 1
    """Number of times that a request was sent until a response arrived."""
    response_id: str | None = None
    model: str | None = None
    """Name of the model in the response."""


class FailedModel(NamedTuple):
    """A model of a fallback list that did not answer a call."""

    name: str
    kind: ErrorKind | Literal["circuit open"]
    """Class of its error. `circuit open`: it was not called, because its last calls had failed."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A complete reply. `finish_reason` is the provider's value (`stop`, `length`, `content_filter`, …)."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage | None = None
    finish_reason: str | None = None
    sent: SentRequest | None = field(default=None, repr=False, compare=False)
    """None if the model sends no requests."""
    model: str | None = None
    """Name of the model that answered. None: the model that was called."""
    failed: tuple[FailedModel, ...] = ()
    """Models of a fallback list that did not answer before this one, in order."""


OnDelta = Callable[[str], Awaitable[None]]
"""Receives the next piece of a reply. The joined pieces are the text of the reply."""


class Model(Protocol):
    """A language model.

    Models are safe to share: any number of `complete` calls can run at once. `close` can be called twice.
    """

    @property
    def name(self) -> str: ...

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Return the reply to a prompt, and stream its text to `on_delta`. Raises `ModelError`."""
        ...

    async def close(self) -> None: ...


class ModelError(BreadcrumbsError):
    """The model returned no usable reply.

    `reason` can be shown to a user, because it never contains a key. `retry` is whether the same request can succeed
    later. `retry_after` is the pause in seconds that the model server requested. `status` is the HTTP status of its
    reply, or None if there was no reply with an error status. `kind` is the class of the error.
    """

    status: int | None = None

    def __init__(
        self, reason: str, *, retry: bool, retry_after: float | None = None, kind: ErrorKind | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.retry_after = retry_after
        self.kind: ErrorKind = kind or ("server" if retry else "other")


class TransientModelError(ModelError):
    """An error after which the same request can succeed."""

    def __init__(
        self, reason: str, *, retry_after: float | None = None, kind: ErrorKind | None = None
    ) -> None:
        super().__init__(reason, retry=True, retry_after=retry_after, kind=kind)
