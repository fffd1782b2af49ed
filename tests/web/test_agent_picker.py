"""The agent of a session on the chat page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.client.support import CrumbUp
from tests.web.accessibility import serious
from tests.web.chat import answers, chat_url, say
from tests.web.conftest import MakeCrumbUp, OpenWindow

ASSISTANT, POET = "default-chat-assistant", "poet-with-a-rather-long-name"
CURATOR, WRITER = "curator-key-0123456789", "writer-key-0123456789"
SCREENSHOTS = os.environ.get("CRUMB_SCREENSHOTS")
"""Folder for pictures, for people who look at them. The test does not need it."""


def post_agent(up: CrumbUp, agent_id: str = POET, **headers: str) -> str:
    triggers = [{"schema_name": "user.message.v1"}]
    context: dict[str, Any] = {
        "agent_id": agent_id,
        "description": "Writes poems.",
        "model": "offline",
        "subscriptions": {"selectors": triggers},
    }
    document = {"schema_name": "agent.def.v1", "title": agent_id, "tags": [], "context": context}
    reply = httpx.post(f"{up.url}/breadcrumbs", json=document, headers=headers, trust_env=False)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


def delete_agent(up: CrumbUp, id: str) -> None:
    assert httpx.delete(f"{up.url}/breadcrumbs/{id}", trust_env=False).status_code == 200


async def expect_answers_of(page: Page, *agents: str) -> None:
    await expect(answers(page)).to_have_count(len(agents))
    for number, agent in enumerate(agents):
        await expect(page.locator(".said.agent[aria-label=Answer] .facts").nth(number)).to_contain_text(agent)


async def picture(page: Page, name: str) -> None:
    if SCREENSHOTS:
        await page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


async def test_one_agent_needs_no_picker(make_crumb_up: MakeCrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(chat_url(make_crumb_up().url))
    await expect(page.get_by_label("Model")).to_be_visible()
    await expect(page.get_by_label("Agent", exact=True)).to_have_count(0)
    await expect(page.locator(".answered-by")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_a_curator_chooses_the_agent_and_the_composer_names_it(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow, width: int, scheme: str
) -> None:
    up = make_crumb_up()
    definition = post_agent(up)
    page = await open_window(chat_url(up.url), viewport={"width": width, "height": 800}, color_scheme=scheme)
    picker, line = page.get_by_label("Agent", exact=True), page.locator(".answered-by")
    await expect(picker).to_have_value("")
    await expect(line).to_have_text(f"{POET} answers.")
    await say(page, "Hello")
    await expect_answers_of(page, POET)  # the built-in assistant leaves the message to it
    await picker.select_option(ASSISTANT)
    await expect(line).to_have_text(f"{ASSISTANT} answers.")
    await say(page, "And you?")
    await expect_answers_of(page, POET, ASSISTANT)
    await picker.select_option(POET)
    await expect(line).to_have_text(f"{POET} answers.")
    await say(page, "And now?")
    await expect_answers_of(page, POET, ASSISTANT, POET)
    await expect(picker).to_be_in_viewport(ratio=1)
    await expect(page.get_by_label("Model")).to_be_in_viewport(ratio=1)
    assert await serious(page) == []
    await picture(page, f"chosen-{width}-{scheme}")
    other = await open_window(page.url)
    await expect(other.get_by_label("Agent", exact=True)).to_have_value(POET)
    delete_agent(up, definition)
    await page.wait_for_timeout(700)  # runners cache definitions for half a second
    await say(page, "Still there?")
    await expect(page.get_by_label("Error")).to_contain_text(POET)
    await expect(line).to_contain_text("is not available")
    await expect(picker).to_have_value(POET)
    assert await serious(page) == []
    await picture(page, f"missing-{width}-{scheme}")
    await picker.select_option("")
    await expect(line).to_have_count(0)
    await expect(picker).to_have_count(0)
    await page.get_by_role("button", name="Retry").click()
    await expect_answers_of(page, POET, ASSISTANT, POET, ASSISTANT)


async def test_the_picker_appears_when_a_new_agent_answers(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    page = await open_window(chat_url(up.url))
    await say(page, "Hello")
    await expect(answers(page)).to_have_count(1)
    post_agent(up)
    await page.wait_for_timeout(700)  # runners cache definitions for half a second
    await say(page, "And now?")
    await expect(page.get_by_label("Agent", exact=True)).to_be_visible()


async def test_an_agent_can_be_chosen_before_the_first_message(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    post_agent(up)
    page = await open_window(chat_url(up.url))
    await page.locator("#composer").fill("Half a mess")
    await page.get_by_label("Agent", exact=True).select_option(ASSISTANT)
    await expect(page.get_by_text("No messages yet.")).to_be_visible()
    await expect(page.locator("#composer")).to_have_value("Half a mess")
    await say(page, "Hello")
    await expect_answers_of(page, ASSISTANT)
    await page.wait_for_timeout(500)
    await expect_answers_of(page, ASSISTANT)


@pytest.mark.parametrize("width", [1280, 390])
async def test_a_role_that_cannot_choose_sees_the_agent_and_the_reason(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow, width: int
) -> None:
    keys = [
        {"key": WRITER, "owner_id": str(DEVELOPER), "roles": ["emitter", "subscriber"]},
        {"key": CURATOR, "owner_id": str(DEVELOPER)},
    ]
    up = make_crumb_up(CRUMB_API_KEYS=json.dumps(keys))
    definition = post_agent(up, **{"x-api-key": CURATOR})
    page = await open_window("about:blank", viewport={"width": width, "height": 800})
    await page.add_init_script(f"sessionStorage.setItem('crumb.credential', {json.dumps(WRITER)})")
    await page.goto(chat_url(up.url))
    await say(page, "Hello")
    await expect_answers_of(page, POET)
    await expect(page.get_by_label("Agent", exact=True)).to_be_disabled()
    await expect(page.locator(".agent-picker")).to_have_attribute(
        "title", "Choosing an agent requires the role curator."
    )
    await expect(page.locator(".agent-picker")).to_be_in_viewport(ratio=1)
    async with httpx.AsyncClient(base_url=up.url, headers={"x-api-key": CURATOR}, trust_env=False) as curator:
        session = page.url.rpartition("/")[2]
        assert (await curator.patch(f"/sessions/{session}", json={"agent": POET})).status_code == 200
        assert (await curator.delete(f"/breadcrumbs/{definition}")).status_code == 200
    await page.reload()
    await expect(page.locator(".answered-by")).to_contain_text("A curator can choose another agent.")
