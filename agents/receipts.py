"""Receipts: facts about the model calls of a turn, stored with its answer.

A receipt contains the digest of each request and what is needed to rebuild the request. Facts that are equal for many
turns of an agent are in a document of their own, the setup (see `setups.py`). The receipt names it by its digest. The
keys and their values are short, because each answer has a receipt:

    setup, context   digests of the setup and of the parts of the context
    calls            one object per model call:
        request      digest of the body of the request
        id, model    as the response reports them; `model` only if it differs from the request
        finish       the finish reason
        tokens       [input, output, cached, reasoning], null if not reported, without nulls at the end
        first, ms    milliseconds to the first piece of the reply, and to its end
        attempts     number of requests, if more than one
        dialect      [stream, …omitted fields], if it differs from the setup
        tools        ids of the tool requests that the reply made; with `text`: [id, call id]
        text         text before the tool calls, if an earlier attempt wrote the tool requests; null if too long
    ms               duration of the turn in milliseconds, for agents without model calls
    attempt          attempt of the turn, if it is not the first
    items            references of the items, for agents without a context config
    copy_of          id of the original answer. Only in forks, instead of everything else
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from breadcrumbs.agents.models.base import (
    CallObserver,
    Dialect,
    ModelReply,
    ModelRequest,
    OnDelta,
    SentRequest,
    ToolSpec,
)
from breadcrumbs.agents.models.chat_format import CACHE_KEY, request_json
from breadcrumbs.runtime.breadcrumb.text import encodable_text
from breadcrumbs.runtime.schema_names import RECEIPT

MAX_STORED_CHARACTERS: Final = 100_000
"""Maximum length of the arguments of a tool call, and of the text before it, that is stored for a rebuilt request."""


class TimedCall:
    """Measures a model call. Passes on its text and its reasoning."""

    def __init__(self, on_delta: OnDelta, observer: CallObserver | None) -> None:
        self._on_delta = on_delta
        self._observer = observer
        self._began = time.perf_counter()
        self._first: float | None = None

    async def write(self, text: str) -> None:
        if self._first is None:
            self._first = time.perf_counter()
        await self._on_delta(text)

    async def reason(self, text: str) -> None:
        if self._first is None:
            self._first = time.perf_counter()
        if self._observer is not None:
            await self._observer.reason(text)

    def retrying(self, reason: str, seconds: float) -> None:
        if self._observer is not None:
            self._observer.retrying(reason, seconds)

    def log_fields(self) -> Mapping[str, str]:
        return {} if self._observer is None else self._observer.log_fields()

    @property
    def first_seconds(self) -> float | None:
        """Seconds to the first piece, or None if there was none."""
        return None if self._first is None else self._first - self._began

    def times(self) -> tuple[int | None, int]:
        """Return the milliseconds to the first piece, or None, and the milliseconds until now."""
        first = None if self._first is None else round((self._first - self._began) * 1000)
        return first, round((time.perf_counter() - self._began) * 1000)


@dataclass(frozen=True, slots=True)
class ToolUseRecord:
    """A tool request that a reply made."""

    request_id: UUID
    call_id: str
    is_repeated: bool
    """An earlier attempt wrote the tool request. Its call id and its text can differ from those of this attempt."""


@dataclass(slots=True)
class RecordedCall:
    """One model call of a turn."""

    sent: SentRequest
    reply: ModelReply
    first_ms: int | None
    duration_ms: int
    tools: list[ToolUseRecord] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, request: ModelRequest, reply: ModelReply, timed: TimedCall) -> RecordedCall:
        """Record a call. `name` is the name of the model.

        A model that sends no requests gets the request that it would send, so that it can be verified too.
        """
        first, duration = timed.times()
        return cls(reply.sent or local_request(name, request), reply, first, duration)

    def entry(self, usual: Dialect) -> dict[str, Any]:
        """Return the entry of the receipt. `usual` is the dialect of the setup."""
        sent, usage = self.sent, self.reply.usage
        entry: dict[str, Any] = {"request": encode_digest(sent.digest), "ms": self.duration_ms}
        if self.first_ms is not None:
            entry["first"] = self.first_ms
        if self.reply.finish_reason is not None:
            entry["finish"] = encodable_text(self.reply.finish_reason[:64])
        if sent.response_id is not None:
            entry["id"] = sent.response_id
        if sent.model is not None and sent.model != sent.dialect.model:
            entry["model"] = sent.model
        if usage is not None:
            tokens = [
                usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens,
            ]  # fmt: skip
            while tokens[-1] is None:
                tokens.pop()
            entry["tokens"] = tokens
        if sent.attempts > 1:
            entry["attempts"] = sent.attempts
        if sent.dialect != usual:
            entry["dialect"] = [sent.dialect.stream, *sent.dialect.omit]
        return entry | self._tool_fields()

    def _tool_fields(self) -> dict[str, Any]:
        if not self.tools:
            return {}
        if not any(tool.is_repeated for tool in self.tools):
            return {"tools": [str(tool.request_id) for tool in self.tools]}
        text = self.reply.text if len(self.reply.text) <= MAX_STORED_CHARACTERS else None
        return {"tools": [[str(tool.request_id), tool.call_id] for tool in self.tools], "text": text}


def local_request(name: str, request: ModelRequest) -> SentRequest:
    """Return the request that a model without a server would send."""
    dialect = Dialect(name, omit=(CACHE_KEY,))
    return SentRequest(dialect, sha256(request_json(dialect, request)).digest())


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """The model calls of a turn, with the model and the tools."""

    model: str
    """Name of the model."""
    tools: tuple[ToolSpec, ...] = ()
    calls: list[RecordedCall] = field(default_factory=list)


def has_receipt(context: Mapping[str, Any]) -> bool:
    """Return whether the context of an answer has a receipt. Tool requests have the same key for other facts."""
    receipt = context.get(RECEIPT)
    return isinstance(receipt, dict) and ("setup" in receipt or "copy_of" in receipt)


def encode_digest(digest: bytes) -> str:
    """Encode a SHA-256 digest in 43 characters."""
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def decode_digest(text: str) -> bytes:
    """Decode a digest of a receipt. Raise `ValueError` if it is not one."""
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 32:
        raise ValueError("a digest has 32 bytes")
    return raw
