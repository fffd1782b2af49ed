"""Triggers of agents, which agent runners publish at their start, in lane 0.

A process that serves the API has to know whether an answer triggers another agent. Agents from breadcrumbs are not
published: every process can read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import ValidationError

from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.store.store import Store

_LANE: Final = 0
_FIELDS: Final = frozenset(Selector.model_fields)


@dataclass(frozen=True, slots=True)
class AgentTriggers:
    """The selectors of the breadcrumbs that an agent, or the context of a consumer, reacts to."""

    agent_id: str
    selectors: tuple[Selector, ...]


async def publish_triggers(
    store: Store, kind: str, agents: Iterable[AgentTriggers], *, if_absent: bool = False
) -> None:
    """Publish the triggers of a kind of worker. They replace the published ones, unless `if_absent`."""
    command = b"HSETNX" if if_absent else b"HSET"
    rows = [[agent.agent_id, [_encode(one) for one in agent.selectors]] for agent in agents]
    await store.connection.call(
        _LANE, command, store.keys.published_triggers(), kind.encode(), orjson.dumps(rows)
    )


async def read_published_triggers(store: Store) -> dict[str, tuple[AgentTriggers, ...]]:
    """Return the published triggers by kind of worker.

    A kind is absent if its workers run an earlier version, or if a newer version uses selectors of another form.
    """
    flat = await store.connection.call(_LANE, b"HGETALL", store.keys.published_triggers())
    found: dict[str, tuple[AgentTriggers, ...]] = {}
    for kind, raw in zip(flat[::2], flat[1::2], strict=True):
        try:
            found[kind.decode(errors="replace")] = _decode(raw)
        except (ValidationError, ValueError, TypeError):
            continue
    return found


def _encode(selector: Selector) -> dict[str, Any]:
    return selector.model_dump(mode="json", include=set(_FIELDS), exclude_none=True)


def _decode(raw: bytes) -> tuple[AgentTriggers, ...]:
    rows: list[Any] = orjson.loads(raw)
    return tuple(
        AgentTriggers(str(agent_id), tuple(Selector.model_validate(one) for one in selectors))
        for agent_id, selectors in rows
    )
