"""About the server itself: is it alive, how is it doing, what can it do."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST

from breadcrumbs.runtime.http.api.operations import Answer, Call, Operation
from breadcrumbs.runtime.http.api.replies import HTML, JSON, Reply
from breadcrumbs.runtime.http.api.schemas import Health, Swept

VERSION: Final = version("breadcrumbs")


async def health(call: Call) -> Reply:
    answer: Health = {"status": "ok", "version": VERSION}
    return Reply.json(answer)


async def ready(call: Call) -> Reply:
    await call.services.store.ping()
    return await health(call)


async def metrics(call: Call) -> Reply:
    return Reply(200, call.services.metrics.render(), CONTENT_TYPE_LATEST.encode())


async def run_hygiene(call: Call) -> Reply:
    report = await call.services.hygiene.run_once()
    answer: Swept = {
        "ok": report.errors == 0,
        "purged": report.purged,
        "trimmed": report.trimmed,
        "duration_ms": report.duration_ms,
    }
    return Reply.json(answer)


async def hygiene_stats(call: Call) -> Reply:
    return Reply.json(await call.services.hygiene.stats())


async def openapi(call: Call) -> Reply:
    return Reply(200, call.services.pages.openapi(), JSON, [(b"cache-control", b"no-cache")])


async def docs(call: Call) -> Reply:
    pages = call.services.pages
    headers = [(b"content-security-policy", pages.docs_policy), (b"cache-control", b"no-cache")]
    return Reply(200, pages.docs(), HTML, headers)


OPERATIONS: Final = (
    Operation(
        id="health",
        method="GET",
        path="/health",
        group="System",
        summary="Is the process alive?",
        handle=health,
        uses_store="no",
        answers=(Answer(200, "It is.", Health),),
    ),
    Operation(
        id="ready",
        method="GET",
        path="/ready",
        group="System",
        summary="Can it serve requests now?",
        handle=ready,
        answers=(Answer(200, "It can.", Health),),
    ),
    Operation(
        id="metrics",
        method="GET",
        path="/metrics",
        group="System",
        summary="Numbers for Prometheus",
        handle=metrics,
        uses_store="no",
        answers=(Answer(200, "Prometheus text format.", media_type="text/plain"),),
    ),
    Operation(
        id="runHygiene",
        method="POST",
        path="/hygiene/run",
        group="System",
        summary="Remove what has expired, now",
        description="It also runs by itself. `ok` is false where a part of it failed; the log says why.",
        handle=run_hygiene,
        uses_store="writes",
        answers=(Answer(200, "What it did.", Swept),),
    ),
    Operation(
        id="hygieneStats",
        method="GET",
        path="/hygiene/stats",
        group="System",
        summary="What hygiene has done so far",
        handle=hygiene_stats,
        answers=(Answer(200, "Counters.", dict[str, Any]),),
    ),
    Operation(
        id="openapi",
        method="GET",
        path="/openapi.json",
        group="System",
        summary="This description, for programs",
        handle=openapi,
        uses_store="no",
        answers=(Answer(200, "OpenAPI 3.1.", dict[str, Any]),),
    ),
    Operation(
        id="docs",
        method="GET",
        path="/docs",
        group="System",
        summary="This description, for people",
        handle=docs,
        uses_store="no",
        answers=(Answer(200, "A page.", media_type="text/html"),),
    ),
    Operation(
        id="startPage",
        method="GET",
        path="/",
        group="System",
        summary="The same page",
        handle=docs,
        uses_store="no",
        answers=(Answer(200, "A page.", media_type="text/html"),),
    ),
)
