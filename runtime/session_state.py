"""A session's state: names and JSON values, set by breadcrumbs of the session.

The state is a view. A breadcrumb with one of these schemas changes it by its `context.state_delta` when it is
created, in the same write; an import builds the state again from the same breadcrumbs, whatever their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from breadcrumbs.runtime.errors import InvalidInput

SESSION_RECORD: Final = "session.v1"
STATE_CHANGE: Final = "session.state.v1"
ADK_EVENT: Final = "adk.event.v1"

REMOVED: Final = b""

_NULL_REMOVES: Final = {SESSION_RECORD: True, STATE_CHANGE: True, ADK_EVENT: False}
"""ADK keeps a None as a value; elsewhere null takes a name away, as in a merge patch."""


def state_changes(schema_name: str, context: Mapping[str, Any]) -> dict[str, bytes]:
    """What a new breadcrumb changes of its session's state: name -> JSON, `REMOVED` where it goes."""
    if schema_name not in _NULL_REMOVES:
        return {}
    delta = context.get("state_delta", {})
    if not isinstance(delta, dict):
        raise InvalidInput(
            "state_delta must be an object: names and their new values", where="context.state_delta"
        )
    null_removes = _NULL_REMOVES[schema_name]
    return {
        name: REMOVED if value is None and null_removes else orjson.dumps(value)
        for name, value in delta.items()
    }


def decode_state(flat: list[bytes]) -> dict[str, Any]:
    """The state as the store keeps it: name, `<time> <JSON>`, name, …"""
    state = {}
    for name, held in zip(flat[::2], flat[1::2], strict=True):
        value = held.partition(b" ")[2]
        if value != REMOVED:
            state[name.decode()] = orjson.loads(value)
    return state
