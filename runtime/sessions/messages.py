"""The messages of a session: what was said in it, by whom, and in which order."""

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

MOST_MESSAGES: Final = 1_000


@dataclass(frozen=True, slots=True)
class MessagePage:
    messages: list[Breadcrumb]
    """The oldest first."""
    has_more: bool
    """In the direction asked for."""
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class PageRange:
    """The part of a session that a page shows: the newest messages, or those before or after a cursor."""

    limit: int
    before: str | None = None
    after: str | None = None
    max_bytes: int | None = None


async def read_page(store: Store, principal: Principal, session: str, asked: PageRange) -> MessagePage:
    """Return one page. It costs the same in a session of any length."""
    limit, before, after = asked.limit, asked.before, asked.after
    if before is not None and after is not None:
        raise InvalidInput("before and after exclude each other: a page goes one way", where="after")
    if not 1 <= limit <= MOST_MESSAGES:
        raise InvalidInput(f"limit must be from 1 to {MOST_MESSAGES}", where="limit")
    # A cursor says where, not in which direction: all of them are signed for the same query.
    signed = policy.restrict_query(principal, Query(schema_names=tuple(ROLES), session_id=session))
    query = replace(
        signed, sort="created_at" if after is not None else None, limit=limit, max_bytes=asked.max_bytes
    )
    start = open_cursor(store.secret, principal.owner_id, replace(signed, cursor=before or after))
    if start is not None:
        query = replace(query, cursor=sign_cursor(store.secret, principal.owner_id, query, start))
    page = await store.list(principal.owner_id, query)
    end = open_cursor(store.secret, principal.owner_id, replace(query, cursor=page.next_cursor))

    def cursor(place: SortKey | None) -> str | None:
        return None if place is None else sign_cursor(store.secret, principal.owner_id, signed, place)

    found = page.items
    first, last = (
        (SortKey(crumb.created, crumb.id.bytes) for crumb in (found[0], found[-1])) if found else (None, None)
    )
    if after is not None:
        return MessagePage(found, end is not None, cursor(first), cursor(end or last or start))
    return MessagePage(found[::-1], end is not None, cursor(end), cursor(first or start))


async def message_in(store: Store, principal: Principal, session: str, id: UUID) -> Breadcrumb:
    """A breadcrumb of a session, if that is what it is for who asks."""
    try:
        crumb = await store.get(principal.owner_id, id, count_read=False)
    except NotFound:
        crumb = None
    if crumb is None or crumb.session_id != session or not policy.may_see(principal, crumb):
        raise NotFound(f"there is no message {id} in session {session!r}")
    return crumb


def message_view(crumb: Breadcrumb, principal: Principal) -> dict[str, Any]:
    """A breadcrumb as somebody reads it in a conversation. What is secret has no words for everybody."""
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
    if (agent := agent_of(context)) is not None:
        view["agent_id"] = agent
    if policy.may_read_content(principal, crumb):
        view |= {"text": text_of(crumb), "context": context}
        if view["role"] == "tool":
            view["tool"] = _tool(schema, context)
    return view


def text_of(crumb: Breadcrumb) -> str:
    """The words of a message. What is not there is not said: no null ever becomes a word."""
    context = crumb.context
    match crumb.schema_name:
        case schema_names.AGENT_ERROR:
            return _words(context.get("error"))
        case schema_names.TOOL_REQUEST:
            return _words(context.get("input"))
        case schema_names.TOOL_RESPONSE:
            return _words(context.get("output", context.get("error")))
    if isinstance(parts := context.get("parts"), list) and not isinstance(context.get("message"), str):
        return "".join(_part(part) for part in parts)
    said = {name: value for name, value in context.items() if name not in RUNTIME_KEYS}
    return plain_text(said) if any(value is not None for value in said.values()) else ""


def summary_of(message: Breadcrumb, principal: Principal) -> str | None:
    """What to show of a session that has no title: the beginning of its first message, in one line."""
    if not policy.may_read(principal, message):
        return None
    return shorten_line(text_of(message)) or None


def _part(part: Any) -> str:
    """A part of a message that has several: its text, if it has one."""
    if isinstance(part, dict):
        part = part.get("text")
    return part if isinstance(part, str) else ""


def _words(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json_text(value)


def _tool(schema: str, context: Mapping[str, Any]) -> dict[str, Any]:
    tool: dict[str, Any] = {"step": "request" if schema == TOOL_REQUEST else "response"}
    for name, here in (("name", "tool"), ("request_id", "request_id"), ("status", "status")):
        if isinstance(context.get(here), str):
            tool[name] = context[here]
    tool |= {name: context[name] for name in ("input", "output", "error") if context.get(name) is not None}
    return tool
