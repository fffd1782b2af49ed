"""Models with the chat completions API: OpenAI, OpenRouter, Ollama, vLLM and compatible servers.

A call returns a complete reply or raises `ModelError`. Temporary errors are retried here, but not after a part of the
answer was streamed. In that case the caller has to decide.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from hashlib import sha256
from secrets import SystemRandom

import anyio
import httpx
import structlog

from breadcrumbs.agents.models.base import (
    Dialect,
    ModelError,
    ModelReply,
    ModelRequest,
    OnDelta,
    SentRequest,
    TransientModelError,
)
from breadcrumbs.agents.models.chat_format import (
    IMAGES,
    ReplyBuilder,
    parse_json_or_none,
    provider_error,
    request_json,
    show_excerpt,
)
from breadcrumbs.agents.models.endpoint import (
    Endpoint,
    describe_error,
    is_loopback_url,
    last_event,
    read_events,
    requested_pause,
)
from breadcrumbs.runtime.sse import Parser
from breadcrumbs.runtime.telemetry.redaction import hide_messages, shortened

_log = structlog.get_logger("breadcrumbs.models")
_random = SystemRandom()

_ENDED = "the connection ended during the answer"
_GRACE_SECONDS = 2.0  # time to wait for the usage and [DONE] after the finish reason
_MAX_BACKOFF_SECONDS = 8.0
_MAX_ERROR_BYTES = 64 << 10

_UNKNOWN_FIELD = re.compile(
    r"(?i)unsupported|not (?:supported|permitted|allowed)|unknown|unrecogni[sz]ed|unexpected|extra"
)
_OPTIONAL_FIELDS = {
    "stream_options": re.compile(r"\bstream_options\b"),
    "max_tokens": re.compile(r"\bmax_tokens\b"),
    "max_completion_tokens": re.compile(r"\bmax_completion_tokens\b"),
    "parallel_tool_calls": re.compile(r"\bparallel_tool_calls\b"),
    "response_format": re.compile(r"\bresponse_format\b|\bjson_schema\b"),
    "prompt_cache_key": re.compile(r"\bprompt_cache_key\b"),
    "stream": re.compile(r"(?i)\bstream(?:ing)?\b"),
}
_ALTERNATIVE = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


@dataclass(frozen=True, slots=True)
class CallTraits:
    """Facts about one model that its endpoint does not know."""

    max_retries: int = 1_000
    """Upper bound of the retries of a call. The limits of the endpoint also apply."""
    accepts_images: bool = False


class OpenAICompatibleModel:
    """One model of an endpoint. A reply with neither text nor tool calls raises `ModelError`.

    `close` also closes the endpoint, unless the endpoint is shared with other models.
    """

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        *,
        name: str | None = None,
        shares_endpoint: bool = False,
        traits: CallTraits | None = None,
    ) -> None:
        self.name = name or f"{endpoint.url}#{model}"
        self.model = model
        self.endpoint = endpoint
        self.traits = traits or CallTraits()
        self._shares_endpoint = shares_endpoint

    def __repr__(self) -> str:
        return f"<OpenAICompatibleModel {self.name}>"

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        limits = self.endpoint.limits
        call = _ModelCall(self, request, on_delta)
        try:
            with anyio.move_on_after(limits.total):
                return await call.run()
        except ModelError as error:
            reason = f"{self.name}: {self.endpoint.safe_reason(error.reason)}"
            raised = ModelError(reason, retry=error.retry, retry_after=error.retry_after, kind=error.kind)
            raised.status = error.status
            raise raised from None
        if call.answering:
            raise ModelError(
                f"{self.name}: cut off after {limits.total:g} s, the answer was not complete",
                retry=False,
            )
        raise ModelError(f"{self.name}: no answer within {limits.total:g} s", retry=True, kind="timeout")

    async def close(self) -> None:
        if not self._shares_endpoint:
            await self.endpoint.close()


class _FieldRefused(Exception):
    """The server refused an optional field, which is left out from now on."""


class _ModelCall:
    """One call of a model, with its retries."""

    def __init__(self, model: OpenAICompatibleModel, request: ModelRequest, on_delta: OnDelta | None) -> None:
        self.answering = False
        """Whether a part of the answer has arrived."""
        self._model = model
        self._endpoint = model.endpoint
        self._limits = model.endpoint.limits
        self._request = request
        self._on_delta = on_delta
        self._has_sent_delta = False
        self._attempts = 0
        self._max_retries = min(self._limits.retries, model.traits.max_retries)

    async def run(self) -> ModelReply:
        """Return the reply. Retries temporary errors until a part of the answer was streamed."""
        retries = 0
        while True:
            try:
                return await self._attempt()
            except _FieldRefused:
                continue
            except TransientModelError as error:
                retries += 1
                wait = self._retry_pause(retries, error.retry_after)
                if self._has_sent_delta or retries > self._max_retries or wait is None:
                    raise
                reason = self._endpoint.safe_reason(error.reason)
                observer = self._request.observer
                _log.warning(
                    "model call failed, retrying",
                    **({} if observer is None else observer.log_fields()),
                    model=self._model.name,
                    reason=self._log_reason(reason),
                    wait=round(wait, 3),
                    retry=retries,
                )
                if observer is not None:
                    observer.retrying(f"{self._model.name}: {reason}", wait)
            await anyio.sleep(wait)

    def _log_reason(self, reason: str) -> str:
        # A provider can quote the prompt in its error.
        return shortened(hide_messages(reason, (message.content for message in self._request.messages)))

    def _retry_pause(self, retries: int, requested: float | None) -> float | None:
        """Return the pause before a retry in seconds, or None if too long."""
        if requested is None:
            wait = min(_MAX_BACKOFF_SECONDS, self._limits.backoff * 2 ** (retries - 1)) * _random.uniform(
                0.5, 1.0
            )
        elif requested <= self._limits.max_wait:
            # Add jitter, so that calls that were refused together do not retry together.
            wait = requested + _random.uniform(0.0, self._limits.backoff / 2)
        else:
            return None
        return wait if anyio.current_time() + wait < anyio.current_effective_deadline() else None

    async def _attempt(self) -> ModelReply:
        self.answering = False
        endpoint, limits = self._endpoint, self._limits
        streaming = endpoint.streaming and "stream" not in endpoint.omit
        omit = endpoint.omit
        if not self._model.traits.accepts_images and any(one.images for one in self._request.messages):
            omit = {*omit, IMAGES}
        dialect = Dialect(self._model.model, streaming, tuple(sorted(omit)))
        body = request_json(dialect, self._request)
        self._attempts += 1
        client = endpoint.client
        http_request = client.build_request(
            "POST",
            f"{endpoint.url}/chat/completions",
            content=body,
            headers=endpoint.headers(stream=streaming),
            # Without streaming, the first byte arrives when the model has finished.
            timeout=client.timeout if streaming else httpx.Timeout(limits.total, connect=limits.connect),
        )
        response = await self._send(client, http_request)
        try:
            if response.status_code != httpx.codes.OK:
                error = await self._read_error(response, body)
                if isinstance(error, ModelError):
                    error.status = response.status_code
                raise error
            builder = ReplyBuilder(
                max_bytes=limits.max_text,
                calls_before=sum(len(message.tool_calls) for message in self._request.messages),
            )
            if "event-stream" in response.headers.get("Content-Type", ""):
                await self._read_events(response, builder)
            else:
                await self._read_whole(response, builder)
            sent = SentRequest(
                dialect, sha256(body).digest(), self._attempts, builder.response_id, builder.model
            )
            return replace(builder.reply(), sent=sent)
        finally:
            await response.aclose()

    async def _send(self, client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        try:
            return await client.send(request, stream=True)
        except httpx.ConnectTimeout:
            raise TransientModelError(
                f"cannot connect to {self._endpoint.url} within {self._limits.connect:g} s", kind="connection"
            ) from None
        except httpx.ConnectError as error:
            hint = "; is it running?" if is_loopback_url(self._endpoint.url) else ""
            reason = f"cannot connect to {self._endpoint.url}: {error}{hint}"
            raise TransientModelError(reason, kind="connection") from None
        except httpx.TimeoutException:
            raise TransientModelError(f"no data within {self._limits.read:g} s", kind="timeout") from None
        except httpx.HTTPError as error:
            reason = f"the connection was lost before the answer: {describe_error(error)}"
            raise TransientModelError(reason, kind="connection") from None

    async def _read_events(self, response: httpx.Response, builder: ReplyBuilder) -> None:
        """Read an event stream up to its last event."""
        parser = Parser(max_line_bytes=self._max_body_bytes)
        async with aclosing(
            self._endpoint.read_pieces(response, 64 * self._limits.max_text + (1 << 20))
        ) as pieces:
            while (piece := await _next_piece(pieces, builder)) is not None:
                for event in read_events(parser, piece):
                    if await self._add_event(event, builder):
                        return
        await self._add_rest(parser, builder)

    async def _add_rest(self, parser: Parser, builder: ReplyBuilder) -> None:
        """Add the rest of a stream that ended without `[DONE]`."""
        rest = last_event(parser)
        if rest is not None and not builder.finished:
            if parse_json_or_none(rest) is None and rest.strip() != b"[DONE]":
                raise TransientModelError(_ENDED, kind="connection")
            if await self._add_event(rest, builder):
                return
        if not builder.finished:
            if not self.answering:
                # Not an event stream, but a complete JSON body or an error page.
                await self._add_body(bytes(parser.stray), builder)
                return
            raise TransientModelError(_ENDED, kind="connection")
        await self._send_delta(builder.end())

    async def _read_whole(self, response: httpx.Response, builder: ReplyBuilder) -> None:
        await self._add_body(await self._endpoint.read_body(response, self._max_body_bytes), builder)

    async def _add_body(self, body: bytes, builder: ReplyBuilder) -> None:
        """Add a body without the content type of an event stream. It can be one nevertheless."""
        start = body.lstrip()
        if not start:
            raise TransientModelError("the response has an empty body")
        if start[:1] == b"<":
            raise ModelError(
                f"the response is a web page, not JSON: check the URL. {show_excerpt(body)}", retry=False
            )
        if not start.startswith((b"data:", b"event:", b":")):
            text = builder.add_whole(body)
            await self._send_reasoning(builder)
            await self._send_delta(text)
            return
        parser = Parser()
        rest = [*read_events(parser, body), last_event(parser)]
        for event in rest:
            if event is not None and await self._add_event(event, builder):
                return
        if not builder.finished:
            raise TransientModelError(_ENDED, kind="connection")
        await self._send_delta(builder.end())

    async def _add_event(self, event: bytes, builder: ReplyBuilder) -> bool:
        """Add an event. Return whether it was the last one."""
        if event.strip() == b"[DONE]":
            await self._send_delta(builder.end())
            return True
        text = builder.add_chunk(event)
        self.answering = True
        await self._send_reasoning(builder)
        await self._send_delta(text)
        return False

    async def _send_reasoning(self, builder: ReplyBuilder) -> None:
        reasoning, observer = builder.take_reasoning(), self._request.observer
        if reasoning and observer is not None:
            await observer.reason(reasoning)

    async def _send_delta(self, text: str) -> None:
        if text and self._on_delta is not None:
            self._has_sent_delta = True
            await self._on_delta(text)

    @property
    def _max_body_bytes(self) -> int:
        # JSON can escape one byte with six.
        return 6 * self._limits.max_text + (1 << 20)

    async def _read_error(self, response: httpx.Response, sent: bytes) -> ModelError | _FieldRefused:
        """Return the exception for an error response. `sent` is the body of the request."""
        status = response.status_code
        if 300 <= status < 400:
            return ModelError(
                f"the server redirects ({status}), and redirects are not followed: set the URL to the target",
                retry=False,
            )
        body = bytearray()
        try:
            async with aclosing(self._endpoint.read_pieces(response, _MAX_ERROR_BYTES)) as pieces:
                async for piece in pieces:
                    body += piece
        except ModelError:
            pass  # report the status alone
        text = show_excerpt(bytes(body))
        if status in (400, 422) and self._omits_refused_field(text, sent):
            return _FieldRefused()
        parsed = parse_json_or_none(bytes(body))
        error = parsed.get("error") or parsed if isinstance(parsed, dict) else None
        retry_after = requested_pause(response.headers)
        if error:
            return provider_error(error, status=status, retry_after=retry_after)
        if body.lstrip()[:1] == b"<":
            text = "a web page"
        return provider_error(text or "no details", status=status, retry_after=retry_after)

    def _omits_refused_field(self, complaint: str, sent: bytes) -> bool:
        """Return whether the request can be repeated without a field that the server refused."""
        if not _UNKNOWN_FIELD.search(complaint):
            return False
        omit = self._endpoint.omit
        fields = parse_json_or_none(sent)
        for field, mention in _OPTIONAL_FIELDS.items():
            if field not in fields or not mention.search(complaint):
                continue
            if field in omit:
                return True  # another call added it while this one was running
            # Never omit both names: a limit that the agent sets must not be lost.
            if _ALTERNATIVE.get(field) not in omit:
                omit.add(field)
                _log.info("model server refused a field, omitting it", url=self._endpoint.url, field=field)
                return True
        return False


async def _next_piece(pieces: AsyncGenerator[bytes], builder: ReplyBuilder) -> bytes | None:
    """Return the next piece, or None at the end. Waits only `_GRACE_SECONDS` after the finish reason."""
    with anyio.move_on_after(_GRACE_SECONDS if builder.finished else math.inf):
        try:
            return await anext(pieces, None)
        except TransientModelError:
            if not builder.finished:
                raise
    return None
