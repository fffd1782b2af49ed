"""Quotas: how much an owner may keep in a store, in bytes, breadcrumbs and sessions. Off unless they are set.

Each lane has a counter of the bytes and breadcrumbs of each owner. The scripts that write keep it (`counted.lua`), so
it never drifts from the data. Sessions are counted by their index. A write is admitted against the sum over all lanes.

Writes of one process never exceed a quota. Other processes may write between the moment when the sum is read and the
moment when a write lands. So a process has at most a sixteenth of the room that is left under way, or a single write,
before it reads the sum again: with up to sixteen processes, a quota is exceeded by at most one write of each other one.

A worker's commit is counted and never refused: an answer that was shown is stored. Workers ask before a turn begins.
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

_FRESH_SECONDS: Final = 0.5
_SHARE: Final = 16
_MOST_ACCOUNTS: Final = 10_000
"""Above this number all are forgotten. An owner that comes again is counted again."""

Limit = Annotated[int, Field(ge=0, le=1 << 60)] | None


class Quota(BaseModel):
    """Limits of one owner. None: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: Limit = None
    breadcrumbs: Limit = None
    sessions: Limit = None


class Quotas(Quota):
    """Limits of every owner, and other limits of some owners."""

    owners: dict[UUID, Quota] = Field(default_factory=dict)

    @property
    def are_set(self) -> bool:
        return self != Quotas()

    def of(self, owner: UUID) -> Quota | None:
        """The quota of an owner; None: there is none."""
        own = self.owners.get(owner)
        named = {} if own is None else own.model_dump(include=own.model_fields_set)
        quota = Quota(**{**self.model_dump(exclude={"owners"}), **named})
        return None if quota == Quota() else quota


class Usage(NamedTuple):
    """The amount that an owner keeps, or that a write adds."""

    bytes: int = 0
    breadcrumbs: int = 0
    sessions: int = 0

    def plus(self, other: Usage, sign: int = 1) -> Usage:
        return Usage(*(mine + sign * its for mine, its in zip(self, other, strict=True)))


_NOTHING: Final = Usage()
ONE: Final = Usage(bytes=1, breadcrumbs=1)
"""The least that a write adds."""


class LaneCount(NamedTuple):
    """Bytes and breadcrumbs of an owner in a lane: as they are, and as the counter has them."""

    lane: int
    real: tuple[int, int]
    kept: tuple[int, int] | None


@dataclass(slots=True)
class _Account:
    """Cached usage of an owner."""

    lock: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    known: Usage | None = None
    known_at: float = 0.0
    since: Usage = _NOTHING
    """Admitted here since then; it may be part of `known`."""
    under_way: Usage = _NOTHING
    writes: int = 0
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
        if owner not in self._quota_of:
            if len(self._quota_of) >= _MOST_ACCOUNTS:
                self._quota_of.clear()
            self._quota_of[owner] = self._quotas.of(owner)
        return self._quota_of[owner]

    @asynccontextmanager
    async def admitted(self, owner: UUID, growth: Usage) -> AsyncIterator[None]:
        """Room for a write while it is made, or `QuotaExceeded`."""
        quota = self.quota(owner)
        if quota is None:
            yield
            return
        account = self._account(owner)
        async with account.lock:
            await self._make_room(owner, account, growth, quota)
            account.since = account.since.plus(growth)
            account.under_way = account.under_way.plus(growth)
            account.writes += 1
            account.idle.clear()
        try:
            yield
        except BaseException:
            account.since = account.since.plus(growth, -1)
            raise
        finally:
            account.under_way = account.under_way.plus(growth, -1)
            account.writes -= 1
            if not account.writes:
                account.idle.set()

    async def check(self, owner: UUID, growth: Usage = ONE) -> None:
        """Raise `QuotaExceeded` where there is no room: before work whose result is not refused any more."""
        if (quota := self.quota(owner)) is not None:
            account = self._account(owner)
            async with account.lock:
                await self._make_room(owner, account, growth, quota)

    async def _make_room(self, owner: UUID, account: _Account, growth: Usage, quota: Quota) -> None:
        if not self._is_fresh(account) or _excess(account, growth, quota, _SHARE) is not None:
            await self._refresh(owner, account)
        if account.writes and _excess(account, growth, quota, _SHARE) is not None:
            # More than its share would be under way, or what is under way was counted twice. Nothing is admitted
            # meanwhile, so it ends soon.
            await account.idle.wait()
            await self._refresh(owner, account)
        if (name := _excess(account, growth, quota)) is not None:
            limit: int = getattr(quota, name)
            raise QuotaExceeded(name, getattr(account.known, name), limit)

    def _is_fresh(self, account: _Account) -> bool:
        return account.known is not None and time.monotonic() - account.known_at < _FRESH_SECONDS

    async def _refresh(self, owner: UUID, account: _Account) -> None:
        under_way, began = account.under_way, time.monotonic()
        # Counted once in each process: while quotas were off, nobody kept the counters.
        account.known = await self.usage(owner, recount=account.known is None)
        account.known_at, account.since = began, under_way

    async def usage(self, owner: UUID, *, recount: bool = False) -> Usage:
        """Return the usage of an owner in all lanes. `recount`: from the data instead of the counters."""
        keys, lanes = self._keys, range(self._keys.lanes)
        replies = await self._connection.call_all(
            [
                *((lane, (b"HMGET", keys.usage(lane, owner), b"bytes", b"breadcrumbs")) for lane in lanes),
                *((lane, (b"ZCARD", keys.sessions(lane, owner))) for lane in lanes),
            ]
        )
        total = Usage(sessions=sum(replies[keys.lanes :]))
        for lane, kept in zip(lanes, replies, strict=False):
            if recount or None in kept:
                kept = (await self.count(owner, lane, keep=True)).real
            total = total.plus(Usage(int(kept[0]), int(kept[1])))
        return total

    async def count(self, owner: UUID, lane: int, *, keep: bool) -> LaneCount:
        """Count what an owner has in a lane. `keep`: as the counter from now on."""
        keys = self._keys
        reply = await self._connection.run(
            lane,
            _COUNT,
            [keys.usage(lane, owner), keys.schemas(lane, owner)],
            [
                keys.by_schema(lane, owner, ""),
                keys.body(lane, owner, b""),
                keys.history(lane, owner, b""),
                int(keep),
            ],
        )
        bytes, breadcrumbs, *kept = reply
        before = None if b"" in kept else (int(kept[0]), int(kept[1]))
        return LaneCount(lane, (int(bytes), int(breadcrumbs)), before)

    def _account(self, owner: UUID) -> _Account:
        if owner not in self._accounts:
            if len(self._accounts) >= _MOST_ACCOUNTS:
                busy = {of: account for of, account in self._accounts.items() if account.writes}
                self._accounts = busy
            self._accounts[owner] = _Account()
        return self._accounts[owner]


def _excess(account: _Account, growth: Usage, quota: Quota, share: int = 1) -> str | None:
    """The first quota of whose room, or of one share of it, there is not enough for a growth."""
    known = account.known or _NOTHING
    for name in Usage._fields:
        limit, added = getattr(quota, name), getattr(growth, name)
        if limit is None or added <= 0:
            continue
        if share * (getattr(account.since, name) + added) > limit - getattr(known, name):
            return name
    return None
