"""Helpers for agents on an ADK server: a runner, messages, and the behaviour of the server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.composition.workers import WorkerParts, agent_worker, context_worker, running
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.retries import TurnLimits
from tests.support.adk_backend import APP, Exchange
from tests.support.conversations import ALICE, Chat, Working, all_taken, config, eventually
from tests.support.events import reader_of

RECORD = "adk.session.v1"
MESSAGES = {"schema_name": "user.message.v1", "any_tags": ["user:message"]}


def remote_agent(agent_id: str = "remote", **changes: Any) -> ActiveAgent:
    fields = {"agent_id": agent_id, "kind": "adk", "subscriptions": {"selectors": [MESSAGES]}, **changes}
    return ActiveAgent(AgentDefinition.model_validate(fields), trusted=True)


@asynccontextmanager
async def chatting(
    store: Store,
    url: str,
    *,
    agents: tuple[ActiveAgent, ...] = (),
    configs: list[dict[str, Any]] | None = None,
    attempts: int = 3,
    backoff: float = 0.02,
    **adk: Any,
) -> AsyncIterator[Working]:
    """The runner as `crumb run-agents` makes it, with agents that live on the server at `url`."""
    settings = Settings(
        adk={"servers": {"house": {"url": url, "app": APP}}, "read_timeout": 20, "total_timeout": 40, **adk},
        turn_attempts=attempts,
    )
    configs_in_force = ConfigsInForce(store, None, default=orjson.dumps(configs or [config("nobody")]))
    parts = WorkerParts(store, reader_of(store), settings, configs_in_force)
    async with agent_worker(parts, agents or (remote_agent(),), kind="agents") as runner:
        workers = [runner, *([context_worker(parts)] if configs else [])]
        for worker in workers:
            worker._turns._limits = TurnLimits(attempts=attempts, backoff=lambda _: backoff)
        problem = None
        async with running(*workers):
            await eventually(lambda: all_taken(workers, store.lanes), "the lanes were not taken")
            try:
                yield Working(store, ALICE, workers=workers)
            except Exception as error:
                problem = error  # raised out of the group: a failed assertion reads better alone
        if problem is not None:
            raise problem


async def records(chat: Chat, session: str) -> list[Breadcrumb]:
    return await chat.all(session, RECORD)


def history(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return author and text of events in either direction."""
    return [
        (event["author"], part["text"])
        for event in events
        for part in (event.get("content") or {}).get("parts", ())
        if part.get("text")
    ]


async def talk(chat: Chat, session: str | None, *texts: str) -> list[Breadcrumb]:
    """Say things one after the other; their answers."""
    return [await chat.answer_to(await chat.say(session, text)) for text in texts]


def forgotten(exchange: Exchange) -> None:
    exchange.json(404, {"detail": f"Session not found: {exchange.body['sessionId']}"})


def status_of(status: int, content: Any = None) -> Callable[[Exchange], None]:
    return lambda exchange: exchange.json(status, content)


def hang(exchange: Exchange) -> None:
    time.sleep(6)
