"""The event reader: each follower receives each event once and in order, independent of the others."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from breadcrumbs.runtime.backend.connection import LaneChannels
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.backend.link import ChannelHandler
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.events import node_reader, reader
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.reader import Follower
from breadcrumbs.runtime.store.session_deletion import close_session
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.turn_retries import TurnRetry, announce_retry
from tests.support.conversations import eventually, opened
from tests.support.events import reader_of
from tests.support.servers import Server

OWNER = UUID(int=7)
SOON = 2.0
"""Seconds: less than a reader waits for the server at most, so that nothing is left to its next round."""


@pytest.fixture
async def store(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    async with opened(embedded_server.url, lanes=4) as store:
        yield store


class Listener:
    """Follows lanes and notes what comes."""

    def __init__(
        self, store: Store, take: Callable[[Event, str], bool] | None = None, *, pause: float = 0
    ) -> None:
        self.pause = pause
        self.follower: Follower[str] = Follower(reader_of(store), take)
        self.heard: dict[int, list[int]] = {}
        self.notes: set[str] = set()
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            for event, note in await self.follower.next():
                if self.pause:  # without one, an event is noted in the step that takes it: see `follow` below
                    await asyncio.sleep(self.pause)
                self.heard.setdefault(event.lane, []).append(event.at)
                self.notes.add(note)

    async def has_heard(self, written: dict[int, list[int]]) -> None:
        async def so_many() -> bool:
            return sum(map(len, self.heard.values())) >= sum(map(len, written.values()))

        await eventually(so_many, "it has not heard of everything", SOON)
        assert self.heard == written

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self.follower.leave_all()


async def write(store: Store, count: int, *, session: str | None = None) -> dict[int, list[int]]:
    """Some breadcrumbs, all over the lanes or in one session; the times of their events, by lane."""
    written: dict[int, list[int]] = {}
    for _ in range(count):
        tags = [f"session:{session or uuid4()}"]
        made = await store.create(OWNER, BreadcrumbCreate(tags=tags))
        written.setdefault((made.id.int >> 64 & 0xFFF) % store.lanes, []).append(made.created)
    return written


def joined(*parts: dict[int, list[int]]) -> dict[int, list[int]]:
    lanes = {lane for part in parts for lane in part}
    return {lane: [at for part in parts for at in part.get(lane, [])] for lane in lanes}


async def test_each_follower_receives_every_event_once_from_its_position(store: Store) -> None:
    before = await write(store, 20)
    old, new = Listener(store), Listener(store)
    end = await reader_of(store).log.end()
    for lane in range(store.lanes):
        new.follower.follow(lane, end[lane], "new")
        old.follower.follow(lane, 0, "old")
    after = await write(store, 40)
    await new.has_heard(after)
    await old.has_heard(joined(before, after))
    assert (old.notes, new.notes) == ({"old"}, {"new"})
    for listener in (old, new):
        await listener.end()


async def test_events_arrive_once_and_in_order_with_both_delivery_methods(store: Store) -> None:
    """The follower takes some events, leaves some and fails at some. Order and other followers are not affected."""
    at_once = 0
    dice = random.Random(1)

    def take(event: Event, _: str) -> bool:
        nonlocal at_once
        match dice.randrange(3):
            case 0:
                return False
            case 1:
                raise RuntimeError("it fails")
        at_once += 1
        hasty.heard.setdefault(event.lane, []).append(event.at)
        return True

    hasty, patient = Listener(store, take, pause=0.002), Listener(store)
    for listener in (hasty, patient):
        for lane in range(store.lanes):
            listener.follower.follow(lane, 0, "")
    parts = []
    for count in (1, 5) * 15:
        together = await asyncio.gather(*(write(store, 1, session="s") for _ in range(count)))
        parts += sorted(together, key=lambda part: list(part.values()))
        await hasty.has_heard(joined(*parts))
    await patient.has_heard(joined(*parts))
    assert at_once
    for listener in (hasty, patient):
        await listener.end()


async def test_all_followers_share_one_reader(store: Store) -> None:
    listeners = [Listener(store) for _ in range(3)]
    for listener in listeners:
        for lane in range(store.lanes):
            listener.follower.follow(lane, 0, "")
    written = await write(store, 5)
    for listener in listeners:
        await listener.has_heard(written)
    clients = (await store.connection.call(0, b"CLIENT", b"LIST")).decode()
    assert clients.count("cmd=ssubscribe") == 1
    for listener in listeners:
        await listener.end()

    async def nobody_reads() -> bool:
        return b"subscribe" not in await store.connection.call(0, b"CLIENT", b"LIST")

    await eventually(nobody_reads, "a read continues without followers", SOON)


async def test_a_lane_added_while_the_reader_waits_is_read_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_reader, "_CHECK_SECONDS", 60.0)
    written = await write(store, 30)
    assert len(written) == store.lanes
    listener = Listener(store)
    for lane in range(store.lanes):
        listener.follower.follow(lane, 0, "")
        await listener.has_heard({known: written[known] for known in range(lane + 1)})
        await asyncio.sleep(0.05)  # the reader waits again
    await listener.end()


async def test_a_follower_that_starts_again_receives_the_later_events_again(store: Store) -> None:
    listener, other = Listener(store), Listener(store)
    other.follower.follow(0, 0, "")
    for lane in range(store.lanes):
        listener.follower.follow(lane, 0, "first")
    written = await write(store, 90)  # so that every lane has its three
    await listener.has_heard(written)
    for lane, times in written.items():
        listener.follower.follow(lane, times[-3], "again")
    twice = {lane: [*times, *times[-2:]] for lane, times in written.items()}
    await listener.has_heard(twice)
    await other.has_heard({0: written[0]})
    for one in (listener, other):
        await one.end()


async def test_a_slow_follower_reads_separately_and_delays_no_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_MAX_BUFFERED_EVENTS", 5)
    quick = Listener(store)
    slow: Follower[str] = Follower(reader_of(store))
    for lane in range(store.lanes):
        quick.follower.follow(lane, 0, "")
        slow.follow(lane, 0, "")
    first = await write(store, 3)
    taken = await slow.next()  # it has joined
    written = joined(first, await write(store, 60))
    await quick.has_heard(written)
    heard: dict[int, list[int]] = {}
    async with asyncio.timeout(SOON):
        while True:
            for event, _ in taken:
                heard.setdefault(event.lane, []).append(event.at)
            if sum(map(len, heard.values())) == 63:
                break
            taken = await slow.next()
    assert heard == written
    later = await write(store, 3)  # and it is back among the others
    await quick.has_heard(joined(written, later))
    async with asyncio.timeout(SOON):
        while sum(map(len, heard.values())) < 66:
            for event, _ in await slow.next():
                heard.setdefault(event.lane, []).append(event.at)
    assert heard == joined(written, later)
    slow.leave_all()
    await quick.end()


async def test_random_joins_and_leaves_omit_and_repeat_nothing(store: Store) -> None:
    chance = random.Random(11)
    listeners = [Listener(store) for _ in range(3)]
    written: dict[int, list[int]] = {lane: [] for lane in range(store.lanes)}
    position = [[0] * store.lanes for _ in listeners]
    for _ in range(60):
        which = chance.randrange(3)
        lane = chance.randrange(store.lanes)
        seen = listeners[which].heard.setdefault(lane, [])
        if chance.random() < 0.5:
            # As a worker does: from the last event that it has taken.
            listeners[which].follower.follow(lane, seen[-1] if seen else 0, "")
            position[which][lane] = 1
        elif position[which][lane]:
            listeners[which].follower.leave(lane)
        for at_lane, times in (await write(store, chance.randrange(4))).items():
            written[at_lane] += times
        await asyncio.sleep(chance.random() * 0.004)
    for listener in listeners:
        for lane in range(store.lanes):
            seen = listener.heard.get(lane, [])
            listener.follower.follow(lane, seen[-1] if seen else 0, "")
    for listener in listeners:
        await listener.has_heard({lane: times for lane, times in written.items() if times})
        await listener.end()


async def test_reading_resumes_at_the_last_position_after_a_server_restart(tmp_path: Path) -> None:
    with Server(appendonly_dir=tmp_path) as server:
        async with opened(server.url, lanes=4) as store:
            listener = Listener(store)
            for lane in range(store.lanes):
                listener.follower.follow(lane, 0, "")
            before = await write(store, 10)
            await listener.has_heard(before)
            server.restart()
            after = await write(store, 10)
            await listener.has_heard(joined(before, after))
            await listener.end()


class Announcements:
    """Channels of a store whose messages a test can drop. Confirmations of subscriptions arrive."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, is_lost: Callable[[], bool]) -> None:
        self.lost = 0
        self.heard = 0
        open_channels = store.connection.open_channels

        async def open_lossy(lane: int, on_message: ChannelHandler) -> LaneChannels:
            def hear(channel: bytes, message: bytes | None) -> None:
                if message is not None and is_lost():
                    self.lost += 1
                    return
                self.heard += message is not None
                on_message(channel, message)

            return await open_channels(lane, hear)

        monkeypatch.setattr(store.connection, "open_channels", open_lossy)


async def followed(store: Store) -> Listener:
    """Follow all lanes. The subscriptions have begun when this returns."""
    listener = Listener(store)
    end = await reader_of(store).log.end()
    for lane in range(store.lanes):
        listener.follower.follow(lane, end[lane], "")

    async def subscribed() -> bool:
        clients = (await store.connection.call(0, b"CLIENT", b"LIST")).decode()
        return f"ssub={store.lanes} " in clients

    await eventually(subscribed, "no subscriptions")
    await asyncio.sleep(0.05)  # the first read after the subscriptions
    return listener


async def test_announced_events_arrive_without_a_read(embedded_server: EmbeddedServer) -> None:
    async def reads(store: Store) -> int:
        statistics: bytes = await store.connection.call(0, b"INFO", b"commandstats")
        found = re.search(rb"cmdstat_xread:calls=(\d+)", statistics)
        return int(found[1]) if found else 0

    async with opened(embedded_server.url, lanes=256) as store:
        listener = await followed(store)
        before, began = await reads(store), time.monotonic()
        written = await write(store, 100)
        await listener.has_heard(written)
        checks = int((time.monotonic() - began) / node_reader._CHECK_SECONDS) + 1
        assert await reads(store) - before <= 2 * checks  # a check can meet an announcement
        await listener.end()


async def test_all_announcements_are_lost_and_events_arrive_within_about_a_second(
    embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(embedded_server.url, lanes=256) as store:
        announcements = Announcements(store, monkeypatch, lambda: True)
        listener = await followed(store)
        written: dict[int, list[int]] = {}
        for _ in range(3):
            written = joined(written, await write(store, 5))
            await listener.has_heard(written)  # within two seconds
        assert announcements.lost == 15 and not announcements.heard
        await listener.end()


async def test_the_next_announcement_reveals_a_lost_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_reader, "_CHECK_SECONDS", 60.0)
    drops = iter([True, True, False])
    announcements = Announcements(store, monkeypatch, lambda: next(drops))
    listener = await followed(store)
    written = await write(store, 3, session="s")
    await listener.has_heard(written)
    assert announcements.lost == 2
    await listener.end()


async def test_random_losses_omit_and_repeat_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    announcements = Announcements(store, monkeypatch, lambda: chance.random() < 0.4)
    listeners = [await followed(store), Listener(store)]
    for lane in range(store.lanes):
        listeners[1].follower.follow(lane, 0, "")
    parts = [await write(store, chance.randrange(5)) for _ in range(60)]
    for listener in listeners:
        await listener.has_heard(joined(*parts))
        await listener.end()
    assert announcements.lost and announcements.heard


async def test_a_server_that_refuses_channels_delays_events_only_a_little() -> None:
    """The user of the store has no rights for channels. Its writes succeed, and nothing is announced."""
    with Server() as server:
        server.command("ACL", "SETUSER", "crumb", "on", ">password", "~*", "resetchannels", "+@all")
        url = f"redis://crumb:password@{server.host}:{server.port}"
        async with opened(url, lanes=4) as store:
            listener = Listener(store)
            for lane in range(store.lanes):
                listener.follower.follow(lane, 0, "")
            written = await write(store, 5)
            await listener.has_heard(written)
            began = time.monotonic()
            written = joined(written, await write(store, 5))
            await listener.has_heard(written)
            assert time.monotonic() - began < node_reader._CHECK_SECONDS
            await listener.end()


async def test_a_foreign_message_on_a_channel_does_no_harm(store: Store) -> None:
    listener = await followed(store)
    for message in (b"", b"nonsense", b"1 2", b"a b c", b"5 \xff x", b"0 9999999999999999 x"):
        await store.connection.call(0, b"SPUBLISH", store.keys.events(0), message)
    written = await write(store, 10)
    await listener.has_heard(written)
    await listener.end()


async def test_every_kind_of_write_is_announced(
    store: Store, embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_reader, "_CHECK_SECONDS", 60.0)
    heard: list[str] = []
    follower: Follower[str] = Follower(reader_of(store))

    async def listen() -> None:
        while True:
            heard.extend([event.operation for event, _ in await follower.next()])

    other = await followed(store)
    for lane in range(store.lanes):
        follower.follow(lane, (await reader_of(store).log.end())[lane], "")
    listening = asyncio.create_task(listen())
    first = await store.create(OWNER, BreadcrumbCreate(tags=["session:s"]))
    second = await store.create(OWNER, BreadcrumbCreate(tags=["session:s"]))
    await store.update(OWNER, first.id, BreadcrumbUpdate(title="changed"))
    await announce_retry(store, TurnRetry(await store.get(OWNER, second.id), second.id))
    deleted = await store.get(OWNER, first.id)
    await store.delete(OWNER, first.id)
    await store.restore(deleted, [])
    await close_session(store, OWNER, "s", tags=["session:s"], expected_version=None)
    wanted = ["created", "created", "updated", "retried", "deleted", "created", "session_deleted"]

    async def all_heard() -> bool:
        return len(heard) == len(wanted)

    await eventually(all_heard, "a write was not announced", SOON)
    assert heard == wanted
    listening.cancel()
    follower.leave_all()
    await other.end()
