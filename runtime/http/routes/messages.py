"""Messages of a session: list, read and post them, wait for answers, retry failed turns."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final, Literal

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.images import ATTACHED_IMAGES, check_images
from breadcrumbs.runtime.breadcrumb.roots import root_of
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION, USER_MESSAGE_TAG, user_in, user_tags
from breadcrumbs.runtime.breadcrumb.text import shorten_line
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import InvalidInput, NotFound, NothingToRetry
from breadcrumbs.runtime.http.admission import check_addressee
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.conditions import IF_MATCH, expected_version
from breadcrumbs.runtime.http.api.listing import read_number
from breadcrumbs.runtime.http.api.operations import UUID_SCHEMA, Body, Parameter, Routes, SuccessReply
from breadcrumbs.runtime.http.api.problems import (
    IDEMPOTENCY_MISMATCH,
    INVALID_CURSOR,
    NOTHING_TO_RETRY,
    QUOTA_EXCEEDED,
    SESSION_CONFLICT,
    SESSION_GONE,
    VERSION_MISMATCH,
)
from breadcrumbs.runtime.http.api.replies import Header, Reply, encode_items
from breadcrumbs.runtime.http.api.session_schemas import (
    ChainView,
    MessageAnswered,
    MessageCreate,
    MessageList,
    MessageOutcome,
    MessagePosted,
    Retried,
    RetryRequest,
)
from breadcrumbs.runtime.http.routes.breadcrumbs import IDEMPOTENCY_KEY, REPLAYED, idempotency_key
from breadcrumbs.runtime.http.routes.session_views import (
    DEFAULT_PAGE,
    SESSION_ID,
    load_facts,
    named_session,
    replayed_header,
    session_not_found,
)
from breadcrumbs.runtime.http.routes.waiting import (
    EVENT_STREAM,
    WAIT,
    WAIT_FOR,
    AnswerStream,
    AwaitedAnswer,
    chain_state,
    seconds_to_wait,
    wait_for_answer,
    wants_stream,
)
from breadcrumbs.runtime.schema_names import ADDRESSEE, USER_MESSAGE
from breadcrumbs.runtime.sessions.chains import Chain, read_chain
from breadcrumbs.runtime.sessions.messages import (
    MAX_PAGE_MESSAGES,
    PageRange,
    message_in,
    message_view,
    read_page,
)
from breadcrumbs.runtime.sessions.outcomes import find_outcome, outcome_kind
from breadcrumbs.runtime.sessions.retries import retry
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.sessions.wait_for import WaitFor
from breadcrumbs.runtime.store.written import Written
from breadcrumbs.runtime.streams.watch import SessionWatch

_POSTED_HEADERS: Final = {"Location": "The path of the breadcrumb.", **REPLAYED}
_OPTIONAL_HEADERS: Final = frozenset(REPLAYED)
routes = Routes("Sessions")


@routes.operation(
    id="listMessages",
    method="GET",
    path="/sessions/{id}/messages",
    summary="List messages",
    description=(
        "Messages, answers, errors and tool calls, oldest first. Without `before` and `after` this returns the newest "
        "page. A token for a session that does not exist yet gets an empty list."
    ),
    parameters=(
        SESSION_ID,
        Parameter(
            "limit",
            "query",
            "Maximum number of messages.",
            {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_MESSAGES, "default": DEFAULT_PAGE},
            example=20,
        ),
        Parameter("before", "query", "Returns older messages: the `before` of a page."),
        Parameter("after", "query", "Returns newer messages: the `after` of a page."),
    ),
    successes=(SuccessReply(200, "A page of messages.", MessageList),),
    may_fail=(INVALID_CURSOR,),
)
async def list_messages(call: HttpCall) -> Reply:
    principal, session, given = call.principal, named_session(call), call.query()
    wanted = PageRange(
        limit=read_number(given, "limit", DEFAULT_PAGE),
        before=given.get("before"),
        after=given.get("after"),
        max_bytes=call.services.settings.max_response_bytes,
    )
    store = call.services.store
    try:
        # Both reads run concurrently. The second one raises if the session does not exist or is being deleted.
        page, _ = await gather(read_page(store, principal, session, wanted), load_facts(call, session))
    except NotFound:
        if not await Sessions(store).is_new_for(principal, session):
            raise
        # A client with a token for a new session lists its messages before the first one creates the session.
        return Reply.json({"messages": [], "has_more": False})
    body: dict[str, Any] = {
        "messages": encode_items(
            message_view(crumb.without_parsed_json(), principal) for crumb in page.messages
        ),
        "has_more": page.has_more,
    }
    if page.before is not None:
        body["before"] = page.before
    if page.after is not None:
        body["after"] = page.after
    return Reply.json(body)


@routes.operation(
    id="getMessage",
    method="GET",
    path="/sessions/{id}/messages/{message_id}",
    summary="Read a message and its outcome",
    description=(
        "The outcome is the answer, or the last error if there is no answer. It is absent while the turn runs or is "
        "retried. With `wait_for`, it is an outcome of the chain that the message starts, and `chain` tells whether "
        "the chain has ended. With `wait`, the reply is delayed until then."
    ),
    parameters=(
        SESSION_ID,
        Parameter("message_id", "path", "The id of the message.", UUID_SCHEMA),
        WAIT_FOR,
        WAIT,
        Parameter("agent_id", "query", "Only the outcome of this agent."),
    ),
    successes=(SuccessReply(200, "The message and its outcome.", MessageOutcome),),
)
async def get_message(call: HttpCall) -> Reply:
    principal, session, store = call.principal, named_session(call), call.services.store
    given = call.query()
    wanted, agent = WaitFor.parse(given.get("wait_for")), given.get("agent_id")
    seconds = seconds_to_wait(given, principal, stream=False)
    if agent is not None and ("wait_for" in given or seconds):
        raise InvalidInput(
            "agent_id cannot be combined with wait or wait_for: use wait_for", where="agent_id"
        )
    await load_facts(call, session)
    message = await message_in(store, principal, session, call.message_id())
    body = {"message": message_view(message, principal)}
    with ExitStack() as stack:
        if seconds:
            watch = await _begin_watch(call, stack)
            awaited = AwaitedAnswer(call, watch, message, body, seconds, look_first=True, wanted=wanted)
            return await wait_for_answer(awaited, unanswered_status=200)
    if wanted.which == "first":
        outcome = await find_outcome(store, principal, message, agent=agent)
    else:
        chain = await read_chain(store, principal, message, call.services.agents.triggers)
        outcome, body["chain"] = chain.outcome(wanted), chain_state(chain)
    if outcome is not None:
        body[outcome_kind(outcome)] = message_view(outcome, principal)
    return Reply.json(body)


@routes.operation(
    id="getChain",
    method="GET",
    path="/sessions/{id}/messages/{message_id}/chain",
    summary="Read everything that follows from a message",
    description=(
        "Answers, errors and tool calls, oldest first: those to the message, and those to its answers. "
        "`handed_over_to` names the agents that an answer triggered. `finished` is true if the chain has an outcome, "
        "and no agent or context reacts to it any more. For a message in the middle of a chain, the steps after it are "
        "returned."
    ),
    parameters=(SESSION_ID, Parameter("message_id", "path", "The id of the message.", UUID_SCHEMA)),
    successes=(SuccessReply(200, "The message and its chain.", ChainView),),
)
async def get_chain(call: HttpCall) -> Reply:
    principal, session, store = call.principal, named_session(call), call.services.store
    await load_facts(call, session)
    message = await message_in(store, principal, session, call.message_id())
    chain = await read_chain(store, principal, message, call.services.agents.triggers)
    return Reply.json(
        {
            "root_id": root_of(message),
            "message": _step_view(chain, message, principal),
            "steps": encode_items(_step_view(chain, step, principal) for step in chain.steps),
            **chain_state(chain),
            "truncated": chain.truncated,
        }
    )


def _step_view(chain: Chain, step: Breadcrumb, principal: Principal) -> dict[str, Any]:
    view = message_view(step, principal)
    if followers := chain.followers(step):
        view["handed_over_to"] = followers
    return view


@routes.operation(
    id="postMessage",
    method="POST",
    path="/sessions/{id}/messages",
    summary="Post a message",
    description=(
        "Posts a `user.message.v1` breadcrumb in the session. A missing session is created. If-Match is the version "
        "of the session. With `agent` only this agent answers. With `wait` the reply contains the answer. With "
        "`Accept: text/event-stream` it is a stream "
        "of named events: `message`, a `delta` for each piece, then `answer` or `error`. The stream ends with "
        "`timeout` after the waiting time, and with `problem` if there can be no answer. With `wait_for`, each "
        "answer of the chain is also sent as `hop`, and the stream ends with `ended` if the chain has ended without "
        "the wanted answer. A client that disconnects does not stop the turn. Waiting also requires the role "
        "`subscriber`."
    ),
    spends="posting",
    uses_store="writes",
    parameters=(SESSION_ID, WAIT, WAIT_FOR, IDEMPOTENCY_KEY, IF_MATCH),
    body=Body(MessageCreate, {"message": "Hello!"}),
    successes=(
        SuccessReply(
            200,
            "The message and its outcome: an answer or an error.",
            MessageAnswered,
            headers=_POSTED_HEADERS,
            optional_headers=_OPTIONAL_HEADERS,
        ),
        SuccessReply(
            200,
            "The outcome as a stream of events.",
            media_type=EVENT_STREAM,
            headers=_POSTED_HEADERS,
            optional_headers=_OPTIONAL_HEADERS,
        ),
        SuccessReply(
            201, "Message posted.", MessagePosted, headers=_POSTED_HEADERS, optional_headers=_OPTIONAL_HEADERS
        ),
        SuccessReply(
            202,
            "Message posted. There was no answer within the waiting time.",
            MessagePosted,
            headers=_POSTED_HEADERS,
            optional_headers=_OPTIONAL_HEADERS,
        ),
    ),
    may_fail=(IDEMPOTENCY_MISMATCH, SESSION_CONFLICT, SESSION_GONE, VERSION_MISMATCH, QUOTA_EXCEEDED),
)
async def post_message(call: HttpCall) -> Reply:
    given = call.query()
    stream = wants_stream(call)
    seconds = seconds_to_wait(given, call.principal, stream=stream)
    wanted = WaitFor.parse(given.get("wait_for"))
    if seconds:
        policy.check_operation(call.principal, "waitForAnswer")
    if not seconds:
        crumb, posted, written = await _post_message(call)
        return Reply.json(posted, status=201, headers=_location_headers(written))
    with ExitStack() as stack:
        # The watch starts before the write, because the answer can arrive before the write returns.
        watch = await _begin_watch(call, stack)
        crumb, posted, written = await _post_message(call)
        look_first = written.session_version is None  # a replay: the event of the answer can be in the past
        awaited = AwaitedAnswer(call, watch, crumb, posted, seconds, look_first, wanted)
        if stream:
            # The stream ends the watch when it is done.
            return AnswerStream(awaited, stack.pop_all().close, headers=_location_headers(written))
        reply = await wait_for_answer(awaited)
        reply.headers += _location_headers(written)
        return reply


async def _begin_watch(call: HttpCall, stack: ExitStack) -> SessionWatch:
    """Count the waiting request, and receive the events of its session until the stack is closed."""
    stack.enter_context(call.services.streams.count_waiting_request(call.principal))
    watch = SessionWatch(call.services.hub, call.principal, named_session(call))
    await watch.begin()
    stack.callback(watch.end)
    return watch


async def _post_message(call: HttpCall) -> tuple[Breadcrumb, dict[str, Any], Written]:
    """Post the message of a request. Returns the breadcrumb, its view and the result of the write."""
    principal, session, sessions = call.principal, named_session(call), Sessions(call.services.store)
    expected: int | Literal["*"] | None = expected_version(call)
    if expected is None and b"if-match" in call.headers:
        expected = "*"
    request = parse_body(MessageCreate, await call.json())
    user = principal.user_id
    if user is None:
        existing = await sessions.belonging(principal.owner_id, session)
        if existing is None and expected is not None:
            raise session_not_found(session)
        user = None if existing is None else existing.user
    if ATTACHED_IMAGES in request.context:
        check_images(request.context[ATTACHED_IMAGES])
    new = _message_breadcrumb(principal, session, request, user)
    await check_addressee(call, new)
    written = await sessions.create_as(
        principal, new, idempotency_key=idempotency_key(call), session_version=expected
    )
    crumb, version = await _stored_message(call, session, new, written)
    posted: dict[str, Any] = {"message": message_view(crumb, principal)}
    if version is not None:
        posted["session_version"] = version
    return crumb, posted, written


def _location_headers(written: Written) -> list[Header]:
    return [(b"location", b"/breadcrumbs/%s" % str(written.id).encode()), *replayed_header(written)]


def _message_breadcrumb(
    principal: Principal, session: str, request: MessageCreate, user: str | None
) -> BreadcrumbCreate:
    if "message" in request.context:
        raise InvalidInput(
            "context must not contain `message`: send the text as `message`", where="context.message"
        )
    fields = {
        "schema_name": USER_MESSAGE,
        "title": shorten_line(request.message),
        "tags": list(dict.fromkeys([USER_MESSAGE_TAG, SESSION + session, *request.tags])),
        "context": {**request.context, "message": request.message},
    }
    if request.agent is not None:
        fields["context"] = {**request.context, "message": request.message, ADDRESSEE: request.agent}
    new = policy.admit_new(principal, BreadcrumbCreate.parse(fields))
    if user_in(new.tags) is not None:
        return new
    # The runtime adds the user of the session, because not every client may send a `user:` tag.
    return BreadcrumbCreate.parse({**fields, "tags": [*new.tags, *user_tags(user)]})


async def _stored_message(
    call: HttpCall, session: str, new: BreadcrumbCreate, written: Written
) -> tuple[Breadcrumb, int | None]:
    """Return the breadcrumb and the version of the session. For a replay, both are read from the store."""
    if written.breadcrumb is not None:
        return written.breadcrumb, written.session_version
    principal, by = call.principal, call.principal.agent_id
    json = call.services.store.content(new).json
    first = Breadcrumb(
        written.id, principal.owner_id, 1, written.created, written.updated, 0, 0, by, by, json
    )
    try:
        version = (await load_facts(call, session)).version
        crumb = await call.services.store.get(principal.owner_id, written.id, count_read=False)
    except NotFound:  # deleted since; the reply is the same as for the first request
        return first, None
    # Other clients can have changed the message. Only a principal that may read it gets the changed version.
    readable = policy.has_role(principal, "subscriber") and policy.may_see(principal, crumb)
    return crumb if readable else first, version


@routes.operation(
    id="retryTurn",
    method="POST",
    path="/sessions/{id}/retry",
    summary="Run a failed turn again",
    description="The message is not posted again, and agents that have answered it do not answer again.",
    uses_store="writes",
    parameters=(SESSION_ID,),
    body=Body(RetryRequest, {}, required=False),
    successes=(SuccessReply(202, "The turn runs again.", Retried),),
    may_fail=(NOTHING_TO_RETRY, SESSION_GONE),
)
async def retry_turn(call: HttpCall) -> Reply:
    principal, session = call.principal, named_session(call)
    wanted = parse_body(RetryRequest, await call.optional_json())
    facts = await load_facts(call, session)
    if facts.about.paused_at is not None:
        raise NothingToRetry(
            f"session {session!r} is paused: resume it with PATCH and active true, then retry"
        )
    message, at = await retry(
        call.services.store,
        principal,
        session,
        None if wanted.message_id is None else parse_id(wanted.message_id, what="message_id"),
    )
    return Reply.json({"ok": True, "message_id": str(message), "retried_at": times.to_text(at)}, status=202)
