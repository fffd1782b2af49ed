"""Runs an audit of the isolation of sessions in several processes.

The work is CPU time of Python, so threads would not help. Each process opens the store and checks one group after the
other. This process distributes the groups and records the reports.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Final

from breadcrumbs.composition.event_loop import run_async
from breadcrumbs.composition.storage import open_store
from breadcrumbs.context_builder.audit import AuditReport, check_group
from breadcrumbs.context_builder.audit_checkpoint import AuditCheckpoint
from breadcrumbs.runtime.errors import BreadcrumbsError, StoreUnavailable
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.breadcrumb_scan import NamedGroup

_MIN_BREADCRUMBS: Final = 20_000
"""Fewer breadcrumbs are checked in this process. Starting another one takes longer."""


@dataclass(frozen=True, slots=True)
class AuditServer:
    """The store to audit."""

    settings: Settings
    url: str


def run_audit(
    server: AuditServer, checkpoint: AuditCheckpoint, jobs: int, advance: Callable[[int], None]
) -> None:
    """Check all pending groups of a checkpoint. `advance` is called with the number of breadcrumbs of each group."""
    pending = checkpoint.pending()
    if jobs == 1 or sum(checkpoint.size(number) for number in pending) < _MIN_BREADCRUMBS:
        run_async(_check_here(server, checkpoint, advance))
        return
    with ExitStack() as processes:
        connections = [
            processes.enter_context(_process(server, history=checkpoint.scope.history)) for _ in range(jobs)
        ]
        _distribute(checkpoint, connections, advance)


async def _check_here(
    server: AuditServer, checkpoint: AuditCheckpoint, advance: Callable[[int], None]
) -> None:
    store = await open_store(server.settings, server.url)
    try:
        for number in checkpoint.pending():
            group = checkpoint.group(number)
            checkpoint.finish(number, await check_group(store, group, history=checkpoint.scope.history))
            advance(group.count)
    finally:
        await store.close()


def _distribute(
    checkpoint: AuditCheckpoint, connections: list[Connection], advance: Callable[[int], None]
) -> None:
    """Send each pending group to a process that has none."""
    pending = iter(checkpoint.pending())
    assigned: dict[Connection, int] = {}

    def assign(connection: Connection) -> None:
        number = next(pending, None)
        if number is not None:
            assigned[connection] = number
            with suppress(BrokenPipeError):  # the process has ended: see _receive
                connection.send(checkpoint.group(number))

    for connection in connections:
        assign(connection)
    while assigned:
        ready = wait(list(assigned))
        for connection in [one for one in assigned if one in ready]:
            number = assigned.pop(connection)
            checkpoint.finish(number, _receive(connection))
            advance(checkpoint.size(number))
            assign(connection)


def _receive(connection: Connection) -> AuditReport:
    try:
        reply: AuditReport | BreadcrumbsError = connection.recv()
    except (EOFError, ConnectionResetError):
        raise StoreUnavailable("a process of the audit has ended unexpectedly") from None
    if isinstance(reply, BreadcrumbsError):
        raise reply
    return reply


# One process


@contextmanager
def _process(server: AuditServer, *, history: bool) -> Iterator[Connection]:
    """Start a process that checks groups. It ends when the connection is closed, also if this process is killed."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, server, history), daemon=True)
    # Ctrl-C reaches every process of the terminal. Only this process handles it.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, handler)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.terminate()
        process.join()


def _serve(connection: Connection, server: AuditServer, history: bool) -> None:
    run_async(_check_received(connection, server, history))


async def _check_received(connection: Connection, server: AuditServer, history: bool) -> None:
    try:
        store = await open_store(server.settings, server.url)
        while True:
            group: NamedGroup = connection.recv()
            connection.send(await check_group(store, group, history=history))
    except BreadcrumbsError as error:
        connection.send(error)
    except (EOFError, BrokenPipeError):
        pass  # the audit has ended
