"""The composition of the workers: what a context builder and an agent runner are made of."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import uvloop

from breadcrumbs.agents.book import Agent, AgentBook, definitions_from
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.executor import Executor
from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.agents.runner import AgentRunner
from breadcrumbs.agents.tools import Toolbox, load_tools, shipped_tools
from breadcrumbs.cli.attach import data_directory, open_store, running_server
from breadcrumbs.cli.logs import configure_logs
from breadcrumbs.context_builder.book import ConfigBook, ConfigError
from breadcrumbs.context_builder.builder import ContextBuilder, gather_parts
from breadcrumbs.runtime.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.schema_hints import SchemaHints
from breadcrumbs.runtime.settings import Settings
from breadcrumbs.runtime.store import Store
from breadcrumbs.runtime.worker import TurnFailed, Worker


def config_path(settings: Settings) -> Path:
    """The config that holds: the one that was named, else the one that came with the package."""
    if settings.context_config is not None:
        return settings.context_config
    with as_file(files("breadcrumbs.config").joinpath("context-builder-config.json")) as path:
        return path


def open_book(store: Store, settings: Settings) -> ConfigBook:
    """The context configs; a file that cannot be used at start is an error at once."""
    book = ConfigBook(store, config_path(settings))
    try:
        book.load()
    except ConfigError as error:
        raise StartupError(f"the context config cannot be used:\n{error}") from None
    return book


def build_contexts(settings: Settings) -> int:
    """`crumb build-contexts`: one context builder. Returns the exit code."""

    async def main() -> int:
        async with _store(settings) as store:
            await work(store, context_worker(store, settings, open_book(store, settings)))
        return 0

    return _run(settings, main())


def run_agents(settings: Settings) -> int:
    """`crumb run-agents`: one agent runner. Returns the exit code."""

    async def main() -> int:
        async with (
            _store(settings) as store,
            agent_worker(store, settings, open_book(store, settings)) as worker,
        ):
            await work(store, worker)
        return 0

    return _run(settings, main())


def context_worker(store: Store, settings: Settings, book: ConfigBook) -> Worker:
    builder = ContextBuilder(store, book, inherited=settings.inherited_tags)
    return Worker(store, builder, lease_seconds=settings.lease_seconds, attempts=settings.turn_attempts)


@asynccontextmanager
async def agent_worker(
    store: Store, settings: Settings, book: ConfigBook, agents: Iterable[Agent] = ()
) -> AsyncIterator[Worker]:
    """A runner with its models open; `agents` are Python functions on top of the definitions."""
    models = ModelPool({**settings.models, **({"default": settings.model} if settings.model else {})})
    try:
        toolbox = toolbox_of(settings)
        known = [*definitions_from(settings.agents), *agents]
        for agent in known:
            _check(agent, models, toolbox)
        builder = ContextBuilder(store, book, inherited=settings.inherited_tags)
        hints = SchemaHints(store)

        def model_of(agent: Agent) -> Model:
            try:
                return models.resolve(agent.definition.model, trusted=agent.trusted)
            except (InvalidInput, StartupError) as error:
                raise TurnFailed(f"{agent.definition.agent_id}: {error}") from error

        async def gather(definition: AgentDefinition, trigger: Breadcrumb) -> list[dict[str, Any]]:
            return await gather_parts(store, definition.sources, trigger, hints=hints)

        async def consumers(owner: UUID) -> set[str]:
            return {config.consumer_id for config in await book.configs(owner)}

        executor = Executor(
            store,
            model_of=model_of,
            toolbox=toolbox,
            gather=gather,
            refresh=builder.refresh,
            inherited=settings.inherited_tags,
        )
        runner = AgentRunner(
            store,
            AgentBook(store, known),
            executor,
            consumers=consumers,
            inherited=settings.inherited_tags,
        )
        yield Worker(store, runner, lease_seconds=settings.lease_seconds, attempts=settings.turn_attempts)
    finally:
        await models.close()


@asynccontextmanager
async def running_workers(store: Store, settings: Settings) -> AsyncIterator[None]:
    """A context builder and an agent runner beside whatever else this process does; drained at the end."""
    book = open_book(store, settings)
    async with agent_worker(store, settings, book) as runner, anyio.create_task_group() as tasks:
        workers = [context_worker(store, settings, book), runner]
        for worker in workers:
            tasks.start_soon(worker.run)
        try:
            yield
        finally:
            for worker in workers:
                worker.stop()


async def work(store: Store, worker: Worker) -> None:
    """Run one worker until a signal asks it to stop; it finishes what it has begun."""
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            tasks.start_soon(worker.run)
            async for _ in signals:
                break
            worker.stop()


def toolbox_of(settings: Settings) -> Toolbox:
    return Toolbox([*shipped_tools(), *load_tools(settings.tools)])


def _check(agent: Agent, models: ModelPool, toolbox: Toolbox) -> None:
    """What an operator's own definition gets wrong is said at start, not in somebody's session."""
    try:
        toolbox.allowed(agent.definition.tools)
        models.resolve(agent.definition.model, trusted=agent.trusted)
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
