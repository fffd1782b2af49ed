"""Read what was said in a session: the last answers and cancellations, and the messages without an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.request import AnswerRequest, StartingMessage
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.retrieval.model_view import withheld_reason
from breadcrumbs.runtime.schema_names import AGENT_CANCEL, AGENT_CONTEXT, AGENT_RESPONSE, USER_MESSAGE
from breadcrumbs.runtime.store.batched_reads import recent_of, version_of
from breadcrumbs.runtime.store.store import Store

_LAST_ANSWERS: Final = 5
_MAX_MERGED: Final = 1_000
"""Messages that one merged answer names as those it answers."""


@dataclass(frozen=True, slots=True)
class RecentAnswers:
    """The last answers and the last cancellation in a session, the newest first."""

    answers: list[Breadcrumb]
    cancels: list[Breadcrumb]

    def may_miss_answer(self, request: AnswerRequest) -> bool:
        """Return whether the request may have an answer that is not among these.

        An answer is newer than its message. If the last answers reach back to before the message, or are all there
        are, its answer would be among them. Unless it has another schema, which a model may choose.
        """
        if request.definition.emits.schema_name != AGENT_RESPONSE or request.may_be_repeated:
            return True
        if request.turn.event.session_id is None:
            return True
        return len(self.answers) >= _LAST_ANSWERS and self.answers[-1].created >= request.origin.created


async def read_trigger(store: Store, event: Event) -> tuple[Breadcrumb | None, RecentAnswers]:
    """Read the trigger of an event (None: it is gone) and the last words of its session, in one round trip."""
    owner, session = event.owner_id, event.session_id
    trigger = version_of(store, owner, event.id, event.version)
    if session is None:
        (crumb,) = await store.read_batch(trigger)
        return crumb, RecentAnswers([], [])
    crumb, answers, cancels = await store.read_batch(
        trigger,
        recent_of(store, owner, session, AGENT_RESPONSE, _LAST_ANSWERS),
        recent_of(store, owner, session, AGENT_CANCEL, 1),
    )
    return crumb, RecentAnswers(answers, cancels)


def find_creator(crumb: Breadcrumb) -> str | None:
    """Return the agent that wrote a breadcrumb, or None."""
    creator = crumb.context.get("creator")
    name = creator.get("agent_id") if isinstance(creator, dict) else creator
    return name if isinstance(name, str) else None


async def unanswered_messages(store: Store, definition: AgentDefinition, trigger: Breadcrumb) -> list[str]:
    """Return the messages since the last one that the agent has answered. A merged answer answers all of them.

    Messages are answered in their order, but a message may be older than the answer to the one before it. They are
    read from the session, because a prompt may hold fewer of them than have piled up.
    """
    session, origin = trigger.session_id, StartingMessage.of(trigger)
    if session is None:
        return [origin.id]
    answered = await _answered_messages(store, definition, trigger)
    found: list[str] = []
    schema = USER_MESSAGE if trigger.schema_name == AGENT_CONTEXT else trigger.schema_name
    query = Query(
        session_id=session, schema_name=schema, created_until=origin.created, limit=2 * _LAST_ANSWERS
    )
    async for message in store.walk(trigger.owner_id, query):
        if message.id_text in answered or len(found) == _MAX_MERGED:
            break
        if withheld_reason(message) in ("secret", "private"):
            continue  # no model sees it, and its writer was told so
        if trigger.schema_name == AGENT_CONTEXT or any(own.matches(message) for own in definition.triggers):
            found.append(message.id_text)
    return found[::-1]


async def _answered_messages(store: Store, definition: AgentDefinition, trigger: Breadcrumb) -> set[str]:
    last = await store.list(
        trigger.owner_id,
        Query(
            session_id=trigger.session_id,
            schema_name=definition.emits.schema_name,
            limit=_LAST_ANSWERS,
            keep=lambda crumb: find_creator(crumb) == definition.agent_id,
        ),
    )
    # A client can write an answer, too. The answers of the runtime name their message by its id.
    return {id for crumb in last.items if isinstance(id := crumb.context.get("trigger_id"), str)}
