"""up, serve, build-contexts, run-agents: processes that run until a signal."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from breadcrumbs import __version__
from breadcrumbs.cli.options import DEFAULT_URL, ConfigOption, DataOption, RedisOption
from breadcrumbs.cli.output import INTERRUPTED, OK, command, console, for_people, print_line, say
from breadcrumbs.runtime.errors import StartupError

if TYPE_CHECKING:
    from rich.console import Console

    from breadcrumbs.composition.http_server import ReadyServer
    from breadcrumbs.runtime.settings.settings import Settings

ContextConfigOption = Annotated[
    Path | None,
    typer.Option("--context-config", help="The context builder's config (JSON). [env: CRUMB_CONTEXT_CONFIG]"),
]
AgentsOption = Annotated[
    Path | None, typer.Option("--agents", help="Folder with agent definitions (JSON). [env: CRUMB_AGENTS]")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="Model of agents that name none: offline, openai:…, ollama:… [env: CRUMB_MODEL]"
    ),
]
HostOption = Annotated[
    str | None, typer.Option("--host", help="Address to listen on. [env: CRUMB_HOST; default: 127.0.0.1]")
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", help="Port to listen on, 0 = any free one. [env: CRUMB_PORT; default: 8081]"),
]
LanesOption = Annotated[
    int | None,
    typer.Option("--lanes", help="Number of lanes of a new store. [env: CRUMB_LANES; default: 16]"),
]
LoadOption = Annotated[
    list[str] | None,
    typer.Option("--load", help="A Python module with agents and tools of your own; only these are run."),
]
LogLevelOption = Annotated[
    str | None, typer.Option("--log-level", help="debug, info, warning or error. [env: CRUMB_LOG_LEVEL]")
]
LogFormatOption = Annotated[
    str | None, typer.Option("--log-format", help="auto, text or json. [env: CRUMB_LOG_FORMAT]")
]

commands = typer.Typer()


@commands.command()
def up(
    host: HostOption = None,
    port: PortOption = None,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    lanes: LanesOption = None,
    context_config: ContextConfigOption = None,
    agents: AgentsOption = None,
    model: ModelOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Start everything in one process, with a server of its own.

    \b
    crumb up                                     on 127.0.0.1:8081, data in your data directory
    crumb up --port 0 --data ./try               any free port, data in ./try
    crumb up --redis redis://:secret@db:6379/0   on a Redis server of yours

    Ctrl-C stops it; started again, the data is there. Only this machine can reach it, unless API keys are
    set (config/crumb.example.toml shows how).
    """
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(
        config=config,
        host=host,
        port=port,
        data=data,
        redis=redis,
        lanes=lanes,
        context_config=context_config,
        agents=agents,
        model=model,
        log_level=log_level,
        log_format=log_format,
    )
    return _serve(settings, workers=True)


@commands.command()
def serve(
    redis: RedisOption = None,
    host: HostOption = None,
    port: PortOption = None,
    config: ConfigOption = None,
    lanes: LanesOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Start the API alone, on a Redis server of your own. Any number of these can share one.

    \b
    crumb serve --redis redis://db:6379/0 --port 8081
    crumb serve --redis redis+cluster://node1:7000
    """
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(
        config=config,
        host=host,
        port=port,
        redis=redis,
        lanes=lanes,
        log_level=log_level,
        log_format=log_format,
    )
    if settings.redis is None:
        raise StartupError(
            "crumb serve needs a Redis server: --redis redis://HOST:PORT (or CRUMB_REDIS). "
            "crumb up brings one of its own"
        )
    return _serve(settings, workers=False)


@commands.command("build-contexts")
def build_contexts(
    redis: RedisOption = None,
    data: DataOption = None,
    context_config: ContextConfigOption = None,
    config: ConfigOption = None,
    lanes: LanesOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Run a context builder. Start as many as you like, stop or kill any of them at any time.

    \b
    crumb build-contexts --redis redis://db:6379/0 --context-config context.json

    The config can be edited while it runs; an edit that does not work is refused with its line.
    """
    from breadcrumbs.composition.processes import run_context_builder
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(
        config=config,
        redis=redis,
        data=data,
        context_config=context_config,
        lanes=lanes,
        log_level=log_level,
        log_format=log_format,
    )
    run_context_builder(settings)
    return OK


@commands.command("run-agents")
def run_agents(
    redis: RedisOption = None,
    data: DataOption = None,
    agents: AgentsOption = None,
    load: LoadOption = None,
    model: ModelOption = None,
    context_config: ContextConfigOption = None,
    config: ConfigOption = None,
    lanes: LanesOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Run an agent runner. Start as many as you like, stop or kill any of them at any time.

    \b
    crumb run-agents --redis redis://db:6379/0
    crumb run-agents --redis redis://db:6379/0 --agents ./agents --model ollama:llama3
    crumb run-agents --load my_agents

    Ctrl-C or SIGTERM lets it finish what it has begun; others take over the rest.
    """
    from breadcrumbs.composition.processes import run_agent_runner
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(
        config=config,
        redis=redis,
        data=data,
        load=load or None,
        agents=agents,
        model=model,
        context_config=context_config,
        lanes=lanes,
        log_level=log_level,
        log_format=log_format,
    )
    run_agent_runner(settings)
    return OK


def _serve(settings: Settings, *, workers: bool) -> int:
    """Serve until a signal. Returns the exit code."""
    from breadcrumbs.composition.http_server import ServerHooks, run_server

    hooks = ServerHooks(
        on_ready=lambda ready: _announce_ready(settings, ready), on_stopping=_announce_stopping
    )
    ended_by = run_server(settings, workers=workers, hooks=hooks)
    return INTERRUPTED if ended_by == signal.SIGINT else OK


def _announce_stopping() -> None:
    if sys.stderr.isatty():
        say("\nstopping … (once more to stop at once)")


def _announce_ready(settings: Settings, ready: ReadyServer) -> None:
    if for_people(False):
        _print_banner(settings, ready)
    else:
        print_line(_ready_facts(settings, ready))


def _ready_facts(settings: Settings, ready: ReadyServer) -> dict[str, Any]:
    from breadcrumbs.composition.storage import shown_address

    facts: dict[str, Any] = {
        "event": "ready",
        "url": ready.url,
        "docs": f"{ready.url}/docs",
        "mode": "development" if settings.development_mode else "keys",
        "pid": os.getpid(),
        "version": __version__,
    }
    if ready.embedded is not None:
        facts |= {"data": str(ready.embedded.data_dir), "server_pid": ready.embedded.pid}
    elif settings.redis is not None:
        facts["redis"] = shown_address(settings.redis)
    return facts


def _print_banner(settings: Settings, ready: ReadyServer) -> None:
    from breadcrumbs.composition.storage import shown_address

    out, url = console(), ready.url
    out.print(f"\n[bold green]Breadcrumbs {__version__} is ready[/]\n")
    out.print(f"  look at it  [bold]{url}/[/]   (for programs: {url}/docs)")
    if ready.embedded is not None:
        data = f"{ready.embedded.data_dir}   (embedded server, append-only file)"
        out.print(f"  data        {data}", markup=False)
    elif settings.redis is not None:
        out.print(f"  data        {shown_address(settings.redis)}", markup=False)
    if settings.development_mode:
        out.print("  mode        development: open to every program on this machine, no key needed")
    else:
        out.print(f"  mode        keys: {len(settings.api_keys)} API key(s), sent as X-API-Key")
    _print_examples(out, url, with_key=not settings.development_mode)
    out.print("\nCtrl-C stops it; the data stays.\n")


def _print_examples(out: Console, url: str, *, with_key: bool) -> None:
    """Print commands to try, ready to be copied."""
    import shlex

    message = (
        '{"schema_name": "user.message.v1", "tags": ["user:message", "session:demo"], '
        '"context": {"message": "Hello"}}'
    )
    key = ' -H "x-api-key: $CRUMB_API_KEY"' if with_key else ""
    curl = f"curl {url}/breadcrumbs{key} -H 'content-type: application/json' -d {shlex.quote(message)}"
    at = "" if url == DEFAULT_URL else f" --url {url}"
    out.print("\nTry next, in another terminal:\n")
    for line in (f"{command()} chat{at}", f"{command()} tail{at}", curl):
        out.print(f"  {line}", markup=False, style="cyan")
