"""ADK's events as plain JSON, in the format of its servers. Works without google-adk.

Names are in camel case, on the wire and in the store. Clients may also send snake case. Free-form values inside an
event, such as state and tool arguments, are never converted.
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
"""Keys whose values are not converted. Their names are user-defined, or always in snake case."""
USER_NAMED_KEYS: Final = frozenset(("requestedToolConfirmations",))
"""Keys whose values have user-defined names, but contain objects of ADK that are converted."""

INTERNAL: Final = "__adk_internal_"
"""Prefix of `customMetadata` keys that ADK's servers neither show to clients nor accept from them."""
RESTORED: Final = INTERNAL + "restored_event"
ADKS_OWN_CALLS: Final = frozenset((ASKS_FOR_CREDENTIAL, "adk_request_confirmation", "adk_request_input"))
EVALUATIONS: Final = ("adk-eval-session-", "___eval___session___")
"""Id prefixes of the sessions of ADK's evaluations, which its servers do not list."""

MAX_EVENT_DEPTH: Final = MAX_DEPTH - 4
"""Maximum nesting of an event or a state. The breadcrumb or request around it needs the other levels."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StateChanges:
    """Changes of the app, user and session state, without their prefixes."""

    app: Json = field(default_factory=dict)
    user: Json = field(default_factory=dict)
    session: Json = field(default_factory=dict)


def split_changes(delta: Mapping[str, Any]) -> StateChanges:
    """Split a state delta by its prefixes. Names with `temp:` are dropped, because they last for one invocation."""
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
    """Return the state delta of an event."""
    delta: Json = (event.get("actions") or {}).get("stateDelta") or {}
    return delta


def check_depth(what: str, value: Any) -> None:
    """Raise `InvalidInput` if a value nests too deeply to be stored."""
    if nesting_depth(value) > MAX_EVENT_DEPTH:
        raise InvalidInput(f"the {what} nests deeper than {MAX_EVENT_DEPTH} levels: flatten it", where=what)


# Events from clients


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
    """Return the event of a client, validated and completed."""
    return complete_event(checked_event(document), id=str(uuid4()), now=now)


def complete_event(event: Json, *, id: str, now: float) -> Json:
    """Return the event with this id and time, unless it has its own."""
    return {**event, "id": event.get("id") or id, "timestamp": event.get("timestamp", now)}


def checked_event(document: Any) -> Json:
    """Return the event of a client in camel case. Raises `InvalidInput` if ADK could not read it again."""
    if not isinstance(document, Mapping):
        raise InvalidInput("an event must be a JSON object", where="body")
    event: Json = {name: value for name, value in camel_case(document).items() if value is not None}
    for name in ("id", "author", "invocationId", "branch"):
        _check_type(event, name, str, "a string")
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
    """Return a first event of a new session. Raises `InvalidInput` if it has parts that only ADK may write."""
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


# Events for clients


def public_event(event: Json) -> Json:
    """Return the event as ADK's servers show it, without credentials and ADK's internal metadata."""
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


# Text


def text_of(event: Mapping[str, Any]) -> str:
    """Return the text of an event, without thoughts and tool calls."""
    parts = (event.get("content") or {}).get("parts") or ()
    texts = (part["text"] for part in parts if isinstance(part.get("text"), str) and not part.get("thought"))
    return encodable_text("".join(texts))
