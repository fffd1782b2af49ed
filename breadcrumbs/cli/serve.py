"""The composition root of `crumb up` and `crumb serve`: the only place where the parts meet.

`up` is `serve` with an embedded server underneath, and with a context builder and an agent runner beside it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import structlog
import uvloop

from breadcrumbs import __version__
from breadcrumbs.adk.http import OPERATIONS as ADK_SESSIONS
from breadcrumbs.cli.attach import data_directory, open_store, shown_address
from breadcrumbs.cli.logs import configure_logs
from breadcrumbs.cli.output import INTERRUPTED, OK, command, for_people, print_line, say
from breadcrumbs.cli.workers import config_file, running_workers
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.context_builder.http.configs import ConfigRoutes
from breadcrumbs.context_builder.http.contexts import OPERATIONS as CONTEXTS
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.http.app import build_app
from breadcrumbs.runtime.http.server import HttpServer
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.settings.connection_limits import ConnectionLimits
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.hub import EventHub
from breadcrumbs.web_page import WebPage

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_log = structlog.get_logger("breadcrumbs.up")

_RESTARTS = 6
"""How many times in a row a dead embedded server is started again before we give up."""


def up(settings: Settings) -> int:
    """Everything in one process. Returns the exit code."""
    configure_logs(settings)
    _exit_on_sigterm()
    with _listener(settings) as listener:
        if settings.redis is not None:
            return _run(_serve(settings, settings.redis, listener, workers=True))
        # Started before the event loop: with much data it takes a while, and Ctrl-C must end it.
        with EmbeddedServer(data_directory(settings)) as embedded:
            return _run(_serve(settings, embedded.url, listener, embedded, workers=True))


def serve(settings: Settings) -> int:
    """The API alone. Returns the exit code."""
    if settings.redis is None:
        raise StartupError(
            "crumb serve needs a Redis server: --redis redis://HOST:PORT (or CRUMB_REDIS). "
            "crumb up brings one of its own"
        )
    configure_logs(settings)
    _exit_on_sigterm()
    with _listener(settings) as listener:
        return _run(_serve(settings, settings.redis, listener))


@dataclass(frozen=True, slots=True)
class Parts:
    """What one process is made of."""

    store: Store
    hub: EventHub
    hygiene: Hygiene
    app: ASGIApp


@asynccontextmanager
async def _assembled(settings: Settings, url: str, *, workers: bool) -> AsyncIterator[Parts]:
    """Connect and wire everything, with its background work running; take it apart again at the end."""
    store = await open_store(settings, url)
    try:
        hub = EventHub(store, rcrt_events=settings.rcrt_events)
        hygiene = Hygiene(store, settings)
        await hub.start()
        try:
            async with anyio.create_task_group() as background, AsyncExitStack() as stack:
                background.start_soon(hygiene.run_forever)
                configs = ConfigsInForce(store, settings.context_config)
                if workers:
                    configs = await stack.enter_async_context(running_workers(store, settings))
                config_routes = ConfigRoutes(configs, config_file(settings, builds=workers))
                operations = (
                    *CONTEXTS,
                    *config_routes.operations,
                    *ADK_SESSIONS,
                    *WebPage.of_this_installation().operations,
                )
                yield Parts(store, hub, hygiene, build_app(store, hub, hygiene, settings, operations))
                await stack.aclose()
                background.cancel_scope.cancel()
        finally:
            await hub.close()
    finally:
        await store.close()


async def _serve(
    settings: Settings,
    url: str,
    listener: socket.socket,
    embedded: EmbeddedServer | None = None,
    *,
    workers: bool = False,
) -> int:
    async with _assembled(settings, url, workers=workers) as parts:
        server = _Server(
            parts.app,
            limits=settings.connection_limits,
            on_exit=parts.hub.end_streams,
            on_ready=lambda: _announce(settings, listener, embedded),
        )
        async with anyio.create_task_group() as tasks:
            if embedded is not None:
                tasks.start_soon(_keep_alive, embedded, server)
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()
    if server.failure is not None:
        raise server.failure
    return INTERRUPTED if server.exit_signal == signal.SIGINT else OK


class _Server(HttpServer):
    """The HTTP server, telling when it is ready and why it ended, and leaving the end to us."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: ConnectionLimits,
        on_exit: Callable[[], None],
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(app, host="", port=0, limits=limits, on_exit=on_exit)
        self._on_ready = on_ready
        self.exit_signal: int | None = None
        self.failure: StartupError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.exit_signal is None and sys.stderr.isatty():
            say("\nstopping … (once more to stop at once)")
        self.exit_signal = sig
        # uvicorn would send them to itself again in the end, and so kill us before the embedded server ends.
        self._captured_signals.clear()

    def give_up(self, failure: StartupError) -> None:
        self.failure = failure
        self._on_exit()
        self.should_exit = True


async def _keep_alive(embedded: EmbeddedServer, server: _Server) -> None:
    """Start the embedded server again when it dies: everything it confirmed is in its append-only file."""
    address, failures = embedded.url, 0
    while True:
        await anyio.sleep(0.25)
        if embedded.alive:
            failures = 0
            continue
        code = embedded.process.poll() if embedded.process else None
        _log.error("the embedded server died, starting it again", code=code, log=str(embedded.log_file))
        try:
            await anyio.to_thread.run_sync(embedded.start)
            if embedded.url != address:
                raise StartupError("the embedded server came back at another address")
            _log.warning("the embedded server runs again; nothing it had confirmed is lost", pid=embedded.pid)
        except StartupError as error:
            failures += 1
            if failures == _RESTARTS:
                server.give_up(StartupError(f"the embedded server died and does not start again: {error}"))
                return
            _log.error("the embedded server does not start", error=str(error), attempt=failures)
            await anyio.sleep(0.25 * 2**failures)


def _listener(settings: Settings) -> socket.socket:
    """Take the port before anything else is started, so that a taken one costs nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"cannot listen on {settings.host}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Now, not when everything has started: between the two somebody else could start to listen.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        advice = "choose another one with --port"
        if error.errno == errno.EADDRINUSE:
            advice = "stop what listens there, or choose another port: --port 0 takes any free one"
        elif error.errno == errno.EACCES:
            advice = "ports below 1024 are for root: choose another one with --port"
        elif error.errno == errno.EADDRNOTAVAIL:
            advice = "this machine has no such address: choose another one with --host"
        raise StartupError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; {advice}"
        ) from None
    listener.setblocking(False)
    return listener


def _exit_on_sigterm() -> None:
    """Until the server takes over, being told to end means to clean up and go, not to drop everything."""

    def leave(sig: int, frame: FrameType | None) -> None:
        sys.exit(OK)

    signal.signal(signal.SIGTERM, leave)


def _run(main: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def _announce(settings: Settings, listener: socket.socket, embedded: EmbeddedServer | None) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    mode = "development" if settings.development_mode else "keys"
    if not for_people(False):
        facts = {"url": url, "docs": f"{url}/docs", "mode": mode, "pid": os.getpid(), "version": __version__}
        if embedded is not None:
            facts |= {"data": str(embedded.data_dir), "server_pid": embedded.pid}
        elif settings.redis is not None:
            facts["redis"] = shown_address(settings.redis)
        print_line({"event": "ready", **facts})
        return

    from breadcrumbs.cli.output import console

    out = console()
    crumb = command()
    at = "" if url == "http://127.0.0.1:8081" else f" --url {url}"
    message = (
        '{"schema_name": "user.message.v1", "tags": ["user:message", "session:demo"], '
        '"context": {"message": "Hello"}}'
    )
    curl = f"curl {url}/breadcrumbs -H 'content-type: application/json' -d {shlex.quote(message)}"
    out.print(f"\n[bold green]Breadcrumbs {__version__} is ready[/]\n")
    out.print(f"  look at it  [bold]{url}/[/]   (for programs: {url}/docs)")
    if embedded is not None:
        out.print(f"  data        {embedded.data_dir}   (embedded server, append-only file)", markup=False)
    elif settings.redis is not None:
        out.print(f"  data        {shown_address(settings.redis)}", markup=False)
    if settings.development_mode:
        out.print("  mode        development: open to every program on this machine, no key needed")
    else:
        out.print(f"  mode        keys: {len(settings.api_keys)} API key(s), sent as X-API-Key")
        curl = curl.replace(" -H ", ' -H "x-api-key: $CRUMB_API_KEY" -H ', 1)
    out.print("\nTry next, in another terminal:\n")
    for line in (f"{crumb} chat{at}", f"{crumb} tail{at}", curl):
        out.print(f"  {line}", markup=False, style="cyan")
    out.print("\nCtrl-C stops it; the data stays.\n")
