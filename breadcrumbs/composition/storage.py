"""Finds the Redis server of a process, and opens the store on it.

The server is a given Redis server, an embedded server that is already running, or a new embedded server.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import structlog

from breadcrumbs.composition.known_stores import KnownStore
from breadcrumbs.runtime.backend.embedded import EmbeddedServer, default_data_dir
from breadcrumbs.runtime.errors import StartupError, StoreReplaced, StoreUnavailable
from breadcrumbs.runtime.maintenance.checks import log_server_problems
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.identity_watch import watch_identity
from breadcrumbs.runtime.store.opening import read_identity
from breadcrumbs.runtime.store.options import StoreOptions
from breadcrumbs.runtime.store.store import Store

_log = structlog.get_logger("breadcrumbs.store")


@dataclass(frozen=True, slots=True)
class ExpectedIdentity:
    """Identity that a store must have, and where it comes from."""

    identity: str
    source: str
    """The setting or the file that contains it."""


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
    return await stored_identity(settings, url) is not None


async def stored_identity(settings: Settings, url: str) -> str | None:
    """Return the identity of the store on the server. "": the store has none yet. None: there is no store."""
    try:
        return await read_identity(url, settings.namespace)
    except StoreUnavailable as error:
        raise _unusable_server(url, error) from error


def expected_identity(settings: Settings) -> ExpectedIdentity | None:
    """Return the identity that the store must have, or None if this machine does not know one."""
    if settings.store_id is not None:
        return ExpectedIdentity(settings.store_id, "the setting store_id")
    known = known_store(settings)
    identity = known.recall()
    return None if identity is None else ExpectedIdentity(identity, str(known.path))


def known_store(settings: Settings) -> KnownStore:
    """Return the file that remembers the store of these settings."""
    directory = data_directory(settings)
    # The socket of the embedded server can be in a temporary directory, so its address is no name for it.
    address = "embedded" if settings.redis is None else shown_address(settings.redis)
    return KnownStore(directory / "stores", address, settings.namespace)


async def open_store(settings: Settings, url: str, *, expected: str | None = None) -> Store:
    """Open the store on a server, and create it if it does not exist.

    The caller must close it. `expected`: raise `StoreReplaced` if the store has another identity.
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
                expected_identity=expected,
                accept_losses=settings.new_store,
            ),
        )
    except StoreReplaced:
        raise
    except StoreUnavailable as error:
        raise _unusable_server(url, error) from error


async def open_known_store(settings: Settings, url: str) -> Store:
    """Open the store for a process that runs on it.

    Raise `StartupError` if it is not the store that the setting `store_id` names, or that this machine used before.
    With `new_store`, accept any store. Remember the store, and warn about servers that can lose data.
    """
    expected = expected_identity(settings)
    try:
        store = await open_store(
            settings, url, expected=None if expected is None or settings.new_store else expected.identity
        )
    except StoreReplaced as error:
        known = "" if expected is None else f" (expected by {expected.source})"
        raise StartupError(
            f"{shown_address(url)}: {error}{known}. Restore a backup and restart the Redis server, or correct the "
            "address. To accept the store that the server has now, or to create an empty one, start once with "
            "--new-store"
        ) from error
    try:
        _accept_identity(settings, store)
        await log_server_problems(store)
    except BaseException:
        await store.close()
        raise
    return store


def _accept_identity(settings: Settings, store: Store) -> None:
    if store.identity is None:
        return
    known_store(settings).remember(store.identity)
    if settings.store_id not in (None, store.identity):
        _log.warning(
            "accepted a store other than the setting store_id names, change the setting before the next start",
            store_id=store.identity,
        )


@asynccontextmanager
async def attached_store(settings: Settings) -> AsyncIterator[Store]:
    """Open the store of a running server, and close it at the end. Meanwhile, watch its identity.

    The server is the given Redis server, or the server of `crumb up`. Raise `StartupError` if neither is running.
    """
    url = settings.redis
    if url is None:
        running = running_server(data_directory(settings))
        if running is None:
            raise StartupError("no running server found: start crumb up, or specify a server with --redis")
        url = running.url
    store = await open_known_store(settings, url)
    # Not in a task group, which would wrap the errors of the caller's block in an exception group.
    watching = asyncio.create_task(watch_identity(store))
    try:
        yield store
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await store.close()


def _unusable_server(url: str, error: StoreUnavailable) -> StartupError:
    return StartupError(
        f"the Redis server at {shown_address(url)} cannot be used: {error}. "
        "Check its address and that it is running, or omit --redis to use the embedded server"
    )
