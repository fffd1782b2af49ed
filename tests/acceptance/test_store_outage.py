"""A store that goes away and comes back is logged once and once, by each process, and shows in the metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from breadcrumbs.runtime.store.opening import DEFAULT_LANES
from tests.support.commands import ask
from tests.support.logs import LoggedProcess, logged, scrape, until, value
from tests.support.servers import Server

OUTAGE_SECONDS = 4.0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with Server(appendonly_dir=folder) as server:
        yield server


def start(stack: ExitStack, folder: Path, redis: Server, *command: str) -> LoggedProcess:
    settings = {"CRUMB_REDIS": redis.url, "CRUMB_LEASE_SECONDS": "2", "CRUMB_HYGIENE_INTERVAL": "1s"}
    return stack.enter_context(logged(folder, *command, **settings))


def test_each_process_logs_a_lost_store_once_and_its_return_once(redis: Server, tmp_path: Path) -> None:
    with ExitStack() as stack:
        api = start(stack, tmp_path, redis, "serve", "--port", "0")
        builder = start(stack, tmp_path, redis, "build-contexts")
        runner = start(stack, tmp_path, redis, "run-agents")
        url = api.ready["url"]
        ask(url, "before")

        redis.kill()
        began = time.monotonic()
        while time.monotonic() - began < OUTAGE_SECONDS:  # clients go on, and each of their requests fails
            assert httpx.get(f"{url}/ready", trust_env=False).status_code == 503
            time.sleep(0.1)
        during = scrape(url)
        redis.restart()
        outage = time.monotonic() - began
        assert "answer" in ask(url, "after")

        for process in (api, builder, runner):
            process.wait_for("store back")
        time.sleep(2)  # a second line would follow now
        for process in (api, builder, runner):
            (lost,), (back,) = process.lines("store lost"), process.lines("store back")
            assert lost["reason"] and lost["level"] == back["level"] == "warning"
            assert 0 < back["seconds"] < outage + 15 and back["failed_calls"] > 1
            assert back["seconds"] > OUTAGE_SECONDS - 2
            # Every other consequence of the outage together: the leases that expired.
            others = [line for line in process.lines() if line["level"] in ("warning", "error")]
            assert {line["event"] for line in others} <= {"store lost", "store back", "leases lost"}
            assert len(others) <= 5, others
            assert not process.lines("hygiene done")  # it ran during the outage and removed nothing

        assert value(during, "breadcrumbs_store_up") == 0
        assert value(during, "breadcrumbs_store_outages_total") == 1
        assert value(during, "breadcrumbs_store_call_errors_total", reason="unavailable") > 10
        assert not any(name == "breadcrumbs_worker_lag_events" for name, _ in during)
        after = scrape(url)
        assert value(after, "breadcrumbs_store_up") == 1


def test_the_takeover_of_lanes_names_the_worker_that_died(redis: Server, tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = start(stack, tmp_path, redis, "run-agents")
        second = start(stack, tmp_path, redis, "run-agents")
        (ready,) = first.lines("worker ready")
        assert ready["lanes"] == DEFAULT_LANES and ready["worker"] == first.ready["worker"]
        assert not first.lines("lanes taken over")  # a first start takes lanes from nobody
        until(
            lambda: _held_lanes(redis, first) == DEFAULT_LANES // 2, lambda: f"not balanced:\n{second.text}"
        )
        assert not second.lines("lanes taken over")  # the first worker released them

        first.process.kill()
        (died,) = second.wait_for("worker died")
        assert died["worker"] == first.ready["worker"] and died["freed_lanes"] == DEFAULT_LANES // 2
        until(
            lambda: sum(line["count"] for line in second.lines("lanes taken over")) >= DEFAULT_LANES // 2,
            lambda: second.text,
        )
        taken = second.lines("lanes taken over")
        assert {line["taken_from"] for line in taken} == {first.ready["worker"]}
        lanes = [lane for line in taken for lane in line["lanes"]]
        assert len(lanes) == len(set(lanes)) == DEFAULT_LANES // 2
        second.process.terminate()
        (drained,) = second.wait_for("worker drained")
        assert drained["kind"] == "agents" and drained["unreleased_lanes"] == 0


def _held_lanes(redis: Server, process: LoggedProcess) -> int:
    leases = [str(redis.command("GET", key)) for key in redis.command("KEYS", "bc:{L*}lagents")]
    return sum(lease.endswith(process.ready["worker"]) for lease in leases)
