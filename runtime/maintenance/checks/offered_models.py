"""Check of the models that agent runners published at their start."""

from __future__ import annotations

from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.store.offered_models import read_models
from breadcrumbs.runtime.store.published_agents import living_kinds
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import read_worker_kinds


async def check_offered_models(store: Store) -> list[Finding]:
    """Return a finding for each model that the running agent runners offer and cannot use.

    Only they have the keys, so this process cannot find out by itself.
    """
    if not await living_kinds(store, await read_worker_kinds(store)):
        return []
    return [
        Finding(
            "models",
            "warning",
            f"an agent runner offers it and cannot use it: {model.problem}",
            "correct its settings and restart it, or remove the model from them",
            subject=model.name,
        )
        for model in (await read_models(store)).models
        if model.problem
    ]
