"""Commands of `crumb` as child processes, and requests to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from urllib.parse import urlsplit

from bench._common import children_of, cpu_seconds_of

STOP_SECONDS = 20.0


@dataclass
class Running:
    """A running command and its child processes."""

    pid: int
    url: str = ""
    """Only of a command with an API."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def cpu(self) -> float:
        """Return the CPU time so far in seconds, with that of its child processes."""
        return sum(cpu_seconds_of(pid) for pid in (self.pid, *children_of(self.pid)))


@contextmanager
def crumb(command: str, *options: str, **settings: str) -> Iterator[Running]:
    """Run a command of `crumb` that serves until it is stopped. `settings` are `CRUMB_…` variables."""
    environment = {"CRUMB_LOG_LEVEL": "error", **os.environ}
    environment |= {f"CRUMB_{name.upper()}": value for name, value in settings.items()}
    with tempfile.TemporaryDirectory(prefix="crumb-bench-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "breadcrumbs", command, *options],
            stdout=subprocess.PIPE,
            cwd=folder,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only this process, which ends the child
        )
        try:
            assert process.stdout is not None
            running = Running(process.pid)
            if command in ("serve", "up"):
                running.url = str(json.loads(process.stdout.readline())["url"])
            yield running
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


class Requests:
    """Minimal blocking client with one connection."""

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=60)

    def get(self, path: str) -> float:
        """Return the seconds of a GET."""
        return self._request("GET", path)

    def post(self, path: str) -> float:
        """Return the seconds of a POST without a body."""
        return self._request("POST", path)

    def _request(self, method: str, path: str) -> float:
        began = time.perf_counter()
        self._connection.request(method, path)
        reply = self._connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{method} {path}: {reply.status} {text[:300]!r}")
        return time.perf_counter() - began

    def close(self) -> None:
        self._connection.close()
