"""Configs, messages and a running builder for tests of the context builder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import anyio
import orjson

from breadcrumbs.context_builder.builder import ContextBuilder
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import parse_configs
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.context_builder.context_breadcrumb import context_id
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.worker import Worker
from tests.support.events import reader_of

OWNER = UUID("aaaaaaaa-0000-4000-8000-00000000000a")
SHIPPED = Path(__file__).parents[2] / "config" / "context-builder-config.json"

MESSAGES: dict[str, Any] = {"key": "conversation", "schema_name": "user.message.v1"}
ANSWERS: dict[str, Any] = {"key": "conversation", "schema_name": "agent.response.v1"}


def document(**changes: Any) -> dict[str, Any]:
    return {
        "consumer_id": "tester",
        "update_triggers": [{"schema_name": "user.message.v1"}],
        "sources": [MESSAGES, ANSWERS],
    } | changes


def config(**changes: Any) -> ContextConfig:
    return parse_configs(orjson.dumps(document(**changes)))[0]


async def post(
    store: Store,
    text: str = "",
    *,
    session: str | None = None,
    schema: str | None = "user.message.v1",
    tags: tuple[str, ...] = (),
    owner: UUID = OWNER,
    by: UUID | None = None,
    **fields: Any,
) -> Breadcrumb:
    new = {
        "schema_name": schema,
        "title": text[:80],
        "tags": [*tags, *([f"session:{session}"] if session is not None else [])],
        "context": {"message": text} if text else {},
    } | fields
    written = await store.create(owner, BreadcrumbCreate.parse(new), by=by)
    return await store.get(owner, written.id, count_read=False)


def context_of(store: Store, session: str, consumer: str = "tester", owner: UUID = OWNER) -> UUID:
    trigger = Breadcrumb(
        uuid4(), owner, 1, 0, 0, 0, 0, None, None, orjson.dumps({"tags": [f"session:{session}"]})
    )
    return context_id(store, config(consumer_id=consumer), trigger)


class Builder:
    """A running context builder."""

    def __init__(self, store: Store, book: ConfigsInForce) -> None:
        self.store = store
        self.book = book

    async def say(self, text: str, session: str, *, consumer: str = "tester", **more: Any) -> Breadcrumb:
        """Post a message and wait for its context."""
        message = await post(self.store, text, session=session, **more)
        owner = more.get("owner", OWNER)
        return await self.made_for(message, context_of(self.store, session, consumer, owner))

    async def made_for(self, message: Breadcrumb, id: UUID) -> Breadcrumb:
        with anyio.fail_after(20):
            while True:
                try:
                    context = await self.store.get(message.owner_id, id, count_read=False)
                    if context.context["trigger_id"] == str(message.id):
                        return context
                except NotFound:
                    pass
                await anyio.sleep(0.005)


@asynccontextmanager
async def building(store: Store, book: ConfigsInForce) -> AsyncIterator[Builder]:
    worker = Worker(store, reader_of(store), ContextBuilder(store, book), lease_seconds=5)
    async with anyio.create_task_group() as tasks, book.watched():
        tasks.start_soon(worker.run)
        try:
            yield Builder(store, book)
        finally:
            worker.stop()


def book_of(store: Store, *documents: dict[str, Any]) -> ConfigsInForce:
    return ConfigsInForce(store, None, default=orjson.dumps(list(documents) or [document()]))


def texts(context: Breadcrumb) -> list[str]:
    """Return the messages in a context's conversation, in the order of the prompt."""
    return [
        item["content"]["message"]
        for part in context.context["parts"]
        if part["place"] == "conversation"
        for item in part["items"]
    ]
