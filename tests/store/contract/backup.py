"""Backups: a full export and its increments restore a store with exactly the same content."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import anyio
import orjson
import pytest

from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.maintenance.backup_chain import (
    BrokenExport,
    ExportFile,
    check_chain,
    read_export,
)
from breadcrumbs.runtime.maintenance.backup_export import BackupRange, backup_lines
from breadcrumbs.runtime.maintenance.export_import import Imported, import_lines
from breadcrumbs.runtime.maintenance.export_manifest import MANIFEST_LINES
from breadcrumbs.runtime.schema_names import STATE_CHANGE
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store import headers
from breadcrumbs.runtime.store.archive import Archive, Kind
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.records import Registry, SelectorSaver
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import AGENT, ALICE, BOB, Contract, Opener, change, crumb
from tests.store.contract.reducing import put_context

ROUNDS, ACTIONS = 4, 40


async def export(store: Store, previous: Sequence[bytes] | None = None, **options: Any) -> list[bytes]:
    """The lines of an export, with line breaks. `previous`: an increment to this file."""
    if previous is not None:
        options["previous"] = checked(previous)
    return [line + b"\n" async for line in backup_lines(store, BackupRange(**options))]


def checked(lines: Sequence[bytes], name: str = "file") -> ExportFile:
    found = read_export(name, lines)
    assert found is not None
    return found


async def restore(store: Store, *files: Sequence[bytes]) -> Imported:
    """Restore a chain as `crumb import` does. Returns the counts of all files."""
    chain = check_chain([checked(lines, f"file {n}") for n, lines in enumerate(files)])
    contents = {checked(lines).header.id: lines for lines in files}
    total = Imported()
    for states in (False, True):
        for number, file in enumerate(chain.files):
            lines = chain.restored_lines(number, contents[file.header.id], states=states)
            result = Imported()
            async for result in import_lines(store, lines):  # noqa: B007 - the last one counts
                pass
            assert result.bad_lines == []
            total.written += result.written
            total.already_there += result.already_there
            total.different += result.different
            total.archived += result.archived
            total.records += result.records
            total.states += result.states
    return total


async def content(store: Store) -> list[bytes]:
    """All lines of a full export that are not about the export itself."""
    return sorted(line for line in await export(store) if not line.startswith(MANIFEST_LINES))


def data(lines: Sequence[bytes]) -> list[Any]:
    return [orjson.loads(line) for line in lines if not line.startswith(MANIFEST_LINES)]


def titles_in(lines: Sequence[bytes]) -> list[str]:
    return [line["breadcrumb"]["title"] for line in data(lines) if "breadcrumb" in line]


class Backup(Contract):
    # Restore

    @pytest.mark.parametrize("seed", range(3))
    async def test_a_chain_of_random_changes_restores_the_same_content(
        self, opener: Opener, store: Store, seed: int
    ) -> None:
        changes = _RandomChanges(store, random.Random(seed))
        files: list[list[bytes]] = []
        for _ in range(ROUNDS):
            for _ in range(ACTIONS):
                await changes.one()
            files.append(await export(store, files[-1] if files else None))
        expected = await content(store)
        assert len(files[-1]) < len(await export(store)), "an increment is smaller than a full export"

        other = await opener(namespace="copy", lanes=5)
        random.Random(seed).shuffle(files)
        await restore(other, *files)
        assert await content(other) == expected
        again = await restore(other, *files)
        assert (again.written, again.different, again.archived, again.records, again.states) == (
            0,
            0,
            0,
            0,
            0,
        )
        assert await content(other) == expected

    async def test_a_chain_can_be_restored_up_to_each_of_its_files(
        self, opener: Opener, store: Store
    ) -> None:
        first = await store.create(ALICE, crumb("one", session="s"))
        files, expected = [await export(store)], [await content(store)]
        await store.update(ALICE, first.id, change(title="two"))
        await store.create(ALICE, crumb("new", session="s"))
        files.append(await export(store, files[-1]))
        expected.append(await content(store))
        await store.delete(ALICE, first.id)
        files.append(await export(store, files[-1]))
        expected.append(await content(store))
        for count in (1, 2, 3):
            other = await opener(namespace=f"copy{count}")
            await restore(other, *files[:count])
            assert await content(other) == expected[count - 1]

    async def test_an_increment_contains_only_changes(self, store: Store) -> None:
        kept = await store.create(ALICE, crumb("kept"))
        changed = await store.create(ALICE, crumb("changed"))
        gone = await store.create(ALICE, crumb("gone"))
        full = await export(store)
        await store.update(ALICE, changed.id, change(title="changed again"))
        await store.delete(ALICE, gone.id)
        increment = await export(store, full)
        assert titles_in(increment) == ["changed again"]
        index = checked(increment).index.breadcrumbs[ALICE]
        assert index.keys() == {kept.id.bytes, changed.id.bytes}
        assert data(await export(store, increment)) == []

    async def test_an_import_with_old_times_is_in_the_next_increment(
        self, opener: Opener, store: Store
    ) -> None:
        source = await opener(namespace="source")
        await source.create(ALICE, crumb("imported"))
        old = await export(source)
        await store.create(ALICE, crumb("own"))
        full = await export(store)
        began = checked(full).header.began
        await restore(store, old)
        assert titles_in(await export(store, full)) == ["imported"]
        since = await export(store, since=began)
        with pytest.raises(BrokenExport, match="--since PREVIOUS-FILE"):
            check_chain([checked(full), checked(since)])

    async def test_reads_and_reduced_contexts_are_changes(self, opener: Opener, store: Store) -> None:
        await store.create(ALICE, crumb("Hello", session="s"))
        context = await put_context(store, ttl=0.05)
        limited = await store.create(ALICE, crumb("limited", ttl_type="usage", ttl_config={"max_reads": 5}))
        full = await export(store)
        await store.get(ALICE, limited.id)
        await anyio.sleep(0.06)
        for lane in range(store.lanes):
            await purge_expired(store, lane)
        increment = await export(store, full)
        assert {line["breadcrumb"]["id"] for line in data(increment) if "breadcrumb" in line} == {
            str(context.id),
            str(limited.id),
        }
        other = await opener(namespace="copy")
        await restore(other, full, increment)
        assert await content(other) == await content(store)

    async def test_the_user_and_the_state_of_a_session_outlive_the_breadcrumbs_that_set_them(
        self, opener: Opener, store: Store
    ) -> None:
        first = await store.create(ALICE, crumb("first", session="s", tags=("user:ann",)))
        setting = await store.create(
            ALICE, crumb("", schema=STATE_CHANGE, session="s", context={"state_delta": {"a": 1}})
        )
        await store.create(ALICE, crumb("last", session="s", tags=("user:bob",)))
        full = await export(store)
        await store.delete(ALICE, first.id)
        await store.delete(ALICE, setting.id)
        before = await Sessions(store).get(ALICE, "s", first_message=True)
        assert (before.user, before.state) == ("ann", {"a": 1})
        for files in ([full, await export(store, full)], [await export(store)]):
            other = await opener(namespace=f"copy{len(files)}")
            await restore(other, *files)
            after = await Sessions(other).get(ALICE, "s", first_message=True)
            assert (after.user, after.state, after.created) == ("ann", {"a": 1}, before.created)

    async def test_a_restore_does_not_change_what_the_store_has(self, opener: Opener, store: Store) -> None:
        written = await store.create(ALICE, crumb("old", session="s", context={"message": "x"}))
        await store.create(
            ALICE, crumb("", schema=STATE_CHANGE, session="s", context={"state_delta": {"a": 1}})
        )
        await Registry(store).put_tenant(ALICE, "old name")
        full = await export(store)
        await store.update(ALICE, written.id, change(title="newer"))
        await store.create(
            ALICE, crumb("", schema=STATE_CHANGE, session="s", context={"state_delta": {"a": 2}})
        )
        await Registry(store).put_tenant(ALICE, "new name")
        before = await content(store)
        result = await restore(store, full)
        assert (result.written, result.different, result.records, result.states) == (0, 1, 0, 0)
        assert await content(store) == before

    async def test_an_export_of_one_owner_continues_for_that_owner(
        self, opener: Opener, store: Store
    ) -> None:
        await store.create(ALICE, crumb("alice"))
        await store.create(BOB, crumb("bob"))
        full = await export(store, owner=ALICE)
        assert titles_in(full) == ["alice"]
        await store.create(ALICE, crumb("alice again"))
        assert titles_in(await export(store, full, owner=ALICE)) == ["alice again"]
        with pytest.raises(InvalidInput, match="use the same --owner"):
            await export(store, full)
        other = await opener(namespace="copy")
        with pytest.raises(InvalidInput, match="another store"):
            await export(other, full, owner=ALICE)

    # By time

    async def test_increments_by_time_restore_the_same_breadcrumbs(
        self, opener: Opener, store: Store
    ) -> None:
        changes = _RandomChanges(store, random.Random(7))
        for _ in range(ACTIONS):
            await changes.one()
        full = await export(store)
        for _ in range(ACTIONS):
            await changes.one()
        increment = await export(store, since=checked(full).header.began)
        assert len(titles_in(increment)) < checked(increment).end.total
        other = await opener(namespace="copy")
        await restore(other, full, increment)
        assert await content(other) == await content(store)

    async def test_a_gap_between_increments_by_time_is_found(self, store: Store) -> None:
        await store.create(ALICE, crumb("one"))
        full = await export(store)
        await store.create(ALICE, crumb("two"))
        late = await export(store, since=store.now() + 1_000_000)
        with pytest.raises(BrokenExport, match="changes are missing between"):
            check_chain([checked(full), checked(late)])

    # While the store is written

    async def test_an_export_during_writes_has_no_answer_without_its_message(
        self, opener: Opener, store: Store
    ) -> None:
        writing = True

        async def write(session: str) -> None:
            for n in range(1, 61):
                if not writing:
                    return
                await anyio.sleep(0.005)
                message = await store.create(ALICE, crumb(f"{session} {n}", session=session))
                answer = crumb(
                    "", schema="agent.response.v1", session=session, context={"to": str(message.id)}
                )
                written = await store.create(ALICE, answer)
                if n % 3 == 0:
                    await store.update(ALICE, written.id, change(title="edited"))
                if n % 5 == 0:
                    await store.delete(ALICE, written.id)

        files: list[list[bytes]] = []
        async with anyio.create_task_group() as tasks:
            for n in range(3):
                tasks.start_soon(write, f"s{n}")
            for _ in range(4):
                await anyio.sleep(0.05)
                files.append(await export(store, files[-1] if files else None))
            writing = False
        for count in range(1, 5):
            other = await opener(namespace=f"during{count}")
            await restore(other, *files[:count])
            found = {one.id: one async for one in other.walk(ALICE, Query())}
            began = checked(files[count - 1]).header.began
            assert found and max(one.created for one in found.values()) <= began
            answers = [one for one in found.values() if "to" in one.context]
            assert answers and all(UUID(one.context["to"]) in found for one in answers)
        files.append(await export(store, files[-1]))
        other = await opener(namespace="quiet")
        await restore(other, *files)
        assert await content(other) == await content(store), "an increment contains what earlier files missed"

    async def test_a_breadcrumb_that_the_scan_misses_does_not_count_as_deleted(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.create(ALICE, crumb("here"))
        full = await export(store)

        async def empty(*_: Any) -> Any:
            if store.lanes < 0:
                yield []

        monkeypatch.setattr(headers, "_scan_index", empty)
        assert checked(await export(store, full)).end.total == 1

    # Damage

    async def test_damage_is_found(self, store: Store) -> None:
        for n in range(20):
            await store.create(ALICE, crumb(f"number {n}", session="s"))
        full = await export(store)
        assert checked(full).end.total == 20
        for position in (0, 5, len(full) - 2):
            with pytest.raises(BrokenExport, match="damaged"):
                checked([*full[:position], full[position].replace(b":", b"::", 1), *full[position + 1 :]])
            with pytest.raises(BrokenExport, match="damaged"):
                checked([*full[:position], full[position].replace(b"0", b"1", 1), *full[position + 1 :]])
        with pytest.raises(BrokenExport, match="ends too early"):
            checked(full[:-1])
        with pytest.raises(BrokenExport, match="damaged"):
            checked([*full[:3], *full[4:]])
        with pytest.raises(BrokenExport, match="lines after its end"):
            checked([*full, full[1]])
        assert read_export("old", full[1:]) is None, "an export of an earlier version has no manifest"

    async def test_a_broken_chain_is_refused(self, store: Store) -> None:
        files = [await export(store)]
        for n in range(3):
            await store.create(ALICE, crumb(f"number {n}"))
            files.append(await export(store, files[-1]))
        a, b, c, d = (checked(lines, name) for lines, name in zip(files, "abcd", strict=True))
        assert check_chain([d, b, c, a]).total == 3
        with pytest.raises(BrokenExport, match=r"missing between b and d.* id " + str(c.header.id)):
            check_chain([a, b, d])
        with pytest.raises(BrokenExport, match="b is an increment"):
            check_chain([b, c])
        with pytest.raises(BrokenExport, match="different chains"):
            check_chain([a, b, checked(await export(store), "e")])
        with pytest.raises(BrokenExport, match="the same export"):
            check_chain([a, a])


class _RandomChanges:
    """Random writes of all kinds."""

    def __init__(self, store: Store, random: random.Random) -> None:
        self._store, self._random = store, random
        self._ids: list[tuple[UUID, UUID]] = []
        self._selectors: list[UUID] = []

    async def one(self) -> None:
        weights = {self._create: 8, self._update: 5, self._delete: 3, self._state: 2, self._record: 1}
        weights |= {self._archive: 1, self._delete_session: 1}
        (action,) = self._random.choices(list(weights), list(weights.values()))
        await action()

    def _owner(self) -> UUID:
        return self._random.choice((ALICE, ALICE, BOB))

    def _session(self) -> str | None:
        return self._random.choice((None, "one", "two", "three"))

    async def _create(self) -> None:
        owner, n = self._owner(), self._random.randrange(1_000)
        new = crumb(
            f"title {n}",
            schema=self._random.choice(("user.message.v1", "note.v1", None)),
            session=self._session(),
            tags=(f"tag{n % 3}", f"user:{n % 2}"),
            context={"n": n, "empty": [], "text": "é" * (n % 50)},
            **({"ttl": "2099-01-01T00:00:00Z"} if n % 7 == 0 else {}),
        )
        self._ids.append((owner, (await self._store.create(owner, new, by=AGENT)).id))

    async def _update(self) -> None:
        if self._ids:
            owner, id = self._random.choice(self._ids)
            fields = self._random.choice(
                ({"title": "changed"}, {"tags": ["other"]}, {"schema_name": "moved.v1"})
            )
            try:
                current = await self._store.get(owner, id)
                if "tags" in fields and current.session_id is not None:
                    fields = {"title": f"changed {current.version}"}
                await self._store.update(owner, id, change(**fields), by=AGENT)
            except NotFound:
                pass

    async def _delete(self) -> None:
        if self._ids:
            owner, id = self._ids.pop(self._random.randrange(len(self._ids)))
            try:
                await self._store.delete(owner, id)
            except NotFound:
                pass

    async def _state(self) -> None:
        name, value = self._random.choice("abc"), self._random.choice((1, "two", None))
        new = crumb(
            "", schema=STATE_CHANGE, session=self._session() or "one", context={"state_delta": {name: value}}
        )
        owner = self._owner()
        self._ids.append((owner, (await self._store.create(owner, new, by=AGENT)).id))

    async def _record(self) -> None:
        registry, owner = Registry(self._store), self._owner()
        if self._random.random() < 0.4:
            await registry.put_tenant(owner, f"name {self._random.randrange(100)}")
        elif self._selectors and self._random.random() < 0.5:
            await registry.delete_selector(ALICE, self._selectors.pop())
        else:
            saver = SelectorSaver(AGENT, None, self._random.choice((None, "ann")))
            saved = await registry.add_selector(ALICE, saver, Selector(any_tags=["tag1"]))
            self._selectors.append(UUID(saved["id"]))
            await registry.put_agent(owner, AGENT, self._random.choice((["emitter"], ["curator"])))

    async def _archive(self) -> None:
        n = self._random.randrange(5)
        kind: Kind = self._random.choice(("config", "agent"))
        await Archive(self._store).keep(self._owner(), kind, {"n": n}, name="chat", source=f"file{n}")

    async def _delete_session(self) -> None:
        if self._random.random() < 0.3:
            owner, session = self._owner(), "three"
            try:
                await Sessions(self._store).delete(owner, session)
            except NotFound:
                pass
