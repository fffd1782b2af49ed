"""ADK's events as plain JSON: as its servers send them, so that nothing here needs google-adk.

On the wire and in the store the names are in camel case. Clients may also send them in snake case; what is free-form
inside an event (state, arguments of tools, …) is never touched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from pydantic.alias_generators import to_camel

from breadcrumbs.runtime.breadcrumb.credentials import ASKS_FOR_CREDENTIAL, strip_credentials
from breadcrumbs.runtime.breadcrumb.json_input import MAX_DEPTH, nesting_depth
from breadcrumbs.runtime.breadcrumb.text import encodable_text
from breadcrumbs.runtime.errors import InvalidInput

APP, USER, TEMP = "app:", "user:", "temp:"

FREE_FORM: Final = frozenset((
    "agentState", "args", "artifactDelta", "cacheMetadata", "customMetadata", "output", "partMetadata", "payload",
    "requestedAuthConfigs", "response", "setModelResponse", "stateDelta",
))  # fmt: skip
"""Where the names are the user's, or always in snake case."""
USER_NAMED_KEYS: Final = frozenset(("requestedToolConfirmations",))
"""Where the names are the user's, and the values ADK's again."""

INTERNAL: Final = "__adk_internal_"
"""Keys of `customMetadata` that ADK's servers show to nobody, and take from nobody."""
RESTORED: Final = INTERNAL + "restored_event"
ADKS_OWN_CALLS: Final = frozenset((ASKS_FOR_CREDENTIAL, "adk_request_confirmation", "adk_request_input"))
EVALUATIONS: Final = ("adk-eval-session-", "___eval___session___")
"""How the ids of sessions begin that ADK's evaluations make, and its servers do not list."""

MAX_EVENT_DEPTH: Final = MAX_DEPTH - 4
"""Levels of an event or a state: around it there are those of a breadcrumb, or of a request."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StateChanges:
    """Changes of the app, user and session state, without their prefixes."""

    app: Json = field(default_factory=dict)
    user: Json = field(default_factory=dict)
    session: Json = field(default_factory=dict)


def split_changes(delta: Mapping[str, Any]) -> StateChanges:
    """Split a state delta by its prefixes. Names with `temp:` are dropped: they last for one invocation."""
    changes = StateChanges()
    for name, value in delta.items():
        if name.startswith(APP):
            changes.app[name[len(APP) :]] = value
        elif name.startswith(USER):
            changes.user[name[len(USER) :]] = value
        elif not name.startswith(TEMP):
            changes.session[name] = value
    return changes


def delta_of(event: Mapping[str, Any]) -> Json:
    delta: Json = (event.get("actions") or {}).get("stateDelta") or {}
    return delta


def check_depth(what: str, value: Any) -> None:
    if nesting_depth(value) > MAX_EVENT_DEPTH:
        raise InvalidInput(f"the {what} nests deeper than {MAX_EVENT_DEPTH} levels: flatten it", where=what)


# What clients send


def camel_case(value: Any) -> Any:
    """Convert names to camel case, except in free-form values."""
    if isinstance(value, list):
        return [camel_case(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {}
    for name, inner in value.items():
        name = to_camel(name) if "_" in name else name
        if name in USER_NAMED_KEYS and isinstance(inner, Mapping):
            found[name] = {key: camel_case(item) for key, item in inner.items()}
        else:
            found[name] = inner if name in FREE_FORM else camel_case(inner)
    return found


def event_of(document: Any, *, now: float) -> Json:
    """An event as a client sent it, checked and completed."""
    return complete_event(checked_event(document), id=str(uuid4()), now=now)


def complete_event(event: Json, *, id: str, now: float) -> Json:
    """Add an id and a time to an event that has none."""
    return {**event, "id": event.get("id") or id, "timestamp": event.get("timestamp", now)}


def checked_event(document: Any) -> Json:
    """An event as a client sent it: checked as far as one must be for ADK to read it again."""
    if not isinstance(document, Mapping):
        raise InvalidInput("an event is a JSON object", where="body")
    event: Json = {name: value for name, value in camel_case(document).items() if value is not None}
    for name in ("id", "author", "invocationId", "branch"):
        _check_type(event, name, str, "a text")
    for name in ("content", "actions", "customMetadata", "nodeInfo"):
        _check_type(event, name, dict, "an object")
    parts = event.get("content", {}).get("parts")
    if parts is not None and not (isinstance(parts, list) and all(isinstance(part, dict) for part in parts)):
        raise InvalidInput("content.parts must be a list of objects", where="content.parts")
    actions = {name: value for name, value in event.get("actions", {}).items() if value is not None}
    for name in ("stateDelta", "artifactDelta", "requestedAuthConfigs", "requestedToolConfirmations"):
        _check_type(actions, name, dict, "an object")
        actions.setdefault(name, {})
    actions["stateDelta"] = {
        name: value for name, value in actions["stateDelta"].items() if not name.startswith(TEMP)
    }
    moment = event.get("timestamp", 0)
    if isinstance(moment, bool) or not isinstance(moment, int | float) or not math.isfinite(moment):
        raise InvalidInput("timestamp must be a number: seconds since 1970", where="timestamp")
    return {"author": "", "invocationId": "", "nodeInfo": {"path": ""}, **event, "actions": actions}


def restore_event(event: Json, number: int) -> Json:
    """An event that a new session begins with. It must not claim to be what only ADK itself may write."""
    calls = [
        part.get(kind) or {}
        for part in event.get("content", {}).get("parts") or ()
        for kind in ("functionCall", "functionResponse")
    ]
    reason = None
    if event.get("longRunningToolIds"):
        reason = "long-running tool ids"
    elif any(event["actions"].values()):
        reason = "actions"
    elif any(isinstance(call, dict) and call.get("name") in ADKS_OWN_CALLS for call in calls):
        reason = "ADK's own function calls"
    if reason is not None:
        raise InvalidInput(f"event {number} of a new session cannot have {reason}", where=f"events.{number}")
    return {
        **event,
        "customMetadata": {**_without_internals(event.get("customMetadata") or {}), RESTORED: True},
    }


def _check_type(document: Mapping[str, Any], name: str, kind: type, words: str) -> None:
    if not isinstance(document.get(name), kind | None):
        raise InvalidInput(f"{name} must be {words}", where=name)


# What others may see


def public_event(event: Json) -> Json:
    """As ADK's servers show it: without credentials and without ADK's own marks."""
    shown: Json = strip_credentials(event)
    metadata = shown.get("customMetadata")
    if isinstance(metadata, dict) and any(name.startswith(INTERNAL) for name in metadata):
        kept = _without_internals(metadata)
        shown = {**shown, "customMetadata": kept}
        if not kept:
            del shown["customMetadata"]
    return shown


def _without_internals(metadata: Mapping[str, Any]) -> Json:
    return {name: value for name, value in metadata.items() if not name.startswith(INTERNAL)}


# What people read of it


def text_of(event: Mapping[str, Any]) -> str:
    """What was said: no thoughts, no calls of tools."""
    parts = (event.get("content") or {}).get("parts") or ()
    said = (part["text"] for part in parts if isinstance(part.get("text"), str) and not part.get("thought"))
    return encodable_text("".join(said))
