"""Messages of a session: reads them, and renders them for API replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from uuid import UUID

from breadcrumbs.runtime import schema_names
from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.access.redaction import redact_context
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query, SortKey
from breadcrumbs.runtime.breadcrumb.roots import root_of
from breadcrumbs.runtime.breadcrumb.text import json_text, plain_text, shorten_line
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.schema_names import (
    AGENT_ERROR,
    AGENT_RESPONSE,
    RUNTIME_KEYS,
    TOOL_REQUEST,
    TOOL_RESPONSE,
    USER_MESSAGE,
)
from breadcrumbs.runtime.sessions.outcome_matching import agent_of
from breadcrumbs.runtime.store.cursors import open_cursor, sign_cursor
from breadcrumbs.runtime.store.store import Store

Role = Literal["user", "assistant", "error", "tool"]

ROLES: Final[Mapping[str, Role]] = {
    USER_MESSAGE: "user",
    AGENT_RESPONSE: "assistant",
    AGENT_ERROR: "error",
    TOOL_REQUEST: "tool",
    TOOL_RESPONSE: "tool",
}
"""Schemas of messages, and the role of each."""

MAX_PAGE_MESSAGES: Final = 1_000
"""Maximum number of messages in a page."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Page of messages."""

    messages: list[Breadcrumb]
    """Oldest first."""
    has_more: bool
    """Whether there are more messages in the requested direction."""
    before: str | None
    """Cursor for the page before this one. None if there is none."""
    after: str | None
    """Cursor for the page after this one. None if the session has no messages."""


@dataclass(frozen=True, slots=True)
class PageRange:
    """Messages to read: the newest ones, or those before or after a cursor."""

    limit: int
    before: str | None = None
    after: str | None = None
    max_bytes: int | None = None


async def read_page(store: Store, principal: Principal, session: str, page_range: PageRange) -> MessagePage:
    """Return a page of messages.

    The cost does not depend on the length of the session.
    """
    limit, before, after = page_range.limit, page_range.before, page_range.after
    if before is not None and after is not None:
        raise InvalidInput("before and after cannot be combined: use one of them", where="after")
    if not 1 <= limit <= MAX_PAGE_MESSAGES:
        raise InvalidInput(f"limit must be from 1 to {MAX_PAGE_MESSAGES}", where="limit")
    # A cursor contains a sort key without a direction, so that it can be used as `before` and as `after`. All cursors
    # are therefore signed for the same query.
    signed = _signed_query(principal, session)
    query = replace(
        signed, sort="created_at" if after is not None else None, limit=limit, max_bytes=page_range.max_bytes
    )
    start = open_cursor(store.secret, principal.owner_id, replace(signed, cursor=before or after))
    if start is not None:
        query = replace(query, cursor=sign_cursor(store.secret, principal.owner_id, query, start))
    page = await store.list(principal.owner_id, query)
    end = open_cursor(store.secret, principal.owner_id, replace(query, cursor=page.next_cursor))

    def cursor(key: SortKey | None) -> str | None:
        return None if key is None else sign_cursor(store.secret, principal.owner_id, signed, key)

    found = page.items
    first, last = (
        (SortKey(crumb.created, crumb.id.bytes) for crumb in (found[0], found[-1])) if found else (None, None)
    )
    if after is not None:
        return MessagePage(found, end is not None, cursor(first), cursor(end or last or start))
    return MessagePage(found[::-1], end is not None, cursor(end), cursor(first or start))


def cursor_before(store: Store, principal: Principal, session: str, message: Breadcrumb) -> str:
    """Return the cursor for the page that ends before a message."""
    key = SortKey(message.created, message.id.bytes)
    return sign_cursor(store.secret, principal.owner_id, _signed_query(principal, session), key)


def _signed_query(principal: Principal, session: str) -> Query:
    """Return the query that the cursors of a session's messages are signed for."""
    return policy.restrict_query(principal, Query(schema_names=tuple(ROLES), session_id=session))


async def message_in(store: Store, principal: Principal, session: str, id: UUID) -> Breadcrumb:
    """Return a breadcrumb of a session by its id.

    Raise `NotFound` if it is not in the session, or the principal may not see it.
    """
    try:
        crumb = await store.get(principal.owner_id, id, count_read=False)
    except NotFound:
        crumb = None
    if crumb is None or crumb.session_id != session or not policy.may_see(principal, crumb):
        raise NotFound(f"message {id} not found in session {session!r}")
    return crumb


def message_view(crumb: Breadcrumb, principal: Principal) -> dict[str, Any]:
    """Return the JSON form of a message.

    Text, context and tool data are left out if the principal may not read them.
    """
    crumb = redact_context(principal, crumb)
    context, schema = crumb.context, crumb.schema_name or ""
    view: dict[str, Any] = {
        "id": str(crumb.id),
        "role": ROLES.get(schema, "assistant"),
        "schema_name": schema,
        "created_at": crumb.created_at,
        "updated_at": crumb.updated_at,
        "version": crumb.version,
        "tags": crumb.tags,
    }
    if isinstance(trigger := context.get("trigger_id"), str):
        view["trigger_id"] = trigger
    if (root := root_of(crumb)) != view["id"]:
        view["root_id"] = root
    if (agent := agent_of(context)) is not None:
        view["agent_id"] = agent
    if policy.may_read_content(principal, crumb):
        view |= {"text": text_of(crumb), "context": context}
        if view["role"] == "tool":
            view["tool"] = _tool_view(schema, context)
    return view


def text_of(crumb: Breadcrumb) -> str:
    """Return the text of a message.

    The text is empty if there is none. A null is never rendered as "null".
    """
    context = crumb.context
    match crumb.schema_name:
        case schema_names.AGENT_ERROR:
            return _value_text(context.get("error"))
        case schema_names.TOOL_REQUEST:
            return _value_text(context.get("input"))
        case schema_names.TOOL_RESPONSE:
            return _value_text(context.get("output", context.get("error")))
    if isinstance(parts := context.get("parts"), list) and not isinstance(context.get("message"), str):
        return "".join(_part_text(part) for part in parts)
    content = {name: value for name, value in context.items() if name not in RUNTIME_KEYS}
    return plain_text(content) if any(value is not None for value in content.values()) else ""


def summary_of(message: Breadcrumb, principal: Principal) -> str | None:
    """Return the beginning of a message in one line, for sessions without a title.

    Return None if the principal may not read it, or if it has no text.
    """
    if not policy.may_read(principal, message):
        return None
    return shorten_line(text_of(message)) or None


def _part_text(part: Any) -> str:
    """Return the text of one part of a message, or an empty string."""
    if isinstance(part, dict):
        part = part.get("text")
    return part if isinstance(part, str) else ""


def _value_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value)


def _tool_view(schema: str, context: Mapping[str, Any]) -> dict[str, Any]:
    tool: dict[str, Any] = {"step": "request" if schema == TOOL_REQUEST else "response"}
    for name, key in (("name", "tool"), ("request_id", "request_id"), ("status", "status")):
        if isinstance(context.get(key), str):
            tool[name] = context[key]
    tool |= {name: context[name] for name in ("input", "output", "error") if context.get(name) is not None}
    return tool
