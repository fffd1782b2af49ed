"""Sessions: the convenient way to a conversation. Each is a view of its breadcrumbs."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from hashlib import sha256
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import (
    MAX_TAG_LENGTH,
    MAX_TITLE_LENGTH,
    SESSION,
    USER,
    USER_MESSAGE,
    Breadcrumb,
    BreadcrumbCreate,
    check_new_session_id,
    check_session_id,
    complaints_of,
    user_in,
    user_tags,
)
from breadcrumbs.runtime.breadcrumb.ids import derived_id, new_id, parse_id
from breadcrumbs.runtime.breadcrumb.json_input import canonical
from breadcrumbs.runtime.errors import (
    AlreadyExists,
    AnotherSession,
    InvalidInput,
    NotFound,
    NothingToRetry,
    VersionMismatch,
)
from breadcrumbs.runtime.http.api.conditions import IF_MATCH, etag_of, expected_version
from breadcrumbs.runtime.http.api.listing import read_number
from breadcrumbs.runtime.http.api.operations import UUID_SCHEMA, Answer, Body, Call, Operation, Parameter
from breadcrumbs.runtime.http.api.problems import (
    ALREADY_EXISTS,
    IDEMPOTENCY_MISMATCH,
    INVALID_CURSOR,
    MALFORMED,
    NOT_FOUND,
    NOTHING_TO_RETRY,
    QUOTA_EXCEEDED,
    SESSION_CONFLICT,
    SESSION_GONE,
    STATE_TOO_LARGE,
    VERSION_MISMATCH,
)
from breadcrumbs.runtime.http.api.replies import Header, Reply, encoded
from breadcrumbs.runtime.http.api.session_schemas import (
    ForkRequest,
    ListedSession,
    MessageAnswered,
    MessageCreate,
    MessageList,
    MessageOutcome,
    MessagePosted,
    Retried,
    RetryRequest,
    Session,
    SessionChange,
    SessionCreate,
    SessionDeleted,
    SessionList,
)
from breadcrumbs.runtime.http.auth import check_new_user_id, check_user_id
from breadcrumbs.runtime.http.routes.breadcrumbs import IDEMPOTENCY_KEY, REPLAYED, idempotency_key
from breadcrumbs.runtime.http.routes.waiting import (
    EVENT_STREAM,
    WAIT,
    AnswerStream,
    answered,
    name_of,
    seconds_to_wait,
    wants_stream,
)
from breadcrumbs.runtime.sessions.forks import ForkOptions, fork
from breadcrumbs.runtime.sessions.messages import (
    ANSWER,
    ERROR,
    MESSAGE,
    MOST_MESSAGES,
    PageRange,
    message_in,
    message_view,
    read_page,
    shortened,
    summary_of,
)
from breadcrumbs.runtime.sessions.outcomes import Watch, outcome_of
from breadcrumbs.runtime.sessions.retries import retry
from breadcrumbs.runtime.sessions.sessions import SessionFacts, Sessions
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.state import (
    PAUSED,
    RESUMED,
    SESSION_RECORD,
    STATE_CHANGE,
    sensitivity_of,
    what_is_secret,
)
from breadcrumbs.runtime.store.written import Written

_Model = TypeVar("_Model", bound=BaseModel)

MOST_SESSIONS: Final = 500
DEFAULT_PAGE: Final = 50

# Which session, and whether it is theirs


def session_id(call: Call) -> str:
    """Return the session that the path names, if it can exist for the principal."""
    session = check_session_id(call.name())
    if not policy.may_name_session(call.principal, session):
        raise no_session(session)
    return session


def no_session(session: str) -> NotFound:
    return NotFound(f"there is no session {session!r}")


async def facts_of(call: Call, session: str) -> SessionFacts:
    facts = await Sessions(call.services.store).get(call.principal.owner_id, session, first_message=True)
    if not policy.may_see_session(call.principal, facts.id, facts.user):
        raise no_session(session)
    return facts


def session_view(facts: SessionFacts, principal: Principal, *, state: bool = True) -> dict[str, Any]:
    counts = facts.counts
    view: dict[str, Any] = {"id": facts.id}
    # Who may only write is told how much there is, and nothing that anybody said.
    may_read = policy.has_role(principal, "subscriber")
    if may_read:
        view |= _words_about(facts, principal)
    view |= {
        "version": facts.version,
        "created_at": times.to_text(facts.created),
        "last_active_at": times.to_text(facts.active),
        "returning": counts.get(ANSWER, 0) > 0,
        "active": facts.about.paused_at is None,
        "counts": {
            "messages": counts.get(MESSAGE, 0),
            "answers": counts.get(ANSWER, 0),
            "errors": counts.get(ERROR, 0),
            "breadcrumbs": sum(counts.values()),
        },
    }
    if state and may_read:
        view["state"] = facts.state_for(principal)
    return view


def _words_about(facts: SessionFacts, principal: Principal) -> dict[str, str]:
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
        headers=[*(headers or ()), (b"etag", etag_of(facts.version))],
    )


# Sessions


async def list_sessions(call: Call) -> Reply:
    principal, given = call.principal, call.query()
    limit = read_number(given, "limit", DEFAULT_PAGE)
    if not 1 <= limit <= MOST_SESSIONS:
        raise InvalidInput(f"limit must be from 1 to {MOST_SESSIONS}", where="limit")
    user = check_user_id(given["user_id"]) if "user_id" in given else None

    def keep(facts: SessionFacts) -> bool:
        return policy.may_see_session(principal, facts.id, facts.user) and user in (None, facts.user)

    cursor = None
    if principal.session_id is not None:
        if "cursor" in given:
            raise InvalidInput("this token is for one session: there is no next page", where="cursor")
        try:
            found = [facts for facts in (await facts_of(call, principal.session_id),) if keep(facts)]
        except NotFound:
            found = []
    else:
        filtered = user is not None or policy.needs_session_user(principal)
        page = await Sessions(call.services.store).page(
            principal.owner_id,
            limit=limit,
            cursor=given.get("cursor"),
            keep=keep if filtered else None,
        )
        found, cursor = page.items, page.next_cursor
    answer: dict[str, Any] = {
        "sessions": [session_view(facts, principal, state=False) for facts in found],
        "has_more": cursor is not None,
    }
    if cursor is not None:
        answer["next_cursor"] = cursor
    return Reply.json(answer)


async def create_session(call: Call) -> Reply:
    principal = call.principal
    wanted = _parsed(SessionCreate, await call.json())
    key = idempotency_key(call)
    session = _name_for(call, wanted.id, key)
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
        context |= {"state_delta": wanted.state, **what_is_secret(wanted.state)}
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
        raise AlreadyExists(
            f"there is a session {session!r} already: choose another id, or leave it out"
        ) from None
    facts = await facts_of(call, session)
    return session_reply(
        facts, principal, status=201, headers=[(b"location", _path(session)), *_replayed(written)]
    )


async def get_session(call: Call) -> Reply:
    return session_reply(await facts_of(call, session_id(call)), call.principal)


async def change_session(call: Call) -> Reply:
    principal, session = call.principal, session_id(call)
    expected = expected_version(call)
    change = _parsed(SessionChange, await call.json())
    if "title" not in change.model_fields_set and change.state is None and change.active is None:
        raise InvalidInput("the change is empty: send title, state or active", where="body")
    facts = await facts_of(call, session)
    context: dict[str, Any] = {"session_id": session}
    tags = [SESSION + session, "session-change"]
    if "title" in change.model_fields_set:
        context["title"] = change.title
    if change.state is not None:
        policy.check_state_names(principal, change.state)
        context |= {"state_delta": change.state, **what_is_secret(change.state)}
    if change.active is not None and change.active != (facts.about.paused_at is None):
        context["active"] = change.active
        tags.append(RESUMED if change.active else PAUSED)
    if len(context) == 1:  # as active as it was: nothing changes
        if expected not in (None, facts.version):
            raise VersionMismatch(facts.version, expected or 0)
        return session_reply(facts, principal)
    tags += user_tags(facts.user)
    # One breadcrumb for all of it: the version is checked and everything is set in one script, or nothing is.
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
        raise no_session(session) from None
    return session_reply(await facts_of(call, session), principal)


async def delete_session(call: Call) -> Reply:
    session = session_id(call)
    expected = expected_version(call)
    await facts_of(call, session)
    deleted = await Sessions(call.services.store).delete(
        call.principal.owner_id, session, expected_version=expected
    )
    return Reply.json({"ok": True, "deleted": deleted})


# Messages


async def list_messages(call: Call) -> Reply:
    principal, session, given = call.principal, session_id(call), call.query()
    # Side by side: of a session that is not there, or is just being deleted, nothing is shown.
    page, _ = await asyncio.gather(
        read_page(
            call.services.store,
            principal,
            session,
            PageRange(
                limit=read_number(given, "limit", DEFAULT_PAGE),
                before=given.get("before"),
                after=given.get("after"),
                max_bytes=call.services.settings.max_response_bytes,
            ),
        ),
        facts_of(call, session),
    )
    answer: dict[str, Any] = {
        "messages": encoded(message_view(crumb.unparsed(), principal) for crumb in page.messages),
        "has_more": page.has_more,
    }
    if page.before is not None:
        answer["before"] = page.before
    if page.after is not None:
        answer["after"] = page.after
    return Reply.json(answer)


async def get_message(call: Call) -> Reply:
    principal, session, store = call.principal, session_id(call), call.services.store
    agent = call.query().get("agent_id")
    await facts_of(call, session)
    message = await message_in(store, principal, session, call.message_id())
    answer = {"message": message_view(message, principal)}
    outcome = await outcome_of(store, principal, message, agent=agent)
    if outcome is not None:
        answer[name_of(outcome)] = message_view(outcome, principal)
    return Reply.json(answer)


async def post_message(call: Call) -> Reply:
    given = call.query()
    stream = wants_stream(call)
    seconds = seconds_to_wait(given, call.principal, stream=stream)
    if seconds:
        policy.check_operation(call.principal, "waitForAnswer")
    if not seconds:
        crumb, posted, written = await _post(call)
        return Reply.json(posted, status=201, headers=_about(written))
    with ExitStack() as stack:
        stack.enter_context(call.services.streams.waiting(call.principal))
        # Listening first: the answer may be there before the reply to the write is.
        watch = Watch(call.services.store, call.services.hub, call.principal, session_id(call))
        await watch.begin()
        stack.callback(watch.end)
        crumb, posted, written = await _post(call)
        look_first = written.session_version is None  # posted before: no event may be left to wait for
        if stream:
            # The watch then ends with the stream.
            end = stack.pop_all().close
            return AnswerStream(
                call, watch, crumb, posted, seconds, end, look_first=look_first, headers=_about(written)
            )
        reply = await answered(call, watch, crumb, posted, seconds, look_first=look_first)
        reply.headers += _about(written)
        return reply


async def _post(call: Call) -> tuple[Breadcrumb, dict[str, Any], Written]:
    """Post what a request says: the breadcrumb, what is told of it, and what the write did."""
    principal, session, sessions = call.principal, session_id(call), Sessions(call.services.store)
    expected: int | Literal["*"] | None = expected_version(call)
    if expected is None and b"if-match" in call.headers:
        expected = "*"
    said = _parsed(MessageCreate, await call.json())
    user = principal.user_id
    if user is None:
        held = await sessions.belonging(principal.owner_id, session)
        if held is None and expected is not None:
            raise no_session(session)
        user = None if held is None else held.user
    new = _message(principal, session, said, user)
    written = await sessions.create_as(
        principal, new, idempotency_key=idempotency_key(call), session_version=expected
    )
    crumb, version = await _as_it_is(call, session, new, written)
    posted: dict[str, Any] = {"message": message_view(crumb, principal)}
    if version is not None:
        posted["session_version"] = version
    return crumb, posted, written


def _about(written: Written) -> list[Header]:
    return [(b"location", b"/breadcrumbs/%s" % str(written.id).encode()), *_replayed(written)]


def _message(principal: Principal, session: str, said: MessageCreate, user: str | None) -> BreadcrumbCreate:
    if "message" in said.context:
        raise InvalidInput("the words go into `message`, not into context.message", where="context.message")
    fields = {
        "schema_name": MESSAGE,
        "title": shortened(said.message),
        "tags": list(dict.fromkeys([USER_MESSAGE, SESSION + session, *said.tags])),
        "context": {**said.context, "message": said.message},
    }
    new = policy.admit_new(principal, BreadcrumbCreate.parse(fields))
    if user_in(new.tags) is not None:
        return new
    # The runtime names the user of the session. A client that may name nobody need not.
    return BreadcrumbCreate.parse({**fields, "tags": [*new.tags, *user_tags(user)]})


async def _as_it_is(
    call: Call, session: str, new: BreadcrumbCreate, written: Written
) -> tuple[Breadcrumb, int | None]:
    """Return the breadcrumb and the session's version; of a replay, what the store has now."""
    if written.breadcrumb is not None:
        return written.breadcrumb, written.session_version
    principal, by = call.principal, call.principal.agent_id
    json = call.services.store.content(new).json
    first = Breadcrumb(
        written.id, principal.owner_id, 1, written.created, written.updated, 0, 0, by, by, json
    )
    try:
        version = (await facts_of(call, session)).version
        crumb = await call.services.store.get(principal.owner_id, written.id, count_read=False)
    except NotFound:  # deleted since: it was written all the same, as this said the first time
        return first, None
    # Others may have changed it: that is for who may read.
    readable = policy.has_role(principal, "subscriber") and policy.may_see(principal, crumb)
    return crumb if readable else first, version


# Forks and retries


async def fork_session(call: Call) -> Reply:
    principal, origin = call.principal, session_id(call)
    policy.check_fork(principal)
    wanted = _parsed(ForkRequest, await call.optional_json())
    facts = await facts_of(call, origin)
    key = idempotency_key(call)
    session = _name_for(call, wanted.id, key, "fork", origin)
    written = await fork(
        call.services.store,
        principal,
        origin,
        session,
        ForkOptions(
            message_id=None if wanted.message_id is None else parse_id(wanted.message_id, what="message_id"),
            title=wanted.title if wanted.title is not None else _as_title(facts.about.title),
            user_id=facts.user,
            request=None
            if key is None
            else sha256(canonical([key, origin, wanted.model_dump()])).hexdigest(),
        ),
    )
    return session_reply(
        await facts_of(call, session),
        principal,
        status=201,
        headers=[(b"location", _path(session)), *_replayed(written)],
    )


async def retry_turn(call: Call) -> Reply:
    principal, session = call.principal, session_id(call)
    wanted = _parsed(RetryRequest, await call.optional_json())
    facts = await facts_of(call, session)
    if facts.about.paused_at is not None:
        raise NothingToRetry(f"session {session!r} is paused: PATCH it with active true, and try again")
    message, at = await retry(
        call.services.store,
        principal,
        session,
        None if wanted.message_id is None else parse_id(wanted.message_id, what="message_id"),
    )
    return Reply.json({"ok": True, "message_id": str(message), "retried_at": times.to_text(at)}, status=202)


# Small things


def _parsed(model: type[_Model], document: object) -> _Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InvalidInput("the body is not valid", complaints=complaints_of(error)) from None


def _name_for(call: Call, wanted: str | None, key: str | None, *purpose: str) -> str:
    principal = call.principal
    name = policy.admit_session_name(principal, None if wanted is None else check_new_session_id(wanted))
    if name is not None:
        return name
    if key is None:
        return str(new_id(0))
    # The same for the same key: a retry must find what the first try made.
    return str(derived_id(0, "session", str(principal.owner_id), key, *purpose))


def _as_title(text: str | None) -> str | None:
    """What a session is called, as a title of a breadcrumb: whoever gave it may have been less strict."""
    if text is None:
        return None
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:MAX_TITLE_LENGTH]


def _path(session: str) -> bytes:
    return b"/sessions/%s" % quote(session, safe="").encode()


def _replayed(written: Written) -> list[Header]:
    return [(b"idempotency-replayed", b"true")] if written.replayed else []


SESSION_ID: Final = Parameter(
    "id",
    "path",
    "The session; percent-encode what is not a letter or a digit.",
    {"type": "string", "minLength": 1, "maxLength": MAX_TAG_LENGTH - len(SESSION)},
    example="abc",
)
_LIMIT: Final = Parameter(
    "limit",
    "query",
    "How many to give at most.",
    {"type": "integer", "minimum": 1, "maximum": MOST_SESSIONS, "default": DEFAULT_PAGE},
    example=20,
)
_POSTED: Final = {"Location": "Where the breadcrumb is.", **REPLAYED}
_SOMETIMES: Final = frozenset(REPLAYED)
_VERSIONED: Final = {"ETag": "The session's version, for If-Match."}

OPERATIONS: Final = (
    Operation(
        id="listSessions",
        method="GET",
        path="/sessions",
        group="Sessions",
        summary="List sessions",
        description="Yours, the last active one first.",
        handle=list_sessions,
        parameters=(
            _LIMIT,
            Parameter("cursor", "query", "Where the last page ended: its `next_cursor`."),
            Parameter(
                "user_id",
                "query",
                "Of this user.",
                {"type": "string", "minLength": 1, "maxLength": MAX_TAG_LENGTH - len(USER)},
            ),
        ),
        answers=(Answer(200, "A page.", SessionList),),
        may_fail=(INVALID_CURSOR,),
    ),
    Operation(
        id="createSession",
        method="POST",
        path="/sessions",
        group="Sessions",
        summary="Begin a session",
        description=(
            "Not needed before the first message: a session is there as soon as anything is posted in it. "
            "This way it begins with a title, a user, a state."
        ),
        handle=create_session,
        uses_store="writes",
        parameters=(IDEMPOTENCY_KEY,),
        body=Body(SessionCreate, {"id": "abc", "title": "Holidays", "state": {"language": "en"}}),
        answers=(
            Answer(
                201,
                "It is there.",
                Session | ListedSession,
                headers={"Location": "Where it is.", **_VERSIONED, **REPLAYED},
                sometimes=frozenset(REPLAYED),
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
    ),
    Operation(
        id="getSession",
        method="GET",
        path="/sessions/{id}",
        group="Sessions",
        summary="Read a session",
        handle=get_session,
        parameters=(SESSION_ID,),
        answers=(Answer(200, "The session.", Session, headers=_VERSIONED),),
    ),
    Operation(
        id="changeSession",
        method="PATCH",
        path="/sessions/{id}",
        group="Sessions",
        summary="Change a session",
        description=(
            "`state` is merged, and null takes a name out of it; a title that is null goes. With `active: false` "
            "the session's contexts lose their `consumer:` tag and agents do not answer; with `active: true` what "
            "waited is answered. All of it is one write: with If-Match it happens as a whole or not at all."
        ),
        handle=change_session,
        uses_store="writes",
        parameters=(SESSION_ID, IF_MATCH),
        body=Body(SessionChange, {"title": "Summer holidays", "state": {"language": "de"}}),
        answers=(Answer(200, "The session as it is now.", Session | ListedSession, headers=_VERSIONED),),
        may_fail=(SESSION_GONE, STATE_TOO_LARGE, VERSION_MISMATCH, QUOTA_EXCEEDED),
    ),
    Operation(
        id="deleteSession",
        method="DELETE",
        path="/sessions/{id}",
        group="Sessions",
        summary="Delete a session",
        description=(
            "With everything in it: breadcrumbs, contexts, work that waits, dead letters. Turns that are running "
            "stop and write nothing. The name can be used again."
        ),
        handle=delete_session,
        uses_store="writes",
        parameters=(SESSION_ID, IF_MATCH),
        answers=(Answer(200, "It is gone.", SessionDeleted),),
        may_fail=(MALFORMED, VERSION_MISMATCH),
    ),
    Operation(
        id="listMessages",
        method="GET",
        path="/sessions/{id}/messages",
        group="Sessions",
        summary="Read what was said",
        description=(
            "Messages, answers, errors and the use of tools, the oldest first; the newest page unless `before` or "
            "`after` says otherwise."
        ),
        handle=list_messages,
        parameters=(
            SESSION_ID,
            Parameter(
                "limit",
                "query",
                "How many to give at most.",
                {"type": "integer", "minimum": 1, "maximum": MOST_MESSAGES, "default": DEFAULT_PAGE},
                example=20,
            ),
            Parameter("before", "query", "What is older: the `before` of a page."),
            Parameter("after", "query", "What is newer: the `after` of a page."),
        ),
        answers=(Answer(200, "A page.", MessageList),),
        may_fail=(INVALID_CURSOR,),
    ),
    Operation(
        id="getMessage",
        method="GET",
        path="/sessions/{id}/messages/{message_id}",
        group="Sessions",
        summary="Read a message and what came of it",
        description=(
            "Its answer, or the last error where there is none; neither while its turn is still run, or is run again."
        ),
        handle=get_message,
        parameters=(
            SESSION_ID,
            Parameter("message_id", "path", "The message.", UUID_SCHEMA),
            Parameter("agent_id", "query", "Only what came of it with this agent."),
        ),
        answers=(Answer(200, "The message.", MessageOutcome),),
    ),
    Operation(
        id="postMessage",
        method="POST",
        path="/sessions/{id}/messages",
        group="Sessions",
        summary="Say something",
        description=(
            "Posts a `user.message.v1` breadcrumb in the session, which is made if it is not there. If-Match is the "
            "session's version. With `wait` the reply comes with the answer, or with `Accept: text/event-stream` "
            "as named events: `message`, `delta` for each piece, then `answer` or `error`; `timeout` when the time "
            "is up, `problem` when it cannot go on. Whoever goes away does not stop the turn. Waiting needs the role "
            "`subscriber` too."
        ),
        handle=post_message,
        spends="posting",
        uses_store="writes",
        parameters=(SESSION_ID, WAIT, IDEMPOTENCY_KEY, IF_MATCH),
        body=Body(MessageCreate, {"message": "Hello!"}),
        answers=(
            Answer(
                200, "It is answered, or it failed.", MessageAnswered, headers=_POSTED, sometimes=_SOMETIMES
            ),
            Answer(200, "As events.", media_type=EVENT_STREAM, headers=_POSTED, sometimes=_SOMETIMES),
            Answer(201, "It is stored.", MessagePosted, headers=_POSTED, sometimes=_SOMETIMES),
            Answer(
                202,
                "It is stored; the time was up before an answer came.",
                MessagePosted,
                headers=_POSTED,
                sometimes=_SOMETIMES,
            ),
        ),
        may_fail=(IDEMPOTENCY_MISMATCH, SESSION_CONFLICT, SESSION_GONE, VERSION_MISMATCH, QUOTA_EXCEEDED),
    ),
    Operation(
        id="forkSession",
        method="POST",
        path="/sessions/{id}/fork",
        group="Sessions",
        summary="Begin a session with what was said in another",
        description=(
            "The copies have their original times and ids of their own; nobody answers them. Errors, contexts and "
            "what you may not read are left behind. The state is the one of that moment. With an Idempotency-Key a "
            "retry gives the same fork."
        ),
        handle=fork_session,
        uses_store="writes",
        parameters=(SESSION_ID, IDEMPOTENCY_KEY),
        body=Body(ForkRequest, {"title": "Another way"}, required=False),
        answers=(
            Answer(
                201,
                "It is there.",
                Session | ListedSession,
                headers={"Location": "Where it is.", **_VERSIONED, **REPLAYED},
                sometimes=frozenset(REPLAYED),
            ),
        ),
        may_fail=(ALREADY_EXISTS, SESSION_GONE, STATE_TOO_LARGE, QUOTA_EXCEEDED),
    ),
    Operation(
        id="retryTurn",
        method="POST",
        path="/sessions/{id}/retry",
        group="Sessions",
        summary="Run a failed turn again",
        description="The message is not posted again, and nobody answers it twice.",
        handle=retry_turn,
        uses_store="writes",
        parameters=(SESSION_ID,),
        body=Body(RetryRequest, {}, required=False),
        answers=(Answer(202, "It is being run again.", Retried),),
        may_fail=(NOTHING_TO_RETRY, SESSION_GONE),
    ),
)
