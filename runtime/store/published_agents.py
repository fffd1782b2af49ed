"""Agents that agent runners publish at their start, in lane 0.

A process that serves the API has no agents of its own, and a runner does not know the agents of user programs. Agents
from breadcrumbs are not published: every process can read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import read_worker_kinds, read_workers

MAX_AGENT_NAME: Final = 200

_LANE: Final = 0
_RUNNERS: Final = "agents"
"""Kind of agent runners. User programs run the kinds `agents/…`."""


@dataclass(frozen=True, slots=True)
class PublishedAgent:
    """An agent that can answer users' messages."""

    agent_id: str
    description: str | None = None
    model: str | None = None
    """Model that the definition names, without the URL of its server. None: the default, or no model."""
    consumers: tuple[str, ...] = ()
    """Consumers whose contexts trigger the agent."""
    direct: bool = False
    """Whether messages themselves trigger the agent."""


async def publish_agents(
    store: Store, kind: str, agents: Iterable[PublishedAgent], *, if_absent: bool = False
) -> None:
    """Publish the agents of a kind of worker. They replace the published ones, unless `if_absent`."""
    command = b"HSETNX" if if_absent else b"HSET"
    rows = [
        [agent.agent_id, agent.description, agent.model, agent.consumers, agent.direct] for agent in agents
    ]
    await store.connection.call(
        _LANE, command, store.keys.published_agents(), kind.encode(), orjson.dumps(rows)
    )


async def read_published_agents(store: Store) -> dict[str, tuple[PublishedAgent, ...]]:
    """Return the published agents by kind of worker. Kinds that are not running are included."""
    flat = await store.connection.call(_LANE, b"HGETALL", store.keys.published_agents())
    return {
        kind.decode(errors="replace"): _decode(raw) for kind, raw in zip(flat[::2], flat[1::2], strict=True)
    }


async def living_kinds(store: Store, kinds: Sequence[str]) -> set[str]:
    """Return the kinds that have a living worker."""
    now = store.now()
    return {worker.kind for worker in await read_workers(store, kinds) if worker.until > now}


async def has_runner(store: Store) -> bool:
    """Return whether a process that runs agents is alive, of the installation or of a user's program."""
    kinds = [kind for kind in await read_worker_kinds(store) if kind.partition("/")[0] == _RUNNERS]
    return bool(await living_kinds(store, kinds)) if kinds else False


def _decode(raw: bytes) -> tuple[PublishedAgent, ...]:
    rows: list[Any] = orjson.loads(raw)
    return tuple(
        PublishedAgent(row[0], row[1], row[2], tuple(row[3]), row[4])
        for row in rows
        if isinstance(row, list) and len(row) >= 5
    )
