"""Quotas of owners in bytes, breadcrumbs and sessions. Off by default.

Each lane has counters for the bytes and breadcrumbs of each owner. The scripts that write update them (`counted.lua`),
so they match the data as long as all processes have the same quotas. Sessions are counted by their index. A write is
admitted against the sum over all lanes.

Writes of one process never exceed a quota. Other processes can write between the read of the sum and a write. So each
process admits at most a sixteenth of the remaining room, or a single write, before it reads the sum again. With up to
sixteen processes, a quota is exceeded by at most one write of each other process.

The commit of a worker is counted but never refused, because an answer that was shown must be stored. Workers check the
quota before a turn begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple
from uuid import UUID

import anyio
from pydantic import BaseModel, ConfigDict, Field

from breadcrumbs.runtime.backend.connection import Connection, Script
from breadcrumbs.runtime.errors import QuotaExceeded
from breadcrumbs.runtime.store.keys import Keys

_COUNT = Script("count")

_TTL_SECONDS: Final = 0.5  # the sum is read again after this time
_SHARES: Final = 16  # a process admits one share of the remaining room before it reads the sum again
_MAX_ACCOUNTS: Final = 10_000
"""Above this number idle accounts are dropped. A dropped owner is counted again at its next write."""

Limit = Annotated[int, Field(ge=0, le=1 << 60)] | None


class Quota(BaseModel):
    """Limits of one owner. None: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: Limit = None
    breadcrumbs: Limit = None
    sessions: Limit = None


class Quotas(Quota):
    """Limits of every owner, with overrides for some owners."""

    owners: dict[UUID, Quota] = Field(default_factory=dict)

    @property
    def are_set(self) -> bool:
        return self != Quotas()

    def of(self, owner: UUID) -> Quota | None:
        """Return the quota of an owner, or None if nothing is limited."""
        own = self.owners.get(owner)
        overrides = {} if own is None else own.model_dump(include=own.model_fields_set)
        quota = Quota(**{**self.model_dump(exclude={"owners"}), **overrides})
        return None if quota == Quota() else quota


class Usage(NamedTuple):
    """The amount that an owner has stored, or that a write adds."""

    bytes: int = 0
    breadcrumbs: int = 0
    sessions: int = 0

    def plus(self, other: Usage, sign: int = 1) -> Usage:
        """Return the sum, or the difference if `sign` is -1."""
        return Usage(*(mine + sign * its for mine, its in zip(self, other, strict=True)))


_NO_USAGE: Final = Usage()
MIN_GROWTH: Final = Usage(bytes=1, breadcrumbs=1)
"""The minimum that a write adds."""


class LaneCount(NamedTuple):
    """Bytes and breadcrumbs of an owner in a lane."""

    lane: int
    counted: tuple[int, int]
    """Counted from the data."""
    stored: tuple[int, int] | None
    """Values of the counters before the count. None: there were no counters."""


@dataclass(slots=True)
class _Account:
    """Cached usage of an owner."""

    lock: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    usage: Usage | None = None
    """The usage in all lanes as last read."""
    read_at: float = 0.0
    """Time of that read, in seconds of the monotonic clock."""
    admitted: Usage = _NO_USAGE
    """Growth admitted by this process since that read. `usage` can include a part of it."""
    in_flight: Usage = _NO_USAGE
    """Growth of the writes that have not ended."""
    writes: int = 0
    """Number of writes that have not ended."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # anyio's event cannot be cleared


class QuotaGate:
    """Admits writes of owners that have quotas."""

    def __init__(self, connection: Connection, keys: Keys, quotas: Quotas) -> None:
        self._connection = connection
        self._keys = keys
        self._quotas = quotas
        self._quota_of: dict[UUID, Quota | None] = {}
        self._accounts: dict[UUID, _Account] = {}

    def quota(self, owner: UUID) -> Quota | None:
        """Return the quota of an owner, or None if nothing is limited."""
        if owner not in self._quota_of:
            if len(self._quota_of) >= _MAX_ACCOUNTS:
                self._quota_of.clear()
            self._quota_of[owner] = self._quotas.of(owner)
        return self._quota_of[owner]

    @asynccontextmanager
    async def admitted(self, owner: UUID, growth: Usage) -> AsyncIterator[None]:
        """Reserve room for a write while it runs. Raises `QuotaExceeded` if there is not enough."""
        quota = self.quota(owner)
        if quota is None:
            yield
            return
        account = self._account(owner)
        async with account.lock:
            await self._ensure_room(owner, account, growth, quota)
            account.admitted = account.admitted.plus(growth)
            account.in_flight = account.in_flight.plus(growth)
            account.writes += 1
            account.idle.clear()
        try:
            yield
        except BaseException:
            account.admitted = account.admitted.plus(growth, -1)
            raise
        finally:
            account.in_flight = account.in_flight.plus(growth, -1)
            account.writes -= 1
            if not account.writes:
                account.idle.set()

    async def check(self, owner: UUID, growth: Usage = MIN_GROWTH) -> None:
        """Raise `QuotaExceeded` if there is no room. For use before work whose result is never refused."""
        if (quota := self.quota(owner)) is not None:
            account = self._account(owner)
            async with account.lock:
                await self._ensure_room(owner, account, growth, quota)

    async def _ensure_room(self, owner: UUID, account: _Account, growth: Usage, quota: Quota) -> None:
        if not self._is_fresh(account) or _excess(account, growth, quota, _SHARES) is not None:
            await self._refresh(owner, account)
        if account.writes and _excess(account, growth, quota, _SHARES) is not None:
            # The writes in flight would exceed the share, or `usage` includes them and they are counted twice. No
            # other write is admitted while this one waits, so the wait is short.
            await account.idle.wait()
            await self._refresh(owner, account)
        if (name := _excess(account, growth, quota)) is not None:
            limit: int = getattr(quota, name)
            raise QuotaExceeded(name, getattr(account.usage, name), limit)

    def _is_fresh(self, account: _Account) -> bool:
        return account.usage is not None and time.monotonic() - account.read_at < _TTL_SECONDS

    async def _refresh(self, owner: UUID, account: _Account) -> None:
        in_flight, began = account.in_flight, time.monotonic()
        # Each process counts once from the data, because the counters are not updated while quotas are off.
        account.usage = await self.usage(owner, recount=account.usage is None)
        account.read_at, account.admitted = began, in_flight

    async def usage(self, owner: UUID, *, recount: bool = False) -> Usage:
        """Return the usage of an owner in all lanes. `recount`: count the data instead of reading the counters."""
        keys, lanes = self._keys, range(self._keys.lanes)
        replies = await self._connection.call_all(
            [
                *((lane, (b"HMGET", keys.usage(lane, owner), b"bytes", b"breadcrumbs")) for lane in lanes),
                *((lane, (b"ZCARD", keys.sessions(lane, owner))) for lane in lanes),
            ]
        )
        total = Usage(sessions=sum(replies[keys.lanes :]))
        for lane, counters in zip(lanes, replies, strict=False):
            if recount or None in counters:
                counters = (await self.count(owner, lane, store_result=True)).counted
            total = total.plus(Usage(int(counters[0]), int(counters[1])))
        return total

    async def count(self, owner: UUID, lane: int, *, store_result: bool) -> LaneCount:
        """Count the data of an owner in a lane. `store_result`: also write it to the counters."""
        keys = self._keys
        reply = await self._connection.run(
            lane,
            _COUNT,
            [keys.usage(lane, owner), keys.schemas(lane, owner)],
            [
                keys.by_schema(lane, owner, ""),
                keys.body(lane, owner, b""),
                keys.history(lane, owner, b""),
                int(store_result),
            ],
        )
        bytes, breadcrumbs, *counters = reply
        stored = None if b"" in counters else (int(counters[0]), int(counters[1]))
        return LaneCount(lane, (int(bytes), int(breadcrumbs)), stored)

    def _account(self, owner: UUID) -> _Account:
        if owner not in self._accounts:
            if len(self._accounts) >= _MAX_ACCOUNTS:
                busy = {of: account for of, account in self._accounts.items() if account.writes}
                self._accounts = busy
            self._accounts[owner] = _Account()
        return self._accounts[owner]


def _excess(account: _Account, growth: Usage, quota: Quota, shares: int = 1) -> str | None:
    """Return the name of the first limit that a growth exceeds, or None.

    `shares`: the remaining room is divided by this number, and only one share is available.
    """
    used = account.usage or _NO_USAGE
    for name in Usage._fields:
        limit, added = getattr(quota, name), getattr(growth, name)
        if limit is None or added <= 0:
            continue
        if shares * (getattr(account.admitted, name) + added) > limit - getattr(used, name):
            return name
    return None
