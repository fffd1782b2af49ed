"""Rolling upgrade: processes of commit 1bd9899 are replaced one by one by those of this version, under load.

Both versions can use data format 1, so they can share a store until it is raised (docs/data-format.md). The old code
runs with the dependencies of this version.
"""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.commands import environment
from tests.support.servers import Server, free_port

OLD = "1bd9899"
ROOT = Path(__file__).parents[2]
SESSIONS = 24
PATIENCE = 90.0
"""Seconds after which something has failed, and is not just slow."""
TEXT = re.compile(r"<(s\d+)/(\d+)>")


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder from which Python imports the old code."""
    git = ("git", "-C", str(ROOT))
    known = subprocess.run([*git, "cat-file", "-e", f"{OLD}^{{commit}}"], capture_output=True, check=False)
    if known.returncode:
        pytest.skip(f"commit {OLD} is not in this clone: git fetch --unshallow")
    packages = ("agents", "breadcrumbs", "config", "context_builder", "runtime", "typings", "web")
    packed = subprocess.run([*git, "archive", OLD, *packages], capture_output=True, check=True).stdout
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="tar")
    imported = subprocess.run(
        [sys.executable, "-c", "import breadcrumbs.runtime; print(breadcrumbs.runtime.__file__)"],
        cwd=folder.parent,
        env=environment(PYTHONPATH=str(folder / "typings")),
        capture_output=True,
        text=True,
        check=True,
    )
    assert imported.stdout.startswith(str(folder)), "the old processes would run the new code"
    return folder / "typings"


@dataclass
class Processes:
    """Starts processes of both versions on one store."""

    redis: str
    folder: Path
    old_code: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, command: str, *arguments: str, old: bool = False) -> subprocess.Popen[bytes]:
        """Start a process and wait until it is ready."""
        variables = {"CRUMB_REDIS": self.redis, "CRUMB_LEASE_SECONDS": "1.5", "CRUMB_LOG_LEVEL": "warning"}
        if old:
            variables["PYTHONPATH"] = str(self.old_code)
        output = self.folder / f"{command}-{len(self.running)}"
        with output.open("wb") as out, output.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "breadcrumbs", command, *arguments],
                cwd=self.folder,
                env=environment(**variables),
                stdout=out,
                stderr=log,
            )
        self.running.append(process)
        deadline = time.monotonic() + PATIENCE
        while not output.read_bytes().endswith(b"\n"):
            assert process.poll() is None, output.with_suffix(".log").read_text()
            assert time.monotonic() < deadline, f"{command} is not ready"
            time.sleep(0.05)
        return process

    def serve(self, *, old: bool = False) -> tuple[str, subprocess.Popen[bytes]]:
        port = free_port()
        return f"http://127.0.0.1:{port}", self.start("serve", "--port", str(port), old=old)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Stop a process as an operator does. It finishes its turns first."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.fixture
def processes(old_code: Path, tmp_path: Path) -> Iterator[Processes]:
    data = tmp_path / "redis"
    data.mkdir()
    with Server(appendonly_dir=data) as redis:
        found = Processes(redis.url, tmp_path, old_code)
        try:
            yield found
        finally:
            for process in found.running:
                if process.poll() is None:
                    process.kill()
                    process.wait()


class Load:
    """Posts messages in many sessions until it is stopped. `url` can change at any time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sent: dict[str, str] = {}
        """Text by the id of a message."""
        self._stopped = threading.Event()

    def _post(self) -> None:
        number = 0
        with httpx.Client(trust_env=False, timeout=10) as client:
            while not self._stopped.wait(0.1):
                session, text = f"s{number % SESSIONS}", f"<s{number % SESSIONS}/{number}>"
                number += 1
                while True:
                    try:
                        reply = client.post(
                            f"{self.url}/breadcrumbs",
                            json={
                                "schema_name": "user.message.v1",
                                "title": text,
                                "tags": ["user:message", f"session:{session}"],
                                "context": {"message": text},
                            },
                            headers={"idempotency-key": text},
                        )
                    except httpx.TransportError:  # the server was replaced: send it again, with the same key
                        time.sleep(0.05)
                        continue
                    assert reply.status_code in (200, 201, 503), reply.text
                    if reply.status_code != 503:
                        self.sent[reply.json()["id"]] = text
                        break

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._post)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()

    def wait_for(self, count: int) -> None:
        """Wait until some more messages were sent."""
        goal, deadline = len(self.sent) + count, time.monotonic() + PATIENCE
        while len(self.sent) < goal:
            assert time.monotonic() < deadline, "no messages are accepted"
            time.sleep(0.05)


@pytest.mark.timeout(400)
def test_processes_of_two_versions_share_a_store_while_they_are_replaced_one_by_one(
    processes: Processes,
) -> None:
    url, old_api = processes.serve(old=True)
    old_builder = processes.start("build-contexts", old=True)
    old_runners = [processes.start("run-agents", old=True) for _ in range(2)]
    load = Load(url)
    with load.running():
        load.wait_for(20)
        processes.start("run-agents")
        load.wait_for(10)  # the old context builder, runners of both versions
        processes.stop(old_runners[0])
        load.wait_for(10)
        processes.start("build-contexts")
        load.wait_for(10)  # builders and runners of both versions
        processes.stop(old_builder)
        load.wait_for(10)  # the new context builder, an old runner
        load.url, _ = processes.serve()
        load.wait_for(10)
        processes.stop(old_api)
        processes.start("run-agents")
        processes.stop(old_runners[1])
        load.wait_for(20)
    answers = _wait_for_answers(load)
    assert sorted(answer["context"]["trigger_id"] for answer in answers) == sorted(load.sent)
    for answer in answers:
        _check_session(answer, load.sent[answer["context"]["trigger_id"]])
    contexts = _list(load.url, "agent.context.v1")
    assert {session for context in contexts for session in _sessions_in(context)} == {
        f"s{number}" for number in range(SESSIONS)
    }
    assert all(len(_sessions_in(context)) == 1 for context in contexts)
    assert _list(load.url, "agent.error.v1") == []
    dead = httpx.get(f"{load.url}/dlq", trust_env=False)
    assert (dead.status_code, dead.json()) == (200, [])
    audit = subprocess.run(
        [sys.executable, "-m", "breadcrumbs", "audit", "isolation", "--redis", processes.redis],
        cwd=processes.folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert audit.returncode == 0, audit.stdout + audit.stderr


@pytest.mark.timeout(300)
def test_the_format_is_raised_when_all_processes_are_new(processes: Processes) -> None:
    url, old_api = processes.serve(old=True)
    old_builder = processes.start("build-contexts", old=True)
    load = Load(url)
    with load.running():
        load.wait_for(5)
        load.url, _ = processes.serve()
        load.wait_for(5)
    # Each version finds by tag what the other one wrote.
    for api in (url, load.url):
        assert _list_tagged(api, "user:message") == load.sent.keys()
    assert "workers of an earlier version run" in _raise_format(processes)
    processes.stop(old_builder)
    processes.stop(old_api)
    assert "raised to format 2" in _raise_format(processes)
    with pytest.raises(AssertionError, match="this store has format 2"):
        processes.serve(old=True)
    assert _list_tagged(load.url, "user:message") == load.sent.keys()
    new_url, _ = processes.serve()
    load = Load(new_url)
    with load.running():
        load.wait_for(5)
    assert load.sent.keys() < _list_tagged(new_url, "user:message")


def _raise_format(processes: Processes) -> str:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "breadcrumbs",
            "doctor",
            "--fix",
            "--only",
            "layout",
            "--redis",
            processes.redis,
        ],
        cwd=processes.folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def _list_tagged(url: str, tag: str) -> set[str]:
    reply = httpx.get(f"{url}/breadcrumbs", params={"tag": tag, "limit": 1_000}, trust_env=False, timeout=30)
    assert reply.status_code == 200, reply.text
    return {item["id"] for item in reply.json()}


def _wait_for_answers(load: Load) -> list[dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE
    while True:
        answers = _list(load.url, "agent.response.v1")
        missing = load.sent.keys() - {answer["context"]["trigger_id"] for answer in answers}
        if not missing:
            return answers
        assert time.monotonic() < deadline, f"no answer to {[load.sent[id] for id in missing]}"
        time.sleep(0.2)


def _list(url: str, schema: str) -> list[dict[str, Any]]:
    reply = httpx.get(
        f"{url}/breadcrumbs",
        params={"schema_name": schema, "include_context": "true", "limit": 1_000},
        trust_env=False,
        timeout=30,
    )
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()
    return found


def _check_session(answer: dict[str, Any], text: str) -> None:
    match = TEXT.fullmatch(text)
    assert match is not None
    assert f"session:{match[1]}" in answer["tags"]
    assert _sessions_in(answer) <= {match[1]}


def _sessions_in(crumb: dict[str, Any]) -> set[str]:
    """The sessions of all messages that a breadcrumb quotes."""
    return {match[1] for match in TEXT.finditer(json.dumps(crumb["context"]))}
