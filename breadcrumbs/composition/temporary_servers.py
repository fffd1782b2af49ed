"""A temporary server inside a program, for tests: embedded Redis server, HTTP API, context builder, agents.

The settings of the machine do not apply: neither `crumb.toml` nor `CRUMB_…` variables are read.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.runner import AgentRunner
from breadcrumbs.agents.tools import Toolbox
from breadcrumbs.composition.http_server import assembled_services, listening_url
from breadcrumbs.composition.listener import open_listener
from breadcrumbs.composition.logs import log_through_logging
from breadcrumbs.composition.publishing import wait_for_claims
from breadcrumbs.composition.workers import (
    WorkerParts,
    agent_worker,
    context_worker,
    open_configs,
    running,
)
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.events.reader import EventReader
from breadcrumbs.runtime.http.server import HttpServer
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.published_agents import remove_agents
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.leases import start_at_newest_event
from breadcrumbs.runtime.workers.worker import Worker

_LANES = 4  # few: each worker takes all of them when it starts
_numbers = count(1)


class _IsolatedSettings(Settings):
    """Settings without the environment."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class TemporaryServer:
    """A running temporary server."""

    url: str
    """URL of the HTTP API."""
    redis_url: str
    """URL of the embedded Redis server."""
    store: Store
    """The store. Its methods run in the event loop of the server: call them through `portal`."""
    portal: BlockingPortal
    parts: WorkerParts

    @contextmanager
    def running_agents(self, agents: Sequence[ActiveAgent], tools: Toolbox) -> Iterator[None]:
        """Run agents while the block runs. They answer only messages that are posted in this time."""
        with self.portal.wrap_async_context_manager(_agents_at_work(self.parts, agents, tools)):
            yield


@contextmanager
def temporary_server(folder: Path, **settings: Any) -> Iterator[TemporaryServer]:
    """Run a server while the block runs. Its data is in `folder`."""
    log_through_logging()
    with (
        EmbeddedServer(folder / "data") as embedded,
        open_listener("127.0.0.1", 0) as listener,
        start_blocking_portal() as portal,
    ):
        chosen = _IsolatedSettings(redis=embedded.url, data=folder, lanes=_LANES, **settings)
        with portal.wrap_async_context_manager(_served(chosen, embedded.url, listener)) as parts:
            yield TemporaryServer(listening_url(listener), embedded.url, parts.store, portal, parts)


@asynccontextmanager
async def _served(settings: Settings, url: str, listener: socket.socket) -> AsyncIterator[WorkerParts]:
    async with assembled_services(settings, url, workers=False) as services:
        store = services.store
        async with EventReader(store) as reader:
            parts = WorkerParts(store, reader, settings, open_configs(store, settings))
            server = HttpServer(services.app, host="", port=0, loop="none", on_exit=services.hub.end_streams)
            async with running(context_worker(parts)), anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve, [listener])
                yield parts
                services.hub.end_streams()
                server.should_exit = True


@asynccontextmanager
async def _agents_at_work(
    parts: WorkerParts, agents: Sequence[ActiveAgent], tools: Toolbox
) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        workers = [await _start(stack, parts, agent, tools) for agent in agents]
        async with running(*workers):
            for worker in workers:
                await worker.at_work.wait()
            await wait_for_claims(parts.store, [worker.handler.kind for worker in workers])
            yield


async def _start(stack: AsyncExitStack, parts: WorkerParts, agent: ActiveAgent, tools: Toolbox) -> Worker:
    # A kind of its own, so that an agent does not continue with the messages of an earlier test.
    kind = f"{AgentRunner.kind}/{agent.definition.agent_id}-{next(_numbers)}"
    await start_at_newest_event(parts.store, kind)
    # After the worker has stopped: agents of earlier tests take no part in the choice of the answering agents.
    stack.push_async_callback(remove_agents, parts.store, kind)
    return await stack.enter_async_context(agent_worker(parts, [agent], tools=tools, kind=kind))
