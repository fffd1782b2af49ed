"""Lists and counts of feedback, as far as a principal may read it.

Feedback has its own index, so the cost depends on the amount of feedback and not on the number of sessions. A list and
a count read a bounded part of the index per request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.text import shorten_line
from breadcrumbs.runtime.schema_names import FEEDBACK
from breadcrumbs.runtime.sessions.feedback import COPIED, Rating, is_rated_by, rating_tag
from breadcrumbs.runtime.sessions.messages import text_of
from breadcrumbs.runtime.store.batched_reads import newest_of
from breadcrumbs.runtime.store.store import Store

MAX_PAGE: Final = 200
MAX_COUNTED: Final = 10_000
"""Maximum number of ratings that one request counts. The newest ones are counted."""

_PAGE_BYTES: Final = 1 << 20
_COUNT_BATCH: Final = 1_000
_EXCERPT_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class FeedbackFilter:
    """Conditions on feedback. None: any."""

    rating: Rating | None = None
    session_id: str | None = None
    since: int | None = None
    """Time of the first rating, in microseconds, as in `until`."""
    until: int | None = None
    agent_id: str | None = None
    model: str | None = None
    config: str | None = None
    """Beginning of a digest."""
    own: bool = False
    """Only the feedback of the principal."""

    def query(self, principal: Principal) -> Query:
        """Return the query for feedback that the principal may read."""
        query = Query(
            schema_name=FEEDBACK,
            session_id=self.session_id,
            all_tags=() if self.rating is None else (rating_tag(self.rating),),
            created_since=self.since,
            created_until=self.until,
        )
        return replace(policy.restrict_query(principal, query), keep=self._keep(principal))

    def _keep(self, principal: Principal) -> Callable[[Breadcrumb], bool]:
        def keep(crumb: Breadcrumb) -> bool:
            context = crumb.context
            return (
                policy.may_read(principal, crumb)
                and (self.session_id is not None or COPIED not in context)
                and self.agent_id in (None, context.get("agent_id"))
                and self.model in (None, context.get("model"))
                and str(context.get("config", "")).startswith(self.config or "")
                and (not self.own or is_rated_by(crumb, principal))
            )

        return keep


@dataclass(frozen=True, slots=True)
class ListedFeedback:
    """Feedback with the beginnings of the question and the answer. They are None if the principal cannot read them."""

    crumb: Breadcrumb
    question: str | None
    answer: str | None


@dataclass(frozen=True, slots=True)
class FeedbackPage:
    """A page of a list of feedback."""

    items: list[ListedFeedback]
    next_cursor: str | None


async def list_feedback(
    store: Store, principal: Principal, wanted: FeedbackFilter, *, limit: int, cursor: str | None
) -> FeedbackPage:
    """Return a page of feedback, newest first."""
    query = replace(wanted.query(principal), limit=limit, cursor=cursor, max_bytes=_PAGE_BYTES)
    page = await store.list(principal.owner_id, query)
    answers = await _load(store, principal, [crumb.context.get("answer_id") for crumb in page.items])
    triggers = [None if answer is None else answer.context.get("trigger_id") for answer in answers]
    questions = await _load(store, principal, triggers)
    return FeedbackPage(
        [
            ListedFeedback(crumb, _excerpt(question), _excerpt(answer))
            for crumb, question, answer in zip(page.items, questions, answers, strict=True)
        ],
        page.next_cursor,
    )


async def _load(store: Store, principal: Principal, ids: list[object]) -> list[Breadcrumb | None]:
    """Return the breadcrumbs with these ids that the principal may read, in one round trip."""
    wanted = {id: _uuid(id) for id in ids if isinstance(id, str)}
    known = {id: uuid for id, uuid in wanted.items() if uuid is not None}
    found = await store.read_batch(*(newest_of(store, principal.owner_id, uuid) for uuid in known.values()))
    crumbs = {
        id: crumb
        for id, crumb in zip(known, found, strict=True)
        if crumb is not None and policy.may_read(principal, crumb)
    }
    return [crumbs.get(id) if isinstance(id, str) else None for id in ids]


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _excerpt(crumb: Breadcrumb | None) -> str | None:
    return None if crumb is None else shorten_line(text_of(crumb), _EXCERPT_CHARACTERS) or None


@dataclass(slots=True)
class RatingCounts:
    """Numbers of ratings, in total and by a property of the answers. The key None means that it is unknown."""

    total: Counter[str] = field(default_factory=Counter)
    configs: dict[str | None, Counter[str]] = field(default_factory=dict)
    agents: dict[str | None, Counter[str]] = field(default_factory=dict)
    models: dict[str | None, Counter[str]] = field(default_factory=dict)
    complete: bool = True
    """False: there is more feedback than one request counts, and the oldest was not counted."""

    def add(self, crumb: Breadcrumb) -> None:
        context = crumb.context
        rating = "up" if context.get("rating") == "up" else "down"
        self.total[rating] += 1
        for counts, name in ((self.configs, "config"), (self.agents, "agent_id"), (self.models, "model")):
            value = context.get(name)
            counts.setdefault(value if isinstance(value, str) else None, Counter())[rating] += 1


async def count_feedback(store: Store, principal: Principal, wanted: FeedbackFilter) -> RatingCounts:
    """Count the newest feedback, at most `MAX_COUNTED`."""
    counts = RatingCounts()
    query = replace(wanted.query(principal), limit=_COUNT_BATCH, max_bytes=_PAGE_BYTES)
    counted = 0
    while True:
        page = await store.list(principal.owner_id, query)
        for crumb in page.items:
            counts.add(crumb)
        counted += len(page.items)
        if page.next_cursor is None:
            return counts
        if counted >= MAX_COUNTED or not page.items:  # an empty page means that a filter rejected very many
            counts.complete = False
            return counts
        query = replace(query, cursor=page.next_cursor)
