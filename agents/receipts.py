"""Receipts: facts about the model calls of a turn, stored with its answer.

A receipt contains the digest of each request and what is needed to rebuild the request. Facts that are equal for many
turns of an agent are in a document of their own, the setup (see `setups.py`). The receipt names it by its digest. The
keys and their values are short, because each answer has a receipt:

    setup, context   digests of the setup and of the parts of the context
    calls            one object per model call:
        request      digest of the body of the request
        id, model    as the response reports them; `model` only if it differs from the request
        by           [name, name in the request] of the model that answered, if it is not that of the setup
        failed       models of a fallback list that did not answer before: [[name, class of the error], …]
        finish       the finish reason
        tokens       [input, output, cached, reasoning], null if not reported, without nulls at the end
        first, ms    milliseconds to the first piece of the reply, and to its end
        attempts     number of requests, if more than one
        dialect      [stream, …omitted fields], if it differs from the setup
        hooks        hooks of the prompt: [name], or [name, digest of the request before it, after it] if it changed
        repair       problems of the reply, if it did not match the output schema; `text` is then the reply
        tools        ids of the tool requests that the reply made. Older versions with `text`: [id, call id]
        step         id of the `agent.step.v1` with the text and the tool calls of the reply
        responses    ids of the responses that other processes wrote, by the ids of their requests
        replayed     true: an earlier attempt made the call, and this one used its stored step
        made_with    setup and context of a replayed call, if they differ from those of the answer
        text         in older versions also: text before the tool calls, if an earlier attempt wrote the requests
    ms               duration of the turn in milliseconds, for agents without model calls
    attempt          attempt of the turn, if it is not the first
    answer_hooks     hooks of the answer: [name], or [name, digest of the text before it, after it] if it changed
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
from breadcrumbs.agents.models.names import public_name
from breadcrumbs.runtime.breadcrumb.text import encodable_text
from breadcrumbs.runtime.schema_names import RECEIPT

MAX_STORED_CHARACTERS: Final = 100_000
"""Maximum length of the arguments of a tool call that is stored with its request."""


class TimedCall:
    """Measures a model call. Passes on its text and its reasoning."""

    def __init__(self, on_delta: OnDelta, observer: CallObserver | None) -> None:
        self._on_delta = on_delta
        self._observer = observer
        self._began = time.perf_counter()
        self._first: float | None = None
        self._reasoning: list[str] = []

    async def write(self, text: str) -> None:
        if self._first is None:
            self._first = time.perf_counter()
        await self._on_delta(text)

    async def reason(self, text: str) -> None:
        if self._first is None:
            self._first = time.perf_counter()
        self._reasoning.append(text)
        if self._observer is not None:
            await self._observer.reason(text)

    @property
    def reasoning(self) -> str:
        """The reasoning of the model in this call."""
        return "".join(self._reasoning)

    def retrying(self, reason: str, seconds: float) -> None:
        if self._observer is not None:
            self._observer.retrying(reason, seconds)

    def switched(self, model: str, *, failed: bool) -> None:
        if self._observer is not None:
            self._observer.switched(model, failed=failed)

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


@dataclass(slots=True)
class RecordedCall:
    """One model call of a turn."""

    sent: SentRequest
    reply: ModelReply
    first_ms: int | None
    duration_ms: int
    model: str
    """Name of the model that answered."""
    reasoning: str = ""
    step_id: UUID | None = None
    """The step that the reply was stored as. None: it was not, because it is the answer."""
    tool_requests: list[UUID] = field(default_factory=list)
    made_with: Mapping[str, Any] | None = None
    """Setup and context of the call. None: those of the answer."""
    responses: dict[str, str] = field(default_factory=dict)
    """Responses of other processes: their ids, by the id of the tool request."""
    is_replayed: bool = False
    """An earlier attempt made the call, and this one uses its stored step."""
    hooks: list[list[str]] = field(default_factory=list)
    """Hooks of the prompt, in the form of the receipt."""
    repair: str = ""
    """Problems of a reply that does not match the output schema. The next call asks for a corrected one."""

    @classmethod
    def of(cls, name: str, request: ModelRequest, reply: ModelReply, timed: TimedCall) -> RecordedCall:
        """Record a call. `name` is the name of the model.

        A model that sends no requests gets the request that it would send, so that it can be verified too.
        """
        first, duration = timed.times()
        name = reply.model or name
        sent = reply.sent or local_request(name, request)
        return cls(sent, reply, first, duration, name, timed.reasoning if reply.tool_calls else "")

    def entry(self, usual: Dialect | None, made_with: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the entry of the receipt. `usual` is the dialect of the setup, `made_with` that of the answer."""
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
        differs = self.made_with is not None and self.made_with != made_with
        fields = self._check_fields() | self._fallback_fields() | self._step_fields()
        if usual is not None:
            fields |= self._dialect_fields(None if differs else usual)
        return entry | fields | ({"made_with": self.made_with} if differs and usual is not None else {})

    def _check_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"hooks": self.hooks} if self.hooks else {}
        if self.repair:
            text = self.reply.text if len(self.reply.text) <= MAX_STORED_CHARACTERS else None
            fields |= {"repair": self.repair, "text": text}
        return fields

    def _fallback_fields(self) -> dict[str, Any]:
        failed = [[public_name(name), kind] for name, kind in self.reply.failed]
        return {"failed": failed} if failed else {}

    def _dialect_fields(self, usual: Dialect | None) -> dict[str, Any]:
        """Return the differences from the dialect of the setup. None: the setup is another one, so return all."""
        dialect, fields = self.sent.dialect, dict[str, Any]()
        if usual is None or (dialect.stream, dialect.omit) != (usual.stream, usual.omit):
            fields["dialect"] = [dialect.stream, *dialect.omit]
        if usual is None or dialect.model != usual.model:
            fields["by"] = [public_name(self.model), dialect.model]
        return fields

    def _step_fields(self) -> dict[str, Any]:
        if self.step_id is None:
            return {}
        fields: dict[str, Any] = {"step": str(self.step_id)}
        if self.tool_requests:
            fields["tools"] = [str(id) for id in self.tool_requests]
        if self.responses:
            fields["responses"] = self.responses
        if self.is_replayed:
            fields["replayed"] = True
        return fields


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

    @property
    def first(self) -> RecordedCall:
        """The first call of this attempt. A replayed call can have another setup."""
        own = (call for call in self.calls if not call.is_replayed)
        return next(own, self.calls[0])


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
