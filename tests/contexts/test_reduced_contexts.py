"""Contexts after the end of their TTL: they are references, and everything that reads them still works."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import anyio
import orjson
import pytest

from breadcrumbs.context_builder.audit import audit_isolation
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.context_builder.explain import contexts_of, explain
from breadcrumbs.context_builder.rebuild import rebuild
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.maintenance.archive_lines import WantedDocuments, archive_lines
from breadcrumbs.runtime.maintenance.export_import import Imported, export_lines, import_lines
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.archive import Archive, digest_of
from breadcrumbs.runtime.store.reduction import is_reduced
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import MESSAGES, OWNER, book_of, building, config, document, post

SHORT = document(output={"ttl_seconds": 1})
OTHER_OWNER = UUID("bbbbbbbb-0000-4000-8000-00000000000b")


async def _expire(store: Store, context: Breadcrumb) -> Breadcrumb:
    """Wait for the end of the TTL, run the hygiene, and return the reduced context."""
    await anyio.sleep(1.1)
    await Hygiene(store, Settings()).run_once()
    reduced = await store.get(OWNER, context.id, count_read=False)
    assert is_reduced(reduced)
    return reduced


async def test_a_context_is_explained_and_rendered_alike_before_and_after_its_ttl(store: Store) -> None:
    wide = SHORT | {"sources": [MESSAGES | {"fetch": {"limit": 50}}]}
    async with building(store, book_of(store, wide)) as builder:
        for number in range(40):
            await post(store, f"note {number} " + "with some words " * 20, session="s")
        context = await builder.say("Why?", "s")
    before = await rebuild(store, OWNER, context.id)
    explained = await explain(store, OWNER, context.id)
    reduced = await _expire(store, context)
    after = await rebuild(store, OWNER, context.id)
    assert after.same and after.json == before.json and after.gone == ()
    assert (await explain(store, OWNER, context.id)).as_dict() == explained.as_dict()
    assert [found.id for found in await contexts_of(store, OWNER, "s")] == [context.id]
    items = len(explained.items)
    assert items == 41 and len(reduced.json) < 1_000 + 65 * items, "about 60 bytes per item"
    assert (await audit_isolation(store, OWNER, history=True)).findings == []


async def test_the_next_message_gets_a_full_context_after_a_reduced_one(store: Store) -> None:
    async with building(store, book_of(store, SHORT)) as builder:
        first = await builder.say("one", "s")
        before = await rebuild(store, OWNER, first.id, 1)
        await _expire(store, first)
        second = await builder.say("two", "s")
    assert second.version == 2 and "parts" in second.context
    again = await rebuild(store, OWNER, first.id, 1)
    assert again.same and again.json == before.json


async def test_a_reduced_context_can_be_exported_and_imported_with_its_config(
    store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(orjson.dumps(SHORT))
    book = ConfigsInForce(store, file)
    book.load()
    async with building(store, book) as builder:
        context = await builder.say("Hello", "s")
        await builder.say("Other", "t")
        reduced = await _expire(store, context)
        for number in range(2):  # another config in between, which the session does not need
            file.write_bytes(orjson.dumps(document(formatting={"max_tokens": 100 + number})))
            book.reload()
            await builder.say("Next", "t")
    query, wanted = Query(session_id="s", sort="created_at"), WantedDocuments(everything=False)
    lines = []
    async for line in export_lines(store, OWNER, query):
        lines.append(line)
        wanted.add(line)
    documents = [line async for line in archive_lines(store, OWNER, wanted)]
    everything = [line async for line in archive_lines(store, OWNER, WantedDocuments(everything=True))]
    assert (len(documents), len(everything)) == (1, 3)
    result = Imported()
    async for so_far in import_lines(store, [*lines, *documents], owner=OTHER_OWNER):
        result = so_far
    assert (result.written, result.archived, result.bad_lines) == (2, 1, [])
    imported = await store.get(OTHER_OWNER, reduced.id, count_read=False)
    assert imported.json == reduced.json
    kept = await Archive(store).get(OTHER_OWNER, imported.context["config"])
    assert kept is not None and kept.document["consumer_id"] == "tester"
    original, copy = (
        await Archive(store).log(OWNER, "config"),
        await Archive(store).log(OTHER_OWNER, "config"),
    )
    assert copy == [entry for entry in original if entry.digest == reduced.context["config"]]
    assert (await rebuild(store, OTHER_OWNER, reduced.id)).same
    async for so_far in import_lines(store, documents, owner=OTHER_OWNER):
        assert so_far.archived == 0, "an import can be repeated"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"document": {"changed": True}}, "the digest does not match the document"),
        ({"document": "text", "digest": digest_of("text")}, "must be an object"),
        ({"kind": "other"}, "kind must be one of"),
        ({"log": []}, "log must be a list"),
        ({"log": [{"at": "yesterday"}]}, "at"),
        ({"owner_id": "nobody"}, "owner_id"),
    ],
)
async def test_an_edited_line_of_the_archive_is_reported_and_not_imported(
    store: Store, change: dict[str, object], message: str
) -> None:
    await Archive(store).keep(OWNER, "config", {"a": 1}, name="n")
    (line,) = [line async for line in archive_lines(store, OWNER, WantedDocuments(everything=True))]
    fields = orjson.loads(line)["archived"]
    raw = orjson.dumps({"archived": fields | change})
    result = Imported()
    async for so_far in import_lines(store, [raw]):
        result = so_far
    assert result.archived == 0
    (bad,) = result.bad_lines
    assert message in bad.message and bad.number == 1


# The archive of configs and hints


async def test_the_config_of_each_context_is_in_the_archive_also_after_an_edit_of_the_file(
    store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(orjson.dumps(document()))
    book = ConfigsInForce(store, file)
    book.load()
    async with building(store, book) as builder:
        first = await builder.say("one", "s")
        file.write_bytes(orjson.dumps(document(formatting={"max_tokens": 123})))
        book.reload()
        second = await builder.say("two", "s")
    archive = Archive(store)
    for context, tokens in ((first, config().formatting.max_tokens), (second, 123)):
        kept = await archive.get(OWNER, context.context["config"], "config")
        assert kept is not None and kept.document["formatting"]["max_tokens"] == tokens
    log = await archive.log(OWNER, "config")
    assert [entry.digest for entry in log] == [second.context["config"], first.context["config"]]
    assert {(entry.name, entry.source) for entry in log} == {("tester", str(file))}


async def test_the_config_of_a_breadcrumb_is_recorded_with_its_id_and_version(store: Store) -> None:
    new = {"schema_name": "context.config.v1", "title": "mine", "context": document()}
    written = await store.create(OWNER, BreadcrumbCreate.parse(new))
    async with building(store, book_of(store, document(consumer_id="other"))) as builder:
        context = await builder.say("one", "s")
        await store.delete(OWNER, written.id)
    (entry,) = [entry for entry in await Archive(store).log(OWNER, "config") if entry.name == "tester"]
    assert entry.source == f"breadcrumb {written.id} version 1"
    assert await Archive(store).get(OWNER, context.context["config"]) is not None


async def test_a_second_turn_writes_nothing_to_the_archive(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = {"schema_name": "schema.def.v1", "tags": ["defines:user.message.v1"],
                  "llm_hints": {"exclude": ["key"]}}  # fmt: skip
    await store.create(OWNER, BreadcrumbCreate.parse(definition))
    calls: list[str] = []
    run = store.connection.run

    async def counted(lane: int, script: object, *args: object) -> object:
        calls.append(getattr(script, "name", ""))
        return await run(lane, script, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(store.connection, "run", counted)
    async with building(store, book_of(store)) as builder:
        await builder.say("one", "s")
        assert calls.count("archive") == 2, "the config and the hints"
        calls.clear()
        for text in ("two", "three"):
            await builder.say(text, "s")
            await builder.say(text, "other session")
        assert calls.count("archive") == 0 and "update" in calls
