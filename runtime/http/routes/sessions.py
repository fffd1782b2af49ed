"""Sessions: list, create, read, change, delete and fork them."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import MAX_TITLE_LENGTH, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import derived_id, new_id, parse_id
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.breadcrumb.session_rule import (
    MAX_TAG_LENGTH,
    SESSION,
    USER,
    check_new_session_id,
    user_tags,
)
from breadcrumbs.runtime.breadcrumb.text import printable_line
from breadcrumbs.runtime.errors import (
    AlreadyExists,
    AnotherSession,
    InvalidInput,
    NotFound,
    VersionMismatch,
)
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.conditions import IF_MATCH, expected_version
from breadcrumbs.runtime.http.api.listing import read_number
from breadcrumbs.runtime.http.api.operations import Body, Parameter, Routes, SuccessReply
from breadcrumbs.runtime.http.api.problems import (
    ALREADY_EXISTS,
    IDEMPOTENCY_MISMATCH,
    INVALID_CURSOR,
    MALFORMED,
    NOT_FOUND,
    QUOTA_EXCEEDED,
    SESSION_GONE,
    STATE_TOO_LARGE,
    VERSION_MISMATCH,
)
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.session_schemas import (
    ForkRequest,
    ListedSession,
    Session,
    SessionChange,
    SessionCreate,
    SessionDeleted,
    SessionList,
)
from breadcrumbs.runtime.http.auth import check_new_user_id, check_user_id
from breadcrumbs.runtime.http.routes.answering_agents import admit_agent_choice
from breadcrumbs.runtime.http.routes.breadcrumbs import IDEMPOTENCY_KEY, REPLAYED, idempotency_key
from breadcrumbs.runtime.http.routes.models import admit_model_choice
from breadcrumbs.runtime.http.routes.session_views import (
    DEFAULT_PAGE,
    SESSION_ID,
    VERSIONED,
    load_facts,
    named_session,
    replayed_header,
    session_not_found,
    session_path,
    session_reply,
    session_view,
)
from breadcrumbs.runtime.schema_names import SESSION_RECORD, STATE_CHANGE
from breadcrumbs.runtime.sessions.forks import ForkOptions, fork
from breadcrumbs.runtime.sessions.search import (
    MAX_SEARCH_LENGTH,
    SearchPage,
    SearchRequest,
    search,
    search_words,
)
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.session_facts import SessionFacts
from breadcrumbs.runtime.store.state import PAUSED, RESUMED, secrecy_flags, sensitivity_of

MAX_LISTED_SESSIONS: Final = 500
_LIMIT: Final = Parameter(
    "limit",
    "query",
    "Maximum number of sessions.",
    {"type": "integer", "minimum": 1, "maximum": MAX_LISTED_SESSIONS, "default": DEFAULT_PAGE},
    example=20,
)
routes = Routes("Sessions")


@routes.operation(
    id="listSessions",
    method="GET",
    path="/sessions",
    summary="List sessions",
    description=(
        "All sessions that the token may see, most recently active first. With `q`, only sessions whose title or "
        "messages contain all of its words, and the matching messages. A search reads a limited number of messages "
        "per request. A page can therefore be empty and still have a `next_cursor`."
    ),
    parameters=(
        _LIMIT,
        Parameter("cursor", "query", "Continues after the previous page: its `next_cursor`."),
        Parameter(
            "user_id",
            "query",
            "Only sessions of this user.",
            {"type": "string", "minLength": 1, "maxLength": MAX_TAG_LENGTH - len(USER)},
        ),
        Parameter(
            "q",
            "query",
            "Words to search in titles and messages. Upper and lower case are equal. `limit` then also limits the "
            "number of messages.",
            {"type": "string", "minLength": 1, "maxLength": MAX_SEARCH_LENGTH},
        ),
    ),
    successes=(SuccessReply(200, "A page of sessions.", SessionList),),
    may_fail=(INVALID_CURSOR,),
)
async def list_sessions(call: HttpCall) -> Reply:
    principal, given = call.principal, call.query()
    limit = read_number(given, "limit", DEFAULT_PAGE)
    if not 1 <= limit <= MAX_LISTED_SESSIONS:
        raise InvalidInput(f"limit must be from 1 to {MAX_LISTED_SESSIONS}", where="limit")
    user = check_user_id(given["user_id"]) if "user_id" in given else None
    if "q" in given:
        request = SearchRequest(search_words(given["q"]), limit, given.get("cursor"), user)
        async with call.services.searches.hold(principal.owner_id, principal):
            return _search_reply(await search(call.services.store, principal, request), principal)

    def keep(facts: SessionFacts) -> bool:
        return policy.may_see_session(principal, facts.id, facts.user) and user in (None, facts.user)

    cursor = None
    if principal.session_id is not None:
        if "cursor" in given:
            raise InvalidInput(
                "this token is narrowed to one session: omit the cursor",
                where="cursor",
            )
        try:
            found = [facts for facts in (await load_facts(call, principal.session_id),) if keep(facts)]
        except NotFound:
            found = []
    else:
        filtered = user is not None or policy.needs_session_user(principal)
        page = await Sessions(call.services.store).page(
            principal.owner_id,
            limit=limit,
            cursor=given.get("cursor"),
            keep=keep if filtered else None,
            user=principal.user_id if user is None else user,
        )
        found, cursor = page.items, page.next_cursor
    return Reply.json(_session_page(found, cursor, principal))


def _session_page(found: list[SessionFacts], cursor: str | None, principal: Principal) -> dict[str, Any]:
    body: dict[str, Any] = {
        "sessions": [session_view(facts, principal, state=False) for facts in found],
        "has_more": cursor is not None,
    }
    if cursor is not None:
        body["next_cursor"] = cursor
    return body


def _search_reply(page: SearchPage, principal: Principal) -> Reply:
    body = _session_page(page.sessions, page.next_cursor, principal)
    return Reply.json({**body, "matches": page.matches})


@routes.operation(
    id="createSession",
    method="POST",
    path="/sessions",
    summary="Create a session",
    description=(
        "This is optional: the first breadcrumb with the `session:` tag also creates a session. Use this to create "
        "a session with a title, a user or a state."
    ),
    uses_store="writes",
    parameters=(IDEMPOTENCY_KEY,),
    body=Body(SessionCreate, {"id": "abc", "title": "Holidays", "state": {"language": "en"}}),
    successes=(
        SuccessReply(
            201,
            "Session created.",
            Session | ListedSession,
            headers={"Location": "The path of the session.", **VERSIONED, **REPLAYED},
            optional_headers=frozenset(REPLAYED),
        ),
    ),
    may_fail=(
        ALREADY_EXISTS,
        IDEMPOTENCY_MISMATCH,
        SESSION_GONE,
        NOT_FOUND,
        STATE_TOO_LARGE,
        QUOTA_EXCEEDED,
    ),
)
async def create_session(call: HttpCall) -> Reply:
    principal = call.principal
    wanted = parse_body(SessionCreate, await call.json())
    key = idempotency_key(call)
    session = _new_session_name(call, wanted.id, key)
    user = policy.admit_session_user(
        principal, None if wanted.user_id is None else check_new_user_id(wanted.user_id)
    )
    context: dict[str, Any] = {"session_id": session}
    if wanted.title is not None:
        context["title"] = wanted.title
    if user is not None:
        context["user_id"] = user
    if wanted.state is not None:
        policy.check_state_names(principal, wanted.state)
        context |= {"state_delta": wanted.state, **secrecy_flags(wanted.state)}
    new = BreadcrumbCreate.parse(
        {
            "schema_name": SESSION_RECORD,
            "title": wanted.title or "",
            "tags": [SESSION + session, *([USER + user] if user is not None else [])],
            "context": context,
            "sensitivity": sensitivity_of(wanted.state),
        }
    )
    store = call.services.store
    try:
        written = await store.create(
            principal.owner_id,
            new,
            by=principal.agent_id,
            idempotency_key=key,
            options=CreateOptions(session_version=0),
        )
    except VersionMismatch:
        raise AlreadyExists(f"session {session!r} already exists: choose another id, or omit it") from None
    facts = await load_facts(call, session)
    return session_reply(
        facts,
        principal,
        status=201,
        headers=[(b"location", session_path(session)), *replayed_header(written)],
    )


@routes.operation(
    id="getSession",
    method="GET",
    path="/sessions/{id}",
    summary="Read a session",
    parameters=(SESSION_ID,),
    successes=(SuccessReply(200, "The session.", Session, headers=VERSIONED),),
)
async def get_session(call: HttpCall) -> Reply:
    return session_reply(await load_facts(call, named_session(call)), call.principal)


@routes.operation(
    id="changeSession",
    method="PATCH",
    path="/sessions/{id}",
    summary="Change a session",
    description=(
        "`state` is merged, and null removes a name from it. A title of null removes the title. `active: false` "
        "pauses the session: its contexts lose their `consumer:` tag and agents do not answer. `active: true` "
        "resumes it, and agents answer the waiting messages. `model` chooses the model of the session from the next "
        "message on, and null returns to the models of the agents. `agent` chooses the only agent that answers users' "
        "messages, from the next message on, and null lets all agents answer again. The whole change is one atomic "
        "write. With If-Match, it is applied as a whole or not at all."
    ),
    uses_store="writes",
    parameters=(SESSION_ID, IF_MATCH),
    body=Body(SessionChange, {"title": "Summer holidays", "state": {"language": "de"}}),
    successes=(SuccessReply(200, "The changed session.", Session | ListedSession, headers=VERSIONED),),
    may_fail=(SESSION_GONE, STATE_TOO_LARGE, VERSION_MISMATCH, QUOTA_EXCEEDED),
)
async def change_session(call: HttpCall) -> Reply:
    principal, session = call.principal, named_session(call)
    expected = expected_version(call)
    change = parse_body(SessionChange, await call.json())
    if (
        not change.model_fields_set & {"title", "model", "agent"}
        and change.state is None
        and change.active is None
    ):
        raise InvalidInput(
            "the change is empty: send at least one of title, state, active, model and agent", where="body"
        )
    facts = await load_facts(call, session)
    context: dict[str, Any] = {"session_id": session}
    tags = [SESSION + session, "session-change"]
    if "title" in change.model_fields_set:
        context["title"] = change.title
    if "model" in change.model_fields_set:
        context["model"] = await admit_model_choice(call, change.model)
    if "agent" in change.model_fields_set:
        context["agent"] = await admit_agent_choice(call, change.agent)
    if change.state is not None:
        policy.check_state_names(principal, change.state)
        context |= {"state_delta": change.state, **secrecy_flags(change.state)}
    if change.active is not None and change.active != (facts.about.paused_at is None):
        context["active"] = change.active
        tags.append(RESUMED if change.active else PAUSED)
    if len(context) == 1:  # only `active` was sent, and it is unchanged
        if expected not in (None, facts.version):
            raise VersionMismatch(facts.version, expected or 0)
        return session_reply(facts, principal)
    tags += user_tags(facts.user)
    # The whole change is one breadcrumb, so that one script checks the version and applies all of it or nothing.
    new = BreadcrumbCreate.parse(
        {
            "schema_name": STATE_CHANGE,
            "title": "Session changed",
            "tags": tags,
            "context": context,
            "sensitivity": sensitivity_of(change.state),
        }
    )
    try:
        await call.services.store.create(
            principal.owner_id,
            new,
            by=principal.agent_id,
            options=CreateOptions(
                session_version="*" if expected is None else expected, session_began=facts.created
            ),
        )
    except AnotherSession:
        raise session_not_found(session) from None
    return session_reply(await load_facts(call, session), principal)


@routes.operation(
    id="deleteSession",
    method="DELETE",
    path="/sessions/{id}",
    summary="Delete a session",
    description=(
        "Deletes the session with its breadcrumbs, contexts, waiting work and dead letters. Running turns are "
        "cancelled and write nothing. The name can then be used again."
    ),
    uses_store="writes",
    parameters=(SESSION_ID, IF_MATCH),
    successes=(SuccessReply(200, "Session deleted.", SessionDeleted),),
    may_fail=(MALFORMED, VERSION_MISMATCH),
)
async def delete_session(call: HttpCall) -> Reply:
    session = named_session(call)
    expected = expected_version(call)
    await load_facts(call, session)
    deleted = await Sessions(call.services.store).delete(
        call.principal.owner_id, session, expected_version=expected
    )
    return Reply.json({"ok": True, "deleted": deleted})


@routes.operation(
    id="forkSession",
    method="POST",
    path="/sessions/{id}/fork",
    summary="Fork a session",
    description=(
        "Creates a new session with copies of the messages. The copies have new ids and their original times, and "
        "agents do not answer them. Errors, contexts and breadcrumbs that the token may not read are not copied. The "
        "state is that of the time of the last copied message. With an Idempotency-Key, a retry returns the same "
        "fork."
    ),
    uses_store="writes",
    parameters=(SESSION_ID, IDEMPOTENCY_KEY),
    body=Body(ForkRequest, {"title": "Another way"}, required=False),
    successes=(
        SuccessReply(
            201,
            "Session created.",
            Session | ListedSession,
            headers={"Location": "The path of the session.", **VERSIONED, **REPLAYED},
            optional_headers=frozenset(REPLAYED),
        ),
    ),
    may_fail=(ALREADY_EXISTS, SESSION_GONE, STATE_TOO_LARGE, QUOTA_EXCEEDED),
)
async def fork_session(call: HttpCall) -> Reply:
    principal, origin = call.principal, named_session(call)
    policy.check_fork(principal)
    wanted = parse_body(ForkRequest, await call.optional_json())
    if wanted.message_id is not None and wanted.before_id is not None:
        raise InvalidInput("message_id and before_id cannot be combined: use one of them", where="before_id")
    facts = await load_facts(call, origin)
    key = idempotency_key(call)
    session = _new_session_name(call, wanted.id, key, "fork", origin)
    written = await fork(
        call.services.store,
        principal,
        origin,
        session,
        ForkOptions(
            message_id=None if wanted.message_id is None else parse_id(wanted.message_id, what="message_id"),
            before_id=None if wanted.before_id is None else parse_id(wanted.before_id, what="before_id"),
            title=wanted.title if wanted.title is not None else _title_text(facts.about.title),
            user_id=facts.user,
            model=facts.about.model,
            agent=facts.about.agent,
            request=None if key is None else _fork_digest(key, origin, wanted),
        ),
    )
    return session_reply(
        await load_facts(call, session),
        principal,
        status=201,
        headers=[(b"location", session_path(session)), *replayed_header(written)],
    )


def _fork_digest(key: str, origin: str, wanted: ForkRequest) -> str:
    """Return a digest that a repeated request has, too. Without `before_id`, it is that of earlier versions."""
    fields = wanted.model_dump()
    if wanted.before_id is None:
        del fields["before_id"]
    return sha256(canonical([key, origin, fields])).hexdigest()


def _new_session_name(call: HttpCall, wanted: str | None, key: str | None, *purpose: str) -> str:
    """Return the requested id of a new session, or a generated one."""
    principal = call.principal
    name = policy.admit_session_name(principal, None if wanted is None else check_new_session_id(wanted))
    if name is not None:
        return name
    if key is None:
        return str(new_id(0))
    # The id is derived from the key, so that a retry finds the session of the first attempt.
    return str(derived_id(0, "session", str(principal.owner_id), key, *purpose))


def _title_text(text: str | None) -> str | None:
    """Return a session title that is valid as a breadcrumb title. Stored titles can be less strict."""
    if text is None:
        return None
    return printable_line(text)[:MAX_TITLE_LENGTH]
