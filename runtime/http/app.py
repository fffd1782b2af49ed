"""The ASGI application: routes requests to operations, behind the middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import cache, cached_property
from typing import Any, Final
from urllib.parse import unquote

import orjson
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from breadcrumbs.runtime.access.rate_limits import RateLimiter
from breadcrumbs.runtime.http.answering import AgentServices, published_only
from breadcrumbs.runtime.http.api import docs
from breadcrumbs.runtime.http.api.openapi import build_document
from breadcrumbs.runtime.http.api.operations import Operation
from breadcrumbs.runtime.http.api.problems import NOT_FOUND, problem
from breadcrumbs.runtime.http.auth import Authenticator
from breadcrumbs.runtime.http.middleware.metrics import Metrics, RequestObserver
from breadcrumbs.runtime.http.middleware.origin_check import OriginCheck
from breadcrumbs.runtime.http.middleware.unsent import UnsentReplies
from breadcrumbs.runtime.http.open_streams import OpenStreams
from breadcrumbs.runtime.http.processes.group import share_of
from breadcrumbs.runtime.http.resource import SLASH, Resource
from breadcrumbs.runtime.http.routes import (
    answering_agents,
    auth,
    breadcrumbs,
    dead_letters,
    events,
    feedback,
    messages,
    models,
    operations,
    records,
    sessions,
    system,
    usage,
    worker_list,
    workers,
)
from breadcrumbs.runtime.http.routes.event_stream import EventStream
from breadcrumbs.runtime.http.services import Services, StaticDocuments
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.maintenance.store_values import StoreValues
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.records import Registry
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.hub import EventHub
from breadcrumbs.runtime.streams.slots import Slots
from breadcrumbs.runtime.version import VERSION

OPERATIONS: Final[tuple[Operation, ...]] = (
    *sessions.routes,
    *messages.routes,
    *models.routes,
    *answering_agents.routes,
    *breadcrumbs.routes,
    *feedback.routes,
    *events.OPERATIONS,
    *records.OPERATIONS,
    *dead_letters.routes,
    *usage.routes,
    *operations.routes,
    *worker_list.routes,
    *workers.routes,
    *auth.routes,
    *system.routes,
)


class Application:
    """The HTTP API of a store, as an ASGI application."""

    def __init__(
        self,
        store: Store,
        hub: EventHub,
        hygiene: Hygiene,
        settings: Settings,
        extra: Sequence[Operation] = (),
        agents: AgentServices | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.hub = hub
        self.auth = Authenticator(store, settings)
        self._operations = (*OPERATIONS, *extra)
        self._development_mode = settings.development_mode
        registry = Registry(store)
        limiter = RateLimiter(store, settings.rate_limits) if settings.limits_rates else None
        services = Services(
            store,
            hub,
            settings,
            self.auth,
            registry,
            SchemaHints(store),
            hygiene,
            self.metrics,
            StoreValues(store),
            StaticDocuments(
                cache(lambda: orjson.dumps(self.document)),
                cache(lambda: docs.render_page(self.document, settings)),
                docs.POLICY,
            ),
            OpenStreams(*settings.stream_limits),
            UnsentReplies(),
            Slots(total=share_of(8), per_owner=share_of(4), per_token=share_of(2)),
            limiter,
            agents or published_only(store),
        )
        stream = EventStream(services)
        access_log = settings.log_level == "debug"
        self._app: ASGIApp = RequestObserver(
            OriginCheck(FastRouter(_routes(self._operations, services, stream)), settings),
            self.metrics,
            access_log=access_log,
        )

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document, built on first use. Building it takes longer than the rest of the start-up."""
        return build_document(self._operations, version=VERSION, development_mode=self._development_mode)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class FastRouter:
    """Looks up paths without parameters in a dictionary, and passes all others to Starlette's router."""

    def __init__(self, routes: list[Route]) -> None:
        self._router = Router(routes=routes, redirect_slashes=False, default=_not_found)
        self._plain: dict[str, ASGIApp] = {route.path: route.app for route in routes if "{" not in route.path}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        resource = (
            self._plain.get(scope["path"]) if scope["type"] == "http" and not scope["root_path"] else None
        )
        if resource is None:
            return self._router(_protect_encoded_slashes(scope), receive, send)
        scope["endpoint"] = resource
        return resource(scope, receive, send)


def _protect_encoded_slashes(scope: Scope) -> Scope:
    """Replace each `%2F` in the path by `SLASH`.

    An encoded slash is part of a name, such as a session id. It does not separate segments.
    """
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return scope
    parts = raw.partition(b"?")[0].decode("latin-1").split("/")
    return {**scope, "path": "/".join(unquote(part).replace("/", SLASH) for part in parts)}


def build_app(
    store: Store,
    hub: EventHub,
    hygiene: Hygiene,
    settings: Settings,
    extra: Sequence[Operation] = (),
    agents: AgentServices | None = None,
) -> Application:
    """Build the application. The caller opens and closes the store, the hub and hygiene.

    `extra` contains the operations of other packages, such as the context builder. `agents` contains the
    functions about agents and definitions. Without it, only agents that runners publish are known.
    """
    return Application(store, hub, hygiene, settings, extra, agents)


def _routes(operations: Sequence[Operation], services: Services, stream: ASGIApp) -> list[Route]:
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, []).append(operation)
    return [Route(path, Resource(path, operations, services, stream)) for path, operations in by_path.items()]


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    reply = problem(NOT_FOUND, "path not found: GET /docs lists all paths")
    await reply.send(send, without_body=scope["method"] == "HEAD")
