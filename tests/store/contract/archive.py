"""The archive: documents by digest, and the log of when they came into use."""

from __future__ import annotations

from typing import Any

import pytest

from breadcrumbs.runtime.store import archive as archive_module
from breadcrumbs.runtime.store.archive import KINDS, Archive, LogEntry, digest_of
from breadcrumbs.runtime.store.records import Registry
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import ALICE, BOB, Contract


class Archiving(Contract):
    async def test_a_document_is_found_by_its_digest_and_by_the_beginning_of_it(self, store: Store) -> None:
        document = {"b": [1, {}], "a": "é", "empty": []}
        digest = await Archive(store).keep(ALICE, "config", document)
        assert digest == digest_of({"a": "é", "empty": [], "b": [1, {}]}) and len(digest) == 64
        for name in (digest, digest[:16]):
            found = await Archive(store).get(ALICE, name)
            assert found is not None
            assert (found.kind, found.digest, found.document) == ("config", digest, document)
        wrong = digest[:63] + ("0" if digest[63] != "0" else "1")
        assert await Archive(store).get(ALICE, wrong) is None
        assert await Archive(store).get(ALICE, digest, "agent") is None

    async def test_an_owner_does_not_see_the_archive_of_another_owner(self, store: Store) -> None:
        digest = await Archive(store).keep(ALICE, "config", {"x": 1}, name="c")
        assert await Archive(store).get(BOB, digest) is None
        assert await Archive(store).log(BOB, "config") == []

    async def test_the_same_document_can_be_kept_as_several_kinds(self, store: Store) -> None:
        archive = Archive(store)
        for kind in KINDS:
            await archive.keep(ALICE, kind, {})
        for kind in KINDS:
            found = await archive.get(ALICE, digest_of({}), kind)
            assert found is not None and found.kind == kind

    async def test_the_log_records_each_change_once_however_many_processes_report_it(
        self, store: Store
    ) -> None:
        first, second = Archive(store), Archive(store)
        for document in ({"v": 1}, {"v": 2}, {"v": 1}):
            for process in (first, second, first):
                await process.keep(ALICE, "config", document, name="chat", source="a.json")
            await first.keep(ALICE, "config", {"other": True}, name="other", source="a.json")
        log = await first.log(ALICE, "config")
        one, two = (digest_of({"v": number})[:16] for number in (1, 2))
        assert [entry.digest for entry in log if entry.name == "chat"] == [one, two, one]
        assert [entry.source for entry in log if entry.name == "other"] == ["a.json"]
        assert [entry.at for entry in log] == sorted((entry.at for entry in log), reverse=True)
        await first.keep(ALICE, "config", {"v": 1}, name="chat", source="b.json")
        assert (await first.log(ALICE, "config"))[0].source == "b.json", "another source is a change"

    async def test_a_document_without_a_name_is_recorded_once(self, store: Store) -> None:
        for document in ({"v": 1}, {"v": 2}, {"v": 1}):
            await Archive(store).keep(ALICE, "setup", document)
        assert len(await Archive(store).log(ALICE, "setup")) == 2

    async def test_a_document_that_was_kept_already_costs_no_round_trip(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = Archive(store)
        digest = await archive.keep(ALICE, "config", {"v": 1}, name="chat")
        assert archive.is_kept(ALICE, "config", digest[:16], name="chat")
        assert not archive.is_kept(ALICE, "config", digest[:16], name="another")

        async def refuse(*_: Any) -> None:
            raise AssertionError("there must be no call")

        monkeypatch.setattr(store.connection, "run", refuse)
        assert await archive.keep(ALICE, "config", {"v": 1}, name="chat") == digest

    async def test_the_oldest_documents_are_dropped_but_never_those_in_force(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archive_module, "MAX_ENTRIES", 5)
        archive = Archive(store)
        in_force = await archive.keep(ALICE, "config", {"steady": True}, name="steady")
        digests = [await archive.keep(ALICE, "config", {"v": n}, name="chat") for n in range(10)]
        assert await archive.get(ALICE, in_force) is not None
        kept = [digest for digest in digests if await archive.get(ALICE, digest) is not None]
        assert kept == digests[-4:]
        assert len(await archive.log(ALICE, "config")) == 5

    async def test_very_many_names_do_not_make_the_log_grow_without_limit(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archive_module, "MAX_ENTRIES", 3)
        for number in range(12):
            await Archive(store).keep(ALICE, "config", {"v": number}, name=f"consumer {number}")
        assert len(await Archive(store).log(ALICE, "config")) == 6

    async def test_the_archive_has_a_maximum_size(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archive_module, "MAX_BYTES", 10_000)
        archive = Archive(store)
        digests = [await archive.keep(ALICE, "setup", {"v": n, "text": "x" * 3_000}) for n in range(6)]
        assert [await archive.get(ALICE, digest) is not None for digest in digests] == [False] * 3 + [
            True
        ] * 3
        size = await store.connection.call(0, b"HGET", store.keys.archive(ALICE), b"s")
        values = await store.connection.call(0, b"HGETALL", store.keys.archive(ALICE))
        stored = dict(zip(values[::2], values[1::2], strict=True))
        assert int(size) == sum(len(value) for field, value in stored.items() if field != b"s")

    async def test_documents_in_force_do_not_exceed_twice_the_maximum_size(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archive_module, "MAX_BYTES", 10_000)
        archive = Archive(store)
        digests = [
            await archive.keep(ALICE, "config", {"v": n, "text": "x" * 3_000}, name=f"consumer {n}")
            for n in range(12)
        ]
        kept = [digest for digest in digests if await archive.get(ALICE, digest) is not None]
        assert kept == digests[-6:]
        assert [entry.digest for entry in await archive.log(ALICE, "config")] == [
            digest[:16] for digest in reversed(kept)
        ]

    async def test_documents_of_one_kind_do_not_displace_those_of_another(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archive_module, "MAX_BYTES", 10_000)
        archive = Archive(store)
        setups = [await archive.keep(ALICE, "setup", {"v": n}) for n in range(3)]
        for number in range(12):
            text = {"v": number, "text": "x" * 3_000}
            await archive.keep(ALICE, "config", text, name=f"consumer {number}")
        setups.append(await archive.keep(ALICE, "setup", {"v": "new"}))
        assert None not in [await archive.get(ALICE, digest) for digest in setups]

    async def test_a_document_that_is_too_large_has_a_digest_but_is_not_kept(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archive_module, "MAX_DOCUMENT_BYTES", 100)
        digest = await Archive(store).keep(ALICE, "setup", ["x" * 200])
        assert digest == digest_of(["x" * 200])
        assert await Archive(store).get(ALICE, digest) is None

    async def test_imported_entries_are_put_in_order_and_can_be_imported_again(self, store: Store) -> None:
        archive = Archive(store)
        await archive.keep(ALICE, "config", {"v": "now"}, name="chat")
        old = digest_of({"v": "old"})[:16]
        entries = [LogEntry(at, old, "chat", "old.json") for at in (2_000_000, 1_000_000)]
        assert await archive.restore(ALICE, "config", {"v": "old"}, entries)
        assert not await archive.restore(ALICE, "config", {"v": "old"}, entries)
        log = await archive.log(ALICE, "config")
        assert [entry.at for entry in log[1:]] == [2_000_000, 1_000_000]
        found = await archive.get(ALICE, old)
        assert found is not None and found.document == {"v": "old"}

    async def test_a_name_with_a_null_byte_or_a_line_break_is_kept_readable(self, store: Store) -> None:
        await Archive(store).keep(ALICE, "agent", {"v": 1}, name="a\0b\nc", source="x\0y")
        (entry,) = await Archive(store).log(ALICE, "agent")
        assert (entry.name, entry.source) == ("a b\nc", "x y")

    async def test_deleting_the_records_of_an_owner_deletes_the_archive(self, store: Store) -> None:
        digest = await Archive(store).keep(ALICE, "config", {"v": 1}, name="chat")
        other = await Archive(store).keep(BOB, "config", {"v": 1}, name="chat")
        assert await Registry(store).forget(ALICE)
        assert await Archive(store).get(ALICE, digest) is None
        assert await Archive(store).log(ALICE, "config") == []
        assert await Archive(store).get(BOB, other) is not None
