"""The history of configs over HTTP: list it, read a past config, roll back to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from breadcrumbs.context_builder.config_checks import parse_configs
from breadcrumbs.context_builder.config_file import ConfigFile
from breadcrumbs.context_builder.config_history import replaced_in_text, shortest
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.store.archive import Archive, digest_of
from tests.contexts.support import MESSAGES, OWNER, SHIPPED, building, config, document
from tests.contexts.test_http_config import KEY, Site, opened


@pytest.fixture
async def site(embedded_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Site]:
    path = tmp_path / "context.json"
    path.write_bytes(orjson.dumps(document()))
    async with opened(embedded_server.url, path, ConfigFile(path)) as site:
        yield site


async def _log(site: Site) -> list[dict[str, Any]]:
    answer = await site.call("GET", "/contexts/config/log")
    assert answer.status_code == 200, answer.text
    entries: list[dict[str, Any]] = answer.json()["entries"]
    return entries


async def _roll_back(site: Site, digest: str) -> httpx.Response:
    return await site.call("POST", "/contexts/config/rollback", json={"digest": digest})


async def _edit_file(site: Site, text: bytes) -> None:
    site.path.write_bytes(text)
    site.book.reload()


async def test_a_config_file_is_rolled_back_to_an_earlier_content(site: Site) -> None:
    async with building(site.store, site.book) as builder:
        first = await builder.say("one", "s")
        changed = document(formatting={"max_tokens": 77}) | {"$schema": "./x.schema.json"}
        await _edit_file(site, orjson.dumps(changed))
        second = await builder.say("two", "s")
        log = await _log(site)
        old, new = first.context["config"], second.context["config"]
        assert [(entry["digest"], entry["in_force"]) for entry in log] == [(new, True), (old, False)]
        assert {entry["source"] for entry in log} == {str(site.path)}
        assert {entry["consumer_id"] for entry in log} == {"tester"}
        answer = await _roll_back(site, old[:6])
        assert answer.status_code == 200 and answer.json()["origin"] == "file", answer.text
        written = orjson.loads(site.path.read_bytes())
        assert parse_configs(site.path.read_bytes())[0].digest == old
        assert written["$schema"] == "./x.schema.json" and "formatting" not in written
        third = await builder.say("three", "s")
    assert third.context["config"] == old
    log = await _log(site)
    assert [(entry["digest"], entry["in_force"]) for entry in log] == [
        (old, True),
        (new, False),
        (old, False),
    ]
    again = await _roll_back(site, old)
    assert again.json()["origin"] == "none", "it is in force already"


async def test_a_past_config_is_shown_by_the_beginning_of_its_digest(site: Site) -> None:
    async with building(site.store, site.book) as builder:
        context = await builder.say("one", "s")
    digest = context.context["config"]
    for given in (digest[:4], digest, digest.upper()):
        answer = await site.client.get(f"/contexts/config/log/{given}")
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        assert shown["digest"].startswith(digest) and len(shown["digest"]) == 64
        assert shown["in_force"] and shown["valid"] and shown["config"] == document()
    for given, status in (("xyzz", 422), ("abc", 422), ("0" * 16, 404), ("0" * 65, 422)):
        answer = await site.client.get(f"/contexts/config/log/{given}")
        assert answer.status_code == status, (given, answer.text)


async def test_an_ambiguous_digest_is_reported_with_its_candidates(site: Site) -> None:
    by_start: dict[str, int] = {}
    for number in range(2_000):
        start = digest_of({"n": number})[:4]
        if start in by_start:
            break
        by_start[start] = number
    archive = Archive(site.store)
    for one in (by_start[start], number):
        digest = await archive.keep(OWNER, "config", {"n": one}, name=f"c{one}")
    answer = await site.client.get(f"/contexts/config/log/{digest[:4]}")
    assert answer.status_code == 422 and digest[:16] in answer.text


async def test_a_config_breadcrumb_gets_a_new_version(site: Site) -> None:
    new = {"schema_name": "context.config.v1", "title": "mine", "context": document()}
    id = (await site.client.post("/breadcrumbs", json=new)).json()["id"]
    async with building(site.store, site.book) as builder:
        old = (await builder.say("one", "s")).context["config"]
        edit = {"context": document(formatting={"max_tokens": 77}) | {"$text": "…"}}
        assert (await site.client.patch(f"/breadcrumbs/{id}", json=edit)).status_code == 200
        site.book.invalidate(OWNER)
        await builder.say("two", "s")
        answer = await _roll_back(site, old)
        assert answer.json() | {"digest": ""} == {
            "ok": True, "digest": "", "consumer_id": "tester", "origin": "breadcrumb", "id": id, "version": 3,
        }  # fmt: skip
        site.book.invalidate(OWNER)
        assert (await builder.say("three", "s")).context["config"] == old
    log = await _log(site)
    assert [entry["source"].split()[-1] for entry in log] == ["3", "2", "1"]
    crumb = (await site.client.get(f"/breadcrumbs/{id}/full")).json()
    assert crumb["context"] == document()
    # After its deletion the config of the file is in force, which a rollback can also replace.
    assert (await site.client.delete(f"/breadcrumbs/{id}")).status_code == 200
    site.path.write_bytes(orjson.dumps(document(consumer_id="another")))
    site.book.reload()
    site.book.invalidate(OWNER)
    answer = await _roll_back(site, old)
    assert answer.json()["origin"] == "breadcrumb" and answer.json()["version"] == 1


async def test_a_file_that_the_server_cannot_write_is_not_changed_and_the_error_says_what_to_do(
    embedded_server: EmbeddedServer, tmp_path: Path
) -> None:
    path = tmp_path / "context.json"
    path.write_bytes(orjson.dumps(document()))
    async with opened(embedded_server.url, path, ConfigFile(path, locked="several owners use it")) as site:
        async with building(site.store, site.book) as builder:
            old = (await builder.say("one", "s")).context["config"]
            await _edit_file(site, orjson.dumps(document(formatting={"max_tokens": 77})))
            await builder.say("two", "s")
        before = path.read_bytes()
        answer = await _roll_back(site, old)
        assert answer.status_code == 403 and f"crumb config show {old} > FILE" in answer.json()["detail"]
        assert path.read_bytes() == before
        assert {entry["source"] for entry in await _log(site)} == {"context.json"}, "the path is not shown"


async def test_a_rollback_needs_a_known_digest_and_the_role_curator(site: Site) -> None:
    for body, status in (
        ({"digest": "0" * 16}, 404),
        ({"digest": "nope"}, 422),
        ({"digest": ""}, 422),
        ({"digest": 7}, 422),
        ({}, 422),
        ({"digest": "0" * 16, "more": 1}, 422),
    ):
        answer = await site.client.post("/contexts/config/rollback", json=body)
        assert answer.status_code == status, (body, answer.text)
    reader = await site.token(roles=["subscriber"])
    answer = await site.client.post(
        "/contexts/config/rollback", json={"digest": "0" * 16}, headers={"X-API-Key": KEY} | reader
    )
    assert answer.status_code in (403, 404)


@pytest.mark.parametrize(
    "given",
    [
        document(),
        document(limits=[{"key": "conversation", "limit": 7}]),
        document(limits=[{"key": "conversation", "limit": 10}]),
        document(
            sources=[{"key": "c", "schema_name": "user.message.v1"}],
            limits=[{"key": "c", "limit": 9, "keep": 3}],
        ),
        document(sources=[MESSAGES | {"max_tokens": 5, "fetch": {"limit": 3}}]),
        orjson.loads(SHIPPED.read_bytes()),
    ],
)
def test_the_shortest_form_of_a_config_has_the_same_digest(given: Any) -> None:
    for original in parse_configs(orjson.dumps(given)):
        (again,) = parse_configs(orjson.dumps(shortest(original)))
        assert again.digest == original.digest
        (archived,) = parse_configs(orjson.dumps(original.archived_document()))
        assert archived.digest == original.digest
        assert shortest(archived) == shortest(original)


def test_the_shortest_form_of_the_shipped_config_is_the_shipped_config() -> None:
    (archived,) = parse_configs(orjson.dumps(parse_configs(SHIPPED.read_bytes())[0].archived_document()))
    written = orjson.loads(SHIPPED.read_bytes())
    assert shortest(archived)["limits"] == written["limits"]
    assert "limit" not in shortest(archived)["sources"][0].get("fetch", {})


def test_other_configs_of_a_file_stay_when_one_is_replaced() -> None:
    other, old = document(consumer_id="other"), shortest(config(formatting={"max_tokens": 5}))
    raw = orjson.dumps([other, document()])
    assert orjson.loads(replaced_in_text(raw, old)) == [other, old]
    assert orjson.loads(replaced_in_text(orjson.dumps([other]), old)) == [other, old]
    with pytest.raises(InvalidInput, match="has errors"):
        replaced_in_text(b"{", old)
