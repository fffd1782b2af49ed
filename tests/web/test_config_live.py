"""The config editor while the config changes elsewhere, its warnings and its completions."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from playwright.async_api import Page, expect

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from tests.client.support import CRUMB, CrumbUp, environment
from tests.support.conversations import eventually
from tests.web.chat import new_session_id
from tests.web.configs import (
    MESSAGES,
    Server,
    config,
    config_url,
    connect_to,
    edit,
    editor_text,
    expect_ready,
    format_json,
    lines,
    run_server,
    save,
    set_cursor,
    text_field,
)
from tests.web.conftest import OpenWindow


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(tmp_path_factory.mktemp("live"), config()) as server:
        yield server


@pytest.fixture
def server(started: Server) -> Server:
    """Server with the original config file."""
    started.file.write_text(format_json(config()))
    started.put(config())
    return started


# --- Changes elsewhere ------------------------------------------------------------------------------------


async def test_an_edit_of_the_file_elsewhere_appears_on_the_open_page(
    server: Server, open_window: OpenWindow
) -> None:
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    server.file.write_text(format_json(config(formatting={"max_tokens": 321})))
    await expect(text_field(page)).to_contain_text('"max_tokens": 321')
    await expect(page.locator(".workbench-head").get_by_text("edited", exact=True)).to_be_hidden()


async def test_a_file_that_is_changed_elsewhere_during_an_edit_is_a_conflict(
    server: Server, open_window: OpenWindow
) -> None:
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    await edit(page, lambda _: format_json(config(formatting={"max_tokens": 222})))
    server.file.write_text(format_json(config(formatting={"max_tokens": 111})))
    await expect(page.get_by_role("alert")).to_contain_text("The file was changed elsewhere")
    await save(page)
    await expect(page.locator(".toast.bad")).to_contain_text("Not saved")
    assert orjson.loads(server.file.read_bytes())["formatting"] == {"max_tokens": 111}
    assert orjson.loads(await editor_text(page))["formatting"] == {"max_tokens": 222}


async def test_a_file_that_is_broken_elsewhere_shows_its_error_and_the_active_config(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("broken")
    server.say(session, "hello")
    page = await open_window(config_url(server.url, session=session))
    await expect_ready(page)
    await expect(lines(page, "same")).to_have_count(1)
    server.file.write_text(format_json(config()).replace('"limit": 10', '"limit": -1', 1))
    alert = page.locator(".workbench-notice.bad")
    await expect(alert).to_contain_text("sources.0.fetch.limit: must be at least 1, not -1")
    await expect(alert).to_contain_text("The last valid config stays active")
    await expect(text_field(page)).to_contain_text('"limit": -1')
    await expect(page.locator(".workbench-head .badge.bad")).to_have_text("not valid")
    await alert.get_by_text("Show the active config").click()
    await expect(alert.locator("pre")).to_have_text(format_json(config()))
    preview = page.locator(".workbench-side")
    await expect(preview).to_contain_text("This is the preview of the active config")
    await expect(preview.locator(".preview-line")).to_have_count(1)
    server.file.write_text(format_json(config()))
    await expect(alert).to_have_count(0)
    # A window that opens while the file is broken shows the same.
    server.file.write_text("{")
    late = await open_window(config_url(server.url, session=session))
    await expect(late.locator(".workbench-notice.bad")).to_contain_text("not JSON")
    await expect(late.locator(".preview-line")).to_have_count(1)


@contextmanager
def running_apart(folder: Path, url: str, file: Path) -> Iterator[str]:
    """Run `crumb serve` and `crumb build-contexts` as two processes. Return the address of the API."""
    settings = environment(CRUMB_REDIS=url, CRUMB_NAMESPACE=f"w{secrets.token_hex(6)}")
    commands = [["serve", "--port", "0"], ["build-contexts", "--context-config", str(file)]]
    processes: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.log").open("wb") as errors:
                processes.append(
                    subprocess.Popen(
                        [CRUMB, *command],
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        cwd=folder,
                        env=settings,
                        text=True,
                    )
                )
        ready = [json.loads(one.stdout.readline()) for one in processes if one.stdout is not None]
        yield ready[0]["url"]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()


async def test_a_server_without_builders_shows_the_config_that_the_builders_use(
    embedded_server: EmbeddedServer, tmp_path: Path, open_window: OpenWindow
) -> None:
    file = tmp_path / "apart.json"
    file.write_text(format_json(config(formatting={"max_tokens": 123})))
    with running_apart(tmp_path, embedded_server.url, file) as url:
        page = await open_window(config_url(url))
        await expect_ready(page)
        await expect(page.locator(".workbench-head h2")).to_have_text("apart.json")
        await expect(page.locator(".workbench-head .badge.good")).to_have_text("active")
        await expect(text_field(page)).to_contain_text('"max_tokens": 123')
        await expect(page.locator(".workbench-note")).to_contain_text(
            "The context builders run in other processes"
        )
        file.write_text(format_json(config(formatting={"max_tokens": 124})))
        await expect(text_field(page)).to_contain_text('"max_tokens": 124')
        file.write_text('{\n  "consumer_id": 7\n}')
        await expect(page.locator(".workbench-notice.bad")).to_contain_text(
            "The last valid config stays active"
        )
        await expect(text_field(page)).to_contain_text('"max_tokens": 124')
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            found = (await client.get("/contexts/configs")).json()
        assert [one["consumer_id"] for one in found["in_force"]] == ["default-chat-assistant"]


# --- Warnings ---------------------------------------------------------------------------------------------


async def test_settings_without_effect_are_marked_and_do_not_prevent_saving(
    server: Server, open_window: OpenWindow
) -> None:
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    latest = MESSAGES | {"fetch": {"method": "latest", "limit": 4}}
    await edit(page, lambda _: format_json(config(consumer_id="nobody", sources=[latest])))
    await expect(page.locator(".json-verdict")).to_contain_text("Valid, 2 warnings")
    told = page.locator(".json-findings li")
    await expect(told.first).to_contain_text("no agent of this server reads the contexts of this consumer")
    await expect(told.last).to_contain_text("sources.0.fetch.limit: no effect")
    await expect(page.locator(".json-code .cm-lintRange-warning").last).to_have_text("4")
    await save(page)
    await expect(page.locator(".toast")).to_contain_text("Saved.")


# --- Completion -------------------------------------------------------------------------------------------


async def type_at(page: Page, text: str, typed: str) -> None:
    """Replace the text of the editor, and type at the position of the bar."""
    await edit(page, lambda _: text.replace("|", ""))
    await page.keyboard.press("Escape")
    await set_cursor(page, text.index("|"))
    await page.keyboard.type(typed, delay=20)


async def test_values_from_the_store_and_the_agents_are_offered_after_a_quote(
    server: Server, open_window: OpenWindow
) -> None:
    server.post("recipe.card.v1", tags=["topic:tea"])
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    await page.wait_for_timeout(300)  # the values are loaded after the editor
    offered = page.locator(".json-code .cm-tooltip-autocomplete li")
    await type_at(page, '{"sources": [{"key": "x", "schema_name": |}]}', '"rec')
    await expect(offered).to_have_text(['"recipe.card.v1"'])
    await page.wait_for_timeout(100)
    await page.keyboard.press("Enter")
    assert '"schema_name": "recipe.card.v1"}' in await editor_text(page)
    await type_at(page, '{"sources": [{"key": "x", "any_tags": [|]}]}', '"')
    await expect(offered.filter(has_text="topic:tea")).to_be_visible()
    await type_at(page, '{"consumer_id": |}', '"')
    await expect(offered).to_have_text(['"default-chat-assistant"'])
    await type_at(page, '{"sources": [{"key": "talk"}], "limits": [{"key": |}]}', '"')
    await expect(offered).to_have_text(['"talk"'])


@pytest.mark.parametrize(
    "text",
    [
        '{"sources": [{"key": |}]}',
        '{"formatting": {"max_tokens": |}}',
        '{"sources": |}',
        '{"formatting": {"max_tokens": 3 |}}',
        '{"exclude": {"tags": ["a" |]}}',
    ],
)
async def test_no_field_is_offered_where_a_value_belongs(
    server: Server, open_window: OpenWindow, text: str
) -> None:
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    offered = page.locator(".json-code .cm-tooltip-autocomplete li")
    await type_at(page, text, "")
    await page.keyboard.press("Control+Space")
    await page.wait_for_timeout(400)
    await expect(offered).to_have_count(0)
    await page.keyboard.type('"', delay=20)
    await page.wait_for_timeout(400)
    await expect(offered).to_have_count(0)


async def test_fields_are_offered_after_a_quote_and_values_after_a_field(
    server: Server, open_window: OpenWindow
) -> None:
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    offered = page.locator(".json-code .cm-tooltip-autocomplete li")
    await type_at(page, '{"sources": [{"key": "x", "fetch": {|}}]}', '"')
    await expect(offered).to_have_text(['"conversation_scope"', '"keep"', '"limit"', '"method"'])
    await page.keyboard.type("conv", delay=20)
    await expect(offered).to_have_text(['"conversation_scope"'])
    await page.wait_for_timeout(100)
    await page.keyboard.press("Enter")
    await expect(offered).to_have_text(['"current"', '"user"', '"all"', "null"])
    await page.wait_for_timeout(100)
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    assert await editor_text(page) == '{"sources": [{"key": "x", "fetch": {"conversation_scope": "user"}}]}'


# --- Breadcrumbs ------------------------------------------------------------------------------------------


async def test_a_config_saved_as_a_breadcrumb_keeps_its_text_and_its_schema(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    consumer = new_session_id("layout")
    own: dict[str, Any] = config(consumer_id=consumer, update_triggers=[{"schema_name": f"x.{consumer}.v1"}])
    text = '{ "$schema": "./mine.json",\n\n\n' + format_json(own).lstrip("{")
    with connect_to(crumb_up, Path("built-in")) as server:
        page = await open_window(config_url(crumb_up.url))
        await expect_ready(page)
        button = page.get_by_role("button", name="Save as breadcrumb")
        await edit(page, lambda _: text.replace('"recent"', '"sometimes"'))
        await expect(page.locator(".json-verdict")).to_contain_text("error")
        await expect(button).to_be_disabled()
        await edit(page, lambda _: text)
        await expect(page.locator(".json-verdict")).to_contain_text("Valid")
        await button.click()
        await expect(page.locator(".workbench-head h2")).to_have_text(consumer)
        (made,) = server.configs_of(consumer)
        assert made["holds"] and made["config"] == own | {"$schema": "./mine.json"}
        again = await open_window(config_url(crumb_up.url, made["id"]))
        await expect_ready(again)
        assert await editor_text(again) == text
        server.client.delete(f"/breadcrumbs/{made['id']}")


# --- Users ------------------------------------------------------------------------------------------------


async def test_a_person_can_try_a_config_as_a_user_in_development_mode(
    server: Server, open_window: OpenWindow
) -> None:
    user = new_session_id("ann")
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    await page.get_by_role("button", name="Try as user").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox").fill(user)
    await dialog.get_by_role("button", name="Start session").click()
    await page.wait_for_url("**/#/chat/**")
    (session,) = server.client.get("/sessions", params={"user_id": user}).json()["sessions"]
    assert session["id"] in page.url
    await page.get_by_role("textbox", name="Message").fill("remember the tea")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("remember the tea").first).to_be_visible()
    wanted = {"schema_name": "user.message.v1", "tag": f"user:{user}"}

    async def is_stored() -> bool:  # the page shows a message before it is stored
        return len(server.client.get("/breadcrumbs", params=wanted).json()) == 1

    await eventually(is_stored, "the message of the user is not stored")


async def test_the_preview_shows_how_a_page_is_cut(server: Server, open_window: OpenWindow) -> None:
    session = new_session_id("cut")
    page_text = "A sentence about zebras. " * 200
    pages = {"key": "pages", "schema_name": "page.content.v1", "max_tokens": 50}
    tags = [f"session:{session}"]
    server.post("page.content.v1", title="Zebras", tags=tags, context={"text": page_text})
    server.say(session, "hello")
    page = await open_window(config_url(server.url, session=session))
    await expect_ready(page)
    limits = [{"key": "conversation", "limit": 5}]
    changed = config(sources=[*config()["sources"], pages], limits=limits)
    await edit(page, lambda _: format_json(changed))
    added = lines(page, "in")
    await expect(added).to_contain_text("Zebras")
    await expect(added).to_contain_text(f"of {len(page_text):,} characters")
