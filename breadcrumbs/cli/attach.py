"""Which server a command works on: the user's own, the embedded one that runs already, or one we start."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from breadcrumbs.cli.output import CommandError
from breadcrumbs.runtime.backend.connection import (
    ClusterConnection,
    Connection,
    StandaloneConnection,
    parse_address,
)
from breadcrumbs.runtime.backend.embedded import EmbeddedServer, default_data_dir
from breadcrumbs.runtime.errors import StartupError, StoreUnavailable
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.options import StoreOptions
from breadcrumbs.runtime.store.store import Store


@dataclass(frozen=True, slots=True)
class RunningServer:
    """An embedded server that some `crumb up` has started."""

    pid: int
    url: str


def data_directory(settings: Settings) -> Path:
    return (settings.data or default_data_dir()).expanduser().absolute()


def running_server(directory: Path) -> RunningServer | None:
    """The server on a data directory, found through the note it left there (see runtime/backend/embedded.py)."""
    try:
        lines = os.fsdecode((directory / "server.lock").read_bytes()).splitlines()
    except OSError:
        return None
    # The note outlives a server that was killed. To lock the file would tell as well, but a lock that is
    # held for a moment can make a `crumb up` that starts in that moment believe the directory is taken.
    if len(lines) != 2 or not lines[0].isdigit() or not _accepts(lines[1]):
        return None
    return RunningServer(int(lines[0]), f"unix://{quote(lines[1])}")


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


@contextmanager
def server_address(settings: Settings, *, create: bool) -> Iterator[str]:
    """The address of the server that these settings mean, for as long as it is needed.

    `create`: an empty data directory may be made.
    """
    if settings.redis is not None:
        yield settings.redis
        return
    directory = data_directory(settings)
    if running := running_server(directory):
        yield running.url
        return
    if not create and not (directory / "appendonlydir").exists():
        raise CommandError(
            f"there is no data in {directory}: name another directory with --data, or a server with --redis"
        )
    with EmbeddedServer(directory) as server:
        yield server.url


async def has_store(settings: Settings, url: str) -> bool:
    """Whether there is one to look at; to open it would make one."""
    meta = Keys(settings.namespace, 1).meta
    connection: Connection
    try:
        if "+cluster://" in url:
            connection = await ClusterConnection.open(url, [meta])
        else:
            connection = StandaloneConnection(parse_address(url), lanes=1)
        try:
            return bool(await connection.call(0, b"EXISTS", meta))
        finally:
            await connection.close()
    except StoreUnavailable as error:
        raise _unusable(url, error) from error


async def open_store(settings: Settings, url: str) -> Store:
    try:
        return await Store.open(
            url,
            lanes=settings.lanes,
            namespace=settings.namespace,
            options=StoreOptions(
                ttl_defaults=settings.expiries,
                idempotency_seconds=int(settings.idempotency_ttl.total_seconds()),
                max_content_bytes=settings.max_body_bytes,
                max_state_bytes=settings.max_state_bytes,
                quotas=settings.quotas,
            ),
        )
    except StoreUnavailable as error:
        raise _unusable(url, error) from error


def _unusable(url: str, error: StoreUnavailable) -> StartupError:
    return StartupError(
        f"the Redis server at {shown_address(url)} cannot be used: {error}. "
        "Check the address and that it runs, or leave --redis out to use the embedded server"
    )


def shown_address(url: str) -> str:
    """An address without its user, its password and its options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
