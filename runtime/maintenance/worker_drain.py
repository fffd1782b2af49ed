"""Draining of workers: they finish their turns, release their lanes and end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_reports import ListedWorker, list_workers, request_drain

_MAX_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class Drain:
    """Result of a drain request."""

    name: str
    workers: list[ListedWorker]
    """Workers of this name, after the request."""
    warnings: list[str]


async def drain_workers(store: Store, name: str) -> Drain:
    """Ask all workers of a name to drain. Workers that have ended are left alone, and repeating it changes nothing.

    Raise `NotFound` with the known names, and `InvalidInput` if a worker is too old to be drained.
    """
    everyone = await list_workers(store)
    mine = [worker for worker in everyone if worker.name == name]
    if not mine:
        raise NotFound(f"no worker has the name {name[:100]!r}. {_known_names(everyone)}")
    running = [worker for worker in mine if not worker.ended]
    for worker in running:
        if worker.report is None:
            raise InvalidInput(
                f"the worker {name!r} runs an older version that cannot be drained: stop it with SIGTERM"
            )
    warnings = _warnings(name, mine, everyone)
    for worker in running:
        await request_drain(store, worker)
    after = [worker for worker in await list_workers(store) if worker.name == name]
    return Drain(name, after, warnings)


def _known_names(workers: list[ListedWorker]) -> str:
    names = sorted({worker.name for worker in workers if not worker.ended})
    if not names:
        return "No worker is running"
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"Running: {', '.join(names[:_MAX_LISTED])}{more}"


def _warnings(name: str, mine: list[ListedWorker], everyone: list[ListedWorker]) -> list[str]:
    found = []
    for kind in sorted({worker.kind for worker in mine if not worker.ended}):
        others = [
            worker
            for worker in everyone
            if worker.kind == kind and worker.name != name and worker.state == "running"
        ]
        if not others:
            found.append(
                f"{name} is the last running worker of kind {kind}: its events wait until another one starts"
            )
    if not any(not worker.ended for worker in mine):
        states = " and ".join(sorted({worker.state for worker in mine}))
        found.append(f"{name} is not running any more ({states}): there is nothing to drain")
    return found
