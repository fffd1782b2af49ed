"""The session service for ADK. This is the only module of the package that needs google-adk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

import anyio
import anyio.to_thread
import orjson
from google.adk.cli.service_registry import get_service_registry
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from breadcrumbs.adk.backends import (
    SCHEMES,
    Backend,
    BackendAccess,
    DirectoryAddress,
    StoreBackend,
    owner_id,
    parse_address,
)
from breadcrumbs.adk.naming import user_names
from breadcrumbs.adk.reading import ALL_EVENTS, EventRange
from breadcrumbs.adk.wire import Json
from breadcrumbs.runtime.errors import (
    AlreadyExists,
    Forbidden,
    IdempotencyMismatch,
    InvalidInput,
    NotFound,
    Unauthenticated,
)
from breadcrumbs.runtime.store.store import Store

_log = logging.getLogger("breadcrumbs.adk")


class BreadcrumbSessionService(BaseSessionService):
    """ADK session service that uses a store or a Breadcrumbs server.

        BreadcrumbSessionService("http://127.0.0.1:8081", token="…")
        BreadcrumbSessionService("redis://127.0.0.1:6379", owner="…")
        BreadcrumbSessionService()     the data directory of `crumb up`; a server is started if none is running

    A store and a server behave the same. Any number of processes can work on one session at the same time. No write is
    lost, and no writer is refused because its copy of the session is stale. Each event loop has its own connections.
    They are opened at the first use and closed with the loop.
    """

    def __init__(  # noqa: PLR0913 - all but the first are keywords, documented one by one
        self,
        where: str | Store | None = None,
        *,
        owner: UUID | str | None = None,
        token: str | None = None,
        api_key: str | None = None,
        namespace: str | None = None,
        uri: str | None = None,
        agents_dir: str | None = None,
    ) -> None:
        """Make a service. It connects at the first use.

        where: an address (see `parse_address`), or an open store. The caller has to close the store.
        owner: the tenant that owns the sessions. Only for a store, because a server gets the owner from the token.
        namespace: the prefix of the keys in Redis. Only for a store.
        token, api_key: the credentials. Only for a server.
        uri, agents_dir: arguments that ADK passes to a service from a services.yaml. `uri` is the same as `where`.
        """
        self._by_loop: dict[asyncio.AbstractEventLoop, asyncio.Task[_OpenBackend]] = {}
        self._given: Backend | None = None
        if isinstance(where, Store):
            self._given = StoreBackend(where, owner_id(owner), owned=False)
            return
        self._location = parse_address(
            where or uri or "crumb://", BackendAccess(owner, namespace, token=token, api_key=api_key)
        )

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session. Raises `AlreadyExistsError` if the id is taken."""
        with _adk_errors():
            user_names(app_name, user_id)
            backend = await self._backend()
            return _to_session(await backend.create(app_name, user_id, session_id, _json_safe(state or {})))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events, or None if it does not exist."""
        if not session_id.strip():
            return None
        with _adk_errors():
            user_names(app_name, user_id)
            wanted = EventRange(config.num_recent_events, config.after_timestamp) if config else ALL_EVENTS
            backend = await self._backend()
            found = await backend.get(app_name, user_id, session_id.strip(), wanted)
            return None if found is None else _to_session(found)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of a user, or of all users, without events. The last changed is last."""
        with _adk_errors():
            user_names(app_name, user_id if user_id is not None else "any")
            found = await (await self._backend()).list_all(app_name, user_id)
            return ListSessionsResponse(sessions=[_to_session(session) for session in found])

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events. The state of the app and of the user is kept."""
        if not session_id.strip():
            return
        with _adk_errors():
            user_names(app_name, user_id)
            await (await self._backend()).delete(app_name, user_id, session_id.strip())

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state that the sessions of a user share, without the prefix `user:`."""
        with _adk_errors():
            user_names(app_name, user_id)
            return await (await self._backend()).user_state(app_name, user_id)

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event with its state change, and update the caller's session.

        The same event can be appended again, after an error or by another process. It is stored once.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        with _adk_errors():
            backend = await self._backend()
            document = event.model_dump(mode="json", by_alias=True, exclude_none=True)
            repeated = await backend.append(session.app_name, session.user_id, session.id, document)
        # Search the caller's events only if the event was stored before. Otherwise it cannot be among them.
        if not (repeated and any(own.id == event.id for own in session.events)):
            self._commit_event_to_session(session, event)
            session.last_update_time = event.timestamp
        return event

    async def flush(self) -> None:
        """Do nothing: events are stored when `append_event` returns."""

    async def close(self) -> None:
        """Close the connections of this event loop. After the last loop, stop a server that was started."""
        opening = self._by_loop.get(asyncio.get_running_loop())
        if opening is not None:
            await (await opening).keeper.aclose()
        if self._given is None and isinstance(self._location, DirectoryAddress) and not self._by_loop:
            await anyio.to_thread.run_sync(self._location.stop)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _backend(self) -> Backend:
        """Return the backend of the running event loop. ADK's `Runner.run` makes a new loop for each turn."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        opening = self._by_loop.get(loop)
        if opening is None:
            opening = self._by_loop[loop] = loop.create_task(self._open(loop))
        return (await asyncio.shield(opening)).backend

    async def _open(self, loop: asyncio.AbstractEventLoop) -> _OpenBackend:
        try:
            backend = await self._location.open()
        except BaseException:
            del self._by_loop[loop]  # the next call opens it again
            raise
        keeper = self._keep(loop, backend)
        await anext(keeper)
        return _OpenBackend(backend, keeper)

    async def _keep(self, loop: asyncio.AbstractEventLoop, backend: Backend) -> AsyncGenerator[None, None]:
        """Close the backend when its event loop ends. A loop closes the async generators that it started."""
        try:
            yield
        finally:
            self._by_loop.pop(loop, None)
            await backend.close()


@dataclass(frozen=True, slots=True)
class _OpenBackend:
    backend: Backend
    keeper: AsyncGenerator[None, None]


def register() -> None:
    """Register the `crumb://` URIs for `adk web --session_service_uri`.

    Call it in a `services.py` next to the agents:

    from breadcrumbs.adk import register

    register()
    """
    for scheme in SCHEMES:
        get_service_registry().register_session_service(scheme, _from_uri)


def _from_uri(uri: str, **options: Any) -> BreadcrumbSessionService:
    return BreadcrumbSessionService(uri=uri, **options)


@contextmanager
def _adk_errors() -> Iterator[None]:
    """Convert errors to those that ADK expects, such as ValueError for invalid input."""
    try:
        yield
    except AlreadyExists as error:
        raise AlreadyExistsError(str(error)) from error
    except NotFound as error:
        raise SessionNotFoundError(str(error)) from error
    except (InvalidInput, IdempotencyMismatch) as error:
        raise ValueError(str(error)) from error
    except (Forbidden, Unauthenticated) as error:
        raise PermissionError(str(error)) from error


def _to_session(found: Json) -> Session:
    return Session(
        id=found["id"],
        app_name=found["appName"],
        user_id=found["userId"],
        state=found["state"],
        events=[_to_event(event) for event in found["events"]],
        last_update_time=found["lastUpdateTime"],
    )


def _to_event(document: Json) -> Event:
    # Validate the JSON text, not the dictionary: only then pydantic decodes base64 to bytes.
    try:
        return Event.model_validate_json(orjson.dumps(document))
    except ValidationError as error:
        unknown = [detail["loc"] for detail in error.errors() if detail["type"] == "extra_forbidden"]
        if not unknown:
            raise ValueError(
                f"this version of google-adk cannot read the event {document.get('id')!r}: {error}"
            ) from error
    # A newer google-adk has written fields that this version does not have. Read the event without them.
    _log.warning("event %s has fields unknown to this google-adk: %s", document.get("id"), unknown)
    return _to_event(_without_paths(document, unknown))


def _without_paths(document: Json, paths: list[tuple[int | str, ...]]) -> Json:
    """Return a copy of the document without the values at these paths."""
    copy: Json = orjson.loads(orjson.dumps(document))
    for *parents, last in paths:
        inner: Any = copy
        for step in parents:
            inner = inner[step]
        inner.pop(last, None)
    return copy


def _json_safe(state: dict[str, Any]) -> Json:
    """Return the state as JSON. Values without a JSON form become text, as in ADK's own services."""
    try:
        safe: Json = to_jsonable_python(state)
    except Exception:  # the code of a foreign object can raise anything
        _log.warning("state contains values that are not JSON, storing them as text", exc_info=True)
        safe = to_jsonable_python(state, serialize_unknown=True)
    return safe
