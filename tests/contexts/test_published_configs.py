"""Context builders publish their config file for processes that build no contexts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.context_builder.published_configs import PublishedConfig, published_configs, publishing
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.store.published_configs import MAX_RECORD_BYTES, RECORD_SECONDS, publish_config
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import OWNER, config, document, post
from tests.contexts.test_http_config import Site, opened


@asynccontextmanager
async def builder(store: Store, path: Path, name: str = "builder-1") -> AsyncIterator[ConfigsInForce]:
    """Publish a config file as a living context builder does."""
    configs = ConfigsInForce(store, path)
    configs.load()
    await store.connection.call(0, b"ZADD", store.keys.workers("contexts"), store.now() + 60_000_000, name)
    async with configs.watched(), publishing(store, configs, name):
        yield configs


async def until(site: Site, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    with anyio.fail_after(10):
        while True:
            if holds(found := await site.configs()):
                return found
            await anyio.sleep(0.05)


@pytest.fixture
async def site(embedded_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Site]:
    """An API without a config file, as in `crumb serve`."""
    path = tmp_path / "context.json"
    async with opened(embedded_server.url, path, None) as site:
        site.path.write_bytes(orjson.dumps(document(), option=orjson.OPT_INDENT_2))
        yield site


async def test_a_process_without_a_file_shows_the_config_of_the_builders(site: Site) -> None:
    assert "file" not in await site.configs()
    async with builder(site.store, site.path):
        found = await until(site, lambda found: "file" in found)
        assert found["file"]["text"] == site.path.read_text() and found["file"]["published"]
        assert not found["file"]["writable"] and "path" not in found["file"]
        assert found["in_force"] == [{"consumer_id": "tester", "digest": config().digest, "origin": "file"}]
        assert [(one["builders"], one["ok"]) for one in found["builders"]] == [(1, True)]
        own = document(formatting={"max_tokens": 7})
        written = await post(site.store, "", schema="context.config.v1", context=own)
        (holding,) = (await site.configs())["in_force"]
        assert (holding["origin"], holding["id"]) == ("breadcrumb", str(written.id))
    assert "file" not in await site.configs(), "a builder that stops withdraws its config"


async def test_an_edit_of_the_file_is_published(site: Site) -> None:
    async with builder(site.store, site.path):
        await until(site, lambda found: "file" in found)
        site.path.write_bytes(orjson.dumps(document(formatting={"max_tokens": 55})))
        found = await until(site, lambda found: "55" in found["file"]["text"])
        assert found["in_force"][0]["digest"] == config(formatting={"max_tokens": 55}).digest


async def test_a_broken_file_is_reported_with_its_line_and_its_text_is_not_published(site: Site) -> None:
    async with builder(site.store, site.path):
        good = site.path.read_text()
        site.path.write_text('{\n  "password": "hunter2"')
        found = await until(site, lambda found: bool(found.get("file", {}).get("complaints")))
        assert found["file"]["complaints"][0]["line"] == 2
        assert found["file"]["in_force_text"] == found["file"]["text"] == good
        assert found["in_force"][0]["consumer_id"] == "tester" and not found["builders"][0]["ok"]
        assert "hunter2" not in orjson.dumps(found).decode()


async def test_builders_with_different_files_are_counted_apart(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(orjson.dumps(document(consumer_id="other")))
    store = site.store
    async with (
        builder(store, site.path),
        builder(store, site.path, "builder-2"),
        builder(store, other, "odd"),
    ):
        found = await until(site, lambda found: sum(one["builders"] for one in found["builders"]) == 3)
    assert [(one["name"], one["builders"]) for one in found["builders"]] == [
        ("context.json", 2), ("other.json", 1),
    ]  # fmt: skip
    assert [holding["consumer_id"] for holding in found["in_force"]] == ["tester"]


async def test_the_record_of_a_dead_builder_expires_and_is_not_read(site: Site) -> None:
    store = site.store
    await publish_config(store, "dead", PublishedConfig("a.json", "tag", "{}").encode())
    assert await published_configs(store, "contexts") == []
    left = await store.connection.call(0, b"TTL", store.keys.published_config("dead"))
    assert 0 < left <= RECORD_SECONDS


async def test_a_large_config_is_published_without_its_text(site: Site) -> None:
    large = document(exclude={"tags": [f"{'x' * 200}{n}" for n in range(64)]})
    text = orjson.dumps(large) + b" " * MAX_RECORD_BYTES
    site.path.write_bytes(text)
    async with builder(site.store, site.path):
        found = await until(site, lambda found: "file" in found)
    assert "text" not in found["file"] and found["builders"][0]["builders"] == 1


def test_an_unreadable_record_is_ignored() -> None:
    for record in (b"", b"{}", b"[]", b'{"name":1,"tag":2,"text":3,"complaints":[1]}'):
        assert PublishedConfig.decode(record) is None


async def test_the_list_of_configs_has_an_etag(site: Site) -> None:
    first = await site.client.get("/contexts/configs")
    etag = {"If-None-Match": first.headers["etag"]}
    same = await site.client.get("/contexts/configs", headers=etag)
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"])
    await post(site.store, "", owner=OWNER, schema="context.config.v1", context=document())
    assert (await site.client.get("/contexts/configs", headers=etag)).status_code == 200
