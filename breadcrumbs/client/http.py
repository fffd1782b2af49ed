"""Conversion of settings, requests and replies to and from httpx."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from breadcrumbs.client.replies import ConnectionLost, Reply
from breadcrumbs.client.requests import Request

DEFAULT_URL: Final = "http://127.0.0.1:8081"

_CONNECT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """Address of a server, and the headers that authenticate the client."""

    url: str
    headers: dict[str, str] = field(repr=False)

    @classmethod
    def resolve(cls, url: str | None, token: str | None, api_key: str | None) -> ServerAccess:
        """Return the access for these values. Missing ones are read from the environment.

        Credentials are read from the environment only if both `token` and `api_key` are missing.
        """
        if token is None and api_key is None:
            token, api_key = os.environ.get("CRUMB_TOKEN"), os.environ.get("CRUMB_API_KEY")
        url = (url or os.environ.get("CRUMB_URL") or DEFAULT_URL).rstrip("/")
        check_address(url)
        return cls(url, _credentials(token, api_key))

    def client_options(self, timeout: float) -> dict[str, Any]:
        """Return the arguments for an httpx client."""
        is_local = check_address(self.url) in ("127.0.0.1", "localhost", "::1")
        # Without TLS and proxies no certificate is verified. Loading those of the system would take 30 ms.
        verify = (
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_local and self.url.startswith("http:") else True
        )
        return {
            "base_url": self.url,
            "headers": self.headers,
            "timeout": httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
            # A proxy from the environment cannot reach the loopback address of this machine. Do not use it there.
            "trust_env": not is_local,
            "verify": verify,
        }


def check_address(url: str) -> str:
    """Return the host of an address. Raise `ValueError` if httpx cannot use the address."""
    host = _parse_host(url)
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not an address ({error}): use one such as {DEFAULT_URL}") from None
    return host


def send_options(request: Request, timeout: float | None, default: httpx.Timeout) -> dict[str, Any]:
    """Return the arguments for httpx's `request`. A `timeout` shorter than the default replaces it."""
    options = _request_options(request)
    if timeout is not None and (default.read is None or timeout < default.read):
        options["timeout"] = httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS))
    return options


def stream_options(request: Request, read_timeout: float) -> dict[str, Any]:
    """Return the arguments for httpx's `build_request`, for a stream."""
    timeout = httpx.Timeout(_CONNECT_SECONDS, read=read_timeout)
    return {**_request_options(request), "timeout": timeout}


def is_stream(response: httpx.Response) -> bool:
    """Return whether a response is an event stream."""
    return response.is_success and response.headers.get("content-type", "").startswith("text/event-stream")


def to_reply(response: httpx.Response) -> Reply:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Reply(response.status_code, headers, response.content)


def connection_lost(error: httpx.HTTPError) -> ConnectionLost:
    return ConnectionLost(
        str(error) or type(error).__name__,
        refused=isinstance(error, httpx.ConnectError | httpx.ConnectTimeout),
        timed_out=isinstance(error, httpx.TimeoutException),
    )


def _request_options(request: Request) -> dict[str, Any]:
    options: dict[str, Any] = {
        "method": request.method,
        "url": request.path,
        "headers": dict(request.headers),
    }
    if request.params:
        options["params"] = list(request.params)
    if request.content is not None:
        options["content"] = request.content
    return options


def _credentials(token: str | None, api_key: str | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    if token:
        headers["authorization"] = f"Bearer {token}"
    elif api_key:
        headers["x-api-key"] = api_key
    if not all(value.isascii() and value.isprintable() for value in headers.values()):
        raise ValueError(
            "the token or API key contains characters that are not printable ASCII: check its value"
        )
    return headers


def _parse_host(url: str) -> str:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts.hostname
    except ValueError:  # such as a port that is not a number, or an incomplete IPv6 address
        pass
    raise ValueError(f"{url!r} is not an address: use one such as {DEFAULT_URL}")
