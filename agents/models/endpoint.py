"""An HTTP server that models or agents live on: its address, its key, its limits, and the bodies of its replies."""

from __future__ import annotations

import ipaddress
import math
import re
import time
from collections.abc import AsyncGenerator
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

_log = structlog.get_logger("breadcrumbs.models")

_MAX_REASON_CHARACTERS = 400

# Providers quote a part of the key when they turn it away.
_LOOKS_LIKE_A_KEY = re.compile(r"(?i)\b(?:sk|pk|rk|gsk|key|hf|xai)[-_][\w*.-]{6,}|\bbearer\s+\S+")


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """Times in seconds, sizes in bytes."""

    connect: float = 10.0
    read: float = 90.0
    """Between two pieces of an answer; the first one may wait for a model to be loaded."""
    total: float = 300.0
    """Of one call with all its retries."""
    max_text: int = 1 << 20
    retries: int = 3
    backoff: float = 0.5
    """Before the first retry; doubles each time."""
    max_wait: float = 2.0
    """A provider that asks for a longer pause is not waited for here: the worker does that, and works meanwhile."""


@dataclass(frozen=True, slots=True)
class ServerKind:
    """The words in URLs and messages that differ between model servers and ADK servers."""

    label: str
    """With its article, such as "a model server"."""
    settings_name: str
    """The name of this kind in the settings."""
    field: str
    """The field of an agent definition that names it."""
    url_example: str
    request_path: str
    """A path that people paste along with the base URL."""

    def parse_url(self, url: str) -> str:
        """Return the base URL. Raises `StartupError` if it is none."""
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError:
            raise StartupError(f"the URL of {self.label} cannot be read") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise StartupError(f"the URL of {self.label} looks like {self.url_example}")
        if parts.username is not None or parts.password is not None:
            raise StartupError(
                f"put the key of {self.label} into the environment (key_env), not into its URL"
            )
        base = f"{parts.scheme}://{parts.netloc}{parts.path}"
        if parts.query or parts.fragment:
            raise StartupError(f"the URL of {self.label} ends with its path: {base}")
        return base.rstrip("/").removesuffix(self.request_path)


MODEL_SERVER: Final = ServerKind(
    label="a model server",
    settings_name="model endpoint",
    field="model",
    url_example="https://host/v1 or http://127.0.0.1:8000/v1",
    request_path="/chat/completions",
)


class Endpoint:
    """An HTTP server: its address, its key and the connections to it."""

    def __init__(
        self,
        url: str,
        *,
        kind: ServerKind = MODEL_SERVER,
        key: SecretStr | None = None,
        limits: EndpointLimits | None = None,
        streaming: bool = True,
        prefers_max_completion_tokens: bool = False,
    ) -> None:
        self.url = kind.parse_url(url)
        self.limits = limits or EndpointLimits()
        self.streaming = streaming
        self.omit: set[str] = {"max_tokens"} if prefers_max_completion_tokens else set()
        """Optional fields that this server was seen to refuse."""
        self._key = _check_key(key)
        self._client: httpx.AsyncClient | None = None
        if self._key and self.url.startswith("http://") and not is_loopback_url(self.url):
            _log.warning("a model's key travels unencrypted: use https", url=self.url)

    @property
    def client(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(self.limits.read, connect=self.limits.connect, pool=self.limits.total),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
                # A redirect would carry prompt and key to a place that nobody configured.
                follow_redirects=False,
                trust_env=not is_loopback_url(self.url),
                # Reading all the world's certificates takes a fifth of a second: only where they are used.
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
        return headers

    def safe_reason(self, reason: str) -> str:
        """Remove keys from a reason and limit its length: a user may read it."""
        if self._key is not None:
            reason = reason.replace(self._key.get_secret_value(), "***")
        reason = _LOOKS_LIKE_A_KEY.sub("***", reason)
        return reason if len(reason) <= _MAX_REASON_CHARACTERS else reason[: _MAX_REASON_CHARACTERS - 1] + "…"

    async def read_pieces(self, response: httpx.Response, limit: int) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives, at most `limit` bytes of it. Close the generator if you leave early."""
        received = 0
        try:
            async for piece in response.aiter_bytes():
                received += len(piece)
                if received > limit:
                    raise ModelError(
                        f"the answer was cut off at {limit:,} bytes: it is far longer than an answer may be",
                        retry=False,
                    )
                yield piece
        except httpx.TimeoutException:
            raise TransientModelError(
                f"the answer stopped: nothing came for {self.limits.read:g} s"
            ) from None
        except httpx.HTTPError as error:
            raise TransientModelError(
                f"the connection broke in the middle of the answer: {describe_error(error)}"
            ) from None

    async def read_body(self, response: httpx.Response, limit: int) -> bytes:
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
        raise StartupError("the key of a model has characters that no key has: was it copied whole?")
    return SecretStr(text)


def is_loopback_url(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def requested_pause(headers: httpx.Headers) -> float | None:
    """Return the seconds to wait before a retry: from a number, a date, or the milliseconds of OpenAI."""
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
    """Return the data of the events that a piece of an answer completes."""
    try:
        return [event.data for event in parser.feed(piece) if event.data is not None]
    except LineTooLong as error:
        raise ModelError(
            f"a single line of the answer is longer than {error.limit:,} bytes", retry=False
        ) from None


def last_event(parser: Parser) -> bytes | None:
    """Return the data of the event that the answer ended in, if the empty line after it is missing."""
    event = parser.end()
    return None if event is None else event.data
