"""The configs over HTTP: those in force, checks of a text, and edits of the file."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import jsonschema_rs
import orjson
import pytest

from breadcrumbs.composition.workers import config_file
from breadcrumbs.context_builder.config import json_schema
from breadcrumbs.context_builder.config_file import ConfigFile
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.context_builder.http.configs import ConfigRoutes
from breadcrumbs.context_builder.http.contexts import routes as CONTEXTS
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.http.app import Application, build_app
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.hub import EventHub
from tests.contexts.support import (
    ANSWERS,
    MESSAGES,
    OWNER,
    SHIPPED,
    building,
    context_of,
    document,
    post,
    texts,
)
from tests.support.events import close_with_reader, reader_of

KEY = "a-key-of-the-owner-of-these-configs"
SETTINGS = Settings(api_keys=({"key": KEY, "owner_id": str(OWNER)},))
BROKEN = """{
  "consumer_id": "tester",
  "update_triggers": [{"schema_name": "user.message.v1"}],
  "sources": [
    {"key": "conversation", "schema_name": "user.message.v1", "fetch": {"limit": -1}}
  ],
  "formating": {"max_tokens": 10}
}
"""


@dataclass
class Site:
    app: Application
    store: Store
    client: httpx.AsyncClient
    book: ConfigsInForce
    path: Path

    async def token(self, **wanted: Any) -> dict[str, str]:
        answer = await self.client.post("/auth/token", json=wanted)
        assert answer.status_code == 200, answer.text
        return {"Authorization": f"Bearer {answer.json()['token']}"}

    async def call(
        self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        """Check a response against the OpenAPI document and return it."""
        answer = await self.client.request(method, path, headers=headers, **more)
        described = self.app.document["paths"][path][method.lower()]["responses"][str(answer.status_code)]
        schema = described["content"][answer.headers["content-type"]]["schema"]
        jsonschema_rs.validate({**schema, "components": self.app.document["components"]}, answer.json())
        return answer

    async def configs(self, headers: dict[str, str] | None = None) -> dict[str, Any]:
        answer = await self.call("GET", "/contexts/configs", headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def check(self, text: str) -> dict[str, Any]:
        answer = await self.call("POST", "/contexts/check", json={"text": text})
        assert answer.status_code == 200, answer.text
        checked: dict[str, Any] = answer.json()
        return checked

    async def put(self, text: str, etag: str | None = None, **headers: str) -> httpx.Response:
        sent = headers | ({} if etag is None else {"If-Match": etag})
        return await self.call("PUT", "/contexts/config", sent, json={"text": text})


@asynccontextmanager
async def opened(
    url: str, path: Path, file: ConfigFile | None, settings: Settings = SETTINGS
) -> AsyncIterator[Site]:
    store = await Store.open(url, namespace=f"c{secrets.token_hex(6)}")
    hub = EventHub(store, reader_of(store))
    book = ConfigsInForce(store, None if file is None else file.path)
    try:
        operations = (*CONTEXTS, *ConfigRoutes(book, file).operations)
        app = build_app(store, hub, Hygiene(store, settings), settings, operations)
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8081", headers={"X-API-Key": KEY}
        ) as client:
            yield Site(app, store, client, book, path)
    finally:
        await hub.close()
        await close_with_reader(store)


@pytest.fixture
async def site(embedded_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Site]:
    path = tmp_path / "context.json"
    path.write_bytes(orjson.dumps(document()))
    async with opened(embedded_server.url, path, ConfigFile(path)) as site:
        yield site


def text_of(**changes: Any) -> str:
    return orjson.dumps(document(**changes), option=orjson.OPT_INDENT_2).decode()


# Listing


async def test_the_file_and_the_breadcrumbs_are_listed_with_the_config_in_force(site: Site) -> None:
    found = await site.configs()
    assert found["file"]["text"] == site.path.read_text() and found["file"]["complaints"] == []
    assert (found["file"]["writable"], found["file"]["path"]) == (True, str(site.path))
    assert [(one["consumer_id"], one["origin"]) for one in found["in_force"]] == [("tester", "file")]

    own = await post(site.store, schema="context.config.v1", context=document(formatting={"max_tokens": 7}))
    broken = await post(site.store, schema="context.config.v1", context={"consumer_id": "x"})
    found = await site.configs()
    assert [(one["origin"], one["id"]) for one in found["in_force"]] == [("breadcrumb", str(own.id))]
    by_id = {one["id"]: one for one in found["breadcrumbs"]}
    assert by_id[str(own.id)]["holds"] and by_id[str(own.id)]["config"]["formatting"] == {"max_tokens": 7}
    assert not by_id[str(broken.id)]["holds"] and "is required" in by_id[str(broken.id)]["problem"]

    newer = await post(site.store, schema="context.config.v1", context=document())
    found = await site.configs()
    assert [(one["id"], one["holds"]) for one in found["breadcrumbs"]] == [
        (str(newer.id), True), (str(broken.id), False), (str(own.id), False),
    ]  # fmt: skip
    await site.store.delete(OWNER, newer.id)
    assert [one["id"] for one in (await site.configs())["in_force"]] == [str(own.id)]


async def test_configs_of_other_owners_and_hidden_configs_are_not_listed(site: Site) -> None:
    await post(site.store, schema="context.config.v1", context=document(), owner=uuid4())
    await post(
        site.store, schema="context.config.v1", context=document(), visibility="private", by=UUID(int=7)
    )
    await post(site.store, schema="context.config.v1", context=document(), sensitivity="secret")
    reader = await site.token(roles=["subscriber"])
    assert (await site.configs(reader))["breadcrumbs"] == []
    assert len((await site.configs())["breadcrumbs"]) == 2  # a curator sees them as not in force
    for path in ("/contexts/configs", "/contexts/config"):
        for narrowed in ({"session_id": "s"}, {"user_id": "ada"}):
            assert (await site.call("GET", path, await site.token(**narrowed))).status_code == 403


async def test_a_reader_sees_the_name_but_not_the_path_of_the_file(site: Site) -> None:
    file = (await site.configs(await site.token(roles=["subscriber"])))["file"]
    assert "path" not in file and file["name"] == "context.json"
    assert not file["writable"] and "curator" in file["locked"]


async def test_a_broken_file_is_listed_with_its_errors_and_the_config_in_force(
    site: Site,
) -> None:
    await site.configs()  # loads the valid file
    site.path.write_text(BROKEN)
    os.utime(site.path, (1, 1))  # an old file: not currently being written
    site.book.reload()
    found = await site.configs()
    assert [complaint["line"] for complaint in found["file"]["complaints"]] == [5, 7]
    assert [one["consumer_id"] for one in found["in_force"]] == ["tester"]
    site.path.unlink()
    gone = (await site.call("GET", "/contexts/config")).json()
    assert "text" not in gone and "cannot be read" in gone["complaints"][0]["message"]
    site.path.write_bytes(b'{"consumer_id": "\xff"}')
    bytes_of_another_kind = (await site.call("GET", "/contexts/config")).json()
    assert (
        "text" not in bytes_of_another_kind and "UTF-8" in bytes_of_another_kind["complaints"][0]["message"]
    )


async def test_a_process_without_a_file_explains_the_alternative(
    embedded_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(embedded_server.url, tmp_path, None) as site:
        found = await site.configs()
        assert "file" not in found and found["in_force"] == []
        assert (await site.call("GET", "/contexts/config")).status_code == 404
        answer = await site.put(text_of())
        assert answer.status_code == 404 and "breadcrumb" in answer.json()["detail"]


# Checks


async def test_a_text_is_checked_line_by_line(site: Site) -> None:
    assert await site.check(text_of()) == {
        "ok": True,
        "configs": [{"consumer_id": "tester", "digest": (await site.configs())["in_force"][0]["digest"]}],
        "complaints": [],
        "warnings": [],
    }
    checked = await site.check(BROKEN)
    assert not checked["ok"] and checked["configs"] == []
    assert [(one["line"], one["column"], one["where"]) for one in checked["complaints"]] == [
        (5, 82, "sources.0.fetch.limit"),
        (7, 3, "formating"),
    ]
    assert "did you mean 'formatting'?" in checked["complaints"][1]["message"]
    assert (await site.check('{\n  "a": tru\n}'))["complaints"][0]["line"] == 2
    assert (await site.check(""))["complaints"][0]["line"] == 1


@pytest.mark.parametrize("body", [{}, {"text": 7}, {"text": "{}", "more": 1}, [], "x"])
async def test_a_config_that_is_not_text_is_refused(site: Site, body: Any) -> None:
    for method, path in (("POST", "/contexts/check"), ("PUT", "/contexts/config")):
        before = site.path.read_bytes()
        answer = await site.call(method, path, json=body)
        assert answer.status_code == 422 and answer.json()["errors"]
        assert site.path.read_bytes() == before


async def test_the_json_schema_for_editors_is_served(site: Site) -> None:
    answer = await site.call("GET", "/contexts/config/schema")
    assert answer.json() == json_schema()


# Edits


async def test_an_edit_applies_to_the_next_message_and_is_stored_as_typed(site: Site) -> None:
    site.path.chmod(0o640)
    typed = '{ "consumer_id": "tester",\n\n  "update_triggers": [{"schema_name": "user.message.v1"}],\n' + (
        '  "sources": [{"key": "conversation", "schema_name": "user.message.v1", "fetch": {"limit": 1}}] }\n'
    )
    async with building(site.store, site.book) as builder:
        await builder.say("one", "s")
        assert texts(await builder.say("two", "s")) == ["one", "two"]
        answer = await site.put(typed, (await site.configs())["file"]["etag"])
        assert answer.status_code == 200, answer.text
        assert texts(await builder.say("three", "s")) == ["three"]
    assert site.path.read_text() == typed
    assert answer.json()["text"] == typed and answer.headers["etag"] == f'"{answer.json()["etag"]}"'
    assert site.path.stat().st_mode & 0o777 == 0o640
    assert [file.name for file in site.path.parent.iterdir()] == ["context.json"]


async def test_an_invalid_edit_is_refused_with_its_lines_and_changes_nothing(site: Site) -> None:
    before = site.path.read_bytes(), site.path.stat().st_ino
    answer = await site.put(BROKEN, (await site.configs())["file"]["etag"])
    assert answer.status_code == 422 and "the file was not changed" in answer.json()["detail"]
    assert [(one["line"], one["column"]) for one in answer.json()["errors"]] == [(5, 82), (7, 3)]
    assert (site.path.read_bytes(), site.path.stat().st_ino) == before


async def test_the_second_of_two_editors_gets_a_conflict_and_overwrites_nothing(site: Site) -> None:
    etag = (await site.configs())["file"]["etag"]
    first = text_of(formatting={"max_tokens": 100})
    assert (await site.put(first, f'"{etag}"')).status_code == 200
    refused = await site.put(text_of(formatting={"max_tokens": 200}), f'"{etag}"')
    assert refused.status_code == 412 and site.path.read_text() == first
    assert (
        await site.put(text_of(formatting={"max_tokens": 200}), refused.headers["etag"])
    ).status_code == 200
    for anything in (
        "*",
        f'"{etag}", W/{refused.headers["etag"]}, "{(await site.configs())["file"]["etag"]}"',
    ):
        assert (await site.put(first, anything)).status_code == 200
    assert (await site.put(text_of())).status_code == 200  # a request without If-Match overwrites


async def test_a_missing_file_can_be_written_again(site: Site) -> None:
    old = (await site.configs())["file"]["etag"]
    site.path.unlink()
    refused = await site.put(text_of(), old)
    assert refused.status_code == 412
    assert (await site.put(text_of(), refused.headers["etag"])).status_code == 200
    assert site.path.read_text() == text_of()


async def test_a_symbolic_link_stays_a_link(site: Site, tmp_path: Path) -> None:
    real = tmp_path / "real" / "mine.json"
    real.parent.mkdir()
    site.path.rename(real)
    site.path.symlink_to(real)
    assert (await site.put(text_of(formatting={"max_tokens": 9}))).status_code == 200
    assert site.path.is_symlink() and orjson.loads(real.read_bytes())["formatting"] == {"max_tokens": 9}


async def test_a_failed_write_keeps_the_old_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = site.path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    answer = await site.put(text_of(formatting={"max_tokens": 9}))
    assert answer.status_code == 403 and "No space left" in answer.json()["detail"]
    assert site.path.read_bytes() == before
    assert [file.name for file in site.path.parent.iterdir()] == ["context.json"]


async def test_writing_needs_a_curator_whose_token_is_not_narrowed(site: Site) -> None:
    before = site.path.read_bytes()
    for wanted in ({"roles": ["emitter", "subscriber"]}, {"session_id": "s"}, {"user_id": "ada"}):
        token = await site.token(**wanted)
        assert (await site.put(text_of(formatting={"max_tokens": 1}), **token)).status_code == 403
    assert site.path.read_bytes() == before
    site.client.headers.pop("X-API-Key")
    for method, path in (
        ("GET", "/contexts/configs"),
        ("GET", "/contexts/config"),
        ("PUT", "/contexts/config"),
        ("GET", "/contexts/config/schema"),
        ("POST", "/contexts/check"),
    ):
        assert (await site.client.request(method, path)).status_code == 401


async def test_the_packaged_config_and_configs_of_other_tenants_cannot_be_changed(
    embedded_server: EmbeddedServer, tmp_path: Path
) -> None:
    path = tmp_path / "context.json"
    path.write_bytes(orjson.dumps(document()))
    several: Any = (*SETTINGS.api_keys, {"key": "a-key-of-somebody-else", "owner_id": str(uuid4())})
    shared = Settings(api_keys=several, context_config=path)
    built_in = SHIPPED.read_bytes()
    for settings, reason in ((shared, "several owners"), (SETTINGS, "built-in")):
        file = config_file(settings, builds=True)
        async with opened(embedded_server.url, path, file, settings) as site:
            answer = await site.put(text_of(formatting={"max_tokens": 1}))
            assert answer.status_code == 403 and reason in answer.json()["detail"]
            assert reason in (await site.configs())["file"]["locked"]
    assert SHIPPED.read_bytes() == built_in and orjson.loads(path.read_bytes()) == document()


def test_the_file_is_known_to_builders_and_to_servers_with_the_setting(tmp_path: Path) -> None:
    assert config_file(Settings(), builds=False) is None
    named = Settings(context_config=tmp_path / "context.json")
    for builds in (True, False):
        file = config_file(named, builds=builds)
        assert file is not None and file.path == named.context_config and not file.locked


# Full content of an explanation


async def test_an_explanation_contains_the_whole_content_on_request(site: Site) -> None:
    long = "word " * 200
    wide = document(sources=[MESSAGES, ANSWERS], formatting={"max_tokens": 10_000})
    site.path.write_bytes(orjson.dumps(wide))
    async with building(site.store, site.book) as builder:
        await builder.say(long, "s")
        await builder.say("second", "s")
    path = f"/contexts/{context_of(site.store, 's')}/explain"
    for version, said in ((1, [long]), (2, [long, "second"])):
        answer = (await site.client.get(path, params={"version": version, "parts": "true"})).json()
        assert answer["parts_as_shown"] is True
        assert [item["content"]["message"] for item in answer["parts"][0]["items"]] == said
    assert "parts" not in (await site.client.get(path)).json()
    assert (await site.client.get(path, params={"parts": "perhaps"})).status_code == 422
    first = answer["items"][0]["id"]
    await site.store.delete(OWNER, UUID(first))
    later = (await site.client.get(path, params={"parts": "true"})).json()
    assert later["parts_as_shown"] is False and long not in str(later["parts"])


async def test_parts_contain_no_more_than_the_explanation(site: Site) -> None:
    everywhere = {"key": "old", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "all"}}
    site.path.write_bytes(orjson.dumps(document(sources=[MESSAGES, everywhere])))
    async with building(site.store, site.book) as builder:
        await builder.say("said in one", "one")
        await builder.say("said in two", "two")
    path = f"/contexts/{context_of(site.store, 'two')}/explain?parts=true"
    assert "said in one" in (await site.client.get(path)).text
    narrowed = await site.client.get(path, headers=await site.token(session_id="two"))
    assert "said in two" in narrowed.text and "said in one" not in narrowed.text
    assert narrowed.json()["parts_as_shown"] is False


async def test_a_forged_context_is_not_accepted(site: Site) -> None:
    async with building(site.store, site.book) as builder:
        real = await builder.say("hello", "s")
    forged = dict(real.context) | {"parts": [{"place": "conversation", "items": 7}]}
    forged.pop("session_id", None)
    crumb = await post(site.store, schema="agent.context.v1", context=forged)
    answer = await site.client.get(f"/contexts/{crumb.id}/explain?parts=true")
    assert answer.status_code == 404, answer.text


# The config in force of a broken file, warnings and texts


async def test_a_broken_file_is_listed_with_the_last_valid_text(site: Site) -> None:
    site.book.load()
    good = site.path.read_text()
    assert "in_force_text" not in (await site.configs())["file"]
    site.path.write_text(BROKEN)
    file = (await site.configs())["file"]
    assert file["text"] == BROKEN and file["in_force_text"] == good
    assert [complaint["line"] for complaint in file["complaints"]] == [5, 7]
    site.path.unlink()
    file = (await site.configs())["file"]
    assert "text" not in file and file["in_force_text"] == good


async def test_a_check_returns_warnings_only_about_a_valid_text(site: Site) -> None:
    await post(site.store, "hello", session="s", schema="note.v1")
    odd = text_of(
        sources=[{**MESSAGES, "fetch": {"method": "latest", "limit": 2}}],
        exclude={"schema_names": ["note.v1", "nothing.v1"]},
    )
    checked = await site.check(odd)
    assert checked["ok"] and [one["where"] for one in checked["warnings"]] == [
        "sources.0.fetch.limit", "exclude.schema_names.1",
    ]  # fmt: skip
    assert (await site.check(BROKEN))["warnings"] == []


async def test_a_narrowed_token_learns_no_names_of_other_sessions(site: Site) -> None:
    await post(site.store, "hello", session="other", schema="note.v1")
    narrowed = await site.token(session_id="mine")
    text = text_of(exclude={"schema_names": ["note.v1", "nothing.v1"]})
    checked = await site.call("POST", "/contexts/check", narrowed, json={"text": text})
    assert checked.json()["warnings"] == []
    assert (await site.call("GET", "/contexts/config/values", narrowed)).status_code == 403


async def test_values_for_completion_come_from_the_owner(site: Site) -> None:
    await post(site.store, "hello", session="s", tags=("topic:tea",), schema="note.v1")
    await post(site.store, "hello", session="s", tags=("topic:coffee",), schema="other.v1", owner=uuid4())
    values = (await site.call("GET", "/contexts/config/values")).json()
    assert "note.v1" in values["schemas"] and "other.v1" not in values["schemas"]
    assert values["tags"] == ["topic:tea"]


async def test_a_config_breadcrumb_keeps_its_text_until_its_content_changes(site: Site) -> None:
    text = '{ "$schema": "./x.json",\n\n' + text_of().lstrip("{")
    context = orjson.loads(text) | {"$text": text}
    own = await post(site.store, schema="context.config.v1", context=context)
    (listed,) = (await site.configs())["breadcrumbs"]
    assert listed["holds"] and listed["text"] == text and listed["config"] == orjson.loads(text)
    changed = context | {"formatting": {"max_tokens": 9}}
    await site.client.patch(f"/breadcrumbs/{own.id}", json={"context": changed})
    (listed,) = (await site.configs())["breadcrumbs"]
    assert listed["holds"] and "text" not in listed
