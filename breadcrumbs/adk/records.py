"""Convert ADK sessions and events to breadcrumbs and back. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

from breadcrumbs.adk.naming import SessionNames, session_names
from breadcrumbs.adk.wire import (
    APP,
    TEMP,
    USER,
    Json,
    StateChanges,
    check_depth,
    complete_event,
    public_event,
    text_of,
)
from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.access.redaction import redact_event
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, build_content
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.breadcrumb.text import shorten_line
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.schema_names import ADK_EVENT, SESSION_RECORD
from breadcrumbs.runtime.store.state import SHARED_DELTA, secrecy_flags, sensitivity_of

_TITLE_LENGTH: Final = 120
_MAX_FIRST_EVENTS: Final = 1_000
"""One script writes all of them, and the Redis server is blocked during a script."""

_EVENT_HINTS: Final = {"include": ["author", "message"]}
"""A model sees the author and the text of an event, but none of its ADK fields."""


# Writing


def session_record(
    names: SessionNames, state: Json, deltas: StateChanges, events: Sequence[Json]
) -> BreadcrumbCreate:
    """Return the record of a new session."""
    of = names.of
    context: Json = {
        "title": shorten_line(f"{of.app} · {of.user}", _TITLE_LENGTH),
        "user_id": of.user,
        "adk": {"app_name": of.app, "user_id": of.user, "session_id": names.id},
        "state_delta": deltas.session,
        "null_is_a_value": True,
        **secrecy_flags(state),
    }
    if deltas.app or deltas.user:
        context[SHARED_DELTA] = {"app": deltas.app, "user": deltas.user}
    if events:  # with the same idempotency key, other events must count as another request
        context["events_digest"] = json_digest(list(events))
    return BreadcrumbCreate(
        schema_name=SESSION_RECORD,
        title=context["title"],
        tags=[*names.tags, of.app_tag, of.user_tag],
        context=context,
        sensitivity=sensitivity_of(state),
    )


def event_record(names: SessionNames, event: Json, delta: Json) -> BreadcrumbCreate:
    """Return the breadcrumb of an event. `delta` is the event's change of the session's own state."""
    context: Json = {
        "event": event,
        "state_delta": delta,
        "author": event.get("author", ""),
        **secrecy_flags(event),
    }
    if text := text_of(event):
        context["message"] = text
    return BreadcrumbCreate(
        schema_name=ADK_EVENT,
        title=shorten_line(event.get("author", ""), _TITLE_LENGTH),
        tags=names.tags,
        context=context,
        sensitivity=sensitivity_of(event),
        llm_hints=_EVENT_HINTS,
    )


def state_record(holder: str, delta: Json, tags: Iterable[str], source: Sequence[str]) -> BreadcrumbCreate:
    """Return a change of the state of an app or a user. `holder` is the session that stores the state."""
    return BreadcrumbCreate(
        schema_name=ADK_EVENT,
        title=shorten_line(f"state: {', '.join(delta)}", _TITLE_LENGTH),
        tags=[SESSION + holder, *tags],
        context={"state_delta": delta, "source": list(source), **secrecy_flags(delta)},
        sensitivity=sensitivity_of(delta),
    )


def json_digest(value: Any) -> str:
    return blake2b(canonical(value), digest_size=16).hexdigest()


def first_events(names: SessionNames, events: Sequence[Json], now: float) -> list[Json]:
    """Return the first events of a session, each with an id and a time."""
    return [
        complete_event(event, id=_first_event_id(names, number), now=now)
        for number, event in enumerate(events)
    ]


def check_first_events(names: SessionNames, events: Sequence[Json]) -> None:
    """Raise `InvalidInput` unless all events of a new session can be stored in one write."""
    if len(events) > _MAX_FIRST_EVENTS:
        raise InvalidInput(
            f"a new session can have at most {_MAX_FIRST_EVENTS} events: append the others later",
            where="events",
        )
    ids: set[str] = set()
    for number, event in enumerate(events):
        check_depth(f"events.{number}", event)
        build_content(event_record(names, event, {}))
        id = event.get("id") or _first_event_id(names, number)
        if id in ids:
            raise InvalidInput(
                f"another event of this session has the id {id!r}: use a different id",
                where=f"events.{number}.id",
            )
        ids.add(id)


def _first_event_id(names: SessionNames, number: int) -> str:
    """Return the id of an event that was sent without one."""
    return str(derived_id(0, ADK_EVENT, names.name, str(number)))


# Reading


def is_event(crumb: Breadcrumb) -> bool:
    """Return whether a breadcrumb contains an event. Any client may post breadcrumbs of this schema."""
    event = crumb.context.get("event")
    return isinstance(event, dict) and isinstance(event.get("timestamp"), int | float)


def event_time(crumb: Breadcrumb) -> float:
    """Return the timestamp of an event, in seconds since 1970."""
    return float(crumb.context["event"]["timestamp"])


def events_after(crumbs: list[Breadcrumb], after: float) -> list[Breadcrumb]:
    """Return the events after the last one that is older than `after`. ADK's in-memory service does the same."""
    for index in range(len(crumbs) - 1, -1, -1):
        if event_time(crumbs[index]) < after:
            return crumbs[index + 1 :]
    return crumbs


def visible_event(who: Principal, crumb: Breadcrumb) -> Json:
    """Return the event of a breadcrumb, as far as the principal may read it."""
    event: Json = redact_event(who, crumb.context["event"])
    return event if policy.may_read_content(who, crumb) else public_event(event)


def read_names(record: Breadcrumb) -> SessionNames | None:
    """Return the names in a session record, or None if it is invalid."""
    identity = record.context.get("adk")
    if not isinstance(identity, dict):
        return None
    parts = [identity.get(name) for name in ("app_name", "user_id", "session_id")]
    try:
        names = session_names(*(part if isinstance(part, str) else "" for part in parts))
    except InvalidInput:
        return None
    # Any client may post a record. A record for another session than its own is ignored.
    return names if names.name == record.session_id else None


def read_shared_changes(record: Breadcrumb) -> StateChanges | None:
    """Return the changes of app and user state in a session record, or None."""
    shared = record.context.get(SHARED_DELTA)
    if record.schema_name != SESSION_RECORD or not isinstance(shared, dict):
        return None
    app, user = shared.get("app"), shared.get("user")
    return StateChanges(app, user) if isinstance(app, dict) and isinstance(user, dict) else None


def join_state(own: Json, shared: Json) -> Json:
    """Return the session's own state together with the shared state, as ADK shows it.

    Prefixed names in the own state are ignored. ADK never writes them, but another client can.
    """
    return {name: value for name, value in own.items() if not name.startswith((APP, USER, TEMP))} | shared


def session_view(names: SessionNames, updated: float, state: Json, events: list[Json]) -> Json:
    """Return a session in the JSON format of ADK's servers."""
    return {
        "id": names.id,
        "appName": names.of.app,
        "userId": names.of.user,
        "state": state,
        "events": events,
        "lastUpdateTime": updated,
    }
