"""The agent that was chosen for a session, at the time of a message.

A message is answered by the agent that was chosen when the message was stored. Every attempt, every retry after a
failure and every kind of worker therefore comes to the same result, also if the choice changes while the message waits.
A retry that a user requests counts as a new request: the agent that is chosen at that time answers.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias
from uuid import UUID

from breadcrumbs.agents.request import StartingMessage, retry_time
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION, USER_MESSAGE_TAG
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, SESSION_RECORD, STATE_CHANGE, USER_MESSAGE
from breadcrumbs.runtime.store.state import Choices
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import TurnFailed

_MAX_CHANGES: Final = 1_000
"""Maximum number of changes of a session that are searched for earlier choices."""
_PAGE: Final = 100

Timeline: TypeAlias = list[tuple[int, str | None]]
"""Choices of an agent with their times, the newest first."""


class AgentUnavailable(TurnFailed):
    """The chosen agent cannot answer a message. Several turns of the message report it once."""

    def __init__(self, reason: str, agent_id: str, report_key: str) -> None:
        super().__init__(reason)
        self.agent_id = agent_id
        self.report_key = report_key


def starts_with_users_message(trigger: Breadcrumb) -> bool:
    """Return whether a trigger is a user's message or a context of one. Choices apply only to these."""
    if trigger.schema_name == AGENT_CONTEXT:
        return "trigger_schema_name" not in trigger.context
    return trigger.schema_name == USER_MESSAGE


def matches_users_message(selector: Selector) -> bool:
    """Return whether a selector can match a message without additional tags, as chat clients post it."""
    session = "any"
    return selector.session_id is None and selector.matches_meta(
        USER_MESSAGE, (USER_MESSAGE_TAG, SESSION + session), session
    )


async def chosen_agent(store: Store, event: Event, trigger: Breadcrumb, choices: Choices) -> str | None:
    """Return the agent that has to answer a trigger. None: every agent whose triggers match.

    Needs no I/O, unless the choice has changed since the message.
    """
    if not choices.agent_since or not starts_with_users_message(trigger):
        return None
    origin = StartingMessage.of(trigger)
    # The retry of a dead letter concerns one kind of worker. The others do not see it, so the choice stays.
    retried = 0 if event.only_for is not None else retry_time(event, trigger)
    requested = max(origin.created, retried)
    if choices.agent_since < requested or not requested:
        return choices.agent
    return choice_at(await load_timeline(store, trigger, requested), requested)


async def load_timeline(store: Store, trigger: Breadcrumb, until: int) -> Timeline:
    """Return the choices of an agent in the session of a trigger, up to a time."""
    found: Timeline = []
    query = Query(
        session_id=trigger.session_id,
        schema_names=(SESSION_RECORD, STATE_CHANGE),
        created_until=until,
        limit=_PAGE,
    )
    searched = 0
    async for crumb in store.walk(trigger.owner_id, query):
        context = await _first_context(store, trigger.owner_id, crumb)
        if isinstance(context.get("agent", 0), str | None):
            found.append((crumb.created, context["agent"]))
        searched += 1
        if searched == _MAX_CHANGES:
            break
    return found


async def _first_context(store: Store, owner: UUID, crumb: Breadcrumb) -> dict[str, Any]:
    """Return the context of the first version. Only this version changed the facts of the session."""
    try:
        return (crumb if crumb.version == 1 else await store.get_version(owner, crumb.id, 1)).context
    except NotFound:
        return {}


def choice_at(timeline: Timeline, time: int) -> str | None:
    """Return the agent that was chosen at a time."""
    return next((agent for since, agent in timeline if since < time), None)
