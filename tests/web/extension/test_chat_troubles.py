"""The chat extension when servers break, refuse or want a token."""

from __future__ import annotations

from playwright.async_api import expect

from tests.client.support import CrumbUp, Line
from tests.web.extension.conftest import KEY, MOST_BYTES, Guarded
from tests.web.extension_support import Blackboard, Chrome, all_confirmed, answers, connected, kill, say

# --- What breaks -----------------------------------------------------------------------------------------


async def test_a_server_that_is_killed_and_started_again_loses_and_doubles_nothing(
    chrome: Chrome, up: CrumbUp, board: Blackboard, session: str
) -> None:
    panel = await chrome.panel(session)
    await say(panel, "Before the crash")
    await expect(answers(panel)).to_have_count(1)

    kill(up)
    await expect(panel.locator("#connection")).to_contain_text("Trying again")
    await say(panel, "While it was away")
    await say(panel, "And one more")
    waiting = panel.locator(".waiting")
    await expect(waiting).to_have_count(2)
    await expect(waiting.first).to_contain_text("Waits for the connection")
    await panel.close()  # what is not sent yet does not live in the panel

    up.start()
    board.post(session, "agent.response.v1", message="Said by somebody else meanwhile")
    panel = await chrome.panel(session)
    await expect(answers(panel).filter(has_text="Said by somebody else meanwhile")).to_have_count(1)
    await expect(answers(panel).filter(has_text='You wrote: "While it was away"')).to_have_count(1)
    await expect(answers(panel).filter(has_text='You wrote: "And one more"')).to_have_count(1)
    await expect(panel.locator("#connection")).to_be_hidden()
    await all_confirmed(panel)
    await expect(panel.locator(".user")).to_have_count(3)
    assert board.said(session) == ["Before the crash", "While it was away", "And one more"]


async def test_an_open_panel_comes_back_by_itself_and_shows_what_it_missed(
    chrome: Chrome, up: CrumbUp, board: Blackboard, session: str
) -> None:
    with Line(up.url) as line:
        await chrome.configure(line.url)
        panel = await chrome.panel(session)
        await expect(panel.locator("#empty")).to_be_visible()  # what was there before is loaded
        listed: list[str] = []
        panel.on(
            "request", lambda request: listed.append(request.url) if "/breadcrumbs?" in request.url else None
        )
        for number in range(5):
            line.cut()
            board.post(session, "agent.response.v1", message=f"Missed {number}.")
        await expect(answers(panel)).to_have_count(5)
        await connected(panel)
        shown = await answers(panel).locator(".rich").all_inner_texts()
        assert shown == [f"Missed {number}." for number in range(5)]
        assert listed == [], "the stream goes on where it was: nothing has to be listed again"


async def test_a_message_whose_confirmation_got_lost_is_stored_and_shown_once(
    chrome: Chrome, up: CrumbUp, board: Blackboard, session: str
) -> None:
    with Line(up.url) as line:
        await chrome.configure(line.url)
        panel = await chrome.panel(session)
        line.answers_to_lose = 2
        await say(panel, "say: only once")
        await expect(answers(panel).locator(".rich")).to_have_text("only once")
        await all_confirmed(panel)
        assert len(line.lost) == 2
        await expect(panel.locator(".user")).to_have_count(1)
        assert board.said(session) == ["say: only once"]


async def test_a_message_that_the_server_refuses_says_why_and_comes_back_to_be_changed(
    chrome: Chrome, board: Blackboard, session: str
) -> None:
    panel = await chrome.panel(session)
    await say(panel, "long " * (MOST_BYTES // 5))
    failed = panel.locator(".failed")
    await expect(failed.locator(".entry-note")).to_contain_text("bytes")
    await say(panel, "say: not held up")
    await expect(answers(panel).locator(".rich")).to_have_text("not held up")
    await failed.get_by_role("button", name="Discard").click()
    await expect(failed).to_have_count(0)
    assert (await panel.locator("#text").input_value()).startswith("long long")
    assert board.said(session) == ["say: not held up"]


async def test_an_error_is_shown_with_its_reason_and_its_message_is_answered_on_request(
    chrome: Chrome, guarded: Guarded, session: str
) -> None:
    guarded.model.behaviour = "failing"
    await chrome.configure(guarded.up.url, KEY)
    panel = await chrome.panel(session)
    await say(panel, "Can you hear me?")
    error = panel.locator(".error")
    await expect(error).to_contain_text("The server had an error")
    guarded.model.behaviour = "normal"
    await error.get_by_role("button", name="Try again").click()
    await expect(answers(panel).locator(".rich")).to_have_text("You asked: Can you hear me?")
    await expect(error.get_by_role("button", name="Try again")).to_have_count(0)
    await expect(panel.locator(".thinking")).to_have_count(0)
    await expect(panel.locator(".user")).to_have_count(1)


# --- Tokens ----------------------------------------------------------------------------------------------


async def test_a_token_travels_in_a_header_and_one_for_a_session_shows_that_session_only(
    chrome: Chrome, guarded: Guarded, session: str
) -> None:
    guarded.model.behaviour = "normal"
    options = await chrome.page("options.html")
    await options.get_by_label("Server address").fill(guarded.up.url)
    await options.get_by_role("button", name="Test the connection").click()
    await expect(options.locator("#result")).to_contain_text("does not let you in")

    with Blackboard(guarded.up.url, **{"x-api-key": KEY}) as board:
        token = board.client.post("/auth/token", json={"session_id": session}).json()["token"]
        await options.get_by_label("Token or API key").fill(f"Bearer {token}")
        await options.get_by_role("button", name="Test the connection").click()
        await expect(options.locator("#result")).to_contain_text(f"good for the session {session} only")
        await options.get_by_role("button", name="Save").click()
        await expect(options.locator("#result")).to_have_text("Saved.")

        panel = await chrome.page("panel.html#session=another-one")
        addresses: list[str] = []
        panel.on("request", lambda request: addresses.append(request.url))
        await panel.reload()
        await connected(panel)
        await expect(panel.get_by_role("button", name="New chat", exact=True)).to_be_hidden()
        await say(panel, "Am I in?")
        await expect(answers(panel).locator(".rich")).to_have_text("You asked: Am I in?")
        assert board.said(session) == ["Am I in?"]
    assert any("/events/stream" in address for address in addresses)
    assert not [address for address in addresses if token in address]


async def test_what_was_written_for_one_server_does_not_go_to_another_by_itself(
    chrome: Chrome, up: CrumbUp, board: Blackboard, session: str
) -> None:
    await chrome.configure("http://127.0.0.1:9")
    panel = await chrome.page(f"panel.html#session={session}")
    await expect(panel.locator("#connection")).to_contain_text("No server answers")
    await say(panel, "say: for your eyes only")
    await expect(panel.locator(".waiting")).to_have_count(1)
    await chrome.configure(up.url)
    await connected(panel)
    await expect(panel.locator(".failed")).to_contain_text("Written for another server or token")
    assert board.said(session) == []
    await panel.get_by_role("button", name="Send again").click()
    await expect(answers(panel).locator(".rich")).to_have_text("for your eyes only")


async def test_the_options_say_what_is_wrong_with_an_address(chrome: Chrome) -> None:
    options = await chrome.page("options.html")
    for typed, complaint in (
        ("ftp://example.org", "begins with http"),
        ("http://", "is not an address"),
        ("http://me:secret@127.0.0.1:8081", "Leave the name and the password out"),
        ("http://127.0.0.1:9", "No server answers"),
    ):
        await options.get_by_label("Server address").fill(typed)
        await options.get_by_role("button", name="Test the connection").click()
        await expect(options.locator("#result")).to_contain_text(complaint)
    await options.get_by_label("Server address").fill("http://example.org")
    await options.get_by_label("Token or API key").fill("secret")
    await expect(options.locator("#warning")).to_contain_text("not encrypted")
