"""A whole chat in one process: store, context builder and agent runner, with a model of the test.

`Chat` posts messages and reads answers. `working` runs real workers in this process. `compose` only connects the two
handlers, for tests that run each step themselves.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any
from uuid import UUID

import anyio
import orjson

from breadcrumbs.agents.agents_in_force import ActiveAgent, AgentsInForce
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.functions import Call
from breadcrumbs.agents.hooks import Hook, Hooks
from breadcrumbs.agents.models.base import Model, ModelError, ModelReply, ModelRequest, OnDelta
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.agents.runner import AgentRunner
from breadcrumbs.agents.tool_steps import ToolSteps
from breadcrumbs.agents.tools import Tool, Toolbox
from breadcrumbs.agents.turn import AgentTurns, Gathered
from breadcrumbs.context_builder.builder import ContextBuilder, gather_parts
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import home_lane
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.tags import DEFAULT_INHERITED
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.written import Written
from breadcrumbs.runtime.workers.lane import Lane
from breadcrumbs.runtime.workers.retries import TurnLimits
from breadcrumbs.runtime.workers.worker import Worker
from tests.support.events import close_with_reader, log_of, reader_of

ALICE = UUID("00000000-0000-7000-8000-00000000a11c")
BOB = UUID("00000000-0000-7000-8000-0000000000b0")

MESSAGE, RESPONSE, CONTEXT = "user.message.v1", "agent.response.v1", "agent.context.v1"
ERROR, CANCEL = "agent.error.v1", "agent.cancel.v1"

ASSISTANT = "default-chat-assistant"
LIMIT = 15.0
"""Seconds after which a test that waits has failed; nothing takes that long, on a busy machine either."""


def config(consumer: str = ASSISTANT, **changes: Any) -> dict[str, Any]:
    """A context config like the one that comes with the package."""
    return {
        "consumer_id": consumer,
        "update_triggers": [{"schema_name": MESSAGE, "any_tags": ["user:message"]}],
        "sources": [
            {"key": "conversation", "schema_name": MESSAGE, "fetch": {"method": "recent", "limit": 10}},
            {"key": "conversation", "schema_name": RESPONSE, "fetch": {"method": "recent", "limit": 10}},
        ],
        **changes,
    }


def agent(agent_id: str = ASSISTANT, **changes: Any) -> ActiveAgent:
    """An agent that answers the contexts of its own consumer."""
    fields: dict[str, Any] = {
        "agent_id": agent_id,
        "system_prompt": "You are a test.",
        "subscriptions": {"selectors": [{"schema_name": CONTEXT, "all_tags": [f"consumer:{agent_id}"]}]},
        **changes,
    }
    return ActiveAgent(AgentDefinition.model_validate(fields), trusted=True)


def function_agent(function: Callable[[Call], Awaitable[Any]]) -> ActiveAgent:
    """The same, but its answers come from a function."""
    return replace(agent(), function=function)


def spoken(request: ModelRequest) -> list[tuple[str, str]]:
    """Return the messages of a model call without the system prompt."""
    return [(message.role, message.content) for message in request.messages if message.role != "system"]


def last_words(request: ModelRequest) -> str:
    return request.messages[-1].content


class PacedModel:
    """Answers `re: …` to each message, but only when the test lets it. One of them it may refuse to answer."""

    name = "paced"

    def __init__(self, refuses: str | None = None) -> None:
        self.refuses = refuses
        self.requests: list[ModelRequest] = []
        self._begun: dict[str, anyio.Event] = {}
        self._allowed: dict[str, anyio.Event] = {}

    def allow(self, *texts: str) -> None:
        for text in texts:
            self._allowed.setdefault(text, anyio.Event()).set()

    async def begun(self, text: str) -> None:
        """Wait until the model was called for this message."""
        with anyio.fail_after(LIMIT):
            await self._begun.setdefault(text, anyio.Event()).wait()

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        text = last_words(request)
        self.requests.append(request)
        self._begun.setdefault(text, anyio.Event()).set()
        await self._allowed.setdefault(text, anyio.Event()).wait()
        if text == self.refuses:
            raise ModelError("I refuse", retry=False)
        return ModelReply(f"re: {text}")

    async def close(self) -> None:
        return None


def recite(request: ModelRequest) -> str:
    """An answer that shows all the model saw."""
    return " | ".join(f"{message.role}: {message.content}" for message in request.messages[1:])


@dataclass(frozen=True, slots=True)
class Handlers:
    builder: ContextBuilder
    runner: AgentRunner
    configs: ConfigsInForce
    runner_configs: ConfigsInForce
    agents: AgentsInForce
    hints: tuple[SchemaHints, ...]


def compose(
    store: Store,
    model: Model | Callable[[ActiveAgent], Model],
    *,
    agents: Sequence[ActiveAgent] | None = None,
    configs: Sequence[dict[str, Any]] | None = None,
    tools: Iterable[Tool] = (),
    hooks: Iterable[Hook] = (),
    runner_store: Store | None = None,
) -> Handlers:
    """The two handlers as `breadcrumbs.composition.workers` puts them together, with another model.

    `runner_store` gives the runner a connection of its own.
    """
    answering = runner_store or store
    raw = orjson.dumps([config()] if configs is None else list(configs)) if configs != () else None
    book = ConfigsInForce(store, None, default=raw)
    runner_configs = ConfigsInForce(answering, None, default=raw)
    agent_book = AgentsInForce(answering, agents if agents is not None else [agent()])
    hints = SchemaHints(answering)
    refresher = ContextBuilder(answering, runner_configs)
    builder = ContextBuilder(store, book)

    async def gather(definition: AgentDefinition, trigger: Breadcrumb) -> Gathered:
        sources, triggers = definition.sources, definition.triggers
        return await gather_parts(answering, sources, trigger, triggers=triggers, hints=hints)

    async def consumers(owner: UUID) -> set[str]:
        return {config.consumer_id for config in await runner_configs.get(owner)}

    steps = ToolSteps(
        answering,
        model_of=model if callable(model) else lambda _: model,
        toolbox=Toolbox(tools),
        hooks=Hooks(hooks),
        inherited=DEFAULT_INHERITED,
    )
    turns = AgentTurns(
        answering, steps, gather=gather, refresh=refresher.refresh, inherited=DEFAULT_INHERITED
    )
    runner = AgentRunner(answering, agent_book, turns, consumers=consumers, inherited=DEFAULT_INHERITED)
    all_hints = (hints, refresher._hints, builder._hints)
    return Handlers(builder, runner, book, runner_configs, agent_book, all_hints)


@dataclass
class Chat:
    """People in sessions, over the store."""

    store: Store
    owner: UUID = ALICE
    limit: float = LIMIT

    async def say(self, session: str | None, text: str, **fields: Any) -> Breadcrumb:
        tags = [
            "user:message",
            *([f"session:{session}"] if session is not None else []),
            *fields.pop("tags", []),
        ]
        return await self.post(MESSAGE, tags, {"message": text, **fields})

    async def post(self, schema: str, tags: Sequence[str], context: dict[str, Any]) -> Breadcrumb:
        new = BreadcrumbCreate.parse(
            {"schema_name": schema, "title": "posted", "tags": list(tags), "context": context}
        )
        written = await self.store.create(self.owner, new)
        return await self.store.get(self.owner, written.id)

    async def cancel(self, session: str) -> Breadcrumb:
        return await self.post(CANCEL, [f"session:{session}"], {})

    async def all(self, session: str | None, schema: str) -> list[Breadcrumb]:
        """Oldest first."""
        query = Query(schema_name=schema, session_id=session, sessionless=session is None, sort="created_at")
        return [crumb async for crumb in self.store.walk(self.owner, query)]

    async def answers(self, session: str | None) -> list[Breadcrumb]:
        return await self.all(session, RESPONSE)

    async def errors(self, session: str | None) -> list[Breadcrumb]:
        return await self.all(session, ERROR)

    async def texts(self, session: str | None) -> list[str]:
        return [crumb.context["message"] for crumb in await self.answers(session)]

    async def answer_to(self, message: Breadcrumb) -> Breadcrumb:
        return await self._one(message, RESPONSE)

    async def error_about(self, message: Breadcrumb) -> Breadcrumb:
        return await self._one(message, ERROR)

    async def _one(self, message: Breadcrumb, schema: str) -> Breadcrumb:
        """The one breadcrumb about a message; waits for the first."""
        found: list[Breadcrumb] = []

        async def look() -> bool:
            nonlocal found
            crumbs = await self.all(message.session_id, schema)
            found = [crumb for crumb in crumbs if crumb.context.get("trigger_id") == str(message.id)]
            return bool(found)

        await eventually(look, f"no {schema} about {str(message.context.get('message'))[:80]!r}", self.limit)
        assert len(found) == 1, [crumb.context for crumb in found]
        return found[0]

    async def dead_letters(self, kind: str = "agents") -> list[dict[str, Any]]:
        letters = []
        for lane in range(self.store.lanes):
            key = self.store.keys.dead_letters(lane, kind)
            letters += [orjson.loads(raw) for raw in await self.store.connection.call(lane, b"HVALS", key)]
        return letters


async def events_of(store: Store, owner: UUID) -> list[Event]:
    """All that was ever written by an owner."""
    log = log_of(store)
    start = dict.fromkeys(range(store.lanes), 0)
    found = await log.between(start, dict(enumerate(await log.end())), count=10_000)
    return [event for event in found if event.owner_id == owner]


async def eventually(condition: Callable[[], Awaitable[bool]], complaint: str, limit: float = LIMIT) -> float:
    """Wait until something holds; how long it took."""
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < limit, complaint
        await anyio.sleep(0.005)
    return time.monotonic() - began


@asynccontextmanager
async def opened(url: str, *, lanes: int | None = 4, namespace: str | None = None) -> AsyncIterator[Store]:
    """A separate store. Another process can join with its namespace, and with its lanes or None."""
    store = await Store.open(url, lanes=lanes, namespace=namespace or f"t{token_hex(6)}")
    try:
        yield store
    finally:
        await close_with_reader(store)


@dataclass
class Working(Chat):
    """A chat with workers that answer."""

    workers: list[Worker] = field(default_factory=list)
    handlers: Handlers | None = None

    async def settled(self) -> None:
        """Wait until every event is done with, and nothing is under way."""

        async def look() -> bool:
            return all(
                [await self.handled(kind) for kind in {worker.handler.kind for worker in self.workers}]
            )

        await eventually(look, "the workers did not come to rest")

    async def handled(self, kind: str) -> bool:
        """Whether this kind of worker is done with all that was written."""
        return await self._all_up_to(kind, lambda lane: lane.low_water_mark())

    async def read_all(self, kind: str) -> bool:
        """Whether this kind of worker has read all that was written, done with it or not."""
        return await self._all_up_to(kind, lambda lane: lane.position)

    def has_read(self, kind: str, crumb: Breadcrumb) -> bool:
        home = home_lane(crumb.id, self.store.lanes)
        return any(lane.position >= crumb.updated for lane in self._lanes(kind) if lane.lease.lane == home)

    async def _all_up_to(self, kind: str, where: Callable[[Lane], int]) -> bool:
        reached = {lane.lease.lane: where(lane) for lane in self._lanes(kind)}
        ends = await self.store.connection.call_all(
            [(lane, (b"GET", self.store.keys.clock(lane))) for lane in range(self.store.lanes)]
        )
        return all(reached.get(lane, -1) >= int(end or 0) for lane, end in enumerate(ends))

    def _lanes(self, kind: str) -> list[Lane]:
        return [
            lane
            for worker in self.workers
            if worker.handler.kind == kind
            for lane in worker._lanes.by_number.values()
        ]


@asynccontextmanager
async def working(
    store: Store,
    model: Model | Callable[[ActiveAgent], Model] | None = None,
    *,
    builders: int = 1,
    runners: int = 1,
    lease_seconds: float = 5.0,
    attempts: int = 4,
    backoff: Callable[[int], float] = lambda attempt: 0.02,
    owner: UUID = ALICE,
    **parts: Any,
) -> AsyncIterator[Working]:
    """Workers that take their lanes before the test begins, and are drained when it is over."""
    workers: list[Worker] = []
    handlers = None
    for _ in range(max(builders, runners)):
        handlers = compose(store, model or FunctionModel(recite), **parts)
        for count, handler in ((builders, handlers.builder), (runners, handlers.runner)):
            if sum(worker.handler.kind == handler.kind for worker in workers) < count:
                workers.append(
                    Worker(
                        store,
                        reader_of(store),
                        handler,
                        lease_seconds=lease_seconds,
                        limits=TurnLimits(attempts=attempts, backoff=backoff),
                    )
                )
    problem = None
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(worker.run)
        try:
            await eventually(lambda: all_taken(workers, store.lanes), "the lanes were not taken")
            yield Working(store, owner, workers=workers, handlers=handlers)
        except Exception as error:
            problem = error  # raised below, out of the group: a failed assertion reads better alone
        finally:
            for worker in workers:
                worker.stop()
    if problem is not None:
        raise problem


async def all_taken(workers: Iterable[Worker], lanes: int) -> bool:
    taken: dict[str, set[int]] = {}
    for worker in workers:
        taken.setdefault(worker.handler.kind, set()).update(worker.lanes)
    return all(len(numbers) == lanes for numbers in taken.values())


def failing_for(store: Store, schema: str, error: Exception, *, times: int) -> list[str]:
    """Make the next commits of a schema fail before they reach the server."""
    create = store.create
    failed: list[str] = []

    async def sometimes(owner: UUID, new: Any, **given: Any) -> Written:
        options: CreateOptions = given.get("options", CreateOptions())
        if new.schema_name == schema and options.fence is not None and len(failed) < times:
            failed.append(schema)
            raise error
        return await create(owner, new, **given)

    store.create = sometimes  # type: ignore[method-assign]
    return failed
