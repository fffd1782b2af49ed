"""Agents that agent runners publish, in lane 0.

A process that serves the API has no agents of its own, and a runner does not know the agents of user programs. Agents
from breadcrumbs are not published: every process can read them.

The runners of the installation also publish the rule for messages that several agents match, so that all processes
apply the same rule. A user program claims messages: those that were stored in the intervals of its claims. Other
processes leave these messages to it. See `agents/answer_rules.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, get_args

import orjson

from breadcrumbs.runtime.settings.answering import Answering
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import read_worker_kinds, read_workers

MAX_AGENT_NAME: Final = 200

RUNNERS: Final = "agents"
"""Kind of agent runners. User programs run the kinds `agents/…`."""

_LANE: Final = 0

Claims: TypeAlias = tuple[tuple[int, int], ...]
"""Intervals of time in microseconds: begin and end. The end is not included."""


@dataclass(frozen=True, slots=True)
class PublishedAgent:
    """An agent of a runner or of a user's program."""

    agent_id: str
    description: str | None = None
    model: str | None = None
    """Model that the definition names, without the URL of its server. None: the default, or no model."""
    consumers: tuple[str, ...] = ()
    """Consumers whose contexts trigger the agent."""
    direct: bool = False
    """Whether messages themselves trigger the agent."""
    listed: bool = True
    """Whether the agent answers messages without additional tags. A session can choose it."""
    answers: bool = True
    """Whether what the agent writes is an answer to the user. Otherwise it works beside the agent that answers."""
    fallback: bool = False
    """Whether the agent leaves messages to other agents that match."""
    triggers: tuple[dict[str, Any], ...] = ()
    """Selectors of the triggers."""
    tools: tuple[str, ...] = ()
    claims: Claims = ()
    """Times of the messages that a user program has claimed. Empty: all."""


@dataclass(frozen=True, slots=True)
class Publication:
    """Everything that one kind of worker has published."""

    agents: tuple[PublishedAgent, ...] = ()
    answering: Answering | None = None
    """Rule of the installation. None: not published."""
    tools: tuple[str, ...] = ()
    """Names of the tools that the kind can run."""


@dataclass(frozen=True, slots=True)
class Publications:
    """Everything that is published, by kind of worker. Kinds that are not running are included."""

    by_kind: Mapping[str, Publication] = field(default_factory=dict)

    @property
    def answering(self) -> Answering | None:
        """The rule that the runners of the installation have published."""
        runners = self.by_kind.get(RUNNERS)
        return None if runners is None else runners.answering

    def of_others(self, kind: str) -> list[PublishedAgent]:
        """Return the agents of all kinds but one."""
        return [agent for other, one in self.by_kind.items() if other != kind for agent in one.agents]


async def publish_agents(
    store: Store,
    kind: str,
    agents: Iterable[PublishedAgent],
    *,
    answering: Answering | None = None,
    tools: Iterable[str] = (),
    if_absent: bool = False,
) -> None:
    """Publish the agents of a kind of worker. They replace the published ones, unless `if_absent`."""
    command = b"HSETNX" if if_absent else b"HSET"
    rows: list[Any] = [_encode(agent) for agent in agents]
    # Earlier versions skip rows that are no lists.
    rows.append({"tools": list(tools)} | ({} if answering is None else {"answering": answering}))
    await store.connection.call(
        _LANE, command, store.keys.published_agents(), kind.encode(), orjson.dumps(rows)
    )


async def remove_agents(store: Store, kind: str) -> None:
    """Remove the agents of a kind of worker that never runs again."""
    await store.connection.call(_LANE, b"HDEL", store.keys.published_agents(), kind.encode())


async def read_publications(store: Store) -> Publications:
    """Return everything that is published."""
    flat = await store.connection.call(_LANE, b"HGETALL", store.keys.published_agents())
    return Publications(
        {kind.decode(errors="replace"): _decode(raw) for kind, raw in zip(flat[::2], flat[1::2], strict=True)}
    )


async def read_publication(store: Store, kind: str) -> Publication:
    """Return what one kind of worker has published."""
    raw = await store.connection.call(_LANE, b"HGET", store.keys.published_agents(), kind.encode())
    return Publication() if raw is None else _decode(raw)


async def read_published_agents(store: Store) -> dict[str, tuple[PublishedAgent, ...]]:
    """Return the agents that answer messages without additional tags, by kind of worker."""
    published = await read_publications(store)
    return {
        kind: tuple(agent for agent in one.agents if agent.listed) for kind, one in published.by_kind.items()
    }


async def living_kinds(store: Store, kinds: Sequence[str]) -> set[str]:
    """Return the kinds that have a living worker."""
    now = store.now()
    return {worker.kind for worker in await read_workers(store, kinds) if worker.until > now}


async def has_runner(store: Store) -> bool:
    """Return whether a process that runs agents is alive, of the installation or of a user's program."""
    kinds = [kind for kind in await read_worker_kinds(store) if kind.partition("/")[0] == RUNNERS]
    return bool(await living_kinds(store, kinds)) if kinds else False


def _encode(agent: PublishedAgent) -> Any:
    """Return the row of an agent. Earlier versions read the first five fields of rows that are lists."""
    row: list[Any] = [agent.agent_id, agent.description, agent.model, agent.consumers, agent.direct]
    row.append(
        {
            "answers": agent.answers,
            "fallback": agent.fallback,
            "triggers": agent.triggers,
            "tools": agent.tools,
            "claims": agent.claims,
        }
    )
    return row if agent.listed else {"agent": row}


def _decode(raw: bytes) -> Publication:
    rows: list[Any] = orjson.loads(raw)
    agents: list[PublishedAgent] = []
    facts: dict[str, Any] = {}
    for row in rows:
        if isinstance(row, list) and len(row) >= 5:
            agents.append(_decode_agent(row, listed=True))
        elif isinstance(row, dict) and "agent" in row:
            agents.append(_decode_agent(row["agent"], listed=False))
        elif isinstance(row, dict):
            facts |= row
    answering = facts.get("answering")
    known: Answering | None = answering if answering in get_args(Answering) else None
    return Publication(tuple(agents), known, tuple(facts.get("tools", ())))


def _decode_agent(row: list[Any], *, listed: bool) -> PublishedAgent:
    more: dict[str, Any] = row[5] if len(row) > 5 else {}
    return PublishedAgent(
        row[0],
        row[1],
        row[2],
        tuple(row[3]),
        row[4],
        listed=listed,
        answers=more.get("answers", False),  # a program of an earlier version claims no messages
        fallback=more.get("fallback", False),
        triggers=tuple(more.get("triggers", ())),
        tools=tuple(more.get("tools", ())),
        claims=tuple((begin, end) for begin, end in more.get("claims", ())),
    )
