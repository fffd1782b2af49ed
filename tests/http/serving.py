"""Run the application in its own process: `python -m tests.http.serving REDIS PORT NAMESPACE`.

It serves like `crumb serve`, but without the routes of the context builder and the agents.
"""

from __future__ import annotations

import sys

import uvloop

from breadcrumbs.runtime.http.app import build_app
from breadcrumbs.runtime.http.server import HttpServer
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.options import StoreOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.hub import EventHub
from tests.support.events import close_with_reader, reader_of


async def serve(url: str, port: int, namespace: str) -> None:
    settings = Settings(port=port)
    store = await Store.open(url, namespace=namespace, options=StoreOptions(ttl_defaults=settings.expiries))
    hub = EventHub(store, reader_of(store))
    try:
        app = build_app(store, hub, Hygiene(store, settings), settings)
        server = HttpServer(
            app, host=settings.host, port=port, on_exit=hub.end_streams, limits=settings.connection_limits
        )
        await server.serve()
    finally:
        await hub.close()
        await close_with_reader(store)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
