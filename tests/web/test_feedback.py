"""Thumbs below answers, and the feedback page, in a real Chromium with a real `crumb up`."""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from tests.client.support import CrumbUp
from tests.web.accessibility import serious
from tests.web.chat import answers, chat_url, new_session_id, say
from tests.web.conftest import MakeCrumbUp, OpenWindow

GOOD, BAD = "Good answer", "Bad answer"
INJECTION = "<img src=x onerror=alert(1)>"


class Ratings:
    """Reads and writes feedback over HTTP."""

    def __init__(self, url: str, **headers: str) -> None:
        self._client = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60)

    def close(self) -> None:
        self._client.close()

    def ask(self, session: str, text: str) -> str:
        reply = self._client.post(
            f"/sessions/{session}/messages", params={"wait": 30}, json={"message": text}
        )
        assert reply.status_code == 200, reply.text
        return str(reply.json()["answer"]["id"])

    def rate(self, answer: str, rating: str, note: str = "") -> dict[str, Any]:
        reply = self._client.put(f"/breadcrumbs/{answer}/feedback", json={"rating": rating, "note": note})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def in_session(self, session: str) -> list[tuple[str, str | None]]:
        reply = self._client.get("/feedback", params={"session_id": session}).raise_for_status()
        return [(one["rating"], one.get("note")) for one in reply.json()["feedback"]]


async def test_an_answer_is_rated_with_a_note_and_the_rating_survives_a_reload(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    session = new_session_id("rate")
    page = await open_window(chat_url(crumb_up.url, session))
    await say(page, "Hello")
    await expect(answers(page)).to_have_count(1)
    await page.get_by_role("button", name=BAD).click()
    await expect(page.get_by_role("button", name=BAD)).to_have_attribute("aria-pressed", "true")
    note = page.get_by_label("Note on your feedback")
    await expect(note).to_be_focused()
    await note.fill(f"Too short. {INJECTION}")
    await page.get_by_role("button", name="Save note").click()
    await expect(page.locator(".feedback-note")).to_have_text(f"Your note: Too short. {INJECTION}")
    with closing(Ratings(crumb_up.url)) as ratings:
        assert ratings.in_session(session) == [("down", f"Too short. {INJECTION}")]
        await page.reload()
        await expect(page.get_by_role("button", name=BAD)).to_have_attribute("aria-pressed", "true")
        await expect(page.get_by_role("button", name=GOOD)).to_have_attribute("aria-pressed", "false")
        await page.get_by_role("button", name=GOOD).click()
        await expect(page.get_by_role("button", name=GOOD)).to_have_attribute("aria-pressed", "true")
        assert ratings.in_session(session) == [("up", f"Too short. {INJECTION}")], "the note is kept"
        await page.get_by_role("button", name=GOOD).click()
        await expect(page.get_by_role("button", name=GOOD)).to_have_attribute("aria-pressed", "false")
        await expect(page.locator(".feedback-note")).to_have_count(0)
        assert ratings.in_session(session) == []


async def test_an_answer_is_rated_with_the_keyboard(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    session = new_session_id("keys")
    with closing(Ratings(crumb_up.url)) as ratings:
        ratings.ask(session, "Hello")
        page = await open_window(chat_url(crumb_up.url, session))
        await page.get_by_role("button", name=GOOD).focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("Note on your feedback")).to_be_focused()
        await page.keyboard.type("Fine")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("indeed")
        await page.keyboard.press("Enter")
        await expect(page.locator(".feedback-note")).to_have_text("Your note: Fine\nindeed")
        assert ratings.in_session(session) == [("up", "Fine\nindeed")]
        await page.get_by_role("button", name="Edit note").focus()
        await page.keyboard.press("Enter")
        await page.keyboard.type(" changed")
        await page.keyboard.press("Escape")
        await expect(page.get_by_label("Note on your feedback")).to_have_count(0)
        assert ratings.in_session(session) == [("up", "Fine\nindeed")]


async def test_a_rating_on_another_device_is_shown_at_once(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    session = new_session_id("devices")
    with closing(Ratings(crumb_up.url)) as ratings:
        answer = ratings.ask(session, "Hello")
        page = await open_window(chat_url(crumb_up.url, session))
        await expect(answers(page)).to_have_count(1)
        ratings.rate(answer, "up", "From elsewhere.")
        await expect(page.locator(".feedback-note")).to_have_text("Your note: From elsewhere.")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_thumbs_and_the_note_fit_and_are_accessible(
    crumb_up: CrumbUp, open_window: OpenWindow, width: int, scheme: str
) -> None:
    session = new_session_id("fit")
    with closing(Ratings(crumb_up.url)) as ratings:
        ratings.ask(session, "Hello")
    page = await open_window(
        chat_url(crumb_up.url, session),
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        has_touch=width < 500,
    )
    await page.get_by_role("button", name=BAD).click()
    await expect(page.get_by_label("Note on your feedback")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("Save note", "Close"):
        box = await page.get_by_role("button", name=name, exact=True).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
    assert await serious(page) == []


async def test_the_feedback_page_lists_disliked_answers_with_links_and_counts(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    with closing(Ratings(up.url)) as ratings:
        liked = ratings.ask("one", "What is good?")
        disliked = ratings.ask("two", f"What is bad? {INJECTION}")
        ratings.rate(liked, "up")
        found = ratings.rate(disliked, "down", f"Wrong. {INJECTION}")
    page = await open_window(f"{up.url}/#/feedback")
    entries = page.locator(".fb-entry")
    await expect(entries).to_have_count(1)
    await expect(entries).to_contain_text(f"Wrong. {INJECTION}")
    await expect(entries).to_contain_text(f"What is bad? {INJECTION}")
    await expect(page.locator(".fb-total")).to_have_text("1 up 1 down")
    tables = page.locator(".fb-table")
    await expect(tables.nth(0)).to_contain_text(re.compile(rf"{found['config'][:12]}\s*1\s*1"))
    await expect(tables.nth(1)).to_contain_text("default-chat-assistant")
    await expect(tables.nth(2)).to_contain_text("offline")
    assert await serious(page) == []
    config = entries.get_by_role("link", name="Config")
    assert found["config"] in (await config.get_attribute("href") or "")

    await page.get_by_label("Rating").select_option("All ratings")
    await expect(entries).to_have_count(2)
    await page.get_by_label("Rating").select_option("Liked")
    await expect(entries).to_contain_text("What is good?")
    await page.locator(".fb-table").nth(2).get_by_role("button", name="offline").click()
    await expect(page.locator(".fb-filters .tag")).to_contain_text("offline")
    await expect(entries).to_have_count(1)
    await page.reload()
    await expect(page.locator(".fb-filters .tag")).to_contain_text("offline")
    await page.locator(".fb-filters .tag").click()
    await expect(page.locator(".fb-filters .tag")).to_have_count(0)

    await page.goto(f"{up.url}/#/feedback")
    await entries.get_by_role("link", name="Why this answer?").click()
    await expect(page.locator(".chat-why")).to_be_visible()
    await expect(page.locator(f'[data-id="{disliked}"]')).to_be_in_viewport()

    await page.goto(f"{up.url}/#/feedback")
    await entries.get_by_role("link", name="Replay").click()
    await expect(page.locator(".chat-why .replay").get_by_role("heading")).to_be_focused()
    await expect(page.locator(".chat-why .replay").get_by_role("button", name="Replay")).to_be_in_viewport()


async def test_the_newest_answer_shows_its_thumbs_without_a_pointer(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(crumb_up.url, new_session_id("newest")))
    for number in (1, 2):
        await say(page, f"Hello {number}")
        await expect(answers(page)).to_have_count(number)
    thumbs = page.get_by_role("button", name=GOOD)
    await expect(thumbs.last).to_have_css("opacity", "1")
    await expect(thumbs.first).to_have_css("opacity", "0.001")


@pytest.mark.parametrize("width", [1280, 390])
async def test_the_feedback_page_fits_and_is_accessible(
    crumb_up: CrumbUp, open_window: OpenWindow, width: int
) -> None:
    with closing(Ratings(crumb_up.url)) as ratings:
        ratings.rate(ratings.ask(new_session_id("page"), "x" * 300), "down", "y" * 500)
    page = await open_window(f"{crumb_up.url}/#/feedback", viewport={"width": width, "height": 800})
    await expect(page.locator(".fb-entry").first).to_be_visible()
    await expect(page.locator(".fb-counts")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    assert await page.locator(".fb-page").evaluate("(page) => page.scrollWidth <= page.clientWidth")
    assert await serious(page) == []


async def test_an_empty_feedback_page_and_a_failed_request_explain_themselves(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(f"{crumb_up.url}/#/feedback?model=no-such-model")
    await expect(page.locator(".fb-inside")).to_contain_text("No answers were rated with these filters.")
    await page.route("**/feedback?*", lambda route: route.abort())
    await page.get_by_role("button", name="Refresh").click()
    await expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    await page.unroute("**/feedback?*")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("alert")).to_have_count(0)


async def test_a_key_that_may_only_read_cannot_rate(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    owner = "aaaaaaaa-0000-4000-8000-000000000001"
    keys = [
        {"key": f"the-key-of-the-{role}-which-is-long", "owner_id": owner, "roles": roles}
        for role, roles in (("writer", ["emitter", "subscriber"]), ("reader", ["subscriber"]))
    ]
    up = make_crumb_up(CRUMB_API_KEYS=json.dumps(keys))
    with closing(Ratings(up.url, **{"x-api-key": "the-key-of-the-writer-which-is-long"})) as ratings:
        ratings.rate(ratings.ask("talk", "Hello"), "down")
    page: Page = await open_window(chat_url(up.url, "talk"))
    dialog = page.get_by_role("dialog", name="Enter your API key")
    await dialog.get_by_label("API key or token").fill("the-key-of-the-reader-which-is-long")
    await dialog.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("button", name=BAD)).to_be_disabled()
    await expect(page.get_by_role("button", name=BAD)).to_have_attribute(
        "title", "Your API key does not have the role emitter."
    )
    await page.goto(f"{up.url}/#/feedback")
    await expect(page.locator(".fb-entry")).to_have_count(1)
