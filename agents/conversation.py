"""Read the conversation of a session: recent answers, cancellations, and unanswered messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from breadcrumbs.agents.chosen_agent import choice_at, load_timeline
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.request import AnswerRequest, StartingMessage
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.retrieval.model_view import withheld_reason
from breadcrumbs.runtime.schema_names import AGENT_CANCEL, AGENT_CONTEXT, AGENT_RESPONSE, USER_MESSAGE
from breadcrumbs.runtime.store.batched_reads import (
    ChoicesRead,
    RecentRead,
    VersionRead,
    choices_of,
    version_of,
)
from breadcrumbs.runtime.store.state import NO_CHOICES, Choices
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.turn import Turn

_MAX_RECENT_ANSWERS: Final = 5
_MAX_MERGED: Final = 1_000
"""Maximum number of messages that one merged answer lists."""


@dataclass(frozen=True, slots=True)
class RecentAnswers:
    """The last answers and the last cancellation in a session, the newest first, and the choices of the session."""

    answers: list[Breadcrumb]
    cancels: list[Breadcrumb]
    choices: Choices = NO_CHOICES
    """The model and the agent that were chosen for the session."""

    def may_miss_answer(self, request: AnswerRequest) -> bool:
        """Return whether the request could have an answer that is not in this list.

        An answer is newer than its message. If the list goes back to before the message, or contains all answers of
        the session, it also contains the answer to the message. An answer with another schema, which a definition or a
        model can choose, is never in the list.
        """
        if request.definition.emits.schema_name != AGENT_RESPONSE or request.may_be_repeated:
            return True
        if request.turn.event.session_id is None:
            return True
        return len(self.answers) >= _MAX_RECENT_ANSWERS and self.answers[-1].created >= request.origin.created


async def read_trigger(store: Store, turn: Turn) -> tuple[Breadcrumb | None, RecentAnswers]:
    """Read the trigger of a turn and the recent answers of its session.

    Needs at most one round trip. The trigger is None if it was deleted or has expired.
    """
    event = turn.event
    owner, session = event.owner_id, event.session_id
    trigger = VersionRead(owner, event.id, event.version)
    if session is None:
        (crumb,) = await turn.read_batch(store, trigger)
        return crumb, RecentAnswers([], [])
    crumb, answers, cancels, choices = await turn.read_batch(
        store,
        trigger,
        RecentRead(owner, session, AGENT_RESPONSE, _MAX_RECENT_ANSWERS),
        RecentRead(owner, session, AGENT_CANCEL, 1),
        ChoicesRead(owner, session),
    )
    return crumb, RecentAnswers(answers, cancels, choices)


async def read_choices(store: Store, event: Event) -> tuple[Breadcrumb | None, Choices]:
    """Read the breadcrumb of an event and the choices of its session, in one round trip."""
    owner, session = event.owner_id, event.session_id
    version = version_of(store, owner, event.id, event.version)
    if session is None:
        (crumb,) = await store.read_batch(version)
        return crumb, NO_CHOICES
    return await store.read_batch(version, choices_of(store, owner, session))


def find_creator(crumb: Breadcrumb) -> str | None:
    """Return the agent that wrote a breadcrumb, or None."""
    creator = crumb.context.get("creator")
    name = creator.get("agent_id") if isinstance(creator, dict) else creator
    return name if isinstance(name, str) else None


async def unanswered_messages(
    store: Store, definition: AgentDefinition, trigger: Breadcrumb, *, with_choices: bool = True
) -> list[str]:
    """Return the ids of the messages since the last answered one. A merged answer covers all of them.

    Messages for which another agent was chosen are left out. `with_choices`: an agent was ever chosen for the session.

    Messages are answered in order, but a message can be older than the answer to the message before it. The messages
    are read from the session, because the prompt can contain fewer messages than are waiting.
    """
    session, origin = trigger.session_id, StartingMessage.of(trigger)
    if session is None:
        return [origin.id]
    answered = await _answered_messages(store, definition, trigger)
    timeline = await load_timeline(store, trigger, origin.created) if with_choices else []
    found: list[str] = []
    schema = USER_MESSAGE if trigger.schema_name == AGENT_CONTEXT else trigger.schema_name
    query = Query(
        session_id=session, schema_name=schema, created_until=origin.created, limit=2 * _MAX_RECENT_ANSWERS
    )
    async for message in store.walk(trigger.owner_id, query):
        if message.id_text in answered or len(found) == _MAX_MERGED:
            break
        if withheld_reason(message) in ("secret", "private"):
            continue  # no model sees it, and its author gets an error instead
        if choice_at(timeline, message.created) not in (None, definition.agent_id):
            continue
        if trigger.schema_name == AGENT_CONTEXT or any(own.matches(message) for own in definition.triggers):
            found.append(message.id_text)
    return found[::-1]


async def _answered_messages(store: Store, definition: AgentDefinition, trigger: Breadcrumb) -> set[str]:
    last = await store.list(
        trigger.owner_id,
        Query(
            session_id=trigger.session_id,
            schema_name=definition.emits.schema_name,
            limit=_MAX_RECENT_ANSWERS,
            keep=lambda crumb: find_creator(crumb) == definition.agent_id,
        ),
    )
    # A client can also write an answer, and its trigger_id can be any JSON value.
    return {id for crumb in last.items if isinstance(id := crumb.context.get("trigger_id"), str)}
