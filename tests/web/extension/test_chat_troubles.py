"""The chat extension with servers that fail, refuse requests or require a token."""

from __future__ import annotations

from playwright.async_api import expect

from tests.client.support import CrumbUp, Line
from tests.web.extension.conftest import KEY, MAX_BODY_BYTES, Guarded
from tests.web.extension_support import (
    Blackboard,
    Chrome,
    answers,
    expect_connected,
    kill,
    say,
    wait_until_confirmed,
)

# --- Failures --------------------------------------------------------------------------------------------


async def test_a_killed_and_restarted_server_loses_and_duplicates_no_message(
    chrome: Chrome, up: CrumbUp, board: Blackboard, session: str
) -> None:
    panel = await chrome.panel(session)
    await say(panel, "Before the crash")
    await expect(answers(panel)).to_have_count(1)

    kill(up)
    await expect(panel.locator("#connection")).to_contain_text("Retrying …")
    await say(panel, "While it was away")
    await say(panel, "And one more")
    waiting = panel.locator(".waiting")
    await expect(waiting).to_have_count(2)
    await expect(waiting.first).to_contain_text("Waiting for connection")
    await panel.close()  # unsent messages are stored outside of the panel

    up.start()
    board.post(session, "agent.response.v1", message="Said by somebody else meanwhile")
    panel = await chrome.panel(session)
    await expect(answers(panel).filter(has_text="Said by somebody else meanwhile")).to_have_count(1)
    await expect(answers(panel).filter(has_text='You wrote: "While it was away"')).to_have_count(1)
    await expect(answers(panel).filter(has_text='You wrote: "And one more"')).to_have_count(1)
    await expect(panel.locator("#connection")).to_be_hidden()
    await wait_until_confirmed(panel)
    await expect(panel.locator(".user")).to_have_count(3)
    assert board.said(session) == ["Before the crash", "While it was away", "And one more"]


async def test_an_open_panel_reconnects_and_shows_missed_messages(
    chrome: Chrome, up: CrumbUp, board: Blackboard, session: str
) -> None:
    with Line(up.url) as line:
        await chrome.configure(line.url)
        panel = await chrome.panel(session)
        await expect(panel.locator("#empty")).to_be_visible()  # the history is loaded
        listed: list[str] = []
        panel.on(
            "request", lambda request: listed.append(request.url) if "/breadcrumbs?" in request.url else None
        )
        for number in range(5):
            line.cut()
            board.post(session, "agent.response.v1", message=f"Missed {number}.")
        await expect(answers(panel)).to_have_count(5)
        await expect_connected(panel)
        shown = await answers(panel).locator(".rich").all_inner_texts()
        assert shown == [f"Missed {number}." for number in range(5)]
        assert listed == [], "the stream must resume without listing breadcrumbs again"


async def test_a_message_with_a_lost_confirmation_is_stored_and_shown_once(
    chrome: Chrome, up: CrumbUp, board: Blackboard, session: str
) -> None:
    with Line(up.url) as line:
        await chrome.configure(line.url)
        panel = await chrome.panel(session)
        line.answers_to_lose = 2
        await say(panel, "say: only once")
        await expect(answers(panel).locator(".rich")).to_have_text("only once")
        await wait_until_confirmed(panel)
        assert len(line.lost) == 2
        await expect(panel.locator(".user")).to_have_count(1)
        assert board.said(session) == ["say: only once"]


async def test_a_refused_message_shows_the_reason_and_can_be_edited(
    chrome: Chrome, board: Blackboard, session: str
) -> None:
    panel = await chrome.panel(session)
    await say(panel, "long " * (MAX_BODY_BYTES // 5))
    failed = panel.locator(".failed")
    await expect(failed.locator(".entry-note")).to_contain_text("bytes")
    await say(panel, "say: not held up")
    await expect(answers(panel).locator(".rich")).to_have_text("not held up")
    await failed.get_by_role("button", name="Discard").click()
    await expect(failed).to_have_count(0)
    assert (await panel.locator("#text").input_value()).startswith("long long")
    assert board.said(session) == ["say: not held up"]


async def test_an_error_shows_its_reason_and_a_retry_answers_the_message(
    chrome: Chrome, guarded: Guarded, session: str
) -> None:
    guarded.model.behaviour = "failing"
    await chrome.configure(guarded.up.url, KEY)
    panel = await chrome.panel(session)
    await say(panel, "Can you hear me?")
    error = panel.locator(".error")
    await expect(error).to_contain_text("The server had an error")
    guarded.model.behaviour = "normal"
    await error.get_by_role("button", name="Retry").click()
    await expect(answers(panel).locator(".rich")).to_have_text("You asked: Can you hear me?")
    await expect(error.get_by_role("button", name="Retry")).to_have_count(0)
    await expect(panel.locator(".thinking")).to_have_count(0)
    await expect(panel.locator(".user")).to_have_count(1)


async def test_the_panel_shows_why_the_model_is_called_again(
    chrome: Chrome, guarded: Guarded, session: str
) -> None:
    guarded.model.behaviour = "rate_limited"
    guarded.model.options["retry_after"] = "30"
    await chrome.configure(guarded.up.url, KEY)
    panel = await chrome.panel(session)
    await say(panel, "Are you busy?")
    note = panel.locator(".draft .retrying")
    await expect(note).to_contain_text("too many requests (429)")
    await expect(note).to_contain_text("Attempt 2 in")
    await panel.reload()
    await expect(note).to_contain_text("too many requests (429)")
    await panel.get_by_role("button", name="Stop").click()
    await expect(panel.locator(".stopped")).to_be_visible()
    await expect(note).to_have_count(0)


async def test_the_panel_folds_reasoning_and_does_not_show_it_as_the_answer(
    chrome: Chrome, guarded: Guarded, session: str
) -> None:
    guarded.model.behaviour = "chunks"
    guarded.model.options["deltas"] = [
        {"reasoning_content": "I wonder about zebras."},
        {"content": "Stripes."},
    ]
    await chrome.configure(guarded.up.url, KEY)
    panel = await chrome.panel(session)
    await say(panel, "What do zebras have?")
    await expect(answers(panel).locator(".rich")).to_have_text("Stripes.")
    await expect(panel.locator(".reasoning .words")).to_be_hidden()
    await panel.get_by_text("Reasoning", exact=True).click()
    await expect(panel.locator(".reasoning .words")).to_have_text("I wonder about zebras.")


# --- Tokens ----------------------------------------------------------------------------------------------


async def test_a_session_token_is_sent_in_a_header_and_shows_only_its_session(
    chrome: Chrome, guarded: Guarded, session: str
) -> None:
    guarded.model.behaviour = "normal"
    options = await chrome.page("options.html")
    await options.get_by_label("Server address").fill(guarded.up.url)
    await options.get_by_role("button", name="Test connection").click()
    await expect(options.locator("#result")).to_contain_text("access was denied")

    with Blackboard(guarded.up.url, **{"x-api-key": KEY}) as board:
        token = board.client.post("/auth/token", json={"session_id": session}).json()["token"]
        await options.get_by_label("Token or API key").fill(f"Bearer {token}")
        await options.get_by_role("button", name="Test connection").click()
        await expect(options.locator("#result")).to_contain_text(f"limited to session {session}")
        await options.get_by_role("button", name="Save").click()
        await expect(options.locator("#result")).to_have_text("Saved.")

        panel = await chrome.page("panel.html#session=another-one")
        addresses: list[str] = []
        panel.on("request", lambda request: addresses.append(request.url))
        await panel.reload()
        await expect_connected(panel)
        await expect(panel.get_by_role("button", name="New chat", exact=True)).to_be_hidden()
        await say(panel, "Am I in?")
        await expect(answers(panel).locator(".rich")).to_have_text("You asked: Am I in?")
        assert board.said(session) == ["Am I in?"]
    assert any("/events/stream" in address for address in addresses)
    assert not [address for address in addresses if token in address]


async def test_a_message_for_one_server_is_not_sent_to_another_automatically(
    chrome: Chrome, up: CrumbUp, board: Blackboard, session: str
) -> None:
    await chrome.configure("http://127.0.0.1:9")
    panel = await chrome.page(f"panel.html#session={session}")
    await expect(panel.locator("#connection")).to_contain_text("Cannot connect to")
    await say(panel, "say: for your eyes only")
    await expect(panel.locator(".waiting")).to_have_count(1)
    await chrome.configure(up.url)
    await expect_connected(panel)
    await expect(panel.locator(".failed")).to_contain_text("Written for another server or token")
    assert board.said(session) == []
    await panel.get_by_role("button", name="Retry", exact=True).click()
    await expect(answers(panel).locator(".rich")).to_have_text("for your eyes only")


async def test_the_options_page_explains_an_invalid_address(chrome: Chrome) -> None:
    options = await chrome.page("options.html")
    for typed, complaint in (
        ("ftp://example.org", "must start with http"),
        ("http://", "is not an address"),
        ("http://me:secret@127.0.0.1:8081", "must not contain a user name or password"),
        ("http://127.0.0.1:9", "Cannot connect to"),
    ):
        await options.get_by_label("Server address").fill(typed)
        await options.get_by_role("button", name="Test connection").click()
        await expect(options.locator("#result")).to_contain_text(complaint)
    await options.get_by_label("Server address").fill("http://example.org")
    await options.get_by_label("Token or API key").fill("secret")
    await expect(options.locator("#warning")).to_contain_text("not encrypted")
