"""Tells whether workers are running, so that a client can explain a missing answer."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Routes, SuccessReply
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.store.worker_records import read_worker_kinds
from breadcrumbs.runtime.store.worker_reports import list_workers

_CONTEXTS: Final = "contexts"
_AGENTS: Final = "agents"
"""Kind of the agent runners. A program that runs its own agent uses `agents/<agent id>`."""

routes = Routes("System")


@with_config(extra="forbid")
class RunningWorkers(TypedDict):
    """Whether at least one worker of a kind is alive. Names and numbers of workers are in `/operations`."""

    contexts: Annotated[bool, Field(description="A context builder is running (`crumb build-contexts`)")]
    agents: Annotated[bool, Field(description="An agent runner is running (`crumb run-agents`)")]


@routes.operation(
    id="runningWorkers",
    method="GET",
    path="/workers",
    summary="Read which kinds of workers are running",
    description=(
        "A message is answered only if workers are running. A client that gets no answer can read the reason here. "
        "Every role may read it, and it contains nothing of any tenant."
    ),
    successes=(
        SuccessReply(
            200,
            "Which kinds of workers are running.",
            RunningWorkers,
            headers={"Cache-Control": "`no-store`"},
        ),
    ),
)
async def running_workers(call: HttpCall) -> Reply:
    store = call.services.store
    kinds = [kind for kind in await read_worker_kinds(store) if _family(kind) in (_CONTEXTS, _AGENTS)]
    alive = {_family(worker.kind) for worker in await list_workers(store, kinds) if not worker.ended}
    body: RunningWorkers = {"contexts": _CONTEXTS in alive, "agents": _AGENTS in alive}
    return Reply.json(body, headers=[(b"cache-control", b"no-store")])


def _family(kind: str) -> str:
    return kind.partition("/")[0]
