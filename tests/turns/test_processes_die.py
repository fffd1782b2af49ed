"""Real processes, really killed: no message is lost, none is answered twice, none in another session.

Three agent runners and two context builders, as `crumb` starts them, with short leases. CRUMB_KILLS sets how many of
them are killed (200 for the long run that the notes report).
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import anyio
import pytest

from breadcrumbs.runtime.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.embedded import EmbeddedServer
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.query import Query
from breadcrumbs.runtime.store import Store

OWNER = UUID(int=7)
LEASE = 0.8
KILLS = int(os.environ.get("CRUMB_KILLS", "20"))


class Fleet:
    """The processes, the messages that were sent, and the account of what came of them."""

    def __init__(self, server: EmbeddedServer, store: Store) -> None:
        self.server = server
        self.store = store
        self.sent: dict[str, list[str]] = {}
        self.workers: list[tuple[str, subprocess.Popen[bytes]]] = [
            (kind, self._start(kind)) for kind in ("run-agents",) * 3 + ("build-contexts",) * 2
        ]

    def _start(self, kind: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "breadcrumbs", kind, "--redis", self.server.url],
            env={**os.environ, "CRUMB_LEASE_SECONDS": str(LEASE), "CRUMB_LOG_LEVEL": "error"},
            stdout=subprocess.DEVNULL,
        )

    def kill_one(self) -> None:
        place = random.randrange(len(self.workers))
        kind, process = self.workers[place]
        process.kill()
        process.wait()
        self.workers[place] = (kind, self._start(kind))

    def restart(self, place: int) -> None:
        kind, process = self.workers[place]
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0, f"{kind} did not drain"
        self.workers[place] = (kind, self._start(kind))

    def stop(self) -> None:
        for _, process in self.workers:
            process.terminate()
        for _, process in self.workers:
            try:
                process.wait(15)
            finally:
                process.kill()

    async def talk(self, sessions: int, messages: int, seconds: float) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(sessions):
                tasks.start_soon(self._talk, f"s{number}", messages, seconds)

    async def _talk(self, session: str, messages: int, seconds: float) -> None:
        for number in range(messages):
            new = BreadcrumbCreate(
                schema_name="user.message.v1",
                title="m",
                tags=["user:message", f"session:{session}"],
                context={"message": f"{session} message {number}"},
            )
            key = f"{session}-{number}"
            while True:
                try:
                    written = await self.store.create(OWNER, new, idempotency_key=key)
                    break
                except StoreError:  # the server is away: post it again, with the same key
                    await anyio.sleep(0.1)
            self.sent.setdefault(session, []).append(str(written.id))
            await anyio.sleep(random.random() * 2 * seconds / messages)

    async def all_answered(self, within: float) -> None:
        waiting = {session: set(ids) for session, ids in self.sent.items()}
        deadline = time.monotonic() + within
        while waiting and time.monotonic() < deadline:
            for session in list(waiting):
                waiting[session] -= {answered for answered, _ in await self.answers(session)}
                if not waiting[session]:
                    del waiting[session]
            await anyio.sleep(0.1)
        assert not waiting, f"lost: {waiting}"

    async def answers(self, session: str) -> list[tuple[str, str]]:
        query = Query(session_id=session, schema_name="agent.response.v1", sort="created_at")
        return [
            (str(crumb.context["trigger_id"]), str(crumb.context["message"]))
            async for crumb in self.store.walk(OWNER, query)
        ]

    async def check(self) -> None:
        await self.all_answered(within=60)
        await anyio.sleep(2 * LEASE)  # for whoever wants to answer once more
        for session, ids in self.sent.items():
            answers = await self.answers(session)
            assert [answered for answered, _ in answers] == ids, f"{session}: not once each, or not in order"
            for _, text in answers:
                assert set(re.findall(r"\b(s\d+) message", text)) <= {session}, "something of another session"
        errors = (await self.store.list(OWNER, Query(schema_name="agent.error.v1"))).items
        assert [error.context["error"] for error in errors] == []


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    with EmbeddedServer(folder, appendfsync="always") as server:
        store = await Store.open(server.url)
        running = Fleet(server, store)
        try:
            await _lanes_are_taken(store)
            yield running
        finally:
            await anyio.to_thread.run_sync(running.stop)
            await store.close()


async def _lanes_are_taken(store: Store) -> None:
    with anyio.fail_after(30):
        for kind in ("agents", "contexts"):
            for lane in range(store.lanes):
                while not await store.connection.call(lane, b"EXISTS", store.keys.lease(lane, kind)):  # noqa: ASYNC110
                    await anyio.sleep(0.05)


@pytest.mark.timeout(600)
async def test_workers_killed_at_random_lose_double_and_mix_up_nothing(tmp_path: Path) -> None:
    seconds = max(8.0, KILLS * 0.5)
    async with fleet(tmp_path) as running:

        async def killer() -> None:
            for _ in range(KILLS):
                await anyio.sleep(seconds / KILLS)
                await anyio.to_thread.run_sync(running.kill_one)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(killer)
            await running.talk(sessions=60, messages=max(6, KILLS // 4), seconds=seconds)
        await running.check()


async def test_a_worker_that_was_frozen_past_its_lease_writes_nothing_when_it_wakes_up(
    tmp_path: Path,
) -> None:
    async with fleet(tmp_path) as running:

        async def freeze() -> None:
            for place in range(3):
                _, process = running.workers[place]
                await anyio.sleep(1.0)
                process.send_signal(signal.SIGSTOP)
                await anyio.sleep(2.5 * LEASE)
                process.send_signal(signal.SIGCONT)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(freeze)
            await running.talk(sessions=40, messages=6, seconds=8)
        await running.check()


async def test_the_server_killed_and_started_again_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    async with fleet(tmp_path) as running:

        async def crash() -> None:
            for _ in range(2):
                await anyio.sleep(2)
                process = running.server.process
                assert process is not None
                process.kill()
                await anyio.to_thread.run_sync(process.wait)
                await anyio.to_thread.run_sync(running.server.start)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(crash)
            await running.talk(sessions=40, messages=6, seconds=7)
        await running.check()


async def test_P23_a_rolling_restart_of_every_worker_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async with fleet(tmp_path) as running:

        async def roll() -> None:
            for place in range(len(running.workers)):
                await anyio.sleep(0.5)
                await anyio.to_thread.run_sync(running.restart, place)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(roll)
            await running.talk(sessions=40, messages=6, seconds=8)
        await running.check()
