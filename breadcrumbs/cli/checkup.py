"""doctor: every check-up there is, what is wrong, and how to mend it."""

from __future__ import annotations

import asyncio
from typing import Any

from breadcrumbs.cli.attach import (
    data_directory,
    has_store,
    open_store,
    running_server,
    server_address,
    shown_address,
)
from breadcrumbs.cli.client import Api
from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    CommandError,
    command,
    console,
    for_people,
    print_json,
    visible,
)
from breadcrumbs.runtime.errors import BreadcrumbsError, StartupError
from breadcrumbs.runtime.maintenance import checks
from breadcrumbs.runtime.maintenance.checks import Finding
from breadcrumbs.runtime.settings.settings import Settings, load_settings

_MARKS = {"ok": ("✓", "green"), "wrong": ("✗", "red"), "skipped": ("·", "dim")}


def doctor(flags: dict[str, Any], *, api: Api | None, fix: bool, as_json: bool) -> int:
    """`api`: the server to look for; None: where the settings say."""
    findings = [checks.check_python()]
    try:
        settings = load_settings(**flags)
    except StartupError as error:
        findings.append(Finding("settings", "wrong", str(error), "change what is named above"))
        return _report(findings, as_json)
    findings.append(Finding("settings", "ok", "usable"))
    served = _check_api(api or Api(_address(settings)))
    findings.append(served)
    findings += _check_storage(settings, served=served.status == "ok", fix=fix)
    return _report(findings, as_json)


def _address(settings: Settings) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - read, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def _check_api(api: Api) -> Finding:
    with api:
        try:
            api.get("/health")
            version = api.get("/openapi.json").json()["info"]["version"]
        except (CommandError, LookupError, TypeError, ValueError) as error:
            what = str(error)
            if not isinstance(error, CommandError):
                what = f"what answers at {api.url} does not look like a Breadcrumbs server"
            return Finding(
                "api", "wrong", visible(what), f"start it with {command()} up, or name it with --url"
            )
    return Finding(
        "api", "ok", f"{api.url} answers (version {version})", details={"url": api.url, "version": version}
    )


def _check_storage(settings: Settings, *, served: bool, fix: bool) -> list[Finding]:
    findings = []
    if settings.redis is None:
        directory = data_directory(settings)
        running = running_server(directory)
        findings += [
            checks.check_binary(),
            checks.check_data_directory(directory, holder=running.pid if running else None),
        ]
        if any(finding.status == "wrong" for finding in findings):
            return findings
        if running is None and not (directory / "appendonlydir").exists():
            return [*findings, Finding("store", "skipped", f"there is no data yet: {command()} up makes it")]
    try:
        with server_address(settings, create=False) as url:
            findings += asyncio.run(_check_store(settings, url, served=served, fix=fix))
    except BreadcrumbsError as error:
        where = "" if settings.redis is None else f"{shown_address(settings.redis)}: "
        findings.append(Finding("store", "wrong", f"{where}{error}", "mend that, then ask again"))
    return findings


async def _check_store(settings: Settings, url: str, *, served: bool, fix: bool) -> list[Finding]:
    if not await has_store(settings, url):
        return [
            Finding("store", "skipped", f"the server answers, but has no store yet: {command()} up makes one")
        ]
    # Not with the number of lanes from the settings: whether they agree is one of the questions.
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
        Text(f"\n{len(wrong)} of {len(findings)} need attention" if wrong else "\nall is well", style="bold")
    )
    return PROBLEM if wrong else OK
