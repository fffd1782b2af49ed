"""What a narrowed token is shown of a context: a context holds what others have said, and goes where its trigger went.

`explain` shows each reader what they may see, item by item. A context that is read as a breadcrumb, in whatever
way, goes through `as_seen`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb import USER, Breadcrumb, users_of


def as_seen(principal: Principal, crumb: Breadcrumb) -> Breadcrumb:
    """The breadcrumb as this token may read it: of a context only what is its session's or its user's."""
    if principal.session_id is None and principal.user_id is None:
        return crumb
    # A context is known by its shape: its schema and its tags can be chosen and changed, lists in it only as a whole.
    context = dict(crumb.context)
    parts, explain = context.get("parts"), context.get("explain")
    if isinstance(parts, list) and any(_is_part(part) for part in parts):
        own = users_of(crumb.tags)
        context["parts"] = [
            seen for part in parts if _is_part(part) and (seen := _seen(principal, part, own))["items"]
        ]
    if isinstance(explain, dict) and explain.keys() & {"items", "left_out"}:
        del context["explain"]  # it names all of it; GET /contexts/{id}/explain tells what may be told
    if context == crumb.context:
        return crumb
    return replace(crumb, json=orjson.dumps({**crumb.document, "context": context}))


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and "place" in part and isinstance(part.get("items"), list)


def _seen(principal: Principal, part: Mapping[str, Any], own: list[str]) -> dict[str, Any]:
    items = [
        item
        for item in part["items"]
        # Whose it is, is said where it is not the trigger's user's.
        if isinstance(item, dict) and _may_see(principal, part["place"], item.get("users", own), own)
    ]
    return {**part, "items": items}


def _may_see(principal: Principal, place: Any, users: Any, own: list[str]) -> bool:
    if not isinstance(users, list):
        return False
    mine = own if principal.user_id is None else [USER + principal.user_id]
    if place == "shared":
        # A catalogue is everybody's; what one user keeps outside of all sessions is not.
        return not users or any(user in mine for user in users)
    if principal.session_id is not None and place != "conversation":
        return False
    return principal.user_id is None or any(user in mine for user in users)
