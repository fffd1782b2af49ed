"""Check of the agents: the rule for messages that several of them match, and programs that were lost."""

from __future__ import annotations

from typing import Final

from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.store.published_agents import RUNNERS, Publications, living_kinds, read_publications
from breadcrumbs.runtime.store.store import Store

_MAX_NAMED: Final = 10


async def check_agents(store: Store) -> Finding:
    """Return the rule and the agents that it applies to. Warn of claims of programs that do not run."""
    published = await read_publications(store)
    if not published.by_kind:
        return Finding("agents", "skipped", "no agent runner ever ran on this store")
    lost = await _lost_programs(store, published)
    if lost:
        return Finding(
            "agents",
            "warning",
            f"new messages wait for agents of programs that do not run: {_named(lost)}",
            "start the programs again, or wait: half a minute after a program was killed, other agents answer",
            {"waiting_for": lost},
        )
    rule = published.answering or "all"
    names = sorted(
        agent.agent_id
        for kind, one in published.by_kind.items()
        for agent in one.agents
        if agent.listed and not agent.fallback and (kind == RUNNERS or agent.claims)
    )
    message = f"if several agents match a message: {rule} (setting answering)"
    return Finding("agents", "ok", message, details={"answering": rule, "answering_users": names})


async def _lost_programs(store: Store, published: Publications) -> list[str]:
    programs = [kind for kind in published.by_kind if kind != RUNNERS]
    alive = await living_kinds(store, programs) if programs else set[str]()
    now = store.now()
    return sorted(
        agent.agent_id
        for kind in programs
        if kind not in alive
        for agent in published.by_kind[kind].agents
        if agent.answers and any(begin <= now < end for begin, end in agent.claims)
    )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} others" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
