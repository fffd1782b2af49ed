"""The session routes of ADK's servers. With them, a front end for ADK can use a Breadcrumbs server.

Every route has two paths: the path of ADK's Python server, and the same path below `/api`. The routes use plain JSON
and do not need google-adk.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote
from uuid import uuid4

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictBool, with_config
from typing_extensions import TypedDict

from breadcrumbs.adk.ledger import AdkSessions, NewSession
from breadcrumbs.adk.naming import SessionNames, session_names
from breadcrumbs.adk.reading import ALL_EVENTS, EventRange, SessionReading
from breadcrumbs.adk.wire import (
    EVALUATIONS,
    TEMP,
    Json,
    checked_event,
    event_of,
    public_event,
    restore_event,
)
from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.breadcrumb.credentials import strip_credentials
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.conditions import version_etag
from breadcrumbs.runtime.http.api.operations import Body, Operation, Parameter, SuccessReply
from breadcrumbs.runtime.http.api.problems import (
    ALREADY_EXISTS,
    IDEMPOTENCY_MISMATCH,
    NOT_FOUND,
    QUOTA_EXCEEDED,
    STATE_TOO_LARGE,
)
from breadcrumbs.runtime.http.api.replies import Header, Reply, StreamedReply
from breadcrumbs.runtime.http.routes.breadcrumbs import IDEMPOTENCY_KEY, idempotency_key

_BodyModel = TypeVar("_BodyModel", bound=BaseModel)

_FEW_SESSIONS: Final = 16
"""A longer list is streamed, because each session can have a state of 1 MiB."""

# Bodies


class SessionRequest(BaseModel):
    """A new session. All fields are optional."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    session_id: str | None = Field(
        None, alias="sessionId", description="The id. Default: a generated id. Also accepted as `session_id`"
    )
    state: dict[str, Any] | None = Field(None, description="The initial state")
    events: list[dict[str, Any]] | None = Field(None, description="The first events")


class StateRequest(BaseModel):
    """A state change."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    state_delta: dict[str, Any] = Field(
        alias="stateDelta", description="The changed values. Also accepted as `state_delta`"
    )


class EventRequest(BaseModel):
    """An event of ADK, in camel case or in snake case. Missing fields are filled in."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    id: str | None = Field(None, description="An event with the same id is stored once")
    author: str | None = Field(None, description="`user`, or the name of an agent")
    invocation_id: str | None = Field(None, alias="invocationId")
    timestamp: float | None = Field(None, description="Seconds since 1970")
    partial: StrictBool | None = Field(
        None, description="true: not stored, because the complete event follows"
    )
    content: dict[str, Any] | None = None
    actions: dict[str, Any] | None = None


@with_config(extra="forbid")
class SessionView(TypedDict):
    """A session."""

    id: str
    appName: str
    userId: str
    state: Annotated[
        dict[str, Any], Field(description="Including the state of the app (`app:`) and the user (`user:`)")
    ]
    events: list[dict[str, Any]]
    lastUpdateTime: Annotated[float, Field(description="Time of the last event, in seconds since 1970")]


# Handlers


async def create_session(call: HttpCall) -> Reply:
    document = await _read_document(call)
    wanted = parse_body(SessionRequest, document)
    return await _create_session(call, wanted.session_id, wanted.state, wanted.events)


async def create_session_with_id(call: HttpCall) -> Reply:
    document = await _read_document(call)
    # ADK's Python server expects the state itself here, its other servers expect `{"state": …}`. A state that
    # consists only of an object with the name `state` is too unlikely to matter.
    if document.keys() <= {"state", "events"} and isinstance(document.get("state"), dict | None):
        wanted = parse_body(SessionRequest, document)
        return await _create_session(call, _path_names(call)["session"], wanted.state, wanted.events)
    return await _create_session(call, _path_names(call)["session"], document, None)


async def _create_session(
    call: HttpCall, id: str | None, state: dict[str, Any] | None, events: list[dict[str, Any]] | None
) -> Reply:
    names = _path_names(call)
    first = [restore_event(checked_event(event), number) for number, event in enumerate(events or ())]
    new = NewSession(names["app"], names["user"], id, state or {}, first, idempotency_key(call))
    return _whole_or_public_reply(call, await AdkSessions(call.services.store).create(call.principal, new))


async def get_session(call: HttpCall) -> Reply:
    query = call.query()
    recent = _parse_recent(query.get("numRecentEvents", query.get("num_recent_events")))
    after = _parse_after(query.get("afterTimestamp", query.get("after_timestamp")))
    return await _session_reply(call, EventRange(recent, after))


async def list_sessions(call: HttpCall) -> Reply:
    names = _path_names(call)
    sessions, who, whole = AdkSessions(call.services.store), call.principal, _wants_whole(call)
    listed = await sessions.listed(who, names["app"], names.get("user"))
    if not whole:
        listed = [one for one in listed if not one.names.id.startswith(EVALUATIONS)]
    views = sessions.views(who, listed)
    if len(listed) <= _FEW_SESSIONS:
        return Reply.json([view if whole else _public_session(view) async for view in views])
    return StreamedReply(_streamed_list(views, whole=whole))


async def _streamed_list(views: AsyncIterator[Json], *, whole: bool) -> AsyncIterator[bytes]:
    before = b"["
    async for view in views:
        yield before + orjson.dumps(view if whole else _public_session(view))
        before = b","
    yield b"]" if before == b"," else b"[]"


async def change_state(call: HttpCall) -> Reply:
    wanted = parse_body(StateRequest, await _read_document(call))
    event = event_of(
        {"invocationId": f"p-{uuid4()}", "author": "user", "actions": {"stateDelta": wanted.state_delta}},
        now=time.time(),
    )
    await AdkSessions(call.services.store).append(call.principal, _session_names(call), event)
    # Temporary state is not stored, but ADK's servers return it to the client that set it.
    temporary = {name: value for name, value in wanted.state_delta.items() if name.startswith(TEMP)}
    return await _session_reply(call, temporary=temporary)


async def append_event(call: HttpCall) -> Reply:
    document = await call.json()
    parse_body(EventRequest, document)
    event = event_of(document, now=time.time())
    if event.get("partial"):
        return Reply.json(event)
    timed = document.get("timestamp") is not None
    sessions = AdkSessions(call.services.store)
    appended = await sessions.append(call.principal, _session_names(call), event, timed=timed)
    headers: list[Header] = []
    if appended.session_version is not None:
        headers.append((b"etag", version_etag(appended.session_version)))
    if appended.repeated:
        headers.append((b"idempotency-replayed", b"true"))
    return Reply.json(appended.event, headers=headers)


async def delete_session(call: HttpCall) -> Reply:
    await AdkSessions(call.services.store).delete(call.principal, _session_names(call))
    return Reply.json(None)


async def get_user_state(call: HttpCall) -> Reply:
    names = _path_names(call)
    state = await AdkSessions(call.services.store).user_state(call.principal, names["app"], names["user"])
    return Reply.json(state if _wants_whole(call) else strip_credentials(state))


# Helpers


def _path_names(call: HttpCall) -> dict[str, str]:
    """Return the names in the path. A percent-encoded slash belongs to its name."""
    raw = call.scope["raw_path"].partition(b"?")[0].decode("latin-1").split("/")
    try:
        return {
            template[1:-1]: unquote(part, errors="strict")
            for template, part in zip(call.operation.path.split("/")[::-1], raw[::-1], strict=False)
            if template.startswith("{")
        }
    except UnicodeDecodeError:
        raise InvalidInput("the path is not percent-encoded UTF-8", where="path") from None


def _session_names(call: HttpCall) -> SessionNames:
    names = _path_names(call)
    return session_names(names["app"], names["user"], names["session"])


async def _read_document(call: HttpCall) -> dict[str, Any]:
    """Return the body. An empty body and `null` count as an empty object, as in ADK's servers."""
    document = await call.optional_json()
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidInput("the body must be a JSON object", where="body")
    return document


async def _session_reply(
    call: HttpCall, wanted: EventRange = ALL_EVENTS, *, temporary: Json | None = None
) -> Reply:
    """Return the session in the path. A long session is streamed."""
    names = _path_names(call)
    reading = await AdkSessions(call.services.store).read(call.principal, _session_names(call), wanted)
    if reading is None:
        raise _session_not_found(names["session"])
    if not reading.is_short:
        return StreamedReply(_stream_session(call, reading, temporary or {}))
    events = [event async for event in reading.events()]
    end = await reading.end()
    if end is None:
        raise _session_not_found(names["session"])
    return _whole_or_public_reply(call, {**end, "state": end["state"] | (temporary or {}), "events": events})


async def _stream_session(call: HttpCall, reading: SessionReading, temporary: Json) -> AsyncIterator[bytes]:
    whole = _wants_whole(call)
    before = b'{"events":['
    async for event in reading.events():
        yield before + orjson.dumps(event if whole else public_event(event))
        before = b","
    end = await reading.end()
    if end is None:
        # The session was deleted meanwhile. Abort the response, so that the client sees that it is incomplete.
        raise _session_not_found(_path_names(call)["session"])
    del end["events"]
    end["state"] |= temporary
    rest = orjson.dumps(end if whole else {**end, "state": strip_credentials(end["state"])})
    yield (before if before != b"," else b"") + b"]," + rest[1:]


def _whole_or_public_reply(call: HttpCall, session: Json) -> Reply:
    return Reply.json(session if _wants_whole(call) else _public_session(session))


def _public_session(session: Json) -> Json:
    """Return a session as ADK's servers show it."""
    return {
        **session,
        "state": strip_credentials(session["state"]),
        "events": [public_event(event) for event in session["events"]],
    }


def _session_not_found(id: str) -> NotFound:
    return NotFound(f"session {id!r} of this user not found")


def _parse_recent(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidInput("must be an integer from 0 to 999999999", where="numRecentEvents")
    return int(text)


def _parse_after(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = float(text)
    except ValueError:
        moment = math.nan
    if not math.isfinite(moment):
        raise InvalidInput("must be a number: seconds since 1970", where="afterTimestamp")
    return moment


def _wants_whole(call: HttpCall) -> bool:
    """Return whether the reply is unfiltered, which only curators may request.

    It then includes credentials, internal metadata and evaluation sessions. Session services need all of it,
    because an agent must get back exactly what it wrote.
    """
    text = call.query().get("whole", "false")
    if text not in ("true", "false"):
        raise InvalidInput("whole must be true or false", where="whole")
    return text == "true" and policy.may_read_secrets(call.principal)


# Routes

_APP: Final = Parameter(
    "app", "path", "The name of an app.", {"type": "string", "minLength": 1}, example="weather"
)
_USER: Final = Parameter(
    "user", "path", "The id of a user.", {"type": "string", "minLength": 1}, example="ann"
)
_SESSION: Final = Parameter(
    "session", "path", "The id of a session.", {"type": "string", "minLength": 1}, example="s1"
)
_WHOLE: Final = Parameter(
    "whole",
    "query",
    "`true`: include credentials, ADK's internal metadata and the sessions of evaluations. For curators only.",
    {"type": "string", "enum": ["true", "false"]},
)
_RECENT_SCHEMA = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
_LIMITS: Final = (
    Parameter(
        "numRecentEvents", "query", "Number of events to return, the newest. Default: all.", _RECENT_SCHEMA
    ),
    Parameter("num_recent_events", "query", "The same as `numRecentEvents`.", _RECENT_SCHEMA),
    Parameter(
        "afterTimestamp",
        "query",
        "Return the events after the last one that is older than this, in seconds since 1970.",
        {"type": "number"},
    ),
    Parameter("after_timestamp", "query", "The same as `afterTimestamp`.", {"type": "number"}),
)
_USER_SESSIONS_PATH: Final = "/apps/{app}/users/{user}/sessions"
_SESSION_PATH: Final = _USER_SESSIONS_PATH + "/{session}"
_ROLE_NOTE: Final = "Also needs the role `subscriber`, because the response is the session."

_ROUTES: Final = (
    Operation(
        id="createAdkSession",
        method="POST",
        path=_USER_SESSIONS_PATH,
        group="ADK sessions",
        summary="Create a session of an ADK app",
        description=(
            "One write stores the session, its own state and its first events, or nothing. A repeated request "
            f"with the same Idempotency-Key returns the same session. {_ROLE_NOTE}"
        ),
        handle=create_session,
        uses_store="writes",
        parameters=(_APP, _USER, _WHOLE, IDEMPOTENCY_KEY),
        body=Body(
            SessionRequest | None,
            {"sessionId": "s1", "state": {"step": 1, "user:city": "Berlin"}},
            required=False,
        ),
        successes=(SuccessReply(200, "The session.", SessionView),),
        may_fail=(ALREADY_EXISTS, IDEMPOTENCY_MISMATCH, STATE_TOO_LARGE, QUOTA_EXCEEDED),
    ),
    Operation(
        id="listAdkSessions",
        method="GET",
        path=_USER_SESSIONS_PATH,
        group="ADK sessions",
        summary="List a user's sessions",
        description="The sessions have their state, but no events. The last changed session is last.",
        handle=list_sessions,
        parameters=(_APP, _USER, _WHOLE),
        successes=(SuccessReply(200, "The sessions.", list[SessionView]),),
    ),
    Operation(
        id="listAdkSessionsOfApp",
        method="GET",
        path="/apps/{app}/sessions",
        group="ADK sessions",
        summary="List the sessions of all users of an app",
        handle=list_sessions,
        parameters=(_APP, _WHOLE),
        successes=(SuccessReply(200, "The sessions.", list[SessionView]),),
    ),
    Operation(
        id="getAdkSession",
        method="GET",
        path=_SESSION_PATH,
        group="ADK sessions",
        summary="Read a session",
        handle=get_session,
        parameters=(_APP, _USER, _SESSION, *_LIMITS, _WHOLE),
        successes=(SuccessReply(200, "The session.", SessionView),),
        may_fail=(NOT_FOUND,),
    ),
    Operation(
        id="createAdkSessionWithId",
        method="POST",
        path=_SESSION_PATH,
        group="ADK sessions",
        summary="Create a session with a given id",
        description=(
            'The body is `{"state": …}`, as ADK\'s session services expect, or the state itself, as its Python '
            f"server expects. {_ROLE_NOTE}"
        ),
        handle=create_session_with_id,
        uses_store="writes",
        parameters=(_APP, _USER, _SESSION, _WHOLE, IDEMPOTENCY_KEY),
        body=Body(dict[str, Any] | None, {"state": {"step": 1}}, required=False),
        successes=(SuccessReply(200, "The session.", SessionView),),
        may_fail=(ALREADY_EXISTS, IDEMPOTENCY_MISMATCH, STATE_TOO_LARGE, QUOTA_EXCEEDED),
    ),
    Operation(
        id="changeAdkState",
        method="PATCH",
        path=_SESSION_PATH,
        group="ADK sessions",
        summary="Change the state of a session",
        description=f"The change is stored as an event. The agent does not run. {_ROLE_NOTE}",
        handle=change_state,
        uses_store="writes",
        parameters=(_APP, _USER, _SESSION, _WHOLE),
        body=Body(StateRequest, {"stateDelta": {"step": 2}}),
        successes=(SuccessReply(200, "The session.", SessionView),),
        may_fail=(NOT_FOUND, STATE_TOO_LARGE, QUOTA_EXCEEDED),
    ),
    Operation(
        id="deleteAdkSession",
        method="DELETE",
        path=_SESSION_PATH,
        group="ADK sessions",
        summary="Delete a session",
        description=(
            "Deletes the session with all its events. The state of the app and of the user is kept. A missing session "
            "is not an error."
        ),
        handle=delete_session,
        uses_store="writes",
        parameters=(_APP, _USER, _SESSION),
        successes=(SuccessReply(200, "Session deleted.", type(None)),),
    ),
    Operation(
        id="appendAdkEvent",
        method="POST",
        path=_SESSION_PATH + "/events",
        group="ADK sessions",
        summary="Append an event to a session",
        description=(
            "One write stores the event and its change of the session's state. An event whose id is already "
            "stored changes nothing, so it can be sent again, also without a timestamp. A different event with that id "
            "is refused."
        ),
        handle=append_event,
        spends="posting",
        uses_store="writes",
        parameters=(_APP, _USER, _SESSION),
        body=Body(
            EventRequest,
            {
                "author": "user",
                "invocationId": "i1",
                "content": {"role": "user", "parts": [{"text": "Hello"}]},
            },
        ),
        successes=(
            SuccessReply(
                200,
                "The stored event.",
                dict[str, Any],
                headers={
                    "ETag": "The version of the session.",
                    "Idempotency-Replayed": "`true` if the event was already stored.",
                },
                optional_headers=frozenset({"ETag", "Idempotency-Replayed"}),
            ),
        ),
        may_fail=(NOT_FOUND, IDEMPOTENCY_MISMATCH, STATE_TOO_LARGE, QUOTA_EXCEEDED),
    ),
    Operation(
        id="getAdkUserState",
        method="GET",
        path="/apps/{app}/users/{user}/state",
        group="ADK sessions",
        summary="Read the state of a user",
        description="The state that all sessions of a user share. The names have no prefix `user:`.",
        handle=get_user_state,
        parameters=(_APP, _USER, _WHOLE),
        successes=(SuccessReply(200, "The state, or an empty object.", dict[str, Any]),),
        may_fail=(NOT_FOUND,),
    ),
)


def _with_api_prefix(operations: tuple[Operation, ...]) -> Iterator[Operation]:
    for operation in operations:
        yield operation
        yield replace(
            operation,
            id=operation.id + "BelowApi",
            path="/api" + operation.path,
            description=f"The same as `{operation.method} {operation.path}`.",
        )


OPERATIONS: Final = tuple(_with_api_prefix(_ROUTES))
