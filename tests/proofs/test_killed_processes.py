"""Processes that are killed with SIGKILL during turns with tools: all answers still prove their requests.

The processes are those of a deployment: the API, a context builder and two agent runners, with a model server that
takes time for each answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import httpx
import orjson
import pytest

from breadcrumbs.proofs.requests import load_receipt, rebuild_request
from breadcrumbs.proofs.verification import Summary, verify_all
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.store.store import Store
from tests.support.model_server import ModelServer, Scenario
from tests.support.process import Process
from tests.support.servers import free_port

CRUMB = [sys.executable, "-m", "breadcrumbs"]
OWNER = UUID("5b3f6a52-7d0e-4f0a-9a43-0f5d8f2f6b11")
KEY = "a-key-for-the-test-of-kills"
SESSIONS = ("one", "two", "three")
ROUNDS = 4
PATIENCE = 120.0


class Workers:
    """A context builder and two agent runners, which are replaced after each kill."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self._environment = {**os.environ, **environment}
        self._log = log
        kinds = ("build-contexts", "run-agents", "run-agents")
        self._running = [(kind, self._start(kind)) for kind in kinds]

    def kill(self, *places: int) -> None:
        """Kill the workers at these places, and start others."""
        for place in places:
            self._running[place][1].kill()
        for place in places:
            kind, killed = self._running[place]
            killed.wait()
            self._running[place] = (kind, self._start(kind))

    def close(self) -> None:
        for _, process in self._running:
            process.kill()
        for _, process in self._running:
            process.wait()

    def _start(self, kind: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen([*CRUMB, kind], env=self._environment, stdout=log, stderr=log)


@contextmanager
def deployed(redis: str, model: Scenario, folder: Path) -> Iterator[tuple[httpx.Client, Workers]]:
    port = free_port()
    environment = {
        "CRUMB_REDIS": redis,
        "CRUMB_NAMESPACE": "killed",
        "CRUMB_MODEL": f"{model.url}#test",
        "CRUMB_LEASE_SECONDS": "1.5",
        "CRUMB_LOG_LEVEL": "error",
        "NO_PROXY": "127.0.0.1",
    }
    keys = orjson.dumps([{"key": KEY, "owner_id": str(OWNER)}]).decode()
    serve = [*CRUMB, "serve", "--port", str(port)]
    with (
        Process(folder, serve, port=port, ready="/ready", CRUMB_API_KEYS=keys, **environment) as api,
        httpx.Client(
            base_url=api.url, headers={"x-api-key": KEY}, trust_env=False, timeout=PATIENCE
        ) as client,
    ):
        workers = Workers(environment, folder / "workers.log")
        try:
            yield client, workers
        finally:
            workers.close()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def say(client: httpx.Client, session: str, text: str) -> None:
    reply = client.post(f"/sessions/{session}/messages", json={"message": text})
    assert reply.status_code in (201, 202), reply.text


def answers(client: httpx.Client) -> list[dict[str, Any]]:
    query: dict[str, str | int] = {
        "schema_name": "agent.response.v1",
        "include_context": "true",
        "limit": 500,
    }
    found: list[dict[str, Any]] = client.get("/breadcrumbs", params=query).json()
    return found


def steps_with_results(model: Scenario) -> int:
    """Return the number of requests that contained tool results."""
    return sum(
        any(message["role"] == "tool" for message in request.body["messages"]) for request in model.requests
    )


def calls_tools(model: Scenario, before: int) -> bool:
    return steps_with_results(model) > before


def has_answers(client: httpx.Client, count: int) -> bool:
    return len(answers(client)) == count


@pytest.fixture
def model() -> Iterator[Scenario]:
    with ModelServer() as server:
        yield server.scenario("tool_calls", pause=0.1)


@pytest.mark.timeout(600)
def test_answers_of_killed_and_replaced_workers_are_verified(
    embedded_server: EmbeddedServer, model: Scenario, tmp_path: Path
) -> None:
    with deployed(embedded_server.url, model, tmp_path) as (client, workers):
        for round in range(ROUNDS):
            before = steps_with_results(model)
            for session in SESSIONS:
                say(client, session, f"What is 12*7? Round {round}")
            # Now a tool has run, and the next model call of its turn is under way.
            wait_for(partial(calls_tools, model, before), "no tool was called")
            workers.kill(*((1, 2) if round % 2 == 0 else (0, 1)))
            wait_for(partial(has_answers, client, (round + 1) * len(SESSIONS)), "a message was not answered")
        receipts = [answer["context"]["model_receipt"] for answer in answers(client)]
    done = subprocess.run(
        [*CRUMB, "verify", "--all", "--json", "--redis", embedded_server.url, "--owner", str(OWNER)],
        env={**os.environ, "CRUMB_NAMESPACE": "killed"},
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert orjson.loads(done.stdout)["summary"]["equal"] == ROUNDS * len(SESSIONS)
    # A turn that was taken over used the stored step of the killed worker.
    assert any("replayed" in call for receipt in receipts for call in receipt["calls"])
    anyio.run(check_bodies, embedded_server.url, model)


async def check_bodies(url: str, model: Scenario) -> None:
    """Each rebuilt request is one that the model server received."""
    received = [request.body for request in model.requests]
    store = await Store.open(url, namespace="killed")
    try:
        async for result in verify_all(store, OWNER, None, Summary()):
            receipt = await load_receipt(store, OWNER, UUID(result.answer_id))
            bodies = (await rebuild_request(store, receipt)).bodies
            assert len(bodies) == 2 and all(orjson.loads(body) in received for body in bodies)
    finally:
        await store.close()
