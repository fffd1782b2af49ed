"""State of lanes, workers, the store and this process, for the operations page."""

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
from breadcrumbs.runtime.http.processes import group
from breadcrumbs.runtime.http.processes.port import STARTED, PortState, in_flight_of, read_port, requests_of
from breadcrumbs.runtime.http.routes.worker_list import WorkerDocument, worker_documents
from breadcrumbs.runtime.maintenance.overview import (
    RECENT_SECONDS,
    LaneProgress,
    LaneView,
    Overview,
    overview,
)
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.version import VERSION

_closed = with_config(extra="forbid")  # other keys are not allowed

_MAX_SCHEMAS: Final = 50

Milliseconds = Annotated[float, Field(ge=0)]


routes = Routes("System")


@_closed
class HolderView(TypedDict):
    """The worker that holds the lease of a lane."""

    worker: str
    since: NotRequired[Time]
    until: Annotated[Time, Field(description="End of the lease. A live worker renews it long before")]


@_closed
class ShareView(TypedDict):
    """Progress of one kind of worker in a lane."""

    kind: str
    holder: NotRequired[HolderView]
    done_until: NotRequired[Annotated[Time, Field(description="All events up to this time are acknowledged")]]
    waiting: Annotated[Count, Field(description="Events that are not acknowledged")]
    more_waiting: Annotated[
        bool, Field(description="Whether counting stopped before all waiting events were counted")
    ]
    lag_ms: Annotated[
        Milliseconds,
        Field(
            description="Age of the oldest event that is not acknowledged. An event that needs no work is "
            "acknowledged when the lease is renewed, every sixth of `lease_seconds`"
        ),
    ]
    dead_letters: Annotated[Count, Field(description="Dead letters of all tenants")]


@_closed
class LaneDocument(TypedDict):
    """A lane and the progress of its workers."""

    lane: Count
    newest_event_at: NotRequired[Time]
    events: Annotated[Count, Field(description="Events in the log")]
    events_ever: Annotated[
        Count, Field(description="Events since the lane was created. Use it to compute events per second")
    ]
    kinds: list[ShareView]


@_closed
class LaneWorkerDocument(WorkerDocument):
    """A worker and its lanes."""

    lanes: list[int]


@_closed
class SchemaDocument(TypedDict):
    """Breadcrumbs of one schema."""

    schema_name: NotRequired[str]
    count: Count
    recent: Annotated[Count, Field(description="Breadcrumbs created in the last `recent_seconds`")]


@_closed
class ServerDocument(TypedDict):
    """A Redis or Valkey server of the store, as it reports itself."""

    version: str
    uptime_seconds: Count
    memory_bytes: Count
    memory_limit_bytes: NotRequired[Count]
    clients: Count
    commands_per_second: Count


@_closed
class QuotaDocument(TypedDict):
    """Usage of a quota."""

    quota: Literal["bytes", "breadcrumbs", "sessions"]
    used: Count
    limit: Count


@_closed
class StoreDocument(TypedDict):
    """Content of the store. Breadcrumbs, sessions and schemas are those of this tenant."""

    id: NotRequired[Annotated[str, Field(description="Identity of the store, for the setting `store_id`")]]
    format: Annotated[str, Field(description="Number of the data format that this process reads and writes")]
    breadcrumbs: Count
    sessions: Count
    schemas: list[SchemaDocument]
    more_schemas: Annotated[
        bool, Field(description="Whether some schemas were not counted. `breadcrumbs` is then too low")
    ]
    servers: list[ServerDocument]
    quotas: NotRequired[
        Annotated[list[QuotaDocument], Field(description="Quotas of this tenant, if it has any")]
    ]


@_closed
class RouteDocument(TypedDict):
    """Completed requests of a route since the start."""

    method: str
    route: str
    requests: Count
    refused: Annotated[Count, Field(description="Replies with a status 4xx")]
    failed: Annotated[Count, Field(description="Replies with a status 5xx")]
    p50_ms: Milliseconds
    p99_ms: Milliseconds
    counts: Annotated[
        list[Count],
        Field(description="Requests per bucket of `bounds_ms`. The last bucket has no bound"),
    ]


@_closed
class HttpDocument(TypedDict):
    """Requests of this process or of all that share its port, with the times until the responses started."""

    in_flight: Count
    bounds_ms: list[Milliseconds]
    routes: list[RouteDocument]


@_closed
class ApiProcessDocument(TypedDict):
    """One of the API processes that share a port."""

    number: Count
    pid: Count
    started_at: Time
    requests: Annotated[Count, Field(description="Completed requests since the start of this process")]
    in_flight: Count
    restarts: Annotated[Count, Field(description="How often the process with this number was replaced")]


@_closed
class ProcessDocument(TypedDict):
    """The process that sent this reply, or all processes that share its port.

    With several servers, the next reply can come from another one.
    """

    name: str
    version: str
    started_at: Time
    uptime_seconds: Count
    answered_by: NotRequired[
        Annotated[
            Count, Field(description="Number of the process that sent this reply, if several share the port")
        ]
    ]
    wanted: NotRequired[
        Annotated[Count, Field(description="API processes that should run, if several share the port")]
    ]
    running: NotRequired[list[ApiProcessDocument]]


@_closed
class OperationsDocument(TypedDict):
    """State of the store, the lanes, the workers and this process."""

    at: Annotated[Time, Field(description="Current time by the clock of the store's server")]
    recent_seconds: Count
    lease_seconds: Annotated[float, Field(ge=0)]
    process: ProcessDocument
    store: StoreDocument
    kinds: Annotated[list[str], Field(description="The kinds of workers that the event log is kept for")]
    lanes: list[LaneDocument]
    workers: list[LaneWorkerDocument]
    http: HttpDocument


@routes.operation(
    id="operations",
    method="GET",
    path="/operations",
    summary="Read the state of the system",
    description=(
        "Lanes with their leases and lag, workers, the content of the store, and request times. A client can poll "
        "this every few seconds: it takes three round trips to the store, regardless of the amount of data. Lanes, "
        "workers and servers are shared by all tenants of the store. Breadcrumbs, sessions and schemas are those "
        "of this tenant."
    ),
    successes=(
        SuccessReply(
            200,
            "The current state.",
            OperationsDocument,
            headers={"Cache-Control": "`no-store`"},
        ),
    ),
)
async def operations(call: HttpCall) -> Reply:
    services = call.services
    state = await overview(services.store, call.principal.owner_id)
    member = group.current()
    port = None if member is None else await read_port(services.metrics, member)
    document: OperationsDocument = {
        "at": times.to_text(state.now),
        "recent_seconds": RECENT_SECONDS,
        "lease_seconds": services.settings.lease_seconds,
        "process": _process_document() if member is None or port is None else _group_document(member, port),
        "store": _store_document(state, services.store),
        "kinds": state.kinds,
        "lanes": _lane_documents(state),
        "workers": _worker_documents(state),
        "http": _http_document(services.metrics if port is None else port),
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


def _process_document(pid: int | None = None, started_at: int = STARTED) -> ProcessDocument:
    return {
        "name": f"{socket.gethostname()}-{pid or os.getpid()}",
        "version": VERSION,
        "started_at": times.to_text(started_at),
        "uptime_seconds": max(0, (time.time_ns() // 1000 - started_at) // 1_000_000),
    }


def _group_document(member: group.Member, port: PortState) -> ProcessDocument:
    running: list[ApiProcessDocument] = [
        {
            "number": process["number"],
            "pid": process["pid"],
            "started_at": times.to_text(process["started_at"]),
            "requests": requests_of(process),
            "in_flight": in_flight_of(process),
            "restarts": port.restarts[process["number"]],
        }
        for process in port.processes
    ]
    return {
        **_process_document(member.group.parent, member.group.started_at),
        "answered_by": member.number,
        "wanted": member.group.size,
        "running": running,
    }


def _store_document(state: Overview, store: Store) -> StoreDocument:
    schemas: list[SchemaDocument] = []
    # Schemas with recent breadcrumbs come first, so that a chart over time does not lose them.
    for schema in sorted(state.schemas, key=lambda schema: not schema.recent)[:_MAX_SCHEMAS]:
        counted: SchemaDocument = {"count": schema.count, "recent": schema.recent}
        if schema.name:
            counted["schema_name"] = schema.name
        schemas.append(counted)
    document: StoreDocument = {
        "format": store.format,
        "breadcrumbs": sum(schema.count for schema in state.schemas),
        "sessions": state.sessions,
        "schemas": schemas,
        "more_schemas": state.uncounted_schemas > 0,
        "servers": [_server_document(info) for info in state.servers],
    }
    if store.identity is not None:
        document["id"] = store.identity
    return document


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


def _lane_documents(state: Overview) -> list[LaneDocument]:
    names = {(worker.kind, worker.id): worker.name for worker in state.workers}
    return [_lane_document(lane, state.now, names) for lane in state.lanes]


def _lane_document(lane: LaneView, now: int, names: dict[tuple[str, str], str]) -> LaneDocument:
    document: LaneDocument = {
        "lane": lane.number,
        "events": lane.events,
        "events_ever": lane.events_ever,
        "kinds": [_progress_document(progress, now, names) for progress in lane.progress],
    }
    if lane.newest:
        document["newest_event_at"] = times.to_text(lane.newest)
    return document


def _progress_document(progress: LaneProgress, now: int, names: dict[tuple[str, str], str]) -> ShareView:
    lag = 0 if progress.first_waiting is None else max(0, now - progress.first_waiting)
    document: ShareView = {
        "kind": progress.kind,
        "waiting": progress.waiting,
        "more_waiting": progress.more_waiting,
        "lag_ms": lag / 1000,
        "dead_letters": progress.dead_letters,
    }
    if progress.done_until:
        document["done_until"] = times.to_text(progress.done_until)
    if progress.holder is not None:
        holder: HolderView = {
            "worker": names.get((progress.kind, progress.holder.worker), progress.holder.worker),
            "until": times.to_text(progress.holder.until),
        }
        if progress.holder.since is not None:
            holder["since"] = times.to_text(progress.holder.since)
        document["holder"] = holder
    return document


def _worker_documents(state: Overview) -> list[LaneWorkerDocument]:
    held: dict[tuple[str, str], list[int]] = {}
    for lane in state.lanes:
        for progress in lane.progress:
            if progress.holder is not None:
                held.setdefault((progress.kind, progress.holder.worker), []).append(lane.number)
    return [
        {**document, "lanes": held.get((worker.kind, worker.id), [])}
        for worker, document in zip(state.workers, worker_documents(state.workers), strict=True)
    ]


def _http_document(metrics: Metrics | PortState) -> HttpDocument:
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
