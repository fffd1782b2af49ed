"""uvicorn, with the two things that long-lived streams need: an end at once, and a cut without waiting."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from breadcrumbs.runtime.http.stream import ABORT


class _Protocol(HttpToolsProtocol):
    def on_message_begin(self) -> None:
        super().on_message_begin()
        # A client that does not read would keep a closed connection open until it does: let it be cut.
        extensions: dict[str, Any] = self.scope.setdefault("extensions", {})
        extensions[ABORT] = self.transport.abort


class HttpServer(uvicorn.Server):
    """Serves an app; `on_exit` runs when the signal to stop arrives, before connections are waited for."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        on_exit: Callable[[], None],
        loop: Literal["uvloop", "none"] = "uvloop",
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=_Protocol,
                loop=loop,
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level="warning",
                server_header=False,
                proxy_headers=False,  # nothing here depends on them, and anybody on this machine could send them
                timeout_graceful_shutdown=10,
                backlog=2048,
            )
        )
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_exit()
        super().handle_exit(sig, frame)
