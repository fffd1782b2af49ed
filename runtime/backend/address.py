"""Addresses of Redis servers, read from URLs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from breadcrumbs.runtime.errors import StartupError


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one server and the login for it."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str = ""
    """Path of a Unix socket. If it is set, host and port are ignored."""
    username: str | None = None
    password: str | None = None
    database: int = 0
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


def parse_address(url: str) -> Address:
    """Parse a redis://, rediss:// or unix:// URL with the parser of redis-py."""
    from redis.asyncio.connection import (
        parse_url,
    )  # redis-py is slow to import, and most commands need no address

    try:
        options: dict[str, Any] = dict(parse_url(url))
    except ValueError as error:
        raise StartupError(
            f"{hide_password(url)!r} is not a Redis address: {error}. Use redis://host:6379/0, "
            "rediss:// for TLS, unix:///path or redis+cluster://host:port"
        ) from error
    return Address(
        host=_text(options.get("host")) or "127.0.0.1",
        port=int(_text(options.get("port")) or 6379),
        path=_text(options.get("path")) or "",
        username=_text(options.get("username")),
        password=_text(options.get("password")),
        database=int(_text(options.get("db")) or 0),
        tls=_tls_context(options) if urlsplit(url).scheme == "rediss" else None,
    )


def hide_password(url: str) -> str:
    """Return the URL with its password replaced by `…`, for messages."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":…@", 1)


def _tls_context(options: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=_text(options.get("ssl_ca_certs")))
    if options.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := _text(options.get("ssl_certfile")):
        context.load_cert_chain(certificate, _text(options.get("ssl_keyfile")))
    return context


def _text(value: object) -> str | None:
    return None if value is None else str(value)
