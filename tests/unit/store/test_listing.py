from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.runtime.breadcrumb.query import Query, SortKey
from breadcrumbs.runtime.errors import InvalidCursor, InvalidInput
from breadcrumbs.runtime.store.cursors import open_cursor, sign_cursor
from breadcrumbs.runtime.store.merge import Entry, Index, Merge

OWNER, OTHER = UUID(int=1), UUID(int=2)
SECRET = b"s" * 32


class Shelf:
    """Sorted sets that are read as the server would, and count how often."""

    def __init__(self, indexes: list[list[SortKey]], descending: bool, *, group: int = 1) -> None:
        indexed = [Index(number, b"%d" % number) for number in range(len(indexes))]
        self.groups = [indexed[start : start + group] for start in range(0, len(indexed), group)]
        self._places = [sorted(places, reverse=descending) for places in indexes]
        self._descending = descending
        self.reads = 0

    async def read(self, asked: list[tuple[list[Index], SortKey | None, int]]) -> list[list[Entry]]:
        self.reads += 1
        found = []
        for indexes, after, count in asked:
            entries = [(place, index) for index in indexes for place in self._places[index.lane]]
            entries.sort(key=lambda entry: entry[0], reverse=self._descending)
            if after is not None:
                entries = [
                    (place, index)
                    for place, index in entries
                    if (place < after if self._descending else place > after)
                ]
            found.append(entries[:count])
        return found


# Few scores and few ids: most of them tie.
places = st.builds(SortKey, st.integers(0, 5), st.integers(0, 30).map(lambda number: number.to_bytes(16)))


@given(
    indexes=st.lists(st.lists(places, unique_by=lambda place: place.id, max_size=30), max_size=4),
    descending=st.booleans(),
    step=st.integers(1, 9),
    piece=st.integers(1, 9),
    group=st.integers(1, 4),
)
def test_a_merge_returns_every_entry_once_and_in_order(
    indexes: list[list[SortKey]], descending: bool, step: int, piece: int, group: int
) -> None:
    shelf = Shelf(indexes, descending, group=group)

    async def taken() -> list[SortKey]:
        merge = Merge(shelf.groups, shelf.read, descending=descending, start=None, piece=piece)
        found: list[SortKey] = []
        while True:
            some = await merge.take(step)
            found += [place for place, _ in some]
            if len(some) < step:
                return found

    expected = sorted({place for index in indexes for place in index}, reverse=descending)
    assert asyncio.run(taken()) == expected


@given(
    indexes=st.lists(st.lists(places, unique_by=lambda place: place.id, max_size=30), max_size=4),
    descending=st.booleans(),
    limit=st.integers(1, 5),
    piece=st.integers(1, 9),
    group=st.integers(1, 4),
)
def test_a_merge_that_restarts_at_every_page_returns_the_same(
    indexes: list[list[SortKey]], descending: bool, limit: int, piece: int, group: int
) -> None:
    shelf = Shelf(indexes, descending, group=group)

    async def paged() -> list[SortKey]:
        found: list[SortKey] = []
        start: SortKey | None = None
        while True:
            merge = Merge(shelf.groups, shelf.read, descending=descending, start=start, piece=piece)
            page = [place for place, _ in await merge.take(limit)]
            found += page
            if len(page) < limit:
                return found
            start = page[-1]

    expected = sorted({place for index in indexes for place in index}, reverse=descending)
    assert asyncio.run(paged()) == expected


def test_a_page_of_many_indexes_is_read_in_one_batch() -> None:
    indexes = [
        [SortKey(n * 16 + lane, b"%016d" % (n * 16 + lane)) for n in range(1000)] for lane in range(16)
    ]
    shelf = Shelf(indexes, descending=True)

    async def first_page() -> int:
        merge = Merge(shelf.groups, shelf.read, descending=True, start=None, piece=15)
        return len(await merge.take(101))

    assert asyncio.run(first_page()) == 101
    assert shelf.reads == 1


@given(place=places)
def test_a_cursor_is_accepted_with_the_key_that_signed_it(place: SortKey) -> None:
    query = Query(schema_name="a", all_tags=("b",))
    cursor = sign_cursor(SECRET, OWNER, query, place)
    assert open_cursor(SECRET, OWNER, replace(query, cursor=cursor)) == place
    assert open_cursor(SECRET, OWNER, replace(query, cursor=cursor, limit=3)) == place
    for secret, owner, other in (
        (b"t" * 32, OWNER, query),
        (SECRET, OTHER, query),
        (SECRET, OWNER, replace(query, schema_name="b")),
        (SECRET, OWNER, replace(query, schema_name=None)),
        (SECRET, OWNER, replace(query, all_tags=())),
        (SECRET, OWNER, replace(query, any_tags=("b",))),
        (SECRET, OWNER, replace(query, session_id="s")),
        (SECRET, OWNER, replace(query, updated_since=1)),
        (SECRET, OWNER, replace(query, sort="created_at")),
    ):
        with pytest.raises(InvalidCursor):
            open_cursor(secret, owner, replace(other, cursor=cursor))


@given(place=places, position=st.integers(0, 53), letter=st.characters())
def test_a_cursor_with_a_changed_character_is_refused(place: SortKey, position: int, letter: str) -> None:
    cursor = sign_cursor(SECRET, OWNER, Query(), place)
    touched = cursor[:position] + letter + cursor[position + 1 :]
    if touched != cursor:
        with pytest.raises(InvalidCursor):
            open_cursor(SECRET, OWNER, Query(cursor=touched))


@given(st.text())
def test_arbitrary_text_is_refused_as_a_cursor(text: str) -> None:
    with pytest.raises(InvalidCursor):
        open_cursor(SECRET, OWNER, Query(cursor=text))


def test_no_cursor_starts_at_the_beginning() -> None:
    assert open_cursor(SECRET, OWNER, Query()) is None


def test_sessions_are_selected_by_id_and_by_tag() -> None:
    assert Query().sessions == set()
    assert Query(session_id="a", all_tags=("session:a", "x")).sessions == {"a"}
    assert Query(session_id="a", all_tags=("session:b", "session:c")).sessions == {"a", "b", "c"}
    assert Query(any_tags=("session:a",)).sessions == set(), "one of several is no demand"


def test_the_order_is_newest_first_and_by_update_for_updated_since() -> None:
    assert Query().order == "-created_at"
    assert Query(updated_since=1).order == "-updated_at"
    assert Query(updated_since=1, sort="created_at").order == "created_at"


@pytest.mark.parametrize(
    ("query", "where"),
    [
        (Query(limit=0), "limit"),
        (Query(limit=10_001), "limit"),
        (Query(offset=-1), "offset"),
        (Query(offset=100_001), "offset"),
        (Query(offset=1, cursor="x"), "cursor"),
    ],
)
def test_an_invalid_page_size_is_refused(query: Query, where: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        query.check()
    assert refused.value.complaints[0].where == where
