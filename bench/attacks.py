"""Measures the effect on other clients while the HTTP server is attacked without a token.

    python -m bench attacks [--quick] [--json] [--only half-sent,idle] [--python OTHER/.venv/bin/python]

Each attack has a new `crumb serve` process. A client with an API key posts breadcrumbs over one connection, and opens a
new connection for every tenth request. Its latencies and the memory of the server are measured while another process
attacks. `--python` runs the server of another installation, so that two versions can be compared.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Python puts the folder of a script on the path. There, bench/http.py would hide the standard library's `http`.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import resource
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from bench import _common
from bench._common import Report, Verdict, embedded, percentile, posted
from breadcrumbs.runtime.backend.embedded import EmbeddedServer, end_process

HOST: Final = "127.0.0.1"
KEY: Final = "a-key-of-the-benchmark"
MB: Final = 1_000_000
MANY: Final = 1_300  # more than the usual limit of 1,024 open files
PAUSE_SECONDS: Final = 0.01  # between two requests of the measured client
TIMEOUT_SECONDS: Final = 20.0
MAX_GROWTH_MB: Final = 50.0
MAX_P99_MS: Final = 100.0

Attack = Callable[[int, float], None]
"""Attacks a port until a time of the monotonic clock."""


# Attacks, each in a separate process


def _connection(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=1)


def _send_until(links: list[socket.socket], chunk: bytes, size: int, end: float) -> None:
    """Send `size` bytes over each connection in chunks, unless the server closes it earlier."""
    left = dict.fromkeys(links, size)
    while left and time.monotonic() < end:
        for link in list(left):
            try:
                left[link] -= link.send(chunk)
            except OSError:
                del left[link]
                continue
            if left[link] <= 0:
                del left[link]
    time.sleep(max(0.0, end - time.monotonic()))


def _hold(port: int, count: int, data: bytes, end: float) -> None:
    """Open many connections as fast as possible, then reopen closed ones, up to 200 per second."""
    links: list[socket.socket] = []
    wanted = count
    while time.monotonic() < end:
        for _ in range(min(wanted, count - len(links))):
            with contextlib.suppress(OSError):
                link = _connection(port)
                links.append(link)
                link.sendall(data)
                link.setblocking(False)
        wanted = 20
        time.sleep(0.1)
        links = [link for link in links if not _is_closed(link)]


def _is_closed(link: socket.socket) -> bool:
    try:
        closed = link.recv(65536) == b""
    except BlockingIOError:
        return False
    except OSError:
        closed = True
    if closed:
        link.close()
    return closed


_HEAD: Final = b"POST /breadcrumbs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_GET: Final = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def _long_header(connections: int, size: int) -> Attack:
    def attack(port: int, end: float) -> None:
        links = [_connection(port) for _ in range(connections)]
        for link in links:
            link.sendall(_HEAD + b"X-Long: ")
        _send_until(links, b"a" * 65_536, size, end)

    return attack


def _tiny_headers(port: int, end: float) -> None:
    links = [_connection(port) for _ in range(4)]
    for link in links:
        link.sendall(_HEAD)
    _send_until(links, b"a:\r\n" * 16_384, 25 * MB, end)


def _long_url(port: int, end: float) -> None:
    links = [_connection(port) for _ in range(4)]
    for link in links:
        link.sendall(b"GET /")
    _send_until(links, b"a" * 65_536, 25 * MB, end)


def _trailers(port: int, end: float) -> None:
    links = [_connection(port) for _ in range(4)]
    for link in links:
        link.sendall(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
    _send_until(links, b"a: b\r\n" * 10_000, 25 * MB, end)


def _pipelined(port: int, end: float) -> None:
    while time.monotonic() < end:
        links = [_connection(port) for _ in range(8)]
        _send_until(links, _GET * 1_000, 2 * MB, min(end, time.monotonic() + 1))
        for link in links:
            link.close()


def _unread(port: int, end: float) -> None:
    _hold(port, 100, b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200, end)


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    attack: Attack
    development_mode: bool = False
    """Without API keys, the server reads the bodies of clients without a token."""


SCENARIOS: Final = (
    Scenario("none", lambda port, end: time.sleep(max(0.0, end - time.monotonic()))),
    Scenario("header-100mb", _long_header(1, 100 * MB)),
    Scenario("headers-300mb", _long_header(6, 50 * MB)),
    Scenario("half-sent", lambda port, end: _hold(port, MANY, _HEAD, end)),
    Scenario("half-sent-60kb", lambda port, end: _hold(port, MANY, _HEAD + b"X: " + b"a" * 60_000, end)),
    Scenario("idle", lambda port, end: _hold(port, MANY, b"", end)),
    Scenario(
        "slow-bodies",
        lambda port, end: _hold(port, MANY, _HEAD + b"Content-Length: 900000\r\n\r\n" + b" " * 20_000, end),
        development_mode=True,
    ),
    Scenario("long-url", _long_url),
    Scenario("tiny-headers", _tiny_headers),
    Scenario("trailers", _trailers, development_mode=True),
    Scenario("pipelined", _pipelined),
    Scenario("unread", _unread),
)


def attack(name: str, port: int, seconds: float) -> None:
    """Run an attack with low priority, because a real attacker would run on another machine."""
    os.nice(10)
    _allow_many_files()
    [scenario] = [each for each in SCENARIOS if each.name == name]
    with contextlib.suppress(OSError):
        scenario.attack(port, time.monotonic() + seconds)


def _allow_many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# The server


@contextlib.contextmanager
def served(python: str, redis: EmbeddedServer, namespace: str, *, keys: bool) -> Iterator[tuple[int, int]]:
    """Run `crumb serve` with the usual soft limit of 1,024 open files. Yield its process id and port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    api_keys = [{"key": KEY, "owner_id": str(_common.OWNER)}] if keys else []
    environment = {
        **os.environ,
        "CRUMB_API_KEYS": json.dumps(api_keys),
        "CRUMB_NAMESPACE": namespace,
        "CRUMB_LOG_LEVEL": "error",
    }
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryDirectory(prefix="breadcrumbs-bench-") as folder:
        process = subprocess.Popen(
            [python, "-m", "breadcrumbs", "serve", "--redis", redis.url, "--port", str(port)],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard)),
        )
        try:
            _wait_until_ready(process, port)
            yield process.pid, port
        finally:
            end_process(process)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError("the server exited unexpectedly")
        with contextlib.suppress(OSError), _connection(port):
            return
        time.sleep(0.05)
    raise RuntimeError("the server did not start")


def peak_mb(pid: int) -> float:
    """Return the peak resident memory since the last reset, in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 / MB if found else 0.0


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


# The measured client


@dataclass
class Measured:
    """Results of the measured client."""

    taken: list[float] = field(default_factory=list)
    """Duration of each request in seconds, including failed ones."""
    failed: int = 0
    growth_mb: float = 0.0

    def numbers(self) -> dict[str, Any]:
        return {
            "requests": len(self.taken),
            "failed": self.failed,
            "p50_ms": percentile(self.taken, 0.5) * 1e3,
            "p99_ms": percentile(self.taken, 0.99) * 1e3,
            "max_ms": max(self.taken) * 1e3,
            "growth_mb": self.growth_mb,
        }


class Client:
    """Posts breadcrumbs one after the other."""

    def __init__(self, port: int, *, key: str | None) -> None:
        self._port = port
        body = orjson.dumps(posted("chat-1"))
        credential = f"X-API-Key: {key}\r\n".encode() if key else b""
        self._request = _HEAD + credential + b"Content-Length: %d\r\n\r\n" % len(body) + body
        self._kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, *, fresh: bool) -> bool:
        """Post over the open connection, or over a new one if `fresh`. Return whether the status is 201."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                if self._kept is None or fresh:
                    self.close()
                    self._kept = await asyncio.open_connection(HOST, self._port)
                reader, writer = self._kept
                writer.write(self._request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                return head.startswith(b"HTTP/1.1 201 ")
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            self.close()
            return False

    def close(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None


def _start_attack(name: str, port: int, seconds: float) -> subprocess.Popen[bytes]:
    argv = [sys.executable, __file__, "--attack", name, str(port), str(seconds)]
    return subprocess.Popen(argv, start_new_session=True)


async def measure(pid: int, port: int, scenario: Scenario, seconds: float) -> Measured:
    client, found = Client(port, key=None if scenario.development_mode else KEY), Measured()
    for number in range(200):
        await client.post(fresh=number % 10 == 0)
    reset_peak(pid)
    before = peak_mb(pid)
    attacker = _start_attack(scenario.name, port, seconds)
    try:
        deadline = time.monotonic() + seconds + 60
        for number in itertools.count():
            began = time.perf_counter()
            found.failed += not await client.post(fresh=number % 10 == 0)
            found.taken.append(time.perf_counter() - began)
            if attacker.poll() is not None or time.monotonic() > deadline:
                break
            await asyncio.sleep(PAUSE_SECONDS)
        found.growth_mb = peak_mb(pid) - before
    finally:
        end_process(attacker)
        client.close()
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench attacks", description="Measure other clients during attacks without a token."
    )
    parser.add_argument("--quick", action="store_true", help="three seconds per attack instead of eight")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument(
        "--only", metavar="NAMES", default="", help="run only these attacks, separated by commas"
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the server")
    options = parser.parse_args()
    report, began = Report("attacks", options), time.monotonic()
    seconds = 3.0 if options.quick else 8.0
    wanted = options.only.split(",") if options.only else [scenario.name for scenario in SCENARIOS]
    rows: dict[str, dict[str, Any]] = {}
    with embedded() as redis:
        for number, scenario in enumerate(SCENARIOS):
            if scenario.name not in wanted:
                continue
            keys = not scenario.development_mode
            with served(options.python, redis, f"attack{number}", keys=keys) as (pid, port):
                rows[scenario.name] = (await measure(pid, port, scenario, seconds)).numbers()
            report.say(f"  {scenario.name}: {rows[scenario.name]}")
    _show(report, rows)
    report.finish(began)


def _show(report: Report, rows: dict[str, dict[str, Any]]) -> None:
    report.section("attacks", "Other clients and the memory of the server during each attack", {"rows": rows})
    report.table(
        ["attack", "requests", "failed", "p50 ms", "p99 ms", "max ms", "growth MB"],
        [
            [name, f"{row['requests']}", f"{row['failed']}"]
            + [f"{row[column]:.1f}" for column in ("p50_ms", "p99_ms", "max_ms", "growth_mb")]
            for name, row in rows.items()
        ],
    )
    for name, row in rows.items():
        report.verdict(
            Verdict(f"{name}: p99 of other clients in ms", row["p99_ms"], MAX_P99_MS, form="{:.1f}")
        )
        report.verdict(Verdict(f"{name}: growth in MB", row["growth_mb"], MAX_GROWTH_MB, form="{:.1f}"))
        report.verdict(Verdict(f"{name}: failed requests of other clients", row["failed"], 0, form="{:.0f}"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attack"]:
        attack(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        _common.run(main)
