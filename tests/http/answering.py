"""Workers, models and requests for tests of turns over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import orjson

from breadcrumbs.agents.models.base import ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.sse import Parser
from tests.http.conftest import Site
from tests.support.conversations import Working, eventually, opened, spoken, working

LONG = "30"
"""Timeout in seconds that no test reaches."""


def echo(request: ModelRequest) -> str:
    return f"you said: {spoken(request)[-1][1]}"


class Gate:
    """A model that waits until the test sets `open`."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.open = anyio.Event()
        self.stopped = False

    async def __call__(self, request: ModelRequest) -> str:
        self.begun.set()
        try:
            await self.open.wait()
        except BaseException:
            self.stopped = True
            raise
        return echo(request)


def namespace_of(site: Site) -> str:
    return site.store.keys.meta.decode().removesuffix(":meta")


@asynccontextmanager
async def answering(site: Site, model: Any = None, **options: Any) -> AsyncIterator[Working]:
    """Run workers with their own connection. They share only the store with the server."""
    async with (
        opened(site.url, lanes=site.store.lanes, namespace=namespace_of(site)) as store,
        working(store, model or FunctionModel(echo), owner=DEVELOPER, **options) as team,
    ):
        yield team


async def say(
    site: Site,
    session: str,
    text: str,
    *,
    wait: str | None = LONG,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    answer = await site.client.post(
        f"/sessions/{session}/messages",
        json={"message": text},
        params={} if wait is None else {"wait": wait},
        headers=headers,
        timeout=60,
    )
    assert answer.status_code == (201 if wait is None else status), answer.text
    said: dict[str, Any] = answer.json()
    return said


async def stream(site: Site, session: str, text: str, **options: Any) -> list[tuple[str, Any]]:
    """Return the events of a streamed response, each with its data."""
    headers = {"Accept": "text/event-stream", **options.pop("headers", {})}
    answer = await site.client.post(
        f"/sessions/{session}/messages", json={"message": text}, headers=headers, timeout=60, **options
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "content-length" not in answer.headers
    return [(event.event, orjson.loads(event.text)) for event in Parser().feed(answer.content)]


async def messages(site: Site, session: str) -> list[dict[str, Any]]:
    answer = await site.client.get(f"/sessions/{session}/messages", params={"limit": 1000})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


async def texts(site: Site, session: str, role: str | None = None) -> list[str]:
    return [one["text"] for one in await messages(site, session) if role in (None, one["role"])]


async def patch(site: Site, session: str, **change: Any) -> dict[str, Any]:
    answer = await site.client.patch(f"/sessions/{session}", json=change)
    assert answer.status_code == 200, answer.text
    changed: dict[str, Any] = answer.json()
    return changed


async def retry(site: Site, session: str, **body: Any) -> str:
    answer = await site.client.post(f"/sessions/{session}/retry", json=body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["ok"] is True
    return str(answer.json()["message_id"])


async def retry_letters(site: Site) -> None:
    for letter in (await site.client.get("/dlq")).json():
        answer = await site.client.post(f"/dlq/{letter['id']}/retry")
        assert answer.status_code == 200, answer.text


async def has(site: Site, session: str, *expected: str) -> None:
    """Wait until the session has exactly these answers."""

    async def look() -> bool:
        return await texts(site, session, "assistant") == list(expected)

    await eventually(look, f"expected the answers {expected}")


async def more(team: Working, session: str, schema: str, than: int) -> bool:
    return len(await team.all(session, schema)) > than
