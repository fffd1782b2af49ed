"""Joining an answer in progress on the chat page: reload, second window, reasoning and retries."""

from __future__ import annotations

from contextlib import closing

from playwright.async_api import expect

from tests.web.chat import Api, chat_url, new_session_id, say
from tests.web.conftest import ControlledServer, OpenWindow


async def test_a_second_window_shows_the_whole_text_so_far_and_can_stop_it(
    controlled: ControlledServer, open_window: OpenWindow
) -> None:
    controlled.behave("slow_trickle", pause=0.2)
    first = await open_window(chat_url(controlled.url, new_session_id()))
    await say(first, "Hello")
    await expect(first.locator(".draft")).to_contain_text("drip drip drip drip")
    second = await open_window(first.url)
    await expect(second.locator(".draft")).to_contain_text("drip drip drip drip", timeout=2_000)
    assert "…" not in await second.locator(".draft .prose").inner_text()
    await second.get_by_role("button", name="Stop").click()
    await expect(first.locator(".said.agent[aria-label=Stopped]")).to_be_visible(timeout=2_000)


async def test_the_page_shows_why_the_model_is_called_again(
    controlled: ControlledServer, open_window: OpenWindow
) -> None:
    controlled.behave("rate_limited", retry_after="30")
    page = await open_window(chat_url(controlled.url, new_session_id()))
    await say(page, "Hello")
    await expect(page.locator(".retrying")).to_contain_text("too many requests (429)")
    await expect(page.locator(".retrying")).to_contain_text("Attempt 2 in")
    await page.reload()
    await expect(page.locator(".retrying")).to_contain_text("too many requests (429)")


async def test_reasoning_is_folded_above_its_answer(
    controlled: ControlledServer, open_window: OpenWindow
) -> None:
    session = new_session_id()
    with closing(Api(controlled.url)) as api:
        api.post(session, "agent.response.v1", message="The answer.", model_reasoning="I wonder about zebras")
    page = await open_window(chat_url(controlled.url, session))
    await expect(page.locator(".said.agent .prose")).to_have_text("The answer.")
    await expect(page.locator(".reasoning-text")).to_be_hidden()
    await page.get_by_text("Reasoning", exact=True).click()
    await expect(page.locator(".reasoning-text")).to_have_text("I wonder about zebras")
