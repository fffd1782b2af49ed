"""Puts the response to a tool request into the session of the request.

RCRT's tools-runner names the request in `request_id` and no session. An agent only accepts responses in its session.
"""

from __future__ import annotations

from uuid import UUID

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.schema_names import TOOL_REQUEST, TOOL_RESPONSE
from breadcrumbs.runtime.store.store import Store


async def with_session_of_request(
    store: Store, principal: Principal, new: BreadcrumbCreate
) -> BreadcrumbCreate:
    """Return a response without a session in the session of its request, if the principal may see the request.

    Everything else is returned as it is.
    """
    named = new.context.get("session_id") is not None or any(tag.startswith(SESSION) for tag in new.tags)
    if new.schema_name != TOOL_RESPONSE or named:
        return new
    try:
        id = UUID(str(new.context.get("request_id")))
        request = await store.get(principal.owner_id, id, count_read=False)
    except (ValueError, NotFound):
        return new
    if request.schema_name != TOOL_REQUEST or request.session_id is None:
        return new
    if not policy.may_see(principal, request):
        return new
    return new.model_copy(update={"tags": [*new.tags, SESSION + request.session_id]})
