"""Turns of a session that are not finished: events that an agent or a context reacts to, and that have no result yet.

A worker commits the result of a turn together with the acknowledgement of its event. So a chain has ended as soon as
each of its events is acknowledged, or triggers nothing. Progress is read before the events. An event that is written in
between is then unfinished, and the chain is read again later. So a chain never seems to have ended too early.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.unfinished import unfinished_by_kind
from breadcrumbs.runtime.schema_names import FEEDBACK
from breadcrumbs.runtime.store.published_triggers import AgentTriggers, read_published_triggers
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import read_worker_kinds
from breadcrumbs.runtime.store.worker_reports import list_workers
from breadcrumbs.runtime.workers.turn import INTERNAL

_LOST_MICROSECONDS: Final = 60_000_000
"""Time after the last heartbeat of a killed program during which its agents are waited for: it can start again."""

LoadTriggers: TypeAlias = Callable[[UUID], Awaitable[Mapping[str, Sequence[AgentTriggers]]]]
"""Returns the triggers in force for an owner, by kind of worker. A kind is absent if its triggers are unknown."""


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A turn that has no result yet."""

    kind: str
    """Kind of the worker."""
    agents: tuple[str, ...]
    """Agents or consumers that react to the trigger. Empty: they are unknown."""
    trigger: Breadcrumb


def published_triggers_only(store: Store) -> LoadTriggers:
    """Return a function that knows only the triggers that runners publish, for an application without agents."""

    async def load(owner: UUID) -> Mapping[str, Sequence[AgentTriggers]]:
        return await read_published_triggers(store)

    return load


async def open_turns(
    store: Store, load_triggers: LoadTriggers, owner: UUID, session: str
) -> AsyncIterator[OpenTurn]:
    """Yield the unfinished turns of a session, the newest first.

    A turn whose agent decides not to answer counts until its worker has saved its progress, within about a second.
    """
    kinds = await _waited_kinds(store)
    if not kinds:
        return
    triggers = await load_triggers(owner)
    async for event, unfinished in unfinished_by_kind(store, owner, session, times.LATEST, kinds):
        possible = {
            kind: agents
            for kind in unfinished
            if (agents := _triggered(triggers.get(kind), event)) is not None and not _is_ignored(event)
        }
        if not possible:
            continue
        try:
            crumb = await store.get_version(event.owner_id, event.id, event.version)
        except NotFound:
            continue  # a deleted trigger is not answered
        for kind, agents in possible.items():
            if not agents or (agents := _matching(agents, crumb)):
                yield OpenTurn(kind, tuple(agent.agent_id for agent in agents), crumb)


async def _waited_kinds(store: Store) -> list[str]:
    """Return the kinds of workers whose turns count: those of the installation, and those of programs that run.

    A program that was stopped is not waited for. Otherwise a script that ran once would delay every wait.
    """
    kinds = await read_worker_kinds(store)
    programs = [kind for kind in kinds if "/" in kind]
    since = store.now() - _LOST_MICROSECONDS
    running = {
        worker.kind
        for worker in (await list_workers(store, programs) if programs else ())
        if not worker.ended or (worker.state == "lost" and worker.alive_until > since)
    }
    return [kind for kind in kinds if "/" not in kind or kind in running]


def _is_ignored(event: Event) -> bool:
    """Return whether no worker starts a turn for an event."""
    return (
        event.operation not in ("created", "updated", "retried")
        or event.imported
        or event.schema_name == FEEDBACK
        or INTERNAL in event.tags
    )


def _triggered(agents: Sequence[AgentTriggers] | None, event: Event) -> Sequence[AgentTriggers] | None:
    """Return the agents that an event can trigger. None: none. Empty: the agents of the kind are unknown."""
    if agents is None:
        return ()
    found = [
        agent
        for agent in agents
        if any(one.matches_meta(event.schema_name, event.tags, event.session_id) for one in agent.selectors)
    ]
    return found or None


def _matching(agents: Sequence[AgentTriggers], crumb: Breadcrumb) -> Sequence[AgentTriggers]:
    return [agent for agent in agents if any(one.matches(crumb) for one in agent.selectors)]
