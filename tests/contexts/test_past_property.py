"""Random sessions: each past context, assembled again with its own config, is the stored one or names what is gone."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import anyio
import orjson
import pytest

from breadcrumbs.context_builder.assembly import TriggerWithheld
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import parse_configs
from breadcrumbs.context_builder.context_tests import ContextTester, ContextTestRequest
from breadcrumbs.context_builder.past import Reassembled, TriggerGone, reassemble
from breadcrumbs.context_builder.references import read_record
from breadcrumbs.context_builder.timeline import ContextVersions, SessionTimeline
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.retrieval.past import History
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT
from breadcrumbs.runtime.sessions.forks import ForkOptions, fork
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import (
    ANSWERS,
    MESSAGES,
    OWNER,
    Builder,
    book_of,
    building,
    context_of,
    document,
    post,
)

STEPS = 110
NOTE = "note.v1"
WORDS = ["lamp", "river", "stone", "winter", "copper", "garden", "signal", "harbour", "violet", "engine"]


def random_config(chance: random.Random) -> dict[str, object]:
    """Return a config with a random selection of sources, limits and budget."""
    limit = {"fetch": {"limit": chance.randint(2, 6)}}
    sources: list[dict[str, object]] = [MESSAGES | limit, ANSWERS | limit]
    more: list[dict[str, object]] = [
        {"key": "tools", "schema_name": "tool.catalog.v1", "fetch": {"method": "latest"}},
        {"key": "pins", "any_tags": ["pinned"], "fetch": {"conversation_scope": "all", "limit": 4}},
        {"key": "mine", "schema_name": NOTE, "fetch": {"conversation_scope": "user", "limit": 3}},
        {"key": "notes", "schema_name": NOTE, "max_tokens": 6, "fetch": {"limit": 3}},
        {"key": "tagged", "all_tags": ["kept"], "fetch": {"limit": 2}},
    ]
    sources += chance.sample(more, chance.randint(1, len(more)))
    budgets = [{"max_tokens": 40}, {"max_tokens": 120}, {"max_tokens": 120, "keep_tokens": 60}, {}]
    changes: dict[str, object] = {"formatting": chance.choice(budgets)}
    if chance.random() < 0.5:
        limits: dict[str, object] = {"key": "conversation", "limit": chance.randint(4, 8)}
        if chance.random() < 0.5:  # a stepped window
            limits["keep"] = 3
            sources[:2] = [MESSAGES, ANSWERS]
        changes["limits"] = [limits]
    if chance.random() < 0.3:
        changes["exclude"] = {"tags": ["hidden"]}
    return document(sources=sources, **changes)


class World:
    """A store with random sessions, and all configs that were in force."""

    def __init__(self, store: Store, builder: Builder, seed: int) -> None:
        self.store, self.builder = store, builder
        self.chance = random.Random(seed)
        self.sessions = ["a", "b"]
        self.crumbs: list[Breadcrumb] = []
        self.configs: dict[str, ContextConfig] = {}
        self.config_crumb: UUID | None = None
        self.forks = 0

    def text(self) -> str:
        return " ".join(self.chance.choices(WORDS, k=self.chance.randint(1, 25)))

    async def step(self) -> None:
        actions: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.ask, 12),
            (self.ask_twice, 2),
            (self.note, 5),
            (self.edit, 7),
            (self.delete, 1),
            (self.catalog, 2),
            (self.define, 2),
            (self.fork, 1),
            (self.configure, 2),
        ]
        (action,) = self.chance.choices([one for one, _ in actions], [weight for _, weight in actions])
        await action()

    async def ask(self) -> None:
        session = self.chance.choice(self.sessions)
        tags = tuple(tag for tag in ("pinned", "kept", "hidden") if self.chance.random() < 0.2)
        ttl: dict[str, Any] = {"ttl_type": "duration", "ttl_config": {"duration_seconds": 2}}
        more = ttl if self.chance.random() < 0.05 else {}
        context = await self.builder.say(self.text(), session, tags=tags, **more)
        message = await self.store.get(OWNER, read_record(context).trigger_id, count_read=False)
        self.crumbs.append(message)
        answer = {"message": self.text(), "trigger_id": str(message.id)}
        self.crumbs.append(
            await post(self.store, session=session, schema="agent.response.v1", context=answer)
        )

    async def ask_twice(self) -> None:
        """The second message waits while the first one is answered."""
        session = self.chance.choice(self.sessions)
        first = await post(self.store, self.text(), session=session)
        second = await post(self.store, self.text(), session=session)
        await self.builder.made_for(second, context_of(self.store, session))
        self.crumbs += [first, second]

    async def note(self) -> None:
        session = self.chance.choice([*self.sessions, "elsewhere"])
        tags = tuple(tag for tag in ("pinned", "kept", "hidden", "user:ann") if self.chance.random() < 0.5)
        self.crumbs.append(await post(self.store, self.text(), session=session, schema=NOTE, tags=tags))

    async def edit(self) -> None:
        if not self.crumbs:
            return
        crumb = await self._existing(self.chance.choice(self.crumbs))
        if crumb is None:
            return
        change = self.chance.choice(["text", "text", "tags", "secret"])
        if change == "text":
            update = BreadcrumbUpdate(context={**crumb.context, "message": self.text()})
        elif change == "tags":
            kept = [tag for tag in crumb.tags if tag.startswith(("session:", "user:", "defines:"))]
            update = BreadcrumbUpdate(tags=[*kept, *self.chance.sample(["pinned", "kept", "hidden"], 1)])
        else:
            update = BreadcrumbUpdate(sensitivity=self.chance.choice(["secret", "low"]))
        await self.store.update(OWNER, crumb.id, update)

    async def delete(self) -> None:
        if self.crumbs:
            crumb = await self._existing(self.crumbs.pop(self.chance.randrange(len(self.crumbs))))
            if crumb is not None:
                await self.store.delete(OWNER, crumb.id)

    async def catalog(self) -> None:
        session = self.chance.choice([None, *self.sessions])
        self.crumbs.append(await post(self.store, self.text(), session=session, schema="tool.catalog.v1"))

    async def define(self) -> None:
        schema = self.chance.choice([NOTE, "user.message.v1"])
        hints = {"llm_hints": {"include": ["message"]}, "llm_hints_version": self.chance.random()}
        if self.chance.random() < 0.5:
            hints = {"llm_hints": {"exclude": ["session_id"]}}
        self.crumbs.append(
            await post(self.store, schema="schema.def.v1", tags=(f"defines:{schema}",), context=hints)
        )

    async def fork(self) -> None:
        if self.forks < 3:
            self.forks += 1
            name = f"fork{self.forks}"
            origin = self.chance.choice(self.sessions)
            if (await self.store.list(OWNER, Query(session_id=origin, limit=1))).items:
                await fork(self.store, Principal(OWNER, OWNER), origin, name, ForkOptions())
                self.sessions.append(name)

    async def configure(self) -> None:
        await self.use(random_config(self.chance))

    async def use(self, document: dict[str, object]) -> None:
        (config,) = parse_configs(orjson.dumps(document))
        self.configs[config.digest] = config
        if self.config_crumb is None:
            crumb = await post(self.store, schema="context.config.v1", context=document)
            self.config_crumb = crumb.id
        else:
            await self.store.update(OWNER, self.config_crumb, BreadcrumbUpdate(context=document))
        self.builder.book.invalidate(OWNER)

    async def _existing(self, crumb: Breadcrumb) -> Breadcrumb | None:
        found = (await self.store.look_up(OWNER, crumb.id))[1]
        if found is None:
            return None
        try:
            return await self.store.get(OWNER, crumb.id, count_read=False)
        except Exception:  # it has expired
            return None

    async def contexts(self) -> list[Breadcrumb]:
        """Return all versions of all contexts."""
        found = []
        async for crumb in self.store.walk(OWNER, Query(schema_name=AGENT_CONTEXT)):
            found += await self.store.history(OWNER, crumb.id)
        return found


async def play(store: Store, builder: Builder, seed: int) -> World:
    world = World(store, builder, seed)
    await world.use(random_config(world.chance))
    await post(store, "first", session="a", tags=("user:ann",))
    for _ in range(STEPS):
        await world.step()
    await anyio.sleep(2.1)  # messages with a TTL expire
    return world


def problem(built: Reassembled) -> str | None:
    """Return how a context differs from the stored one, or None if it is equal or names what is gone."""
    record, assembled = built.turn.record, built.assembled
    if record is None:
        return "no record"
    stored = [
        (item.id, item.version, item.source, item.place, item.cut, item.tokens) for item in record.items
    ]
    now = [
        (item.crumb.id, item.crumb.version, item.source, item.place, item.cut, item.tokens)
        for item in assembled.items
    ]
    if stored == now and built.same and assembled.tokens == record.tokens:
        return None
    if built.turn.gone:
        return None
    return f"only stored: {set(stored) - set(now)}, only now: {set(now) - set(stored)}, {built.same}"


async def check(world: World) -> tuple[int, int, list[str]]:
    """Return the numbers of equal contexts and of contexts with gone breadcrumbs, and all problems."""
    same = gone = 0
    problems = []
    for context in await world.contexts():
        record = read_record(context)
        try:
            built = await reassemble(
                world.store, OWNER, context.id, context.version, world.configs[record.config]
            )
        except TriggerGone as error:
            assert str(record.trigger_id) in str(error)
            gone += 1
            continue
        except TriggerWithheld:  # only if the version of that time was not used
            problems.append(f"{context.session_id} version {context.version}: the trigger became secret")
            continue
        if found := problem(built):
            problems.append(f"{context.session_id} version {context.version}: {found}")
        same += bool(built.same)
        gone += not built.same
    return same, gone, problems


async def check_timelines(world: World) -> tuple[int, list[str]]:
    """Like `check`, but slide over each session."""
    same, problems = 0, []
    configs = list(world.configs.values())
    tester = ContextTester(world.store, ContextTestRequest(OWNER, configs[0]), no_config)
    newest = [crumb async for crumb in world.store.walk(OWNER, Query(schema_name=AGENT_CONTEXT))]
    for context in newest:
        timeline = SessionTimeline(tester.shared, context.session_id or "", configs)
        async for version in ContextVersions(tester.shared.reader, context).since(1, page=7):
            record = read_record(version)
            try:
                turn = await timeline.turn(version, record)
            except TriggerGone:
                continue
            assembled = await tester.assemble(timeline, world.configs[record.config], turn)
            built = Reassembled(turn, assembled)
            same += bool(built.same)
            if found := problem(built):
                problems.append(f"{context.session_id} version {version.version}: {found}")
    return same, problems


async def no_config(digest: str) -> None:
    return None


@pytest.mark.parametrize("seed", range(4))
async def test_a_past_context_is_assembled_again_or_names_what_is_gone(store: Store, seed: int) -> None:
    async with building(store, book_of(store)) as builder:
        world = await play(store, builder, seed)
    same, gone, problems = await check(world)
    assert problems == []
    assert same > 20 and gone > 0
    assert await check_timelines(world) == (same, [])


async def test_a_version_that_is_not_pinned_is_noticed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The property fails if the newest versions are used instead of those of that time."""
    async with building(store, book_of(store)) as builder:
        world = await play(store, builder, seed=1)
    monkeypatch.setattr(History, "version", lambda self, number: self.newest)
    monkeypatch.setattr(History, "current_at", lambda self, time: self.newest)
    assert (await check(world))[2] != []
