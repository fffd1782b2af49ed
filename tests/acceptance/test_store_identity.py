"""Processes on a Redis server that loses its data, gets it back, or contains another store."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from breadcrumbs.runtime.store.store import Store
from tests.support.commands import CRUMB, ask, environment, server
from tests.support.servers import Server

PATIENCE = 40.0
LOST = "store replaced, nothing is written any more"


@pytest.fixture
def redis() -> Iterator[Server]:
    """A server without persistence: a restart empties it."""
    with Server() as server:
        yield server


def get(url: str, path: str) -> httpx.Response:
    return httpx.get(url + path, trust_env=False, timeout=20)


def post(url: str, title: str = "x") -> httpx.Response:
    return httpx.post(f"{url}/breadcrumbs", json={"title": title}, trust_env=False, timeout=20)


def eventually(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.1)


def restart_empty(redis: Server) -> None:
    redis.kill()
    redis.start()


def assert_replaced(answer: httpx.Response, reason: str) -> None:
    assert answer.status_code == 503, answer.text
    problem = answer.json()
    assert problem["type"] == "/docs#problem-store-replaced"
    assert reason in problem["detail"] and "--new-store" in problem["detail"]
    assert "Restore a backup" in problem["detail"] and answer.headers["retry-after"]


@contextmanager
def worker(folder: Path, command: str, redis: Server) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker process, and yield it when it is at work."""
    with (folder / f"{command}.log").open("ab") as log:
        process = subprocess.Popen(
            [CRUMB, command, "--redis", redis.url],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), (folder / f"{command}.log").read_text("utf-8")
        yield process
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def run(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CRUMB, *arguments], cwd=folder, env=environment(**extra), capture_output=True, text=True, timeout=180
    )


# A running process


def test_a_server_that_restarted_empty_gets_no_writes(tmp_path: Path, redis: Server) -> None:
    with server(tmp_path, "--redis", redis.url, command="serve") as facts:
        url = facts["url"]
        assert post(url).status_code == 201 and get(url, "/ready").status_code == 200
        restart_empty(redis)
        # The first request after the restart already finds the link broken and opens another one.
        for _ in range(20):
            assert_replaced(post(url), "is gone")
        assert_replaced(get(url, "/ready"), "is gone")
        assert_replaced(get(url, "/operations"), "is gone")
        assert get(url, "/health").status_code == 200
        log = tmp_path / "log"
        eventually(lambda: LOST in log.read_text("utf-8"), "the loss is not logged")
        time.sleep(2.5)  # more checks, which must not log it again
        assert log.read_text("utf-8").count(LOST) == 1
        assert redis.command("DBSIZE") == 0


def test_workers_write_nothing_to_a_server_that_restarted_empty(tmp_path: Path, redis: Server) -> None:
    with (
        server(tmp_path, "--redis", redis.url, command="serve") as facts,
        worker(tmp_path, "build-contexts", redis),
        worker(tmp_path, "run-agents", redis) as runner,
    ):
        ask(facts["url"], "hello")
        restart_empty(redis)
        logs = [tmp_path / "build-contexts.log", tmp_path / "run-agents.log"]
        eventually(lambda: all(LOST in log.read_text("utf-8") for log in logs), "the loss is not logged")
        time.sleep(3)  # several heartbeats, renewals and published records
        assert redis.command("DBSIZE") == 0
        assert [log.read_text("utf-8").count(LOST) for log in logs] == [1, 1]
        assert runner.poll() is None


def test_an_emptied_server_is_noticed_without_a_broken_link(tmp_path: Path, redis: Server) -> None:
    with server(tmp_path, "--redis", redis.url, command="up") as facts:
        url = facts["url"]
        ask(url, "hello")
        redis.flush()
        assert_replaced(get(url, "/ready"), "is gone")
        assert_replaced(post(url), "is gone")
        redis.flush()  # removes what was written before the loss was noticed
        time.sleep(3)
        assert redis.command("DBSIZE") == 0


def test_an_emptied_server_is_noticed_by_itself_soon(tmp_path: Path, redis: Server) -> None:
    with server(tmp_path, "--redis", redis.url, command="serve") as facts:
        redis.flush()
        eventually(lambda: post(facts["url"]).status_code == 503, "the loss is not noticed")
        assert_replaced(post(facts["url"]), "is gone")
        eventually(
            lambda: "\nbreadcrumbs_store_up 0.0\n" in get(facts["url"], "/metrics").text,
            "the metric is not 0",
        )


@pytest.mark.anyio
async def test_another_store_on_the_same_address_gets_no_writes(tmp_path: Path, redis: Server) -> None:
    with server(tmp_path, "--redis", redis.url, command="serve") as facts:
        url = facts["url"]
        assert post(url).status_code == 201
        restart_empty(redis)
        other = await Store.open(redis.url)
        keys = redis.command("DBSIZE")
        assert_replaced(post(url), f"another store: {other.identity}")
        assert_replaced(get(url, "/ready"), "another store")
        assert redis.command("DBSIZE") == keys
        await other.close()


def test_processes_continue_when_the_data_is_back(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with Server(appendonly_dir=tmp_path / "redis") as redis:
        empty = Server()
        empty.port = redis.port
        with server(tmp_path, "--redis", redis.url, command="up") as facts:
            url = facts["url"]
            ask(url, "before")
            redis.kill()
            with empty:
                assert_replaced(post(url), "is gone")
                eventually(lambda: LOST in (tmp_path / "log").read_text("utf-8"), "the loss is not logged")
            redis.start()
            eventually(lambda: get(url, "/ready").status_code == 200, "it does not continue")
            ask(url, "after")
            eventually(
                lambda: "store is back" in (tmp_path / "log").read_text("utf-8"), "the end is not logged"
            )


def test_workers_register_again_in_an_older_copy_of_the_store(tmp_path: Path, redis: Server) -> None:
    with server(tmp_path, "--redis", redis.url, command="up") as facts:
        url = facts["url"]
        ask(url, "hello")
        models, kinds = get(url, "/models").json(), get(url, "/operations").json()["kinds"]
        assert models["models"] and kinds
        # A backup from the time before the first worker: all records of workers are missing, the identity is there.
        redis.command("DEL", *(f"bc:{{L00}}{kind}" for kind in "KMO"))
        for kind in kinds:
            redis.command("DEL", *(f"bc:{{L00}}{record}{kind}" for record in "Ww"))
        assert get(url, "/models").json()["models"] == []
        eventually(lambda: get(url, "/models").json() == models, "the models are not published again")

        def registered() -> bool:
            state = get(url, "/operations").json()
            return bool(state["kinds"] == kinds and {one["kind"] for one in state["workers"]} == set(kinds))

        eventually(registered, "the workers are not registered again")
        ask(url, "again")


# A process that starts


@pytest.mark.parametrize("command", ["up", "serve", "build-contexts", "run-agents"])
def test_a_process_does_not_start_on_a_store_that_was_emptied(
    tmp_path: Path, redis: Server, command: str
) -> None:
    data = ("--data", str(tmp_path / "data")) if command != "serve" else ()
    home = {"XDG_DATA_HOME": str(tmp_path / "home")}
    port = ("--port", "0") if command in ("up", "serve") else ()
    start = (command, *port, "--redis", redis.url, *data)
    _started(tmp_path, start, home)
    restart_empty(redis)
    refused = run(tmp_path, *start, **home)
    assert refused.returncode == 1, refused.stderr
    assert "is gone" in refused.stderr and "--new-store" in refused.stderr and redis.url in refused.stderr
    assert redis.command("DBSIZE") == 0
    _started(tmp_path, (*start, "--new-store"), home)
    if command == "serve":
        _started(tmp_path, start, home)  # the new store is known now


def _started(folder: Path, arguments: tuple[str, ...], home: dict[str, str]) -> None:
    """Run a process until its ready line, then stop it."""
    with (folder / "started.log").open("ab") as log:
        process = subprocess.Popen(
            [CRUMB, *arguments], cwd=folder, env=environment(**home), stdout=subprocess.PIPE, stderr=log
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line and json.loads(line)["event"] == "ready", (folder / "started.log").read_text("utf-8")
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_the_setting_names_the_store_on_a_machine_that_knows_none(tmp_path: Path, redis: Server) -> None:
    def home(name: str) -> dict[str, str]:
        return {"XDG_DATA_HOME": str(tmp_path / name)}

    with server(tmp_path, "--redis", redis.url, command="serve", **home("one")) as facts:
        store_id = get(facts["url"], "/operations").json()["store"]["id"]
    restart_empty(redis)
    arguments = ("serve", "--port", "0", "--redis", redis.url)
    refused = run(tmp_path, *arguments, CRUMB_STORE_ID=store_id, **home("three"))
    assert refused.returncode == 1 and "the setting store_id" in refused.stderr
    assert redis.command("DBSIZE") == 0
    with server(
        tmp_path, "--redis", redis.url, "--new-store", command="serve", CRUMB_STORE_ID=store_id, **home("f")
    ):
        assert "change the setting before the next start" in (tmp_path / "log").read_text("utf-8")
    # A machine that knows no store accepts the one that it finds.
    with server(tmp_path, "--redis", redis.url, command="serve", **home("five")):
        pass


def test_an_import_makes_the_new_store_known(tmp_path: Path, redis: Server) -> None:
    home = {"XDG_DATA_HOME": str(tmp_path / "home")}
    with server(tmp_path, "--redis", redis.url, command="serve", **home) as facts:
        assert post(facts["url"], "kept").status_code == 201
    assert run(tmp_path, "export", "all.jsonl", "--redis", redis.url, **home).returncode == 0
    restart_empty(redis)
    (known,) = (tmp_path / "home").rglob("stores/*.json")
    before = known.read_text("utf-8")
    assert run(tmp_path, "import", "all.jsonl", "--dry-run", "--redis", redis.url, **home).returncode == 0
    assert known.read_text("utf-8") == before, "a dry run accepts no other store"
    imported = run(tmp_path, "import", "all.jsonl", "--redis", redis.url, **home)
    assert imported.returncode == 0, imported.stderr
    with server(tmp_path, "--redis", redis.url, command="serve", **home) as facts:
        assert [one["title"] for one in get(facts["url"], "/breadcrumbs").json()] == ["kept"]


def test_the_embedded_server_keeps_its_identity(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        with server(tmp_path, "--data", str(tmp_path / "data")) as facts:
            ids.append(get(facts["url"], "/operations").json()["store"]["id"])
    assert ids[0] == ids[1]


# Doctor, the operations page and warnings


def doctor(folder: Path, redis: Server, *arguments: str, **extra: str) -> dict[str, Any]:
    result = run(folder, "doctor", "--redis", redis.url, "--json", *arguments, **extra)
    findings = json.loads(result.stdout)["findings"]
    return {finding["id"]: finding for finding in findings}


def test_doctor_explains_the_options(tmp_path: Path, redis: Server) -> None:
    home = {"XDG_DATA_HOME": str(tmp_path / "home")}
    with server(tmp_path, "--redis", redis.url, command="serve", **home) as facts:
        found = doctor(tmp_path, redis, "--url", facts["url"], **home)
        assert found["store-identity"]["status"] == "ok" and found["ready"]["status"] == "ok"
        restart_empty(redis)
        found = doctor(tmp_path, redis, "--url", facts["url"], **home)
        for check in ("store-identity", "ready"):
            assert found[check]["status"] == "error" and "is gone" in found[check]["message"]
            assert all(option in found[check]["advice"] for option in ("backup", "address", "--new-store"))
        assert "store" not in found
    assert redis.command("DBSIZE") == 0


def test_operations_and_the_log_show_the_verdict_of_doctor(tmp_path: Path) -> None:
    with Server(options={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}) as redis:
        with server(tmp_path, "--redis", redis.url, command="serve") as facts:
            by_doctor = doctor(tmp_path, redis, "--url", facts["url"], "--no-models")
            shown = get(facts["url"], "/operations/checks").json()
        server_checks = ("server-version", "replica", "persistence", "eviction", "memory")
        by_api = {finding["id"]: finding for finding in shown["findings"]}
        for id in server_checks:  # without the details: the used memory and the uptime change
            for name in ("status", "message", "advice"):
                assert by_api[id].get(name) == by_doctor[id].get(name)
        errors = {id for id, finding in by_doctor.items() if finding["status"] == "error"}
        assert errors == {"persistence", "eviction"} and shown["status"] == "error"
        log = (tmp_path / "log").read_text("utf-8")
        assert "the server saves nothing" in log and "appendonly yes" in log
        assert "maxmemory-policy is allkeys-lru" in log and "noeviction" in log


def test_a_start_on_a_replica_is_logged(tmp_path: Path, redis: Server) -> None:
    with server(tmp_path, "--redis", redis.url, command="serve"):
        pass
    with Server(options={"replicaof": f"{redis.host} {redis.port}"}) as replica:
        eventually(lambda: replica.command("DBSIZE") > 0, "the replica has no data")
        with server(tmp_path, "--redis", replica.url, command="serve") as facts:
            log = (tmp_path / "log").read_text("utf-8")
            assert "the server is a replica" in log and "address of the primary" in log
            shown = get(facts["url"], "/operations/checks").json()["findings"]
            assert "replica" in {one["id"] for one in shown if one["status"] == "error"}
