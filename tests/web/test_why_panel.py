"""The "Why this answer?" panel, in a real Chromium with a real `crumb up`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from tests.web import chat
from tests.web.accessibility import serious
from tests.web.chat import new_session_id
from tests.web.configs import ANSWERS, INJECTION, MESSAGES, Server, config, run_server
from tests.web.conftest import OpenWindow

NOTES: dict[str, Any] = {"key": "notes", "all_tags": ["note"], "fetch": {"method": "recent", "limit": 5}}
TOOLS: dict[str, Any] = {"key": "prices", "schema_name": "price.list.v1", "fetch": {"method": "latest"}}
AGAIN: dict[str, Any] = MESSAGES | {"key": "again"}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(tmp_path_factory.mktemp("why"), config()) as server:
        server.post("price.list.v1", title="Prices", context={"apples": {"kilo": 2}})
        yield server


@pytest.fixture
def server(started: Server) -> Server:
    started.put(config())
    return started


async def ask_why(page: Page, answer: int = -1) -> Locator:
    buttons = page.get_by_role("button", name="Why this answer?")
    await expect(buttons.first).to_be_visible()
    await buttons.nth(answer).click()
    panel = page.locator(".chat-why")
    await expect(panel.locator("#why-in")).to_be_visible()
    return panel


def shown(panel: Locator) -> Locator:
    return panel.locator(".why-item")


async def test_each_item_shows_its_text_its_source_and_its_tokens(
    server: Server, open_window: OpenWindow
) -> None:
    server.put(config(sources=[MESSAGES, ANSWERS, NOTES, TOOLS]))
    session = new_session_id("why")
    server.say(session, "first of all")
    server.post(
        "remark.v1",
        title="A remark",
        tags=["note", f"session:{session}"],
        context={"message": "not too sweet"},
    )
    explained = server.explain(server.say(session, "and then?"))
    page = await open_window(chat.chat_url(server.url, session))
    panel = await ask_why(page)
    await expect(panel.get_by_role("heading", name="Why this answer?")).to_be_focused()
    await expect(shown(panel)).to_have_count(len(explained["items"]))
    for item, card in zip(explained["items"], await shown(panel).all(), strict=True):
        told = re.sub(r"\s+", " ", await card.inner_text())
        assert item["source"] in told and item["schema_name"] in told
        assert f"{item['tokens']} token" in told
        assert ("being answered" in told) == item.get("is_trigger", False)
    await expect(shown(panel).filter(has_text="not too sweet")).to_contain_text(
        "note"
    )  # the tag that matched
    await expect(shown(panel).filter(has_text="first of all").first).to_contain_text("2nd newest of 2 found")
    await expect(shown(panel).filter(has_text="price.list.v1")).to_contain_text("shared")
    await expect(shown(panel).filter(has_text="price.list.v1")).to_contain_text('"kilo": 2')

    bar = panel.get_by_role("meter", name="Token budget")
    await expect(bar).to_have_attribute("aria-valuenow", str(explained["tokens"]))
    await expect(bar).to_have_attribute("aria-valuemax", "4000")
    await expect(bar).to_have_attribute(
        "aria-valuetext", re.compile(rf"^{explained['tokens']} of 4,000 tokens")
    )
    parts = await bar.locator(".budget-part").evaluate_all("all => all.map(one => one.style.width)")
    share = sum(float(width.removesuffix("%")) for width in parts)
    assert share == pytest.approx(100 * explained["tokens"] / 4000, abs=0.1)
    await panel.locator(".why-sources summary").click()
    await expect(panel.locator(".why-sources")).to_contain_text(
        "the newest 10 of user.message.v1 in this session"
    )


async def test_omitted_items_are_listed_with_their_reason(server: Server, open_window: OpenWindow) -> None:
    session = new_session_id("out")
    server.put(
        config(
            sources=[MESSAGES, ANSWERS, NOTES, AGAIN],
            exclude={"schema_names": ["draft.v1"]},
            formatting={"max_tokens": 60},
        )
    )
    server.post("draft.v1", title="a draft of mine", tags=["note", f"session:{session}"])
    server.say(session, "far too long " * 30)
    server.say(session, "short")
    explained = server.explain(server.say(session, "shorter"))
    assert {out["reason"] for out in explained["left_out"]} == {"over budget", "excluded", "duplicate"}
    page = await open_window(chat.chat_url(server.url, session))
    panel = await ask_why(page)
    for reason, what in (
        ("over budget", "far too long"),
        ("excluded", "a draft of mine"),
        ("duplicate", "short"),
    ):
        group = panel.locator(".why-out").filter(has=page.locator(".badge", has_text=reason))
        expected = [out for out in explained["left_out"] if out["reason"] == reason]
        await expect(group.locator("li")).to_have_count(len(expected))
        await expect(group).to_contain_text(what)
    await expect(panel.locator("#why-out .badge")).to_have_text(str(len(explained["left_out"])))


async def test_an_older_answer_shows_the_version_of_its_own_context(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("older")
    for text in ("one", "two", "three"):
        server.say(session, text)
    page = await open_window(chat.chat_url(server.url, session))
    panel = await ask_why(page, 0)
    await expect(panel.locator(".why-about")).to_contain_text("version 1")
    await expect(shown(panel)).to_have_count(1)
    await expect(shown(panel)).to_contain_text("one")
    await page.get_by_role("button", name="Why this answer?").nth(2).click()
    await expect(panel.locator(".why-about")).to_contain_text("version 3")
    await expect(shown(panel)).to_have_count(5)


async def test_a_long_text_is_folded_and_shown_in_full_on_request(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("long")
    text = "word " * 150 + "the very end"
    server.say(session, text)
    page = await open_window(chat.chat_url(server.url, session))
    panel = await ask_why(page)
    await expect(shown(panel)).not_to_contain_text("the very end")
    await shown(panel).get_by_role("button", name="Show all").click()
    await expect(shown(panel).locator(".why-text")).to_have_text(text)


async def test_foreign_content_is_shown_as_text(server: Server, open_window: OpenWindow) -> None:
    session = new_session_id("evil")
    tag = "note"
    server.put(config(sources=[MESSAGES, NOTES], exclude={"schema_names": [INJECTION[:40]]}))
    server.post(
        "remark.v1", title=INJECTION, tags=[tag, f"session:{session}"], context={INJECTION: [INJECTION]}
    )
    server.post(INJECTION[:40], title=INJECTION, tags=[tag, f"session:{session}"])
    server.say(session, INJECTION)
    page = await open_window(chat.chat_url(server.url, session))
    panel = await ask_why(page)
    await expect(shown(panel).filter(has_text="being answered").locator(".why-text")).to_have_text(INJECTION)
    await expect(shown(panel).filter(has_text="remark.v1").locator(".why-who")).to_have_text(INJECTION)
    await expect(shown(panel).filter(has_text="remark.v1").locator(".json")).to_contain_text("<img src=x")
    await expect(panel.locator(".why-out li")).to_contain_text(INJECTION)
    assert await panel.locator("img, script").count() == 0
    assert await page.title() != "broken into"


async def test_an_answer_with_a_deleted_or_missing_context_reports_it(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("gone")
    answer = server.say(session, "hello")
    server.client.delete(f"/breadcrumbs/{answer['context']['context_id']}")
    page = await open_window(chat.chat_url(server.url, session))
    await page.get_by_role("button", name="Why this answer?").click()
    await expect(page.locator(".chat-why").get_by_role("alert")).to_contain_text("was deleted")
    await page.keyboard.press("Escape")

    server.post("agent.response.v1", tags=[f"session:{session}"], context={"message": "out of the blue"})
    await expect(page.get_by_role("button", name="Why this answer?")).to_have_count(2)
    await page.get_by_role("button", name="Why this answer?").last.click()
    await expect(page.locator(".chat-why")).to_contain_text("This answer has no context")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1300, "light")])
async def test_axe_finds_nothing_serious_and_closing_restores_the_focus(
    server: Server, open_window: OpenWindow, width: int, scheme: str
) -> None:
    session = new_session_id("axe")
    server.put(config(sources=[MESSAGES, ANSWERS, TOOLS, AGAIN], formatting={"max_tokens": 60}))
    server.say(session, "far too long " * 30)
    server.say(session, "short")
    page = await open_window(
        chat.chat_url(server.url, session),
        viewport={"width": width, "height": 780},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    panel = await ask_why(page)
    await expect(panel.locator(".why-out").first).to_be_attached()
    assert await serious(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    overflowing = await panel.evaluate("panel => panel.scrollWidth > panel.clientWidth + 1")
    assert not overflowing
    await page.keyboard.press("Escape")
    await expect(panel).to_have_count(0)
    await expect(page.get_by_role("button", name="Why this answer?").last).to_be_focused()


async def test_the_panel_links_to_the_config_and_the_session_in_the_editor(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("lead")
    server.say(session, "hello")
    page = await open_window(chat.chat_url(server.url, session))
    panel = await ask_why(page)
    await panel.get_by_role("link", name="default-chat-assistant").click()
    await expect(page.locator(".workbench-head h2")).to_have_text("context.json")
    await expect(page.get_by_label("Session")).to_have_value(session)
    await expect(page.locator(".preview-line")).to_have_count(1)
