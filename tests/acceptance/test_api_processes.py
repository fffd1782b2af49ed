"""`crumb serve --workers N`: several API processes on one port, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.commands import CRUMB, environment
from tests.support.logs import LoggedProcess, logged, scrape, until, value
from tests.support.servers import Server, free_port

KEY = "a-key-for-several-processes"
OWNER = "5b3f6a52-7d0e-4f0a-9a43-0f5d8f2f6b11"
KEYS = json.dumps([{"key": KEY, "owner_id": OWNER}])
TEXT = {"schema_name": "note.v1", "tags": ["session:s"]}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(appendonly_dir=tmp_path_factory.mktemp("redis")) as server:
        yield server


@contextmanager
def serving(folder: Path, redis: Server, count: int = 2, **extra: str) -> Iterator[LoggedProcess]:
    settings = {"CRUMB_API_KEYS": KEYS, **extra}
    command = ("serve", "--redis", redis.url, "--port", "0", "--workers", str(count))
    with logged(folder, *command, **settings) as started:
        yield started


def client(api: LoggedProcess) -> httpx.Client:
    """Return a client with one connection, so that one process answers all its requests."""
    return httpx.Client(
        base_url=api.ready["url"],
        headers={"x-api-key": KEY},
        limits=httpx.Limits(max_connections=1),
        trust_env=False,
        timeout=30,
    )


def processes(any_client: httpx.Client) -> dict[str, Any]:
    reply = any_client.get("/operations")
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()["process"]
    return found


@contextmanager
def clients_of_each(api: LoggedProcess, count: int) -> Iterator[list[list[httpx.Client]]]:
    """Yield some clients of each process, by the number of the process."""
    found: list[list[httpx.Client]] = [[] for _ in api.ready["pids"]]
    deadline = time.monotonic() + 60
    with ExitStack() as stack:
        while any(len(clients) < count for clients in found):
            assert time.monotonic() < deadline, f"these processes answer: {[len(one) for one in found]}"
            one = client(api)
            clients = found[processes(one)["answered_by"]]
            if len(clients) < count:
                stack.callback(one.close)
                clients.append(one)
            else:
                one.close()
        yield found


@contextmanager
def one_client_each(api: LoggedProcess) -> Iterator[list[httpx.Client]]:
    """Yield a client of each process, by the number of the process."""
    with clients_of_each(api, 1) as found:
        yield [one for (one,) in found]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_all_processes_answer_on_one_port_and_one_scrape_is_their_sum(redis: Server, tmp_path: Path) -> None:
    with serving(tmp_path, redis, 3) as api, one_client_each(api) as clients:
        facts = [processes(one) for one in clients]
        assert [fact["answered_by"] for fact in facts] == [0, 1, 2]
        assert {one["pid"] for one in facts[0]["running"]} == set(api.ready["pids"])
        assert api.process.pid not in api.ready["pids"] and facts[0]["wanted"] == 3
        for times, one in enumerate(clients, 1):
            for _ in range(times):
                assert one.post("/breadcrumbs", json=TEXT).status_code == 201
            assert one.get("/ready").status_code == 200
        for _ in range(3):  # whichever process answers
            samples = scrape(api.ready["url"])
            created = {"method": "POST", "route": "/breadcrumbs", "status": "201"}
            assert value(samples, "breadcrumbs_http_requests_total", **created) == 6
            assert value(samples, "breadcrumbs_http_request_seconds_count", **created) == 6
            assert value(samples, "breadcrumbs_http_processes") == 3
            assert value(samples, "breadcrumbs_store_up") == 1
            assert value(samples, "breadcrumbs_build_info") == 1
            assert value(samples, "process_resident_memory_bytes") > 3 * (20 << 20)
        routes = {
            (route["method"], route["route"]): route["requests"]
            for route in clients[0].get("/operations").json()["http"]["routes"]
        }
        assert routes["POST", "/breadcrumbs"] == 6
        doctor = subprocess.run(
            [CRUMB, "doctor", "--url", api.ready["url"], "--only", "api", "--json"],
            env=environment(CRUMB_API_KEY=KEY),
            capture_output=True,
            text=True,
        )
        (finding,) = json.loads(doctor.stdout)["findings"]
        assert finding["status"] == "ok" and "3 of 3 processes" in finding["message"]
        requests = {one["number"]: one["requests"] for one in processes(clients[0])["running"]}
        assert all(requests[number] >= number + 2 for number in range(3))


def test_each_log_line_carries_the_number_of_its_process(redis: Server, tmp_path: Path) -> None:
    with (
        serving(tmp_path, redis, CRUMB_LOG_LEVEL="debug") as api,
        one_client_each(api) as clients,
    ):
        for one in clients:
            one.get("/health")
        until(
            lambda: {line["process"] for line in api.lines("request") if line["path"] == "/health"} == {0, 1},
            lambda: api.text,
        )


def test_a_killed_process_loses_no_acknowledged_message_and_is_replaced(
    redis: Server, tmp_path: Path
) -> None:
    acknowledged: list[str] = []
    stopping = threading.Event()

    def healths(api: LoggedProcess) -> float:
        return value(scrape(api.ready["url"]), "breadcrumbs_http_requests_total", route="/health")

    def write(api: LoggedProcess) -> None:
        """Post until told to stop, each message on a new connection. A lost connection is not an acknowledgement."""
        while not stopping.is_set():
            with client(api) as one:
                for _ in range(5):
                    try:
                        reply = one.post("/breadcrumbs", json=TEXT)
                    except httpx.TransportError:
                        break
                    assert reply.status_code == 201, reply.text
                    acknowledged.append(reply.json()["id"])

    with serving(tmp_path, redis) as api:
        threads = [threading.Thread(target=write, args=(api,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            victim = api.ready["pids"][0]
            until(lambda: len(acknowledged) > 50, lambda: "no writes")
            with one_client_each(api) as clients:
                assert [one.get("/health").status_code for one in clients] == [200, 200]
            assert healths(api) == 2
            os.kill(victim, signal.SIGKILL)
            during = len(acknowledged)
            until(lambda: len(acknowledged) > during + 50, lambda: "the port does not answer")
            assert healths(api) == 2  # also the one of the killed process
            (ended,) = api.wait_for("API process ended, restarting it")
            assert (ended["process"], ended["pid"], ended["code"]) == (0, victim, -9)
            api.wait_for("API process is ready")
        finally:
            stopping.set()
            for thread in threads:
                thread.join(60)
        with one_client_each(api) as clients:
            running = processes(clients[0])["running"]
            assert [one["restarts"] for one in running] == [1, 0]
            assert victim not in {one["pid"] for one in running}
            for number, id in enumerate(acknowledged):
                assert clients[number % 2].get(f"/breadcrumbs/{id}").status_code == 200


def test_sigterm_finishes_open_requests_and_ends_every_process(redis: Server, tmp_path: Path) -> None:
    with serving(tmp_path, redis, 3) as api, one_client_each(api) as clients:
        one = clients[1]
        with one.stream("GET", "/events/stream") as stream:
            lines = stream.iter_lines()
            next(lines)
            api.process.send_signal(signal.SIGTERM)
            list(lines)  # the stream ends, it does not break
        assert api.process.wait(20) == 0
        assert not any(is_running(pid) for pid in api.ready["pids"])
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{api.ready['url']}/health", trust_env=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_killed_parent_leaves_no_processes(redis: Server, tmp_path: Path) -> None:
    with serving(tmp_path, redis) as api:
        api.process.kill()
        api.process.wait()
        until(lambda: not any(is_running(pid) for pid in api.ready["pids"]), lambda: "orphans", 30)


def test_processes_that_cannot_start_end_the_parent_with_the_reason(tmp_path: Path) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    ended = subprocess.run(
        [CRUMB, "serve", "--redis", nowhere, "--port", "0", "--workers", "2"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "cannot be used" in ended.stderr and "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_a_rate_limit_holds_across_the_processes(redis: Server, tmp_path: Path) -> None:
    limits = json.dumps({"posting": {"per_token": "20/1h", "per_key": "off", "per_owner": "off"}})
    other_owner = json.dumps([{"key": KEY, "owner_id": "0d1e64d4-6b3f-4a51-8a5a-6ff1e6a3c001"}])
    with (
        serving(tmp_path, redis, CRUMB_RATE_LIMITS=limits, CRUMB_API_KEYS=other_owner) as api,
        one_client_each(api) as clients,
    ):
        codes = [clients[number % 2].post("/breadcrumbs", json=TEXT).status_code for number in range(40)]
        assert codes == [201] * 20 + [429] * 20


def test_the_limits_on_streams_and_connections_hold_across_the_processes(
    redis: Server, tmp_path: Path
) -> None:
    limits = json.dumps({"max_connections": 40, "max_connections_per_address": 6, "reserved_connections": 8})
    with (
        serving(tmp_path, redis, CRUMB_MAX_STREAMS_PER_TOKEN="3", CRUMB_CONNECTION_LIMITS=limits) as api,
        clients_of_each(api, 3) as ((one, two, three), (other, fourth, _)),
        ExitStack() as stack,
    ):

        def is_accepted() -> bool:
            with client(api) as new:
                try:
                    return new.get("/health").status_code == 200
                except httpx.TransportError:
                    return False

        streams = [stack.enter_context(each.stream("GET", "/events/stream")) for each in (one, other, two)]
        assert [stream.status_code for stream in streams] == [200] * 3
        for each in (fourth, three):
            with each.stream("GET", "/events/stream") as refused:
                assert refused.status_code == 429
                refused.read()
        assert not any(is_accepted() for _ in range(8))
        # A killed process frees its connections and streams.
        os.kill(api.ready["pids"][0], signal.SIGKILL)
        api.wait_for("API process is ready")
        assert all(is_accepted() for _ in range(8))
        with fourth.stream("GET", "/events/stream") as stream:
            assert stream.status_code == 200


def test_a_stream_in_one_process_gets_what_another_process_writes(redis: Server, tmp_path: Path) -> None:
    with (
        serving(tmp_path, redis) as api,
        logged(tmp_path, "build-contexts", "--redis", redis.url),
        logged(tmp_path, "run-agents", "--redis", redis.url),
        one_client_each(api) as (first, second),
        first.stream("GET", "/events/stream?session_id=across") as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        posted = second.post("/sessions/across/messages?wait=30", json={"message": "Hello"})
        assert posted.status_code in (200, 201), posted.text
        answer = posted.json()["answer"]["id"]
        for line in lines:
            if answer in line:
                break
        else:
            raise AssertionError("the stream ended without the answer")


def test_one_process_has_no_parent(redis: Server, tmp_path: Path) -> None:
    with serving(tmp_path, redis, 1) as api, client(api) as one:
        assert "pids" not in api.ready
        assert set(processes(one)) == {"name", "version", "started_at", "uptime_seconds"}
        assert processes(one)["name"].endswith(f"-{api.process.pid}")
        assert value(scrape(api.ready["url"]), "breadcrumbs_http_processes") == 1
