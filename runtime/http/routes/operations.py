"""How everything is doing: lanes, workers, lag, the store, and this process. For a page that is looked at."""

from __future__ import annotations

import os
import socket
import time
from typing import Annotated, Final, Literal, NotRequired
from uuid import UUID

from pydantic import Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Routes, SuccessReply
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Count, Time
from breadcrumbs.runtime.http.middleware.metrics import Metrics, RouteTimes
from breadcrumbs.runtime.http.routes.system import VERSION
from breadcrumbs.runtime.maintenance.overview import (
    RECENT_SECONDS,
    LaneProgress,
    LaneView,
    Overview,
    overview,
)
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import WorkerRecord

_closed = with_config(extra="forbid")

_STARTED: Final = time.time_ns() // 1000
_MAX_SCHEMAS: Final = 50

Milliseconds = Annotated[float, Field(ge=0)]


routes = Routes("System")


@_closed
class HolderView(TypedDict):
    """Who has a lane."""

    worker: str
    since: NotRequired[Time]
    until: Annotated[Time, Field(description="The lease is kept long before that, or lost")]


@_closed
class ShareView(TypedDict):
    """How one kind of worker is doing in a lane."""

    kind: str
    holder: NotRequired[HolderView]
    done_until: NotRequired[Annotated[Time, Field(description="Every event up to this time is done")]]
    waiting: Annotated[Count, Field(description="Events that are not ticked off")]
    more_waiting: Annotated[bool, Field(description="There are more; only so many were counted")]
    lag_ms: Annotated[
        Milliseconds,
        Field(
            description="How old the oldest event is that is not ticked off. One that leads to nothing is "
            "ticked off only when the lease is kept, every sixth of `lease_seconds`"
        ),
    ]
    dead_letters: Annotated[Count, Field(description="Of all tenants")]


@_closed
class LaneDocument(TypedDict):
    """A lane and who works in it."""

    lane: Count
    newest_event_at: NotRequired[Time]
    events: Annotated[Count, Field(description="How many are kept")]
    events_ever: Annotated[
        Count, Field(description="How many there ever were: events per second come from it")
    ]
    kinds: list[ShareView]


@_closed
class WorkerDocument(TypedDict):
    """A worker that is, or was just now, alive."""

    kind: str
    name: str
    alive: bool
    alive_until: Annotated[Time, Field(description="It is heard of again long before that, or is dead")]
    lanes: list[int]


@_closed
class SchemaDocument(TypedDict):
    """Breadcrumbs of one schema."""

    schema_name: NotRequired[str]
    count: Count
    recent: Annotated[Count, Field(description="Of those, created in the last `recent_seconds`")]


@_closed
class ServerDocument(TypedDict):
    """A server behind the store, as far as it tells."""

    version: str
    uptime_seconds: Count
    memory_bytes: Count
    memory_limit_bytes: NotRequired[Count]
    clients: Count
    commands_per_second: Count


@_closed
class QuotaDocument(TypedDict):
    """How much of a quota is used."""

    quota: Literal["bytes", "breadcrumbs", "sessions"]
    used: Count
    limit: Count


@_closed
class StoreDocument(TypedDict):
    """What is in the store. Breadcrumbs, sessions and schemas are those of this tenant."""

    breadcrumbs: Count
    sessions: Count
    schemas: list[SchemaDocument]
    more_schemas: Annotated[
        bool, Field(description="There are more; `breadcrumbs` may be less than there are")
    ]
    servers: list[ServerDocument]
    quotas: NotRequired[Annotated[list[QuotaDocument], Field(description="Where this tenant has any")]]


@_closed
class RouteDocument(TypedDict):
    """The answered requests of a route since this process began."""

    method: str
    route: str
    requests: Count
    refused: Annotated[Count, Field(description="With a 4xx")]
    failed: Annotated[Count, Field(description="With a 5xx")]
    p50_ms: Milliseconds
    p99_ms: Milliseconds
    counts: Annotated[list[Count], Field(description="By `bounds_ms`, and one for what took longer")]


@_closed
class HttpDocument(TypedDict):
    """The requests of this process: how long answers took to begin."""

    in_flight: Count
    bounds_ms: list[Milliseconds]
    routes: list[RouteDocument]


@_closed
class ProcessDocument(TypedDict):
    """The process that answered. With several of them, one after the other may."""

    name: str
    version: str
    started_at: Time
    uptime_seconds: Count


@_closed
class OperationsDocument(TypedDict):
    """How everything is doing."""

    at: Annotated[Time, Field(description="By the clock of the store's server")]
    recent_seconds: Count
    lease_seconds: Annotated[float, Field(ge=0)]
    process: ProcessDocument
    store: StoreDocument
    kinds: Annotated[list[str], Field(description="The kinds of workers that events are kept for")]
    lanes: list[LaneDocument]
    workers: list[WorkerDocument]
    http: HttpDocument


@routes.operation(
    id="operations",
    method="GET",
    path="/operations",
    summary="How everything is doing",
    description=(
        "Lanes with their leases and their lag, workers, what is in the store, and how long requests took. "
        "Made to be asked for every few seconds: it costs two round trips to the store, however much is in "
        "it. Lanes, workers and servers are shared by all tenants of the store; breadcrumbs, sessions and "
        "schemas are this tenant's."
    ),
    successes=(
        SuccessReply(
            200,
            "How it is now.",
            OperationsDocument,
            headers={"Cache-Control": "`no-store`"},
        ),
    ),
)
async def operations(call: HttpCall) -> Reply:
    services = call.services
    seen = await overview(services.store, call.principal.owner_id)
    document: OperationsDocument = {
        "at": times.to_text(seen.now),
        "recent_seconds": RECENT_SECONDS,
        "lease_seconds": services.settings.lease_seconds,
        "process": _process_document(),
        "store": _store_document(seen),
        "kinds": seen.kinds,
        "lanes": [_lane_document(lane, seen.now) for lane in seen.lanes],
        "workers": [_worker_document(worker, seen) for worker in seen.workers],
        "http": _http_document(services.metrics),
    }
    if quotas := await _quota_documents(services.store, call.principal.owner_id):
        document["store"]["quotas"] = quotas
    return Reply.json(document, headers=[(b"cache-control", b"no-store")])


async def _quota_documents(store: Store, owner: UUID) -> list[QuotaDocument]:
    quota = None if store.quotas is None else store.quotas.quota(owner)
    if store.quotas is None or quota is None:
        return []
    usage = await store.quotas.usage(owner)
    found: list[QuotaDocument] = []
    if quota.bytes is not None:
        found.append({"quota": "bytes", "used": usage.bytes, "limit": quota.bytes})
    if quota.breadcrumbs is not None:
        found.append({"quota": "breadcrumbs", "used": usage.breadcrumbs, "limit": quota.breadcrumbs})
    if quota.sessions is not None:
        found.append({"quota": "sessions", "used": usage.sessions, "limit": quota.sessions})
    return found


def _process_document() -> ProcessDocument:
    return {
        "name": f"{socket.gethostname()}-{os.getpid()}",
        "version": VERSION,
        "started_at": times.to_text(_STARTED),
        "uptime_seconds": max(0, (time.time_ns() // 1000 - _STARTED) // 1_000_000),
    }


def _store_document(seen: Overview) -> StoreDocument:
    schemas: list[SchemaDocument] = []
    # What is being written now first: whoever draws it over time must not lose it among what is old.
    for schema in sorted(seen.schemas, key=lambda schema: not schema.recent)[:_MAX_SCHEMAS]:
        counted: SchemaDocument = {"count": schema.count, "recent": schema.recent}
        if schema.name:
            counted["schema_name"] = schema.name
        schemas.append(counted)
    return {
        "breadcrumbs": sum(schema.count for schema in seen.schemas),
        "sessions": seen.sessions,
        "schemas": schemas,
        "more_schemas": seen.uncounted_schemas > 0,
        "servers": [_server_document(info) for info in seen.servers],
    }


def _server_document(info: dict[str, str]) -> ServerDocument:
    valkey = info.get("valkey_version")
    server: ServerDocument = {
        "version": f"Valkey {valkey}" if valkey else f"Redis {info.get('redis_version', '?')}",
        "uptime_seconds": int(info.get("uptime_in_seconds", 0)),
        "memory_bytes": int(info.get("used_memory", 0)),
        "clients": int(info.get("connected_clients", 0)),
        "commands_per_second": int(info.get("instantaneous_ops_per_sec", 0)),
    }
    if limit := int(info.get("maxmemory", 0)):
        server["memory_limit_bytes"] = limit
    return server


def _lane_document(lane: LaneView, now: int) -> LaneDocument:
    document: LaneDocument = {
        "lane": lane.number,
        "events": lane.events,
        "events_ever": lane.events_ever,
        "kinds": [_share_document(share, now) for share in lane.progress],
    }
    if lane.newest:
        document["newest_event_at"] = times.to_text(lane.newest)
    return document


def _share_document(share: LaneProgress, now: int) -> ShareView:
    lag = 0 if share.first_waiting is None else max(0, now - share.first_waiting)
    document: ShareView = {
        "kind": share.kind,
        "waiting": share.waiting,
        "more_waiting": share.more_waiting,
        "lag_ms": lag / 1000,
        "dead_letters": share.dead_letters,
    }
    if share.done_until:
        document["done_until"] = times.to_text(share.done_until)
    if share.holder is not None:
        holder: HolderView = {
            "worker": share.holder.worker,
            "until": times.to_text(share.holder.until),
        }
        if share.holder.since is not None:
            holder["since"] = times.to_text(share.holder.since)
        document["holder"] = holder
    return document


def _worker_document(worker: WorkerRecord, seen: Overview) -> WorkerDocument:
    return {
        "kind": worker.kind,
        "name": worker.name,
        "alive": worker.until > seen.now,
        "alive_until": times.to_text(worker.until),
        "lanes": [
            lane.number
            for lane in seen.lanes
            for share in lane.progress
            if share.kind == worker.kind and share.holder is not None and share.holder.worker == worker.name
        ],
    }


def _http_document(metrics: Metrics) -> HttpDocument:
    return {
        "in_flight": metrics.in_flight,
        "bounds_ms": [bound * 1000 for bound in RouteTimes.BOUNDS],
        "routes": [
            _route_document(method, route, times)
            for (method, route), times in sorted(metrics.by_route().items())
        ],
    }


def _route_document(method: str, route: str, times: RouteTimes) -> RouteDocument:
    return {
        "method": method,
        "route": route,
        "requests": sum(times.counts),
        "refused": times.refused,
        "failed": times.failed,
        "p50_ms": round(times.quantile(0.5) * 1000, 3),
        "p99_ms": round(times.quantile(0.99) * 1000, 3),
        "counts": times.counts,
    }
