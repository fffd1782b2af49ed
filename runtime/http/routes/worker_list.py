"""Workers in detail, draining of workers, and the history of the load. For the operations page and `crumb workers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Parameter, Routes, SuccessReply
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Count, Time
from breadcrumbs.runtime.maintenance.load_history import KindMinute, Minute, read_history
from breadcrumbs.runtime.maintenance.worker_drain import drain_workers
from breadcrumbs.runtime.store.worker_reports import ListedWorker, list_workers

_closed = with_config(extra="forbid")
_NO_STORE: Final = [(b"cache-control", b"no-store")]
_NO_STORE_DOC: Final = {"Cache-Control": "`no-store`"}

routes = Routes("System")


@_closed
class WorkerDocument(TypedDict):
    """A worker that runs, or that ended a short time ago."""

    kind: str
    name: Annotated[str, Field(description="Name given with `--name`. Without one, the id")]
    id: Annotated[str, Field(description="Unique id of this start. Leases of lanes contain it")]
    state: Annotated[
        Literal["running", "draining", "stopped", "lost"],
        Field(
            description="`draining`: it finishes its turns. `stopped`: it ended cleanly, and is listed for 10 minutes. "
            "`lost`: it ended without signing off, and is listed for 24 hours"
        ),
    ]
    alive: Annotated[bool, Field(description="Whether the state is `running` or `draining`")]
    alive_until: Annotated[
        Time,
        Field(description="The worker counts as lost after this time. Each heartbeat moves it forward"),
    ]
    heartbeat_at: NotRequired[Annotated[Time, Field(description="Last heartbeat")]]
    ended_at: NotRequired[
        Annotated[Time, Field(description="When it stopped, or the last heartbeat before it was lost")]
    ]
    drain_requested_at: NotRequired[Time]
    host: NotRequired[str]
    pid: NotRequired[Count]
    version: NotRequired[
        Annotated[
            str, Field(description="Absent for versions that report only their id, as all fields below")
        ]
    ]
    started_at: NotRequired[Time]
    lane_count: NotRequired[Annotated[Count, Field(description="Lanes that it held at its last heartbeat")]]
    turns: NotRequired[Annotated[Count, Field(description="Turns that it ran at its last heartbeat")]]
    waiting: NotRequired[Annotated[Count, Field(description="Events that it had read and not started")]]
    agents: NotRequired[
        Annotated[list[str], Field(description="Its agents, without those that are defined by breadcrumbs")]
    ]
    models: NotRequired[list[str]]
    more_agents: NotRequired[Annotated[Count, Field(description="Number of agents that are not listed")]]
    more_models: NotRequired[Count]


@_closed
class WorkersDocument(TypedDict):
    """All workers of the store."""

    at: Annotated[Time, Field(description="Current time by the clock of the store's server")]
    workers: list[WorkerDocument]


@_closed
class DrainDocument(TypedDict):
    """The workers that were asked to drain."""

    name: str
    workers: list[WorkerDocument]
    warnings: list[str]


@_closed
class KindMinuteDocument(TypedDict):
    """One minute of one kind of worker."""

    kind: str
    answered: NotRequired[Annotated[Count, Field(description="Turns with a stored result, of all tenants")]]
    failed: NotRequired[Annotated[Count, Field(description="Turns that failed every attempt")]]
    lag_ms: Annotated[float, Field(ge=0, description="Age of the oldest event that was not acknowledged")]
    waiting: Count
    workers: Annotated[Count, Field(description="Workers that were alive")]


@_closed
class MinuteDocument(TypedDict):
    """One minute. Numbers are absent if the minute before is not known."""

    at: Annotated[Time, Field(description="End of the minute")]
    events: NotRequired[Annotated[Count, Field(description="Events written in this minute, of all tenants")]]
    kinds: list[KindMinuteDocument]


@_closed
class HistoryDocument(TypedDict):
    """The load of the last hours."""

    minutes: list[MinuteDocument]


@routes.operation(
    id="listWorkers",
    method="GET",
    path="/operations/workers",
    summary="List all workers",
    description=(
        "Name, host, version, agents, models, current turns and state of every worker. Workers are shared by all "
        "tenants of the store. A killed worker is listed as `lost` within about three seconds."
    ),
    successes=(SuccessReply(200, "The workers.", WorkersDocument, headers=_NO_STORE_DOC),),
)
async def get_workers(call: HttpCall) -> Reply:
    store = call.services.store
    body: WorkersDocument = {
        "at": times.to_text(store.now()),
        "workers": worker_documents(await list_workers(store)),
    }
    return Reply.json(body, headers=_NO_STORE)


@routes.operation(
    id="drainWorkers",
    method="POST",
    path="/operations/workers/{id}/drain",
    summary="Drain the workers of a name",
    description=(
        "The workers finish their turns, release their lanes and end. Other workers take the lanes. Repeating it "
        "changes nothing. The workers of `crumb up` end, its API continues. If the server has API keys of several "
        "owners, use `crumb workers drain NAME --redis …` instead, because the workers serve all of them."
    ),
    parameters=(
        Parameter(
            "id", "path", "The name of the workers. Workers of several kinds can have it.", example="runner-1"
        ),
    ),
    uses_store="writes",
    successes=(SuccessReply(200, "The workers drain, or have ended.", DrainDocument),),
)
async def drain(call: HttpCall) -> Reply:
    policy.check_drain(key.owner_id for key in call.services.settings.api_keys)
    drained = await drain_workers(call.services.store, call.path_name())
    body: DrainDocument = {
        "name": drained.name,
        "workers": worker_documents(drained.workers),
        "warnings": drained.warnings,
    }
    return Reply.json(body)


@routes.operation(
    id="loadHistory",
    method="GET",
    path="/operations/history",
    summary="Read the load of the last hours",
    description=(
        "One entry per minute for the last six hours, with numbers of the whole store: turns, lag, waiting events "
        "and workers of each kind. Minutes in which no API process ran are missing."
    ),
    successes=(SuccessReply(200, "The history.", HistoryDocument, headers=_NO_STORE_DOC),),
)
async def load_history(call: HttpCall) -> Reply:
    minutes = await read_history(call.services.store)
    body: HistoryDocument = {"minutes": [_minute_document(minute) for minute in minutes]}
    return Reply.json(body, headers=_NO_STORE)


def worker_documents(workers: Sequence[ListedWorker]) -> list[WorkerDocument]:
    """Return workers in the form of the API."""
    return [_worker_document(worker) for worker in workers]


def _worker_document(worker: ListedWorker) -> WorkerDocument:
    document: WorkerDocument = {
        "kind": worker.kind,
        "name": worker.name,
        "id": worker.id,
        "state": worker.state,
        "alive": not worker.ended,
        "alive_until": times.to_text(worker.alive_until),
    }
    if worker.heartbeat_at is not None:
        document["heartbeat_at"] = times.to_text(worker.heartbeat_at)
        if worker.ended:
            document["ended_at"] = times.to_text(worker.heartbeat_at)
    if worker.drain_requested_at is not None:
        document["drain_requested_at"] = times.to_text(worker.drain_requested_at)
    if (report := worker.report) is not None:
        document["host"] = report.host
        document["pid"] = report.pid
        document["version"] = report.version
        document["started_at"] = times.to_text(report.started_at)
        document["lane_count"] = report.lanes
        document["turns"] = report.turns
        document["waiting"] = report.waiting
        document["agents"] = list(report.agents)
        document["models"] = list(report.models)
        document["more_agents"] = report.more_agents
        document["more_models"] = report.more_models
    return document


def _minute_document(minute: Minute) -> MinuteDocument:
    document: MinuteDocument = {
        "at": times.to_text(minute.end),
        "kinds": [_kind_document(kind) for kind in minute.kinds],
    }
    if minute.events is not None:
        document["events"] = minute.events
    return document


def _kind_document(minute: KindMinute) -> KindMinuteDocument:
    document: KindMinuteDocument = {
        "kind": minute.kind,
        "lag_ms": minute.lag_ms,
        "waiting": minute.waiting,
        "workers": minute.workers,
    }
    if minute.answered is not None and minute.failed is not None:
        document["answered"] = minute.answered
        document["failed"] = minute.failed
    return document
