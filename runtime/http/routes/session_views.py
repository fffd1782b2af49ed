"""Finds the session that a path names, and renders sessions."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.access.redaction import visible_state
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, SESSION, check_session_id
from breadcrumbs.runtime.errors import (
    NotFound,
)
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.conditions import version_etag
from breadcrumbs.runtime.http.api.operations import Parameter
from breadcrumbs.runtime.http.api.replies import Header, Reply
from breadcrumbs.runtime.schema_names import AGENT_ERROR, AGENT_RESPONSE, USER_MESSAGE
from breadcrumbs.runtime.sessions.messages import summary_of
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.session_facts import SessionFacts
from breadcrumbs.runtime.store.written import Written

DEFAULT_PAGE: Final = 50
SESSION_ID: Final = Parameter(
    "id",
    "path",
    "The session; percent-encode what is not a letter or a digit.",
    {"type": "string", "minLength": 1, "maxLength": MAX_TAG_LENGTH - len(SESSION)},
    example="abc",
)
VERSIONED: Final = {"ETag": "The session's version, for If-Match."}


def named_session(call: HttpCall) -> str:
    """Return the session that the path names, if it can exist for the principal."""
    session = check_session_id(call.path_name())
    if not policy.may_name_session(call.principal, session):
        raise session_not_found(session)
    return session


def session_not_found(session: str) -> NotFound:
    return NotFound(f"there is no session {session!r}")


async def load_facts(call: HttpCall, session: str) -> SessionFacts:
    facts = await Sessions(call.services.store).get(call.principal.owner_id, session, first_message=True)
    if not policy.may_see_session(call.principal, facts.id, facts.user):
        raise session_not_found(session)
    return facts


def session_view(facts: SessionFacts, principal: Principal, *, state: bool = True) -> dict[str, Any]:
    counts = facts.counts
    view: dict[str, Any] = {"id": facts.id}
    # Who may only write is told how much there is, and nothing that anybody said.
    may_read = policy.has_role(principal, "subscriber")
    if may_read:
        view |= _session_texts(facts, principal)
    view |= {
        "version": facts.version,
        "created_at": times.to_text(facts.created),
        "last_active_at": times.to_text(facts.active),
        "returning": counts.get(AGENT_RESPONSE, 0) > 0,
        "active": facts.about.paused_at is None,
        "counts": {
            "messages": counts.get(USER_MESSAGE, 0),
            "answers": counts.get(AGENT_RESPONSE, 0),
            "errors": counts.get(AGENT_ERROR, 0),
            "breadcrumbs": sum(counts.values()),
        },
    }
    if state and may_read:
        view["state"] = visible_state(principal, facts.held)
    return view


def _session_texts(facts: SessionFacts, principal: Principal) -> dict[str, str]:
    words = {"title": facts.about.title, "summary": None, "user_id": facts.user}
    if facts.first_message is not None:
        words["summary"] = summary_of(facts.first_message, principal)
    return {name: text for name, text in words.items() if text is not None}


def session_reply(
    facts: SessionFacts, principal: Principal, *, status: int = 200, headers: list[Header] | None = None
) -> Reply:
    return Reply.json(
        session_view(facts, principal),
        status=status,
        headers=[*(headers or ()), (b"etag", version_etag(facts.version))],
    )


def session_path(session: str) -> bytes:
    return b"/sessions/%s" % quote(session, safe="").encode()


def replayed_header(written: Written) -> list[Header]:
    return [(b"idempotency-replayed", b"true")] if written.replayed else []
