"""The commands `crumb doctor` and `crumb version`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from breadcrumbs.cli.client import command_errors, open_client
from breadcrumbs.cli.findings import UNKNOWN, report_findings, shown_progress
from breadcrumbs.cli.options import ConfigOption, DataOption, JsonOption, RedisOption, TokenOption
from breadcrumbs.cli.output import (
    USAGE,
    CommandError,
    UsageError,
    command,
    fail,
    visible,
)
from breadcrumbs.cli.server_url import local_url
from breadcrumbs.runtime.errors import BreadcrumbsError, InvalidInput, StartupError
from breadcrumbs.runtime.maintenance.check_catalogue import CHECKS, Selection, select_checks

if TYPE_CHECKING:
    from breadcrumbs.composition.system_checks import ModelChecks, RunningApi
    from breadcrumbs.runtime.maintenance.checks import Finding, LagLimits, Status
    from breadcrumbs.runtime.settings.settings import Settings

_SECONDS_PER_CHECK: Final = 60.0
_API_SECONDS: Final = 10.0
_REMOTE_SECONDS: Final = 60.0

_EPILOG = "\b\nChecks, with the ids for --only and --skip:\n" + "\n".join(
    f"{id:<16}  {description}" for id, description in CHECKS.items()
)

commands = typer.Typer()


class _MonitoringCommand(TyperCommand):
    """Command whose exit code for a wrong command line is 3, as monitoring systems expect it."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except Exception as error:
            # Errors of the command line have this attribute. Typer has its own copy of click, so their class differs.
            if getattr(error, "exit_code", None) == USAGE:
                error.exit_code = UNKNOWN  # type: ignore[attr-defined]
            raise


@dataclass(frozen=True, slots=True)
class _Plan:
    """The checks to make, and how to make them."""

    selection: Selection
    fix: bool
    models: ModelChecks | None
    """None: models are not checked."""
    lag: LagLimits
    on_step: Callable[[str], None] = field(default=lambda _: None)


@commands.command(cls=_MonitoringCommand, epilog=_EPILOG)
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Repair what can be repaired, such as indexes and expired data.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            envvar="CRUMB_URL",
            help="Address of the API. Without a store in the settings, the API makes the checks. "
            "[default: from the settings]",
        ),
    ] = None,
    token: TokenOption = None,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only these checks, separated by commas. See below.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", help="Not these checks, separated by commas. See below.")
    ] = None,
    no_models: Annotated[
        bool, typer.Option("--no-models", help="Do not ask the servers of the models.")
    ] = False,
    try_models: Annotated[
        bool,
        typer.Option("--try-models", help="Send two short prompts to each model. This can cost money."),
    ] = False,
    model_timeout: Annotated[
        float | None,
        typer.Option(
            "--model-timeout",
            min=0.1,
            max=3600,
            help="Seconds to wait for the server of a model. [default: 5, or 60 with --try-models]",
        ),
    ] = None,
    lag_warning: Annotated[
        float, typer.Option("--lag-warning", min=0, help="Seconds of lag from which there is a warning.")
    ] = 60,
    lag_error: Annotated[
        float, typer.Option("--lag-error", min=0, help="Seconds of lag from which there is an error.")
    ] = 600,
    as_json: JsonOption = False,
) -> int:
    """Check the API, the store, the workers and the models.

    Prints advice for each problem. Exit codes, as for Nagios plugins: 0 no problem, 1 warnings, 2 errors, 3 something
    could not be checked, or the command line is wrong.

    \b
    crumb doctor
    crumb doctor --fix
    crumb doctor --only workers,lag,dead-letters
    crumb doctor --url https://crumbs.example.com --json
    crumb doctor --redis redis://db:6379/0 --json | jq '.findings[].status'

    The servers of the models are asked for their lists of models, which costs nothing. --try-models sends prompts.
    """
    from breadcrumbs.composition.system_checks import ModelChecks
    from breadcrumbs.runtime.maintenance.checks import LagLimits

    try:
        selection = select_checks(only or (), [*(skip or ()), *(["models"] if no_models else ())])
        if no_models and try_models:
            raise UsageError("--no-models and --try-models exclude each other: choose one")
        with shown_progress(as_json) as on_step:
            models = None if no_models else ModelChecks(try_models, model_timeout)
            lag = LagLimits(lag_warning, max(lag_warning, lag_error))
            plan = _Plan(selection, fix, models, lag, on_step)
            found = _examine(plan, _Place(url, token, {"config": config, "data": data, "redis": redis}))
    except (InvalidInput, CommandError) as error:
        fail(error)
        return UNKNOWN
    return report_findings(found.findings, as_json=as_json, source=found.source)


@dataclass(frozen=True, slots=True)
class _Place:
    """The installation to check: the address of the API, and the flags for the settings."""

    url: str | None
    token: str | None
    flags: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Examined:
    """Findings, and the origin of findings that the API made."""

    findings: list[Finding]
    source: dict[str, Any] = field(default_factory=dict)


def _examine(plan: _Plan, place: _Place) -> _Examined:
    from breadcrumbs.runtime.maintenance.checks import Finding, check_python
    from breadcrumbs.runtime.settings.settings import load_settings

    def chosen(*findings: Finding) -> list[Finding]:
        return [finding for finding in findings if finding.id in plan.selection]

    findings = chosen(check_python())
    try:
        settings = load_settings(**place.flags)
    except StartupError as error:
        # Without settings, nothing else can be checked. So this is reported even if it was not chosen.
        return _Examined([*findings, Finding("settings", "error", str(error), "correct this setting")])
    findings += chosen(Finding("settings", "ok", "valid"))
    if place.url is not None and settings.redis is None and settings.data is None:
        asked = _ask_server(plan, place)
        return _Examined([*findings, *asked.findings], asked.source)
    plan.on_step(CHECKS["api"])
    api, running = _check_api(place.url or local_url(settings.host, settings.port), place.token)
    findings += chosen(api)
    if api.status != "error":
        findings += chosen(_check_ready(api.details["url"]))
    findings += _check_storage(settings, plan, running)
    if plan.models is not None and "models" in plan.selection and not _has_models(findings):
        findings += _check_models_only(settings, plan)
    return _Examined(findings)


# The API


def _check_api(url: str, token: str | None = None) -> tuple[Finding, RunningApi]:
    """Check that the API answers. Its uptime is known only with a token of a curator."""
    from breadcrumbs.composition.system_checks import RunningApi
    from breadcrumbs.runtime.maintenance.checks import Finding

    with open_client(url, token=token or "", timeout=_API_SECONDS) as client:
        try:
            with command_errors(client.url):
                client.request("GET", "/health")
                version = client.request("GET", "/openapi.json").json()["info"]["version"]
        except (BreadcrumbsError, LookupError, TypeError, ValueError) as error:
            what = str(error)
            if not isinstance(error, BreadcrumbsError):
                what = f"the server at {client.url} is not a Breadcrumbs server"
            advice = f"start it with {command()} up, or set its address with --url"
            return Finding("api", "error", visible(what), advice), RunningApi()
        uptime, running, wanted = _read_process(url, token)
        details = {"url": client.url, "version": version}
        facts = f"version {version}"
        if wanted is not None:
            details["processes"] = f"{running} of {wanted}"
            facts = f"{facts}, {running} of {wanted} processes"
        missing = wanted is not None and running < wanted
        advice = "the log of the API says why the others ended" if missing else ""
        status: Status = "warning" if missing else "ok"
        found = Finding("api", status, f"{client.url} answers ({facts})", advice, details=details)
        return found, RunningApi(version, uptime)


def _check_ready(url: str) -> Finding:
    """Check that the API can use its store, and that it is the store that the process opened."""
    from breadcrumbs.client.errors import ProblemError, StoreReplaced
    from breadcrumbs.runtime.maintenance.checks import Finding

    try:
        with open_client(url, token="", timeout=_API_SECONDS) as client:
            client.request("GET", "/ready")
    except StoreReplaced as error:
        return Finding("ready", "error", visible(str(error).partition(". ")[0]), StoreReplaced.advice)
    except (BreadcrumbsError, ProblemError) as error:
        return Finding("ready", "error", visible(str(error)), "check the Redis server of the API")
    return Finding("ready", "ok", "the API can use its store")


def _read_process(url: str, token: str | None) -> tuple[float | None, int, int | None]:
    """Return the uptime of the API in seconds, and how many of its processes run and should run.

    The uptime is None without the rights to read it. The last number is None if one process serves the port.
    """
    try:
        with open_client(url, token, timeout=_API_SECONDS) as client:
            process = client.request("GET", "/operations").json()["process"]
            wanted = process.get("wanted")
            running = len(process.get("running", ()))
            return float(process["uptime_seconds"]), running, None if wanted is None else int(wanted)
    except (BreadcrumbsError, LookupError, TypeError, ValueError, AttributeError):
        return None, 0, None


def _ask_server(plan: _Plan, place: _Place) -> _Examined:
    """Let the API make the checks.

    If it cannot, this is reported even if it was not chosen: otherwise nothing would look like no problem.
    """
    from breadcrumbs.runtime.maintenance.checks import Finding

    _check_remote_options(plan)
    url = place.url or ""
    plan.on_step(f"{url} makes the checks")
    api, running = _check_api(url, place.token)
    if api.status == "error":
        return _Examined([api])
    ready = _check_ready(url)
    if ready.status != "ok":
        return _Examined([api, ready])
    wants_models = plan.models is not None and "models" in plan.selection
    try:
        with open_client(url, place.token, timeout=_REMOTE_SECONDS) as client:
            path = f"/operations/checks?models={'true' if wants_models else 'false'}"
            document = client.request("GET", path).json()
            findings = [Finding(**finding) for finding in document["findings"]]
    except (BreadcrumbsError, LookupError, TypeError, ValueError) as error:
        return _Examined([api, _unusable_reply(error, running)])
    source = {name: document[name] for name in ("checked_at", "version") if name in document}
    chosen = [finding for finding in (api, ready, *findings) if finding.id in plan.selection]
    return _Examined(chosen, {"server": {"url": url, **source}})


def _check_remote_options(plan: _Plan) -> None:
    from breadcrumbs.runtime.maintenance.checks import LagLimits

    needs_store = "needs the store: add --redis or --data, or run it where the settings of the server are"
    if plan.fix:
        raise UsageError(f"--fix {needs_store}")
    if plan.models is not None and (plan.models.send_prompts or plan.models.seconds is not None):
        raise UsageError(f"--try-models and --model-timeout: this {needs_store}")
    if plan.lag != LagLimits():
        raise UsageError(f"--lag-warning and --lag-error: this {needs_store}")


def _unusable_reply(error: Exception, running: RunningApi) -> Finding:
    from breadcrumbs.client.errors import NotFound
    from breadcrumbs.runtime.maintenance.checks import Finding

    if isinstance(error, NotFound):
        return Finding(
            "store",
            "unknown",
            f"the API has version {running.version}, which makes no checks",
            "upgrade it, or run this command with --redis or --data on a machine that reaches the store",
        )
    if isinstance(error, BreadcrumbsError):
        return Finding(
            "store",
            "unknown",
            f"the API does not make the checks: {visible(str(error))}",
            "use a token or an API key with the role curator (CRUMB_TOKEN, CRUMB_API_KEY)",
        )
    return Finding("store", "unknown", "the API sent a reply that this version does not understand")


# The store


def _check_storage(settings: Settings, plan: _Plan, api: RunningApi) -> list[Finding]:
    from breadcrumbs.composition.storage import (
        data_directory,
        has_data,
        running_server,
        server_address,
        shown_address,
    )
    from breadcrumbs.runtime.maintenance.checks import (
        Finding,
        check_binary,
        check_data_directory,
        check_disk,
        explain_unreachable,
    )

    findings: list[Finding] = []
    stopped = False
    if settings.redis is None:
        directory = data_directory(settings)
        running = running_server(directory)
        stopped = running is None
        local = [
            check_binary(),
            check_data_directory(directory, holder=running.pid if running else None),
            check_disk(directory),
        ]
        findings += [finding for finding in local if finding.id in plan.selection]
        if any(finding.status == "error" for finding in local[:2]):
            return findings
        if running is None and not has_data(directory):
            return [*findings, Finding("store", "skipped", f"no data yet: {command()} up creates it")]
    where = "" if settings.redis is None else shown_address(settings.redis)
    try:
        with server_address(settings, create=False) as url:
            findings += _run_store_checks(settings, plan, url, api, stopped=stopped)
    except BreadcrumbsError as error:
        findings.append(explain_unreachable(error, where=where))
    return findings


def _run_store_checks(
    settings: Settings, plan: _Plan, url: str, api: RunningApi, *, stopped: bool
) -> list[Finding]:
    from breadcrumbs.composition.event_loop import run_async

    return run_async(_check_store(settings, plan, url, api, stopped=stopped))


async def _check_store(
    settings: Settings, plan: _Plan, url: str, api: RunningApi, *, stopped: bool
) -> list[Finding]:
    from breadcrumbs.composition.storage import expected_identity, open_store, stored_identity
    from breadcrumbs.composition.system_checks import check_all_models, check_options
    from breadcrumbs.runtime.maintenance.checks import (
        Check,
        Finding,
        check_identity,
        data_checks,
        run_checks,
        system_checks,
    )

    stored, expected = await stored_identity(settings, url), expected_identity(settings)
    identity = check_identity(
        stored,
        expected=None if expected is None else expected.identity,
        source="" if expected is None else expected.source,
    )
    if stored is None and identity.status == "error":
        return [identity]
    if stored is None:
        message = f"the server answers, but has no store yet: {command()} up creates one"
        return [Finding("store", "skipped", message)]
    # Without the number of lanes from the settings, because `check_layout` compares it with the store.
    store = await open_store(settings.model_copy(update={"lanes": None}), url)
    try:
        options = check_options(settings, api, lag=plan.lag, stopped=stopped, fix=plan.fix)
        checks = [*system_checks(store, options), *data_checks(store, options)]
        limit = None if plan.fix else _SECONDS_PER_CHECK
        found = await run_checks(checks, plan.selection, seconds=limit, on_step=plan.on_step)
        if (how := plan.models) is not None:

            async def models() -> list[Finding]:
                return await check_all_models(settings, how, store)

            found += await run_checks(
                [Check(("models",), models)], plan.selection, seconds=None, on_step=plan.on_step
            )
        answers = Finding("store", "ok", "the server answers and has a store")
        return [*(finding for finding in (answers, identity) if finding.id in plan.selection), *found]
    finally:
        await store.close()


# The models


def _has_models(findings: list[Finding]) -> bool:
    return any(finding.id == "models" for finding in findings)


def _check_models_only(settings: Settings, plan: _Plan) -> list[Finding]:
    """Check the models of the settings when the store cannot be opened."""
    from breadcrumbs.composition.event_loop import run_async
    from breadcrumbs.composition.system_checks import check_all_models

    if plan.models is None:
        return []
    plan.on_step(CHECKS["models"])
    return run_async(check_all_models(settings, plan.models))
