"""Finds the Redis server of a process, and opens the store on it.

The server is a given Redis server, an embedded server that is already running, or a new embedded server.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from breadcrumbs.runtime.backend.embedded import EmbeddedServer, default_data_dir
from breadcrumbs.runtime.errors import StartupError, StoreUnavailable
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.opening import store_exists
from breadcrumbs.runtime.store.options import StoreOptions
from breadcrumbs.runtime.store.store import Store


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Embedded server that another process has started."""

    pid: int
    url: str


# The server


def data_directory(settings: Settings) -> Path:
    """Return the absolute path of the embedded server's data directory."""
    return (settings.data or default_data_dir()).expanduser().absolute()


def has_data(directory: Path) -> bool:
    """Return whether an embedded server has ever run on a directory."""
    return (directory / "appendonlydir").exists()


def running_server(directory: Path) -> RunningServer | None:
    """Return the server that runs on a data directory, or None.

    The server writes its pid and its socket into a lock file, see runtime/backend/embedded.py.
    """
    try:
        lines = os.fsdecode((directory / "server.lock").read_bytes()).splitlines()
    except OSError:
        return None
    # A killed server leaves its lock file behind, so connect to the socket to check. Locking the file would also work,
    # but a `crumb up` that starts during the lock would report that the directory is in use.
    if len(lines) != 2 or not lines[0].isdigit() or not _accepts_connections(lines[1]):
        return None
    return RunningServer(int(lines[0]), f"unix://{quote(lines[1])}")


def _accepts_connections(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


@contextmanager
def server_address(settings: Settings, *, create: bool) -> Iterator[str]:
    """Provide the URL of the Redis server.

    If no server is running, start an embedded server and stop it at the end. `create` allows a data
    directory without data. Without `create`, such a directory raises `StartupError`.
    """
    if settings.redis is not None:
        yield settings.redis
        return
    directory = data_directory(settings)
    if running := running_server(directory):
        yield running.url
        return
    if not create and not has_data(directory):
        raise StartupError(
            f"no data in {directory}: specify another directory with --data, or a server with --redis"
        )
    with EmbeddedServer(directory) as server:
        yield server.url


def shown_address(url: str) -> str:
    """Return a Redis URL without user, password and options, for messages."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


# The store


async def has_store(settings: Settings, url: str) -> bool:
    """Return whether the server has a store, without creating one."""
    try:
        return await store_exists(url, settings.namespace)
    except StoreUnavailable as error:
        raise _unusable_server(url, error) from error


async def open_store(settings: Settings, url: str) -> Store:
    """Open the store on a server, and create it if it does not exist.

    The caller must close it.
    """
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
        raise _unusable_server(url, error) from error


@asynccontextmanager
async def attached_store(settings: Settings) -> AsyncIterator[Store]:
    """Open the store of a running server, and close it at the end.

    The server is the given Redis server, or the server of `crumb up`. Raise `StartupError` if neither is running.
    """
    url = settings.redis
    if url is None:
        running = running_server(data_directory(settings))
        if running is None:
            raise StartupError("no running server found: start crumb up, or specify a server with --redis")
        url = running.url
    store = await open_store(settings, url)
    try:
        yield store
    finally:
        await store.close()


def _unusable_server(url: str, error: StoreUnavailable) -> StartupError:
    return StartupError(
        f"the Redis server at {shown_address(url)} cannot be used: {error}. "
        "Check its address and that it is running, or omit --redis to use the embedded server"
    )
