"""The context builder on a real server: triggers, excluded items and loops."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from breadcrumbs.context_builder.builder import ContextBuilder
from breadcrumbs.context_builder.context_breadcrumb import MAX_HOPS
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAGS
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.worker import Worker
from tests.contexts.support import OWNER, book_of, building, context_of, document, post, texts
from tests.support.events import reader_of


async def errors(store: Store, session: str) -> list[Breadcrumb]:
    return (await store.list(OWNER, Query(session_id=session, schema_name="agent.error.v1"))).items


async def first_error(store: Store, session: str) -> Breadcrumb:
    with anyio.fail_after(20):
        while not (found := await errors(store, session)):  # noqa: ASYNC110 - another worker writes it, without an event here
            await anyio.sleep(0.02)
    return found[0]


async def test_the_first_turn_has_its_trigger_in_the_context(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        context = await builder.say("hello", "s", tags=("extension:chat", "user:ada", "user:message"))
    assert texts(context) == ["hello"]
    assert set(context.tags) == {
        "agent:context", "consumer:tester", "session:s", "extension:chat", "user:ada"
    }  # fmt: skip
    assert context.context["session_id"] == "s"


async def test_R5_any_trigger_and_any_consumer(store: Store) -> None:
    configs = [
        document(consumer_id="notes", update_triggers=[{"schema_name": "note.v1"}],
                 sources=[{"key": "notes", "schema_name": "note.v1"}]),
        document(consumer_id="urgent", update_triggers=[
            {"all_tags": ["mail"], "context_match": [{"path": "$.priority", "op": "gte", "value": 5}]}]),
    ]  # fmt: skip
    async with building(store, book_of(store, *configs)) as builder:
        await builder.say("a note", "s", schema="note.v1", consumer="notes")
        await post(store, "dull", session="s", schema="mail.v1", tags=("mail",), context={"priority": 1})
        urgent = await post(
            store, session="s", schema="mail.v1", tags=("mail",), context={"message": "now!", "priority": 7}
        )
        context = await builder.made_for(urgent, context_of(store, "s", "urgent"))
    assert context.version == 1 and texts(context) == ["now!"]


async def test_a_message_without_a_session_has_its_own_context(store: Store) -> None:
    async with building(store, book_of(store)):
        first, second = await post(store, "one"), await post(store, "two")
        with anyio.fail_after(20):
            while True:
                found = (await store.list(OWNER, Query(schema_name="agent.context.v1"))).items
                if len(found) == 2:
                    break
                await anyio.sleep(0.02)
    assert {context.context["trigger_id"] for context in found} == {str(first.id), str(second.id)}
    assert all(len(texts(context)) == 1 and context.session_id is None for context in found)
    assert all("no conversation to read" in context.context["explain"]["notes"][0] for context in found)


@pytest.mark.parametrize("fields", [{"sensitivity": "secret"}, {"visibility": "private"}])
async def test_a_message_that_no_model_may_see_leaves_an_error(store: Store, fields: dict[str, Any]) -> None:
    async with building(store, book_of(store)) as builder:
        message = await post(store, "hush", session="s", **fields)
        error = await first_error(store, "s")
        assert "must not be shown to a model" in error.context["error"]
        assert error.context["trigger_id"] == str(message.id) and b"hush" not in error.json
        with pytest.raises(NotFound):
            await store.get(OWNER, context_of(store, "s"))
        context = await builder.say("hello", "s")
    assert texts(context) == ["hello"] and b"hush" not in context.json


async def test_a_context_never_triggers_its_own_config(store: Store) -> None:
    """This holds even with inherited namespaces that the check of a config file does not include."""
    book = book_of(store, document(update_triggers=[{"any_tags": ["topic:x"]}]))
    worker = Worker(
        store, reader_of(store), ContextBuilder(store, book, inherited=("session", "topic")), lease_seconds=5
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await post(store, "hello", session="s", tags=("topic:x",))
        with anyio.fail_after(20):
            while True:
                try:
                    context = await store.get(OWNER, context_of(store, "s"))
                    break
                except NotFound:
                    await anyio.sleep(0.02)
        assert "topic:x" in context.tags
        await anyio.sleep(0.3)
        worker.stop()
    assert (await store.get(OWNER, context.id)).version == 1


async def test_configs_that_trigger_each_other_stop(store: Store) -> None:
    """The check of a file refuses such a cycle, but a file and a breadcrumb together can have one."""

    def after(consumer: str, other: str) -> dict[str, Any]:
        waits_for = {"schema_name": "agent.context.v1", "all_tags": [f"consumer:{other}"]}
        return document(
            consumer_id=consumer, update_triggers=[waits_for, {"schema_name": f"start.{consumer}"}]
        )

    await post(store, schema="context.config.v1", context=after("b", "a"))
    async with building(store, book_of(store, after("a", "b"))):
        await post(store, "go", session="s", schema="start.a")
        error = await first_error(store, "s")
        await anyio.sleep(0.3)
    assert "triggered each other" in error.context["error"]
    versions = [(await store.get(OWNER, context_of(store, "s", name))).version for name in ("a", "b")]
    assert MAX_HOPS <= sum(versions) <= MAX_HOPS + 2


async def test_a_message_with_the_maximum_of_tags_gets_its_context(store: Store) -> None:
    tags = tuple(f"user:{number}" for number in range(MAX_TAGS - 1))
    async with building(store, book_of(store)) as builder:
        context = await builder.say("hello", "s", tags=tags)
    assert len(context.tags) == MAX_TAGS
    assert {"session:s", "agent:context", "consumer:tester"} <= set(context.tags)


async def test_hints_shape_the_content_of_items(store: Store) -> None:
    await post(
        store, schema="schema.def.v1", tags=("defines:user.message.v1",), llm_hints={"exclude": ["phone"]}
    )
    async with building(store, book_of(store)) as builder:
        first = await builder.say("", "s", context={"message": "call me", "phone": "555-FILM"})
        own = await builder.say(
            "", "s", context={"message": "or me", "mail": "x"}, llm_hints={"include": ["message"]}
        )
    assert b"555-FILM" not in first.json and b'"mail"' not in own.json
    assert texts(own) == ["call me", "or me"]


async def test_an_edit_of_a_message_affects_only_later_contexts(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        first = await builder.say("hello", "s")
        message = (await store.list(OWNER, Query(schema_name="user.message.v1"))).items[0]
        await store.update(OWNER, message.id, BreadcrumbUpdate(context={"message": "hello, edited"}))
        second = await builder.say("again", "s")
    assert texts(first) == ["hello"] and texts(second) == ["hello, edited", "again"]
