"""A fleet of worker processes, the messages sent to it, and the checks of what came of them."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

import anyio
import anyio.to_thread

from breadcrumbs.context_builder.references import read_record
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import home_lane
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.leases import Leases
from breadcrumbs.runtime.workers.turn import INTERNAL
from tests.support.conversations import ALICE, CONTEXT, ERROR, MESSAGE, RESPONSE, Chat, eventually
from tests.support.killable_worker import Kind, Nursery, Post, Running, Trap

LEASE = 0.8
PATIENCE = 90.0
"""Seconds after which something has failed, and is not just slow."""

LEASED: dict[Kind, str] = {"run-agents": "agents", "build-contexts": "contexts"}


@dataclass
class Fleet:
    """The workers, the messages, and the account of what came of them."""

    store: Store
    nursery: Nursery
    post: Post
    said: dict[str, list[Breadcrumb]] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)
    """Time by the server's clock."""
    patience: float = PATIENCE

    async def start(self, kind: Kind, trap: Trap | None = None) -> Running:
        return await anyio.to_thread.run_sync(self.nursery.start, kind, self.post, trap)

    async def end(self, worker: Running) -> float:
        """Ask a worker to stop, once it is at work; how long that took."""

        async def at_work() -> bool:
            leases = Leases(self.store, LEASED[worker.kind], "", seconds=1)
            return any(f"-{worker.pid}-" in name for name in await leases.list_workers())

        await eventually(at_work, "it does not begin", self.patience)
        began = time.monotonic()
        self.nursery.send(worker, signal.SIGTERM)
        assert await anyio.to_thread.run_sync(worker.ended.wait, self.patience), "it does not end"
        assert worker.code == 0
        return time.monotonic() - began

    async def have_lanes(self) -> None:
        async def look() -> bool:
            return all(await self._of_lanes(self.store.keys.lease, b"EXISTS"))

        await eventually(look, "the lanes were not taken", self.patience)

    async def say(self, session: str) -> Breadcrumb:
        messages = self.said.setdefault(session, [])
        number = len(messages)
        new = BreadcrumbCreate.parse(
            {
                "schema_name": MESSAGE,
                "title": "m",
                "tags": ["user:message", f"session:{session}"],
                "context": {"message": f"<{session}/{number}>"},
            }
        )
        while True:
            try:
                written = await self.store.create(ALICE, new, idempotency_key=f"{session}/{number}")
                message = await self.store.get(ALICE, written.id)
                break
            except StoreError:  # the server is away: again, with the same key
                await anyio.sleep(0.05)
        messages.append(message)
        return message

    async def talk(self, messages: int, sessions: int, seconds: float, chance: random.Random) -> None:
        """Messages at random moments in random sessions, often several before the first is answered."""
        began = time.monotonic()
        for number in range(messages):
            await self.say(f"s{chance.randrange(sessions)}")
            ahead = seconds * number / messages - (time.monotonic() - began)
            if ahead > 0:
                await anyio.sleep(ahead)

    async def all_answered(self) -> None:
        waiting = {session: len(messages) for session, messages in self.said.items()}
        deadline = time.monotonic() + self.patience
        while waiting:
            for session, messages in list(waiting.items()):
                answers = await self.store.recent(ALICE, session, RESPONSE, 1_000)
                if len({answer.context["trigger_id"] for answer in answers}) >= messages:
                    del waiting[session]
            assert time.monotonic() < deadline, await self._what_waits(list(waiting))
            await anyio.sleep(0.05)

    async def _what_waits(self, sessions: list[str]) -> str:
        """All that helps to understand why."""
        chat, keys = Chat(self.store), self.store.keys
        found = [f"living: {[(worker.kind, worker.pid) for worker in self.nursery.living]}"]
        for session in sessions:
            messages = self.said[session]
            answered = {answer.context["trigger_id"] for answer in await chat.answers(session)}
            built = [
                (version.version, version.context["trigger_id"], version.tags, version.updated)
                for context in await chat.all(session, CONTEXT)
                for version in await self.store.history(ALICE, context.id)
            ]
            found += [
                f"{session}: {[(str(m.id), m.created) for m in messages if str(m.id) not in answered]}",
                f"  contexts, the newest first: {built[:5]}",
                f"  errors: {[error.context['error'] for error in await chat.errors(session)]}",
            ]
            lane = home_lane(messages[0].id, self.store.lanes)
            for kind in LEASED.values():
                state = await self.store.connection.call_all(
                    [
                        (lane, (b"GET", keys.lease(lane, kind))),
                        (lane, (b"GET", keys.low(lane, kind))),
                        (lane, (b"GET", keys.clock(lane))),
                        (lane, (b"ZRANGE", keys.done(lane, kind), 0, -1)),
                        (lane, (b"HGETALL", keys.attempts(lane, kind))),
                        (lane, (b"HVALS", keys.dead_letters(lane, kind))),
                    ]
                )
                found.append(
                    f"  lane {lane}, {kind}: lease, low, clock, done, attempts, dead letters: {state}"
                )
        return "not answered\n" + "\n".join(found)

    async def settled(self) -> None:
        """Wait until all events are acknowledged, so that no further answer can follow."""

        async def look() -> bool:
            low = await self._of_lanes(self.store.keys.low, b"GET")
            ends = await self._of_lanes(lambda lane, _: self.store.keys.clock(lane), b"GET")
            return all(int(done or 0) >= int(end or 0) for done, end in zip(low, ends, strict=True))

        await eventually(look, "they do not come to rest", self.patience)

    async def _of_lanes(self, key: Callable[[int, str], bytes], command: bytes) -> list[bytes]:
        places = [(lane, kind) for lane in range(self.store.lanes) for kind in LEASED.values()]
        return await self.store.connection.call_all(
            [(lane, (command, key(lane, kind))) for lane, kind in places]
        )

    async def check(self) -> None:
        """0 lost, 0 doubled, 0 bled, every session in order; one context for each message; no errors."""
        await self.all_answered()
        await self.settled()
        chat = Chat(self.store)
        for session, messages in self.said.items():
            ids = [str(message.id) for message in messages]
            answers = await chat.answers(session)
            assert [answer.context["trigger_id"] for answer in answers] == ids, f"{session}: lost or doubled"
            texts = [answer.context["message"] for answer in answers]
            assert texts == [f"re <{session}/{number}> saw {session}" for number in range(len(messages))]
            (context,) = await chat.all(session, CONTEXT)
            mine = {crumb.id for crumb in (*messages, *answers)}
            history = await self.store.history(ALICE, context.id)
            assert all({item.id for item in read_record(version).items} <= mine for version in history)
            built = [version.context["trigger_id"] for version in history if INTERNAL not in version.tags]
            assert built[::-1] == ids, f"{session}: contexts built twice or not at all"
        page = await self.store.list(ALICE, Query(schema_name=ERROR))
        assert [error.context["error"] for error in page.items] == []
        for kind in LEASED.values():
            assert await chat.dead_letters(kind) == []

    async def spans(self) -> list[tuple[int, int]]:
        """Return the times of each message and its answer."""
        spans = []
        for session, messages in self.said.items():
            answers = (await self.store.recent(ALICE, session, RESPONSE, 1_000))[::-1]
            pairs = zip(messages, answers, strict=True)
            spans += [(message.created, answer.created) for message, answer in pairs]
        return spans

    async def recoveries(self) -> list[float]:
        """For each death: how long until all that was waiting at that moment had its answer."""
        spans = await self.spans()
        return sorted(
            max((end - death for begin, end in spans if begin <= death < end), default=0) / 1e6
            for death in self.deaths
        )

    async def waits(self) -> list[float]:
        """Return the delays between messages and answers."""
        return sorted((end - begin) / 1e6 for begin, end in await self.spans())


@asynccontextmanager
async def fleet(
    url: str, nursery: Nursery, folder: Path, *, lease: float = LEASE, patience: float = PATIENCE
) -> AsyncIterator[Fleet]:
    namespace = f"t{token_hex(6)}"
    store = await Store.open(url, namespace=namespace)
    logged = len(nursery.log.read_text())
    try:
        yield Fleet(store, nursery, Post(url, namespace, lease, str(folder)), patience=patience)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(nursery.clear)
            await store.close()
    complaints = nursery.log.read_text()[logged:]
    assert "Traceback" not in complaints, complaints[-4_000:]


def share(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))]


def shares(values: list[float]) -> str:
    return f"p50 {share(values, 0.5):.3f} s, p99 {share(values, 0.99):.2f} s, at most {values[-1]:.2f} s"
