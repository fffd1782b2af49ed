"""Shows which workers are still connected, so that the lanes of a killed worker are taken over at once.

Each worker subscribes to a Pub/Sub channel of its own, and its peers ask the server how many subscribers that channel
has. The kernel closes the sockets of a killed process at once, while a frozen or overloaded process keeps them. So a
kill is noticed within a second, and a worker that is only slow keeps its lanes until its leases run out.

This only saves time. Leases and their fence numbers decide who may commit. Where the server refuses `SUBSCRIBE` or
`PUBSUB` (an ACL, a proxy), a dead worker's lanes are taken over when their leases run out.
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

_CONFIRM_SECONDS: Final = 0.5
"""A worker counts as dead after it was not connected for this long: a broken link is opened again sooner."""
_UNSEEN_SECONDS: Final = 5.0
"""The link is opened again if the server does not know it for this long: lane 0 may have moved to another node."""


class Liveness:
    """The connections of one kind of worker, as one worker sees them."""

    def __init__(self, store: Store, kind: str, worker: str, *, grace: float) -> None:
        self._store = store
        self._kind = kind
        self._worker = worker
        self._grace = grace
        """Seconds after a reconnect during which nobody counts as dead: a restarted server knows no subscribers."""
        self._trusted_from = -float("inf")
        self._seen_at = time.monotonic()
        self._absent_since: dict[str, float] = {}
        self._link = anyio.CancelScope()
        self._warned = False

    async def stay_visible(self) -> None:
        """Hold the subscription that shows that this worker lives, and open it again when it breaks."""
        wait = 0.05
        while True:
            opened_at = time.monotonic()
            with anyio.CancelScope() as self._link:
                try:
                    await self._store.connection.listen(self._channel(self._worker), lambda _: None)
                except CommandRefused as error:
                    self._warn(error)
                except StoreUnavailable as error:
                    _log.debug("liveness link lost", kind=self._kind, error=str(error))
                except StoreError as error:  # a proxy that does not know the command
                    self._warn(error)
            self._trusted_from = time.monotonic() + self._grace
            wait = 0.05 if time.monotonic() - opened_at > self._grace else min(self._grace, wait * 2)
            await anyio.sleep(wait)

    async def dead_peers(self) -> list[str]:
        """Return the workers that were connected once and are not any more. Empty if that cannot be known."""
        try:
            return await self._dead_peers()
        except StoreError as error:
            self._absent_since.clear()
            _log.debug("connections of workers are not known", kind=self._kind, error=str(error))
            return []

    async def may_live(self, workers: Collection[str]) -> set[str]:
        """Return those of the workers that did not die: they are connected, or the server was away itself."""
        if time.monotonic() < self._trusted_from:
            return set(workers)
        try:
            return await self._connected(workers) | ({self._worker} & set(workers))
        except StoreError:
            return set()

    async def forget(self, worker: str) -> None:
        key = self._store.keys.visible_workers(self._kind)
        await self._store.connection.call(0, b"SREM", key, worker)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "the server refuses the liveness channel: the lanes of a dead worker wait until its leases end",
                kind=self._kind,
                error=str(error),
            )

    async def _dead_peers(self) -> list[str]:
        call, key = self._store.connection.call, self._store.keys.visible_workers(self._kind)
        known = {name.decode() for name in await call(0, b"SMEMBERS", key)}
        connected = await self._connected({*known, self._worker})
        now = time.monotonic()
        if self._worker not in connected:
            # The view of this server is not to be trusted: it does not even know this worker.
            self._absent_since.clear()
            if now - self._seen_at > _UNSEEN_SECONDS:
                self._seen_at = now
                self._link.cancel()
            return []
        self._seen_at = now
        if self._worker not in known:
            await call(0, b"SADD", key, self._worker)
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
