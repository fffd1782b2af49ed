"""Create and read back; what one write leaves on the server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any
from uuid import uuid4

import orjson
import pytest

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.ids import home_lane, lane_for
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import AGENT, ALICE, ANSWER, BOB, MESSAGE, Contract, change, crumb, everything
from tests.store.keyspace import events, keyspace, kind_of, lane_of

HARD_TO_KEEP: dict[str, Any] = {
    "big": 9007199254740993,
    "largest": (1 << 64) - 1,
    "smallest": -(1 << 63),
    "empty list": [],
    "empty object": {},
    "nested": {"a": [{}, [], [[]], {"b": {}}]},
    "float": 1.0,
    "small": 5e-324,
    "huge": 1.7976931348623157e308,
    "null": None,
    "text": 'é ü 漢字 \u202e 🙂👩‍👩‍👧 \x00\x1f\n\t\\"/',
    "": "empty name",
    "🙂": "emoji name",
    "lua": "]] --[[ %d \\n",
}


class Creating(Contract):
    async def test_a_created_breadcrumb_is_read_back(self, store: Store) -> None:
        new = crumb(
            "Hello",
            session="abc",
            tags=("user:message", "extension:chat"),
            context={"message": "Hello!"},
            description="A greeting\nin two lines",
            semantic_version="1.2.3",
            visibility="private",
            sensitivity="pii",
            llm_hints={"exclude": ["$.message"]},
        )
        written = await store.create(ALICE, new, by=AGENT)
        found = await store.get(ALICE, written.id)
        assert (
            (found.id, found.owner_id, found.version)
            == (written.id, ALICE, 1)
            == (written.id, ALICE, written.version)
        )
        assert found.created == found.updated == written.created == written.updated
        assert abs(found.created - store.now()) < 60_000_000
        assert found.created_by == found.updated_by == AGENT
        assert (found.expires, found.max_reads) == (0, 0)
        assert not written.replayed
        assert found.document == {
            "schema_name": MESSAGE,
            "title": "Hello",
            "tags": ["user:message", "extension:chat", "session:abc"],
            "context": {"message": "Hello!", "session_id": "abc"},
            "description": "A greeting\nin two lines",
            "semantic_version": "1.2.3",
            "visibility": "private",
            "sensitivity": "pii",
            "llm_hints": {"exclude": ["$.message"]},
        }

    async def test_all_fields_of_a_breadcrumb_are_optional(self, store: Store) -> None:
        written = await store.create(ALICE, crumb(schema=None))
        found = await store.get(ALICE, written.id)
        assert found.document == {"title": "", "tags": [], "context": {}}
        assert found.schema_name is None and found.created_by is None and found.session_id is None
        assert [item.id for item in await everything(store, ALICE, Query())] == [written.id]

    async def test_every_value_is_returned_unchanged(self, store: Store) -> None:
        as_json = orjson.dumps(HARD_TO_KEEP)
        written = await store.create(ALICE, crumb(context=HARD_TO_KEEP, session="s"))
        await store.update(ALICE, written.id, change(title="second"))
        await store.update(ALICE, written.id, change(title="third", context={"x": HARD_TO_KEEP}))
        newest, second, first = await store.history(ALICE, written.id)
        for version, expected in (
            (first, HARD_TO_KEEP | {"session_id": "s"}),
            (second, HARD_TO_KEEP | {"session_id": "s"}),
            (newest, {"x": HARD_TO_KEEP, "session_id": "s"}),
        ):
            assert orjson.dumps(version.context) == orjson.dumps(expected)
            assert as_json[1:-1] in version.json, "the bytes are those that came in"
        [listed] = await everything(store, ALICE, Query())
        [recent] = await store.recent(ALICE, "s", MESSAGE)
        assert listed.json == recent.json == newest.json == (await store.get(ALICE, written.id)).json

    async def test_content_that_is_not_json_is_refused_and_nothing_is_written(self, store: Store) -> None:
        before = await keyspace(store)
        deep: dict[str, Any] = {}
        for _ in range(300):
            deep = {"deeper": deep}
        for context in ({"big": 1 << 64}, {"lone": "\ud800"}, {"what": object()}, deep):
            with pytest.raises(InvalidInput):
                await store.create(ALICE, crumb(context=context))
        assert await keyspace(store) == before

    async def test_an_unknown_id_is_not_found(self, store: Store) -> None:
        for id in (uuid4(), uuid4()):
            with pytest.raises(NotFound):
                await store.get(ALICE, id)
            with pytest.raises(NotFound):
                await store.get_version(ALICE, id, 1)
            with pytest.raises(NotFound):
                await store.history(ALICE, id)
            with pytest.raises(NotFound):
                await store.update(ALICE, id, change(title="x"))
            with pytest.raises(NotFound):
                await store.delete(ALICE, id)

    async def test_every_write_has_exactly_one_event_with_its_operation(self, store: Store) -> None:
        first = await store.create(ALICE, crumb(session="s", tags=("a",), visibility="private"), by=AGENT)
        second = await store.create(BOB, crumb(schema=None))
        updated = await store.update(
            ALICE, first.id, change(schema_name=ANSWER, tags=["b"], visibility="team")
        )
        await store.delete(BOB, second.id)
        seen = await events(store)
        assert [(e.kind, e.owner, e.id, e.version) for e in seen] == [
            ("c", ALICE, first.id, 1),
            ("c", BOB, second.id, 1),
            ("u", ALICE, first.id, 2),
            ("d", BOB, second.id, 1),
        ]
        assert [(e.schema_name, e.tags, e.private_to) for e in seen] == [
            (MESSAGE, ["a", "session:s"], AGENT),
            ("", [], None),
            (ANSWER, ["b", "session:s"], None),
            ("", [], None),
        ]
        assert [e.at for e in seen[:3]] == [first.created, second.created, updated.updated]
        assert all(e.lane == home_lane(e.id, store.lanes) for e in seen)

    async def test_times_strictly_increase_in_a_lane_with_concurrent_writers(self, store: Store) -> None:
        async def write(number: int) -> int:
            session = f"s{number % 5}"
            return (await store.create(ALICE, crumb(str(number), session=session))).created

        times = await asyncio.gather(*(write(number) for number in range(200)))
        by_lane = defaultdict(list)
        for number, moment in enumerate(times):
            by_lane[lane_for(ALICE, "session", f"s{number % 5}", store.lanes)].append(moment)
        for lane, moments in by_lane.items():
            assert len(set(moments)) == len(moments)
            stream = [event.at for event in await events(store) if event.lane == lane]
            assert stream == sorted(moments), "events and breadcrumbs have one clock"
            assert len(set(stream)) == len(stream)

    async def test_all_data_of_a_session_is_in_the_lane_that_its_ids_contain(self, store: Store) -> None:
        lane = lane_for(ALICE, "session", "abc", store.lanes)
        for number in range(20):
            written = await store.create(ALICE, crumb(session="abc", tags=(f"t{number}",)))
            assert home_lane(written.id, store.lanes) == lane
            assert written.id.version == 7
        space = await keyspace(store)
        assert {lane_of(key) for key in space if kind_of(key) != "meta"} == {lane}

    async def test_times_are_shown_as_rfc_3339_with_microseconds(self, store: Store) -> None:
        written = await store.create(ALICE, crumb())
        found = await store.get(ALICE, written.id)
        assert found.full_view()["created_at"] == times.to_text(written.created)
        assert found.created_at.endswith("Z") and len(found.created_at) == 27

    async def test_a_script_flush_between_calls_has_no_effect(self, store: Store) -> None:
        async def flush() -> None:
            for lane in range(store.lanes):
                await store.connection.call(lane, b"SCRIPT", b"FLUSH")

        await flush()
        written = await store.create(ALICE, crumb(session="s", ttl_config={"max_reads": 10}))
        await flush()
        await store.update(ALICE, written.id, change(title="two"))
        await flush()
        assert (await store.get(ALICE, written.id)).title == "two"
        await flush()
        assert len(await store.recent(ALICE, "s", MESSAGE)) == 1
        newest, first = await store.history(ALICE, written.id)
        await flush()
        await store.delete(ALICE, written.id)
        await flush()
        await store.restore(newest, [first])
        assert (await store.get(ALICE, written.id)).version == 2
        assert [event.kind for event in await events(store)] == ["c", "u", "d", "c"]
