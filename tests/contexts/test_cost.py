"""The cost of a context does not depend on the amount of stored data."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from breadcrumbs.context_builder.builder import build_context
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import parse_configs
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import SHIPPED, config, post


class Counting:
    """Connection that counts commands and round trips."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.commands = self.waits = 0
        self._under_way = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    async def _counted(self, commands: int, reply: Any) -> Any:
        self.commands += commands
        self.waits += self._under_way == 0  # concurrent requests share a round trip
        self._under_way += 1
        try:
            return await reply
        finally:
            self._under_way -= 1

    async def call(self, *args: Any) -> Any:
        return await self._counted(1, self.connection.call(*args))

    async def call_all(self, commands: Any) -> Any:
        return await self._counted(len(commands), self.connection.call_all(commands))

    async def run(self, *args: Any) -> Any:
        return await self._counted(1, self.connection.run(*args))


async def say_all(store: Store, session: str, count: int) -> None:
    for start in range(0, count, 500):
        await asyncio.gather(
            *(
                post(store, f"message {n}", session=session, schema=schema, tags=("x",))
                for n in range(start, min(start + 500, count))
                for schema in ("user.message.v1", "agent.response.v1")
            )
        )


@pytest.mark.parametrize(
    "chosen",
    [
        parse_configs(SHIPPED.read_bytes())[0],
        config(sources=[{"key": "a", "any_tags": ["x", "y"], "fetch": {"limit": 10}}]),
        config(
            sources=[{"key": "a", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "all"}}]
        ),
    ],
    ids=["the shipped config", "by tags", "scope all"],
)
async def test_a_context_takes_as_many_round_trips_with_5000_messages_as_with_100(
    store: Store, chosen: Any
) -> None:
    await say_all(store, "short", 50)
    await say_all(store, "long", 2500)
    short = await cost_of(
        store, chosen, await post(store, "now", session="short", tags=("x", "user:message"))
    )
    assert (
        await cost_of(store, chosen, await post(store, "now", session="long", tags=("x", "user:message")))
        == short
    )


async def test_a_source_with_a_rare_tag_reads_in_large_batches(store: Store) -> None:
    """Tags are filtered within the index of the session, so a rare tag requires a full read of it."""
    await say_all(store, "s", 2500)
    rare = config(sources=[{"key": "a", "any_tags": ["rare"], "fetch": {"limit": 10}}])
    assert (await cost_of(store, rare, await post(store, "now", session="s", tags=("rare",))))[0] < 30


async def cost_of(store: Store, chosen: ContextConfig, trigger: Breadcrumb) -> tuple[int, int]:
    """Return the round trips and commands of building a context."""
    counting = Counting(store.connection)
    store.connection = counting
    try:
        made = await build_context(store, chosen, trigger, hints=SchemaHints(store))
    finally:
        store.connection = counting.connection
    assert made.items[-1].crumb.id == trigger.id
    return counting.waits, counting.commands


async def test_the_shipped_config_takes_few_round_trips(store: Store) -> None:
    await say_all(store, "s", 20)
    await post(store, "a catalogue", schema="tool.catalog.v1")
    (chosen,) = parse_configs(SHIPPED.read_bytes())
    # Messages and answers together, the catalogue's index and body, and hints of schemas once a second.
    assert (await cost_of(store, chosen, await post(store, "now", session="s")))[0] <= 5
