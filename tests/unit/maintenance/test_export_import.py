"""Lines of an export: what goes out comes in again, byte for byte, and nothing else comes in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import (
    Breadcrumb,
    BreadcrumbCreate,
    BreadcrumbUpdate,
    build_content,
)
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.ttl import Expiry
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.maintenance import export_import
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store import scan
from breadcrumbs.runtime.store.store import Store
from tests.support.fake import FakeConnection

OWNER, AGENT = UUID(int=7), UUID(int=8)
NOW = 1_794_800_000_000_000

names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
contexts = st.dictionaries(names.filter(lambda name: name != "session_id"), values, max_size=4)
tag_lists = st.lists(names.filter(lambda tag: not tag.startswith("session:")), max_size=4)
lifetimes: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"ttl_type": "never"},
        {"ttl": "2030-01-01T00:00:00Z"},
        {"ttl_config": {"duration": "1h"}},
        {"ttl_config": {"duration_seconds": 1.5}},
        {"ttl_type": "usage", "ttl_config": {"max_reads": 3}},
        {
            "ttl_type": "hybrid",
            "ttl": "2030-01-01T00:00:00Z",
            "ttl_config": {"max_reads": 3, "hybrid_mode": "all"},
        },
    ]
)


@st.composite
def breadcrumbs(draw: st.DrawFn) -> Breadcrumb:
    session = draw(st.none() | names)
    document: dict[str, Any] = {
        "title": draw(names),
        "tags": [*draw(tag_lists), *([f"session:{session}"] if session else [])],
        "context": draw(contexts),
        **draw(lifetimes),
    }
    for field in ("schema_name", "description", "semantic_version"):
        if (value := draw(st.none() | names)) is not None:
            document[field] = value
    if draw(st.booleans()):
        document |= {"visibility": "private", "sensitivity": "secret", "llm_hints": {"exclude": ["$.a"]}}
    default = draw(st.sampled_from([Expiry(), Expiry(after=60_000_000)]))
    created = draw(st.integers(0, NOW))
    return Breadcrumb(
        draw(st.uuids()),
        draw(st.uuids()),
        draw(st.integers(1, 1000)),
        created,
        created + draw(st.integers(0, NOW)),
        draw(st.just(0) | st.integers(1, 2 * NOW)),
        draw(st.integers(-5, 5)),
        draw(st.none() | st.uuids().filter(lambda id: id.int != 0)),
        draw(st.none() | st.uuids().filter(lambda id: id.int != 0)),
        build_content(BreadcrumbCreate.parse(document), default_ttl=default).json,
    )


@given(breadcrumbs())
def test_an_exported_breadcrumb_is_imported_unchanged(crumb: Breadcrumb) -> None:
    line = export_import.encode(crumb)
    assert b"\n" not in line
    assert export_import.decode(line) == (crumb, [])


@given(breadcrumbs(), st.lists(names, min_size=1, max_size=3))
def test_an_exported_history_is_imported_unchanged(crumb: Breadcrumb, titles: list[str]) -> None:
    newest = replace(crumb, version=len(titles) + 1)
    older = [
        replace(newest, version=number, json=orjson.dumps({**newest.document, "title": title}))
        for number, title in enumerate(titles, start=1)
    ]
    assert export_import.decode(export_import.encode(newest, older)) == (newest, older)


@given(breadcrumbs())
def test_an_import_can_set_another_owner(crumb: Breadcrumb) -> None:
    assert export_import.decode(export_import.encode(crumb), owner=OWNER)[0] == replace(crumb, owner_id=OWNER)


def deep(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(levels - 1):
        document = {"a": document}
    return document


def test_a_breadcrumb_of_maximum_depth_is_exported_and_imported() -> None:
    # The breadcrumb itself is the first level, its context the second.
    crumb = replace(plain(), json=orjson.dumps({"title": "", "tags": [], "context": deep(63)}), version=2)
    assert export_import.decode(export_import.encode(crumb, [replace(crumb, version=1)]))[0] == crumb
    deeper = replace(crumb, json=orjson.dumps({"title": "", "tags": [], "context": deep(64)}))
    with pytest.raises(InvalidInput, match="nests deeper"):
        export_import.decode(export_import.encode(deeper))


def plain(**fields: Any) -> Breadcrumb:
    content = build_content(BreadcrumbCreate.parse({"title": "t", **fields}))
    return Breadcrumb(UUID(int=1), OWNER, 1, 1_000, 1_000, 0, 0, AGENT, AGENT, content.json)


def line_with(**changes: Any) -> bytes:
    """A good line with some fields changed, or left out where the value is `...`."""
    document = orjson.loads(export_import.encode(plain()))["breadcrumb"] | changes
    return orjson.dumps({"breadcrumb": {name: value for name, value in document.items() if value is not ...}})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "JSON"),
        (b"[]", "must be an object"),
        (b'{"breadcrumb": 3}', "must be an object"),
        (b'{"breadcrumb": {}, "extra": 1}', "extra"),
        (line_with(id="nope"), "UUID"),
        (line_with(id=...), "id is required"),
        (line_with(owner_id=...), "owner_id is required"),
        (line_with(version=0), "version"),
        (line_with(version=True), "version"),
        (line_with(version="2"), "version"),
        (line_with(created_at=...), "created_at"),
        (line_with(created_at="yesterday"), "created_at"),
        (line_with(created_at="2026-11-16T09:00:00"), "zone"),
        (line_with(updated_at="1970-01-01T00:00:00Z"), "before created_at"),
        (line_with(expires_at=5), "expires_at"),
        (line_with(reads_left=1.5), "reads_left"),
        (line_with(created_by="me"), "UUID"),
        (line_with(ttl_source="somewhere"), "ttl_source"),
        (line_with(title=5), "valid"),
        (line_with(tags=["session:a", "session:b"]), "one session"),
        (line_with(tags=["session:a"], context={"session_id": "b"}), "session"),
        (line_with(tags=["x" * 300]), "valid"),
        (line_with(unknown=1), "valid"),
        (line_with(context={"n": 1}).replace(b'"n":1', b'"n":123456789012345678901234567890'), "64 bits"),
        (b"\xff", "JSON"),
    ],
)
def test_a_line_that_the_api_would_have_refused_is_refused(line: bytes, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        export_import.decode(line)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "lower than the breadcrumb's own"),
        ({"version": 3}, "lower than the breadcrumb's own"),
        ({"id": str(UUID(int=2))}, "another breadcrumb"),
        ({"tags": ["session:other"], "context": {}}, "must be in the same session"),
    ],
)
def test_an_inconsistent_history_is_refused(change: dict[str, Any], says: str) -> None:
    newest = replace(plain(), version=2)
    line = orjson.loads(export_import.encode(newest, [replace(newest, version=1)]))
    line["history"][0] |= change
    with pytest.raises(InvalidInput, match=says):
        export_import.decode(orjson.dumps(line))


def test_two_older_versions_with_one_number_are_refused() -> None:
    newest = replace(plain(), version=3)
    with pytest.raises(InvalidInput, match="must be unique"):
        export_import.decode(export_import.encode(newest, [replace(newest, version=1)] * 2))


# With a store


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = await Store.open(FakeConnection, lanes=4)
    yield store
    await store.close()


async def exported(
    store: Store, owner: UUID, query: Query | None = None, *, history: bool = True
) -> list[bytes]:
    query = query or Query(sort="created_at")
    return [line async for line in export_import.export_lines(store, owner, query, history=history)]


async def imported(store: Store, lines: list[bytes], **options: Any) -> export_import.Imported:
    result = export_import.Imported()
    async for count in export_import.import_lines(store, lines, **options):
        result = count
    return result


async def fill(store: Store, owner: UUID, count: int = 150) -> None:
    for number in range(count):
        new = BreadcrumbCreate(
            schema_name=f"s{number % 3}.v1",
            title=f"number {number}",
            tags=["t", f"session:{number % 5}"] if number % 2 else ["t"],
            context={"n": number},
        )
        written = await store.create(owner, new, by=AGENT)
        if number % 4 == 0:
            await store.update(owner, written.id, BreadcrumbUpdate(title="changed"), by=AGENT)


async def test_an_export_imported_into_an_empty_store_exports_the_same(store: Store) -> None:
    await fill(store, OWNER)
    lines = await exported(store, OWNER)
    assert len(lines) == 150
    other = await Store.open(FakeConnection, lanes=3)
    result = await imported(other, lines)
    assert (result.lines, result.written, result.bad_lines) == (150, 150, [])
    assert sorted(await exported(other, OWNER)) == sorted(lines)
    await other.close()


async def test_a_repeated_import_changes_nothing_and_counts_the_skipped_lines(store: Store) -> None:
    await fill(store, OWNER, 70)
    lines = await exported(store, OWNER)
    result = await imported(store, lines + lines[:3])
    assert (result.written, result.already_there) == (0, 73)
    assert await exported(store, OWNER) == lines


async def test_a_duplicate_line_is_written_once(store: Store) -> None:
    line = export_import.encode(plain())
    result = await imported(store, [line, line])
    assert (result.written, result.already_there) == (1, 1)


async def test_invalid_lines_are_reported_by_number_and_the_others_are_imported(store: Store) -> None:
    lines = [b"{}", b"\n", export_import.encode(plain()), b"no json"]
    result = await imported(store, lines)
    assert result.written == 1
    assert [bad.number for bad in result.bad_lines] == [1, 4]
    assert (await store.get(OWNER, UUID(int=1))).title == "t"


async def test_a_dry_run_counts_and_writes_nothing(store: Store) -> None:
    crumb = plain()
    result = await imported(store, [export_import.encode(crumb)], dry_run=True)
    assert result.written == 1
    with pytest.raises(NotFound):
        await store.get(OWNER, crumb.id)
    assert await scan.owners(store) == []


async def test_expired_breadcrumbs_are_skipped(store: Store) -> None:
    result = await imported(store, [export_import.encode(replace(plain(), expires=2_000))])
    assert (result.written, result.expired) == (0, 1)


async def test_an_export_takes_filters_and_can_leave_out_the_history(store: Store) -> None:
    await fill(store, OWNER, 20)
    lines = await exported(store, OWNER, Query(sort="created_at", session_id="1"), history=False)
    documents = [orjson.loads(line) for line in lines]
    assert documents and all(document.keys() == {"breadcrumb"} for document in documents)
    assert {document["breadcrumb"]["context"]["session_id"] for document in documents} == {"1"}


async def test_a_survey_finds_every_owner_with_its_own_data(store: Store) -> None:
    owners = sorted(uuid4() for _ in range(3))
    for owner in owners:
        await fill(store, owner, 4)
    assert await scan.owners(store) == owners
    for owner in owners:
        found = [orjson.loads(line)["breadcrumb"]["owner_id"] for line in await exported(store, owner)]
        assert set(found) == {str(owner)}


async def test_remaining_reads_survive_export_and_import(store: Store) -> None:
    new = BreadcrumbCreate.parse({"title": "t", "ttl_type": "usage", "ttl_config": {"max_reads": 3}})
    written = await store.create(OWNER, new)
    await store.get(OWNER, written.id)
    lines = await exported(store, OWNER)
    other = UUID(int=99)
    await imported(store, lines, owner=other)
    await store.get(other, written.id)
    await store.get(other, written.id)
    with pytest.raises(NotFound):
        await store.get(other, written.id)


# Long histories


async def _updated_often(store: Store, times: int) -> UUID:
    new = BreadcrumbCreate.parse(
        {
            "schema_name": "session.state.v1",
            "title": "1",
            "tags": ["session:s"],
            "context": {"state_delta": {"a": 1}, "text": "x" * 10_000},
        }
    )
    written = await store.create(OWNER, new)
    for number in range(2, times + 1):
        await store.update(OWNER, written.id, BreadcrumbUpdate.parse({"title": str(number)}))
    return written.id


async def test_a_long_history_is_exported_in_lines_of_limited_size_and_imported_completely(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_import, "_LINE_BYTES", 50_000)
    monkeypatch.setattr(export_import, "_SHORT_HISTORY", 20_000)
    id = await _updated_often(store, 40)
    before = await store.history(OWNER, id)
    lines = await exported(store, OWNER)
    assert len(lines) > 8
    assert max(map(len, lines)) < 80_000
    await store.delete(OWNER, id)
    for _ in range(2):  # a second time it changes nothing
        result = await imported(store, lines)
        assert result.bad_lines == []
        assert await store.history(OWNER, id) == before
    assert await Sessions(store).state_for(Principal(OWNER, OWNER), "s") == {"a": 1}
    await store.update(OWNER, id, BreadcrumbUpdate.parse({"title": "later"}))
    later = await store.history(OWNER, id)
    assert (await imported(store, lines)).bad_lines == []
    assert await store.history(OWNER, id) == later


async def test_the_rest_of_a_history_without_its_breadcrumb_is_a_bad_line(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_import, "_LINE_BYTES", 50_000)
    monkeypatch.setattr(export_import, "_SHORT_HISTORY", 20_000)
    id = await _updated_often(store, 40)
    _, *rest = await exported(store, OWNER)
    await store.delete(OWNER, id)
    result = await imported(store, rest)
    assert result.written == 0
    assert [bad.number for bad in result.bad_lines] == list(range(1, len(rest) + 1))
