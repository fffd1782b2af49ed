"""The HTTP port of a worker process: `/metrics`, `/health` and `/ready`.

It has no credentials, because it serves only numbers and the state of the process. It is a small application of its
own: a worker has no streams, no tokens and no operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Receive, Scope, Send

from breadcrumbs.runtime.errors import StoreError, StoreReplaced
from breadcrumbs.runtime.http.api.problems import NOT_FOUND, problem
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.server import HttpServer
from breadcrumbs.runtime.settings.connection_limits import ConnectionLimits
from breadcrumbs.runtime.telemetry import metrics
from breadcrumbs.runtime.version import VERSION
from breadcrumbs.runtime.workers.worker import Worker

_STORE_SECONDS: Final = 2.0
"""Time for the store to reply. Probes of orchestrators often give up after some seconds."""
_NO_STORE: Final = [(b"cache-control", b"no-store")]


def worker_server(workers: Sequence[Worker], limits: ConnectionLimits) -> HttpServer:
    """Return a server for the port of a worker process. The caller opens the socket and stops the server."""
    return _WorkerServer(worker_app(workers), host="", port=0, limits=limits, on_exit=lambda: None)


def worker_app(workers: Sequence[Worker]) -> ASGIApp:
    """Return the application of a process that runs some workers."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        reply = await _reply(scope["method"], scope["path"], workers)
        await reply.send(send, without_body=scope["method"] == "HEAD")

    return app


async def _reply(method: str, path: str, workers: Sequence[Worker]) -> Reply:
    if path not in ("/metrics", "/health", "/ready"):
        return problem(NOT_FOUND, "path not found: this port has /metrics, /health and /ready")
    if method not in ("GET", "HEAD"):
        return Reply(405, b"", headers=[(b"allow", b"GET, HEAD")])
    if path == "/metrics":
        return Reply(200, metrics.render(), CONTENT_TYPE_LATEST.encode(), _NO_STORE)
    if path == "/health":
        return Reply.json({"status": "ok", "version": VERSION}, headers=_NO_STORE)
    reason = await unready_reason(workers)
    if reason is None:
        return Reply.json({"status": "ok", "version": VERSION}, headers=_NO_STORE)
    return Reply.json({"status": "unavailable", "reason": reason}, status=503, headers=_NO_STORE)


async def unready_reason(workers: Sequence[Worker]) -> str | None:
    """Return why the process is not ready, or None if all its workers are at work and the store replies."""
    for worker in workers:
        kind = worker.handler.kind
        if worker.ended.is_set():
            return f"the worker of kind {kind} has stopped"
        if worker.stopping:
            return f"the worker of kind {kind} is draining: it finishes its turns and takes no new ones"
        if not worker.at_work.is_set():
            return f"the worker of kind {kind} does not know its share of the lanes yet"
    try:
        with anyio.fail_after(_STORE_SECONDS):
            await workers[0].store.ping()
    except TimeoutError:
        return f"the store did not reply within {_STORE_SECONDS:.0f} seconds"
    except StoreReplaced as error:
        return f"{error}. {error.advice}"
    except StoreError:
        # The message contains the address of the Redis server. This port has no credentials, so it is only in the log.
        return "the store is unavailable: the log of this process contains the reason"
    return None


class _WorkerServer(HttpServer):
    """HTTP server inside a worker process, which handles the signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
