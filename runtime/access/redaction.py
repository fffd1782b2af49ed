"""Removes parts of contexts, ADK events and session state that a principal may not read.

Every view of them uses this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from breadcrumbs.runtime.access import policy
from breadcrumbs.runtime.access.principal import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.credentials import strip_credentials
from breadcrumbs.runtime.breadcrumb.session_rule import users_of
from breadcrumbs.runtime.schema_names import RECEIPT
from breadcrumbs.runtime.store.state import SHARED_DELTA, decode_state


def visible_state(principal: Principal, stored: list[bytes]) -> dict[str, Any]:
    """Decode a stored session state and return the readable values. Only curators see credentials."""
    state = decode_state(stored, keep=lambda guard: policy.may_read_state(principal, guard))
    return state if policy.may_read_secrets(principal) else strip_credentials(state)


def redact_event(principal: Principal, event: dict[str, Any]) -> dict[str, Any]:
    """Return an ADK event without changes of shared state that the principal may not read."""
    actions = event.get("actions")
    if not principal.is_narrowed or not isinstance(actions, dict):
        return event
    return {
        **event,
        "actions": {name: _visible_delta(principal, name, value) for name, value in actions.items()},
    }


def redact_context(principal: Principal, crumb: Breadcrumb) -> Breadcrumb:
    """Return the breadcrumb without the content that a narrowed token may not read.

    A context contains messages of other sessions and users if its config includes them. Records and events of ADK
    sessions contain changes of state that other sessions share.
    """
    if not principal.is_narrowed:
        return crumb
    # A context is recognized by its structure, because clients can choose and change its schema and its tags.
    context = dict(crumb.context)
    parts, explain = context.get("parts"), context.get("explain")
    if isinstance(parts, list) and any(_is_part(part) for part in parts):
        own = users_of(crumb.tags)
        context["parts"] = [
            visible
            for part in parts
            if _is_part(part) and (visible := _visible_part(principal, part, own))["items"]
        ]
    if isinstance(explain, dict) and explain.keys() & {"items", "left_out"}:
        del context["explain"]  # names all items; GET /contexts/{id}/explain shows only the visible ones
    context.pop(SHARED_DELTA, None)
    if isinstance(receipt := context.get(RECEIPT), dict) and "items" in receipt:
        # Names items of all sessions; GET /breadcrumbs/{id}/receipt shows only the visible ones.
        context[RECEIPT] = {name: value for name, value in receipt.items() if name != "items"}
    if isinstance(event := context.get("event"), dict):
        context["event"] = redact_event(principal, event)
    if context == crumb.context:
        return crumb
    return replace(crumb, json=orjson.dumps({**crumb.document, "context": context}))


def _visible_delta(principal: Principal, name: str, value: Any) -> Any:
    if name not in ("stateDelta", "state_delta") or not isinstance(value, dict):
        return value
    app, user = policy.may_see_shared_names(principal)
    hidden = (*(() if app else ("app:",)), *(() if user else ("user:",)))
    return {key: change for key, change in value.items() if not key.startswith(hidden)}


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and "place" in part and isinstance(part.get("items"), list)


def _visible_part(principal: Principal, part: Mapping[str, Any], own: list[str]) -> dict[str, Any]:
    items = [
        item
        for item in part["items"]
        # An item without `users` belongs to the users of the trigger.
        if isinstance(item, dict)
        and policy.may_see_context_item(principal, part["place"], item.get("users", own))
    ]
    return {**part, "items": items}
