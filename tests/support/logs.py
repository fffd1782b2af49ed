"""The log lines and metrics of real processes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.commands import CRUMB, environment

PATIENCE = 60.0


class LoggedProcess:
    """A `crumb` command whose log is read while it runs."""

    def __init__(self, process: subprocess.Popen[bytes], ready: dict[str, Any], log: Path) -> None:
        self.process = process
        self.ready = ready
        self._log = log

    @property
    def text(self) -> str:
        return self._log.read_text("utf-8")

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return the JSON lines of the log, or those of one event."""
        # The last line can be incomplete while the process runs.
        found = [json.loads(line) for line in self.text.split("\n")[:-1] if line.startswith("{")]
        return [line for line in found if event in (None, line["event"])]

    def wait_for(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until an event was logged some times."""
        until(lambda: len(self.lines(event)) >= count, lambda: f"no {event!r} in:\n{self.text[-8000:]}")
        return self.lines(event)


@contextmanager
def logged(folder: Path, *command: str, **extra: str) -> Iterator[LoggedProcess]:
    """Run a `crumb` command that prints a ready line, with its log in a file."""
    log = folder / f"{command[0]}-{time.monotonic_ns()}.log"
    settings = {"CRUMB_LOG_FORMAT": "json", **extra}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [CRUMB, *command], cwd=folder, env=environment(**settings), stdout=subprocess.PIPE, stderr=output
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, log.read_text("utf-8")
        yield LoggedProcess(process, json.loads(line), log)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def until(check: Callable[[], bool], problem: Callable[[], str], patience: float = PATIENCE) -> None:
    """Wait until a check succeeds."""
    deadline = time.monotonic() + patience
    while not check():
        assert time.monotonic() < deadline, problem()
        time.sleep(0.1)


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(url: str) -> Samples:
    """Return the samples of a process by name and labels."""
    reply = httpx.get(f"{url}/metrics", timeout=30, trust_env=False)
    assert reply.status_code == 200, reply.text
    return parse_samples(reply.text)


def parse_samples(text: str) -> Samples:
    """Parse the Prometheus text format. Each sample must occur once."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return the sum of the samples with a name whose labels include the given ones."""
    wanted = set(labels.items())
    return sum(found for (other, has), found in samples.items() if other == name and wanted <= set(has))
