"""Worker processes: names, lost workers, draining under load, and their HTTP port."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from breadcrumbs.runtime.store.opening import DEFAULT_LANES
from tests.acceptance.test_cli import on_a_terminal
from tests.support.commands import CRUMB, ask, environment, server
from tests.support.servers import Server, free_port

PATIENCE = 90.0


@dataclass
class Installation:
    """A Redis server, the API, and workers that a test starts."""

    redis: Server
    url: str
    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str, **extra: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        """Start a worker and return it with the facts of its ready line."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [CRUMB, *arguments, "--redis", self.redis.url],
                cwd=self.folder,
                env=environment(**extra),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (self.folder / "log").read_text("utf-8")
        return process, json.loads(line)

    def crumb(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CRUMB, *arguments],
            cwd=self.folder,
            env=environment(CRUMB_URL=self.url),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def workers(self, name: str) -> list[dict[str, Any]]:
        reply = httpx.get(f"{self.url}/operations/workers", trust_env=False, timeout=20).json()
        return [worker for worker in reply["workers"] if worker["name"] == name]

    def stop(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()


def until(check: Callable[[], bool], message: str) -> float:
    began = time.monotonic()
    while not check():
        assert time.monotonic() < began + PATIENCE, message
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with ExitStack() as stack:
        redis = stack.enter_context(Server())
        api = stack.enter_context(server(tmp_path, "--redis", redis.url, command="serve"))
        made = Installation(redis, api["url"], tmp_path)
        stack.callback(made.stop)
        yield made


def test_a_killed_worker_is_listed_as_lost_and_its_name_can_be_used_again(installation: Installation) -> None:
    killed, _ = installation.start("run-agents", "--name", "runner-1", CRUMB_LEASE_SECONDS="30")
    installation.start("build-contexts", "--name", "builder")
    until(lambda: bool(installation.workers("runner-1")), "not listed")
    killed.kill()
    killed.wait()
    died = datetime.now(UTC)
    # A heartbeat expires after 30 s. A disconnected worker is lost after a third of that.
    until(lambda: installation.workers("runner-1")[0]["state"] == "lost", "not noticed")
    (lost,) = installation.workers("runner-1")
    assert datetime.now(UTC) < datetime.fromisoformat(lost["alive_until"]), "noticed only by its heartbeat"
    assert abs((datetime.fromisoformat(lost["ended_at"]) - died).total_seconds()) < 30
    assert "lost" in on_a_terminal(
        "workers", "list", cwd=installation.folder, columns=80, CRUMB_URL=installation.url
    )
    installation.start("run-agents", "--name", "runner-1")
    ask(installation.url, "Hello")
    states = {worker["id"]: worker["state"] for worker in installation.workers("runner-1")}
    assert sorted(states.values()) == ["lost", "running"] and states[lost["id"]] == "lost"


def test_a_name_that_is_in_use_is_refused(installation: Installation) -> None:
    installation.start("run-agents", "--name", "twin")
    refused = installation.crumb("run-agents", "--name", "twin", "--redis", installation.redis.url)
    assert refused.returncode == 1
    assert "with the name twin is running: choose another name with --name" in refused.stderr
    # A builder is of another kind.
    installation.start("build-contexts", "--name", "twin")
    assert {worker["kind"] for worker in installation.workers("twin")} == {"agents", "contexts"}
    bad = installation.crumb("run-agents", "--name", "no/slash", "--redis", installation.redis.url)
    assert bad.returncode == 1 and "worker_name" in bad.stderr


def test_a_restarted_runner_takes_its_lanes_soon_after_its_start(installation: Installation) -> None:
    """The leases and the heartbeat of the killed one last for minutes."""
    killed, _ = installation.start("run-agents", "--name", "one", CRUMB_LEASE_SECONDS="300")
    # A worker that dies before others have seen its connection keeps its lanes until its leases end.
    until(lambda: _held(installation, "one") == DEFAULT_LANES, "the lanes were not taken at first")
    time.sleep(1)
    killed.kill()
    killed.wait()
    installation.start("run-agents", "--name", "one", CRUMB_LEASE_SECONDS="300")
    took = until(lambda: _held(installation, "one") == DEFAULT_LANES, "the lanes were not taken")
    assert took < 30


def _held(installation: Installation, name: str) -> int:
    document = httpx.get(f"{installation.url}/operations", trust_env=False, timeout=20).json()
    found = [worker for worker in document["workers"] if worker["name"] == name and worker["alive"]]
    return len(found[0]["lanes"]) if found else 0


def test_draining_under_load_loses_and_duplicates_nothing(installation: Installation) -> None:
    installation.start("build-contexts")
    leaving, _ = installation.start("run-agents", "--name", "leaving")
    installation.start("run-agents", "--name", "staying")
    sent: dict[str, int] = {}
    stop = threading.Event()

    def load() -> None:
        with httpx.Client(base_url=installation.url, trust_env=False, timeout=30) as client:
            number = 0
            while not stop.is_set():
                session = f"s{number % 12}"
                reply = client.post(f"/sessions/{session}/messages", json={"message": f"m{number}"})
                assert reply.status_code in (200, 201, 202), reply.text
                sent[session] = sent.get(session, 0) + 1
                number += 1
                stop.wait(0.02)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        until(lambda: sum(sent.values()) > 40, "no load")
        drained = installation.crumb("workers", "drain", "leaving", "--wait")
        assert drained.returncode == 0, drained.stderr
        assert json.loads(drained.stdout)["workers"][0]["state"] == "stopped"
        assert leaving.wait(30) == 0
        before = sum(sent.values())
        until(lambda: sum(sent.values()) > before + 20, "the load has ended")
    finally:
        stop.set()
        thread.join()

    def answers(session: str) -> list[dict[str, Any]]:
        reply = httpx.get(
            f"{installation.url}/breadcrumbs",
            params={
                "session_id": session,
                "schema_name": "agent.response.v1",
                "include_context": "true",
                "limit": 500,
            },
            trust_env=False,
            timeout=30,
        )
        found: list[dict[str, Any]] = reply.json()
        return found

    for session, count in sent.items():
        until(lambda: len(answers(session)) >= count, f"{session} lost an answer")  # noqa: B023
        triggers = [answer["context"]["trigger_id"] for answer in answers(session)]
        assert len(triggers) == len(set(triggers)) == count, f"{session} has a duplicate"
    (staying,) = installation.workers("staying")
    assert staying["lane_count"] == DEFAULT_LANES


def test_drain_of_unknown_ended_and_last_workers(installation: Installation) -> None:
    process, _ = installation.start("run-agents", "--name", "only")
    unknown = installation.crumb("workers", "drain", "nobody")
    assert unknown.returncode == 1 and "Running: only" in unknown.stderr
    # Without the API, as an operator of several tenants does it.
    drained = installation.crumb("workers", "drain", "only", "--wait", "--redis", installation.redis.url)
    assert drained.returncode == 0, drained.stderr
    assert "only is the last running worker of kind agents" in drained.stderr
    assert [worker["state"] for worker in json.loads(drained.stdout)["workers"]] == ["stopped"]
    assert process.wait(30) == 0
    again = installation.crumb("workers", "drain", "only")
    assert again.returncode == 0 and "nothing to drain" in again.stderr


def test_a_list_of_a_server_without_a_store_creates_none(installation: Installation) -> None:
    empty = f"{installation.redis.url.removesuffix('/0')}/5"
    listed = installation.crumb("workers", "list", "--redis", empty)
    assert (listed.returncode, listed.stdout) == (1, "") and "has no store" in listed.stderr
    again = installation.crumb("workers", "list", "--redis", empty)
    assert "has no store" in again.stderr


def test_the_table_of_workers_fits_a_narrow_terminal(installation: Installation) -> None:
    name = "a-pod-of-a-deployment-with-a-long-name-7d9f8b6c5-x2x4z"
    installation.start("run-agents", "--name", name)
    installation.start("build-contexts")
    shown = on_a_terminal(
        "workers", "list", cwd=installation.folder, columns=80, CRUMB_URL=installation.url, NO_COLOR="1"
    )
    lines = re.sub(r"\x1b\[[\d;]*m|\r", "", shown).strip().splitlines()
    assert len(lines) == 3 and max(len(line) for line in lines) <= 80
    assert lines[0].split() == ["name", "kind", "state", "lanes", "turns", "up", "version"]
    wide = on_a_terminal(
        "workers", "list", "--wide", cwd=installation.folder, columns=300, CRUMB_URL=installation.url
    )
    assert name in wide and "default-chat-assistant" in wide and "offline" in wide


def test_the_port_of_a_worker_serves_metrics_health_and_readiness(installation: Installation) -> None:
    process, facts = installation.start(
        "run-agents", "--name", "measured", "--metrics-port", "0", CRUMB_DRAIN_TIMEOUT="60s"
    )
    installation.start("build-contexts")
    ask(installation.url, "Hello")
    with httpx.Client(
        base_url=f"http://127.0.0.1:{facts['metrics_port']}", trust_env=False, timeout=10
    ) as port:
        assert port.get("/health").json()["status"] == "ok"
        assert port.get("/ready").status_code == 200
        metrics = port.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain")
        assert f'breadcrumbs_leases_held{{kind="agents"}} {DEFAULT_LANES:.1f}' in metrics.text
        assert "breadcrumbs_turns_answered_total{" in metrics.text
        assert port.head("/health").status_code == 200
        assert port.post("/health").status_code == 405
        assert port.get("/breadcrumbs").status_code == 404
        # The store is away: the process is alive, but not ready.
        assert installation.redis.process is not None
        installation.redis.process.send_signal(signal.SIGSTOP)
        try:
            reply = port.get("/ready")
            assert reply.status_code == 503 and "store" in reply.json()["reason"]
            assert port.get("/health").status_code == 200
        finally:
            installation.redis.process.send_signal(signal.SIGCONT)
        until(lambda: port.get("/ready").status_code == 200, "not ready again")
        installation.redis.kill()
        reply = port.get("/ready")
        assert reply.status_code == 503 and str(installation.redis.port) not in reply.json()["reason"]
        installation.redis.start()
    process.terminate()
    assert process.wait(30) == 0


def test_a_draining_worker_is_alive_but_not_ready(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "slow_agents.py").write_text(
        "import anyio\n"
        "from breadcrumbs import agent\n\n\n"
        "@agent('slow', triggers=[{'schema_name': 'user.message.v1', 'any_tags': ['user:message']}])\n"
        "async def slow(call):\n"
        "    await anyio.sleep(8)\n"
        "    return 'done'\n"
    )
    installation.start("build-contexts")
    process, facts = installation.start(
        "run-agents",
        "--load",
        "slow_agents",
        "--name",
        "slow",
        "--metrics-port",
        "0",
        CRUMB_LEASE_SECONDS="2",
    )
    post = httpx.post(
        f"{installation.url}/sessions/x/messages", json={"message": "Hello"}, trust_env=False, timeout=20
    )
    assert post.status_code < 300
    until(lambda: installation.workers("slow")[0]["turns"] == 1, "not begun")
    assert installation.crumb("workers", "drain", "slow").returncode == 0
    port = f"http://127.0.0.1:{facts['metrics_port']}"

    def ready() -> httpx.Response:
        return httpx.get(f"{port}/ready", trust_env=False, timeout=10)

    until(lambda: ready().status_code == 503, "still ready")
    assert "is draining" in ready().json()["reason"]
    assert httpx.get(f"{port}/health", trust_env=False, timeout=10).status_code == 200
    assert installation.workers("slow")[0]["state"] == "draining"
    assert process.wait(60) == 0
    (found,) = httpx.get(
        f"{installation.url}/breadcrumbs",
        params={"session_id": "x", "schema_name": "agent.response.v1", "include_context": "true"},
        trust_env=False,
    ).json()
    assert found["context"]["message"] == "done", "the turn was longer than a lease and was finished"


def test_a_metrics_port_in_use_is_refused_with_advice(installation: Installation) -> None:
    port = free_port()
    installation.start("run-agents", "--metrics-port", str(port))
    refused = installation.crumb("run-agents", "--metrics-port", str(port), "--redis", installation.redis.url)
    assert refused.returncode == 1
    assert "--metrics-port 0 takes any free one" in refused.stderr


def test_draining_crumb_up_ends_its_workers_and_keeps_its_api(tmp_path: Path) -> None:
    with server(tmp_path, "--data", str(tmp_path / "data"), "--name", "box") as facts:
        url = facts["url"]
        ask(url, "Hello")
        drained = subprocess.run(
            [CRUMB, "workers", "drain", "box", "--wait", "--url", url],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert drained.returncode == 0, drained.stderr
        states = {worker["kind"]: worker["state"] for worker in json.loads(drained.stdout)["workers"]}
        assert states == {"agents": "stopped", "contexts": "stopped"}
        assert drained.stderr.count("the last running worker") == 2
        assert httpx.get(f"{url}/workers", trust_env=False).json() == {"contexts": False, "agents": False}
        assert httpx.get(f"{url}/ready", trust_env=False).status_code == 200
