"""Checks of an installation, for `crumb doctor` and for the API.

Combines the checks of the store with those of the models and of the data directory, as the settings configure them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio
import anyio.to_thread

from breadcrumbs.agents.agents_in_force import load_definitions
from breadcrumbs.agents.models.check import check_model
from breadcrumbs.agents.models.listing import check_reachability, server_url
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.composition.model_checks import default_model, pool_for_checks
from breadcrumbs.composition.storage import data_directory
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.http.routes.checks import CheckRoutes
from breadcrumbs.runtime.maintenance.checks import (
    Check,
    Finding,
    HygieneSchedule,
    KnownProcess,
    LagLimits,
    Selection,
    Status,
    StoreCheckOptions,
    check_disk,
    check_offered_models,
    run_checks,
    system_checks,
)
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_reports import ListedWorker, list_workers
from breadcrumbs.runtime.version import VERSION

SECONDS_PER_CHECK: Final = 5.0
"""Time limit of a check in the API."""
LIST_SECONDS: Final = 5.0
"""Time limit for the list of models of a server."""
PROMPT_SECONDS: Final = 60.0
"""Time limit for the answer of a model to a short prompt."""
_MAX_MODELS: Final = 50
_MAX_AT_ONCE: Final = 8
_MAX_NAMED_RUNNERS: Final = 3


@dataclass(frozen=True, slots=True)
class ModelChecks:
    """How models are checked."""

    send_prompts: bool = False
    """Send two short prompts to each model. This can cost money."""
    seconds: float | None = None
    """Time limit for each request. None: `LIST_SECONDS` or `PROMPT_SECONDS`."""
    private: bool = True
    """Name models as the settings do, with the URLs of their servers. Only the operator may see these."""

    @property
    def limit(self) -> float:
        return self.seconds or (PROMPT_SECONDS if self.send_prompts else LIST_SECONDS)


@dataclass(frozen=True, slots=True)
class RunningApi:
    """Facts about the API, as far as they are known."""

    version: str | None = None
    uptime_seconds: float | None = None


def check_options(
    settings: Settings,
    api: RunningApi,
    *,
    lag: LagLimits | None = None,
    stopped: bool = False,
    fix: bool = False,
) -> StoreCheckOptions:
    """Return the options of the checks of a store."""
    processes = [KnownProcess("this program", VERSION)]
    if api.version is not None:
        processes.append(KnownProcess("API", api.version))
    return StoreCheckOptions(
        window=int(settings.event_window.total_seconds() * 1_000_000),
        schedule=HygieneSchedule(settings.hygiene_interval.total_seconds(), api.uptime_seconds),
        lag=lag or LagLimits(),
        processes=tuple(processes),
        stopped=stopped,
        wanted_lanes=settings.lanes,
        fix=fix,
    )


# The API


def check_routes(store: Store, settings: Settings, *, workers: bool) -> CheckRoutes:
    """Return the operation with the checks that a process of the API can make.

    `workers` tells whether this process also runs agents.
    """
    started = time.monotonic()

    async def check_system() -> list[Finding]:
        api = RunningApi(VERSION, time.monotonic() - started)
        checks = system_checks(store, check_options(settings, api))
        if settings.redis is None:
            checks.append(Check(("disk",), _check_disk))
        return await run_checks(checks, Selection(), seconds=SECONDS_PER_CHECK)

    async def _check_disk() -> list[Finding]:
        return [await anyio.to_thread.run_sync(check_disk, data_directory(settings))]

    async def check_models() -> list[Finding]:
        if not (workers or settings.model or settings.models):
            skipped = "this process has no models, because agents run in other processes"
            offered = [
                _not_checked(model, found) for model, found in (await _runners_by_model(store)).items()
            ]
            return await check_offered_models(store) or offered or [Finding("models", "skipped", skipped)]
        return await check_all_models(settings, ModelChecks(private=False), store)

    return CheckRoutes(check_system, check_models)


# Models


async def check_all_models(settings: Settings, how: ModelChecks, store: Store | None = None) -> list[Finding]:
    """Check the models of the settings, and with a store those that agent runners offer."""
    runners = {} if store is None else await _runners_by_model(store)
    try:
        findings = await _check_configured(settings, how, runners)
    except (StartupError, OSError) as error:
        message = str(error) if how.private else "the settings of the models are invalid"
        advice = "correct [models] in the settings, or the folder of the setting agents"
        findings = [Finding("models", "error", message, advice)]
    if store is not None:
        offered = await check_offered_models(store)
        broken = {finding.subject for finding in offered}
        # The runner knows better than this process why it cannot use a model.
        findings = [one for one in findings if one.status != "skipped" or one.subject not in broken]
        known = {finding.subject for finding in findings}
        findings += [finding for finding in offered if finding.subject not in known]
        findings += await _check_skipped(store)
    return findings


async def _check_skipped(store: Store) -> list[Finding]:
    """Report the models that fallback lists of running agent runners skip now."""
    found: dict[str, list[ListedWorker]] = {}
    for worker in await list_workers(store):
        if not worker.ended and worker.report is not None:
            for model in worker.report.skipped_models:
                found.setdefault(model, []).append(worker)
    advice = "see the log of the runner (circuit opened) for the reason; crumb model check tries the model"
    return [
        Finding(
            "models",
            "warning",
            f"skipped by fallback lists of {_named(runners)}, because its last calls failed",
            advice,
            subject=model,
        )
        for model, runners in sorted(found.items())
    ]


async def _runners_by_model(store: Store) -> dict[str, list[ListedWorker]]:
    """Return the running agent runners by the public names of the models that they report."""
    found: dict[str, list[ListedWorker]] = {}
    for worker in await list_workers(store):
        if not worker.ended and worker.report is not None:
            for model in worker.report.models:
                found.setdefault(model, []).append(worker)
    return found


async def _check_configured(
    settings: Settings, how: ModelChecks, runners: Mapping[str, Sequence[ListedWorker]]
) -> list[Finding]:
    """Check the default model and the models of agents, which are needed, and all others that are offered.

    `runners`: running agent runners by the models that they offer. Those can have other settings.
    """
    agents = load_definitions(settings.agents, default=settings.default_agent)
    needed = [default_model(settings), *(model for one in agents for model in one.definition.models)]
    limits = {"total_timeout": how.limit, "read_timeout": how.limit, "connect_timeout": how.limit}
    async with pool_for_checks(settings, limits) as pool:
        own = _without_repeats(pool, [*needed, *sorted(pool.aliases), *pool.offered])
        known = {public_name(pool.meaning(spec)) for spec in own}
        wanted = [*own, *(model for model in runners if model not in known)]
        findings: dict[str, Finding] = {}
        slots = anyio.CapacityLimiter(_MAX_AT_ONCE)

        async def check(spec: str) -> None:
            async with slots:
                if spec in own:
                    findings[spec] = await _check_one(pool, spec, how, needed=spec in needed)
                else:
                    findings[spec] = await _check_offered(pool, spec, how, runners[spec])

        async with anyio.create_task_group() as tasks:
            for spec in wanted[:_MAX_MODELS]:
                tasks.start_soon(check, spec)
    return [findings[spec] for spec in wanted[:_MAX_MODELS]]


async def _check_offered(
    pool: ModelPool, model: str, how: ModelChecks, runners: Sequence[ListedWorker]
) -> Finding:
    """Check a model that is not in the settings of this process.

    A runner on another host can have a key, a URL or a network that this process does not have. A model that does not
    answer here is then no problem that is known.
    """
    try:
        pool.resolve(model, trusted=True)
    except (InvalidInput, StartupError):
        return _not_checked(model, runners)
    finding = await _check_one(pool, model, how, needed=False)
    host = socket.gethostname()
    is_here = any(worker.report is not None and worker.report.host == host for worker in runners)
    if finding.status == "ok" or (is_here and "url" in finding.details):  # asked from the host of a runner
        status: Status = "ok" if finding.status == "ok" else "warning"
        return replace(finding, status=status, message=f"offered by {_named(runners)}: {finding.message}")
    return _not_checked(finding.subject, runners)


def _not_checked(model: str, runners: Sequence[ListedWorker]) -> Finding:
    message = f"offered by {_named(runners)}, not checked from here"
    return Finding("models", "skipped", message, subject=model)


def _named(runners: Sequence[ListedWorker]) -> str:
    names = list(dict.fromkeys(worker.name for worker in runners))
    return f"runner {', '.join(names[:_MAX_NAMED_RUNNERS])}" + (
        " and others" if len(names) > _MAX_NAMED_RUNNERS else ""
    )


def _without_repeats(pool: ModelPool, specs: Iterable[str]) -> list[str]:
    """Return the first name of each model."""
    found: dict[str, str] = {}
    for spec in specs:
        found.setdefault(pool.meaning(spec), spec)
    return list(found.values())


async def _check_one(pool: ModelPool, spec: str, how: ModelChecks, *, needed: bool) -> Finding:
    subject = spec if how.private else public_name(spec)

    def finding(status: Status, message: str, advice: str = "", **details: str) -> Finding:
        return Finding("models", status, message, advice, details, subject)

    try:
        model = pool.resolve(spec, trusted=True)
    except (InvalidInput, StartupError):
        key = pool.key_env(spec)
        return finding(
            "error" if needed else "warning",
            f"its key is missing: {key} is not set here",
            f"set {key} in the environment of the process that runs agents",
        )
    if (url := server_url(model)) is None:
        return finding("ok", "built in, needs no server")
    if how.send_prompts:
        result = await check_model(model, key_env=pool.key_env(spec))
        if result.problem is None:
            return finding("ok", "answers (two short prompts were sent)", url=url)
        text = f"{result.problem.problem}: {result.problem.details}"
        return finding("error", text, result.problem.advice, url=url)
    reached = await check_reachability(model, key_env=pool.key_env(spec), seconds=how.limit)
    status: Status = "warning" if reached.status == "error" and not needed else reached.status
    return finding(status, reached.message, reached.advice, url=url)
