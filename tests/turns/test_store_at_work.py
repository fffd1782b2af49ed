"""Turns with a store that is full, unavailable or loses replies, and with older data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import anyio
import anyio.lowlevel
import pytest

from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.runtime.breadcrumb.ids import new_id
from breadcrumbs.runtime.errors import StoreFull, StoreUnavailable
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.written import Written
from tests.support.conversations import (
    CONTEXT,
    RESPONSE,
    agent,
    config,
    eventually,
    failing_for,
    recite,
    working,
)


@pytest.mark.parametrize("error", [StoreFull("full"), StoreUnavailable("away")])
async def test_an_answer_waits_for_an_unavailable_store_without_a_second_model_call(
    store: Store, error: Exception
) -> None:
    failed = failing_for(store, RESPONSE, error, times=3)
    model = FunctionModel(recite)
    async with working(store, model) as chat:
        await chat.answer_to(await chat.say("s", "Hello"))
        assert len(failed) == 3 and len(model.requests) == 1
        assert await chat.errors("s") == []


async def test_P2_a_committed_answer_with_a_lost_reply_is_stored_once(
    store: Store,
) -> None:
    create = store.create
    lost: list[UUID] = []

    async def without_reply(owner: UUID, new: Any, **options: Any) -> Written:
        written = await create(owner, new, **options)
        if new.schema_name == RESPONSE and not lost:
            lost.append(written.id)
            raise StoreUnavailable("the reply was lost")
        return written

    store.create = without_reply  # type: ignore[method-assign]
    model = FunctionModel(recite)
    async with working(store, model) as chat:
        answer = await chat.answer_to(await chat.say("s", "Hello"))
        await chat.settled()
        assert [crumb.id for crumb in await chat.answers("s")] == lost == [answer.id]
        assert len(model.requests) == 1
        # The next prompt contains the answer that was shown.
        await chat.answer_to(await chat.say("s", "And?"))
        assert ("assistant", answer.context["message"]) in [
            (message.role, message.content) for message in model.requests[-1].messages
        ]


async def test_a_context_with_a_lost_commit_reply_is_not_built_twice(store: Store) -> None:
    put = store.put
    lost: list[str] = []

    async def without_reply(*args: Any, **options: Any) -> Any:
        written = await put(*args, **options)
        if not lost:
            lost.append("reply")
            raise StoreUnavailable("the reply was lost")
        return written

    store.put = without_reply  # type: ignore[method-assign]
    async with working(store, agents=[agent(when_busy="reject")]) as chat:
        await chat.answer_to(await chat.say("s", "Hello"))
        await chat.settled()
        (context,) = await chat.all("s", CONTEXT)
        assert context.version == 1 and lost
        assert await chat.errors("s") == []


async def test_an_expired_context_does_not_block_the_next_message(store: Store) -> None:
    """The expired context is not purged yet, so its key is taken but it cannot be read."""
    short = config(output={"schema_name": CONTEXT, "tags": ["agent:context"], "ttl_seconds": 1})
    async with working(store, configs=[short]) as chat:
        await chat.answer_to(await chat.say("one", "Hello"))
        for text in ("Hello", "Again"):
            await chat.answer_to(await chat.say("two", text))
        await anyio.sleep(1.1)
        await chat.answer_to(await chat.say("one", "Still there?"))
        await chat.answer_to(await chat.say("two", "Still there?"))
        await chat.settled()
        assert len(await chat.answers("one")) == 2 and len(await chat.answers("two")) == 3


async def test_imported_messages_are_not_answered(store: Store) -> None:
    model = FunctionModel(recite)
    async with working(store, model) as chat:
        message = await chat.say("s", "Hello")
        await chat.answer_to(message)
        old = replace(message, id=new_id(0), created=message.created - 10**9, updated=message.created - 10**9)
        await store.restore(old, [])
        await chat.settled()
        assert len(model.requests) == 1 and await chat.errors("s") == []
        # It is still part of the conversation.
        await chat.answer_to(await chat.say("s", "And now?"))
        assert [text for text in (m.content for m in model.requests[-1].messages) if text == "Hello"] == [
            "Hello"
        ] * 2


async def test_a_message_that_was_deleted_while_it_waited_is_not_answered(store: Store) -> None:
    from tests.support.conversations import PacedModel

    model = PacedModel()
    async with working(store, model) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        second = await chat.say("s", "second")
        await eventually(lambda: chat.handled("contexts"), "no context was built")
        await store.delete(chat.owner, second.id)
        model.allow("first", "second")
        await chat.answer_to(first)
        await chat.settled()
        assert await chat.texts("s") == ["re: first"] and await chat.errors("s") == []
