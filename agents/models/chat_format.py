"""The JSON format of chat completions: requests, complete replies, and replies in chunks.

This module does no HTTP. It accepts the variants of many servers. A missing value that can be inferred is filled in.
An invalid reply raises a `ModelError` with an excerpt of the reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from breadcrumbs.agents.models.base import (
    Dialect,
    ErrorKind,
    ModelError,
    ModelReply,
    ModelRequest,
    PromptMessage,
    TokenUsage,
    ToolCall,
    ToolSpec,
    TransientModelError,
)
from breadcrumbs.agents.models.output_schema import is_strict
from breadcrumbs.agents.models.reasoning import ThinkSplitter, reasoning_in
from breadcrumbs.runtime.breadcrumb.text import printable_line

MAX_TOOL_CALLS = 128
CACHE_KEY = "prompt_cache_key"
"""Optional field of a request. It helps OpenAI to route requests to a server that has cached their beginning."""

PARALLEL = "parallel_tool_calls"
"""Optional field of a request with tools."""
RESPONSE_FORMAT = "response_format"
"""Optional field of a request with an output schema. The system message contains the schema in any case."""

IMAGES = "images"
"""Entry of `Dialect.omit` for a model that accepts no images. It is no field of a request."""
_NO_IMAGES = "You cannot see it, because you accept no images: tell the user if it matters."

_MAX_REASONING_CHARACTERS = 1 << 16
_MAX_NAME_CHARACTERS = 200

_PLAIN_ROLES = ("user", "assistant", "system")
"""Roles of messages that need no other fields."""
_PORTABLE_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_TEMPORARY_STATUS = frozenset((408, 409, 425, 429))
_TEMPORARY_KIND = re.compile(
    r"rate.?limit|overload|server.?error|unavailable|timeout|timed.?out|capacity", re.I
)
_NO_CREDIT = re.compile(r"insufficient.?(?:quota|credit)|billing", re.I)
_RATE_LIMIT = re.compile(r"rate.?limit", re.I)
_TOO_LONG = re.compile(
    r"context.?(?:length|window)|maximum context|too many tokens|prompt is too long"
    r"|exceeds? the (?:model|context|maximum)",
    re.I,
)
_KIND_OF_STATUS: dict[int, ErrorKind] = {
    401: "key",
    402: "credit",
    403: "key",
    404: "model",
    408: "timeout",
    429: "rate limit",
}
_PERMANENT_KIND = re.compile(r"insufficient.?quota|billing|context.?length|invalid", re.I)


class _PermanentModelError(ModelError):
    """The same request will fail the same way."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, retry=False)


# The request


def request_json(dialect: Dialect, request: ModelRequest) -> bytes:
    """Return the body of a request. Equal arguments give equal bytes, so a request can be rebuilt and compared.

    The messages come last, because everything before them is the same in each turn. Equal requests begin with equal
    bytes, so that caches can be used.
    """
    omit, stream = dialect.omit, dialect.stream
    body: dict[str, Any] = {"model": dialect.model}
    if request.tools:
        body["tools"] = [tool_json(tool) for tool in request.tools]
    if request.parallel_tool_calls is not None or request.output_schema is not None:
        body |= _reply_options(request, omit)
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.max_tokens is not None and (name := _limit_name(omit)):
        body[name] = request.max_tokens
    if stream and "stream" not in omit:
        body["stream"] = True
        if "stream_options" not in omit:
            body["stream_options"] = {"include_usage": True}
    if request.cache_key and CACHE_KEY not in omit:
        body[CACHE_KEY] = request.cache_key
    shows_images = IMAGES not in omit
    body["messages"] = [
        {"role": message.role, "content": message.content}
        if message.name is None
        and message.role in _PLAIN_ROLES
        and not message.tool_calls
        and not message.images
        else _message_json(message, shows_images)  # the condition holds for most messages
        for message in request.messages
    ]
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise ModelError(f"the prompt cannot be encoded as JSON: {error}", retry=False) from None


def _limit_name(omit: tuple[str, ...]) -> str | None:
    names = ("max_tokens", "max_completion_tokens")
    return next((name for name in names if name not in omit), None)


def _reply_options(request: ModelRequest, omit: tuple[str, ...]) -> dict[str, Any]:
    """Return the options that few requests have: parallel tool calls and the schema of the reply."""
    options: dict[str, Any] = {}
    if request.tools and request.parallel_tool_calls is not None and PARALLEL not in omit:
        options[PARALLEL] = request.parallel_tool_calls
    if (schema := request.output_schema) is not None and RESPONSE_FORMAT not in omit:
        described = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
        options[RESPONSE_FORMAT] = {"type": "json_schema", "json_schema": described}
    return options


def tool_json(tool: ToolSpec) -> dict[str, Any]:
    """Return a tool as the body of a request contains it."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }


def _message_json(message: PromptMessage, shows_images: bool = True) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.images:
        wire["content"] = _with_images(message) if shows_images else f"{message.content} {_NO_IMAGES}"
    if message.role == "tool":
        wire["tool_call_id"] = message.tool_call_id or ""
    elif message.name and message.role != "system" and _PORTABLE_NAME.match(message.name):
        wire["name"] = message.name
    if message.tool_calls:
        wire["content"] = message.content or None
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _valid_arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return wire


def _with_images(message: PromptMessage) -> list[dict[str, Any]]:
    """Return the content of a message in parts: its text and its images."""
    images = (f"data:{image.media_type};base64,{image.data}" for image in message.images if image.data)
    return [
        {"type": "text", "text": message.content},
        *({"type": "image_url", "image_url": {"url": url}} for url in images),
    ]


def _valid_arguments(arguments: str) -> str:
    """Return the arguments as a JSON object. Servers reject a history with other arguments (400 or 500)."""
    if not arguments.strip():
        return "{}"
    try:
        if isinstance(orjson.loads(arguments), dict):
            return arguments
    except ValueError:
        pass
    return orjson.dumps({"invalid_json": _without_surrogates(arguments)}).decode()


# The reply


@dataclass(slots=True)
class _PartialToolCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


class ReplyBuilder:
    """Builds a `ModelReply` from the pieces of a response. Each `add_…` method returns the new text."""

    def __init__(self, *, max_bytes: int, calls_before: int = 0) -> None:
        self._max_bytes = max_bytes
        self._calls_before = calls_before
        self._size = 0
        self._pieces: list[str] = []
        self._half_character = ""
        self._calls: list[_PartialToolCall] = []
        self._call_at: dict[int, _PartialToolCall] = {}
        self._usage: TokenUsage | None = None
        self.response_id: str | None = None
        self.model: str | None = None
        """Name of the model in the response."""
        self._finish_reason: str | None = None
        self._refused = False
        self._think = ThinkSplitter()
        self._reasoning = ""
        self._reasoning_size = 0

    @property
    def finished(self) -> bool:
        """Whether the finish reason has arrived. Only the usage can follow."""
        return self._finish_reason is not None

    def add_chunk(self, data: bytes) -> str:
        """Add one chunk of a streamed response."""
        choice = self._first_choice(data, TransientModelError)
        if choice is None:
            return ""
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message") if isinstance(choice.get("message"), dict) else {}
        return self._add_message(delta or {}, choice.get("finish_reason"))

    def add_whole(self, data: bytes) -> str:
        """Add a complete response. Raises `ModelError` if it has no message."""
        choice = self._first_choice(data, _PermanentModelError)
        if choice is None or not isinstance(choice.get("message"), dict):
            raise ModelError(f"the response has no message: {show_excerpt(data)}", retry=False)
        return self._add_message(choice["message"], choice.get("finish_reason")) + self.end()

    def end(self) -> str:
        """Return the rest of the text: a first half of a surrogate pair without its second half."""
        rest, self._half_character = self._half_character, ""
        reasoning, text = self._think.feed(_without_surrogates(rest))
        self._add_reasoning(reasoning)
        complete = self._finish_reason == "stop" and not self._pieces and not self._calls
        return self._append_text(text + self._think.end(complete=complete))

    def take_reasoning(self) -> str:
        """Return the reasoning since the last call. It is not part of the reply."""
        reasoning, self._reasoning = self._reasoning, ""
        return reasoning

    def reply(self) -> ModelReply:
        """Return the complete reply. Raises `ModelError` if it has neither text nor tool calls."""
        text = "".join(self._pieces)
        calls = tuple(
            ToolCall(call.id or f"call_{self._calls_before + number}", call.name, call.arguments)
            for number, call in enumerate(self._calls, start=1)
        )
        if any(not call.name for call in calls):
            raise ModelError("the model called a tool without a name", retry=True)
        if not text.strip() and not calls:
            raise self._empty_reply_error()
        reason = "refusal" if self._refused else self._finish_reason
        return ModelReply(text=text, tool_calls=calls, usage=self._usage, finish_reason=reason)

    def _empty_reply_error(self) -> ModelError:
        if self._finish_reason == "content_filter":
            return ModelError("the content filter of the provider blocked the answer", retry=False)
        if self._finish_reason == "length":
            return ModelError(
                "the model reached max_tokens before it wrote any text: raise max_tokens", retry=False
            )
        return ModelError("the model returned nothing: no text and no tool call", retry=True)

    def _first_choice(self, data: bytes, broken: Callable[[str], ModelError]) -> dict[str, Any] | None:
        """Return the first choice of a chunk or a complete response, or None. Raises the error that it contains."""
        body = parse_json_or_none(data)
        if body is None:
            raise broken(f"the response is not JSON: {show_excerpt(data)}")
        if not isinstance(body, dict):
            raise ModelError(f"the response is not a chat completion: {show_excerpt(data)}", retry=False)
        if (error := find_error(body)) is not None:
            raise error
        self.response_id = self.response_id or _reported_name(body.get("id"))
        self.model = self.model or _reported_name(body.get("model"))
        if isinstance(body.get("usage"), dict):
            self._usage = _parse_usage(body["usage"]) or self._usage
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return None
        if (error := find_error(choice)) is not None:
            raise error
        return choice

    def _add_message(self, message: dict[str, Any], finish_reason: Any) -> str:
        if finish_reason == "error":
            raise TransientModelError("the model stopped with an error and gave no details")
        if isinstance(finish_reason, str) and finish_reason:
            self._finish_reason = finish_reason
        text = _content_text(message.get("content"))
        if not text and (refusal := message.get("refusal")) and isinstance(refusal, str):
            text = refusal
            self._refused = True
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            for position, call in enumerate(calls):
                if isinstance(call, dict):
                    self._add_call(call, position)
        self._add_reasoning(_without_surrogates(reasoning_in(message)))
        reasoning, text = self._think.feed(self._join_surrogates(text))
        self._add_reasoning(reasoning)
        return self._append_text(text)

    def _add_reasoning(self, text: str) -> None:
        text = text[: _MAX_REASONING_CHARACTERS - self._reasoning_size]
        self._reasoning_size += len(text)
        self._reasoning += text

    def _join_surrogates(self, text: str) -> str:
        """Hold back half a surrogate pair. Servers that split text by UTF-16 units send an emoji in two halves."""
        text = self._half_character + text
        self._half_character = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._half_character = text[-1]
            text = text[:-1]
        return _without_surrogates(text)

    def _append_text(self, text: str) -> str:
        if text:
            self._count_bytes(text)
            self._pieces.append(text)
        return text

    def _count_bytes(self, text: str) -> None:
        self._size += len(text.encode("utf-8", "surrogatepass"))
        if self._size > self._max_bytes:
            raise ModelError(
                f"the answer was cut off at {self._max_bytes:,} bytes, the maximum size of an answer",
                retry=False,
            )

    def _add_call(self, piece: dict[str, Any], position: int) -> None:
        function = piece.get("function")
        if not isinstance(function, dict):
            function = {}
        identity, name, arguments = piece.get("id"), function.get("name"), function.get("arguments")
        identity = identity if isinstance(identity, str) else ""
        name = name if isinstance(name, str) else ""
        if arguments is not None and not isinstance(arguments, str):
            arguments = _compact_json(arguments)
        call = self._find_call(piece.get("index"), position, identity)
        self._count_bytes(name + (arguments or ""))
        call.id = call.id or identity
        if name != call.name:  # some servers repeat the whole name in every piece
            call.name += name
        call.arguments += _without_surrogates(arguments or "")

    def _find_call(self, index: Any, position: int, identity: str) -> _PartialToolCall:
        """Return the call that a piece belongs to. Some servers leave `index` out, some send 0 for every call."""
        if isinstance(index, int):
            call = self._call_at.get(index)
            belongs = call is not None and not (identity and call.id and identity != call.id)
        else:
            index = position
            call = self._calls[-1] if self._calls else None
            belongs = call is not None and (not identity or identity == call.id)
        if call is not None and belongs:
            return call
        if len(self._calls) >= MAX_TOOL_CALLS:
            raise ModelError(f"the model made more than {MAX_TOOL_CALLS} tool calls at once", retry=False)
        call = _PartialToolCall()
        self._calls.append(call)
        self._call_at[index] = call
        return call


# Errors


def find_error(body: dict[str, Any]) -> ModelError | None:
    """Return the error in a body, or None. Some servers send errors with status 200."""
    error = body.get("error")
    if not error and body.get("object") == "error":
        error = body  # vLLM
    return provider_error(error) if error else None


def provider_error(error: Any, *, status: int | None = None, retry_after: float | None = None) -> ModelError:
    """Convert the error of a provider. It is an object with `message`, `code` and `type`, or a text."""
    message, kinds, code = error, "", status
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail") or error
        kinds = f"{error.get('code', '')} {error.get('type', '')}"
        # `code` is not always an HTTP status.
        if isinstance(error.get("code"), int) and 400 <= error["code"] < 600:
            code = error["code"]
    if not isinstance(message, str):
        message = _compact_json(message)
    text = (
        f"{explain_status(code)}: {show_excerpt(message)}"
        if code
        else f"the provider failed: {show_excerpt(message)}"
    )
    temporary = (
        bool(_TEMPORARY_KIND.search(kinds)) if code is None else code in _TEMPORARY_STATUS or code >= 500
    )
    kind = _error_kind(code, kinds, message)
    if temporary and not _PERMANENT_KIND.search(kinds):
        return TransientModelError(text, retry_after=retry_after, kind=kind)
    return ModelError(text, retry=False, retry_after=retry_after, kind=kind)


def _error_kind(code: int | None, kinds: str, message: str) -> ErrorKind | None:
    """Return the class of a provider's error. None: it follows from whether the error is temporary."""
    if _NO_CREDIT.search(kinds):
        return "credit"
    if code == 413 or (code in (None, 400, 422) and _TOO_LONG.search(f"{kinds} {message}")):
        return "context length"
    if code is None:
        return "rate limit" if _RATE_LIMIT.search(kinds) else None
    return _KIND_OF_STATUS.get(code) or ("server" if code >= 500 else None)


def explain_status(status: int) -> str:
    """Return the usual meaning of an HTTP error status of a provider."""
    match status:
        case 401:
            return "the key was rejected (401)"
        case 402:
            return "the account has no credit (402)"
        case 403:
            return "not allowed (403)"
        case 404:
            return "model not found, or wrong URL (404)"
        case 413:
            return "the prompt is too large (413)"
        case 429:
            return "too many requests (429)"
        case _ if status >= 500:
            return f"the provider failed ({status})"
        case _:
            return f"the provider refused the request ({status})"


def parse_json_or_none(data: bytes) -> Any:
    """Return the parsed JSON, or None if it is not JSON. A JSON `null` is also None."""
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    try:  # orjson refuses half a surrogate pair, which the next chunk can complete
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def show_excerpt(content: bytes | str) -> str:
    """Return the first 4,000 characters of a server's text as one line.

    It is not shortened further here, because the caller has to remove secrets first. A secret that is cut in two would
    not be found.
    """
    text = content[:4000].decode("utf-8", "replace") if isinstance(content, bytes) else content[:4000]
    return printable_line(text)


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # typed parts
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _parse_usage(usage: dict[str, Any]) -> TokenUsage | None:
    prompt, completion = _count_in(usage, "prompt_tokens"), _count_in(usage, "completion_tokens")
    if prompt is None or completion is None:
        return None
    cached = _count_in(usage.get("prompt_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _count_in(usage, "prompt_cache_hit_tokens")  # DeepSeek
    reasoning = _count_in(usage.get("completion_tokens_details"), "reasoning_tokens")
    return TokenUsage(prompt, completion, cached, reasoning)


def _count_in(fields: Any, name: str) -> int | None:
    value = fields.get(name) if isinstance(fields, dict) else None
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return value if is_count else None


def _reported_name(value: Any) -> str | None:
    """Return an id or a name from a response, as one line of limited length."""
    if not isinstance(value, str):
        return None
    return printable_line(_without_surrogates(value[:_MAX_NAME_CHARACTERS])) or None


def _without_surrogates(text: str) -> str:
    if not _LONE_SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _compact_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        raise ModelError("the response is nested too deeply", retry=False) from None
