"""What both clients tell httpx, and understand of it."""

from __future__ import annotations

import os
from typing import Any

import httpx

from breadcrumbs.client.core import DEFAULT_URL, Core, host_of
from breadcrumbs.client.effects import Lost, Open, Reply, Request, Send

_CONNECT = 5.0


def core_of(url: str | None, token: str | None, api_key: str | None, retries: int) -> Core:
    """What is not given comes from the environment, as for the command line."""
    if token is None and api_key is None:
        token, api_key = os.environ.get("CRUMB_TOKEN"), os.environ.get("CRUMB_API_KEY")
    url = url or os.environ.get("CRUMB_URL") or DEFAULT_URL
    core = Core(url, token=token, api_key=api_key, retries=retries)
    check_address(core.url)
    return core


def check_address(url: str) -> str:
    """The host of an address that httpx can use; a ValueError where it cannot."""
    host = host_of(url)
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not an address ({error}): use one such as {DEFAULT_URL}") from None
    return host


def client_options(core: Core, timeout: float) -> dict[str, Any]:
    return {
        "base_url": core.url,
        "headers": core.headers,
        "timeout": httpx.Timeout(timeout, connect=min(timeout, _CONNECT)),
        "trust_env": not core.on_this_machine,
    }


def request_options(request: Request) -> dict[str, Any]:
    options: dict[str, Any] = {
        "method": request.method,
        "url": request.path,
        "headers": dict(request.headers),
    }
    if request.params:
        options["params"] = list(request.params)
    if request.body is not None:
        options["content"] = request.body
    return options


def send_options(send: Send, usual: httpx.Timeout) -> dict[str, Any]:
    options = request_options(send.request)
    if send.timeout is not None and (usual.read is None or send.timeout < usual.read):
        options["timeout"] = httpx.Timeout(send.timeout, connect=min(send.timeout, _CONNECT))
    return options


def stream_options(open: Open) -> dict[str, Any]:
    timeout = httpx.Timeout(_CONNECT, read=open.read_timeout)
    return {**request_options(open.request), "timeout": timeout}


def is_stream(response: httpx.Response) -> bool:
    """Whether the server has begun to stream; a page of something else is not that."""
    return response.is_success and response.headers.get("content-type", "").startswith("text/event-stream")


def reply_of(response: httpx.Response) -> Reply:
    return Reply(
        response.status_code,
        {name.lower(): value for name, value in response.headers.items()},
        response.content,
    )


def lost(error: httpx.HTTPError) -> Lost:
    return Lost(
        str(error) or type(error).__name__,
        refused=isinstance(error, httpx.ConnectError | httpx.ConnectTimeout),
        timed_out=isinstance(error, httpx.TimeoutException),
    )
