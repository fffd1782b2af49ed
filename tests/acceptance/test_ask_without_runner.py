"""`crumb ask` while no agent runner is alive: it fails early, but waits for one that is being started."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.test_cli import CRUMB, Up, environment
from tests.support.servers import Server

LIMIT = 90.0


class Api:
    """A Redis server and an API, without workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.redis = Server()
        self.redis.start()
        self._up = Up("--redis", self.redis.url, command="serve", cwd=folder)
        self.url = self._up.url
        self._workers: list[subprocess.Popen[bytes]] = []

    def start(self, command: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self._workers.append(
                subprocess.Popen(
                    [CRUMB, command, "--redis", self.redis.url],
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    env=environment(),
                )
            )

    def ask(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [CRUMB, "ask", "say: yes", "--url", self.url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=environment(),
        )

    def stop(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait(LIMIT)
        self._up.__exit__()
        self.redis.stop()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    running = Api(tmp_path)
    try:
        yield running
    finally:
        running.stop()


def runners_alive(api: Api) -> bool:
    reply = httpx.get(f"{api.url}/agents/answering", trust_env=False)
    return bool(reply.json()["running"])


def test_without_a_runner_the_command_fails_early_and_says_how_to_start_one(api: Api) -> None:
    assert not runners_alive(api)
    began = time.monotonic()
    asking = api.ask()
    shown, errors = asking.communicate(timeout=LIMIT)
    assert (asking.returncode, shown) == (1, "")
    assert "no agent runner is alive" in errors and "crumb run-agents" in errors
    assert 9 < time.monotonic() - began < 60  # by default, it waits 300 seconds for an answer


def test_a_runner_that_starts_a_few_seconds_later_answers(api: Api) -> None:
    asking = api.ask()
    time.sleep(2)
    api.start("build-contexts")
    api.start("run-agents")
    shown, errors = asking.communicate(timeout=LIMIT)
    assert (asking.returncode, shown) == (0, "yes\n"), errors
    assert runners_alive(api)
