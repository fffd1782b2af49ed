"""The uvicorn server, adapted to long-lived event streams.

A stop signal ends streams at once, before uvicorn waits for open connections. `protocol.py` enforces the limits
that apply before a request reaches the application.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Literal, cast

import uvicorn
from starlette.types import ASGIApp

from breadcrumbs.runtime.http.connections import ConnectionTable, fit_to_descriptors
from breadcrumbs.runtime.http.protocol import LimitedProtocol
from breadcrumbs.runtime.settings.connection_limits import ConnectionLimits


class HttpServer(uvicorn.Server):
    """Serves an ASGI application.

    `on_exit` is called when a stop signal arrives, before uvicorn waits for open connections.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        on_exit: Callable[[], None],
        loop: Literal["uvloop", "none"] = "uvloop",
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._table = ConnectionTable(fit_to_descriptors(limits or ConnectionLimits()))
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=cast("Any", partial(LimitedProtocol, self._table)),
                ws="none",
                loop=loop,
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level="warning",
                server_header=False,
                proxy_headers=False,  # not used here, and any local program could forge them
                timeout_graceful_shutdown=10,
                backlog=2048,
            )
        )
        self._on_exit = on_exit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Modules and settings live as long as the process. Exclude them from later garbage collections.
        gc.collect()
        gc.freeze()

    async def on_tick(self, counter: int) -> bool:
        self._table.sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_exit()
        super().handle_exit(sig, frame)
