"""The section "Replay" of the panel "Why this answer?", in a real Chromium with a real `crumb up`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.client.support import CrumbUp
from tests.support.model_server import ModelServer
from tests.web.accessibility import serious
from tests.web.chat import answers, chat_url, say
from tests.web.conftest import MakeCrumbUp, OpenWindow

TEXT = "Berlin is the capital of Germany, with about 3.7 million people.\n\nIt is on the river Spree."


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def up(make_crumb_up: MakeCrumbUp, models: ModelServer) -> CrumbUp:
    """A server with the offline model, another one, and one that refuses each request."""
    big, broken = models.scenario("normal", text=TEXT), models.scenario("unauthorized")
    return make_crumb_up(
        CRUMB_MODELS=json.dumps({"offered": [f"{big.url}#big", f"{broken.url}#broken"], "retries": 0})
    )


async def opened(page: Page, *questions: str) -> Locator:
    """Ask some questions and open the panel of the last answer. Return the section."""
    for number, question in enumerate(questions, start=1):
        await say(page, question)
        await expect(answers(page)).to_have_count(number)
    await page.get_by_role("button", name="Why this answer?").last.click()
    section = page.locator(".replay")
    await expect(section.get_by_role("heading", name="Replay")).to_be_visible()
    return section


def replay_button(section: Locator) -> Locator:
    return section.get_by_role("button", name="Replay", exact=True)


async def shoot(page: Page, section: Locator, name: str) -> None:
    """Save a picture if `PICTURES` names a folder."""
    if folder := os.environ.get("PICTURES"):
        await section.scroll_into_view_if_needed()
        await page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_both_answers_are_shown_with_their_tokens(
    up: CrumbUp, open_window: OpenWindow, width: int, scheme: str
) -> None:
    page = await open_window(chat_url(up.url), viewport={"width": width, "height": 900}, color_scheme=scheme)
    section = await opened(page, "Hello", "What is the capital of Germany?")
    await section.get_by_label("Model").select_option("big")
    await section.get_by_label("Times").select_option("2")
    await replay_button(section).click()
    both = section.locator(".replay-answer")
    await expect(both).to_have_count(2)
    await expect(both.first).to_contain_text("Original")
    await expect(both.first).to_contain_text("What is the capital of Germany?")
    await expect(both.last).to_contain_text("Replay, 2 of 2")
    await expect(both.last).to_contain_text("It is on the river Spree.")
    await expect(both.last).to_contain_text("tokens")
    await expect(section).to_contain_text("same answer 0 of 2 times")
    left, right = await both.first.bounding_box(), await both.last.bounding_box()
    assert left is not None and right is not None
    assert (left["y"] == right["y"]) == (width == 1280), "side by side only where there is room"
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await both.last.scroll_into_view_if_needed()
    await shoot(page, both.last, f"replay-{width}-{scheme}")
    assert await serious(page) == []
    await page.reload()
    await expect(answers(page)).to_have_count(2)  # nothing was added to the session


async def test_an_edited_config_and_a_failing_model(up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(chat_url(up.url))
    section = await opened(page, "First words", "Second words")
    await replay_button(section).click()
    await expect(section).to_contain_text("Same request, same answer.")
    await section.get_by_label("Use another config").check()
    field = section.get_by_label("Config", exact=True)
    await expect(field).to_have_value(re.compile("consumer_id"))
    await shoot(page, section, "replay-config")
    text = json.loads(await field.input_value())
    one = text[0] if isinstance(text, list) else text
    source = {"key": "conversation", "schema_name": "user.message.v1", "fetch": {"limit": 1}}
    changed = {name: one[name] for name in ("consumer_id", "update_triggers")} | {"sources": [source]}
    await field.fill(json.dumps(changed))
    await replay_button(section).click()
    await expect(section).to_contain_text("Different request")
    await field.fill('{"consumer_id": 5}')
    await replay_button(section).click()
    await expect(section.get_by_role("alert")).to_contain_text("config.consumer_id")
    await field.fill("{")
    await replay_button(section).click()
    await expect(section.get_by_role("alert")).to_contain_text("not JSON")
    await section.get_by_label("Use another config").uncheck()
    await section.get_by_label("Model").select_option("broken")
    await replay_button(section).click()
    await expect(section.locator(".replay-answer").last.locator(".notice")).to_be_visible()
    await shoot(page, section, "replay-failed")
    assert await serious(page) == []


async def test_a_role_that_may_not_replay_sees_the_reason(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    key = "writer-key-0123456789"
    keys = [{"key": key, "owner_id": str(DEVELOPER), "roles": ["emitter", "subscriber"]}]
    up = make_crumb_up(CRUMB_API_KEYS=json.dumps(keys))
    page = await open_window("about:blank")
    await page.add_init_script(f"sessionStorage.setItem('crumb.credential', {json.dumps(key)})")
    await page.goto(chat_url(up.url))
    section = await opened(page, "Hello")
    await expect(replay_button(section)).to_be_disabled()
    await expect(section).to_contain_text("requires the role curator")
