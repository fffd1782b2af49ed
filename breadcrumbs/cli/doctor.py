"""The commands `crumb doctor` and `crumb version`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from breadcrumbs.cli.client import command_errors, open_client
from breadcrumbs.cli.options import ConfigOption, DataOption, JsonOption, RedisOption
from breadcrumbs.cli.output import OK, PROBLEM, command, console, for_people, print_json, visible
from breadcrumbs.cli.server_url import local_url
from breadcrumbs.runtime.errors import BreadcrumbsError, StartupError

if TYPE_CHECKING:
    from breadcrumbs.runtime.maintenance.checks import Finding
    from breadcrumbs.runtime.settings.settings import Settings

_MARKS = {"ok": ("✓", "green"), "wrong": ("✗", "red"), "skipped": ("·", "dim")}

commands = typer.Typer()


@commands.command()
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Repair what can be repaired, such as indexes and expired data.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", envvar="CRUMB_URL", help="Address of the API. [default: from the settings]"),
    ] = None,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check the installation, the API and the store.

    Prints advice for each problem. The exit code is 1 if there is one.

    \b
    crumb doctor
    crumb doctor --fix
    crumb doctor --redis redis://db:6379/0 --json | jq '.findings[].status'
    """
    from breadcrumbs.runtime.maintenance.checks import Finding, check_python
    from breadcrumbs.runtime.settings.settings import load_settings

    findings = [check_python()]
    try:
        settings = load_settings(config=config, data=data, redis=redis)
    except StartupError as error:
        findings.append(Finding("settings", "wrong", str(error), "correct this setting"))
        return _report(findings, as_json)
    findings.append(Finding("settings", "ok", "valid"))
    api = _check_api(local_url(settings.host, settings.port) if url is None else url)
    findings.append(api)
    findings += _check_storage(settings, served=api.status == "ok", fix=fix)
    return _report(findings, as_json)


def _check_api(url: str) -> Finding:
    from breadcrumbs.runtime.maintenance.checks import Finding

    with open_client(url, token="") as client:  # no token, because these operations are public
        try:
            with command_errors(client.url):
                client.request("GET", "/health")
                version = client.request("GET", "/openapi.json").json()["info"]["version"]
        except (BreadcrumbsError, LookupError, TypeError, ValueError) as error:
            what = str(error)
            if not isinstance(error, BreadcrumbsError):
                what = f"the server at {client.url} is not a Breadcrumbs server"
            return Finding(
                "api", "wrong", visible(what), f"start it with {command()} up, or set its address with --url"
            )
        return Finding(
            "api",
            "ok",
            f"{client.url} answers (version {version})",
            details={"url": client.url, "version": version},
        )


def _check_storage(settings: Settings, *, served: bool, fix: bool) -> list[Finding]:
    from breadcrumbs.composition.event_loop import run_async
    from breadcrumbs.composition.storage import (
        data_directory,
        has_data,
        running_server,
        server_address,
        shown_address,
    )
    from breadcrumbs.runtime.maintenance.checks import Finding, check_binary, check_data_directory

    findings = []
    if settings.redis is None:
        directory = data_directory(settings)
        running = running_server(directory)
        findings += [
            check_binary(),
            check_data_directory(directory, holder=running.pid if running else None),
        ]
        if any(finding.status == "wrong" for finding in findings):
            return findings
        if running is None and not has_data(directory):
            return [*findings, Finding("store", "skipped", f"no data yet: {command()} up creates it")]
    try:
        with server_address(settings, create=False) as url:
            findings += run_async(_check_store(settings, url, served=served, fix=fix))
    except BreadcrumbsError as error:
        where = "" if settings.redis is None else f"{shown_address(settings.redis)}: "
        findings.append(Finding("store", "wrong", f"{where}{error}", "fix this, then run crumb doctor again"))
    return findings


async def _check_store(settings: Settings, url: str, *, served: bool, fix: bool) -> list[Finding]:
    from breadcrumbs.composition.storage import has_store, open_store
    from breadcrumbs.runtime.maintenance import checks

    if not await has_store(settings, url):
        return [
            checks.Finding(
                "store", "skipped", f"the server answers, but has no store yet: {command()} up creates one"
            )
        ]
    # Without the number of lanes from the settings, because `check_layout` compares it with the store.
    store = await open_store(settings.model_copy(update={"lanes": None}), url)
    try:
        return [
            *await checks.check_server(store),
            await checks.check_layout(store, wanted_lanes=settings.lanes),
            await checks.check_scripts(store),
            *await checks.check_events(store, window=int(settings.event_window.total_seconds() * 1_000_000)),
            await checks.check_expired(store, served=served, fix=fix),
            await checks.check_indexes(store, fix=fix),
            await checks.check_sessions(store, fix=fix),
            *await checks.check_quotas(store, fix=fix),
        ]
    finally:
        await store.close()


def _report(findings: list[Finding], as_json: bool) -> int:
    wrong = [finding for finding in findings if finding.status == "wrong"]
    if not for_people(as_json):
        print_json({"ok": not wrong, "findings": [finding.as_dict() for finding in findings]})
        return PROBLEM if wrong else OK
    from rich.text import Text

    out = console()
    for finding in findings:
        mark, colour = _MARKS[finding.status]
        line = Text()
        line.append(f"{mark} ", style=f"bold {colour}")
        line.append(f"{finding.check}: ", style="bold")
        line.append(visible(finding.message))
        out.print(line)
        if finding.advice:
            out.print(Text(f"    → {finding.advice}", style="yellow"))
    out.print(
        Text(
            f"\n{len(wrong)} of {len(findings)} checks failed" if wrong else "\nno problems found",
            style="bold",
        )
    )
    return PROBLEM if wrong else OK
