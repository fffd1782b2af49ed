"""Layout and accessibility of the chat extension."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.web.accessibility import serious
from tests.web.extension_support import Blackboard, Chrome, say


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everything_fits_into_360_pixels(
    chrome: Chrome, board: Blackboard, session: str, scheme: Any
) -> None:
    board.post(session, "user.message.v1", message="unbroken" * 60)
    board.post(session, "agent.response.v1", message=f"`{'x' * 300}`\n```\n{'y' * 300}\n```\n{'z' * 300}")
    board.post(session, "agent.error.v1", error="w" * 300)
    board.post(
        session, "page.content.v1", title="t" * 300, text="v" * 300, url=f"http://{'u' * 200}.example/"
    )
    panel = await chrome.panel(session)
    await panel.emulate_media(color_scheme=scheme)
    await panel.set_viewport_size({"width": 360, "height": 640})
    await expect(panel.locator(".page-card")).to_be_visible()
    for selector in ("html", "#log", ".bar", "#composer"):
        wide = await panel.locator(selector).evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert wide[0] <= wide[1], selector
    assert await panel.locator("#send").bounding_box() is not None
    options = await chrome.page("options.html")
    await options.set_viewport_size({"width": 360, "height": 640})
    assert await options.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_serious(
    chrome: Chrome, board: Blackboard, session: str, scheme: Any
) -> None:
    message = board.post(session, "user.message.v1", message="Hello there")
    board.post(session, "agent.error.v1", error="It broke", trigger_id=message)
    board.post(
        session,
        "agent.response.v1",
        message="# Well\n**Yes** [so](https://example.org)\n\n- `a`\n\n> b\n\n```js\n1\n```",
        trigger_id=message,
    )
    board.post(session, "tool.request.v1", tool="clock", input={"a": 1})
    board.post(session, "page.content.v1", title="A page", text="text", url="http://127.0.0.1/")
    panel = await chrome.panel(session)
    await panel.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    await expect(panel.locator(".page-card")).to_be_visible()
    for fold in await panel.locator("summary").all():
        await fold.click()
    assert await serious(panel) == []
    await panel.get_by_role("button", name="Sessions").click()
    await expect(panel.locator(".session-item").first).to_be_visible()
    assert await serious(panel) == []
    await chrome.configure("http://127.0.0.1:9")
    await panel.keyboard.press("Escape")
    await say(panel, "Is anybody there?")
    await expect(panel.locator("#connection")).to_be_visible()
    assert await serious(panel) == []
    await panel.get_by_role("button", name="New chat", exact=True).click()
    options = await chrome.page("options.html")
    await options.emulate_media(color_scheme=scheme)
    assert await serious(options) == []
