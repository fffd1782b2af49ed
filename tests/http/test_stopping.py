"""Stopping an answer whose runner has died, is suspended or commits at the same moment."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.turn import Turn
from tests.http.answering import Gate, answering, namespace_of, say
from tests.http.conftest import Site
from tests.support.conversations import Chat, eventually


class Runner:
    """Workers with a slow model in their own process."""

    def __init__(self, site: Site) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.http.thinking", site.url, namespace_of(site)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.heard: list[str] = []

    async def until(self, word: str) -> None:
        with anyio.fail_after(60):
            await anyio.to_thread.run_sync(self._read_until, word, abandon_on_cancel=True)

    def _read_until(self, word: str) -> None:
        assert self.process.stdout is not None
        while word not in self.heard:
            line = self.process.stdout.readline()
            assert line, self.heard
            self.heard.append(line.strip())


@asynccontextmanager
async def runner(site: Site) -> AsyncIterator[Runner]:
    started = Runner(site)
    try:
        await started.until("ready")
        yield started
    finally:
        started.process.kill()
        started.process.wait()
        assert started.process.stdout is not None
        started.process.stdout.close()


async def stop(site: Site) -> None:
    await site.post(schema_name="agent.cancel.v1", title="Stop", tags=["session:s"], context={})


async def outcomes(site: Site) -> list[str]:
    chat = Chat(site.store, owner=DEVELOPER)
    errors = [error.context["error"] for error in await chat.errors("s")]
    return [*await chat.texts("s"), *errors]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_turn_whose_runner_died_or_is_suspended_ends_within_a_second(
    site: Site, end: signal.Signals
) -> None:
    said: dict[str, Any] = {}
    ended = anyio.Event()
    async with runner(site) as dead:
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                said.update(await say(site, "s", "hello", wait="50"))
                ended.set()

            tasks.start_soon(ask)
            await dead.until("begins")
            dead.process.send_signal(end)
            with anyio.fail_after(1):
                await stop(site)
                await ended.wait()
        assert said["error"]["text"] == "cancelled" and "answer" not in said
        assert await outcomes(site) == ["cancelled"]
        if end == signal.SIGSTOP:
            dead.process.send_signal(signal.SIGCONT)
            await dead.until("stopped")
            await _is_settled(site)
        else:
            dead.process.wait()
            async with runner(site) as next_runner:
                await _is_settled(site)
                assert "begins" not in next_runner.heard
        assert await outcomes(site) == ["cancelled"]


async def _is_settled(site: Site) -> None:
    chat = Chat(site.store, owner=DEVELOPER)
    await eventually(lambda: _is_acknowledged(site.store), "the stopped turn is not acknowledged")
    assert await chat.dead_letters() == []


async def _is_acknowledged(store: Store) -> bool:
    """Return whether the runners have acknowledged all events of the session."""
    lane = store.keys.session_lane(DEVELOPER, "s")
    low, clock = await store.connection.call_all(
        [(lane, (b"GET", store.keys.low(lane, "agents"))), (lane, (b"GET", store.keys.clock(lane)))]
    )
    return int(low or 0) >= int(clock)


async def test_a_message_that_no_worker_has_seen_can_be_stopped(site: Site) -> None:
    await say(site, "s", "hello", wait=None)
    await stop(site)
    assert await outcomes(site) == ["cancelled"]
    async with answering(site):
        assert (await say(site, "s", "again"))["answer"]["text"] == "you said: again"
        assert sorted(await outcomes(site)) == ["cancelled", "you said: again"]


async def test_a_stop_after_the_answer_writes_nothing(site: Site) -> None:
    async with answering(site):
        await say(site, "s", "hello")
        await stop(site)
        assert await outcomes(site) == ["you said: hello"]


async def test_an_answer_that_is_committed_after_the_stop_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner ignores the cancellation and commits. The store refuses the answer, so there is one outcome."""
    gate = Gate()

    monkeypatch.setattr(Turn, "stop", lambda turn: None)
    async with answering(site, FunctionModel(gate)) as team:
        await say(site, "s", "hello", wait=None)
        await gate.begun.wait()
        await stop(site)
        assert await outcomes(site) == ["cancelled"]
        gate.open.set()
        await team.settled()
        assert await outcomes(site) == ["cancelled"]
        retried = await site.client.post("/sessions/s/retry", json={})
        assert retried.status_code == 202, retried.text
        await eventually(lambda: _has(site, ["you said: hello", "cancelled"]), "the retry was not answered")


async def _has(site: Site, expected: list[str]) -> bool:
    return await outcomes(site) == expected


async def test_stop_and_answer_at_the_same_moment_lead_to_one_outcome(site: Site) -> None:
    async with answering(site) as team:
        for number in range(25):
            said = await say(site, "s", f"m{number}", wait=None)
            await anyio.sleep(number * 0.0008)
            await stop(site)
            await team.settled()
            chat = Chat(site.store, owner=DEVELOPER)
            found = [
                crumb
                for crumb in (*await chat.answers("s"), *await chat.errors("s"))
                if crumb.context["trigger_id"] == said["message"]["id"]
            ]
            assert len(found) == 1, [crumb.context for crumb in found]


async def test_a_stopped_retry_gets_an_error_of_its_own(site: Site) -> None:
    await say(site, "s", "hello", wait=None)
    await stop(site)
    assert (await site.client.post("/sessions/s/retry", json={})).status_code == 202
    await stop(site)
    assert await outcomes(site) == ["cancelled", "cancelled"]
