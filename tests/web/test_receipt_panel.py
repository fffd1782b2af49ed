"""The complete prompt in the panel "Why this answer?", in a real Chromium with a real `crumb up`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.async_api import Locator, Page, expect

from tests.web import chat
from tests.web.accessibility import serious
from tests.web.chat import new_session_id
from tests.web.configs import Server, config, run_server
from tests.web.conftest import OpenWindow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(tmp_path_factory.mktemp("receipts"), config()) as server:
        yield server


async def open_receipt(page: Page) -> Locator:
    await page.get_by_role("button", name="Why this answer?").last.click()
    receipt = page.locator(".receipt")
    await expect(receipt.get_by_role("heading", name="Complete prompt")).to_be_visible()
    return receipt


async def test_the_panel_counts_system_prompt_tools_and_items(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("receipt")
    answer = server.say(session, "what is 3*7?")
    receipt = server.receipt(answer)
    tokens = receipt["tokens"]
    assert tokens["total"] == tokens["system_prompt"] + tokens["tools"] + tokens["items"] > tokens["items"]
    page = await open_window(chat.chat_url(server.url, session))
    shown = await open_receipt(page)
    table = re.sub(r"\s+", " ", await shown.locator(".receipt-tokens").inner_text())
    assert f"System prompt {tokens['system_prompt']} token" in table
    assert f"{len(receipt['prompt']['tools'])} tools {tokens['tools']:,} token" in table
    assert f"Total {tokens['total']:,} token" in table
    assert "Window of the model unknown" in table
    await shown.locator(".receipt-system summary").click()
    await expect(shown.locator(".receipt-system")).to_contain_text(receipt["prompt"]["system_prompt"])
    await shown.locator(".receipt-tools summary").click()
    await expect(shown.locator(".receipt-tools")).to_contain_text("calculator")
    await shown.locator(".receipt-calls summary").click()
    await expect(shown.locator(".receipt-calls li")).to_have_count(2)
    assert await serious(page) == []


async def test_a_click_verifies_the_answer(server: Server, open_window: OpenWindow) -> None:
    session = new_session_id("verify")
    server.say(session, "hello")
    page = await open_window(chat.chat_url(server.url, session))
    shown = await open_receipt(page)
    await shown.get_by_role("button", name="Verify").click()
    await expect(shown.get_by_role("status")).to_contain_text("Equal")


async def test_an_edited_answer_is_marked(server: Server, open_window: OpenWindow) -> None:
    session = new_session_id("edited")
    answer = server.say(session, "hello")
    context = {**answer["context"], "message": "never said", "content": "never said"}
    server.client.patch(f"/breadcrumbs/{answer['id']}", json={"context": context}).raise_for_status()
    page = await open_window(chat.chat_url(server.url, session))
    shown = await open_receipt(page)
    await shown.get_by_role("button", name="Verify").click()
    await expect(shown.get_by_role("status")).to_contain_text("The text was edited since")


async def test_the_sections_of_the_panel_are_one_click_away(server: Server, open_window: OpenWindow) -> None:
    session = new_session_id("sections")
    for number in range(6):
        server.say(session, f"hello {number}")
    page = await open_window(chat.chat_url(server.url, session), viewport={"width": 390, "height": 700})
    await open_receipt(page)
    sections = page.get_by_role("navigation", name="Sections")
    for name in ("Replay", "Complete prompt", "Left out", "Included"):
        heading = page.locator(".why h3").filter(has_text=name)
        await sections.get_by_role("button", name=name).click()
        await expect(heading).to_be_in_viewport(ratio=1)
        await expect(heading).to_be_focused()
    assert await serious(page) == []


async def test_the_prompt_of_an_agent_without_a_context_lists_its_items(
    server: Server, open_window: OpenWindow
) -> None:
    session, agent = new_session_id("plain"), "agent-without-a-context"
    selectors = [{"schema_name": "user.message.v1", "all_tags": [f"session:{session}"]}]
    context = {"agent_id": agent, "model": "offline", "subscriptions": {"selectors": selectors}}
    server.post("agent.def.v1", context=context)
    page = await open_window(chat.chat_url(server.url, session))
    await chat.say(page, "hello")
    answer = page.get_by_label("Answer").filter(has_text=agent)
    await answer.get_by_role("button", name="Why this answer?").click()
    items = page.locator(".receipt-items")
    await items.locator("summary").click()
    await expect(items.locator("li")).to_contain_text("hello")
    await expect(page.locator(".chat-why")).to_contain_text("has no context")
