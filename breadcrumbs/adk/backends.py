"""Backends of the session service: a store, or a Breadcrumbs server. Both use the same JSON."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit
from uuid import UUID, uuid4

import anyio
import anyio.to_thread

from breadcrumbs.adk.ledger import AdkSessions, NewSession
from breadcrumbs.adk.naming import session_names
from breadcrumbs.adk.reading import EventRange
from breadcrumbs.adk.wire import Json
from breadcrumbs.client.aio import AsyncClient
from breadcrumbs.client.replies import Reply
from breadcrumbs.client.requests import segment
from breadcrumbs.composition.storage import running_server
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.backend.embedded import EmbeddedServer, default_data_dir
from breadcrumbs.runtime.errors import DataDirectoryInUse, NotFound
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store

ADK_PROGRAM: Final = UUID("00000000-0000-0000-0000-000000000003")
"""Agent id of breadcrumbs that the service writes directly into a store."""

SCHEMES: Final = (
    *("crumb", "crumb+http", "crumb+https", "crumb+redis", "crumb+rediss", "crumb+unix"),
    *("crumb+redis+cluster", "crumb+rediss+cluster"),
)
DEFAULT_PORT: Final = 8081

_STORE_SCHEMES: Final = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_START_TIMEOUT_SECONDS: Final = 30.0
_WHOLE: Final = (("whole", "true"),)


class Backend(Protocol):
    """The storage of a session service. `AdkSessions` describes the operations."""

    async def create(self, app: str, user: str, id: str | None, state: Json | None) -> Json: ...

    async def get(self, app: str, user: str, id: str, wanted: EventRange) -> Json | None: ...

    async def list_all(self, app: str, user: str | None) -> list[Json]: ...

    async def delete(self, app: str, user: str, id: str) -> None: ...

    async def append(self, app: str, user: str, id: str, event: Json) -> bool:
        """Append an event. Return whether it was already stored."""
        ...

    async def user_state(self, app: str, user: str) -> Json: ...

    async def close(self) -> None: ...


class StoreBackend:
    """Stores sessions directly in a store."""

    def __init__(self, store: Store, owner: UUID, *, owned: bool) -> None:
        self._sessions = AdkSessions(store)
        self._who = Principal(owner, ADK_PROGRAM)
        self._store = store
        self._owned = owned

    async def create(self, app: str, user: str, id: str | None, state: Json | None) -> Json:
        return await self._sessions.create(self._who, NewSession(app, user, id, state or {}))

    async def get(self, app: str, user: str, id: str, wanted: EventRange) -> Json | None:
        return await self._sessions.get(self._who, session_names(app, user, id), wanted)

    async def list_all(self, app: str, user: str | None) -> list[Json]:
        return await self._sessions.list_all(self._who, app, user)

    async def delete(self, app: str, user: str, id: str) -> None:
        await self._sessions.delete(self._who, session_names(app, user, id))

    async def append(self, app: str, user: str, id: str, event: Json) -> bool:
        return (await self._sessions.append(self._who, session_names(app, user, id), event)).repeated

    async def user_state(self, app: str, user: str) -> Json:
        return await self._sessions.user_state(self._who, app, user)

    async def close(self) -> None:
        if self._owned:
            await self._store.close()


class HttpBackend:
    """Stores sessions on a Breadcrumbs server.

    Every request can be retried if its response is lost. New sessions have an idempotency key, events have an id.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, app: str, user: str, id: str | None, state: Json | None) -> Json:
        # Generate the id here: if the server did, a retry could create a second session.
        wanted = {"sessionId": id.strip() if id and id.strip() else str(uuid4()), "state": state}
        key = {"idempotency-key": str(uuid4())}
        return _json_object(
            await self._send("POST", _sessions_path(app, user, "sessions"), _WHOLE, wanted, key)
        )

    async def get(self, app: str, user: str, id: str, wanted: EventRange) -> Json | None:
        limits = {"numRecentEvents": wanted.recent, "afterTimestamp": wanted.after}
        given = [(name, repr(value)) for name, value in limits.items() if value is not None]
        try:
            return _json_object(
                await self._send("GET", _sessions_path(app, user, "sessions", id), [*given, *_WHOLE])
            )
        except NotFound:
            return None

    async def list_all(self, app: str, user: str | None) -> list[Json]:
        found: list[Json] = (await self._send("GET", _sessions_path(app, user, "sessions"), _WHOLE)).json()
        return found

    async def delete(self, app: str, user: str, id: str) -> None:
        await self._send("DELETE", _sessions_path(app, user, "sessions", id))

    async def append(self, app: str, user: str, id: str, event: Json) -> bool:
        reply = await self._send("POST", _sessions_path(app, user, "sessions", id, "events"), (), event)
        return reply.headers.get("idempotency-replayed") == "true"

    async def user_state(self, app: str, user: str) -> Json:
        return _json_object(await self._send("GET", _sessions_path(app, user, "state"), _WHOLE))

    async def close(self) -> None:
        await self._client.close()

    async def _send(
        self,
        method: str,
        path: str,
        params: Sequence[tuple[str, str]] = (),
        document: Json | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        return await self._client.request(
            method, path, params=params, json=document, headers=headers, idempotent=True
        )


def _sessions_path(app: str, user: str | None, *parts: str) -> str:
    segments = ["apps", app, *(() if user is None else ("users", user)), *parts]
    return "".join(f"/{segment(text)}" for text in segments)


def _json_object(reply: Reply) -> Json:
    document: Json = reply.json()
    return document


# Addresses


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address and credentials of a Breadcrumbs server."""

    url: str
    token: str | None = field(repr=False)
    api_key: str | None = field(repr=False)

    async def open(self) -> Backend:
        return HttpBackend(AsyncClient(self.url, token=self.token, api_key=self.api_key))


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Address of a store on a Redis server."""

    url: str = field(repr=False)
    owner: UUID
    namespace: str

    async def open(self) -> Backend:
        return StoreBackend(await Store.open(self.url, namespace=self.namespace), self.owner, owned=True)


class DirectoryAddress:
    """A data directory. Uses the server that runs on it, or starts one that runs until this process ends."""

    def __init__(self, path: Path, owner: UUID, namespace: str) -> None:
        self._path = path
        self._owner = owner
        self._namespace = namespace
        self._starting = threading.Lock()
        self._server: EmbeddedServer | None = None

    async def open(self) -> Backend:
        url = await anyio.to_thread.run_sync(self._address)
        return StoreBackend(await Store.open(url, namespace=self._namespace), self._owner, owned=True)

    def stop(self) -> None:
        """Stop the server if this process started it."""
        with self._starting:
            if self._server is not None:
                self._server.stop()
                self._server = None

    def _address(self) -> str:
        with self._starting:
            if self._server is not None:
                self._server.start()  # restarts it if it has stopped
                return self._server.url
            deadline = time.monotonic() + _START_TIMEOUT_SECONDS
            while True:
                if running := running_server(self._path):
                    return running.url
                server = EmbeddedServer(self._path)
                try:
                    server.start()
                except DataDirectoryInUse:
                    # Another process is starting a server: wait for it.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
                else:
                    self._server = server
                    return server.url


@dataclass(frozen=True, slots=True)
class BackendAccess:
    """Access to a backend. Owner and namespace are for a store, token and API key for a server."""

    owner: UUID | str | None = None
    namespace: str | None = None
    token: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)


def parse_address(
    where: str, access: BackendAccess = BackendAccess()
) -> ServerAddress | RedisAddress | DirectoryAddress:
    """Parse the address of the sessions of a service.

    http://host:port, crumb://[token@]host[:port], crumb+https://…   a Breadcrumbs server
    redis://…, unix://…, redis+cluster://…, and with crumb+ before    a Redis server
    crumb:///directory, crumb://                                      a data directory; the default one
    The last two take `?owner=` and `?namespace=`.
    """
    scheme = where.partition("://")[0]
    kind = scheme.removeprefix("crumb+")
    parts = urlsplit(where)
    if kind in ("http", "https") or (kind == "crumb" and parts.netloc):
        return _server_at(parts, kind, access)
    if access.token is not None or access.api_key is not None:
        raise ValueError("a store takes no token: pass owner=…, or use the address of a Breadcrumbs server")
    if kind == "crumb" or kind in _STORE_SCHEMES:
        return _store_at(where, kind, access)
    raise ValueError(
        f"invalid session address {scheme or where!r}: use http://127.0.0.1:{DEFAULT_PORT} (a Breadcrumbs server), "
        "redis://host:6379 (a Redis server) or crumb:///directory (a data directory)"
    )


def owner_id(owner: UUID | str | None) -> UUID:
    """Return the id of an owner, by default the developer of `crumb up`."""
    if owner is None:
        return DEVELOPER
    return owner if isinstance(owner, UUID) else UUID(owner)


def _server_at(parts: SplitResult, kind: str, access: BackendAccess) -> ServerAddress:
    if access.owner is not None or access.namespace is not None:
        raise ValueError("a server gets the owner from the token: leave out owner and namespace")
    token = access.token or unquote(parts.password or parts.username or "") or None
    return ServerAddress(_server_url(parts, "http" if kind == "crumb" else kind), token, access.api_key)


def _store_at(where: str, kind: str, access: BackendAccess) -> RedisAddress | DirectoryAddress:
    parts = urlsplit(where)
    options = dict(parse_qsl(parts.query))
    in_address = options.pop("owner", None), options.pop("namespace", None)
    owner = owner_id(access.owner or in_address[0])
    namespace = access.namespace or in_address[1] or "bc"
    if kind == "crumb":
        directory = Path(unquote(parts.path)) if parts.path.strip("/") else default_data_dir()
        return DirectoryAddress(directory.expanduser(), owner, namespace)
    rest = where.partition("://")[2].partition("?")[0] + (f"?{urlencode(options)}" if options else "")
    return RedisAddress(f"{kind}://{rest}", owner, namespace)


def _server_url(parts: SplitResult, scheme: str) -> str:
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    port = parts.port or (DEFAULT_PORT if parts.scheme == "crumb" else None)
    return f"{scheme}://{host}{f':{port}' if port else ''}{parts.path.rstrip('/')}"
