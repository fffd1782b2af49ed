"""Worker processes that run until a signal.

A process runs a context builder, an agent runner, or a user's own agents.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import orjson

from breadcrumbs.composition.event_loop import run_async
from breadcrumbs.composition.logs import configure_logs
from breadcrumbs.composition.own_agents import OwnAgents, load_agents
from breadcrumbs.composition.storage import attached_store, shown_address
from breadcrumbs.composition.tracing import (
    AGENT_RUNNER_SERVICE,
    CONTEXT_BUILDER_SERVICE,
    TOOL_RUNNER_SERVICE,
    traced_process,
    traced_task,
)
from breadcrumbs.composition.worker_port import open_worker_port
from breadcrumbs.composition.workers import (
    WorkerParts,
    agent_worker,
    context_worker,
    open_configs,
    own_workers,
    running,
    tool_workers,
    watched_config,
)
from breadcrumbs.context_builder.builder import ContextBuilder
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.events.reader import EventReader
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.workers.worker import Worker


def run_context_builder(settings: Settings) -> None:
    """Run one context builder until a signal."""

    async def main() -> None:
        async with _attached_parts(settings) as parts:
            builder = context_worker(parts)
            async with watched_config(parts, builder):
                await _work_until_signal(settings, builder)

    _run_process(settings, CONTEXT_BUILDER_SERVICE, main())


def run_agent_runner(settings: Settings) -> None:
    """Run one agent runner until a signal.

    With `settings.load`, run only the agents of those modules.
    """
    if settings.load:
        run_own_agents(settings, load_agents(settings.load))
        return

    async def main() -> None:
        async with _attached_parts(settings) as parts, agent_worker(parts) as worker:
            await _work_until_signal(settings, worker)

    _run_process(settings, AGENT_RUNNER_SERVICE, main())


def run_own_agents(settings: Settings, own: OwnAgents) -> None:
    """Run a user's own agents, and no others, until a signal."""
    _require_agents(own)

    async def main() -> None:
        async with _attached_parts(settings) as parts, own_workers(parts, own) as workers:
            await _work_until_signal(settings, *workers)

    _run_process(settings, AGENT_RUNNER_SERVICE, main())


def run_tool_runner(settings: Settings) -> None:
    """Run the tools of `settings.load` for agents in other processes, until a signal."""
    tools = load_agents(settings.load).tools
    if not tools:
        raise StartupError(
            "no tools to run: name a module with functions that have the decorator @tool, such as --load my_tools"
        )

    async def main() -> None:
        async with _attached_parts(settings) as parts:
            await _work_until_signal(settings, *tool_workers(parts, tools))

    _run_process(settings, TOOL_RUNNER_SERVICE, main())


@asynccontextmanager
async def hosted_agents(settings: Settings, own: OwnAgents) -> AsyncIterator[None]:
    """Run a user's own agents, and no others, as tasks of this event loop.

    Running turns are finished at the end.
    """
    _require_agents(own)
    async with (
        traced_task(settings, AGENT_RUNNER_SERVICE),
        _attached_parts(settings) as parts,
        own_workers(parts, own) as workers,
        running(*workers),
    ):
        yield


@asynccontextmanager
async def _attached_parts(settings: Settings) -> AsyncIterator[WorkerParts]:
    async with (
        attached_store(settings) as store,
        EventReader(store) as reader,
    ):
        yield WorkerParts(store, reader, settings, open_configs(store, settings))


def _require_agents(own: OwnAgents) -> None:
    if not own.agents:
        raise StartupError(
            "no agents to run: add a function with @agent, or an AgentDefinition. To add tools for agents that are "
            "already running, use the setting `tools`"
        )


def _run_process(settings: Settings, service: str, main: Coroutine[Any, Any, None]) -> None:
    configure_logs(settings)
    with traced_process(settings, service):
        run_async(main)


async def _work_until_signal(settings: Settings, *workers: Worker) -> None:
    """Run workers until SIGTERM, SIGINT, or until all are drained. Running turns are finished first."""
    async with open_worker_port(settings, workers) as port, anyio.create_task_group() as background:
        background.start_soon(_stop_on_signal, workers)
        for worker in workers:
            background.start_soon(_announce_ready, settings, worker, port)
        async with anyio.create_task_group() as tasks:
            for worker in workers:
                tasks.start_soon(worker.run)
        background.cancel_scope.cancel()


async def _stop_on_signal(workers: Sequence[Worker]) -> None:
    """Stop the workers on the first signal. A second one ends the process at once."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            break
    for worker in workers:
        worker.stop()


async def _announce_ready(settings: Settings, worker: Worker, port: int | None) -> None:
    await worker.at_work.wait()
    print_ready_line(settings, worker, port)


def print_ready_line(settings: Settings, worker: Worker, port: int | None = None) -> None:
    """Report that a worker is ready.

    Print a sentence on a terminal, otherwise one line of JSON.
    """
    kind = worker.handler.kind
    if not sys.stdout.isatty():
        ready = {"event": "ready", "kind": kind, "worker": worker.name, "pid": os.getpid()}
        if port is not None:
            ready["metrics_port"] = port
        sys.stdout.write(orjson.dumps(ready).decode() + "\n")
        sys.stdout.flush()
        return
    from rich.console import Console

    at = shown_address(settings.redis) if settings.redis is not None else "the server of crumb up"
    does = "building contexts" if kind == ContextBuilder.kind else f"running {kind}"
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold green]{does}[/] on {at}. Press Ctrl-C to finish the running turns and stop.")
