"""Looks up the session of a path, and renders sessions as replies."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.access.redaction import visible_state
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, SESSION, check_session_id
from breadcrumbs.runtime.errors import NotFound
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
    "The id of the session. Percent-encode all characters except letters and digits.",
    {"type": "string", "minLength": 1, "maxLength": MAX_TAG_LENGTH - len(SESSION)},
    example="abc",
)
VERSIONED: Final = {"ETag": "The version of the session, for If-Match."}


def named_session(call: HttpCall) -> str:
    """Return the session id of the path. Raises `NotFound` if the principal may not access it."""
    session = check_session_id(call.path_name())
    if not policy.may_name_session(call.principal, session):
        raise session_not_found(session)
    return session


def session_not_found(session: str) -> NotFound:
    return NotFound(f"session {session!r} not found")


async def load_facts(call: HttpCall, session: str) -> SessionFacts:
    """Read a session. Raises `NotFound` if it does not exist or the principal may not see it."""
    facts = await Sessions(call.services.store).get(call.principal.owner_id, session, first_message=True)
    if not policy.may_see_session(call.principal, facts.id, facts.user):
        raise session_not_found(session)
    return facts


def session_view(facts: SessionFacts, principal: Principal, *, state: bool = True) -> dict[str, Any]:
    """Return a session as JSON, limited to the fields that the principal may read."""
    counts = facts.counts
    view: dict[str, Any] = {"id": facts.id}
    # A principal that can only write gets the counts, but no texts and no state.
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
        view["state"] = visible_state(principal, facts.raw_state)
    return view


def _session_texts(facts: SessionFacts, principal: Principal) -> dict[str, str]:
    texts = {
        "title": facts.about.title,
        "summary": None,
        "user_id": facts.user,
        "model": facts.about.model,
        "agent": facts.about.agent,
    }
    if facts.first_message is not None:
        texts["summary"] = summary_of(facts.first_message, principal)
    return {name: text for name, text in texts.items() if text is not None}


def session_reply(
    facts: SessionFacts, principal: Principal, *, status: int = 200, headers: list[Header] | None = None
) -> Reply:
    """Return a reply with a session and its version as ETag."""
    return Reply.json(
        session_view(facts, principal),
        status=status,
        headers=[*(headers or ()), (b"etag", version_etag(facts.version))],
    )


def session_path(session: str) -> bytes:
    return b"/sessions/%s" % quote(session, safe="").encode()


def replayed_header(written: Written) -> list[Header]:
    return [(b"idempotency-replayed", b"true")] if written.replayed else []
