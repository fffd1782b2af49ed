"""Random past turns: each request is rebuilt byte for byte, or the verification names what is gone.

`PROVEN_TURNS=10000 pytest tests/proofs/test_random_turns.py --timeout 7200` runs more turns than the default.
The seed determines the changes. Only the time at which a note expires can differ between two runs.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import anyio
import orjson
import pytest

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.functions import Call
from breadcrumbs.agents.models.base import Dialect, Model, ModelError, ModelReply, ModelRequest, ToolCall
from breadcrumbs.agents.models.chat_format import CACHE_KEY, request_json
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.agents.tools import Tool
from breadcrumbs.context_builder import referenced
from breadcrumbs.context_builder.referenced import LoadedVersion
from breadcrumbs.proofs.requests import NotRebuildable, load_receipt, rebuild_request
from breadcrumbs.proofs.verification import Outcome, Summary, Verification, compare, is_answer, verify_all
from breadcrumbs.runtime.access.principal import Principal
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.maintenance.archive_lines import WantedDocuments, archive_lines
from breadcrumbs.runtime.maintenance.export_import import Imported, export_lines, import_lines
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.sessions.forks import ForkOptions, fork
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.reduction import is_reduced
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import (
    ALICE,
    CONTEXT,
    ERROR,
    MESSAGE,
    RESPONSE,
    Working,
    agent,
    config,
    eventually,
    opened,
    working,
)

TURNS = int(os.environ.get("PROVEN_TURNS", "250"))
SEED = int(os.environ.get("PROVEN_SEED", "16"))
SESSIONS = ("one", "two", "three")
WORDS = ("tea", "größer", '"quoted"', "\u2028", "😀", "a\tb", "null", "0.1", "<b>", "\\")
ARGUMENTS = (
    '{"word": "tea"}',
    '{"word":"tea"}',
    '{"word": 1e2, "more": [null, {}]}',
    "{broken",
    "",
    '{"word":"é"}',
)

CHAT, PLAIN, OWN, FUNCTION = "chat", "plain", "own", "function"


@dataclass
class Script:
    """Model with random replies. Remembers the bytes of each request."""

    random: random.Random
    sent: set[bytes] = field(default_factory=set)

    def model(self, active: ActiveAgent) -> Model:
        name = f"model-of-{active.definition.agent_id}"

        def reply(request: ModelRequest) -> ModelReply | str:
            self.sent.add(request_json(Dialect(name, omit=(CACHE_KEY,)), request))
            steps = sum(bool(message.tool_calls) for message in request.messages)
            if self.random.random() < (0.25 if steps else 0.02):
                raise ModelError("overloaded", retry=True)
            if request.tools and steps < 3 and self.random.random() < 0.4:
                calls = tuple(
                    ToolCall(
                        f"call-{self.random.randrange(10**6)}",
                        self.random.choice(("echo", "unknown\n", "fail")),
                        # The same arguments in each attempt, so that a later attempt finds the result of the first.
                        ARGUMENTS[len(request.messages) % len(ARGUMENTS)],
                    )
                    for _ in range(self.random.randint(1, 2))
                )
                return ModelReply(self.random.choice(("", "Let me see. ", " ")), calls)
            return f"{self.random.choice(WORDS)} {self.random.randrange(100)}"

        return FunctionModel(reply, name=name)


def tools() -> list[Tool]:
    async def echo(word: Any = None, more: Any = None) -> Any:
        """Return the arguments."""
        return {"word": word, "more": more, "price": 0.1, "nothing": None}

    async def fail() -> str:
        """Fail."""
        raise ValueError("no: \u2028 \x00")

    return [Tool(echo, name="echo"), Tool(fail, name="fail")]


def agents() -> list[ActiveAgent]:
    async def count(call: Call) -> str:
        return f"I see {len(call.messages)} messages"

    def source(schema: str, **fetch: Any) -> dict[str, Any]:
        return {"schema_name": schema, "role": "context", "key": "log", "fetch": {"limit": 4, **fetch}}

    own = {
        "selectors": [
            {"schema_name": MESSAGE, "any_tags": ["ask:own"], "role": "trigger"},
            source(MESSAGE, conversation_scope="all"),
            source(RESPONSE),
            source("note.v1"),
        ]
    }
    return [
        agent(CHAT, tools=["echo", "fail"], temperature=0.7),
        agent(PLAIN, max_tokens=100, system_prompt=""),
        agent(OWN, subscriptions=own, tools=["echo"]),
        replace(agent(FUNCTION), function=count),
    ]


def all_configs() -> list[dict[str, Any]]:
    everywhere = {
        "key": "elsewhere",
        "schema_name": MESSAGE,
        "fetch": {"limit": 3, "conversation_scope": "all"},
    }
    notes = {"key": "notes", "schema_name": "note.v1", "fetch": {"limit": 2, "conversation_scope": "all"}}
    chat, plain, function = (
        config(name, update_triggers=[{"schema_name": MESSAGE, "any_tags": [f"ask:{name}"]}])
        for name in (CHAT, PLAIN, FUNCTION)
    )
    chat["sources"] += [everywhere, notes]
    plain["sources"][0] = {**plain["sources"][0], "max_tokens": 6}
    return [chat, plain, function]


@dataclass
class World:
    """Random turns, and random changes between them."""

    chat: Working
    random: random.Random
    script: Script
    gone: set[str] = field(default_factory=set)
    """Ids of breadcrumbs that were deleted or have expired."""
    forks: int = 0
    steps: int = 0
    turns: int = 0

    @property
    def session(self) -> str:
        """A random session. There are new ones every hundred steps, so that forks stay small."""
        return f"{self.random.choice(SESSIONS)}-{self.steps // 100}"

    async def step(self) -> None:
        self.steps += 1
        change = self.random.random()
        if change < 0.62:
            await self.say()
        elif change < 0.76:
            await self.edit()
        elif change < 0.82:
            await self.delete()
        elif change < 0.87:
            await self.note()
        elif change < 0.91:
            await self.post_definition()
        elif change < 0.95:
            await self.post_config()
        elif change < 0.97:
            await self.fork()
        else:
            await self.define_hints()

    async def say(self) -> None:
        self.turns += 1
        asked = self.random.choice((CHAT, CHAT, PLAIN, OWN, FUNCTION))
        text = " ".join(self.random.choices(WORDS, k=self.random.randint(1, 12)))
        message = await self.chat.say(self.session, text, tags=[f"ask:{asked}"])
        query = Query(session_id=message.session_id, limit=10)

        async def is_over() -> bool:
            recent = (await self.chat.store.list(self.chat.owner, query)).items
            return any(
                crumb.schema_name in (RESPONSE, ERROR) and crumb.context.get("trigger_id") == str(message.id)
                for crumb in recent
            )

        await eventually(is_over, f"no outcome for {asked}", limit=120)

    async def any(self, *schemas: str) -> Any:
        store, found = self.chat.store, []
        query = Query(schema_name=self.random.choice(schemas), limit=30)
        async for crumb in store.walk(self.chat.owner, query):
            found.append(crumb)
            if len(found) == 30:
                break
        return self.random.choice(found) if found else None

    async def edit(self) -> None:
        crumb = await self.any(MESSAGE, RESPONSE, "note.v1", "tool.request.v1", "tool.response.v1")
        if crumb is not None:
            context = {
                **crumb.context,
                "message": f"edited {self.random.randrange(100)}",
                "input": 1,
                "output": 2,
            }
            change = BreadcrumbUpdate(context=context, tags=[*crumb.tags, "turn:internal"])
            with suppress(NotFound):
                await self.chat.store.update(self.chat.owner, crumb.id, change)

    async def delete(self) -> None:
        crumb = await self.any(
            MESSAGE, RESPONSE, "note.v1", "tool.request.v1", "tool.response.v1", "schema.def.v1"
        )
        if crumb is not None:
            with suppress(NotFound):
                await self.chat.store.delete(self.chat.owner, crumb.id)
            self.gone.add(str(crumb.id))

    async def note(self) -> None:
        fields: dict[str, Any] = {
            "schema_name": "note.v1",
            "title": "n",
            "context": {"text": "note", "n": 1.5},
        }
        if self.random.random() < 0.5:
            fields |= {"ttl_type": "duration", "ttl_config": {"duration_seconds": 1}}
        written = await self.chat.store.create(self.chat.owner, BreadcrumbCreate.parse(fields))
        if "ttl_type" in fields:
            self.gone.add(str(written.id))  # after a second

    async def post_definition(self) -> None:
        definition = agents()[self.random.choice((0, 1))].definition.model_dump(
            mode="json", exclude_none=True
        )
        definition["system_prompt"] = f"Version {self.random.randrange(5)}"
        definition["temperature"] = self.random.choice((0.0, 0.1, 1.0))
        definition["tools"] = self.random.choice((["echo"], ["fail", "echo"], []))
        await self.chat.post("agent.def.v1", [], definition)

    async def post_config(self) -> None:
        changed = self.random.choice(all_configs()[:2])
        changed["formatting"] = {"max_tokens": self.random.choice((20, 100, 2000))}
        await self.chat.post("context.config.v1", [], changed)

    async def define_hints(self) -> None:
        hints = self.random.choice(({"exclude": ["n"]}, {"include": ["text"]}))
        new = {"schema_name": "schema.def.v1", "title": "hints", "tags": ["defines:note.v1"], "context": {}}
        with suppress(Exception):
            await self.chat.store.create(self.chat.owner, BreadcrumbCreate.parse({**new, "llm_hints": hints}))

    async def fork(self) -> None:
        self.forks += 1
        origin = self.session
        principal = Principal(self.chat.owner, UUID(int=7), frozenset(("curator",)))
        with suppress(NotFound):
            await fork(self.chat.store, principal, origin, f"fork-{self.forks}", ForkOptions())


@asynccontextmanager
async def played(
    store: Store, turns: int, seed: int, configs: list[dict[str, Any]] | None = None
) -> AsyncIterator[World]:
    chosen = random.Random(seed)
    script = Script(chosen)
    async with working(
        store,
        script.model,
        agents=agents(),
        configs=configs or all_configs(),
        tools=tools(),
        attempts=3,
        lease_seconds=60,
    ) as chat:
        world = World(chat, chosen, script)
        while world.turns < turns:
            await world.step()
        await anyio.sleep(1.1)  # notes expire
        yield world


async def check_all(store: Store, world: World) -> tuple[Summary, list[Verification]]:
    """Rebuild all requests. Each is one that a model was sent, or the result names what is gone."""
    summary, results = Summary(), []
    async for crumb in store.walk(world.chat.owner, Query(keep=is_answer)):
        try:
            turn = await rebuild_request(store, await load_receipt(store, world.chat.owner, crumb.id))
        except NotRebuildable as error:
            result = Verification(str(crumb.id), "not rebuildable", missing=[error.missing])
        else:
            result = compare(crumb, turn)
            if result.outcome == "equal" and turn.setup.document["kind"] == "model":
                assert turn.bodies and set(turn.bodies) <= world.script.sent
        if result.outcome == "not rebuildable":
            assert result.missing
            for missing in result.missing:
                assert missing.id in world.gone, missing
        summary.add(result)
        results.append(result)
    return summary, results


async def test_each_request_of_random_turns_is_rebuilt_or_the_gone_breadcrumb_is_named(store: Store) -> None:
    async with played(store, TURNS, SEED) as world:
        summary, results = await check_all(store, world)
        print(summary)
        different = [result.as_dict() for result in results if result.outcome == "different"]
        assert not different, orjson.dumps(different, option=orjson.OPT_INDENT_2).decode()
        assert summary.equal > TURNS / 4 and summary.not_rebuildable > 0
        assert any(result.requests > 1 for result in results)
        assert world.forks


async def test_random_turns_are_also_rebuilt_in_another_store_after_export_and_import(
    store: Store, embedded_server: EmbeddedServer
) -> None:
    """The other store has another number of lanes. The contexts are reduced to references before the export."""
    short = [{**one, "output": {"ttl_seconds": 1}} for one in all_configs()]
    async with played(store, min(TURNS, 50), SEED + 1, short) as world:
        await world.chat.settled()
        await Hygiene(store, Settings()).run_once()
        contexts = (await store.list(ALICE, Query(schema_name=CONTEXT, limit=100))).items
        assert any(map(is_reduced, contexts))
        here = await outcomes(store, None)
        lines = [line async for line in export_lines(store, ALICE, Query(sort="created_at"))]
        lines += [line async for line in archive_lines(store, ALICE, WantedDocuments(everything=True))]
        async with opened(embedded_server.url, lanes=7) as other:
            result = Imported()
            async for so_far in import_lines(other, lines):
                result = so_far
            assert result.bad_lines == [] and result.archived
            there = await outcomes(other, None)
            assert there == here and "equal" in there.values() and "different" not in there.values()
            await check_forks(other, there)


async def outcomes(store: Store, session: str | None) -> dict[str, Outcome]:
    """Verify all answers. Return the outcomes by the id of the answer."""
    found = {}
    async for result in verify_all(store, ALICE, session, Summary()):
        assert result.missing or result.outcome != "not rebuildable"
        found[result.answer_id] = result.outcome
    return found


async def check_forks(store: Store, known: dict[str, Outcome]) -> None:
    """Fork the imported sessions. Each copy of an answer has the outcome of its original."""
    principal = Principal(ALICE, UUID(int=7), frozenset(("curator",)))
    copies = 0
    for session in SESSIONS:
        with suppress(NotFound):
            await fork(store, principal, f"{session}-0", f"again-{session}", ForkOptions())
            for id, outcome in (await outcomes(store, f"again-{session}")).items():
                receipt = await load_receipt(store, ALICE, UUID(id))
                assert outcome == known[str(receipt.answer.id)]
                copies += outcome == "equal"
    assert copies


async def test_the_property_fails_if_versions_are_not_pinned(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def newest_version(store: Store, owner: UUID, id: UUID, version: int) -> LoadedVersion | None:
        try:
            newest = await store.get(owner, id, count_read=False)
        except NotFound:
            return None
        return LoadedVersion(newest, newest)

    async with played(store, 40, SEED) as world:
        monkeypatch.setattr(referenced, "load_version", newest_version)
        summary, results = await check_all(store, world)
        assert summary.different > 0
        first = next(result.difference for result in results if result.difference is not None)
        assert first.where and first.cause
