"""The composition of the workers: what a context builder and an agent runner are made of."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import uvloop

from breadcrumbs.agents.agents_in_force import Agent, AgentsInForce, load_definitions
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.agents.remote_adk.servers import AdkServers
from breadcrumbs.agents.remote_adk.turn import AdkTurns
from breadcrumbs.agents.runner import AgentRunner
from breadcrumbs.agents.tool_steps import ToolSteps
from breadcrumbs.agents.tools import Tool, Toolbox, load_tools, shipped_tools
from breadcrumbs.agents.turn import AgentTurns
from breadcrumbs.cli.agent_modules import Loaded, load_agents
from breadcrumbs.cli.attach import data_directory, open_store, running_server, shown_address
from breadcrumbs.cli.logs import configure_logs
from breadcrumbs.cli.output import console, for_people, print_line
from breadcrumbs.context_builder.builder import ContextBuilder, gather_parts
from breadcrumbs.context_builder.config_checks import ConfigError
from breadcrumbs.context_builder.config_file import ConfigFile
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import TurnFailed
from breadcrumbs.runtime.workers.retries import TurnLimits
from breadcrumbs.runtime.workers.worker import Worker


def config_path(settings: Settings) -> Path:
    """The config that holds: the one that was named, else the one that came with the package."""
    if settings.context_config is not None:
        return settings.context_config
    with as_file(files("breadcrumbs.config").joinpath("context-builder-config.json")) as path:
        return path


def config_file(settings: Settings, *, builds: bool) -> ConfigFile | None:
    """The same file for those who edit it over HTTP; None: a process that builds no contexts knows of none."""
    if settings.context_config is None:
        return ConfigFile(config_path(settings), locked="this is the built-in config") if builds else None
    owners = {key.owner_id for key in settings.api_keys}
    shared = "several owners share this server, and the file holds for all of them"
    return ConfigFile(settings.context_config, locked=shared if len(owners) > 1 else "")


def open_configs(store: Store, settings: Settings) -> ConfigsInForce:
    """The context configs; a file that cannot be used at start is an error at once."""
    configs = ConfigsInForce(store, config_path(settings))
    try:
        configs.load()
    except ConfigError as error:
        raise StartupError(f"the context config cannot be used:\n{error}") from None
    return configs


def build_contexts(settings: Settings) -> int:
    """`crumb build-contexts`: one context builder. Returns the exit code."""

    async def main() -> int:
        async with _store(settings) as store:
            configs = open_configs(store, settings)
            async with configs.watched():
                await work(settings, context_worker(store, settings, configs))
        return 0

    return _run(settings, main())


def run_agents(settings: Settings) -> int:
    """`crumb run-agents`: one agent runner. Returns the exit code."""

    if settings.load:
        return run_own_agents(settings, load_agents(settings.load))

    async def main() -> int:
        async with (
            _store(settings) as store,
            agent_worker(store, settings, open_configs(store, settings)) as worker,
        ):
            await work(settings, worker)
        return 0

    return _run(settings, main())


def run_own_agents(settings: Settings, loaded: Loaded) -> int:
    """`crumb run-agents --load`: these agents and no others. Returns the exit code."""
    _require_agents(loaded)

    async def main() -> int:
        async with (
            _store(settings) as store,
            own_workers(store, settings, open_configs(store, settings), loaded) as workers,
        ):
            await work(settings, *workers)
        return 0

    return _run(settings, main())


@asynccontextmanager
async def hosting(settings: Settings, loaded: Loaded) -> AsyncIterator[None]:
    """The same beside other code."""
    _require_agents(loaded)
    async with (
        _store(settings) as store,
        own_workers(store, settings, open_configs(store, settings), loaded) as workers,
        running(*workers),
    ):
        yield


def _require_agents(loaded: Loaded) -> None:
    """Who runs certain agents and no others has nothing to do without any."""
    if not loaded.agents:
        raise StartupError(
            "there is no agent to run: add a function with @agent, or an AgentDefinition. Tools for the agents that "
            "run already go into the setting `tools`"
        )


def context_worker(store: Store, settings: Settings, configs: ConfigsInForce) -> Worker:
    builder = ContextBuilder(store, configs, inherited=settings.inherited_tags)
    return Worker(store, builder, lease_seconds=settings.lease_seconds, limits=_limits(settings))


def _limits(settings: Settings) -> TurnLimits:
    return TurnLimits(attempts=settings.turn_attempts)


@asynccontextmanager
async def agent_worker(
    store: Store,
    settings: Settings,
    configs: ConfigsInForce,
    agents: Iterable[Agent] = (),
    *,
    tools: Iterable[Tool] = (),
    kind: str | None = None,
) -> AsyncIterator[Worker]:
    """A runner with its models open; `agents` are Python functions on top of the definitions.

    With a `kind` of its own it runs these agents and no others, beside whoever runs the others.
    """
    models = ModelPool({**settings.models, **({"default": settings.model} if settings.model else {})})
    adk = AdkServers(settings.adk)
    try:
        toolbox = toolbox_of(settings, tools)
        known = [*(load_definitions(settings.agents) if kind is None else ()), *agents]
        for agent in known:
            _check(agent, models, toolbox, adk)
        await adk.check_apps(known)
        builder = ContextBuilder(store, configs, inherited=settings.inherited_tags)
        hints = SchemaHints(store)

        def model_of(agent: Agent) -> Model:
            try:
                return models.resolve(agent.definition.model, trusted=agent.trusted)
            except (InvalidInput, StartupError) as error:
                raise TurnFailed(f"{agent.definition.agent_id}: {error}") from error

        async def gather(definition: AgentDefinition, trigger: Breadcrumb) -> list[dict[str, Any]]:
            sources, triggers = definition.sources, definition.triggers
            return await gather_parts(store, sources, trigger, triggers=triggers, hints=hints)

        async def consumers(owner: UUID) -> set[str]:
            return {config.consumer_id for config in await configs.get(owner)}

        inherited = settings.inherited_tags
        turns = AgentTurns(
            store,
            ToolSteps(store, model_of=model_of, toolbox=toolbox, inherited=inherited),
            gather=gather,
            refresh=builder.refresh,
            inherited=inherited,
            remote=AdkTurns(store, adk).answer,
        )
        runner = AgentRunner(
            store,
            AgentsInForce(store, known, breadcrumbs=kind is None),
            turns,
            consumers=consumers,
            inherited=settings.inherited_tags,
            kind=kind or AgentRunner.kind,
        )
        yield Worker(store, runner, lease_seconds=settings.lease_seconds, limits=_limits(settings))
    finally:
        await models.close()
        await adk.close()


@asynccontextmanager
async def own_workers(
    store: Store, settings: Settings, configs: ConfigsInForce, loaded: Loaded
) -> AsyncIterator[list[Worker]]:
    """A worker for each of somebody's own agents: each has its own place in the events, whoever else runs."""
    async with AsyncExitStack() as stack:
        workers = []
        for agent in loaded.agents:
            kind = f"{AgentRunner.kind}/{agent.definition.agent_id}"
            await _begin_now(store, kind)
            one = agent_worker(store, settings, configs, [agent], tools=loaded.tools, kind=kind)
            workers.append(await stack.enter_async_context(one))
        yield workers


async def _begin_now(store: Store, kind: str) -> None:
    """An agent that is run for the first time answers what is said from now on, not what was said before."""
    lanes = range(store.lanes)
    ends = await store.connection.call_all([(lane, (b"GET", store.keys.clock(lane))) for lane in lanes])
    await store.connection.call_all(
        [(lane, (b"SET", store.keys.low(lane, kind), int(end or 0), b"NX")) for lane, end in enumerate(ends)]
    )


@asynccontextmanager
async def running_workers(store: Store, settings: Settings) -> AsyncIterator[ConfigsInForce]:
    """A context builder and an agent runner beside whatever else this process does; drained at the end.

    Gives the configs that they go by.
    """
    configs = open_configs(store, settings)
    loaded = load_agents(settings.load)
    async with (
        agent_worker(store, settings, configs, tools=loaded.tools) as runner,
        own_workers(store, settings, configs, loaded) as own,
        configs.watched(),
        running(context_worker(store, settings, configs), runner, *own),
    ):
        yield configs


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[None]:
    """Workers at work; in the end they finish what they have begun."""
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(worker.run)
        try:
            yield
        finally:
            for worker in workers:
                worker.stop()


async def work(settings: Settings, *workers: Worker) -> None:
    """Run workers until a signal asks them to stop; they finish what they have begun."""
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with anyio.create_task_group() as announcing:
                for worker in workers:
                    tasks.start_soon(worker.run)
                    announcing.start_soon(_announce, settings, worker)
                async for _ in signals:
                    break
                announcing.cancel_scope.cancel()
            for worker in workers:
                worker.stop()


async def _announce(settings: Settings, worker: Worker) -> None:
    """Say when a worker is at work: until then nobody builds or answers here."""
    await worker.at_work.wait()
    kind = worker.handler.kind
    if not for_people(False):
        print_line({"event": "ready", "kind": kind, "worker": worker.name, "pid": os.getpid()})
        return
    at = shown_address(settings.redis) if settings.redis is not None else "the server of crumb up"
    does = "building contexts" if kind == ContextBuilder.kind else f"running {kind}"
    console().print(f"[bold green]{does}[/] on {at}. Ctrl-C finishes what is begun and ends.")


def toolbox_of(settings: Settings, tools: Iterable[Tool] = ()) -> Toolbox:
    try:
        return Toolbox([*shipped_tools(), *load_tools(settings.tools), *tools])
    except InvalidInput as error:
        raise StartupError(f"the tools cannot be used together: {error}") from None


def _check(agent: Agent, models: ModelPool, toolbox: Toolbox, adk: AdkServers) -> None:
    """What an operator's own definition gets wrong is said at start, not in somebody's session."""
    try:
        toolbox.allowed(agent.definition.tools)
        models.resolve(agent.definition.model, trusted=agent.trusted)
        if agent.definition.kind == "adk":
            adk.resolve(agent)
    except InvalidInput as error:
        raise StartupError(f"agent {agent.definition.agent_id!r}: {error}") from None


@asynccontextmanager
async def _store(settings: Settings) -> AsyncIterator[Store]:
    url = settings.redis
    if url is None:
        running = running_server(data_directory(settings))
        if running is None:
            raise StartupError(
                "no server to work on: name one with --redis, or start crumb up (its server is found by itself)"
            )
        url = running.url
    store = await open_store(settings, url)
    try:
        yield store
    finally:
        await store.close()


def _run(settings: Settings, main: Coroutine[Any, Any, int]) -> int:
    configure_logs(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
