"""The configs in force: edits take effect within a second, and an invalid one changes nothing."""

# ruff: noqa: ASYNC110, ASYNC240 - tests write small files like an editor, and no event tells when they are read

from __future__ import annotations

import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog

from breadcrumbs.context_builder.config_checks import ConfigError
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce, own_configs
from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import MESSAGES, OWNER, book_of, building, context_of, document, post, texts

WITHIN = 1.0


def limited(limit: int, **changes: Any) -> dict[str, Any]:
    return document(sources=[{**MESSAGES, "fetch": {"limit": limit}}], **changes)


def limit_of(book: ConfigsInForce) -> int:
    return book._from_file[0].sources[0].fetch.limit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "context.json"
    path.write_text(json.dumps(limited(2)))
    return path


async def until(condition: Callable[[], Any], seconds: float = WITHIN) -> None:
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.01)


async def eventually(condition: Callable[[], Awaitable[Any]], seconds: float = WITHIN) -> None:
    with anyio.fail_after(seconds):
        while not await condition():
            await anyio.sleep(0.02)


def saved_in_place(path: Path, text: str) -> None:
    path.write_text(text)


def saved_by_renaming(path: Path, text: str) -> None:
    beside = path.with_name(".context.json.swp")
    beside.write_text(text)
    os.replace(beside, path)


def saved_with_the_same_size_and_time(path: Path, text: str) -> None:
    status = path.stat()
    assert len(text) == status.st_size
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


SAVES = [saved_in_place, saved_by_renaming, saved_with_the_same_size_and_time]


@pytest.mark.parametrize("save", SAVES)
async def test_a_saved_edit_is_live_within_a_second(
    store: Store, path: Path, save: Callable[[Path, str], None]
) -> None:
    book = ConfigsInForce(store, path)
    book.load()
    async with building(store, book) as builder:
        for number in range(5):
            context = await builder.say(f"m{number}", "s")
        assert texts(context) == ["m3", "m4"]
        save(path, json.dumps(limited(4)))
        await anyio.sleep(WITHIN)
        assert texts(await builder.say("m5", "s")) == ["m2", "m3", "m4", "m5"]


async def test_an_invalid_edit_is_refused_and_the_last_valid_config_stays(store: Store, path: Path) -> None:
    book = ConfigsInForce(store, path)
    book.load()
    async with building(store, book) as builder:
        path.write_text('{"consumer_id": "tester",\n "sourcs": []}')
        with structlog.testing.capture_logs() as logs:
            await until(lambda: book.refused)
            assert texts(await builder.say("m0", "s")) == ["m0"]
            await anyio.sleep(1.2)
        refusals = [entry for entry in logs if "config invalid" in entry["event"]]
        assert len(refusals) == 1 and f"{path}:2:2: sourcs: unknown field" in refusals[0]["problem"]
        assert limit_of(book) == 2
        path.write_text(json.dumps(limited(1)))
        await until(lambda: not book.refused)
        assert texts(await builder.say("m1", "s")) == ["m1"]


async def test_a_missing_file_is_logged_once_and_used_again_when_it_returns(store: Store, path: Path) -> None:
    book = ConfigsInForce(store, path)
    book.load()
    text = path.read_text()
    async with book.watched():
        with structlog.testing.capture_logs() as logs:
            path.unlink()
            await until(lambda: book.refused)
            await anyio.sleep(1.2)
            assert [config.consumer_id for config in await book.get(OWNER)] == ["tester"]
            path.write_text(text)
            await until(lambda: not book.refused)
        assert [entry["event"] for entry in logs] == [
            "context config invalid, keeping the last valid one",
            "context config reloaded",
        ]
        assert "No such file" in logs[0]["problem"]


@pytest.mark.parametrize(
    ("default", "used"),
    [(None, "and there is no earlier one"), (json.dumps(document()).encode(), "using the built-in one")],
)
async def test_the_log_says_what_is_used_if_the_file_is_invalid_from_the_start(
    store: Store, path: Path, default: bytes | None, used: str
) -> None:
    text = path.read_text()
    path.write_text('{"consumer_id": "tester",\n "sourcs": []}')
    book = ConfigsInForce(store, path, default=default)
    with structlog.testing.capture_logs() as logs:
        with pytest.raises(ConfigError):
            book.load()
        assert len(await book.get(OWNER)) == (0 if default is None else 1)
        path.write_text(text)
        book.reload()
    assert [entry["event"] for entry in logs] == [
        f"context config invalid, {used}",
        "context config reloaded",
    ]


async def test_an_unreadable_file_counts_as_missing(store: Store, path: Path) -> None:
    book = ConfigsInForce(store, path)
    book.load()
    path.unlink()
    path.mkdir()  # also unreadable for root, which ignores permissions
    async with book.watched():
        await until(lambda: book.refused)
        assert limit_of(book) == 2
        path.rmdir()
        path.write_text(json.dumps(limited(3)))
        await until(lambda: limit_of(book) == 3)


async def test_a_partly_written_file_is_not_reported(store: Store, path: Path) -> None:
    book = ConfigsInForce(store, path)
    book.load()
    text = json.dumps(limited(7))
    with structlog.testing.capture_logs() as logs:
        path.write_text("")
        book._check_file()
        path.write_text(text[:40])
        book._check_file()
        path.write_text(text)
        book._check_file()
    assert limit_of(book) == 7 and [entry["log_level"] for entry in logs] == ["info"]


async def test_edits_are_detected_without_a_watcher(store: Store, path: Path) -> None:
    book = ConfigsInForce(store, path)
    book.load()
    await book.get(OWNER)
    path.write_text(json.dumps(limited(9)))
    await anyio.sleep(0.6)
    (config,) = await book.get(OWNER)
    assert config.sources[0].fetch.limit == 9


async def test_an_invalid_file_is_an_error_at_start(store: Store, path: Path) -> None:
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        ConfigsInForce(store, path).load()
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        ConfigsInForce(store, path).load()


async def test_R7_exclusions_apply_without_a_restart(store: Store, path: Path) -> None:
    book = ConfigsInForce(store, path)
    book.load()
    async with building(store, book) as builder:
        await builder.say("a draft", "s", tags=("draft",))
        assert texts(await builder.say("m1", "s")) == ["a draft", "m1"]
        path.write_text(json.dumps(limited(3, exclude={"tags": ["draft"]})))
        await anyio.sleep(WITHIN)
        context = await builder.say("m2", "s")
        assert texts(context) == ["m1", "m2"]
        assert [out["reason"] for out in context.context["explain"]["left_out"]] == ["excluded"]


# Configs as breadcrumbs


def as_breadcrumb(body: dict[str, Any], **fields: Any) -> BreadcrumbCreate:
    return BreadcrumbCreate.parse({"schema_name": "context.config.v1", "context": body} | fields)


async def consumers(book: ConfigsInForce) -> list[str]:
    return [config.consumer_id for config in await book.get(OWNER)]


async def test_a_config_breadcrumb_replaces_the_file_of_its_consumer(store: Store) -> None:
    book = book_of(store, document(), document(consumer_id="second"))
    async with building(store, book) as builder:
        await builder.say("m0", "s")
        await builder.say("m1", "s")
        written = await store.create(OWNER, as_breadcrumb(limited(1)))
        await eventually(lambda: _is_last(builder, ["now"]))
        await store.update(OWNER, written.id, BreadcrumbUpdate(context=limited(3)))
        await eventually(lambda: _is_last(builder, ["now", "now", "now"]))
        assert await consumers(book) == ["second", "tester"]
        await store.delete(OWNER, written.id)
        await eventually(lambda: _longer_than(builder, 3))
        assert await consumers(book) == ["tester", "second"]


async def _is_last(builder: Any, expected: list[str]) -> bool:
    return texts(await builder.say("now", "s")) == expected


async def _longer_than(builder: Any, length: int) -> bool:
    return len(texts(await builder.say("now", "s"))) > length


async def test_a_config_of_an_owner_applies_only_to_that_owner(store: Store) -> None:
    book = book_of(store)
    await store.create(OWNER, as_breadcrumb(limited(1, consumer_id="mine")))
    assert await consumers(book) == ["tester", "mine"]
    assert [config.consumer_id for config in await book.get(DEVELOPER)] == ["tester"]


async def test_the_newest_of_two_configs_for_a_consumer_applies(store: Store) -> None:
    book = book_of(store)
    first = await store.create(OWNER, as_breadcrumb(limited(1, consumer_id="x")))
    await store.create(OWNER, as_breadcrumb(limited(2, consumer_id="x")))
    assert (await book.get(OWNER))[-1].sources[0].fetch.limit == 2
    await store.update(OWNER, first.id, BreadcrumbUpdate(context=limited(5, consumer_id="x")))
    book.invalidate(OWNER)
    assert (await book.get(OWNER))[-1].sources[0].fetch.limit == 5


@pytest.mark.parametrize(
    ("body", "fields", "says"),
    [
        ({"consumer_id": "x", "sourcs": []}, {}, "did you mean 'sources'?"),
        (limited(-1), {}, "sources.0.fetch.limit: must be at least 1, not -1"),
        (limited(5), {"tags": ["user:ada"]}, "without session: and user: tags"),
        (limited(5), {"visibility": "private"}, "private or secret"),
    ],
)
async def test_an_invalid_config_leaves_an_error_and_the_valid_one_stays(
    store: Store, body: dict[str, Any], fields: dict[str, Any], says: str
) -> None:
    async with building(store, book_of(store)) as builder:
        with structlog.testing.capture_logs() as logs:
            written = await store.create(OWNER, as_breadcrumb(body, **fields))

            async def errors() -> list[str]:
                page = await store.list(OWNER, Query(schema_name="agent.error.v1"))
                assert all(crumb.context["trigger_id"] == str(written.id) for crumb in page.items)
                return [crumb.context["error"] for crumb in page.items]

            await eventually(errors, 10)
            assert len(await errors()) == 1 and says in (await errors())[0]
            for number in range(3):
                context = await builder.say(f"m{number}", "s")
            assert texts(context) == ["m0", "m1", "m2"]
        assert sum("is not used" in entry["event"] for entry in logs) == 1  # once, not twice a second


async def test_an_invalid_edit_leaves_the_last_valid_version_in_force(store: Store) -> None:
    """Otherwise a misspelt field would put the file's config in force, which can show more."""
    book = book_of(store)
    written = await store.create(OWNER, as_breadcrumb(limited(2)))
    for broken in (limited(-1), {"consumer_id": "tester", "sourcs": []}):
        await store.update(OWNER, written.id, BreadcrumbUpdate(context=broken))
        book.invalidate(OWNER)
        (config,) = await book.get(OWNER)
        assert config.sources[0].fetch.limit == 2
    (own,) = await own_configs(store, OWNER)
    assert own.in_force and own.crumb.version == 3 and "did you mean 'sources'?" in own.problem
    # Its rank depends on the time of the valid version, not of the invalid one.
    await store.create(OWNER, as_breadcrumb(limited(3)))
    await store.update(OWNER, written.id, BreadcrumbUpdate(context=limited(-2)))
    book.invalidate(OWNER)
    assert [config.sources[0].fetch.limit for config in await book.get(OWNER)] == [3]
    await store.update(OWNER, written.id, BreadcrumbUpdate(context=limited(4)))
    book.invalidate(OWNER)
    assert [config.sources[0].fetch.limit for config in await book.get(OWNER)] == [4]
    # A config that becomes private is no longer in force.
    await store.update(OWNER, written.id, BreadcrumbUpdate(visibility="private"))
    book.invalidate(OWNER)
    assert [config.sources[0].fetch.limit for config in await book.get(OWNER)] == [3]


async def test_a_session_token_cannot_change_configs(store: Store) -> None:
    """Otherwise its own contexts could show breadcrumbs that the token cannot see."""
    everything = document(
        sources=[{"key": "x", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "all"}}]
    )
    narrowed = Principal(OWNER, DEVELOPER, session_id="mine")
    await store.create(OWNER, policy.admit_new(narrowed, as_breadcrumb(everything)))
    async with building(store, book_of(store)) as builder:
        await post(store, "not for you", session="other")
        assert texts(await builder.say("hello", "mine")) == ["hello"]
        context = await store.get(OWNER, context_of(store, "mine"))
        assert b"not for you" not in context.json


async def test_checking_an_unchanged_file_is_cheap(store: Store, path: Path) -> None:
    book = ConfigsInForce(store, path)
    book.load()
    began = time.perf_counter()
    for _ in range(100):
        book._check_file()
    assert (time.perf_counter() - began) / 100 < 0.005
