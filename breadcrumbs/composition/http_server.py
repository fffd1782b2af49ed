"""HTTP server of `crumb up` and `crumb serve`, and the wiring of its services.

`crumb serve` runs the API on a given Redis server. `crumb up` also runs an embedded server, a context builder and agent
runners, all in one process.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog

from breadcrumbs.adk.http import OPERATIONS as ADK_SESSIONS
from breadcrumbs.composition.agent_overview import definition_routes
from breadcrumbs.composition.answering_agents import agent_services
from breadcrumbs.composition.chain_triggers import read_triggers
from breadcrumbs.composition.consumers import read_consumers
from breadcrumbs.composition.event_loop import run_async
from breadcrumbs.composition.listener import open_listener
from breadcrumbs.composition.logs import configure_logs
from breadcrumbs.composition.replays import open_server_models
from breadcrumbs.composition.storage import data_directory, open_known_store
from breadcrumbs.composition.system_checks import check_routes
from breadcrumbs.composition.tracing import ALL_IN_ONE_SERVICE, API_SERVICE, traced_process
from breadcrumbs.composition.workers import (
    WorkerParts,
    config_file,
    open_configs,
    running_workers,
)
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.context_builder.http.configs import ConfigRoutes
from breadcrumbs.context_builder.http.context_tests import routes as CONTEXT_TESTS
from breadcrumbs.context_builder.http.contexts import routes as CONTEXTS
from breadcrumbs.guides import Guides
from breadcrumbs.proofs.http import routes as RECEIPTS
from breadcrumbs.proofs.recording_http import routes as RECORDINGS
from breadcrumbs.proofs.replay_http import ReplayRoutes
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.events.reader import EventReader
from breadcrumbs.runtime.http.app import build_app
from breadcrumbs.runtime.http.processes import group
from breadcrumbs.runtime.http.processes.port import take_snapshot
from breadcrumbs.runtime.http.server import HttpServer
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.maintenance.load_history import sample_forever
from breadcrumbs.runtime.settings.connection_limits import ConnectionLimits
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.formats import raise_if_unused
from breadcrumbs.runtime.store.identity_watch import watch_identity
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.hub import EventHub
from breadcrumbs.web_page import WebPage

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_log = structlog.get_logger("breadcrumbs.up")

_MAX_RESTARTS = 6  # the process ends after this many failed restarts of the embedded server in a row


@dataclass(frozen=True, slots=True)
class ReadyServer:
    """Server that accepts requests."""

    url: str
    embedded: EmbeddedServer | None = None
    """Embedded server. None if the settings specify a Redis server."""
    pids: tuple[int, ...] = ()
    """API processes that share the port. Empty if this process serves it alone."""


@dataclass(frozen=True, slots=True)
class ServerHooks:
    """Callbacks that report the start and the end of a server."""

    on_ready: Callable[[ReadyServer], None]
    """Called when the server accepts requests."""
    on_stopping: Callable[[], None]
    """Called on the first signal."""


def run_server(settings: Settings, *, workers: bool, hooks: ServerHooks) -> int | None:
    """Serve requests until a signal. Return the number of the last signal.

    `workers` also runs a context builder and agent runners in this process.
    """
    configure_logs(settings)
    _exit_on_sigterm()
    service = ALL_IN_ONE_SERVICE if workers else API_SERVICE
    with open_listener(settings.host, settings.port) as listener, traced_process(settings, service):
        if settings.redis is not None:
            return run_async(_serve(settings, settings.redis, listener, workers=workers, hooks=hooks))
        # Start the embedded server before the event loop. Loading much data takes a while, and Ctrl-C must be able to
        # end it.
        with EmbeddedServer(data_directory(settings)) as embedded:
            return run_async(_serve(settings, embedded.url, listener, embedded, workers=workers, hooks=hooks))


def run_port_process(settings: Settings, redis: str, listener: socket.socket, hooks: ServerHooks) -> None:
    """Serve requests until a signal, as one of the API processes that share a listening socket."""
    _exit_on_sigterm()
    with traced_process(settings, API_SERVICE):
        run_async(_serve(settings, redis, listener, workers=False, hooks=hooks))


def _exit_on_sigterm() -> None:
    """Clean up and exit on a SIGTERM that arrives before the HTTP server handles signals."""

    def exit_process(sig: int, frame: FrameType | None) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, exit_process)


async def _serve(
    settings: Settings,
    url: str,
    listener: socket.socket,
    embedded: EmbeddedServer | None = None,
    *,
    workers: bool,
    hooks: ServerHooks,
) -> int | None:
    ready = ReadyServer(listening_url(listener), embedded)
    async with assembled_services(settings, url, workers=workers) as services:
        server = _HookedServer(services, settings.connection_limits, hooks, ready)
        async with anyio.create_task_group() as tasks:
            if embedded is not None:
                tasks.start_soon(_keep_alive, embedded, server)
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()
    if server.failure is not None:
        raise server.failure
    return server.exit_signal


# The services


@dataclass(frozen=True, slots=True)
class ServerServices:
    """Services of one server process."""

    store: Store
    hub: EventHub
    hygiene: Hygiene
    app: ASGIApp


@asynccontextmanager
async def assembled_services(settings: Settings, url: str, *, workers: bool) -> AsyncIterator[ServerServices]:
    """Open the store, start the background tasks and build the app.

    Stop and close them at the end.
    """
    store = await open_known_store(settings, url)
    reader = EventReader(store)
    try:
        if settings.redis is None:  # this process has just started the server
            await raise_if_unused(store)
        hub = EventHub(store, reader)
        hygiene = Hygiene(store, settings)
        try:
            async with anyio.create_task_group() as background, AsyncExitStack() as stack:
                background.start_soon(hygiene.run_forever)
                background.start_soon(sample_forever, store)
                background.start_soon(watch_identity, store)
                configs = (
                    open_configs(store, settings)
                    if workers
                    else ConfigsInForce(store, settings.context_config)
                )
                if workers:
                    parts = WorkerParts(store, reader, settings, configs)
                    await stack.enter_async_context(running_workers(parts))
                config_routes = ConfigRoutes(
                    configs, config_file(settings, builds=workers), read_consumers(store, settings)
                )
                models = await open_server_models(stack, settings, workers=workers)
                replays = ReplayRoutes(models)
                operations = (
                    *CONTEXTS,
                    *RECEIPTS,
                    *RECORDINGS,
                    *CONTEXT_TESTS,
                    *replays.operations,
                    *check_routes(store, settings, workers=workers).operations,
                    *config_routes.operations,
                    *definition_routes(store, settings, models).operations,
                    *ADK_SESSIONS,
                    *WebPage.of_this_installation().operations,
                    *Guides.of_this_installation().operations,
                )
                agents = agent_services(store, configs, read_triggers(store, configs))
                app = build_app(store, hub, hygiene, settings, operations, agents)
                if (member := group.current()) is not None:
                    background.start_soon(member.publish_forever, partial(take_snapshot, app.metrics, member))
                yield ServerServices(store, hub, hygiene, app)
                await stack.aclose()
                background.cancel_scope.cancel()
        finally:
            await hub.close()
    finally:
        await reader.close()
        await store.close()


# The server


class _HookedServer(HttpServer):
    """HTTP server that calls the hooks and records the signal or failure that ended it."""

    def __init__(
        self, services: ServerServices, limits: ConnectionLimits, hooks: ServerHooks, ready: ReadyServer
    ) -> None:
        super().__init__(services.app, host="", port=0, limits=limits, on_exit=services.hub.end_streams)
        self._hooks = hooks
        self._ready = ready
        self.exit_signal: int | None = None
        self.failure: StartupError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._hooks.on_ready(self._ready)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.exit_signal is None:
            self._hooks.on_stopping()
        self.exit_signal = sig
        # uvicorn raises captured signals again when it ends. That would kill this process before it has stopped the
        # embedded server.
        self._captured_signals.clear()

    def give_up(self, failure: StartupError) -> None:
        """Stop the server because of a failure. `run_server` raises it."""
        self.failure = failure
        self._on_exit()
        self.should_exit = True


async def _keep_alive(embedded: EmbeddedServer, server: _HookedServer) -> None:
    """Restart the embedded server when it dies.

    Its append-only file contains all confirmed writes.
    """
    address, failures = embedded.url, 0
    while True:
        await anyio.sleep(0.25)
        if embedded.alive:
            failures = 0
            continue
        code = embedded.process.poll() if embedded.process else None
        _log.error("embedded server died, restarting it", code=code, log=str(embedded.log_file))
        try:
            await anyio.to_thread.run_sync(embedded.start)
            if embedded.url != address:
                raise StartupError("the embedded server restarted at another address")
            _log.warning("embedded server restarted, no confirmed writes are lost", pid=embedded.pid)
        except StartupError as error:
            failures += 1
            if failures == _MAX_RESTARTS:
                server.give_up(StartupError(f"the embedded server died and could not be restarted: {error}"))
                return
            _log.error("restart of the embedded server failed", error=str(error), attempt=failures)
            await anyio.sleep(0.25 * 2**failures)


# The listening socket


def listening_url(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
