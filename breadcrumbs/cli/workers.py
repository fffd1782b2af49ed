"""Commands on workers: `crumb workers list` and `crumb workers drain`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from breadcrumbs.cli.client import open_client, path_of
from breadcrumbs.cli.completion import worker_names
from breadcrumbs.cli.options import DEFAULT_URL, DataOption, JsonOption, RedisOption, TokenOption, UrlOption
from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    command,
    for_people,
    one_line,
    print_columns,
    print_json,
    say,
    visible,
)

if TYPE_CHECKING:
    from breadcrumbs.runtime.store.store import Store

_POLL_SECONDS: Final = 0.5

commands = typer.Typer(
    name="workers",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List workers and drain them.

    \b
    crumb workers list
    crumb workers drain runner-1 --wait
    """,
)

Fetch = Callable[[str, str], dict[str, Any]]
"""Sends a method and a path of the API, and returns the document of the reply."""


@commands.command("list")
def list_all(
    wide: Annotated[
        bool, typer.Option("--wide", help="Also show process id, heartbeat, agents, models and id.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    redis: RedisOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the workers with their state, lanes and current turns.

    \b
    crumb workers list
    crumb workers list --wide
    crumb workers list --json | jq '.workers[] | select(.state == "lost").name'
    crumb workers list --redis redis://db:6379/0     without the API

    A killed worker is shown as lost within seconds, and stays listed for 24 hours. A stopped one stays listed for
    10 minutes.
    """
    with _source(url, token, redis, data) as fetch:
        document = fetch("GET", "/operations/workers")
    if not for_people(as_json):
        print_json(document)
    elif document["workers"]:
        _print_workers(document, wide=wide)
    else:
        say(f"no workers: start {command()} up, or {command()} build-contexts and {command()} run-agents")
    return OK


@commands.command("drain")
def drain(
    name: Annotated[str, typer.Argument(help="Name of a worker.", autocompletion=worker_names)],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the worker has ended.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait with --wait, 0 for no limit.")
    ] = 120,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    redis: RedisOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let a worker finish its turns, release its lanes and end.

    \b
    crumb workers drain runner-1
    crumb workers drain runner-1 --wait && echo ended
    crumb workers drain runner-1 --redis redis://db:6379/0     without the API

    Other workers take its lanes. A turn that takes longer than the setting drain_timeout is repeated by another
    worker. A worker process then exits with code 0. The workers of crumb up end, but its API continues: restart it
    to get them back. Draining a worker again changes nothing.
    """
    with _source(url, token, redis, data) as fetch:
        document = fetch("POST", path_of("operations", "workers", name, "drain"))
        for warning in document["warnings"]:
            say(f"warning: {visible(warning)}")
        ended = {"stopped", "lost"}
        draining = {(one["kind"], one["id"]) for one in document["workers"] if one["state"] not in ended}
        in_time = not wait or _wait(fetch, draining, timeout)
        if wait:
            workers = fetch("GET", "/operations/workers")["workers"]
            document["workers"] = [one for one in workers if one["name"] == name]
    if for_people(as_json):
        for worker in document["workers"]:
            say(
                f"{visible(worker['name'])} ({visible(worker['kind'])}): {worker['state']}{_turns_left(worker)}"
            )
    else:
        print_json(document)
    if not in_time:
        say(f"{visible(name)} has not ended after {timeout:g} seconds: it continues to drain")
        return PROBLEM
    lost = {(one["kind"], one["id"]) for one in document["workers"] if one["state"] == "lost"}
    return PROBLEM if wait and lost & draining else OK


def _turns_left(worker: dict[str, Any]) -> str:
    turns = worker.get("turns", 0)
    return f", {turns} {'turn' if turns == 1 else 'turns'} left" if worker["state"] == "draining" else ""


def _wait(fetch: Fetch, draining: set[tuple[str, str]], timeout: float) -> bool:
    """Wait until workers have ended. Return False after the timeout."""
    deadline = time.monotonic() + timeout
    while True:
        workers = fetch("GET", "/operations/workers")["workers"]
        if not any(one["alive"] and (one["kind"], one["id"]) in draining for one in workers):
            return True
        if timeout and time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)


# Sources


@contextmanager
def _source(url: str, token: str | None, redis: str | None, data: Path | None) -> Iterator[Fetch]:
    """Provide access to workers: over HTTP, or on the Redis server if one is given."""
    if redis is not None or data is not None:
        yield lambda method, path: _from_store(redis, data, path)
        return
    with open_client(url, token) as client:

        def fetch(method: str, path: str) -> dict[str, Any]:
            document: dict[str, Any] = client.request(method, path).json()
            return document

        yield fetch


def _from_store(redis: str | None, data: Path | None, path: str) -> dict[str, Any]:
    from urllib.parse import unquote

    from breadcrumbs.cli.contexts import on_store
    from breadcrumbs.runtime.settings.settings import load_settings

    async def answer(store: Store) -> dict[str, Any]:
        if path == "/operations/workers":
            return await _list_documents(store)
        return await _drain_documents(store, unquote(path.split("/")[3]))

    return on_store(load_settings(redis=redis, data=data), answer)


async def _list_documents(store: Store) -> dict[str, Any]:
    from breadcrumbs.runtime.breadcrumb import times
    from breadcrumbs.runtime.http.routes.worker_list import worker_documents
    from breadcrumbs.runtime.store.worker_reports import list_workers

    return {"at": times.to_text(store.now()), "workers": worker_documents(await list_workers(store))}


async def _drain_documents(store: Store, name: str) -> dict[str, Any]:
    from breadcrumbs.runtime.http.routes.worker_list import worker_documents
    from breadcrumbs.runtime.maintenance.worker_drain import drain_workers

    drained = await drain_workers(store, name)
    return {"name": name, "workers": worker_documents(drained.workers), "warnings": drained.warnings}


# Tables


def _print_workers(document: dict[str, Any], *, wide: bool) -> None:
    now = datetime.fromisoformat(document["at"])
    headers = ["name", "kind", "state", "lanes", "turns", "up", "version"]
    styles = ["bold", "", "", "right", "right", "right"]
    if wide:
        headers += ["host", "pid", "heartbeat", "agents", "models", "id"]
        styles += ["", "", "right", "right", "", ""]
    rows = [_row(worker, now, wide=wide) for worker in document["workers"]]
    print_columns(rows, styles, headers)


def _row(worker: dict[str, Any], now: datetime, *, wide: bool) -> list[str]:
    cells = [
        one_line(worker["name"], 200 if wide else 26),
        one_line(worker["kind"], 200 if wide else 12),
        _state(worker, now),
        str(worker.get("lane_count", "-")) if worker["alive"] else "-",
        str(worker.get("turns", "-")) if worker["alive"] else "-",
        _age(worker.get("started_at"), now) if worker["alive"] else "-",
        one_line(worker.get("version", "-"), 12),
    ]
    if wide:
        cells += [
            one_line(worker.get("host", "-")),
            str(worker.get("pid", "-")),
            _age(worker.get("heartbeat_at"), now),
            _names(worker, "agents"),
            _names(worker, "models"),
            one_line(worker["id"]),
        ]
    return cells


def _state(worker: dict[str, Any], now: datetime) -> str:
    state: str = worker["state"]
    return f"{state} {_age(worker.get('ended_at'), now)} ago" if not worker["alive"] else state


def _names(worker: dict[str, Any], field: str) -> str:
    names, more = worker.get(field, []), worker.get(f"more_{field}", 0)
    return one_line(",".join([*names, *([f"+{more}"] if more else [])]) or "-", 60)


def _age(text: str | None, now: datetime) -> str:
    """Return a rough duration since a time, such as `42s`, `7m`, `5h` or `3d`."""
    if text is None:
        return "-"
    seconds = max(0, int((now - datetime.fromisoformat(text)).total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length * (2 if unit == "d" else 1):
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
