"""Why did it say that? The panel beside an answer, in a real Chromium, against a real `crumb up`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from tests.web import chat
from tests.web.accessibility import serious
from tests.web.chat import a_session
from tests.web.configs import ANSWERS, EVIL, MESSAGES, Server, config, serving
from tests.web.conftest import OpenWindow

NOTES: dict[str, Any] = {"key": "notes", "all_tags": ["note"], "fetch": {"method": "recent", "limit": 5}}
TOOLS: dict[str, Any] = {"key": "prices", "schema_name": "price.list.v1", "fetch": {"method": "latest"}}
AGAIN: dict[str, Any] = MESSAGES | {"key": "again"}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("why"), config()) as server:
        server.post("price.list.v1", title="Prices", context={"apples": {"kilo": 2}})
        yield server


@pytest.fixture
def server(started: Server) -> Server:
    started.put(config())
    return started


async def ask_why(page: Page, answer: int = -1) -> Locator:
    buttons = page.get_by_role("button", name="Why did it say that?")
    await expect(buttons.first).to_be_visible()
    await buttons.nth(answer).click()
    panel = page.locator(".chat-why")
    await expect(panel.locator("#why-in")).to_be_visible()
    return panel


def shown(panel: Locator) -> Locator:
    return panel.locator(".why-item")


async def test_each_item_says_what_the_model_read_and_why_it_is_in(
    server: Server, open_window: OpenWindow
) -> None:
    server.put(config(sources=[MESSAGES, ANSWERS, NOTES, TOOLS]))
    session = a_session("why")
    server.say(session, "first of all")
    server.post(
        "remark.v1",
        title="A remark",
        tags=["note", f"session:{session}"],
        context={"message": "not too sweet"},
    )
    explained = server.explain(server.say(session, "and then?"))
    page = await open_window(chat.at(server.url, session))
    panel = await ask_why(page)
    await expect(panel.get_by_role("heading", name="Why did it say that?")).to_be_focused()
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

    bar = panel.get_by_role("meter", name="Tokens of the budget")
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


async def test_what_was_left_out_is_listed_with_its_reason(server: Server, open_window: OpenWindow) -> None:
    session = a_session("out")
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
    page = await open_window(chat.at(server.url, session))
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


async def test_an_older_answer_shows_the_context_that_it_was_made_from_and_not_the_newest(
    server: Server, open_window: OpenWindow
) -> None:
    session = a_session("older")
    for text in ("one", "two", "three"):
        server.say(session, text)
    page = await open_window(chat.at(server.url, session))
    panel = await ask_why(page, 0)
    await expect(panel.locator(".why-about")).to_contain_text("version 1")
    await expect(shown(panel)).to_have_count(1)
    await expect(shown(panel)).to_contain_text("one")
    await page.get_by_role("button", name="Why did it say that?").nth(2).click()
    await expect(panel.locator(".why-about")).to_contain_text("version 3")
    await expect(shown(panel)).to_have_count(5)


async def test_a_long_text_is_folded_and_shown_whole_on_request(
    server: Server, open_window: OpenWindow
) -> None:
    session = a_session("long")
    text = "word " * 150 + "the very end"
    server.say(session, text)
    page = await open_window(chat.at(server.url, session))
    panel = await ask_why(page)
    await expect(shown(panel)).not_to_contain_text("the very end")
    await shown(panel).get_by_role("button", name="Show all").click()
    await expect(shown(panel).locator(".why-text")).to_have_text(text)


async def test_what_others_wrote_is_shown_as_text(server: Server, open_window: OpenWindow) -> None:
    session = a_session("evil")
    tag = "note"
    server.put(config(sources=[MESSAGES, NOTES], exclude={"schema_names": [EVIL[:40]]}))
    server.post("remark.v1", title=EVIL, tags=[tag, f"session:{session}"], context={EVIL: [EVIL]})
    server.post(EVIL[:40], title=EVIL, tags=[tag, f"session:{session}"])
    server.say(session, EVIL)
    page = await open_window(chat.at(server.url, session))
    panel = await ask_why(page)
    await expect(shown(panel).filter(has_text="being answered").locator(".why-text")).to_have_text(EVIL)
    await expect(shown(panel).filter(has_text="remark.v1").locator(".why-who")).to_have_text(EVIL)
    await expect(shown(panel).filter(has_text="remark.v1").locator(".json")).to_contain_text("<img src=x")
    await expect(panel.locator(".why-out li")).to_contain_text(EVIL)
    assert await panel.locator("img, script").count() == 0
    assert await page.title() != "broken into"


async def test_an_answer_whose_context_is_gone_or_never_was_says_so(
    server: Server, open_window: OpenWindow
) -> None:
    session = a_session("gone")
    answer = server.say(session, "hello")
    server.client.delete(f"/breadcrumbs/{answer['context']['context_id']}")
    page = await open_window(chat.at(server.url, session))
    await page.get_by_role("button", name="Why did it say that?").click()
    await expect(page.locator(".chat-why").get_by_role("alert")).to_contain_text("is gone")
    await page.keyboard.press("Escape")

    server.post("agent.response.v1", tags=[f"session:{session}"], context={"message": "out of the blue"})
    await expect(page.get_by_role("button", name="Why did it say that?")).to_have_count(2)
    await page.get_by_role("button", name="Why did it say that?").last.click()
    await expect(page.locator(".chat-why")).to_contain_text("This answer names no context")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1300, "light")])
async def test_axe_finds_nothing_serious_and_the_keyboard_comes_back(
    server: Server, open_window: OpenWindow, width: int, scheme: str
) -> None:
    session = a_session("axe")
    server.put(config(sources=[MESSAGES, ANSWERS, TOOLS, AGAIN], formatting={"max_tokens": 60}))
    server.say(session, "far too long " * 30)
    server.say(session, "short")
    page = await open_window(
        chat.at(server.url, session),
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
    await expect(page.get_by_role("button", name="Why did it say that?").last).to_be_focused()


async def test_the_panel_leads_to_the_config_and_the_session_in_the_editor(
    server: Server, open_window: OpenWindow
) -> None:
    session = a_session("lead")
    server.say(session, "hello")
    page = await open_window(chat.at(server.url, session))
    panel = await ask_why(page)
    await panel.get_by_role("link", name="default-chat-assistant").click()
    await expect(page.locator(".config-head h2")).to_have_text("context.json")
    await expect(page.get_by_label("Session")).to_have_value(session)
    await expect(page.locator(".preview-line")).to_have_count(1)
