"""Checks the Host and Origin headers of every request.

A page in somebody's browser can send requests to a server on that machine. Two things stop it: the Host
header must name this server (or a page whose name resolves to 127.0.0.1 would count as our own), and an
Origin header, where there is one, must be one that was let in, whatever the method: a POST that a page may
send without asking first would otherwise be carried out, even if the page never sees the answer.
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
        b"Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, X-API-Key",
    ),
    (b"access-control-max-age", b"600"),
]
_EXPOSED: Final[Header] = (
    b"access-control-expose-headers",
    b"ETag, Link, X-Has-More, Idempotency-Replayed, Location, Retry-After, "
    b"RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset",
)


class OriginCheck:
    """Middleware that refuses foreign hosts and origins, and adds the security headers to every reply."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._origins = frozenset(origin.rstrip("/").lower() for origin in settings.allowed_origins)
        self._extensions = frozenset(origin.rstrip("/").lower() for origin in settings.allowed_extensions)
        self._hosts = frozenset(
            name.lower().strip("[]") for name in (settings.host, "localhost", *settings.allowed_hosts)
        )
        # With API keys and on a public address the name says little, and nobody can guess it.
        reachable = bool(settings.api_keys) and not settings.on_loopback and not settings.allowed_hosts
        self._any_host = reachable or "*" in settings.allowed_hosts
        self._names_us = lru_cache(maxsize=1024)(self._check_host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        early_reply, extra = self._check(scope)

        # A plain function that returns the awaitable of `send` is cheaper than a coroutine of its own.
        def guarded(message: Any) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                message["headers"] = [*headers, *extra]
                if b"cache-control" not in [name for name, _ in headers]:
                    message["headers"].append(NO_STORE)
            return send(message)

        if early_reply is not None:
            await early_reply.send(guarded, without_body=scope["method"] == "HEAD")
        else:
            await self._app(scope, receive, guarded)

    def _check(self, scope: Scope) -> tuple[Reply | None, Sequence[Header]]:
        """Check the Host and Origin headers.

        Returns the reply if the request ends here (a refusal or a preflight), and the headers to add to any reply.
        """
        host = origin = None
        hosts = 0
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
                hosts += 1
            elif name == b"origin":
                origin = value
        # HTTP/1.0 has no Host header, and no browser speaks it.
        if host is not None and (hosts > 1 or not self._names_us(host)):
            return problem(MISDIRECTED, MISDIRECTED.advice), SECURITY_HEADERS
        if origin is None:
            return None, SECURITY_HEADERS
        text = origin.decode("latin-1")
        if not self._lets_in(text, host):
            return problem(FOREIGN_ORIGIN, _origin_advice(text)), SECURITY_HEADERS
        # There are no cookies here; RCRT's clients ask for credentials all the same.
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

    def _lets_in(self, origin: str, host: bytes | None) -> bool:
        if host is not None and origin.lower().partition("://")[2] == host.decode("latin-1").lower():
            return origin.startswith(
                ("http://", "https://")
            )  # our own pages, also behind a proxy that adds TLS
        known = origin.lower()
        return known in self._origins or "*" in self._origins or self._is_allowed_extension(known)

    def _is_allowed_extension(self, origin: str) -> bool:
        if _EXTENSION.fullmatch(origin) is None:
            return False
        scheme = origin.partition("://")[0]
        return origin in self._extensions or f"{scheme}://*" in self._extensions


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
