"""HTTP endpoint of a model server or an ADK server, with functions for its responses."""

from __future__ import annotations

import ipaddress
import math
import re
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import httpx
import structlog
from pydantic import SecretStr

from breadcrumbs.agents.models.base import ModelError, TransientModelError
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.sse import LineTooLong, Parser
from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.telemetry.trace_context import trace_headers

_log = structlog.get_logger("breadcrumbs.models")

_MAX_REASON_CHARACTERS = 400

# Providers quote a part of the key when they reject it.
_LOOKS_LIKE_A_KEY = re.compile(r"(?i)\b(?:sk|pk|rk|gsk|key|hf|xai)[-_][\w*.-]{6,}|\bbearer\s+\S+")


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """Timeouts, retries and sizes of calls. Times are in seconds, sizes in bytes."""

    connect: float = 10.0
    read: float = 90.0
    """Timeout between two pieces of a reply. The first piece can take long if the server loads the model."""
    total: float = 300.0
    """Timeout of one call with all its retries."""
    max_text: int = 1 << 20
    """Maximum size of the text of a reply."""
    retries: int = 3
    backoff: float = 0.5
    """Pause before the first retry. It doubles with each retry."""
    max_wait: float = 2.0
    """Longest pause that a call waits. If the provider requests more, the worker retries the turn later."""


@dataclass(frozen=True, slots=True)
class ServerKind:
    """The differences between model servers and ADK servers in URLs and error messages."""

    label: str
    """Name with its article, such as "a model server"."""
    settings_name: str
    """Name of an entry in the settings."""
    field: str
    """The field of an agent definition that names the server."""
    url_example: str
    request_path: str
    """Path to remove from the end of a URL. Users often copy it with the base URL."""

    def parse_url(self, url: str) -> str:
        """Return the base URL. Raises `StartupError` if it is invalid."""
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError:
            raise StartupError(f"the URL of {self.label} is invalid: use {self.url_example}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise StartupError(f"the URL of {self.label} is invalid: use {self.url_example}")
        if parts.username is not None or parts.password is not None:
            raise StartupError(
                f"the URL of {self.label} contains a key: set the key in the environment (key_env) instead"
            )
        base = f"{parts.scheme}://{parts.netloc}{parts.path}"
        if parts.query or parts.fragment:
            raise StartupError(f"the URL of {self.label} must not have a query or fragment: use {base}")
        return base.rstrip("/").removesuffix(self.request_path)


MODEL_SERVER: Final = ServerKind(
    label="a model server",
    settings_name="model endpoint",
    field="model",
    url_example="https://host/v1 or http://127.0.0.1:8000/v1",
    request_path="/chat/completions",
)


OMITTED: Final = frozenset(("prompt_cache_key",))
"""Optional request fields that are sent only to servers which are known to accept them."""


class Endpoint:
    """An HTTP server: its URL, its key and the connections to it."""

    def __init__(
        self,
        url: str,
        *,
        kind: ServerKind = MODEL_SERVER,
        key: SecretStr | None = None,
        limits: EndpointLimits | None = None,
        streaming: bool = True,
        omit: Collection[str] = OMITTED,
    ) -> None:
        self.url = kind.parse_url(url)
        self.limits = limits or EndpointLimits()
        self.streaming = streaming
        self.omit = set(omit)
        """Optional request fields that are not sent, because this server refuses them or may refuse them."""
        self._key = _check_key(key)
        self._client: httpx.AsyncClient | None = None
        if self._key and self.url.startswith("http://") and not is_loopback_url(self.url):
            _log.warning("the key is sent unencrypted, use https", url=self.url)

    @property
    def client(self) -> httpx.AsyncClient:
        """The HTTP client, created at the first use."""
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(self.limits.read, connect=self.limits.connect, pool=self.limits.total),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
                # A redirect would send the prompt and the key to a server that is not configured.
                follow_redirects=False,
                trust_env=not is_loopback_url(self.url),
                # Loading the CA certificates takes 0.2 s, so load them only for https.
                verify=self.url.startswith("https://"),
            )
        return self._client

    def headers(self, *, stream: bool) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json" if stream else "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "breadcrumbs",
        }
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.get_secret_value()}"
        if (spans := tracing.active) is not None and spans.propagates:
            headers |= trace_headers(tracing.carried.get())
        return headers

    def safe_reason(self, reason: str) -> str:
        """Remove keys from a reason and limit its length. A user can then read it."""
        if self._key is not None:
            reason = reason.replace(self._key.get_secret_value(), "***")
        reason = _LOOKS_LIKE_A_KEY.sub("***", reason)
        return reason if len(reason) <= _MAX_REASON_CHARACTERS else reason[: _MAX_REASON_CHARACTERS - 1] + "…"

    async def read_pieces(self, response: httpx.Response, limit: int) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives. Raises `ModelError` above `limit` bytes.

        Close the generator if you stop before the end.
        """
        received = 0
        try:
            async for piece in response.aiter_bytes():
                received += len(piece)
                if received > limit:
                    raise ModelError(
                        f"the answer was cut off at {limit:,} bytes, the maximum size of a response",
                        retry=False,
                    )
                yield piece
        except httpx.TimeoutException:
            reason = f"the answer stopped: no data for {self.limits.read:g} s"
            raise TransientModelError(reason, kind="timeout") from None
        except httpx.HTTPError as error:
            reason = f"the connection was lost during the answer: {describe_error(error)}"
            raise TransientModelError(reason, kind="connection") from None

    async def read_body(self, response: httpx.Response, limit: int) -> bytes:
        """Return the whole body. Raises `ModelError` above `limit` bytes."""
        body = bytearray()
        async with aclosing(self.read_pieces(response, limit)) as pieces:
            async for piece in pieces:
                body += piece
        return bytes(body)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def __repr__(self) -> str:
        return f"<Endpoint {self.url}>"


def _check_key(key: SecretStr | None) -> SecretStr | None:
    if key is None:
        return None
    text = key.get_secret_value().strip()
    if not text:
        return None
    if not all("!" <= char <= "~" for char in text):
        raise StartupError("the key contains spaces or non-ASCII characters: copy it again")
    return SecretStr(text)


def is_loopback_url(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def requested_pause(headers: httpx.Headers) -> float | None:
    """Return the pause that a server requests, in seconds, or None.

    It comes from `Retry-After` (a number or a date), or from OpenAI's `retry-after-ms`.
    """
    seconds: float | None = None
    try:
        if "retry-after-ms" in headers:
            seconds = float(headers["retry-after-ms"]) / 1000
        elif "retry-after" in headers:
            seconds = float(headers["retry-after"])
    except ValueError:
        try:
            moment = parsedate_to_datetime(headers["retry-after"])
        except (ValueError, KeyError):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.fromtimestamp(time.time(), UTC)).total_seconds()
    if seconds is None or not math.isfinite(seconds):
        return None
    return max(0.0, seconds)


def describe_error(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


def read_events(parser: Parser, piece: bytes) -> list[bytes]:
    """Return the data of the events that this piece completes."""
    try:
        return [event.data for event in parser.feed(piece) if event.data is not None]
    except LineTooLong as error:
        raise ModelError(f"a line of the answer is longer than {error.limit:,} bytes", retry=False) from None


def last_event(parser: Parser) -> bytes | None:
    """Return the data of a last event without an empty line after it, or None."""
    event = parser.end()
    return None if event is None else event.data
