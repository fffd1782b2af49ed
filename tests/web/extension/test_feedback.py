"""Thumbs in the panel of the extension, in a real Chromium with a real `crumb up`."""

from __future__ import annotations

from playwright.async_api import expect

from tests.web.accessibility import serious
from tests.web.extension_support import Blackboard, Chrome, answers, say

GOOD, BAD = "Good answer", "Bad answer"


def ratings(board: Blackboard, session: str) -> list[tuple[str, str | None]]:
    found = board.crumbs(session, "feedback.v1")
    return [(one["context"]["rating"], one["context"].get("note")) for one in found]


async def test_an_answer_is_rated_in_the_panel(chrome: Chrome, board: Blackboard, session: str) -> None:
    panel = await chrome.panel(session)
    await say(panel, "Hello")
    await expect(answers(panel)).to_have_count(1)
    await answers(panel).locator(".rich").evaluate("(text) => { text.dataset.kept = 'yes'; }")
    await panel.get_by_role("button", name=BAD).click()
    await expect(panel.get_by_role("button", name=BAD)).to_have_attribute("aria-pressed", "true")
    # A rating does not render the text again: a selection in it is kept.
    await expect(answers(panel).locator(".rich")).to_have_attribute("data-kept", "yes")
    note = panel.get_by_label("Note on your feedback")
    await expect(note).to_be_focused()
    assert await serious(panel) == []
    await note.fill("Too short. <b>Really</b>")
    await panel.get_by_role("button", name="Save note").click()
    await expect(panel.locator(".feedback-note")).to_have_text("Your note: Too short. <b>Really</b>")
    assert ratings(board, session) == [("down", "Too short. <b>Really</b>")]

    await panel.reload()
    await expect(panel.get_by_role("button", name=BAD)).to_have_attribute("aria-pressed", "true")
    await panel.get_by_role("button", name=GOOD).click()
    await expect(panel.get_by_role("button", name=GOOD)).to_have_attribute("aria-pressed", "true")
    await panel.get_by_label("Note on your feedback").press("Escape")
    await expect(panel.get_by_role("button", name=GOOD)).to_be_focused()
    assert ratings(board, session) == [("up", "Too short. <b>Really</b>")]
    await panel.get_by_role("button", name=GOOD).press("Enter")
    await expect(panel.get_by_role("button", name=GOOD)).to_have_attribute("aria-pressed", "false")
    assert ratings(board, session) == []


async def test_a_server_without_feedback_shows_no_thumbs(chrome: Chrome, session: str) -> None:
    panel = await chrome.panel(session)
    await panel.route("**/feedback?*", lambda route: route.fulfill(status=404, json={"detail": "not found"}))
    await panel.reload()
    await say(panel, "Hello")
    await expect(answers(panel)).to_have_count(1)
    await expect(panel.get_by_role("button", name=BAD)).to_have_count(0)
