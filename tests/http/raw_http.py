"""HTTP over plain sockets, for requests that no client library sends."""

from __future__ import annotations

import json
import re
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from tests.support.process import Process
from tests.support.servers import free_port

GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@contextmanager
def serving(
    redis: EmbeddedServer, folder: Path, *, keys: Any = (), open_files: int = 0, **limits: Any
) -> Iterator[Process]:
    """Run the application in its own process, with these API keys and connection limits."""
    port = free_port()
    argv = [sys.executable, "-m", "tests.http.serving", redis.url, str(port), f"t{secrets.token_hex(6)}"]
    if open_files:
        argv = ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh", *argv]
    with Process(
        folder,
        argv,
        port=port,
        ready="/ready",
        PYTHONPATH=str(Path(__file__).parents[2]),
        CRUMB_CONNECTION_LIMITS=json.dumps(limits),
        CRUMB_API_KEYS=json.dumps(keys),
    ) as process:
        yield process


def connect(server: Process, *, source: str = "", timeout: float = 60) -> socket.socket:
    where = urlsplit(server.url)
    assert where.hostname and where.port
    link = socket.socket()
    link.settimeout(timeout)
    if source:
        link.bind((source, 0))
    link.connect((where.hostname, where.port))
    return link


def request(method: bytes, target: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: 127.0.0.1", *headers]
    if body:
        lines += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Response:
    """A parsed HTTP response."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        match = re.match(rb"HTTP/1\.1 (\d{3})", head)
        assert match is not None, f"no response but {raw!r}"
        self.status = int(match[1])
        self.headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])

    @property
    def problem(self) -> str:
        """Check the problem document and return the name of the problem."""
        assert self.headers[b"content-type"] == b"application/problem+json"
        document = json.loads(self.body)
        assert document["status"] == self.status
        assert document["title"] and document["detail"]
        return str(document["type"]).removeprefix("/docs#problem-")


def read_response(link: socket.socket) -> Response:
    """Read one response with a Content-Length."""
    raw = b""
    while True:
        head, end, body = raw.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if end and length and len(body) >= int(length[1]):
            assert len(body) == int(length[1]), "bytes after the response"
            return Response(raw)
        piece = link.recv(65536)
        if not piece:
            return Response(raw)
        raw += piece


def read_all(link: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    raw = b""
    while piece := link.recv(65536):
        raw += piece
    return raw


def is_closed(link: socket.socket, *, within: float) -> bool:
    """Return whether the server closes the connection in time, without sending anything."""
    link.settimeout(within)
    try:
        return link.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def many_connections(stack: ExitStack, server: Process, count: int, data: bytes = b"") -> list[socket.socket]:
    links = []
    for _ in range(count):
        link = stack.enter_context(connect(server))
        link.sendall(data)
        links.append(link)
    return links


def resident_bytes(process: Process) -> int:
    text = Path(f"/proc/{process.pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert match is not None
    return int(match[1]) * 1024
