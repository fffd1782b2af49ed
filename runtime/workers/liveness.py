"""Fast detection of dead workers, before their leases expire.

Each worker subscribes to its own Pub/Sub channel. Its peers read the number of subscribers of that channel. The kernel
closes the sockets of a killed process immediately, while a frozen or overloaded process keeps them. So a killed worker
is detected within a second, and a slow worker keeps its lanes until its leases expire.

This is only an optimization. Leases and their fence numbers decide which worker may commit. If the server refuses
`SUBSCRIBE` or `PUBSUB` (an ACL, a proxy), the lanes of a dead worker are taken over when their leases expire.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Final

import anyio
import structlog

from breadcrumbs.runtime.errors import CommandRefused, StoreError, StoreUnavailable
from breadcrumbs.runtime.store.store import Store

_log = structlog.get_logger("breadcrumbs.liveness")

_FIRST_RECONNECT_SECONDS: Final = 0.05
_CONFIRM_SECONDS: Final = 0.5
"""A worker counts as dead after it was disconnected for this long. A broken connection is restored sooner."""
_UNSEEN_SECONDS: Final = 5.0
"""A worker opens its subscription again after the server has not listed it for this long. The cause can be that lane 0
has moved to another node."""


class Liveness:
    """Connections of all workers of one kind, as one worker sees them."""

    def __init__(self, store: Store, kind: str, worker: str, *, grace: float) -> None:
        self._store = store
        self._kind = kind
        self._worker = worker
        self._grace = grace
        """Seconds after a reconnect during which no worker counts as dead. A restarted server has no subscribers."""
        self._trusted_from = -float("inf")
        """Time (`time.monotonic`) from which the list of subscribers is reliable."""
        self._seen_at = time.monotonic()
        """Last time that the server listed the subscription of this worker."""
        self._absent_since: dict[str, float] = {}
        """Disconnected workers, and the time since when."""
        self._link = anyio.CancelScope()
        self._warned = False
        self.listed = False
        """Other workers know this one. They notice its death before its leases expire."""

    async def stay_visible(self) -> None:
        """Keep the subscription of this worker open, which shows that it is alive.

        Open it again when it breaks.
        """
        wait = _FIRST_RECONNECT_SECONDS
        while True:
            opened_at = time.monotonic()
            with anyio.CancelScope() as self._link:
                try:
                    await self._store.connection.listen(self._channel(self._worker), lambda _: None)
                except CommandRefused as error:
                    self._warn(error)
                except StoreUnavailable as error:
                    _log.debug("liveness link lost", kind=self._kind, error=str(error))
                except StoreError as error:  # a proxy without this command
                    self._warn(error)
            self._trusted_from = time.monotonic() + self._grace
            was_stable = time.monotonic() - opened_at > self._grace
            wait = _FIRST_RECONNECT_SECONDS if was_stable else min(self._grace, wait * 2)
            await anyio.sleep(wait)

    async def dead_peers(self) -> list[str]:
        """Return the workers that were connected and no longer are.

        Return an empty list if the connections cannot be read or are not reliable.
        """
        try:
            return await self._dead_peers()
        except StoreError as error:
            self._absent_since.clear()
            _log.debug("reading worker connections failed", kind=self._kind, error=str(error))
            return []

    async def possibly_alive(self, workers: Collection[str]) -> set[str]:
        """Return the given workers that may not have died.

        These are the connected workers, or all workers if the server itself was unavailable a short time ago. If the
        connections cannot be read, return none.
        """
        if time.monotonic() < self._trusted_from:
            return set(workers)
        try:
            return await self._connected(workers) | ({self._worker} & set(workers))
        except StoreError:
            return set()

    async def is_connected(self, worker: str) -> bool:
        """Return whether a worker is certainly connected."""
        try:
            return bool(await self._connected([worker]))
        except StoreError:
            return False

    async def forget(self, worker: str) -> None:
        """Remove a worker from the list of workers to check."""
        key = self._store.keys.visible_workers(self._kind)
        await self._store.connection.call(0, b"SREM", key, worker)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "server refuses the liveness channel, lanes of a dead worker are taken over when its leases expire",
                kind=self._kind,
                error=str(error),
            )

    async def _dead_peers(self) -> list[str]:
        call, key = self._store.connection.call, self._store.keys.visible_workers(self._kind)
        known = {name.decode() for name in await call(0, b"SMEMBERS", key)}
        connected = await self._connected({*known, self._worker})
        now = time.monotonic()
        if self._worker not in connected:
            # This server does not list the worker's own subscription, so its view is not reliable.
            self._absent_since.clear()
            if now - self._seen_at > _UNSEEN_SECONDS:
                self._seen_at = now
                self._link.cancel()
            return []
        self._seen_at = now
        if self._worker not in known:
            await call(0, b"SADD", key, self._worker)
        self.listed = True
        if now < self._trusted_from:
            return []
        absent = known - connected
        self._absent_since = {name: self._absent_since.get(name, now) for name in absent}
        return [name for name, since in self._absent_since.items() if now - since >= _CONFIRM_SECONDS]

    async def _connected(self, workers: Iterable[str]) -> set[str]:
        channels = {self._channel(worker): worker for worker in workers}
        if not channels:
            return set()
        flat = await self._store.connection.call(0, b"PUBSUB", b"NUMSUB", *channels)
        return {channels[channel] for channel, count in zip(flat[::2], flat[1::2], strict=True) if int(count)}

    def _channel(self, worker: str) -> bytes:
        return self._store.keys.liveness(self._kind, worker)
