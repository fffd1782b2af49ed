"""Feedback: rate answers, and list and count the ratings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, with_config
from starlette.datastructures import QueryParams
from typing_extensions import TypedDict

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, SESSION, check_session_id
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.listing import read_flag, read_number, read_text, read_time
from breadcrumbs.runtime.http.api.operations import ID, Body, Parameter, Routes, SuccessReply
from breadcrumbs.runtime.http.api.problems import INVALID_CURSOR, QUOTA_EXCEEDED, SESSION_GONE
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Count, Done, Id, Time, VersionNumber
from breadcrumbs.runtime.sessions.feedback import MAX_NOTE_LENGTH, FeedbackWriter, Rating
from breadcrumbs.runtime.sessions.feedback_lists import (
    MAX_COUNTED,
    MAX_PAGE,
    FeedbackFilter,
    ListedFeedback,
    count_feedback,
    list_feedback,
)

_closed = with_config(extra="forbid")  # other keys are not allowed

_DEFAULT_PAGE: Final = 50
_DEFAULT_DAYS: Final = 30
_DAY: Final = 86_400_000_000
"""Microseconds of a day."""
_MAX_FILTER: Final = 200

routes = Routes("Feedback")


def _check_encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode text") from None
    return text


class FeedbackRequest(BaseModel):
    """A rating of an answer, with an optional note."""

    model_config = ConfigDict(extra="forbid")

    rating: Rating
    note: Annotated[str, Field(max_length=MAX_NOTE_LENGTH), AfterValidator(_check_encodable)] | None = Field(
        None, description="The reason. Absent, null or empty: the feedback has no note"
    )


@_closed
class FeedbackView(TypedDict):
    """The rating of an answer by one person, and facts about the answer."""

    id: Id
    version: VersionNumber
    rating: Rating
    note: NotRequired[str]
    answer_id: Id
    answer_version: VersionNumber
    session_id: NotRequired[str]
    user: Annotated[str, Field(description="The user, or the agent of a token without a user")]
    rater: Annotated[Literal["user", "agent"], Field(description="The kind of `user`")]
    agent_id: NotRequired[Annotated[str, Field(description="The agent that wrote the answer")]]
    model: NotRequired[str]
    config: NotRequired[Annotated[str, Field(description="Digest of the context config")]]
    context_id: NotRequired[Id]
    context_version: NotRequired[VersionNumber]
    created_at: Time
    updated_at: Time
    question: NotRequired[Annotated[str, Field(description="Beginning of the message. Only in lists")]]
    answer: NotRequired[Annotated[str, Field(description="Beginning of the answer. Only in lists")]]


@_closed
class OwnFeedback(TypedDict):
    """The feedback of the token's user on an answer."""

    answer_id: Id
    feedback: NotRequired[Annotated[FeedbackView, Field(description="Absent if there is none")]]


@_closed
class FeedbackList(TypedDict):
    """A page of feedback, newest first."""

    feedback: list[FeedbackView]
    has_more: bool
    next_cursor: NotRequired[str]


@_closed
class RatingTotals(TypedDict):
    """Numbers of ratings."""

    up: Count
    down: Count


@_closed
class ConfigCount(TypedDict):
    """Ratings of the answers of one config version."""

    config: NotRequired[Annotated[str, Field(description="Digest. Absent: unknown")]]
    up: Count
    down: Count


@_closed
class AgentCount(TypedDict):
    """Ratings of the answers of one agent."""

    agent_id: NotRequired[str]
    up: Count
    down: Count


@_closed
class ModelCount(TypedDict):
    """Ratings of the answers of one model."""

    model: NotRequired[Annotated[str, Field(description="Absent: unknown, or the agent uses no model")]]
    up: Count
    down: Count


@_closed
class FeedbackCounts(TypedDict):
    """Numbers of ratings in a range of time, most ratings first."""

    since: Time
    total: RatingTotals
    configs: list[ConfigCount]
    agents: list[AgentCount]
    models: list[ModelCount]
    complete: Annotated[
        bool, Field(description=f"false: there are more than {MAX_COUNTED}, and the oldest were not counted")
    ]


# One answer


@routes.operation(
    id="rateAnswer",
    method="PUT",
    path="/breadcrumbs/{id}/feedback",
    summary="Rate an answer",
    description=(
        "Stores the rating of the token's user as `feedback.v1` in the session of the answer. A second rating "
        "replaces the first one, and the history keeps it. A token without a user rates as its agent. Models never "
        "see feedback."
    ),
    spends="posting",
    uses_store="writes",
    parameters=(ID,),
    body=Body(FeedbackRequest, {"rating": "down", "note": "The date is wrong."}),
    successes=(SuccessReply(200, "The feedback.", FeedbackView),),
    may_fail=(SESSION_GONE, QUOTA_EXCEEDED),
)
async def rate_answer(call: HttpCall) -> Reply:
    wanted = parse_body(FeedbackRequest, await call.json())
    note = (wanted.note or "").strip() or None
    return Reply.json(_view(await _writer(call).rate(wanted.rating, note)))


@routes.operation(
    id="getFeedback",
    method="GET",
    path="/breadcrumbs/{id}/feedback",
    summary="Read your feedback on an answer",
    description="The feedback of the token's user, if there is any.",
    parameters=(ID,),
    successes=(SuccessReply(200, "The feedback.", OwnFeedback),),
)
async def get_feedback(call: HttpCall) -> Reply:
    body: OwnFeedback = {"answer_id": str(call.path_id())}
    crumb = await _writer(call).read()
    if crumb is not None:
        body["feedback"] = _view(crumb)
    return Reply.json(body)


@routes.operation(
    id="withdrawFeedback",
    method="DELETE",
    path="/breadcrumbs/{id}/feedback",
    summary="Withdraw your feedback on an answer",
    description="Deletes the feedback of the token's user with its history. It is not an error if there is none.",
    spends="posting",
    uses_store="writes",
    parameters=(ID,),
    successes=(SuccessReply(200, "Feedback deleted.", Done),),
)
async def withdraw_feedback(call: HttpCall) -> Reply:
    await _writer(call).withdraw()
    body: Done = {"ok": True}
    return Reply.json(body)


def _writer(call: HttpCall) -> FeedbackWriter:
    return FeedbackWriter(call.services.store, call.principal, call.path_id())


# Lists and counts


def _text_filter(name: str, description: str) -> Parameter:
    return Parameter(name, "query", description, {"type": "string", "minLength": 1, "maxLength": _MAX_FILTER})


_FILTERS: Final = (
    Parameter("rating", "query", "Only this rating.", {"type": "string", "enum": ["up", "down"]}),
    Parameter(
        "since",
        "query",
        "Only answers first rated at this time or later (RFC 3339).",
        {"type": "string", "format": "date-time"},
        example="2026-01-01T00:00:00Z",
    ),
    Parameter(
        "until",
        "query",
        "Only answers first rated at this time or earlier (RFC 3339).",
        {"type": "string", "format": "date-time"},
    ),
    Parameter(
        "session_id",
        "query",
        "Only this session. The list then also contains ratings that a fork copied.",
        {"type": "string", "minLength": 1, "maxLength": MAX_TAG_LENGTH - len(SESSION)},
    ),
    _text_filter("agent", "Only answers of this agent."),
    _text_filter("model", "Only answers of this model."),
    _text_filter("config", "Only answers of this config version: its digest, or its beginning."),
    Parameter(
        "own",
        "query",
        "Only the feedback of the token's user, or of its agent.",
        {"type": "boolean", "default": False},
    ),
)


@routes.operation(
    id="listFeedback",
    method="GET",
    path="/feedback",
    summary="List feedback",
    description=(
        "Newest first, with the beginnings of question and answer. A narrowed token gets the feedback of its session "
        "or its user. A filter that rarely matches can return an empty page with a `next_cursor`."
    ),
    parameters=(
        *_FILTERS,
        Parameter(
            "limit",
            "query",
            "Maximum number of items.",
            {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": _DEFAULT_PAGE},
            example=20,
        ),
        Parameter(
            "cursor", "query", "Continues after the previous page: its `next_cursor`. Keep the filters."
        ),
    ),
    successes=(SuccessReply(200, "A page of feedback.", FeedbackList),),
    may_fail=(INVALID_CURSOR,),
)
async def list_all(call: HttpCall) -> Reply:
    given = call.query()
    limit = read_number(given, "limit", _DEFAULT_PAGE)
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit must be from 1 to {MAX_PAGE}", where="limit")
    page = await list_feedback(
        call.services.store, call.principal, _read_filter(given), limit=limit, cursor=given.get("cursor")
    )
    body: FeedbackList = {
        "feedback": [_listed_view(item) for item in page.items],
        "has_more": page.next_cursor is not None,
    }
    if page.next_cursor is not None:
        body["next_cursor"] = page.next_cursor
    return Reply.json(body)


@routes.operation(
    id="countFeedback",
    method="GET",
    path="/feedback/counts",
    summary="Count feedback",
    description=(
        f"Numbers of ratings per config version, agent and model, by default of the last {_DEFAULT_DAYS} days. One "
        f"request counts at most the newest {MAX_COUNTED} ratings."
    ),
    parameters=_FILTERS,
    successes=(SuccessReply(200, "The counts.", FeedbackCounts),),
)
async def count_all(call: HttpCall) -> Reply:
    store, principal = call.services.store, call.principal
    since = store.now() - _DEFAULT_DAYS * _DAY
    wanted = _read_filter(call.query(), since=since)
    async with call.services.searches.hold(principal.owner_id, principal):
        counts = await count_feedback(store, principal, wanted)
    body: FeedbackCounts = {
        "since": times.to_text(since if wanted.since is None else wanted.since),
        "total": {"up": counts.total["up"], "down": counts.total["down"]},
        "configs": _count_rows("config", counts.configs),
        "agents": _count_rows("agent_id", counts.agents),
        "models": _count_rows("model", counts.models),
        "complete": counts.complete,
    }
    return Reply.json(body)


def _count_rows(name: str, counts: Mapping[str | None, Counter[str]]) -> list[Any]:
    """Return the counts as rows, most ratings first. The row of unknown values has no name."""
    order = sorted(counts.items(), key=lambda entry: (-entry[1].total(), entry[0] or ""))
    return [
        {**({} if value is None else {name: value}), "up": count["up"], "down": count["down"]}
        for value, count in order
    ]


def _read_filter(given: QueryParams, *, since: int | None = None) -> FeedbackFilter:
    return FeedbackFilter(
        rating=_read_rating(given.get("rating")),
        session_id=check_session_id(given["session_id"]) if "session_id" in given else None,
        since=since if "since" not in given else read_time(given, "since"),
        until=read_time(given, "until"),
        agent_id=read_text(given, "agent", _MAX_FILTER),
        model=read_text(given, "model", _MAX_FILTER),
        config=read_text(given, "config", _MAX_FILTER),
        own=read_flag(given, "own"),
    )


def _read_rating(text: str | None) -> Rating | None:
    match text:
        case None | "up" | "down":
            return text
    raise InvalidInput("rating must be up or down: omit it for both", where="rating")


def _view(crumb: Breadcrumb) -> FeedbackView:
    """Return the fields of feedback. Its other context keys are not shown."""
    context: Mapping[str, Any] = crumb.context
    names = FeedbackView.__required_keys__ | FeedbackView.__optional_keys__
    view: Any = {
        "id": str(crumb.id),
        "version": crumb.version,
        **{name: value for name, value in context.items() if name in names},
        "created_at": crumb.created_at,
        "updated_at": crumb.updated_at,
    }
    return view  # type: ignore[no-any-return]


def _listed_view(item: ListedFeedback) -> FeedbackView:
    view = _view(item.crumb)
    if item.question is not None:
        view["question"] = item.question
    if item.answer is not None:
        view["answer"] = item.answer
    return view
