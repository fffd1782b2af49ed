"""The chat extension in a real Chromium, against a real `crumb up`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from playwright.async_api import Page, Request, Route, expect

from tests.client.support import CrumbUp, Line
from tests.support.model_server import ModelServer, Scenario
from tests.web.accessibility import serious
from tests.web.extension_support import (
    ELSEWHERE,
    EXTENSION,
    Blackboard,
    Chrome,
    all_confirmed,
    answers,
    chrome_with_extension,
    connected,
    json_in_readme,
    kill,
    say,
    web_page,
)

# Slow enough to see an answer being made, fast enough to wait for.
SLOWLY = '{"offline_delay": 0.03}'
MOST_BYTES = 50_000
INJECTION = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrumbUp]:
    folder = tmp_path_factory.mktemp("extension-up")
    with CrumbUp(folder, CRUMB_MODELS=SLOWLY, CRUMB_MAX_BODY_BYTES=str(MOST_BYTES)) as running:
        yield running


@pytest.fixture(scope="module")
async def installed(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chrome]:
    async with chrome_with_extension(chromium, tmp_path_factory.mktemp("extension-profile")) as running:
        yield running


@pytest.fixture
async def chrome(installed: Chrome, up: CrumbUp) -> AsyncIterator[Chrome]:
    """With the address of the server in its options. Nothing may go wrong in its pages."""
    await installed.configure(up.url)
    installed.complaints.clear()
    yield installed
    for page in installed.context.pages[1:]:
        await page.close()
    assert installed.complaints == []


@pytest.fixture
def board(up: CrumbUp) -> Iterator[Blackboard]:
    with Blackboard(up.url) as board:
        yield board


@pytest.fixture
def session() -> str:
    """Of this test alone."""
    return f"s-{uuid4()}"


KEY = "an-api-key-that-is-long-enough"


@dataclass
class Guarded:
    """A server that lets in who has the key, with a model that does what a test wants."""

    up: CrumbUp
    model: Scenario


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    keys = json.dumps([{"key": KEY, "owner_id": str(uuid4())}])
    folder = tmp_path_factory.mktemp("extension-guarded")
    with ModelServer() as server:
        model = server.scenario("normal", status=400)
        with CrumbUp(folder, CRUMB_API_KEYS=keys, CRUMB_MODEL=f"{model.url}#test") as running:
            yield Guarded(running, model)


# --- A conversation --------------------------------------------------------------------------------------


async def test_from_the_options_to_an_answer_that_is_still_there_after_a_reload(
    chrome: Chrome, up: CrumbUp, board: Blackboard, session: str
) -> None:
    await chrome.configure("http://127.0.0.1:9")
    options = await chrome.page("options.html")
    await options.get_by_label("Server address").fill(f" {up.url.removeprefix('http://')}/ ")
    await options.get_by_role("button", name="Test the connection").click()
    await expect(options.locator("#result")).to_contain_text("It works")
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


async def test_two_panels_with_two_sessions_stay_apart(chrome: Chrome, session: str) -> None:
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


async def test_an_answer_is_seen_while_it_is_made_and_the_next_message_waits_for_its_turn(
    chrome: Chrome, session: str
) -> None:
    panel = await chrome.panel(session)
    await say(panel, "say: " + "word " * 55 + "end")
    draft = panel.locator(".draft")
    await expect(draft).to_contain_text("word")
    assert "end" not in await draft.inner_text()
    await say(panel, "say: short")
    await expect(panel.locator(".user").nth(1)).to_contain_text("Waits for its turn")
    await expect(answers(panel)).to_have_count(2)
    await expect(draft).to_have_count(0)
    assert [(await answers(panel).nth(n).inner_text()).split()[-1] for n in (0, 1)] == ["end", "short"]
    await expect(panel.locator("#announcer")).to_contain_text("short")


async def test_an_answer_can_be_stopped(chrome: Chrome, session: str) -> None:
    panel = await chrome.panel(session)
    await say(panel, "say: " + "word " * 400)
    await expect(panel.locator(".draft")).to_contain_text("word")
    await panel.get_by_role("button", name="Stop").click()
    await expect(panel.locator("#entries")).to_contain_text("The answer was stopped")
    await expect(answers(panel)).to_have_count(0)
    await expect(panel.get_by_role("button", name="Stop")).to_be_hidden()


async def test_an_escape_that_belongs_to_an_input_method_stops_nothing(
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


async def test_what_the_browser_cannot_keep_stays_where_it_was_written(chrome: Chrome, session: str) -> None:
    panel = await chrome.panel(session)
    await panel.evaluate(
        "() => { chrome.storage.local.set = async () => { throw new Error('quota exceeded') }; }"
    )
    await say(panel, "a long text")
    await expect(panel.locator("#advice-text")).to_contain_text("quota exceeded")
    await expect(panel.locator("#text")).to_have_value("a long text")


async def test_a_clock_that_is_wrong_makes_no_message_look_unanswered(
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
        await connected(panel)
        await panel.wait_for_timeout(2_500)  # the server has said what time it is
        await say(panel, "Hello")
        await expect(panel.locator(".user .words")).to_have_text("Hello")
        await expect(panel.get_by_role("button", name="Stop")).to_be_visible()
        await expect(panel.locator("#entries")).not_to_contain_text("No answer yet")
        await panel.close()


async def test_a_tool_call_is_folded_and_shows_what_was_asked_and_answered(
    chrome: Chrome, session: str
) -> None:
    panel = await chrome.panel(session)
    await say(panel, "what is 6*7?")
    await expect(answers(panel)).to_contain_text("42")
    call = panel.locator(".tool")
    await expect(call).to_have_count(1)
    await expect(call.locator("pre")).to_be_hidden()
    await call.locator("summary").click()
    await expect(call.locator("pre")).to_contain_text("6*7")
    await expect(call.locator("pre")).to_contain_text("42")


async def test_what_others_do_in_the_session_is_shown_changed_and_taken_out(
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
async def test_sessions_are_listed_found_switched_and_begun_with_the_keyboard_alone(
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
            await route.fulfill(status=404, json={"title": "There is no such thing", "status": 404})

    await panel.route("**/sessions?*", answer)
    await connected(panel)
    await panel.keyboard.press("Alt+s")
    items = panel.locator(".session-item").filter(has_text=word)
    await expect(items).to_have_count(2)
    assert asked, "the list of sessions comes from GET /sessions where there is one"
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


async def test_earlier_messages_come_when_they_are_asked_for_and_none_is_left_out(
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


# --- Pages -----------------------------------------------------------------------------------------------

ARTICLE = f"""<!doctype html><title>On crumbs {INJECTION.replace("<", "&lt;")}</title>
<p id="first">Crumbs lead home.</p><p style="display:none">A hidden paragraph</p>
<input value="a typed secret"><p>{"long text " * 2000}</p>"""


async def test_a_page_is_attached_once_chrome_was_asked_and_the_model_sees_it_as_the_readme_says(
    chrome: Chrome, board: Blackboard, session: str
) -> None:
    source = json.loads(json_in_readme()[0])
    config = json.loads((EXTENSION.parent / "config" / "context-builder-config.json").read_text("utf-8"))
    del config["$schema"]
    config["sources"].append(source)
    config_id = board.post(None, "context.config.v1", **config)
    with web_page(ARTICLE) as port:
        panel = await chrome.panel(session)
        page = await chrome.context.new_page()
        await page.goto(f"http://{ELSEWHERE}:{port}/article?page=1#part")
        await panel.get_by_role("button", name="Attach page").click()
        await expect(panel.locator("#advice")).to_contain_text("click the Breadcrumbs icon")
        assert board.crumbs(session, "page.content.v1") == []

        await chrome.click_icon(page)
        card = panel.locator(".page .page-card")
        await expect(card).to_contain_text("On crumbs <img")
        await expect(card).to_contain_text("page attached · 8,000 characters, then cut off")
        await expect(panel.locator("#advice")).to_be_hidden()
        assert chrome.url("panel.html") in [
            address.partition("#")[0] for address in await chrome.open_documents()
        ]

        [crumb] = board.crumbs(session, "page.content.v1")
        assert crumb["tags"] == ["page:content", "extension:chat", f"session:{session}"]
        assert crumb["context"]["url"] == f"http://{ELSEWHERE}:{port}/article?page=1"
        assert crumb["context"]["text"].startswith("Crumbs lead home.")
        assert "hidden" not in crumb["context"]["text"] and "secret" not in crumb["context"]["text"]
        assert len(crumb["context"]["text"]) == 8000
        documented = json.loads(json_in_readme()[1])
        assert crumb["context"].keys() - {"session_id"} == documented["context"].keys()

        await say(panel, "What do you see?")
        await expect(answers(panel)).to_contain_text("1 message from elsewhere")
        [context] = board.crumbs(session, "agent.context.v1")
        assert "Crumbs lead home." in json.dumps(context["context"]["parts"])

        await card.get_by_role("button").click()
        await expect(card).to_have_count(0)
        assert board.crumbs(session, "page.content.v1") == []
    board.client.delete(f"/breadcrumbs/{config_id}").raise_for_status()


async def test_what_is_selected_is_attached_alone(chrome: Chrome, board: Blackboard, session: str) -> None:
    with web_page(ARTICLE) as port:
        panel = await chrome.panel(session)
        page = await chrome.context.new_page()
        await page.goto(f"http://127.0.0.1:{port}/")  # of this machine: no click needed
        await page.locator("#first").select_text()
        await panel.keyboard.press("Alt+a")
        await expect(panel.locator(".page .page-card")).to_contain_text("selected text attached")
    [crumb] = board.crumbs(session, "page.content.v1")
    assert crumb["context"]["text"] == "Crumbs lead home."
    assert crumb["context"]["selection"] is True and crumb["context"]["truncated"] is False


async def test_a_page_that_no_extension_may_read_is_refused_in_words(chrome: Chrome, session: str) -> None:
    panel = await chrome.panel(session)
    page = await chrome.context.new_page()
    await page.goto("chrome://version")
    await panel.get_by_role("button", name="Attach page").click()
    await expect(panel.locator("#advice")).to_contain_text("Chrome lets no extension read this page")


# --- What others write is text ---------------------------------------------------------------------------


async def test_script_in_messages_answers_errors_tools_pages_and_names_is_shown_as_text(
    chrome: Chrome, board: Blackboard, session: str
) -> None:
    evil = f"{session}{INJECTION}"
    message = board.post(evil, "user.message.v1", title=INJECTION, message=f"user {INJECTION}")
    board.post(
        evil,
        "agent.response.v1",
        message=f"answer {INJECTION} [click](javascript:window.hacked=1) **{INJECTION}** `{INJECTION}`\n"
        f"# {INJECTION}\n- {INJECTION}\n> {INJECTION}\n```\n{INJECTION}\n```",
        creator={"type": "agent", "agent_id": INJECTION},
        trigger_id=message,
    )
    board.post(evil, "agent.error.v1", error=f"error {INJECTION}")
    board.post(evil, "tool.request.v1", tool=INJECTION, input={"a": INJECTION})
    board.post(evil, "tool.response.v1", tool=INJECTION, output=INJECTION, error=INJECTION)
    board.post(
        evil,
        "page.content.v1",
        title=INJECTION,
        text=INJECTION,
        url="javascript:window.hacked=1",
        selection=False,
    )
    panel = await chrome.panel(evil)
    await expect(panel.locator(".page-card")).to_have_count(1)
    for part in (
        ".user .words",
        ".answer .who",
        ".answer .rich",
        ".error",
        ".tool",
        ".page-title",
        "#session-name",
    ):
        await expect(panel.locator(part).first).to_contain_text("<img src=x")
    await expect(panel.locator(".answer .rich")).to_contain_text("[click](javascript:window.hacked=1)")
    await panel.get_by_role("button", name="Sessions").click()
    await expect(panel.locator(".session-item", has_text="<img src=x").first).to_be_visible()
    assert await panel.locator("img, script:not([src]), a[href^=javascript], [onerror]").count() == 0
    assert await panel.evaluate("window.hacked") is None


async def test_the_browser_itself_refuses_html_and_foreign_script_in_the_extension(
    chrome: Chrome, session: str
) -> None:
    panel = await chrome.panel(session)
    for attempt in (
        "document.body.innerHTML = '<b>x</b>'",
        "document.createElement('script').text = 'window.hacked = 1'",
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
    ):
        refused = await panel.evaluate(
            f"(() => {{ try {{ {attempt}; return false }} catch {{ return true }} }})()"
        )
        assert refused, attempt


# --- The modules by themselves ---------------------------------------------------------------------------


@pytest.fixture
async def blank(chrome: Chrome) -> Page:
    return await chrome.page("options.html")


MARKDOWN = [
    ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
    (
        "a **bold** and *it* and `x*y*`",
        "<p>a <strong>bold</strong> and <em>it</em> and <code>x*y*</code></p>",
    ),
    ("2 * 3 * 4 and snake_case_name", "<p>2 * 3 * 4 and snake_case_name</p>"),
    ("# Title", "<h3>Title</h3>"),
    ("- a\n- b\n  1. c\n- d", '<ul><li>a</li><li>b<ol start="1"><li>c</li></ol></li><li>d</li></ul>'),
    ("text:\n1. a\n\n2. b", '<p>text:</p><ol start="1"><li>a</li><li>b</li></ol>'),
    ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
    (
        "```js\nlet a = '**';",
        '<pre tabindex="0" aria-label="Code, js"><code>let a = \'**\';</code></pre>',
    ),
    ("<b>x</b> &amp;", "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp;</p>"),
    ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
    (
        "see https://example.org/a_b_(c).",
        '<p>see <a href="https://example.org/a_b_(c" title="https://example.org/a_b_(c" target="_blank" '
        'rel="noopener noreferrer nofollow">https://example.org/a_b_(c</a>).</p>',
    ),
    (r"\*not\*", "<p>*not*</p>"),
]


async def test_markdown_becomes_elements(blank: Page) -> None:
    made = await blank.evaluate(
        """async sources => {
            const { markdown } = await import("/src/markdown.js");
            return sources.map((source) => {
                const box = document.createElement("div");
                box.append(markdown(source));
                return box.innerHTML;
            });
        }""",
        [source for source, _ in MARKDOWN],
    )
    assert made == [shown for _, shown in MARKDOWN]


async def test_text_made_to_be_slow_is_shown_quickly(blank: Page) -> None:
    took = await blank.evaluate(
        """async () => {
            const { markdown } = await import("/src/markdown.js");
            const began = performance.now();
            for (const piece of [
                "**a ", "[", "`a ", "_a ", "> ", "- ", "http://", "[a](", "\\n> ", "\\n- ", "((", "#",
            ]) {
                markdown(piece.repeat(20_000));
            }
            return performance.now() - began;
        }"""
    )
    assert took < 10_000


async def test_pieces_of_an_answer_are_put_together_by_characters_and_a_lost_one_shows_no_nonsense(
    blank: Page,
) -> None:
    texts = await blank.evaluate(
        """async () => {
            const { Conversation } = await import("/src/conversation.js");
            const talk = new Conversation();
            const shown = [];
            const piece = (offset, text) => {
                talk.take({ type: "agent.response.delta", breadcrumb_id: "a", trigger_id: "m", offset, text });
                shown.push(talk.drafts().map((draft) => draft.letters.join("")).join("|"));
            };
            piece(0, "🍞🍞 a");
            piece(4, "nd b");
            piece(20, "lost before");
            piece(2, "!");
            piece(0, "anew");
            talk.take({ operation: "created", breadcrumb_id: "a", version: 1, schema_name: "agent.response.v1",
                        title: "", tags: [], context: { message: "anew and done" }, updated_at: "2026" });
            piece(4, "too late");
            return shown;
        }"""
    )
    assert texts == ["🍞🍞 a", "🍞🍞 and b", "🍞🍞 and b", "🍞🍞!", "anew", ""]


async def test_an_edit_that_comes_before_the_list_is_kept_for_it(blank: Page) -> None:
    shown = await blank.evaluate(
        """async () => {
            const { Conversation } = await import("/src/conversation.js");
            const talk = new Conversation();
            const answer = { schema_name: "agent.response.v1", title: "", tags: [] };
            talk.take({ ...answer, operation: "updated", breadcrumb_id: "a", version: 2,
                        context: { message: "as it is" }, updated_at: "2026-02" });
            const before = talk.entries().length;
            talk.add({ ...answer, id: "a", version: 1, context: { message: "as it was" },
                       created_at: "2026-01", updated_at: "2026-01" });
            return [before, ...talk.entries().map(({ text, at }) => [text, at])];
        }"""
    )
    assert shown == [0, ["as it is", "2026-01"]]


@pytest.mark.parametrize(
    "first", ["id: 7\n\n", 'id: 7\nevent: ping\ndata: {"type":"ping","ts":"2026-01-01T00:00:00Z"}\n\n']
)
async def test_a_stream_comes_back_to_where_it_was_however_the_server_says_where_that_is(
    blank: Page, first: str
) -> None:
    told: list[Any] = await blank.evaluate(
        """(first) => new Promise(async (resolve) => {
            const { Feed } = await import("/src/feed.js");
            const told = [];
            const quiet = 'id: 9\\nevent: ping\\ndata: {"type":"ping","ts":"2026-01-01T00:00:10Z"}\\n\\n';
            const api = { request: async (method, path, { headers }) => {
                told.push(headers["Last-Event-ID"] ?? "from now on");
                if (told.filter((one) => one !== "fresh").length === 3) { feed.stop(); resolve(told); }
                const text = told.length === 1 ? first : quiet;
                return new Response(text, { headers: { "content-type": "text/event-stream" } });
            } };
            const nothing = () => {};
            const onFresh = () => told.push("fresh");
            const feed = new Feed(api, "s", { onEvent: nothing, onFresh, onState: nothing, onTime: nothing });
            feed.start();
        })""",
        first,
    )
    assert told == ["from now on", "fresh", "7", "9"]


async def test_a_server_that_only_hangs_up_is_asked_less_and_less(blank: Page) -> None:
    times: list[float] = await blank.evaluate(
        """() => new Promise(async (resolve) => {
            const { Feed } = await import("/src/feed.js");
            const times = [];
            const body = (text) => new Response(text, { headers: { "content-type": "text/event-stream" } });
            const api = { request: async () => {
                times.push(performance.now());
                if (times.length === 6) { feed.stop(); resolve(times); }
                return body(times.length === 1 ? "id: 1\\n\\n" : "retry: 2000\\n: connected\\n\\n");
            } };
            const nothing = () => {};
            const feed = new Feed(api, "s", { onEvent: nothing, onFresh: nothing, onState: nothing, onTime: nothing });
            feed.start();
        })"""
    )
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[-1] > 2 * pauses[0], pauses


async def test_events_are_read_however_they_are_cut(blank: Page) -> None:
    messages: list[list[Any]] = await blank.evaluate(
        """async () => {
            const { SseParser } = await import("/src/feed.js");
            const text = "retry: 2000\\n: hi\\n\\nid: 1\\n\\n"
                + 'id: 2\\ndata: {"a":\\ndata: 1}\\n\\nevent: ping\\r\\ndata: x\\r\\n\\r\\n';
            return [1, 2, 3, 7, 1000].map((size) => {
                const parser = new SseParser();
                const found = [];
                for (let at = 0; at < text.length; at += size) found.push(...parser.feed(text.slice(at, at + size)));
                return found.map(({ event, data, id }) => [event, data, id]);
            });
        }"""
    )
    expected = [["message", "", "1"], ["message", '{"a":\n1}', "2"], ["ping", "x", "2"]]
    assert messages == [expected] * 5


# --- Everybody can use it --------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everything_fits_into_360_pixels(
    chrome: Chrome, board: Blackboard, session: str, scheme: Any
) -> None:
    board.post(session, "user.message.v1", message="unbroken" * 60)
    board.post(session, "agent.response.v1", message=f"`{'x' * 300}`\n```\n{'y' * 300}\n```\n{'z' * 300}")
    board.post(session, "agent.error.v1", error="w" * 300)
    board.post(
        session, "page.content.v1", title="t" * 300, text="v" * 300, url=f"http://{'u' * 200}.example/"
    )
    panel = await chrome.panel(session)
    await panel.emulate_media(color_scheme=scheme)
    await panel.set_viewport_size({"width": 360, "height": 640})
    await expect(panel.locator(".page-card")).to_be_visible()
    for selector in ("html", "#log", ".bar", "#composer"):
        wide = await panel.locator(selector).evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert wide[0] <= wide[1], selector
    assert await panel.locator("#send").bounding_box() is not None
    options = await chrome.page("options.html")
    await options.set_viewport_size({"width": 360, "height": 640})
    assert await options.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_serious(
    chrome: Chrome, board: Blackboard, session: str, scheme: Any
) -> None:
    message = board.post(session, "user.message.v1", message="Hello there")
    board.post(session, "agent.error.v1", error="It broke", trigger_id=message)
    board.post(
        session,
        "agent.response.v1",
        message="# Well\n**Yes** [so](https://example.org)\n\n- `a`\n\n> b\n\n```js\n1\n```",
        trigger_id=message,
    )
    board.post(session, "tool.request.v1", tool="clock", input={"a": 1})
    board.post(session, "page.content.v1", title="A page", text="text", url="http://127.0.0.1/")
    panel = await chrome.panel(session)
    await panel.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    await expect(panel.locator(".page-card")).to_be_visible()
    for fold in await panel.locator("summary").all():
        await fold.click()
    assert await serious(panel) == []
    await panel.get_by_role("button", name="Sessions").click()
    await expect(panel.locator(".session-item").first).to_be_visible()
    assert await serious(panel) == []
    await chrome.configure("http://127.0.0.1:9")
    await panel.keyboard.press("Escape")
    await say(panel, "Is anybody there?")
    await expect(panel.locator("#connection")).to_be_visible()
    assert await serious(panel) == []
    await panel.get_by_role("button", name="New chat", exact=True).click()
    options = await chrome.page("options.html")
    await options.emulate_media(color_scheme=scheme)
    assert await serious(options) == []
