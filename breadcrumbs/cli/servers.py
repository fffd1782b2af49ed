"""Commands that start servers and workers: `up`, `serve`, `build-contexts`, `run-agents`, `run-tools`.

They run until a signal.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import breadcrumbs
from breadcrumbs.agents.models.providers import OFFLINE, forms_help, model_forms
from breadcrumbs.cli.options import DEFAULT_URL, ConfigOption, DataOption, RedisOption
from breadcrumbs.cli.output import INTERRUPTED, OK, command, console, for_people, print_line, say
from breadcrumbs.runtime.errors import StartupError

if TYPE_CHECKING:
    from rich.console import Console

    from breadcrumbs.composition.http_server import ReadyServer, ServerHooks
    from breadcrumbs.runtime.settings.settings import Settings

ContextConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--context-config", help="Config of the context builder (JSON). [env: CRUMB_CONTEXT_CONFIG]"
    ),
]
AgentsOption = Annotated[
    Path | None, typer.Option("--agents", help="Folder with agent definitions (JSON). [env: CRUMB_AGENTS]")
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="Model of agents that name none, see below. [env: CRUMB_MODEL]"),
]
HostOption = Annotated[
    str | None, typer.Option("--host", help="Address to listen on. [env: CRUMB_HOST; default: 127.0.0.1]")
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", help="Port to listen on, 0 for any free port. [env: CRUMB_PORT; default: 8081]"),
]
LanesOption = Annotated[
    int | None,
    typer.Option("--lanes", help="Number of lanes, for a new store only. [env: CRUMB_LANES; default: 64]"),
]
NoDefaultAgentOption = Annotated[
    bool,
    typer.Option(
        "--no-default-agent",
        help="Do not run the built-in assistant. [env: CRUMB_DEFAULT_AGENT=false]",
    ),
]
LoadOption = Annotated[
    list[str] | None,
    typer.Option("--load", help="Python module with your own agents and tools. Runs only these."),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="Name of this worker in crumb workers list. Unique among running workers of its kind. "
        "[env: CRUMB_WORKER_NAME; default: host, process id and a random part]",
    ),
]
MetricsHostOption = Annotated[
    str | None,
    typer.Option(
        "--metrics-host",
        help="Address of the metrics port, 0.0.0.0 in a container. [env: CRUMB_METRICS_HOST; default: 127.0.0.1]",
    ),
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        help="Port for /metrics, /health and /ready, 0 for any free port. [env: CRUMB_METRICS_PORT; default: none]",
    ),
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--workers", help="API processes that share the port. [env: CRUMB_API_PROCESSES; default: 1]"
    ),
]
NewStoreOption = Annotated[
    bool,
    typer.Option(
        "--new-store",
        help="Accept another or an empty store than at the last start. For one start only. [env: CRUMB_NEW_STORE]",
    ),
]
LogLevelOption = Annotated[
    str | None, typer.Option("--log-level", help="debug, info, warning or error. [env: CRUMB_LOG_LEVEL]")
]
LogFormatOption = Annotated[
    str | None, typer.Option("--log-format", help="auto, text or json. [env: CRUMB_LOG_FORMAT]")
]

_MODELS_HELP = (
    f"\b\nModels, with examples and the variables of their keys:\n{forms_help()}\n\n"
    "crumb model check MODEL tries one. Endpoints and aliases are set in crumb.toml, under [models]."
)

commands = typer.Typer()


@commands.command(epilog=_MODELS_HELP)
def up(
    host: HostOption = None,
    port: PortOption = None,
    data: DataOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    lanes: LanesOption = None,
    new_store: NewStoreOption = False,
    context_config: ContextConfigOption = None,
    agents: AgentsOption = None,
    no_default_agent: NoDefaultAgentOption = False,
    model: ModelOption = None,
    name: NameOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Start everything in one process, with an embedded server.

    \b
    crumb up                             on 127.0.0.1:8081, data in your home
    crumb up --model ollama:llama3.2     with a real model
    crumb up --port 0 --data ./try       on any free port, data in ./try
    crumb up --redis redis://db:6379/0   on your own Redis server

    Runs the API with the web page, a context builder and an agent runner. Ctrl-C stops it. The data is kept for the
    next start. Only this machine can connect unless API keys are set (see config/crumb.example.toml).
    """
    with _fast_imports():
        from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(
        config=config,
        host=host,
        port=port,
        data=data,
        redis=redis,
        lanes=lanes,
        new_store=new_store or None,
        context_config=context_config,
        agents=agents,
        default_agent=False if no_default_agent else None,
        model=model,
        worker_name=name,
        log_level=log_level,
        log_format=log_format,
    )
    return _serve(settings, workers=True)


@commands.command()
def serve(
    redis: RedisOption = None,
    host: HostOption = None,
    port: PortOption = None,
    workers: ProcessesOption = None,
    config: ConfigOption = None,
    lanes: LanesOption = None,
    new_store: NewStoreOption = False,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Start only the API, on your own Redis server. Any number of API processes can share one.

    \b
    crumb serve --redis redis://db:6379/0 --port 8081
    crumb serve --redis redis+cluster://node1:7000
    crumb serve --redis redis://db:6379/0 --workers 4

    One process uses one core. Use --workers if the API is busy and the machine has free cores: one process per core,
    without the cores that Redis and the agents need. The processes share the port, the limits and /metrics. A process
    that ends is restarted.

    Run crumb build-contexts and crumb run-agents on the same Redis server to get answers.
    """
    with _fast_imports():
        from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(
        config=config,
        host=host,
        port=port,
        redis=redis,
        api_processes=workers,
        lanes=lanes,
        new_store=new_store or None,
        log_level=log_level,
        log_format=log_format,
    )
    if settings.redis is None:
        raise StartupError(
            "crumb serve needs a Redis server: set --redis redis://HOST:PORT or CRUMB_REDIS. "
            "crumb up starts an embedded one"
        )
    if settings.api_processes > 1:
        return _serve_with_processes(settings, settings.redis)
    return _serve(settings, workers=False)


@commands.command("build-contexts")
def build_contexts(
    redis: RedisOption = None,
    data: DataOption = None,
    context_config: ContextConfigOption = None,
    config: ConfigOption = None,
    lanes: LanesOption = None,
    name: NameOption = None,
    metrics_host: MetricsHostOption = None,
    metrics_port: MetricsPortOption = None,
    new_store: NewStoreOption = False,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Run a context builder. Any number can run at once. Each can be stopped or killed at any time.

    \b
    crumb build-contexts --redis redis://db:6379/0 --context-config context.json

    The config can be edited while it runs. An invalid edit is logged with its line, and the last valid config
    stays in force.
    """
    with _fast_imports():
        from breadcrumbs.composition.processes import run_context_builder
        from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(
        config=config,
        redis=redis,
        data=data,
        context_config=context_config,
        lanes=lanes,
        worker_name=name,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        new_store=new_store or None,
        log_level=log_level,
        log_format=log_format,
    )
    run_context_builder(settings)
    return OK


@commands.command("run-agents", epilog=_MODELS_HELP)
def run_agents(
    redis: RedisOption = None,
    data: DataOption = None,
    agents: AgentsOption = None,
    no_default_agent: NoDefaultAgentOption = False,
    load: LoadOption = None,
    model: ModelOption = None,
    context_config: ContextConfigOption = None,
    config: ConfigOption = None,
    lanes: LanesOption = None,
    name: NameOption = None,
    metrics_host: MetricsHostOption = None,
    metrics_port: MetricsPortOption = None,
    new_store: NewStoreOption = False,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Run an agent runner. Any number can run at once. Each can be stopped or killed at any time.

    \b
    crumb run-agents --redis redis://db:6379/0
    crumb run-agents --agents ./agents --model ollama:llama3.2
    crumb run-agents --load my_agents

    After Ctrl-C or SIGTERM it finishes the turns that it has started. Other agent runners take over the rest.
    crumb workers drain NAME does the same from another machine, and gives long turns more time.
    """
    with _fast_imports():
        from breadcrumbs.composition.processes import run_agent_runner
        from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(
        config=config,
        redis=redis,
        data=data,
        load=load or None,
        agents=agents,
        default_agent=False if no_default_agent else None,
        model=model,
        context_config=context_config,
        lanes=lanes,
        worker_name=name,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        new_store=new_store or None,
        log_level=log_level,
        log_format=log_format,
    )
    run_agent_runner(settings)
    return OK


@commands.command("run-tools")
def run_tools(
    load: LoadOption = None,
    redis: RedisOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
    lanes: LanesOption = None,
    name: NameOption = None,
    metrics_host: MetricsHostOption = None,
    metrics_port: MetricsPortOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Run tools for agents in other processes. Any number can run at once. Each can be stopped or killed at any time.

    \b
    crumb run-tools --load my_tools --redis redis://db:6379/0

    The agents declare these tools as external: under external_tools in their definition, or with
    @tool(external=True). Each request gets one response. After a crash, only idempotent tools run again.
    """
    with _fast_imports():
        from breadcrumbs.composition.processes import run_tool_runner
        from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(
        config=config,
        redis=redis,
        data=data,
        load=load or None,
        lanes=lanes,
        worker_name=name,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        log_level=log_level,
        log_format=log_format,
    )
    run_tool_runner(settings)
    return OK


@contextmanager
def _fast_imports() -> Iterator[None]:
    """Import the modules of a server in a fifth less time.

    The garbage collector finds nothing among modules, so it is off and does not look at them later. structlog would
    load rich for coloured tracebacks. Ours are plain.
    """
    gc.disable()
    rich = sys.modules.get("rich")
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401

        del sys.modules["rich"]
        if rich is not None:
            sys.modules["rich"] = rich
        yield
    finally:
        gc.freeze()
        gc.enable()


def _serve(settings: Settings, *, workers: bool) -> int:
    """Serve until a signal. Return the exit code."""
    with _fast_imports():
        from breadcrumbs.composition.http_server import run_server

    ended_by = run_server(settings, workers=workers, hooks=_hooks(settings, workers=workers))
    return INTERRUPTED if ended_by == signal.SIGINT else OK


def _serve_with_processes(settings: Settings, redis: str) -> int:
    """Serve with several API processes until a signal. Return the exit code."""
    with _fast_imports():
        from breadcrumbs.composition.api_processes import run_api_processes

    hooks = _hooks(settings, workers=False)
    ended_by = run_api_processes(settings, redis, count=settings.api_processes, hooks=hooks)
    return INTERRUPTED if ended_by == signal.SIGINT else OK


def _hooks(settings: Settings, *, workers: bool) -> ServerHooks:
    from breadcrumbs.composition import http_server

    return http_server.ServerHooks(
        on_ready=lambda ready: _announce_ready(settings, ready, workers=workers),
        on_stopping=_announce_stopping,
    )


def _announce_stopping() -> None:
    if sys.stderr.isatty():
        say("\nstopping … (press Ctrl-C again to stop immediately)")


def _announce_ready(settings: Settings, ready: ReadyServer, *, workers: bool) -> None:
    model = _model_facts(settings) if workers else {}
    if for_people(False):
        _print_banner(settings, ready, model)
    else:
        print_line(_ready_facts(settings, ready) | model)


def _model_facts(settings: Settings) -> dict[str, str]:
    """Return the model of agents that name none, and its meaning if it is an alias."""
    from breadcrumbs.composition.model_checks import default_model, open_models

    name = default_model(settings)
    meaning = open_models(settings).meaning(name)
    return {"model": name} | ({} if meaning == name else {"model_alias_of": meaning})


def _ready_facts(settings: Settings, ready: ReadyServer) -> dict[str, Any]:
    from breadcrumbs.composition.storage import shown_address

    facts: dict[str, Any] = {
        "event": "ready",
        "url": ready.url,
        "docs": f"{ready.url}/docs",
        "mode": "development" if settings.development_mode else "keys",
        "pid": os.getpid(),
        "version": breadcrumbs.__version__,
    }
    if ready.pids:
        facts["pids"] = list(ready.pids)
    if ready.embedded is not None:
        facts |= {"data": str(ready.embedded.data_dir), "server_pid": ready.embedded.pid}
    elif settings.redis is not None:
        facts["redis"] = shown_address(settings.redis)
    return facts


def _print_banner(settings: Settings, ready: ReadyServer, model: dict[str, str]) -> None:
    from breadcrumbs.composition.storage import shown_address

    out, url = console(), ready.url
    out.print(f"\n[bold green]Breadcrumbs {breadcrumbs.__version__} is ready[/]\n")
    out.print(f"  web page  [bold]{url}/[/]")
    out.print(f"  API       {url}/docs")
    if ready.embedded is not None:
        data = f"{ready.embedded.data_dir}   (embedded server, append-only file)"
        out.print(f"  data      {data}", markup=False)
    elif settings.redis is not None:
        out.print(f"  data      {shown_address(settings.redis)}", markup=False)
    if ready.pids:
        out.print(f"  processes {len(ready.pids)} (pids {', '.join(map(str, ready.pids))})")
    if settings.development_mode:
        out.print("  access    development mode: every program on this machine, without a key")
    else:
        out.print(f"  access    {len(settings.api_keys)} API key(s), sent as X-API-Key")
    if model:
        _print_model(out, **model)
    _print_examples(out, url, with_key=not settings.development_mode)
    out.print("\nPress Ctrl-C to stop. The data is kept.\n")


def _print_model(out: Console, model: str, model_alias_of: str | None = None) -> None:
    """Print the model that answers. For the offline model, also print how to choose another."""
    meaning = model_alias_of or model
    if meaning != OFFLINE:
        out.print(f"  model     {model}{f' ({meaning})' if meaning != model else ''}", markup=False)
        return
    example = model_forms()[1].example
    out.print("  model     offline, for tests. Choose a real one:", markup=False)
    out.print(f"              {command()} up --model {example}", markup=False, style="cyan")
    out.print(f"              {command()} model list     all forms", markup=False, style="cyan")


def _print_examples(out: Console, url: str, *, with_key: bool) -> None:
    """Print commands to copy and run."""
    import shlex

    message = (
        '{"schema_name": "user.message.v1", "tags": ["user:message", "session:demo"], '
        '"context": {"message": "Hello"}}'
    )
    key = ' -H "x-api-key: $CRUMB_API_KEY"' if with_key else ""
    curl = f"curl {url}/breadcrumbs{key} -H 'content-type: application/json' -d {shlex.quote(message)}"
    at = "" if url == DEFAULT_URL else f" --url {url}"
    out.print("\nTry this in another terminal:\n")
    for line in (f"{command()} chat{at}", f"{command()} tail{at}", curl):
        out.print(f"  {line}", markup=False, style="cyan")
