"""The topology of docker-compose.yml as plain processes: Redis, the API, a context builder, two agent runners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import yaml

from tests.support.servers import Server, free_port

ROOT = Path(__file__).parents[2]
KEY = "a-key-for-the-topology-test"
OWNER = "5b3f6a52-7d0e-4f0a-9a43-0f5d8f2f6b11"


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(
        [sys.executable, "-m", "breadcrumbs", *command],
        env={**os.environ, "CRUMB_LOG_LEVEL": "warning", **environment},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            assert running.wait(15) == 0, f"{command} did not drain"
        finally:
            running.kill()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    replicas = services["agent-runner"]["deploy"]["replicas"]
    port = free_port()
    with Server(appendonly_dir=tmp_path_factory.mktemp("redis")) as redis, ExitStack() as stack:
        common = {
            "CRUMB_REDIS": redis.url,
            "CRUMB_CONTEXT_CONFIG": str(ROOT / "config" / "context-builder-config.json"),
            "CRUMB_LEASE_SECONDS": "1.5",
        }
        keys = orjson.dumps([{"key": KEY, "owner_id": OWNER}]).decode()
        stack.enter_context(
            process(*services["api"]["command"], "--port", str(port), CRUMB_API_KEYS=keys, **common)
        )
        stack.enter_context(process(*services["context-builder"]["command"], **common))
        for _ in range(replicas):
            stack.enter_context(process(*services["agent-runner"]["command"], **common))
        headers = {"x-api-key": KEY, "host": "127.0.0.1"}
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False, timeout=10
        ) as client:
            _wait_until_ready(client)
            yield client


def _wait_until_ready(client: httpx.Client) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline, "the API does not become ready"
        time.sleep(0.1)


def _say(client: httpx.Client, session: str, text: str) -> str:
    answer = client.post(
        "/breadcrumbs",
        json={
            "schema_name": "user.message.v1",
            "title": text,
            "tags": ["user:message", "extension:chat", f"session:{session}"],
            "context": {"message": text},
        },
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _answer(client: httpx.Client, session: str, message: str) -> dict[str, Any]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = client.get(
            "/breadcrumbs",
            params={"session_id": session, "schema_name": "agent.response.v1", "include_context": "true"},
        ).json()
        for crumb in found:
            if crumb["context"]["trigger_id"] == message:
                return dict(crumb)
        time.sleep(0.05)
    raise AssertionError("no answer")


def test_a_message_is_answered_only_in_its_session(api: httpx.Client) -> None:
    for number in (1, 2):
        message = _say(api, f"session-{number}", f"Hello session {number}")
        _answer(api, f"session-{number}", message)
    answer = _answer(api, "session-1", _say(api, "session-1", "What did I say?"))
    assert "Hello session 1" in answer["context"]["message"]
    assert "session 2" not in answer["context"]["message"]
    assert "session:session-1" in answer["tags"]
    assert answer["context"]["session_id"] == "session-1"


def test_many_sessions_share_the_runners_and_each_message_has_one_answer(api: httpx.Client) -> None:
    sent = [(f"s{number % 10}", _say(api, f"s{number % 10}", f"message {number}")) for number in range(40)]
    for session, message in sent:
        _answer(api, session, message)
    for session in {session for session, _ in sent}:
        found = api.get("/breadcrumbs", params={"session_id": session, "schema_name": "agent.response.v1"})
        assert len(found.json()) == 4
