"""Past contexts: the versions of their time are used, and breadcrumbs that no longer exist are named."""

from __future__ import annotations

import secrets
from typing import Any
from uuid import UUID

import pytest

from breadcrumbs.context_builder.diff import diff
from breadcrumbs.context_builder.explain import explain
from breadcrumbs.context_builder.past import Reassembled, TriggerGone, reassemble
from breadcrumbs.context_builder.preview import PreviewInput, preview
from breadcrumbs.context_builder.references import read_record
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.maintenance.export_import import export_lines, import_lines
from breadcrumbs.runtime.sessions.forks import ForkOptions, fork
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import (
    ANSWERS,
    MESSAGES,
    OWNER,
    book_of,
    building,
    config,
    context_of,
    document,
    post,
)

PINS: dict[str, Any] = {"key": "pins", "any_tags": ["pinned"], "fetch": {"conversation_scope": "all"}}
TOOLS: dict[str, Any] = {"key": "tools", "schema_name": "tool.catalog.v1", "fetch": {"method": "latest"}}


async def edit(store: Store, crumb: Breadcrumb | UUID, **change: Any) -> None:
    id = crumb if isinstance(crumb, UUID) else crumb.id
    if "text" in change:
        change["context"] = {"message": change.pop("text")}
    await store.update(OWNER, id, BreadcrumbUpdate.parse(change))


def shown(built: Reassembled) -> list[str]:
    return [item.content["message"] for item in built.assembled.items]


async def test_a_preview_of_a_past_turn_shows_the_versions_of_that_time(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        first = await builder.say("first", "s")
        second = await builder.say("second", "s")
        await edit(store, read_record(first).trigger_id, text="edited later")
        made = await preview(store, PreviewInput(OWNER, "s", config(), read_record(second).trigger_id))
        stored = await explain(store, OWNER, second.id, second.version)
    assert [item.excerpt for item in made.explanation.items] == ["first", "second"]
    assert diff(stored, made.explanation).is_empty and made.explanation.notes == []


async def test_a_preview_of_an_edited_message_uses_the_version_that_was_answered(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        context = await builder.say("as asked", "s")
    trigger = read_record(context).trigger_id
    await edit(store, trigger, text="as edited")  # no builder runs, so there is no context for the edit
    made = await preview(store, PreviewInput(OWNER, "s", config(), trigger))
    assert [item.excerpt for item in made.explanation.items] == ["as asked"]
    assert made.explanation.trigger_version == 1


async def test_a_source_finds_breadcrumbs_by_the_tags_and_schema_of_that_time(store: Store) -> None:
    noted = document(sources=[MESSAGES, {"key": "notes", "schema_name": "note.v1", "all_tags": ["kept"]}])
    async with building(store, book_of(store)) as builder:
        kept = await post(store, "kept then", session="s", schema="note.v1", tags=("kept",))
        moved = await post(store, "note then", session="s", schema="note.v1", tags=("kept",))
        later = await post(store, "kept later", session="s", schema="note.v1")
        context = await builder.say("now", "s")
        await edit(store, kept, tags=["session:s"])
        await edit(store, moved, schema_name="other.v1")
        await edit(store, later, tags=["session:s", "kept"])
        built = await reassemble(store, OWNER, context.id, 1, config(**noted))
    assert shown(built) == ["kept then", "note then", "now"]


async def test_a_breadcrumb_that_was_deleted_is_named(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        first = await builder.say("first", "s")
        second = await builder.say("second", "s")
    deleted = read_record(first).trigger_id
    await store.delete(OWNER, deleted)
    built = await reassemble(store, OWNER, second.id, 2, config())
    assert not built.same and [str(gone) for gone in built.turn.gone] == [
        f"breadcrumb {deleted} (conversation) was deleted or has expired"
    ]
    made = await preview(store, PreviewInput(OWNER, "s", config(), read_record(second).trigger_id))
    assert made.explanation.notes == [f"breadcrumb {deleted} (conversation) was deleted or has expired"]
    concealed = PreviewInput(OWNER, "s", config(), read_record(second).trigger_id, conceals_gone=True)
    assert (await preview(store, concealed)).explanation.notes == [
        "1 breadcrumbs of the stored context no longer exist"
    ]
    with pytest.raises(TriggerGone, match=str(deleted)):
        await reassemble(store, OWNER, first.id, 1, config())


async def test_a_version_that_left_the_history_is_named(store: Store) -> None:
    async with building(store, book_of(store)) as builder:
        first = await builder.say("first", "s")
        second = await builder.say("second", "s")
    id = read_record(first).trigger_id
    await edit(store, id, text="edited")
    lane, _ = await store.look_up(OWNER, id)
    await store.connection.call(lane, b"HDEL", store.keys.history(lane, OWNER, id.bytes), 1)
    built = await reassemble(store, OWNER, second.id, 2, config())
    assert "version 1 of breadcrumb" in str(built.turn.gone[0])
    assert "edited" not in shown(built)


async def test_hints_of_that_time_are_used(store: Store) -> None:
    definition = await post(
        store,
        schema="schema.def.v1",
        tags=("defines:note.v1",),
        context={"llm_hints": {"include": ["message"]}},
    )
    noted = document(sources=[MESSAGES, {"key": "notes", "schema_name": "note.v1"}])
    async with building(store, book_of(store, noted)) as builder:
        await post(
            store, session="s", schema="note.v1", context={"message": "short", "secret_part": "hidden"}
        )
        context = await builder.say("now", "s")
        await store.update(
            OWNER, definition.id, BreadcrumbUpdate(context={"llm_hints": {"include": ["secret_part"]}})
        )
    built = await reassemble(store, OWNER, context.id, 1, config(**noted))
    assert built.same and built.assembled.items[0].content == {"message": "short"}
    await store.delete(OWNER, definition.id)  # the archive still has the hints
    built = await reassemble(store, OWNER, context.id, 1, config(**noted))
    assert built.same and built.turn.gone == ()


async def test_a_fork_does_not_change_the_past_of_another_session(store: Store) -> None:
    """A copy has the times of its original, but it did not exist before the fork."""
    wide = document(sources=[MESSAGES, ANSWERS, PINS])
    async with building(store, book_of(store, wide)) as builder:
        await post(store, "pinned", session="origin", tags=("pinned",), schema="note.v1")
        context = await builder.say("now", "s")
        await fork(store, Principal(OWNER, OWNER), "origin", "copy", ForkOptions())
        in_fork = await builder.say("in the fork", "copy")
        await edit(
            store,
            (await store.list(OWNER, Query(session_id="copy", schema_name="note.v1"))).items[0],
            text="x",
        )
    assert (await reassemble(store, OWNER, context.id, 1, config(**wide))).same
    built = await reassemble(store, OWNER, in_fork.id, 1, config(**wide))
    assert built.same and shown(built).count("pinned") == 2


async def test_history_and_times_survive_an_export_and_import(
    store: Store, embedded_server: EmbeddedServer
) -> None:
    wide = document(sources=[MESSAGES, ANSWERS, PINS, TOOLS])
    async with building(store, book_of(store, wide)) as builder:
        tools = await post(store, "tools then", schema="tool.catalog.v1")
        pinned = await post(store, "pinned then", session="t", schema="note.v1", tags=("pinned",))
        context = await builder.say("first", "s")
        for crumb in (tools, pinned):
            await edit(store, crumb, text="edited since")
        await builder.say("second", "s")
    lines = [line async for line in export_lines(store, OWNER, Query())]
    other = await Store.open(embedded_server.url, namespace=f"c{secrets.token_hex(6)}", lanes=8)
    try:
        async for count in import_lines(other, lines):
            assert count.bad_lines == []
        for version, texts in ((1, ["tools then", "pinned then"]), (2, ["edited since"] * 2)):
            built = await reassemble(other, OWNER, context.id, version, config(**wide))
            assert (
                built.same
                and shown(built)[:1] + shown(built)[-2:-1] != []
                and set(texts) <= set(shown(built))
            )
    finally:
        await other.close()


async def test_messages_that_waited_are_not_in_the_context_of_an_earlier_one(store: Store) -> None:
    short = document(sources=[MESSAGES | {"fetch": {"limit": 2}}])
    old = [await post(store, f"old {number}", session="s") for number in range(2)]
    waiting = [await post(store, f"waiting {number}", session="s") for number in range(4)]
    async with building(store, book_of(store, short)) as builder:
        await builder.made_for(waiting[-1], context_of(store, "s"))
    for version in range(1, len(old) + len(waiting) + 1):
        assert (await reassemble(store, OWNER, context_of(store, "s"), version, config(**short))).same
