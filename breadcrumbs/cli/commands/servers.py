"""up, serve, build-contexts, run-agents: processes that run until they are stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from breadcrumbs.cli.commands.options import Config, Data, Redis

ContextConfig = Annotated[
    Path | None,
    typer.Option("--context-config", help="The context builder's config (JSON). [env: CRUMB_CONTEXT_CONFIG]"),
]
Agents = Annotated[
    Path | None, typer.Option("--agents", help="Folder with agent definitions (JSON). [env: CRUMB_AGENTS]")
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="Model of agents that name none: offline, openai:…, ollama:… [env: CRUMB_MODEL]"
    ),
]
Host = Annotated[
    str | None, typer.Option("--host", help="Address to listen on. [env: CRUMB_HOST; default: 127.0.0.1]")
]
Port = Annotated[
    int | None,
    typer.Option("--port", help="Port to listen on, 0 = any free one. [env: CRUMB_PORT; default: 8081]"),
]
Lanes = Annotated[
    int | None,
    typer.Option("--lanes", help="Number of lanes of a new store. [env: CRUMB_LANES; default: 16]"),
]
Load = Annotated[
    list[str] | None,
    typer.Option("--load", help="A Python module with agents and tools of your own; only these are run."),
]
LogLevel = Annotated[
    str | None, typer.Option("--log-level", help="debug, info, warning or error. [env: CRUMB_LOG_LEVEL]")
]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", help="auto, text or json. [env: CRUMB_LOG_FORMAT]")
]

commands = typer.Typer()


@commands.command()
def up(
    host: Host = None,
    port: Port = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    lanes: Lanes = None,
    context_config: ContextConfig = None,
    agents: Agents = None,
    model: Model = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Start everything in one process, with a server of its own.

    \b
    crumb up                                     on 127.0.0.1:8081, data in your data directory
    crumb up --port 0 --data ./try               any free port, data in ./try
    crumb up --redis redis://:secret@db:6379/0   on a Redis server of yours

    Ctrl-C stops it; started again, the data is there. Only this machine can reach it, unless API keys are
    set (config/crumb.example.toml shows how).
    """
    from breadcrumbs.cli.serve import up
    from breadcrumbs.runtime.settings.settings import load_settings

    return up(
        load_settings(
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
    )


@commands.command()
def serve(
    redis: Redis = None,
    host: Host = None,
    port: Port = None,
    config: Config = None,
    lanes: Lanes = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Start the API alone, on a Redis server of your own. Any number of these can share one.

    \b
    crumb serve --redis redis://db:6379/0 --port 8081
    crumb serve --redis redis+cluster://node1:7000
    """
    from breadcrumbs.cli.serve import serve
    from breadcrumbs.runtime.settings.settings import load_settings

    return serve(
        load_settings(
            config=config,
            host=host,
            port=port,
            redis=redis,
            lanes=lanes,
            log_level=log_level,
            log_format=log_format,
        )
    )


@commands.command("build-contexts")
def build_contexts(
    redis: Redis = None,
    data: Data = None,
    context_config: ContextConfig = None,
    config: Config = None,
    lanes: Lanes = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Run a context builder. Start as many as you like, stop or kill any of them at any time.

    \b
    crumb build-contexts --redis redis://db:6379/0 --context-config context.json

    The config can be edited while it runs; an edit that does not work is refused with its line.
    """
    from breadcrumbs.cli.workers import build_contexts
    from breadcrumbs.runtime.settings.settings import load_settings

    return build_contexts(
        load_settings(
            config=config,
            redis=redis,
            data=data,
            context_config=context_config,
            lanes=lanes,
            log_level=log_level,
            log_format=log_format,
        )
    )


@commands.command("run-agents")
def run_agents(
    redis: Redis = None,
    data: Data = None,
    agents: Agents = None,
    load: Load = None,
    model: Model = None,
    context_config: ContextConfig = None,
    config: Config = None,
    lanes: Lanes = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Run an agent runner. Start as many as you like, stop or kill any of them at any time.

    \b
    crumb run-agents --redis redis://db:6379/0
    crumb run-agents --redis redis://db:6379/0 --agents ./agents --model ollama:llama3
    crumb run-agents --load my_agents

    Ctrl-C or SIGTERM lets it finish what it has begun; others take over the rest.
    """
    from breadcrumbs.cli.workers import run_agents
    from breadcrumbs.runtime.settings.settings import load_settings

    return run_agents(
        load_settings(
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
    )
