"""Turns of an owner with an exceeded quota end with a visible error and can be retried."""

from __future__ import annotations

from collections.abc import AsyncIterator
from secrets import token_hex

import pytest

from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.sessions.retries import retry
from breadcrumbs.runtime.store.options import StoreOptions
from breadcrumbs.runtime.store.quotas import Quotas
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import ALICE, MESSAGE, agent, recite, working


@pytest.fixture
async def limited(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    """Store with a quota of six breadcrumbs per owner."""
    store = await Store.open(
        embedded_server.url, namespace=f"q{token_hex(6)}", options=StoreOptions(quotas=Quotas(breadcrumbs=6))
    )
    yield store
    await store.close()


async def fill(store: Store, count: int) -> None:
    for number in range(count):
        note = {"schema_name": "note.v1", "title": str(number), "tags": [], "context": {}}
        await store.create(ALICE, BreadcrumbCreate.parse(note))


async def test_a_message_that_fills_the_quota_gets_an_error_and_later_its_answer(
    limited: Store,
) -> None:
    model = FunctionModel(recite)
    async with working(limited, model) as chat:
        await fill(limited, 5)
        message = await chat.say("s", "Hello")  # the sixth breadcrumb
        error = await chat.error_about(message)
        assert "the quota of breadcrumbs is used up: 6 of 6" in error.context["error"]
        await chat.settled()
        assert await chat.answers("s") == [] and model.requests == []
        for note in (await limited.list(ALICE, Query(schema_name="note.v1"))).items:
            await limited.delete(ALICE, note.id)
        await retry(limited, Principal(ALICE, ALICE), "s", message_id=message.id)
        assert (await chat.answer_to(message)).context["message"]


async def test_an_agent_is_not_called_when_the_quota_is_exceeded(limited: Store) -> None:
    model = FunctionModel(recite)
    direct = agent("direct", subscriptions={"selectors": [{"schema_name": MESSAGE}]})
    async with working(limited, model, agents=[direct], builders=0) as chat:
        await fill(limited, 5)
        error = await chat.error_about(await chat.say("s", "Hello"))
        assert "the quota of breadcrumbs is used up" in error.context["error"]
        assert model.requests == []
