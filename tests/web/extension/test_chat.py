"""Conversations and sessions in the chat extension, in a real Chromium with a real `crumb up`."""

from __future__ import annotations

from uuid import uuid4

import pytest
from playwright.async_api import Request, Route, expect

from tests.client.support import CrumbUp
from tests.web.extension_support import Blackboard, Chrome, answers, expect_connected, say

# --- Conversations ---------------------------------------------------------------------------------------


async def test_a_configured_extension_gets_an_answer_that_survives_a_reload(
    chrome: Chrome, up: CrumbUp, board: Blackboard, session: str
) -> None:
    await chrome.configure("http://127.0.0.1:9")
    options = await chrome.page("options.html")
    await options.get_by_label("Server address").fill(f" {up.url.removeprefix('http://')}/ ")
    await options.get_by_role("button", name="Test connection").click()
    await expect(options.locator("#result")).to_contain_text("Connected to Breadcrumbs")
    await options.get_by_role("button", name="Save").click()
    await expect(options.locator("#result")).to_have_text("Saved.")
    assert await options.get_by_label("Server address").input_value() == up.url

    panel = await chrome.panel(session)
    posts: list[Request] = []
    panel.on("request", lambda request: posts.append(request) if request.method == "POST" else None)
    await expect(panel.locator("#empty")).to_be_visible()
    await panel.get_by_label("Message", exact=True).fill("Hello from the panel")
    await panel.get_by_role("button", name="Send").click()
    await expect(answers(panel)).to_contain_text('You wrote: "Hello from the panel"')
    await expect(panel.locator(".user .words")).to_have_text("Hello from the panel")

    [message] = board.crumbs(session, "user.message.v1")
    assert message["tags"] == ["user:message", "extension:chat", f"session:{session}"]
    assert message["title"] == message["context"]["message"] == "Hello from the panel"
    assert [await request.header_value("idempotency-key") for request in posts] != [None]

    await panel.reload()
    await expect(answers(panel)).to_contain_text('You wrote: "Hello from the panel"')
    await expect(panel.locator(".user .words")).to_have_text("Hello from the panel")
    await expect(panel.locator("#session-name")).to_have_text("Hello from the panel")


async def test_two_panels_with_two_sessions_stay_isolated(chrome: Chrome, session: str) -> None:
    first, second = await chrome.panel(f"{session}-1"), await chrome.panel(f"{session}-2")
    await say(first, "I like apples")
    await say(second, "I like pears")
    await expect(answers(first)).to_have_count(1)
    await expect(answers(second)).to_have_count(1)
    await say(first, "What did I say?")
    await say(second, "What did I say?")
    await expect(answers(first).nth(1)).to_contain_text('You said: "I like apples"')
    await expect(answers(second).nth(1)).to_contain_text('You said: "I like pears"')
    for panel, own, other in ((first, "apples", "pears"), (second, "pears", "apples")):
        await expect(panel.locator("#entries")).to_contain_text(own)
        await expect(panel.locator("#entries")).not_to_contain_text(other)


async def test_an_answer_is_streamed_and_the_next_message_waits(chrome: Chrome, session: str) -> None:
    panel = await chrome.panel(session)
    await say(panel, "say: " + "word " * 55 + "end")
    draft = panel.locator(".draft")
    await expect(draft).to_contain_text("word")
    assert "end" not in await draft.inner_text()
    await say(panel, "say: short")
    await expect(panel.locator(".user").nth(1)).to_contain_text("Queued")
    await expect(answers(panel)).to_have_count(2)
    await expect(draft).to_have_count(0)
    assert [(await answers(panel).nth(n).inner_text()).split()[-1] for n in (0, 1)] == ["end", "short"]
    await expect(panel.locator("#announcer")).to_contain_text("short")


async def test_an_answer_can_be_stopped(chrome: Chrome, session: str) -> None:
    panel = await chrome.panel(session)
    await say(panel, "say: " + "word " * 400)
    await expect(panel.locator(".draft")).to_contain_text("word")
    await panel.get_by_role("button", name="Stop").click()
    await expect(panel.locator("#entries")).to_contain_text("Answer stopped")
    await expect(answers(panel)).to_have_count(0)
    await expect(panel.get_by_role("button", name="Stop")).to_be_hidden()


async def test_an_escape_key_of_an_input_method_does_not_stop_the_answer(
    chrome: Chrome, board: Blackboard, session: str
) -> None:
    panel = await chrome.panel(session)
    await say(panel, "say: " + "word " * 60)
    await expect(panel.locator(".draft")).to_contain_text("word")
    await panel.locator("#text").evaluate(
        """field => field.dispatchEvent(
            new KeyboardEvent("keydown", { key: "Escape", isComposing: true, bubbles: true }))"""
    )
    await expect(answers(panel)).to_have_count(1)
    assert board.crumbs(session, "agent.cancel.v1") == []


async def test_a_message_that_cannot_be_stored_stays_in_the_text_field(chrome: Chrome, session: str) -> None:
    panel = await chrome.panel(session)
    await panel.evaluate(
        "() => { chrome.storage.local.set = async () => { throw new Error('quota exceeded') }; }"
    )
    await say(panel, "a long text")
    await expect(panel.locator("#advice-text")).to_contain_text("quota exceeded")
    await expect(panel.locator("#text")).to_have_value("a long text")


async def test_a_wrong_client_clock_does_not_make_a_message_look_unanswered(
    chrome: Chrome, tmp_path_factory: pytest.TempPathFactory, session: str
) -> None:
    folder = tmp_path_factory.mktemp("extension-clock")
    with CrumbUp(folder, CRUMB_PING_INTERVAL="1s") as up, Blackboard(up.url) as board:
        board.post(session, "note.v1")
        board.client.patch(f"/sessions/{session}", json={"active": False}).raise_for_status()
        await chrome.configure(up.url)
        panel = await chrome.context.new_page()
        await panel.add_init_script("const right = Date.now; Date.now = () => right() + 30 * 60_000;")
        await panel.goto(chrome.url(f"panel.html#session={session}"))
        await expect_connected(panel)
        await panel.wait_for_timeout(2_500)  # a ping with the server's time has arrived
        await say(panel, "Hello")
        await expect(panel.locator(".user .words")).to_have_text("Hello")
        await expect(panel.get_by_role("button", name="Stop")).to_be_visible()
        await expect(panel.locator("#entries")).not_to_contain_text("No answer yet")
        await panel.close()


async def test_a_tool_call_is_folded_and_shows_its_input_and_result(chrome: Chrome, session: str) -> None:
    panel = await chrome.panel(session)
    await say(panel, "what is 6*7?")
    await expect(answers(panel)).to_contain_text("42")
    call = panel.locator(".tool")
    await expect(call).to_have_count(1)
    await expect(call.locator("pre")).to_be_hidden()
    await call.locator("summary").click()
    await expect(call.locator("pre")).to_contain_text("6*7")
    await expect(call.locator("pre")).to_contain_text("42")


async def test_breadcrumbs_of_others_are_added_changed_and_removed_live(
    chrome: Chrome, board: Blackboard, session: str
) -> None:
    panel = await chrome.panel(session)
    id = board.post(session, "agent.response.v1", message="A first thought")
    await expect(answers(panel)).to_contain_text("A first thought")
    board.client.patch(f"/breadcrumbs/{id}", json={"context": {"message": "A better one"}}).raise_for_status()
    await expect(answers(panel)).to_contain_text("A better one")
    board.client.delete(f"/breadcrumbs/{id}").raise_for_status()
    await expect(answers(panel)).to_have_count(0)


# --- Sessions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["of today", "without GET /sessions"])
async def test_sessions_can_be_listed_searched_switched_and_begun_by_keyboard(
    chrome: Chrome, board: Blackboard, session: str, server: str
) -> None:
    word = uuid4().hex
    for number in (1, 2):
        board.post(
            f"{session}-{number}", "user.message.v1", title=f"{word} {number}", message=f"{word} {number}"
        )
    panel = await chrome.page(f"panel.html#session={session}")
    asked: list[str] = []

    async def answer(route: Route) -> None:
        asked.append(route.request.url)
        if server == "of today":
            await route.continue_()
        else:
            await route.fulfill(status=404, json={"title": "Not found", "status": 404})

    await panel.route("**/sessions?*", answer)
    await expect_connected(panel)
    await panel.keyboard.press("Alt+s")
    items = panel.locator(".session-item").filter(has_text=word)
    await expect(items).to_have_count(2)
    assert asked, "the panel did not request GET /sessions"
    await panel.keyboard.type(f"{word} 1")
    await expect(panel.locator(".session-item")).to_have_count(1)
    await panel.keyboard.press("ArrowDown")
    await panel.keyboard.press("Enter")
    await expect(panel.locator("#sessions")).to_be_hidden()
    await expect(panel.locator(".user .words")).to_have_text(f"{word} 1")
    assert panel.url.endswith(f"#session={session}-1")

    await panel.keyboard.press("Alt+n")
    await expect(panel.locator("#empty")).to_be_visible()
    await panel.keyboard.type("say: a new one")
    await panel.keyboard.press("Enter")
    await expect(answers(panel).locator(".rich")).to_have_text("a new one")
    assert board.said(f"{session}-1") == [f"{word} 1"]


async def test_earlier_messages_are_loaded_on_request_without_gaps(
    chrome: Chrome, board: Blackboard, session: str
) -> None:
    for number in range(130):
        board.post(session, "agent.response.v1", message=f"number {number}.")
    panel = await chrome.panel(session)
    await expect(answers(panel).last).to_contain_text("number 129.")
    earlier = panel.get_by_role("button", name="Show earlier messages")
    while await earlier.is_visible():
        before = await answers(panel).count()
        await earlier.click()
        await expect(answers(panel).nth(before)).to_be_attached()
    shown = await answers(panel).locator(".rich").all_inner_texts()
    assert shown == [f"number {number}." for number in range(130)]
