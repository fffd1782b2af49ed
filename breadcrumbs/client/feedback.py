"""Feedback on answers: values, filters and requests, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypedDict

from breadcrumbs.client.requests import Request, breadcrumb_path, get_request, json_of

Rating = Literal["up", "down"]

_PAGE: Final = 100


class FeedbackFilters(TypedDict, total=False):
    """Filters of feedback. All of them must match."""

    rating: Rating | None
    session: str | None
    since: datetime | None
    """First rated at this time or later."""
    until: datetime | None
    agent: str | None
    model: str | None
    config: str | None
    """Digest of a config version."""
    own: bool
    """Only the feedback of this client's user."""


class FeedbackListing(FeedbackFilters, total=False):
    """Filters and size of a list of feedback."""

    limit: int | None
    """Maximum number of results. None means all."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """The rating of an answer by one person, and facts about the answer."""

    id: str
    version: int
    rating: Rating
    note: str | None
    answer_id: str
    answer_version: int
    session_id: str | None
    user: str
    """The user, or the agent of a token without a user."""
    agent_id: str | None
    """The agent that wrote the answer."""
    model: str | None
    config: str | None
    """Digest of the config that built the context of the answer. None: unknown."""
    context_id: str | None
    context_version: int | None
    created_at: datetime
    updated_at: datetime
    question: str | None = None
    """Beginning of the message. Only in lists."""
    answer: str | None = None
    """Beginning of the answer. Only in lists."""


@dataclass(frozen=True, slots=True)
class RatingCount:
    """Numbers of ratings of one config version, agent or model."""

    name: str | None
    """None: unknown."""
    up: int
    down: int


@dataclass(frozen=True, slots=True)
class FeedbackCounts:
    """Numbers of ratings, most ratings first."""

    since: datetime
    up: int
    down: int
    configs: tuple[RatingCount, ...]
    agents: tuple[RatingCount, ...]
    models: tuple[RatingCount, ...]
    complete: bool
    """False: the oldest ratings were not counted."""


def rate_request(answer_id: str, rating: Rating, note: str | None) -> Request:
    content = json_of({"rating": rating} if note is None else {"rating": rating, "note": note})
    headers = {"content-type": "application/json"}
    # A repeated rating replaces itself, so the request can be retried.
    return Request("PUT", feedback_path(answer_id), content=content, headers=headers, idempotent=True)


def withdraw_request(answer_id: str) -> Request:
    return Request("DELETE", feedback_path(answer_id), idempotent=True)


def feedback_path(answer_id: str) -> str:
    return f"{breadcrumb_path(answer_id)}/feedback"


def list_feedback_request(
    wanted: FeedbackFilters, *, limit: int | None, given: int, cursor: str | None
) -> Request:
    """Return the request for the next page. `given` of `limit` items were returned before."""
    size = _PAGE if limit is None else min(_PAGE, limit - given)
    more = [("limit", str(size)), *([] if cursor is None else [("cursor", cursor)])]
    return get_request("/feedback", [*_params(wanted), *more])


def count_request(wanted: FeedbackFilters) -> Request:
    return get_request("/feedback/counts", _params(wanted))


def _params(wanted: FeedbackFilters) -> list[tuple[str, str]]:
    texts: dict[str, str | None] = {
        "rating": wanted.get("rating"),
        "session_id": wanted.get("session"),
        "since": _time_text(wanted.get("since")),
        "until": _time_text(wanted.get("until")),
        "agent": wanted.get("agent"),
        "model": wanted.get("model"),
        "config": wanted.get("config"),
        "own": "true" if wanted.get("own") else None,
    }
    return [(name, text) for name, text in texts.items() if text is not None]


def _time_text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def feedback_of(document: Mapping[str, Any]) -> Feedback:
    return Feedback(
        id=document["id"],
        version=document["version"],
        rating=document["rating"],
        note=document.get("note"),
        answer_id=document["answer_id"],
        answer_version=document["answer_version"],
        session_id=document.get("session_id"),
        user=document["user"],
        agent_id=document.get("agent_id"),
        model=document.get("model"),
        config=document.get("config"),
        context_id=document.get("context_id"),
        context_version=document.get("context_version"),
        created_at=datetime.fromisoformat(document["created_at"]),
        updated_at=datetime.fromisoformat(document["updated_at"]),
        question=document.get("question"),
        answer=document.get("answer"),
    )


def own_feedback_of(document: Mapping[str, Any]) -> Feedback | None:
    found = document.get("feedback")
    return None if found is None else feedback_of(found)


def feedback_page_of(document: Mapping[str, Any]) -> tuple[list[Feedback], str | None]:
    return [feedback_of(one) for one in document["feedback"]], document.get("next_cursor")


def counts_of(document: Mapping[str, Any]) -> FeedbackCounts:
    def rows(name: str, key: str) -> tuple[RatingCount, ...]:
        return tuple(RatingCount(row.get(key), row["up"], row["down"]) for row in document[name])

    return FeedbackCounts(
        since=datetime.fromisoformat(document["since"]),
        up=document["total"]["up"],
        down=document["total"]["down"],
        configs=rows("configs", "config"),
        agents=rows("agents", "agent_id"),
        models=rows("models", "model"),
        complete=document["complete"],
    )
