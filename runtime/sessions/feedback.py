"""Feedback: ratings of answers by the people who read them.

Each user has one rating per answer. Its id is derived from the answer and the user, so a second rating becomes the next
version of the same breadcrumb. The runtime copies the facts about the answer (agent, model, config) into the rating.
Models never see feedback, and it starts no turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION, user_tags
from breadcrumbs.runtime.errors import AnotherSession, InvalidInput, NotFound, StoreUnavailable
from breadcrumbs.runtime.schema_names import AGENT_RESPONSE, FEEDBACK, INTERNAL_SCHEMAS, SPEAKER_SCHEMAS
from breadcrumbs.runtime.sessions.outcome_matching import agent_of, is_by_agent
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.placement import Placed, derive_id_beside
from breadcrumbs.runtime.store.store import Store

Rating = Literal["up", "down"]

MAX_NOTE_LENGTH: Final = 2_000
COPIED: Final = "copied_from"
"""Context key of the copy of a rating in a fork. Copies are not counted, because the original is."""

_TAG: Final = "feedback:"
_MAX_ATTEMPTS: Final = 20
"""Maximum number of attempts at a write that other writers repeatedly overtake."""
_MAX_FACT_LENGTH: Final = 200
"""Maximum length of a fact that is copied from an answer. A client can post an answer with any text there."""


@dataclass(frozen=True, slots=True)
class Rater:
    """The person who rates: the user of a token, or the agent of a token without a user."""

    kind: Literal["user", "agent"]
    name: str

    @classmethod
    def of(cls, principal: Principal) -> Rater:
        if principal.user_id is not None:
            return cls("user", principal.user_id)
        return cls("agent", str(principal.agent_id))

    @classmethod
    def of_feedback(cls, crumb: Breadcrumb) -> Rater:
        context = crumb.context
        kind: Literal["user", "agent"] = "user" if context.get("rater") == "user" else "agent"
        return cls(kind, str(context.get("user")))

    @property
    def tags(self) -> list[str]:
        return user_tags(self.name) if self.kind == "user" else []


def rating_tag(rating: Rating) -> str:
    """Return the tag that all feedback with a rating has. Its index makes the list of disliked answers fast."""
    return _TAG + rating


def answer_tag(answer_id: UUID | str) -> str:
    """Return the tag that all feedback on an answer has. Its index makes the feedback of an answer fast to find."""
    return f"answer:{answer_id}"


def is_answer(crumb: Breadcrumb) -> bool:
    """Return whether a breadcrumb is an answer of an agent."""
    schema = crumb.schema_name
    if schema in INTERNAL_SCHEMAS or schema in SPEAKER_SCHEMAS:
        return False
    return schema == AGENT_RESPONSE or (is_by_agent(crumb.context) and "trigger_id" in crumb.context)


def feedback_id(store: Store, answer: Placed, rater: Rater) -> UUID:
    """Return the id of the feedback of a person on an answer."""
    owner, session = str(answer.owner_id), answer.session_id or ""
    return derive_id_beside(store, answer, "feedback", owner, session, str(answer.id), rater.kind, rater.name)


class FeedbackWriter:
    """Reads, writes and withdraws the feedback of one principal on one answer."""

    def __init__(self, store: Store, principal: Principal, answer_id: UUID) -> None:
        self._store = store
        self._principal = principal
        self._answer_id = answer_id
        self._rater = Rater.of(principal)

    async def read(self) -> Breadcrumb | None:
        """Return the feedback of the principal, or None. Raises `NotFound` if it may not see the answer."""
        return await self._existing(await self._answer())

    async def rate(self, rating: Rating, note: str | None) -> Breadcrumb:
        """Write the feedback, or its next version. Equal feedback is not written again."""
        for _ in range(_MAX_ATTEMPTS):
            answer = await self._answer()
            options = await self._write_options(answer)
            new = await self._new_feedback(answer, rating, note)
            existing = await self._existing(answer)
            try:
                if existing is None:
                    written = await self._create(answer, new, options)
                else:
                    written = await self._update(existing, new)
            except (AnotherSession, NotFound):
                continue  # the session or the feedback was deleted after it was read
            if written is not None:
                return written
        raise StoreUnavailable("the feedback is changed and deleted repeatedly: try again")

    async def withdraw(self) -> None:
        """Delete the feedback. It is not an error if there is none."""
        answer = await self._answer()
        await self._write_options(answer)
        existing = await self._existing(answer)
        if existing is not None:
            await _delete(self._store, existing)

    async def _answer(self) -> Breadcrumb:
        principal = self._principal
        crumb = await self._store.get(principal.owner_id, self._answer_id, count_read=False)
        policy.check_readable(principal, crumb)
        if not is_answer(crumb):
            raise InvalidInput(
                f"this breadcrumb is not an answer of an agent (it is {crumb.schema_name or 'without a schema'}): "
                "name the id of an answer",
                where="id",
            )
        return crumb

    async def _write_options(self, answer: Breadcrumb) -> CreateOptions:
        """Check that the principal may write into the session of the answer."""
        principal, session = self._principal, answer.session_id
        if session is None:
            return CreateOptions(counts=False)
        belonging = await Sessions(self._store).belonging(principal.owner_id, session)
        if belonging is None:
            raise NotFound("breadcrumb not found")
        policy.check_session_user(principal, session, belonging.user)
        policy.check_session_not_deleted(principal, belonging.deleted_before)
        return CreateOptions(counts=False, session_began=belonging.created)

    async def _existing(self, answer: Breadcrumb) -> Breadcrumb | None:
        """Return the feedback of the principal on an answer.

        An imported store can have another number of lanes. The ids of its feedback then differ from the derived ones,
        so the feedback on the answer is searched.
        """
        store, owner = self._store, answer.owner_id
        try:
            return await store.get(owner, feedback_id(store, answer, self._rater), count_read=False)
        except NotFound:
            pass
        async for crumb in feedback_on(store, answer):
            if Rater.of_feedback(crumb) == self._rater:
                return crumb
        return None

    async def _new_feedback(self, answer: Breadcrumb, rating: Rating, note: str | None) -> BreadcrumbCreate:
        rater = self._rater
        context: dict[str, Any] = {
            "rating": rating,
            "answer_id": str(answer.id),
            "answer_version": answer.version,
            "user": rater.name,
            "rater": rater.kind,
            **await _facts(self._store, answer),
        }
        if note:
            context["note"] = note
        tags = [rating_tag(rating), answer_tag(answer.id), *rater.tags]
        if answer.session_id is not None:
            tags.append(SESSION + answer.session_id)
        fields: dict[str, Any] = {
            "schema_name": FEEDBACK,
            "title": f"Feedback: {rating}",
            "tags": tags,
            "context": context,
            "sensitivity": "secret" if answer.sensitivity == "secret" else None,
            "visibility": "private" if answer.visibility == "private" else None,
        }
        if answer.expires:  # feedback must not outlive its answer, nor keep its session alive
            fields |= {"ttl_type": "datetime", "ttl": times.to_text(answer.expires)}
        return BreadcrumbCreate.parse(fields)

    async def _create(
        self, answer: Breadcrumb, new: BreadcrumbCreate, options: CreateOptions
    ) -> Breadcrumb | None:
        """Create the feedback. Return None if another request was faster."""
        store, owner = self._store, answer.owner_id
        id = feedback_id(store, answer, self._rater)
        written = await store.create(owner, new, by=self._principal.agent_id, id=id, options=options)
        if written.found:
            return None
        return await store.get(owner, id, count_read=False)

    async def _update(self, existing: Breadcrumb, new: BreadcrumbCreate) -> Breadcrumb:
        store, owner = self._store, existing.owner_id
        context = dict(new.context)
        if existing.session_id is not None:
            context["session_id"] = existing.session_id
        if context == existing.context:
            return existing
        change = BreadcrumbUpdate(title=new.title, tags=new.tags, context=context)
        await store.update(owner, existing.id, change, by=self._principal.agent_id)
        return await store.get(owner, existing.id, count_read=False)


async def feedback_on(store: Store, answer: Breadcrumb) -> AsyncIterator[Breadcrumb]:
    """Yield all feedback on an answer. Reads only feedback with its tag."""
    session = answer.session_id
    query = Query(
        schema_name=FEEDBACK,
        session_id=session,
        sessionless=session is None,
        all_tags=(answer_tag(answer.id),),
    )
    async for crumb in store.walk(answer.owner_id, query):
        if crumb.context.get("answer_id") == str(answer.id):
            yield crumb


async def delete_feedback_on(store: Store, answer: Breadcrumb) -> None:
    """Delete all feedback on an answer that was deleted."""
    async for crumb in feedback_on(store, answer):
        await _delete(store, crumb)


async def _delete(store: Store, crumb: Breadcrumb) -> None:
    try:
        await store.delete(crumb.owner_id, crumb.id)
    except NotFound:
        pass  # deleted by another request


async def _facts(store: Store, answer: Breadcrumb) -> dict[str, Any]:
    """Return the agent, the model, the config and the context of an answer, as far as they are known."""
    context = answer.context
    creator = context.get("creator")
    facts: dict[str, Any] = {
        "agent_id": agent_of(context),
        "model": creator.get("model") if isinstance(creator, dict) else None,
        "context_id": context.get("context_id"),
    }
    facts = {
        name: value
        for name, value in facts.items()
        if isinstance(value, str) and 0 < len(value) <= _MAX_FACT_LENGTH
    }
    version = context.get("context_version")
    if "context_id" in facts and isinstance(version, int):
        facts["context_version"] = version
        config = await _config_of(store, answer, facts["context_id"], version)
        if config is not None:
            facts["config"] = config
    return facts


async def _config_of(store: Store, answer: Breadcrumb, context_id: str, version: int) -> str | None:
    """Return the digest of the config that built the context of an answer. None: the context no longer exists."""
    try:
        context = await store.get_version(answer.owner_id, UUID(context_id), version)
    except (NotFound, ValueError):
        return None
    if context.session_id != answer.session_id:
        return None
    digest = context.context.get("config")
    return digest if isinstance(digest, str) and len(digest) <= _MAX_FACT_LENGTH else None


def is_rated_by(crumb: Breadcrumb, principal: Principal) -> bool:
    """Return whether feedback is that of the principal."""
    return Rater.of_feedback(crumb) == Rater.of(principal)
