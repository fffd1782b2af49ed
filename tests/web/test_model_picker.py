"""The model of a session on the chat page."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect

from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.client.support import CrumbUp
from tests.support.model_server import ModelServer
from tests.web.accessibility import serious
from tests.web.chat import answers, chat_url, say
from tests.web.conftest import ControlledServer, MakeCrumbUp, OpenWindow


async def test_the_welcome_page_explains_how_to_get_a_real_model(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(crumb_up.url))
    hint = page.locator(".offline-hint")
    await expect(hint).to_contain_text("crumb up --model ollama:llama3.2")
    await expect(page.get_by_label("Model")).to_be_disabled()
    assert await serious(page) == []


async def test_a_real_model_needs_no_explanation(
    controlled: ControlledServer, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(controlled.url))
    await expect(page.get_by_label("Model")).to_have_text("test")
    await expect(page.locator(".offline-hint")).to_have_count(0)


async def test_a_curator_chooses_a_model_and_each_answer_shows_its_own(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    with ModelServer() as server:
        big = server.scenario("normal", text="I am big.")
        up = make_crumb_up(CRUMB_MODELS=json.dumps({"offered": [f"{big.url}#big", "openai:gpt-4.1-mini"]}))
        page = await open_window(chat_url(up.url))
        picker = page.get_by_label("Model")
        await say(page, "Hello")
        await expect(answers(page)).to_have_count(1)
        await expect(page.locator(".answer-model")).to_have_text(["offline"])
        await expect(picker).to_be_enabled()
        await expect(picker.get_by_role("option", name="openai:gpt-4.1-mini")).to_be_disabled()
        await picker.select_option("big")
        await say(page, "And now?")
        await expect(page.locator(".answer-model")).to_have_text(["offline", "big"])
        await expect(answers(page).last).to_have_text("I am big.")
        assert await serious(page) == []
        await page.reload()
        await expect(picker).to_have_value("big")
        other = await open_window(page.url)
        await expect(other.get_by_label("Model")).to_have_value("big")
        await picker.select_option("")
        await expect(other.get_by_label("Model")).to_have_value("")


async def test_a_model_can_be_chosen_before_the_first_message(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    with ModelServer() as server:
        big = server.scenario("normal", text="I am big.")
        up = make_crumb_up(CRUMB_MODELS=json.dumps({"offered": [f"{big.url}#big"]}))
        page = await open_window(chat_url(up.url))
        await page.get_by_label("Model").select_option("big")
        await expect(page.get_by_text("No messages yet.")).to_be_visible()
        await say(page, "Hello")
        await expect(page.locator(".answer-model")).to_have_text(["big"])


@pytest.mark.parametrize("width", [1280, 390])
async def test_a_role_that_cannot_choose_sees_the_model_and_the_reason(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow, width: int
) -> None:
    key = "writer-key-0123456789"
    keys = [{"key": key, "owner_id": str(DEVELOPER), "roles": ["emitter", "subscriber"]}]
    up = make_crumb_up(
        CRUMB_API_KEYS=json.dumps(keys), CRUMB_MODELS=json.dumps({"aliases": {"house": "offline"}})
    )
    page = await open_window("about:blank", viewport={"width": width, "height": 800})
    await page.add_init_script(f"sessionStorage.setItem('crumb.credential', {json.dumps(key)})")
    await page.goto(chat_url(up.url))
    await say(page, "Hello")
    await expect(answers(page)).to_have_count(1)
    picker = page.get_by_label("Model")
    await expect(picker).to_be_disabled()
    await expect(page.locator(".model-picker")).to_have_attribute(
        "title", "Choosing a model requires the role curator."
    )
    await expect(page.locator(".model-picker")).to_be_in_viewport(ratio=1)
