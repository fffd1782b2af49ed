"""Operations about the server: health, metrics, hygiene and documentation."""

from __future__ import annotations

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Routes, SuccessReply
from breadcrumbs.runtime.http.api.replies import HTML, JSON, Reply
from breadcrumbs.runtime.http.api.schemas import Health, Swept
from breadcrumbs.runtime.http.processes import group
from breadcrumbs.runtime.http.processes.merging import render_families
from breadcrumbs.runtime.http.processes.port import read_port
from breadcrumbs.runtime.telemetry.metrics import render
from breadcrumbs.runtime.version import VERSION

routes = Routes("System")


@routes.operation(
    id="health",
    method="GET",
    path="/health",
    summary="Check that the process is alive",
    uses_store="no",
    successes=(SuccessReply(200, "The process is alive.", Health),),
)
async def health(call: HttpCall) -> Reply:
    body: Health = {"status": "ok", "version": VERSION}
    return Reply.json(body)


@routes.operation(
    id="ready",
    method="GET",
    path="/ready",
    summary="Check that the store is reachable",
    description=(
        "Also checks that the Redis server still contains the store that this process opened. 503 `store-replaced` "
        "means that the server was emptied or replaced."
    ),
    successes=(SuccessReply(200, "The server is ready.", Health),),
)
async def ready(call: HttpCall) -> Reply:
    await call.services.store.ping()
    return await health(call)


@routes.operation(
    id="metrics",
    method="GET",
    path="/metrics",
    summary="Read metrics for Prometheus",
    description="With several API processes on one port, the values are those of all of them together.",
    uses_store="no",
    successes=(SuccessReply(200, "Metrics in the Prometheus text format.", media_type="text/plain"),),
)
async def metrics(call: HttpCall) -> Reply:
    of_store = await call.services.store_values.render()
    member = group.current()
    if member is None:
        own = call.services.metrics.render() + render()
    else:
        own = render_families((await read_port(call.services.metrics, member)).families)
    body = own + of_store
    return Reply(200, body, CONTENT_TYPE_LATEST.encode())


@routes.operation(
    id="runHygiene",
    method="POST",
    path="/hygiene/run",
    summary="Delete expired data now",
    description=(
        "The server also does this periodically. `ok` is false if a part of the run failed. The log contains the "
        "reason."
    ),
    uses_store="writes",
    successes=(SuccessReply(200, "The result of the run.", Swept),),
)
async def run_hygiene(call: HttpCall) -> Reply:
    report = await call.services.hygiene.run_once()
    body: Swept = {
        "ok": report.errors == 0,
        "purged": report.purged,
        "trimmed": report.trimmed,
        "duration_ms": report.duration_ms,
    }
    return Reply.json(body)


@routes.operation(
    id="hygieneStats",
    method="GET",
    path="/hygiene/stats",
    summary="Read the counters of hygiene runs",
    successes=(SuccessReply(200, "The counters.", dict[str, Any]),),
)
async def hygiene_stats(call: HttpCall) -> Reply:
    return Reply.json(await call.services.hygiene.stats())


@routes.operation(
    id="openapi",
    method="GET",
    path="/openapi.json",
    summary="Read the OpenAPI document",
    uses_store="no",
    successes=(SuccessReply(200, "The OpenAPI 3.1 document.", dict[str, Any]),),
)
async def openapi(call: HttpCall) -> Reply:
    return Reply(200, call.services.pages.openapi(), JSON, [(b"cache-control", b"no-cache")])


@routes.operation(
    id="startPage",
    method="GET",
    path="/",
    summary="Read the start page",
    uses_store="no",
    ignores_query=True,
    successes=(SuccessReply(200, "The page.", media_type="text/html"),),
)
@routes.operation(
    id="docs",
    method="GET",
    path="/docs",
    summary="Read this documentation as a page",
    uses_store="no",
    ignores_query=True,
    successes=(SuccessReply(200, "The page.", media_type="text/html"),),
)
async def docs(call: HttpCall) -> Reply:
    pages = call.services.pages
    headers = [(b"content-security-policy", pages.docs_policy), (b"cache-control", b"no-cache")]
    return Reply(200, pages.docs(), HTML, headers)
