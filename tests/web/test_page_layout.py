"""The page on narrow screens, and controls that must not cover or move other content."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Locator, expect

from tests.client.support import CrumbUp
from tests.web import configs, watching
from tests.web.accessibility import serious
from tests.web.chat import Api, answers, chat_url, expect_connected, new_session_id, said, say
from tests.web.conftest import OpenWindow

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}}
LONG_CODE = "```python\n" + "name = " + " + ".join(f"argument_{n}" for n in range(40)) + "\n```"
AGENT = {"agent_id": "default-chat-assistant"}


async def box(locator: Locator) -> dict[str, float]:
    found = await locator.bounding_box()
    assert found is not None
    return {"x": found["x"], "y": found["y"], "width": found["width"], "height": found["height"]}


async def test_a_phone_shows_all_pages_the_name_of_the_agent_and_a_full_size_sessions_button(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    page = await open_window(chat_url(crumb_up.url, session), **PHONE)
    await say(page, "a message with a title that is longer than the header of a phone is wide, by far")
    await expect(answers(page)).to_have_count(1)
    api.name(session, "a title that is longer than the header of a phone is wide, by far and more")
    await expect(page.locator(".chat-title")).to_contain_text("a title that is longer")
    button = await box(page.get_by_role("button", name="Show sessions"))
    assert button["width"] >= 32 and button["height"] >= 32
    for name in ("Chat", "Blackboard", "Config", "Agents", "Feedback", "Usage", "Operations"):
        link = page.locator(".bar nav").get_by_role("link", name=name, exact=True)
        await expect(link.locator(".icon")).to_be_visible()
        place = await box(link)
        assert place["x"] >= 0 and place["x"] + place["width"] <= 390
        assert place["width"] >= 28 and place["height"] >= 32, name
    await expect(page.locator(".bar nav .name:visible")).to_have_text(["Chat"])
    await expect(page.locator(".said.agent .facts")).to_contain_text("default-chat-assistant")
    await expect(page.locator(".said.agent .facts span").first).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    assert await serious(page) == []


async def test_no_page_is_wider_than_a_phone(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(chat_url(crumb_up.url), **PHONE)
    names = {
        "chat": "Chat",
        "board": "Blackboard",
        "config": "Config",
        "agents": "Agents",
        "feedback": "Feedback",
        "usage": "Usage",
        "operations": "Operations",
    }
    for place, name in names.items():
        await page.goto(f"{crumb_up.url}/#/{place}")
        await expect(page.locator(".bar nav .name:visible")).to_have_text([name])
        await page.wait_for_timeout(500)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, place
        last = await box(page.locator(".bar > :last-child:visible, .bar > button:visible").last)
        assert last["x"] + last["width"] <= 390, place


@pytest.mark.parametrize("width", [390, 1280])
async def test_a_toast_does_not_cover_the_composer(
    crumb_up: CrumbUp, open_window: OpenWindow, width: int
) -> None:
    viewport = {"width": width, "height": 800}
    page = await open_window(chat_url(crumb_up.url, new_session_id()), viewport=viewport)
    await say(page, "Hello!")
    await expect(answers(page)).to_have_count(1)
    await page.get_by_role("button", name="Session actions").click()
    await page.get_by_role("menuitem", name="Fork").click()
    toast = page.locator(".toast")
    await expect(toast).to_contain_text("Session forked.")
    place, head, composer = (
        await box(toast),
        await box(page.locator(".chat-head")),
        await box(page.locator("#composer")),
    )
    assert head["y"] + head["height"] <= place["y"]
    assert place["y"] + place["height"] < composer["y"]


async def test_labels_of_figures_stay_on_one_line(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(f"{crumb_up.url}/#/operations")
    for width in (390, 1280, 1440):
        await page.set_viewport_size({"width": width, "height": 800})
        await expect(page.locator(".ops-tile dt")).to_have_count(8)
        heights = await page.locator(".ops-tile dt").evaluate_all("all => all.map(one => one.offsetHeight)")
        assert max(heights) < 1.5 * min(heights), width


async def test_long_code_can_be_scrolled_and_shows_that_it_continues(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    api.post(session, "agent.response.v1", "agent:response", message=LONG_CODE, creator=AGENT)
    page = await open_window(chat_url(crumb_up.url, session), **PHONE)
    code = page.locator(".prose pre")
    sizes = await code.evaluate("e => [e.scrollWidth, e.clientWidth, getComputedStyle(e).overflowX]")
    assert sizes[0] > sizes[1] and sizes[2] == "auto"
    # Two covers move with the text, and two shadows stay. They show an edge where the text continues.
    style = await code.evaluate("e => getComputedStyle(e).backgroundAttachment")
    assert style == "local, local, scroll, scroll"


async def test_the_scroll_button_covers_nothing(crumb_up: CrumbUp, open_window: OpenWindow, api: Api) -> None:
    session = new_session_id()
    for number in range(30):
        api.post(session, "agent.response.v1", "agent:response", message=f"line {number}", creator=AGENT)
    page = await open_window(chat_url(crumb_up.url, session), **PHONE)
    await expect(answers(page).last).to_have_text("line 29")
    frame = page.locator(".chat-frame")
    await frame.evaluate("e => { e.scrollTop = e.scrollHeight - e.clientHeight - 300 }")
    button = page.get_by_role("button", name="Scroll down")
    await expect(button).to_be_visible()
    above, place, below = await box(frame), await box(button), await box(page.locator(".composer"))
    assert above["y"] + above["height"] <= place["y"] and place["y"] + place["height"] <= below["y"]
    await button.click()
    await expect(button).to_have_count(0)
    await expect(answers(page).last).to_be_in_viewport()


async def test_actions_have_the_same_order_below_messages_and_answers(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(crumb_up.url, new_session_id()))
    await say(page, "Hello!")
    await expect(answers(page)).to_have_count(1)
    for kind in ("user", "agent"):
        parts = page.locator(f".said.{kind}")
        places = [
            (await box(parts.locator(what)))["x"]
            for what in ("[aria-label=Copy]", "[aria-label='Fork from here']", "time")
        ]
        assert places == sorted(places), kind


async def test_times_stay_on_one_line(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(chat_url(crumb_up.url, new_session_id()), locale="en-US", **PHONE)
    await say(page, "Hello!")
    await expect(answers(page)).to_have_count(1)
    shown = page.locator(".said time")
    assert await shown.count() == 2
    for one in await shown.all():
        # Even where there is no room for it.
        await one.evaluate("e => { e.parentElement.style.width = '2rem' }")
        assert await one.evaluate("e => e.getBoundingClientRect().height") < 30


async def test_an_edit_does_not_move_the_editor(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    for size in ({"width": 1280, "height": 800}, PHONE["viewport"]):
        page = await open_window(configs.config_url(crumb_up.url), viewport=size)
        editor = page.locator(".json-text")
        await expect(page.locator(".cm-content")).to_be_visible()
        await expect(page.locator(".json-verdict")).to_contain_text("Valid")
        before = await box(editor)
        await page.locator(".cm-content").press("End")
        await page.keyboard.type(" ")
        await expect(page.get_by_role("button", name="Discard edits")).to_be_enabled()
        after = await box(editor)
        assert (after["x"], after["y"], after["width"]) == (before["x"], before["y"], before["width"])


async def test_the_board_shows_the_context_of_each_turn_after_a_reload(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    session = new_session_id("turns")
    page = await open_window(chat_url(crumb_up.url, session))
    await expect_connected(page)
    for number in range(3):
        await say(page, f"question {number}")
        await expect(answers(page)).to_have_count(number + 1)
    await expect(said(page)).to_have_count(3)
    await page.goto(watching.board(crumb_up.url, session=session))
    await page.reload()
    contexts = watching.cards(page, "context")
    await expect(contexts).to_have_count(3)
    kinds = await page.locator(".board-card").evaluate_all("cards => cards.map(card => card.dataset.kind)")
    assert [kind for kind in kinds if kind in ("message", "context", "answer")] == [
        "message",
        "context",
        "answer",
    ] * 3
