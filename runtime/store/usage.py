"""Reads the usage of an owner, summed over all lanes. `spending.py` describes how it is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import date
from typing import Final, NamedTuple
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.store.spending import NOTHING, OTHER, SEPARATOR, Amounts
from breadcrumbs.runtime.store.store import Store

MAX_DAYS: Final = 366
"""Maximum number of days that one read covers."""

_MOVE_USAGE: Final = Script("move_usage")
_SCAN_COUNT: Final = 1_000


class UsageKey(NamedTuple):
    """Day, and the agent with its model, or the user. All None: the whole owner."""

    day: date
    agent: str | None = None
    model: str | None = None
    user: str | None = None


def months_between(first: date, last: date) -> list[date]:
    """Return the first days of all months from `first` to `last`."""
    months, current = [], first.replace(day=1)
    while current <= last:
        months.append(current)
        current = date(current.year + current.month // 12, current.month % 12 + 1, 1)
    return months


async def read_days(
    store: Store, owner: UUID, days: Iterable[date], user: str | None = None
) -> dict[date, Amounts]:
    """Return the usage of an owner, or of one user, on these days. Days without usage are left out."""
    wanted: dict[date, list[date]] = {}
    for day in days:
        wanted.setdefault(day.replace(day=1), []).append(day)
    suffix = b"" if user is None else b"u" + user.encode()
    found: dict[date, Amounts] = {}
    for month, in_month in wanted.items():
        fields = [b"%02d" % day.day + suffix for day in in_month]
        replies = await store.connection.call_all(
            [
                (lane, (b"HMGET", store.keys.usage_of(lane, owner, _name(month)), *fields))
                for lane in range(store.lanes)
            ]
        )
        for reply in replies:
            for day, raw in zip(in_month, reply, strict=True):
                if raw is not None:
                    found[day] = found.get(day, NOTHING).plus(Amounts.decode(raw))
    return found


async def read_total(store: Store, owner: UUID, user: str | None, before: date) -> Amounts:
    """Return the usage of an owner or a user in all months before the month of a day."""
    replies = await store.connection.call_all(
        [(lane, (b"SMEMBERS", store.keys.usage_months(lane, owner))) for lane in range(store.lanes)]
    )
    months = {_month_of(name) for reply in replies for name in reply}
    total = NOTHING
    for month in sorted(months):
        if month < before.replace(day=1):
            days = [month.replace(day=number) for number in range(1, _length(month) + 1)]
            for amounts in (await read_days(store, owner, days, user)).values():
                total = total.plus(amounts)
    return total


async def read_session(store: Store, owner: UUID, session: str) -> Amounts:
    """Return the usage of a session. Nothing if it has none or does not exist."""
    lane = store.keys.session_lane(owner, session)
    key = store.keys.session(lane, owner, session)
    return Amounts.decode(await store.connection.call(lane, b"HGET", key, b"usage"))


async def read_parts(store: Store, owner: UUID, first: date, last: date) -> dict[UsageKey, Amounts]:
    """Return the usage of each day by agent and model, and by user."""
    found: dict[UsageKey, Amounts] = {}
    for month in months_between(first, last):
        async for field, raw in _scan(store, owner, month):
            key = _decode_field(month, field)
            if key is not None and first <= key.day <= last:
                found[key] = found.get(key, NOTHING).plus(Amounts.decode(raw))
    return found


async def forget_user(store: Store, owner: UUID, user: str) -> int:
    """Move the usage of a user to `(other)`, so that the name is gone and the totals stay. Return the changed counters.

    For the erasure of a user. Each counter is moved by one script, so this can be repeated after an interruption.
    """
    changed = 0
    replies = await store.connection.call_all(
        [(lane, (b"SMEMBERS", store.keys.usage_months(lane, owner))) for lane in range(store.lanes)]
    )
    for lane, months in enumerate(replies):
        for month in months:
            key = store.keys.usage_of(lane, owner, month)
            fields = [b"%02du" % day for day in range(1, 32)]
            values = await store.connection.call(
                lane, b"HMGET", key, *(field + user.encode() for field in fields)
            )
            for field, raw in zip(fields, values, strict=True):
                if raw is not None:
                    names: list[bytes | str | int] = [field + user.encode(), field + OTHER.encode()]
                    await store.connection.run(lane, _MOVE_USAGE, [key], names)
                    changed += 1
    return changed


async def _scan(store: Store, owner: UUID, month: date) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield all counters of a month, in all lanes. No command reads more than a bounded number of them."""
    cursors: dict[int, bytes | int] = dict.fromkeys(range(store.lanes), 0)
    while cursors:
        lanes = list(cursors)
        replies = await store.connection.call_all(
            [
                (
                    lane,
                    (
                        b"HSCAN",
                        store.keys.usage_of(lane, owner, _name(month)),
                        cursors[lane],
                        b"COUNT",
                        _SCAN_COUNT,
                    ),
                )
                for lane in lanes
            ]
        )
        for lane, (cursor, entries) in zip(lanes, replies, strict=True):
            for position in range(0, len(entries), 2):
                yield entries[position], entries[position + 1]
            if int(cursor):
                cursors[lane] = cursor
            else:
                del cursors[lane]


def _decode_field(month: date, field: bytes) -> UsageKey | None:
    day, kind, name = month.replace(day=int(field[:2])), field[2:3], field[3:]
    if kind == b"u":
        return UsageKey(day, user=name.decode())
    if kind == b"a":
        agent, _, model = name.partition(SEPARATOR)
        return UsageKey(day, agent.decode(), model.decode())
    return None


def _name(month: date) -> bytes:
    return month.strftime("%Y%m").encode()


def _month_of(name: bytes) -> date:
    return date(int(name[:4]), int(name[4:6]), 1)


def _length(month: date) -> int:
    return (months_between(month, date(month.year + 1, 1, 1))[1] - month).days
