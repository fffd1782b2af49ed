"""Session names with invisible characters: new ones are refused, those of older stores stay usable."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest

from breadcrumbs.adk.http import OPERATIONS as ADK_SESSIONS
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.maintenance import export_import
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store import store as store_module
from tests.http.conftest import Site, problem, running_site
from tests.http.sessions import begin, held, read, say

OVERRIDE = "invoice\u202egpj.exe"
NAMES = [OVERRIDE, "a\u2066b", "a\u200eb", "a\u061cb", "a\x07b", "a\u200bb", "ab\u200dc"]


@pytest.fixture
async def site(embedded_server: EmbeddedServer) -> AsyncIterator[Site]:
    async with running_site(embedded_server.url, extra=ADK_SESSIONS) as site:
        yield site


async def legacy(site: Site, monkeypatch: pytest.MonkeyPatch, name: str = OVERRIDE) -> str:
    """Begin a session with such a name, like an older version."""
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "hidden_character", lambda _: None)
        new = BreadcrumbCreate(
            schema_name="user.message.v1",
            tags=["user:message", f"session:{name}"],
            context={"message": "Hello"},
        )
        return str((await site.store.create(DEVELOPER, new)).id)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["tag", "context", "record", "fork", "token", "adk path", "adk body"])
async def test_a_new_session_name_with_an_invisible_character_is_refused(
    site: Site, how: str, name: str
) -> None:
    await begin(site, id="origin")
    await say(site, "origin", "Hello")
    message: dict[str, Any] = {"schema_name": "user.message.v1", "context": {"message": "x"}}
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "tag": ("/breadcrumbs", {**message, "tags": [f"session:{name}"]}),
        "context": ("/breadcrumbs", {**message, "context": {"message": "x", "session_id": name}}),
        "record": ("/sessions", {"id": name}),
        "fork": ("/sessions/origin/fork", {"id": name}),
        "token": ("/auth/token", {"session_id": name}),
        "adk path": (f"/apps/app/users/ann/sessions/{quote(name)}", {}),
        "adk body": ("/apps/app/users/ann/sessions", {"session_id": name}),
    }
    path, body = requests[how]
    before = await held(site)
    refused = await site.client.post(path, json=body)
    document = problem(refused, 422, "invalid-input")
    hidden = next(character for character in name if not character.isascii() or not character.isprintable())
    assert f"U+{ord(hidden):04X}" in refused.text, document
    assert await held(site) == before


@pytest.mark.parametrize("name", ["a\u202eb", "a\u200bb"])
async def test_a_user_id_with_an_invisible_character_is_refused(site: Site, name: str) -> None:
    for path, body in (
        ("/auth/token", {"user_id": name}),
        ("/sessions", {"user_id": name}),
    ):
        refused = await site.client.post(path, json=body)
        assert f"U+{ord(name[1]):04X}" in problem(refused, 422, "invalid-input")["detail"]


@pytest.mark.parametrize("name", ["a\u202eb", "a\u200bb"])
async def test_a_new_user_tag_with_an_invisible_character_is_refused(site: Site, name: str) -> None:
    clean = (await site.post(tags=["user:ann"]))["id"]
    tags = {"tags": [f"user:{name}"]}
    for method, path, body in (
        ("POST", "/breadcrumbs", tags),
        ("POST", "/sessions/s/messages", {"message": "hi", **tags}),
        ("PATCH", f"/breadcrumbs/{clean}", tags),
    ):
        refused = await site.client.request(method, path, json=body)
        assert f"U+{ord(name[1]):04X}" in problem(refused, 422, "invalid-input")["detail"]
    assert await site.count() == 1


async def test_a_breadcrumb_with_such_a_user_tag_of_an_older_store_can_be_read_and_changed(
    site: Site,
) -> None:
    tags = ["user:a\u202eb"]
    old = await site.store.create(DEVELOPER, BreadcrumbCreate.parse({"tags": tags}))
    path = f"/breadcrumbs/{old.id}"
    for change in ({"title": "new"}, {"tags": [*tags, "more"]}):
        assert (await site.client.patch(path, json=change)).is_success
    assert (await site.client.get(path)).json()["tags"] == [*tags, "more"]


async def test_a_backup_with_such_a_session_can_be_restored(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await legacy(site, monkeypatch)
    line = export_import.encode(await site.store.get(DEVELOPER, UUID(id)))
    await site.store.delete(DEVELOPER, UUID(id))
    await site.store.restore(*export_import.decode(line))
    assert (await read(site, OVERRIDE))["id"] == OVERRIDE


async def test_a_session_of_an_older_store_can_be_read_used_and_deleted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await legacy(site, monkeypatch)
    path = f"/sessions/{quote(OVERRIDE)}"
    assert (await read(site, OVERRIDE))["id"] == OVERRIDE
    listed = (await site.client.get("/sessions")).json()["sessions"]
    assert [session["id"] for session in listed] == [OVERRIDE]
    await say(site, OVERRIDE, "More")
    await site.post(tags=[f"session:{OVERRIDE}"], schema_name="note.v1")
    assert (
        await site.client.patch(f"/breadcrumbs/{id}", json={"title": "new"}, headers={"if-match": '"1"'})
    ).is_success
    assert len((await site.client.get(f"{path}/messages")).json()["messages"]) == 2
    assert (await site.client.get("/breadcrumbs", params={"session_id": OVERRIDE})).json()
    stale = await site.client.delete(path, headers={"if-match": '"999"'})
    problem(stale, 412, "version-mismatch")
    assert (await site.client.delete(path)).is_success
    problem(await site.client.get(path), 404, "not-found")
    problem(await site.client.post("/sessions", json={"id": OVERRIDE}), 422, "invalid-input")


async def test_emoji_in_a_name_are_accepted(site: Site) -> None:
    for name in ("👩\u200d👩\u200d👧 trip", "❤\ufe0f", "été 漢字"):
        await begin(site, id=name)
        assert (await read(site, name))["id"] == name
