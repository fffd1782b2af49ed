"""Execution of tools that hang or raise."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import anyio
import orjson
import pytest

from breadcrumbs.agents.tools import tool
from breadcrumbs.agents.tools.base import MAX_THREADS
from breadcrumbs.runtime.errors import InvalidInput
from tests.support.tools import CONTEXT

# --- Tools that hang -----------------------------------------------------------------------------------


async def test_an_async_tool_that_hangs_is_stopped_at_its_time_limit() -> None:
    stopped = False

    @tool(timeout=0.05)
    async def hang() -> None:
        nonlocal stopped
        try:
            await anyio.sleep_forever()
        finally:
            stopped = True

    result = await hang.run("{}", CONTEXT)
    assert (result.ok, result.error) == (False, "hang: did not finish within 0.05 s")
    assert 45 < result.duration_ms < 5000
    assert stopped


async def test_an_async_tool_that_resists_cancellation_times_out() -> None:
    @tool(timeout=0.05)
    async def answers_anyway() -> str:
        try:
            await anyio.sleep_forever()
        except BaseException:
            return "late"
        return ""

    @tool(timeout=0.05)
    async def complains() -> str:
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            raise RuntimeError("I was busy") from error
        return ""

    for made in (answers_anyway, complains):
        assert (await made.run({}, CONTEXT)).error == f"{made.name}: did not finish within 0.05 s"


async def test_a_sync_tool_that_hangs_does_not_block_the_event_loop() -> None:
    release = threading.Event()

    @tool(timeout=0.1)
    def hang() -> None:
        release.wait(30)

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.005)
            ticks += 1

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            result = await hang.run({}, CONTEXT)
            tasks.cancel_scope.cancel()
        assert result.error == "hang: did not finish within 0.1 s"
        assert ticks >= 3
    finally:
        release.set()


async def test_a_sync_tool_that_hangs_uses_only_its_own_threads_and_recovers_them() -> None:
    release = threading.Event()
    before = threading.active_count()

    @tool(timeout=0.5)
    def hang(wait: bool) -> str:
        if wait:
            release.wait(30)
        return "done"

    @tool(timeout=20)
    def other() -> str:
        return "fine"

    async def call(results: list[str | None], arguments: dict[str, Any]) -> None:
        results.append((await hang.run(arguments, CONTEXT)).error)

    try:
        for _ in range(2):
            errors: list[str | None] = []
            async with anyio.create_task_group() as tasks:
                for _ in range(MAX_THREADS):
                    tasks.start_soon(call, errors, {"wait": True})
            assert errors == ["hang: did not finish within 0.5 s"] * MAX_THREADS
        assert threading.active_count() <= before + MAX_THREADS
        assert (await other.run({}, CONTEXT)).output == "fine"
        # No further call can run while all threads of the tool hang.
        assert not (await hang.run({"wait": False}, CONTEXT)).ok
    finally:
        release.set()
    assert (await hang.run({"wait": False}, CONTEXT)).output == "done"


async def test_more_concurrent_calls_than_threads_all_complete() -> None:
    @tool
    def quick(number: int) -> int:
        time.sleep(0.001)
        return number

    outputs: list[int] = []

    async def call(number: int) -> None:
        outputs.append((await quick.run({"number": number}, CONTEXT)).output)

    async with anyio.create_task_group() as tasks:
        for number in range(3 * MAX_THREADS):
            tasks.start_soon(call, number)
    assert sorted(outputs) == list(range(3 * MAX_THREADS))


def test_a_tool_that_hangs_does_not_prevent_the_process_from_exiting() -> None:
    program = """
        import asyncio, time
        from uuid import UUID
        from breadcrumbs.agents.tools import ToolContext, tool

        @tool(timeout=0.05)
        def hang() -> None:
            time.sleep(60)

        print(asyncio.run(hang.run({}, ToolContext(UUID(int=1), "s", "a", "t", None))).error)
    """
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ended.stdout == "hang: did not finish within 0.05 s\n"
    assert ended.stderr == ""


def test_a_tool_can_be_used_by_several_event_loops_in_succession() -> None:
    ping = tool(name="ping")(lambda: "pong")
    for _ in range(3):
        assert asyncio.run(ping.run({}, CONTEXT)).output == "pong"


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_cancellation_from_outside_is_propagated(kind: str, native: bool) -> None:
    release = threading.Event()
    started = anyio.Event()

    @tool
    def waits_in_a_thread() -> None:
        release.wait(30)

    @tool
    async def waits() -> None:
        await anyio.sleep_forever()

    made = waits if kind == "async" else waits_in_a_thread

    async def turn() -> None:
        started.set()
        await made.run({}, CONTEXT)
        raise AssertionError("went on")

    try:
        if native:
            task = asyncio.create_task(turn())
            await started.wait()
            await anyio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            with anyio.move_on_after(0.05) as scope:
                await turn()
            assert scope.cancelled_caught
    finally:
        release.set()


# --- Tools that raise ----------------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ValueError("too small"), "failed: ValueError: too small"),
        (KeyError("name"), "failed: KeyError: 'name'"),
        (RuntimeError(), "failed: RuntimeError"),
        (TimeoutError("of its own"), "failed: TimeoutError: of its own"),
        (StopIteration(3), "StopIteration"),
        (RuntimeError("one\ntwo\x00"), "failed: RuntimeError: one two"),
        (RuntimeError("x" * 1_000_000), "x…"),
        (RuntimeError("a://b:" * 200_000), "…"),
        (RuntimeError("a://" + ":" * 100_000), ":…"),
        (InvalidInput("give a city"), "failing: give a city"),
        (ExceptionGroup("many", [ExceptionGroup("some", [OSError("the one")])]), "failed: OSError: the one"),
        (SystemExit(3), "failed: SystemExit: 3"),
        (Unspeakable(), "failed: Unspeakable"),
        (RecursionError("deep"), "failed: RecursionError: deep"),
        (RuntimeError("lone \ud800"), "lone ?"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_exception_of_a_tool_is_returned_as_one_line(
    kind: str, failure: BaseException, message: str
) -> None:
    @tool(name="failing")
    def failing() -> None:
        raise failure

    @tool(name="failing")
    async def failing_async() -> None:
        raise failure

    result = await (failing if kind == "sync" else failing_async).run({}, CONTEXT)
    assert (result.ok, result.output) == (False, None)
    assert result.error is not None
    assert message in result.error
    assert "Traceback" not in result.error
    assert "\n" not in result.error
    assert len(result.error) < 700
    assert result.duration_ms < 2000
    orjson.dumps(result.error)


async def test_a_tool_that_awaits_a_cancelled_task_does_not_cancel_the_turn() -> None:
    @tool
    async def awaits_cancelled_task() -> None:
        task = asyncio.create_task(anyio.sleep(10))
        task.cancel()
        await task

    result = await awaits_cancelled_task.run({}, CONTEXT)
    assert result.error == "awaits_cancelled_task was cancelled by its own code"
    await anyio.sleep(0.001)


async def test_a_keyboard_interrupt_is_propagated() -> None:
    @tool
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await interrupted.run({}, CONTEXT)


async def test_errors_contain_no_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "or-v1-abcdef")
    monkeypatch.setenv("OTHER_SECRET", "or-v1-abcdef-and-more")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody")
    monkeypatch.setenv("SIGNING_KEY", "-----BEGIN\nabcdef\n")

    @tool
    def leak() -> None:
        raise RuntimeError(
            "401 for or-v1-abcdef, -----BEGIN\nabcdef\n, or-v1-abcdef-and-more of Somebody "
            "at redis://:hunter22@db:6379/0 and https://me:pw@host/x with Authorization: Bearer eyJhbGci.abc"
        )

    assert (await leak.run({}, CONTEXT)).error == (
        "leak failed: RuntimeError: 401 for [hidden], [hidden] , [hidden] of Somebody "
        "at redis://[hidden]@db:6379/0 and https://[hidden]@host/x with Authorization: Bearer [hidden]"
    )
