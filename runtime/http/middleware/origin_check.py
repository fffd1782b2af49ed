"""Checks the Host and Origin headers of every request.

Any web page in a browser can send requests to a server on the same machine. Two checks prevent this:

- The Host header must name this server. Otherwise a page whose domain resolves to 127.0.0.1 would count as a page
  of this server.
- An Origin header must contain an allowed origin, for every method. Otherwise a POST without a CORS preflight would
  be executed, even though the page cannot read the reply.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from breadcrumbs.runtime.http.api.problems import FOREIGN_ORIGIN, MISDIRECTED, problem
from breadcrumbs.runtime.http.api.replies import Header, Reply
from breadcrumbs.runtime.http.middleware.refused_origins import RefusedOrigins
from breadcrumbs.runtime.settings.settings import Settings

_EXTENSION: Final = re.compile(r"(?:chrome|moz)-extension://[A-Za-z0-9-]{1,64}")
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]:/@\s]+)(?::(?P<port>\d{1,5}))?")

SECURITY_HEADERS: Final[list[Header]] = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"vary", b"Origin"),
]
NO_STORE: Final[Header] = (b"cache-control", b"no-store")

_PREFLIGHT: Final[list[Header]] = [
    (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"),
    (
        b"access-control-allow-headers",
        b"Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, X-API-Key, "
        b"traceparent, tracestate",
    ),
    (b"access-control-max-age", b"600"),
]
_EXPOSED: Final[Header] = (
    b"access-control-expose-headers",
    b"ETag, Link, X-Has-More, X-Unindexed-Tags, Idempotency-Replayed, Location, Retry-After, "
    b"RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset",
)


class OriginCheck:
    """Middleware that refuses unknown hosts and origins, and adds security headers to every reply."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._origins = frozenset(origin.rstrip("/").lower() for origin in settings.allowed_origins)
        self._extensions = frozenset(origin.rstrip("/").lower() for origin in settings.allowed_extensions)
        self._hosts = frozenset(
            name.lower().strip("[]") for name in (settings.host, "localhost", *settings.allowed_hosts)
        )
        # A server with API keys on a public address accepts any host name. Its names are not in the settings, and a
        # page under another name has no API key.
        reachable = bool(settings.api_keys) and not settings.on_loopback and not settings.allowed_hosts
        self._any_host = reachable or "*" in settings.allowed_hosts
        self._refused = RefusedOrigins()
        self._is_known_host = lru_cache(maxsize=1024)(self._check_host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        early_reply, extra = self._check(scope)

        # A plain function that returns the awaitable of `send` is cheaper than another coroutine.
        def send_with_headers(message: Any) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                message["headers"] = [*headers, *extra]
                if b"cache-control" not in [name for name, _ in headers]:
                    message["headers"].append(NO_STORE)
            return send(message)

        if early_reply is not None:
            await early_reply.send(send_with_headers, without_body=scope["method"] == "HEAD")
        else:
            await self._app(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> tuple[Reply | None, Sequence[Header]]:
        """Check the Host and Origin headers.

        Returns the reply to a refused request or a preflight, or None, and the headers to add to any reply.
        """
        host = origin = None
        hosts = 0
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
                hosts += 1
            elif name == b"origin":
                origin = value
        # A request without a Host header is accepted. Browsers always send one, and the check is against web pages.
        if host is not None and (hosts > 1 or not self._is_known_host(host)):
            return problem(MISDIRECTED, MISDIRECTED.advice), SECURITY_HEADERS
        if origin is None:
            return None, SECURITY_HEADERS
        text = origin.decode("latin-1")
        if not self._is_allowed_origin(text, host):
            self._refused.add(text, _setting_for(text))
            return problem(FOREIGN_ORIGIN, _origin_advice(text)), SECURITY_HEADERS
        # The server uses no cookies, but RCRT's clients send requests with credentials.
        allowed = [
            *SECURITY_HEADERS,
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-credentials", b"true"),
            _EXPOSED,
        ]
        is_preflight = scope["method"] == "OPTIONS"
        return _preflight(dict(scope["headers"])) if is_preflight else None, allowed

    def _check_host(self, host: bytes) -> bool:
        match = _HOST.fullmatch(host.decode("latin-1").lower())
        if match is None:
            return False
        if self._any_host or match[0] in self._hosts:
            return True
        name = match["name"].strip("[]").rstrip(".")
        if name in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _is_allowed_origin(self, origin: str, host: bytes | None) -> bool:
        if host is not None and origin.lower().partition("://")[2] == host.decode("latin-1").lower():
            # A page of this server, possibly behind a proxy that adds TLS.
            return origin.startswith(("http://", "https://"))
        origin = origin.lower()
        return origin in self._origins or "*" in self._origins or self._is_allowed_extension(origin)

    def _is_allowed_extension(self, origin: str) -> bool:
        if _EXTENSION.fullmatch(origin) is None:
            return False
        scheme = origin.partition("://")[0]
        return origin in self._extensions or f"{scheme}://*" in self._extensions


def _setting_for(origin: str) -> str:
    return "allowed_origins" if _EXTENSION.fullmatch(origin) is None else "allowed_extensions"


def _origin_advice(origin: str) -> str:
    if _EXTENSION.fullmatch(origin) is None:
        return FOREIGN_ORIGIN.advice
    return f"The request came from a browser extension. Add {origin} to the setting `allowed_extensions`."


def _preflight(headers: dict[bytes, bytes]) -> Reply | None:
    if b"access-control-request-method" not in headers:
        return None
    allowed = [*_PREFLIGHT]
    if headers.get(b"access-control-request-private-network") == b"true":
        allowed.append((b"access-control-allow-private-network", b"true"))
    return Reply(204, headers=allowed)
