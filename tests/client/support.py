"""A real `crumb up`, a TCP proxy that can drop replies, and one async interface for both clients."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Self

import anyio.to_thread

from breadcrumbs import AsyncClient, Client, Session

CRUMB = Path(sys.executable).parent / "crumb"
LIMIT = 60.0


def environment(**extra: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("CRUMB_")}
    return inherited | {"NO_PROXY": "127.0.0.1", **extra}


class CrumbUp:
    """A `crumb up` in its own process. It keeps its data and its port after a restart."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._environment = environment(**settings)
        self._port = 0
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        with (self.folder / "stderr").open("ab") as errors:
            self.process = subprocess.Popen(
                [CRUMB, "up", "--port", str(self._port), "--data", self.data],
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.folder,
                env=self._environment,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"crumb up ended: {(self.folder / 'stderr').read_text()}"
        self.url = json.loads(line)["url"]
        self._port = int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()


class Line:
    """TCP proxy to a server. It can cut connections, and drop the replies to requests that the server has handled."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.answers_to_lose = 0
        self.lost: list[bytes] = []
        """The first line of each request with a dropped reply."""
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut every connection."""
        for connection in list(self._open):
            _shut(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with closing(client), socket.create_connection(self._server) as server:
            self._open |= {client, server}
            request = b""
            try:
                while True:
                    for ready in select.select([client, server], [], [])[0]:
                        piece = ready.recv(65536)
                        if not piece:
                            return
                        if ready is client:
                            request = piece if b" HTTP/1.1\r\n" in piece else request
                            server.sendall(piece)
                        elif self.answers_to_lose and request.startswith(b"POST"):
                            self.answers_to_lose -= 1
                            self.lost.append(request.partition(b"\r\n")[0])
                            return
                        else:
                            client.sendall(piece)
            except OSError:
                return
            finally:
                self._open -= {client, server}


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class AsyncWrapper:
    """Async wrapper of the sync client or session, so that one suite tests both clients."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == "session":
            return lambda *args: AsyncWrapper(found(*args))
        if not callable(found):
            return found
        if name in ("list", "events", "sessions", "stream", "turn", "list_feedback"):
            return lambda *args, **options: _iterate_in_threads(found(*args, **options))

        async def awaited(*args: Any, **options: Any) -> Any:
            made = await anyio.to_thread.run_sync(partial(found, *args, **options), abandon_on_cancel=True)
            return AsyncWrapper(made) if isinstance(made, Session) else made

        return awaited


async def _iterate_in_threads(items: Iterator[Any]) -> AsyncIterator[Any]:
    end = object()
    try:
        while (item := await anyio.to_thread.run_sync(next, items, end, abandon_on_cancel=True)) is not end:
            yield item
    finally:
        try:
            items.close()  # type: ignore[attr-defined]
        except ValueError:
            pass  # a thread is still inside `next`; it ends when the connection closes


def client_of(kind: str, url: str, **options: Any) -> Any:
    """Return a client of this kind with an async interface."""
    return AsyncClient(url, **options) if kind == "async" else AsyncWrapper(Client(url, **options))
