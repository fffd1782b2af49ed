"""The config editor in a real Chromium, with a real `crumb up`."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from playwright.async_api import Page, Route, expect

from tests.client.support import CrumbUp
from tests.web import chat
from tests.web.accessibility import serious
from tests.web.chat import new_session_id
from tests.web.configs import (
    ANSWERS,
    INJECTION,
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
    with run_server(tmp_path_factory.mktemp("configs"), config()) as server:
        yield server


@pytest.fixture
def server(started: Server) -> Server:
    """Server with the original config file."""
    started.put(config())
    return started


def limited(limit: int) -> dict[str, Any]:
    """Return a config with this limit of messages and of answers."""
    fetch = {"method": "recent", "limit": limit}
    return config(sources=[MESSAGES | {"fetch": fetch}, ANSWERS | {"fetch": fetch}])


# --- Editing ----------------------------------------------------------------------------------------------


async def test_an_edit_is_previewed_and_applies_to_the_next_context(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("edit")
    for text in ("apples", "bananas", "cherries"):
        server.say(session, text)
    page = await open_window(config_url(server.url, session=session))
    await expect_ready(page)
    await expect(page.locator(".preview-sum")).to_have_text("No changes")
    await expect(lines(page, "same")).to_have_count(5)

    await edit(page, lambda text: text.replace('"limit": 10', '"limit": 1'))
    await expect(lines(page, "out")).to_have_count(3)
    await expect(lines(page, "out").first).to_contain_text("Removed: User apples")
    await expect(lines(page, "out").first.locator(".preview-mark")).to_have_text("−")
    await expect(page.locator(".preview-sum")).to_contain_text("−3 removed")
    assert orjson.loads(server.file.read_bytes()) == config()  # a preview writes nothing

    await save(page)
    await expect(page.get_by_role("status").filter(has_text="Saved.")).to_be_visible()
    assert orjson.loads(server.file.read_bytes()) == limited(1)
    await expect(page.locator(".preview-sum")).to_have_text("No changes")
    explained = server.explain(server.say(session, "dates"))
    assert [item["excerpt"] for item in explained["items"] if item["schema_name"] == "user.message.v1"] == [
        "dates"
    ]
    assert explained["config"] == server.client.get("/contexts/config").json()["configs"][0]["digest"]

    # A higher limit adds omitted items again.
    await edit(page, lambda text: text.replace('"limit": 1', '"limit": 3'))
    await page.get_by_role("button", name="Refresh").click()
    came = lines(page, "in").filter(has_text="Added: User bananas")
    await expect(came.locator(".preview-mark")).to_have_text("+")
    await page.get_by_role("button", name="Discard edits").click()
    await page.get_by_role("dialog").get_by_role("button", name="Discard edits").click()
    assert orjson.loads(await editor_text(page)) == limited(1)


async def test_an_invalid_edit_is_refused_with_its_line_and_changes_nothing(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("broken")
    server.say(session, "one")
    before = server.file.read_bytes()
    page = await open_window(config_url(server.url, session=session))
    await expect_ready(page)
    await expect(lines(page, "same")).to_have_count(1)
    await edit(page, lambda text: text.replace('"limit": 10', '"limit": -1', 1))
    line = next(
        n for n, text in enumerate((await editor_text(page)).splitlines(), 1) if '"limit": -1' in text
    )
    told = page.locator(".json-findings li")
    await expect(told).to_have_count(1)
    await expect(told).to_contain_text(f"Line {line}, column")
    await expect(told).to_contain_text("sources.0.fetch.limit: must be at least 1, not -1")
    marked = page.locator(".json-code .cm-lintRange-error")
    await expect(marked).to_have_text("-1")
    await expect(page.locator(".preview.stale")).to_be_visible()
    save = page.get_by_role("button", name="Save", exact=True)
    await expect(save).to_be_disabled()
    await expect(save).to_have_attribute("title", "Correct the errors first")

    await text_field(page).press("ControlOrMeta+End")
    await page.keyboard.press("ControlOrMeta+s")
    await expect(page.locator(".toast.bad")).to_contain_text("Not saved: the config has 1 error.")
    await expect(page.locator(".json-code .cm-activeLineGutter").first).to_have_text(str(line))
    assert server.file.read_bytes() == before
    explained = server.explain(server.say(session, "two"))
    assert len(explained["items"]) == 3

    await edit(page, lambda text: text.replace('"limit": -1', '"limit": ', 1))
    await expect(told).to_contain_text("not JSON")
    await text_field(page).press("ControlOrMeta+End")
    await told.get_by_role("button").click()
    await expect(text_field(page)).to_be_focused()
    await edit(page, lambda text: text.replace('"limit": ', '"limit": 10', 1))
    await expect(page.locator(".json-verdict")).to_contain_text("Valid")
    await expect(told).to_have_count(0)


async def test_typed_text_is_kept_and_triggers_no_shortcuts(server: Server, open_window: OpenWindow) -> None:
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    await text_field(page).press("ControlOrMeta+End")
    typed = "?gc n/w " + "".join(f"{number} " for number in range(20))
    await page.keyboard.type(typed, delay=2)
    assert (await editor_text(page)).endswith(typed)
    assert "#/config" in page.url
    await expect(page.get_by_role("dialog")).to_have_count(0)
    # A visit to another page keeps the edit and marks it.
    await page.get_by_role("link", name="Blackboard").click()
    await page.get_by_role("link", name="Config").click()
    await expect(page.locator(".json-code[data-ready]")).to_be_visible()
    assert (await editor_text(page)).endswith(typed)
    await expect(page.locator(".workbench-list a").first).to_contain_text("edited")


async def test_field_names_and_values_are_completed_from_the_schema(
    server: Server, open_window: OpenWindow
) -> None:
    server.put(config(formatting={"max_tokens": 500}))
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    await edit(page, lambda text: text.replace('"formatting"', '\n  "formatting"'))
    place = (await editor_text(page)).index('\n  "formatting"')
    await set_cursor(page, place)
    await page.keyboard.type('"out')
    offered = page.locator(".json-code .cm-tooltip-autocomplete li")
    await expect(offered).to_have_text(['"output"'])
    await expect(page.locator(".json-code .cm-completionInfo")).to_contain_text(
        "The breadcrumb that stores a context."
    )
    await page.wait_for_timeout(100)  # CodeMirror ignores keys for completions that have just appeared
    await page.keyboard.press("Enter")
    await page.keyboard.type(",")
    await expect(page.locator(".json-verdict")).to_contain_text("Valid")
    assert orjson.loads(await editor_text(page))["output"] == {}
    method = (await editor_text(page)).index('"recent"') + 2
    await set_cursor(page, method)
    await page.keyboard.press("Control+Space")
    await expect(offered).to_have_text(['"recent"', '"latest"', '"event_data"'])


async def test_the_second_of_two_editors_gets_a_conflict_and_overwrites_nothing(
    server: Server, open_window: OpenWindow
) -> None:
    first, second = await open_window(config_url(server.url)), await open_window(config_url(server.url))
    for page in (first, second):
        await expect_ready(page)
    await edit(first, lambda _: format_json(config(formatting={"max_tokens": 111})))
    await edit(second, lambda _: format_json(config(formatting={"max_tokens": 222})))
    await save(first)
    await expect(first.locator(".toast")).to_contain_text("Saved.")
    await save(second)
    await expect(second.locator(".toast.bad")).to_contain_text("another user has saved this config")
    assert orjson.loads(server.file.read_bytes())["formatting"] == {"max_tokens": 111}
    assert orjson.loads(await editor_text(second))["formatting"] == {"max_tokens": 222}
    await second.get_by_role("button", name="Keep mine").click()
    await save(second)
    await expect(second.locator(".toast", has_text="Saved.")).to_be_visible()
    assert orjson.loads(server.file.read_bytes())["formatting"] == {"max_tokens": 222}


async def test_the_preview_can_select_one_of_several_configs_in_a_file(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("several")
    server.say(session, "one")
    server.say(session, "two")
    brief = limited(1) | {"consumer_id": "brief"}
    server.put([config(), brief])
    page = await open_window(config_url(server.url, session=session))
    await expect_ready(page)
    await expect(lines(page, "same")).to_have_count(3)
    await page.get_by_label("Consumer").select_option("brief")
    await expect(lines(page, "same")).to_have_count(2)


# --- Configs that are breadcrumbs -------------------------------------------------------------------------


async def test_an_edit_of_a_built_in_config_becomes_a_breadcrumb(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    """The consumer is unused, because other tests share this server."""
    consumer = new_session_id("consumer")
    session = new_session_id("override")
    own = config(consumer_id=consumer, update_triggers=[{"schema_name": f"test.{consumer}.v1"}])
    with connect_to(crumb_up, Path("built-in")) as server:
        for _ in range(3):
            server.post(f"test.{consumer}.v1", tags=[f"session:{session}"])
        page = await open_window(config_url(crumb_up.url, session=session))
        await expect_ready(page)
        await expect(page.locator(".workbench-effect")).to_contain_text("Edits are saved as a breadcrumb")
        await edit(page, lambda _: format_json(own))
        await page.get_by_role("button", name="Save as breadcrumb").click()
        await expect(page.locator(".workbench-head h2")).to_have_text(consumer)
        await expect(page.locator(".workbench-head .badge.good")).to_have_text("active")
        (made,) = server.configs_of(consumer)
        assert made["config"] == own and made["holds"] and made["version"] == 1

        await expect_ready(page)
        await edit(page, lambda _: format_json([own]))
        await expect(page.locator(".json-findings li")).to_contain_text("a breadcrumb contains one config")
        await expect(page.locator(".workbench-head").get_by_role("button", name="Save")).to_be_disabled()
        await edit(page, lambda _: format_json(own | {"formatting": {"max_tokens": 77}}))
        await expect_ready(page)
        await save(page)
        await expect(page.locator(".workbench-effect")).to_contain_text("Version 2")
        assert server.configs_of(consumer)[0]["config"]["formatting"] == {"max_tokens": 77}

        # A concurrent change is reported at once, and neither text is lost.
        await edit(page, lambda text: text.replace("77", "88"))
        server.change(made["id"], context=own | {"formatting": {"max_tokens": 66}})
        await expect(page.get_by_role("alert")).to_contain_text("Another user has saved this config")
        await save(page)
        await expect(
            page.locator(".toast.bad", has_text="another user has saved this config")
        ).to_be_visible()
        assert server.configs_of(consumer)[0]["config"]["formatting"] == {"max_tokens": 66}
        await page.get_by_role("button", name="Use theirs").click()
        await expect(text_field(page)).to_contain_text('"max_tokens": 66')

        await page.get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(page.locator(".workbench-list")).not_to_contain_text(consumer)
        assert server.configs_of(consumer) == []


async def test_an_edit_of_a_deleted_config_can_be_saved_as_a_new_one(
    server: Server, open_window: OpenWindow
) -> None:
    consumer = new_session_id("deleted")
    own = config(consumer_id=consumer)
    id = server.post("context.config.v1", title=consumer, tags=["context:config"], context=own)
    page = await open_window(config_url(server.url, id))
    await expect_ready(page)
    await edit(page, lambda _: format_json(own | {"formatting": {"max_tokens": 77}}))
    server.client.delete(f"/breadcrumbs/{id}").raise_for_status()
    await expect(page.get_by_role("alert")).to_contain_text("This config was deleted")
    await expect(page.locator(".workbench-list").get_by_text("Deleted", exact=True)).to_be_visible()
    await expect_ready(page)
    await save(page)
    await expect(page.locator(".toast", has_text="Saved.")).to_be_visible()
    await expect(page.locator(".workbench-head .badge.good")).to_have_text("active")
    [made] = server.configs_of(consumer)
    assert made["id"] != id and made["config"]["formatting"] == {"max_tokens": 77}
    server.client.delete(f"/breadcrumbs/{made['id']}").raise_for_status()


async def test_a_config_with_a_lost_confirmation_is_stored_once(
    server: Server, open_window: OpenWindow
) -> None:
    consumer = new_session_id("once")
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    await page.get_by_role("button", name="New config").click()
    await expect_ready(page)
    await edit(page, lambda _: format_json(config(consumer_id=consumer)))
    await expect_ready(page)

    async def lose(route: Route) -> None:
        await route.fetch()
        await route.abort()

    await page.route("**/breadcrumbs", lose)
    await save(page)
    await expect(page.locator(".toast.bad")).to_be_visible()
    await page.unroute("**/breadcrumbs")
    await save(page)
    await expect(page.locator(".toast", has_text="Saved.")).to_be_visible()
    [made] = server.configs_of(consumer)
    server.client.delete(f"/breadcrumbs/{made['id']}").raise_for_status()


async def test_a_late_response_does_not_restore_the_text_before_a_save(
    server: Server, open_window: OpenWindow
) -> None:
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    asked, enough, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        reply = await route.fetch()
        if not asked.is_set():
            asked.set()
            await enough.wait()
            await route.fulfill(response=reply)
            over.set()
        else:
            await route.fulfill(response=reply)

    await page.route("**/contexts/configs", late)
    await page.evaluate("window.dispatchEvent(new Event('focus'))")
    await asked.wait()
    await edit(page, lambda _: format_json(limited(3)))
    await expect_ready(page)
    await save(page)
    await expect(page.locator(".toast", has_text="Saved.")).to_be_visible()
    await page.wait_for_timeout(500)  # the read after the save has completed
    enough.set()
    await over.wait()
    await page.wait_for_timeout(300)
    assert orjson.loads(await editor_text(page)) == limited(3)


async def test_a_new_config_starts_from_a_template_and_can_be_discarded(
    server: Server, open_window: OpenWindow
) -> None:
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    await page.get_by_role("button", name="New config").click()
    await expect(page.locator(".workbench-head h2")).to_have_text("New config")
    await expect_ready(page)
    assert orjson.loads(await editor_text(page))["consumer_id"] == "my-agent"
    await page.get_by_role("button", name="Discard").click()
    await page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    await expect(page.locator(".workbench-head h2")).to_have_text("context.json")
    assert server.client.get("/contexts/configs").json()["breadcrumbs"] == []


# --- Safety and accessibility -----------------------------------------------------------------------------


async def test_foreign_content_is_shown_as_text(server: Server, open_window: OpenWindow) -> None:
    session = new_session_id("evil")
    server.say(session, INJECTION)
    server.client.patch(f"/sessions/{session}", json={"title": INJECTION})
    crumb = server.post("context.config.v1", title=INJECTION, context=config(consumer_id=INJECTION))
    page = await open_window(config_url(server.url, session=session))
    await expect_ready(page)
    await expect(lines(page, "same").first).to_contain_text(INJECTION)
    await expect(page.locator(".workbench-list li").last).to_contain_text(INJECTION)
    await expect(page.get_by_label("Session").locator("option", has_text="<img").first).to_be_attached()
    await page.locator(".workbench-list li a").last.click()
    await expect(page.locator(".workbench-head h2")).to_have_text(INJECTION)
    await edit(page, lambda text: text.replace("{", f"{{{json.dumps(INJECTION)}: 1,", 1))
    await expect(page.locator(".json-findings")).to_contain_text("img src=x")
    await expect(text_field(page)).to_contain_text("<img src=x")
    assert await page.locator("main img, main script").count() == 0
    assert await page.title() == "Config · Breadcrumbs"
    server.client.delete(f"/breadcrumbs/{crumb}")


async def test_the_editor_has_its_styles_and_is_loaded_on_demand(
    server: Server, open_window: OpenWindow
) -> None:
    """The policy allows no style elements. `open_window` fails the test if one was refused."""
    loaded = "performance.getEntriesByType('resource').map(entry => entry.name).join(' ')"
    page = await open_window(chat.chat_url(server.url))
    await expect(page.locator("#composer")).to_be_visible()
    assert "codemirror" not in await page.evaluate(loaded)
    await page.get_by_role("link", name="Config").click()
    await expect_ready(page)
    assert "codemirror" in await page.evaluate(loaded)
    scroller = page.locator(".json-code .cm-scroller")
    assert await scroller.evaluate("element => getComputedStyle(element).display") == "flex"
    assert "mono" in await scroller.evaluate("element => getComputedStyle(element).fontFamily")
    assert await page.locator("style").count() == 0


async def break_config(page: Page) -> None:
    await edit(page, lambda text: text.replace('"limit": 10', '"limit": 0').replace("sources", "sourcs"))
    await expect(page.locator(".json-findings li").first).to_be_visible()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1300, "light")])
async def test_axe_finds_nothing_serious(
    server: Server, open_window: OpenWindow, width: int, scheme: str
) -> None:
    session = new_session_id("axe")
    for text in ("one", "two", "three"):
        server.say(session, text)
    page = await open_window(
        config_url(server.url, session=session),
        viewport={"width": width, "height": 780},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    await expect_ready(page)
    await edit(page, lambda text: text.replace('"limit": 10', '"limit": 1', 1))
    small = width < 700
    if small:
        assert await serious(page) == []
        await page.get_by_role("button", name="Preview").click()
    await expect(lines(page, "out")).to_have_count(2)
    assert await serious(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    if small:
        await page.get_by_role("button", name="Edit", exact=True).click()
    await break_config(page)
    assert await serious(page) == []


async def test_the_keyboard_can_enter_and_leave_the_editor_and_save(
    server: Server, open_window: OpenWindow
) -> None:
    page = await open_window(config_url(server.url))
    await expect_ready(page)
    for _ in range(30):
        await page.keyboard.press("Tab")
        if await text_field(page).evaluate("field => field.getRootNode().activeElement === field"):
            break
    await expect(text_field(page)).to_be_focused()
    await page.keyboard.press("ControlOrMeta+Home")
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("Enter")
    assert re.match(r"\{\s*\n\s*\n", await editor_text(page))
    await page.keyboard.press("ControlOrMeta+s")
    await expect(page.locator(".toast")).to_contain_text("Saved.")
    assert re.match(r"\{\s*\n\s*\n", server.file.read_text())
    await page.keyboard.press("Tab")
    await expect(text_field(page)).not_to_be_focused()


async def test_a_token_without_permission_to_edit_gets_an_error(
    server: Server, open_window: OpenWindow
) -> None:
    reply = server.client.post("/auth/token", json={"session_id": "one"})
    page = await open_window("about:blank")
    await page.add_init_script(f"sessionStorage.setItem('crumb.credential', '{reply.json()['token']}')")
    await page.goto(config_url(server.url))
    await expect(page.get_by_role("alert")).to_contain_text(
        "narrowed to a session or a user: use another token"
    )
