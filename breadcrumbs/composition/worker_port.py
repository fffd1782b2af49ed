"""The HTTP port of a worker process, if the settings have one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from breadcrumbs.composition.listener import open_listener
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.workers.worker import Worker


@asynccontextmanager
async def open_worker_port(settings: Settings, workers: Sequence[Worker]) -> AsyncIterator[int | None]:
    """Serve `/metrics`, `/health` and `/ready` of workers while the block runs. Yield the port, or None without one."""
    if settings.metrics_port is None:
        yield None
        return
    # Imported only here: the HTTP server would make the start of every worker slower.
    from breadcrumbs.runtime.http.worker_port import worker_server

    host, wanted = settings.metrics_host, settings.metrics_port
    with open_listener(host, wanted, options=("--metrics-host", "--metrics-port")) as listener:
        port: int = listener.getsockname()[1]
        server = worker_server(workers, settings.connection_limits)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                yield port
            finally:
                server.should_exit = True
