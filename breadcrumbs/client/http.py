"""What both clients tell httpx, and understand of it."""

from __future__ import annotations

import os
from typing import Any

import httpx

from breadcrumbs.client.core import DEFAULT_URL, Core
from breadcrumbs.client.effects import Lost, Open, Reply, Request

_CONNECT = 5.0


def core_of(url: str | None, token: str | None, api_key: str | None, retries: int) -> Core:
    """What is not given comes from the environment, as for the command line."""
    if token is None and api_key is None:
        token, api_key = os.environ.get("CRUMB_TOKEN"), os.environ.get("CRUMB_API_KEY")
    url = url or os.environ.get("CRUMB_URL") or DEFAULT_URL
    return Core(url, token=token, api_key=api_key, retries=retries)


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


def stream_options(open: Open) -> dict[str, Any]:
    timeout = httpx.Timeout(_CONNECT, read=open.read_timeout)
    return {**request_options(open.request), "timeout": timeout}


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
