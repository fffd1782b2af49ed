"""JSON lines are written in batches, in their order, and none is lost at the end of a process."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from breadcrumbs.composition.log_lines import LINES, MAX_DELAY_SECONDS
from breadcrumbs.composition.logs import configure_logs
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.telemetry.tracing import carried


@pytest.fixture(autouse=True)
def configured(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    configure_logs(Settings(log_format="json", log_level="debug"))
    logging.getLogger().handlers.clear()  # pytest has its own
    yield
    LINES.flush()
    structlog.reset_defaults()


def events(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]


async def test_lines_of_the_event_loop_are_written_together_after_a_moment(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = structlog.get_logger("breadcrumbs.test")
    log.info("first")
    log.debug("second")
    assert events(capsys) == []
    await asyncio.sleep(3 * MAX_DELAY_SECONDS)
    assert events(capsys) == ["first", "second"]
    log.info("third")
    await asyncio.sleep(3 * MAX_DELAY_SECONDS)
    assert events(capsys) == ["third"]


@pytest.mark.parametrize("level", ["warning", "error", "critical"])
async def test_a_problem_is_written_at_once_after_the_lines_before_it(
    capsys: pytest.CaptureFixture[str], level: str
) -> None:
    log = structlog.get_logger("breadcrumbs.test")
    log.info("before")
    getattr(log, level)("problem")
    assert events(capsys) == ["before", "problem"]


async def test_a_traceback_is_that_of_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    log = structlog.get_logger("breadcrumbs.test")
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        log.info("it went wrong", exc_info=True)
    assert "RuntimeError: broken" in json.loads(capsys.readouterr().err)["exception"]


async def test_a_library_logs_after_the_lines_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure_logs(Settings(log_format="json"))
    structlog.get_logger("breadcrumbs.test").info("ours")
    logging.getLogger("somebody.else").warning("theirs")
    root.handlers[:], root.level = handlers, level
    assert events(capsys) == ["ours", "theirs"]


async def test_an_entry_keeps_its_time_and_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    before = time.time()
    token = carried.set("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    structlog.get_logger("breadcrumbs.test").info("inside")
    carried.reset(token)
    await asyncio.sleep(3 * MAX_DELAY_SECONDS)
    entry: dict[str, Any] = json.loads(capsys.readouterr().err)
    assert entry["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    logged = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(before))
    assert entry["timestamp"].startswith(logged) and entry["timestamp"].endswith("Z")


async def test_other_threads_do_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.get_logger("breadcrumbs.test").info("loop")
    thread = threading.Thread(target=lambda: structlog.get_logger("breadcrumbs.test").info("thread"))
    thread.start()
    thread.join()
    assert events(capsys) == ["loop", "thread"]


def test_a_second_event_loop_writes_its_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    async def log_and_end(event: str, seconds: float) -> None:
        structlog.get_logger("breadcrumbs.test").info(event)
        await asyncio.sleep(seconds)

    asyncio.run(log_and_end("first", 0))
    asyncio.run(log_and_end("second", 3 * MAX_DELAY_SECONDS))
    assert events(capsys) == ["first", "second"]


async def test_many_lines_do_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    log = structlog.get_logger("breadcrumbs.test")
    for number in range(1000):
        log.info(str(number))
    written = events(capsys)
    assert 500 < len(written) <= 1000 and written == [str(number) for number in range(len(written))]


async def test_a_value_that_cannot_be_shown_loses_no_other_line(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    log = structlog.get_logger("breadcrumbs.test")
    log.info("before")
    log.info("broken", value=Broken())
    log.warning("after", token="hunter2", url="redis://me:hunter2@db")
    shown = capsys.readouterr().err
    assert [json.loads(line)["event"] for line in shown.splitlines()] == ["before", "broken", "after"]
    assert "hunter2" not in shown


@pytest.mark.parametrize("end", ["", "raise RuntimeError('crashed')", "raise SystemExit(3)"])
def test_the_end_of_a_process_loses_no_line(end: str) -> None:
    program = f"""
import asyncio, structlog
from breadcrumbs.composition.logs import configure_logs
from breadcrumbs.runtime.settings.settings import Settings

configure_logs(Settings(log_format="json"))

async def main():
    for number in range(20):
        structlog.get_logger("breadcrumbs.test").info(f"line {{number}}")
    {end}

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    lines = [json.loads(line)["event"] for line in done.stderr.splitlines() if line.startswith("{")]
    assert lines == [f"line {number}" for number in range(20)]
