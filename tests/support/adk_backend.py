"""ADK servers for tests: the real `adk api_server` as a process, and one that misbehaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.support.servers import free_port

APPS = Path(__file__).parent / "adk_app"
APP = "reciter"
START_LIMIT = 100.0


class AdkApiServer:
    """`adk api_server` with its sessions in memory. Killing it loses them."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "google.adk.cli", "api_server", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--session_service_uri", "memory://", "--no-reload"]
        command += ["--artifact_service_uri", "memory://"]
        environment = {
            **os.environ,
            "PYTHONPATH": "",
            "PYTHONWARNINGS": "ignore",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(APPS)], stdout=log, stderr=log, env=environment, cwd=self._log.parent
            )
        deadline = time.monotonic() + START_LIMIT
        while True:
            try:
                if httpx.get(f"{self.url}/list-apps", timeout=5, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            assert self._process.poll() is None, self._log.read_text("utf-8", "replace")
            assert time.monotonic() < deadline, self._log.read_text("utf-8", "replace")
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def sessions(self, user: str) -> list[dict[str, Any]]:
        """All that the server has of a user, with their events."""
        path = f"{self.url}/apps/{APP}/users/{user}/sessions"
        with httpx.Client(trust_env=False, timeout=30) as client:
            listed = client.get(path).raise_for_status().json()
            return [client.get(f"{path}/{session['id']}").raise_for_status().json() for session in listed]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


@dataclass
class Asked:
    """One request as the misbehaving server saw it."""

    method: str
    path: str
    body: Any


Behaviour = Callable[["Exchange"], None]


class Exchange(BaseHTTPRequestHandler):
    """One request, and the ways to answer it."""

    protocol_version = "HTTP/1.1"
    server: _Server
    body: Any

    def handle_any(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(size)
        self.body = json.loads(raw) if raw else None
        backend = self.server.backend
        backend.asked.append(Asked(self.command, self.path, self.body))
        try:
            backend.behave(self)
        except (BrokenPipeError, ConnectionResetError):
            backend.gone.set()
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = handle_any

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def reply(self, status: int, body: bytes, content_type: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def json(self, status: int, content: Any, **headers: str) -> None:
        self.reply(status, json.dumps(content).encode(), **headers)

    def stream(self) -> None:
        """Begin an event stream that ends with the connection."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, text: str, **fields: Any) -> None:
        self.chunk(b"data: " + json.dumps(said(text, **fields)).encode() + b"\n\n")

    def end(self) -> None:
        self.chunk(b"")

    def cut(self) -> None:
        """End the connection in the middle."""
        self.wfile.flush()
        self.close_connection = True
        self.connection.close()


def said(text: str, **fields: Any) -> dict[str, Any]:
    """An event as ADK's servers write it."""
    return {
        "content": {"parts": [{"text": text}], "role": "model"},
        "invocationId": "e-1",
        "author": "the_reciter",
        "actions": {"stateDelta": {}, "artifactDelta": {}},
        "id": "1",
        "timestamp": 1.0,
        **fields,
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    backend: FakeAdk


@dataclass
class FakeAdk:
    """A configurable ADK server. Routes that a test does not replace behave correctly."""

    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    """By the end of the path: list-apps, sessions, run_sse, run; and delete, patch."""
    asked: list[Asked] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    """Set when a client went away before the answer was complete."""
    url: str = ""
    made: int = 0

    def behave(self, exchange: Exchange) -> None:
        known = {"DELETE": "delete", "PATCH": "patch"}
        name = known.get(exchange.command, exchange.path.rpartition("/")[2])
        self.behaviours.get(name, getattr(self, "_" + name.replace("-", "_")))(exchange)

    def paths(self, ending: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.path.endswith(ending)]

    def _list_apps(self, exchange: Exchange) -> None:
        exchange.json(200, [APP, "another"])

    def _sessions(self, exchange: Exchange) -> None:
        self.made += 1
        body = exchange.body or {}
        state, events = body.get("state", {}), body.get("events", [])
        exchange.json(200, {"id": f"made-{self.made}", "appName": APP, "state": state, "events": events})

    def _run_sse(self, exchange: Exchange) -> None:
        exchange.stream()
        exchange.event(f"answer {len(self.paths('run_sse'))}")
        exchange.end()

    def _run(self, exchange: Exchange) -> None:
        exchange.json(200, [said("a whole answer")])

    def _delete(self, exchange: Exchange) -> None:
        exchange.json(200, None)

    def _patch(self, exchange: Exchange) -> None:
        exchange.json(200, {})


@contextmanager
def fake_adk(**behaviours: Behaviour) -> Iterator[FakeAdk]:
    backend = FakeAdk({name.replace("list_apps", "list-apps"): what for name, what in behaviours.items()})
    server = _Server(("127.0.0.1", 0), Exchange)
    server.backend = backend
    backend.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield backend
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
