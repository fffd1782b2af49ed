"""The chat page in a real Chromium, with a real `crumb up`."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from urllib.parse import unquote

import pytest
from playwright.async_api import Page, Route, expect

from tests.client.support import CrumbUp, Line
from tests.web.accessibility import serious
from tests.web.chat import Api, answers, chat_url, expect_connected, new_session_id, said, say, sessions
from tests.web.conftest import ControlledServer, MakeCrumbUp, OpenWindow
from tests.web.extension_support import kill

INJECTION = (
    "<img src=x onerror=\"document.title='broken into'\"><script>document.title='broken into'</script>"
)


def session_of(page: Page) -> str:
    return unquote(page.url.rpartition("/")[2])


# --- Messages --------------------------------------------------------------------------------------------


async def test_the_first_paint_does_not_wait_for_data(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window("about:blank")
    enough = asyncio.Event()

    async def wait(route: Route) -> None:
        await enough.wait()
        await route.abort()

    await page.route(re.compile(r"/(sessions|events|breadcrumbs)"), wait)
    await page.goto(chat_url(crumb_up.url))
    await expect(page.get_by_role("button", name="New session", exact=True)).to_be_visible()
    await expect(page.get_by_role("heading", name="Start a session")).to_be_visible()
    await expect(page.locator("#composer")).to_be_editable()
    enough.set()


async def test_two_windows_with_two_sessions_chat_at_once_and_stay_isolated(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    ann, bob = await open_window(chat_url(crumb_up.url)), await open_window(chat_url(crumb_up.url))
    pairs = [(ann, "apples", "bananas"), (bob, "bananas", "apples")]
    await asyncio.gather(*(say(page, f"I like {mine}") for page, mine, _ in pairs))
    for page, mine, _ in pairs:
        await expect(answers(page)).to_have_count(1)
        await expect(said(page)).to_have_text([f"I like {mine}"])
    await asyncio.gather(*(say(page, "What did I say?") for page, _, _ in pairs))
    for page, mine, others in pairs:
        await expect(answers(page)).to_have_count(2)
        await expect(answers(page).last).to_contain_text(f"I like {mine}")
        await expect(page.locator(".chat-frame")).not_to_contain_text(others)
    assert session_of(ann) != session_of(bob)
    # Both sessions are in both lists. The open one is marked.
    for page, mine, others in pairs:
        await expect(sessions(page).filter(has_text=f"I like {others}")).to_have_count(1)
        await expect(page.locator(".session.current")).to_contain_text(f"I like {mine}")


async def test_a_reload_keeps_the_history_the_session_and_the_unsent_text(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(crumb_up.url))
    await say(page, "Remember me")
    await expect(answers(page)).to_have_count(1)
    before = await answers(page).all_inner_texts()
    await page.locator("#composer").fill("half a thou")
    address = page.url
    await page.reload()
    assert page.url == address
    await expect(said(page)).to_have_text(["Remember me"])
    assert await answers(page).all_inner_texts() == before
    await expect(page.locator("#composer")).to_have_value("half a thou")
    # Another session does not have the text.
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="New session", exact=True).click()
    await expect(page.locator("#composer")).to_have_value("")


async def test_a_streamed_answer_is_replaced_by_the_stored_one(
    controlled: ControlledServer, open_window: OpenWindow
) -> None:
    text = "**One** two three four five six seven eight nine ten eleven twelve."
    controlled.behave("normal", text=text, pause=0.1)
    page = await open_window(chat_url(controlled.url))
    await expect_connected(page)
    await say(page, "Count")
    draft = page.locator(".draft")
    await expect(draft).to_contain_text("One")
    await expect(draft).not_to_contain_text("twelve", timeout=1)
    await expect(page.get_by_role("button", name="Stop answer")).to_be_visible()
    await expect(answers(page)).to_have_text([text.replace("*", "")])
    await expect(answers(page).locator("strong")).to_have_text("One")
    await expect(draft).to_have_count(0)
    await expect(page.get_by_role("button", name="Stop answer")).to_have_count(0)


async def test_a_message_to_a_busy_agent_is_shown_as_queued_and_then_answered(
    controlled: ControlledServer, open_window: OpenWindow
) -> None:
    controlled.behave("slow_first_byte", delay=3, times=1)
    page = await open_window(chat_url(controlled.url))
    await say(page, "first")
    await expect(page.locator(".thinking")).to_be_visible()
    await say(page, "second")
    queued = page.locator(".said.user", has=page.locator(".badge", has_text="Queued"))
    await expect(queued).to_have_text(re.compile("second"))
    await expect(answers(page)).to_have_text(["You asked: first", "You asked: second"])
    await expect(queued).to_have_count(0)
    # Each answer is below its message.
    order = await page.locator(".bubble, .said.agent .prose").all_inner_texts()
    assert order == ["first", "You asked: first", "second", "You asked: second"]


async def test_an_answer_can_be_stopped_and_requested_again(
    controlled: ControlledServer, open_window: OpenWindow
) -> None:
    controlled.behave("slow_trickle")
    page = await open_window(chat_url(controlled.url))
    await expect_connected(page)
    await say(page, "Never end")
    await expect(page.locator(".draft")).to_contain_text("drip")
    await page.get_by_role("button", name="Stop answer").click()
    await expect(page.get_by_text("Stopped.")).to_be_visible()
    await expect(page.locator(".draft")).to_have_count(0)
    controlled.behave("normal")
    await page.get_by_role("button", name="Retry").click()
    await expect(answers(page)).to_have_text(["You asked: Never end"])
    await expect(said(page)).to_have_count(1)


async def test_an_error_is_shown_and_retry_answers_the_same_message(
    controlled: ControlledServer, open_window: OpenWindow
) -> None:
    controlled.behave("failing", status=400)
    page = await open_window(chat_url(controlled.url))
    await say(page, "Hello")
    error = page.locator(".said.agent[aria-label=Error]")
    await expect(error).to_contain_text("The server had an error")
    controlled.behave("normal")
    await error.get_by_role("button", name="Retry").click()
    await expect(answers(page)).to_have_text(["You asked: Hello"])
    await expect(error.get_by_role("button", name="Retry")).to_have_count(0)
    await page.reload()
    await expect(answers(page)).to_have_text(["You asked: Hello"])
    await expect(said(page)).to_have_text(["Hello"])


async def test_a_tool_call_is_folded_and_can_be_opened(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(chat_url(crumb_up.url))
    await say(page, "What is 12 * 34?")
    await expect(answers(page)).to_contain_text(["408"])
    tool = page.locator(".tool-call")
    await expect(tool).to_have_count(1)
    await expect(tool.locator("summary")).to_contain_text("calculator")
    await expect(tool.locator("summary")).to_contain_text("done")
    await expect(tool.locator(".json").first).not_to_be_visible()
    await tool.locator("summary").press("Enter")
    await expect(tool.get_by_label("Input of calculator")).to_contain_text("12 * 34")
    await expect(tool.get_by_label("Result of calculator")).to_contain_text("408")


# --- Reconnection -----------------------------------------------------------------------------------------


async def test_the_page_reconnects_to_a_killed_and_restarted_server_and_misses_nothing(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    page = await open_window(chat_url(up.url))
    await say(page, "before")
    await expect(answers(page)).to_have_count(1)
    session = session_of(page)
    await expect_connected(page)
    kill(up)
    await expect(page.locator(".connection")).to_have_text("Reconnecting …")
    await say(page, "said while you were away")
    await expect(page.locator(".unsent")).to_contain_text("Retrying automatically")
    up.start()
    with closing(Api(up.url)) as client:
        client.post(session, "user.message.v1", "user:message", message="from somewhere else")
    await expect_connected(page)
    await expect(answers(page)).to_have_count(3)
    assert sorted(await said(page).all_inner_texts()) == [
        "before",
        "from somewhere else",
        "said while you were away",
    ]
    await expect(page.locator(".unsent")).to_have_count(0)
    await expect(sessions(page)).to_have_count(1)


async def test_a_message_with_a_lost_confirmation_is_stored_once(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    with Line(crumb_up.url) as line:
        session = new_session_id()
        page = await open_window(chat_url(line.url, session))
        await expect_connected(page)
        line.answers_to_lose = 5  # Chromium retries once or twice, then the page does
        await say(page, "only once")
        await expect(answers(page)).to_have_count(1)
        async with asyncio.timeout(60):
            while await page.evaluate("sessionStorage.length"):  # the outbox is not empty
                await page.wait_for_timeout(50)
        await expect(page.locator(".unsent")).to_have_count(0)
        await expect(said(page)).to_have_text(["only once"])
    assert len(line.lost) == 5
    assert api.messages(session) == ["only once"]


async def test_an_unsent_message_survives_a_reload(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    page = await open_window(chat_url(crumb_up.url, new_session_id()))

    async def away(route: Route) -> None:
        if route.request.method == "POST":
            await route.abort()
        else:
            await route.continue_()

    await page.route("**/messages", away)
    await say(page, "I will be back")
    await expect(page.locator(".unsent")).to_contain_text("Retrying automatically")
    await page.unroute("**/messages", away)
    await page.reload()
    await expect(said(page)).to_have_text(["I will be back"])
    await expect(answers(page)).to_have_count(1)
    assert api.messages(session_of(page)) == ["I will be back"]


async def test_a_refused_message_shows_the_reason_and_can_be_discarded(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(crumb_up.url, "state/for-several"))  # an invalid session name
    await say(page, "Hello")
    unsent = page.locator(".unsent.refused")
    await expect(unsent).to_contain_text("Not sent.")
    await expect(unsent).to_contain_text("Not sent. Session 'state/for-several' not found.")
    await unsent.get_by_role("button", name="Retry").click()
    await expect(unsent).to_contain_text("Not sent.")
    await unsent.get_by_role("button", name="Discard").click()
    await expect(unsent).to_have_count(0)


async def test_changes_by_others_appear_live_in_the_open_session(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    page = await open_window(chat_url(crumb_up.url, session))
    await expect_connected(page)
    id = api.post(session, "agent.response.v1", "agent:response", message="Out of the blue")
    await expect(answers(page)).to_have_text(["Out of the blue"])
    api.change(id, message="Corrected", session_id=session)
    await expect(answers(page)).to_have_text(["Corrected"])
    api.remove(id)
    await expect(answers(page)).to_have_count(0)


async def test_scrolling_up_loads_older_messages_and_keeps_the_view_in_place(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    for number in range(120):
        api.post(session, "agent.response.v1", message=f"number {number}.")
    page = await open_window(chat_url(crumb_up.url, session))
    await expect(answers(page).last).to_have_text("number 119.")
    assert await answers(page).count() < 120
    frame = page.locator(".chat-frame")
    while not await page.get_by_text("number 0.", exact=True).count():
        first = await answers(page).first.inner_text()
        await frame.evaluate("frame => frame.scrollTo(0, 0)")
        await expect(answers(page).first).not_to_have_text(first)
        # The message that was at the top stays in view when older ones are added above it.
        await expect(page.get_by_text(first, exact=True)).to_be_in_viewport()
    await expect(answers(page)).to_have_count(120)
    assert await answers(page).all_inner_texts() == [f"number {number}." for number in range(120)]
    await page.get_by_role("button", name="Scroll down").click()
    await expect(page.get_by_text("number 119.", exact=True)).to_be_in_viewport()


# --- Sessions ---------------------------------------------------------------------------------------------


async def choose(page: Page, session: str, action: str) -> None:
    await sessions(page).filter(has_text=session).get_by_role("button", name="Actions for").click()
    await page.get_by_role("menuitem", name=action).click()


async def test_a_renamed_session_has_its_new_title_in_every_window(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    name, title = new_session_id("first words"), new_session_id("a better title")
    page, other = await open_window(chat_url(crumb_up.url)), await open_window(chat_url(crumb_up.url))
    await expect_connected(other)
    await say(page, name)
    await expect(sessions(other).filter(has_text=name)).to_have_count(1)
    await choose(page, name, "Rename")
    field = page.get_by_role("textbox", name="Title", exact=True)
    await expect(field).to_have_value(name)
    await field.fill(title)
    await field.press("Enter")
    for window in (page, other):
        await expect(sessions(window).filter(has_text=title)).to_have_count(1)
        await expect(sessions(window).filter(has_text=name)).to_have_count(0)
    await expect(page.get_by_role("heading", name=title)).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("heading", name=title)).to_be_visible()


async def test_a_fork_is_independent_of_its_origin(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(chat_url(crumb_up.url))
    await say(page, "I like apples")
    await expect(answers(page)).to_have_count(1)
    await say(page, "I like bananas")
    await expect(answers(page)).to_have_count(2)
    original = session_of(page)
    await page.locator(".said.agent").first.hover()
    await page.locator(".said.agent").first.get_by_role("button", name="Fork from here").click()
    await expect(said(page)).to_have_text(["I like apples"])
    assert session_of(page) != original
    await say(page, "What did I say?")
    await expect(answers(page)).to_have_count(2)
    await expect(answers(page).last).to_contain_text("apples")
    await expect(page.locator(".chat-frame")).not_to_contain_text("bananas")
    await page.goto(chat_url(crumb_up.url, original))
    await expect(said(page)).to_have_text(["I like apples", "I like bananas"])


async def test_deleting_a_session_needs_confirmation_and_shows_in_every_window(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    name = new_session_id("to be deleted")
    page, other = await open_window(chat_url(crumb_up.url)), await open_window(chat_url(crumb_up.url))
    await expect_connected(other)
    await say(page, name)
    await expect(answers(page)).to_have_count(1)
    await expect(sessions(other).filter(has_text=name)).to_have_count(1)
    session = session_of(page)
    await choose(page, name, "Delete")
    dialog = page.get_by_role("dialog", name="Delete session?")
    await dialog.get_by_role("button", name="Cancel").click()
    await expect(dialog).to_have_count(0)
    await expect(said(page)).to_have_text([name])
    await choose(page, name, "Delete")
    await dialog.get_by_role("button", name="Delete").click()
    for window in (page, other):
        await expect(sessions(window).filter(has_text=name)).to_have_count(0)
    await expect(page.get_by_role("heading", name="Start a session")).to_be_visible()
    assert not api.has_session(session)


async def test_sessions_can_be_searched_by_title_and_more_are_loaded_on_request(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    with closing(Api(up.url)) as client:
        for number in range(50):
            topic = "the needle" if number == 3 else f"hay {number}"
            client.post(f"s{number}", "note.v1", note=topic)
            client.name(f"s{number}", topic)
    page = await open_window(chat_url(up.url))
    await expect(sessions(page)).to_have_count(40)
    await expect(sessions(page).first).to_contain_text("hay 49")  # the most recently active one
    await page.get_by_role("button", name="Load more").click()
    await expect(sessions(page)).to_have_count(50)
    await expect(page.get_by_role("button", name="Load more")).to_have_count(0)
    await page.keyboard.press("Escape")
    await page.locator("#composer").blur()
    await page.keyboard.press("/")
    await expect(page.get_by_role("searchbox")).to_be_focused()
    await page.keyboard.type("NEEDLE the")
    await expect(sessions(page)).to_have_count(1)
    await expect(sessions(page)).to_contain_text("the needle")
    await page.get_by_role("searchbox").fill("nothing like it")
    await expect(page.get_by_text("No matching sessions.")).to_be_visible()


async def test_a_paused_session_shows_it_and_answers_again_when_resumed(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    name = new_session_id("a pause")
    page = await open_window(chat_url(crumb_up.url))
    await say(page, name)
    await expect(answers(page)).to_have_count(1)
    await choose(page, name, "Pause answers")
    await expect(page.get_by_text("This session is paused")).to_be_visible()
    await say(page, "Anybody there?")
    await expect(said(page)).to_have_count(2)
    await expect(page.locator(".thinking")).to_have_count(0)
    await page.get_by_role("button", name="Resume", exact=True).click()
    await expect(page.get_by_text("This session is paused")).to_have_count(0)
    await expect(answers(page)).to_have_count(2)


async def test_an_answer_in_another_session_is_unread_until_it_is_opened(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    name = new_session_id("elsewhere")
    page = await open_window(chat_url(crumb_up.url))
    await expect_connected(page)
    api.post(name, "user.message.v1", "user:message", message=name)
    unread = page.locator(".session.unread").filter(has_text=name)
    await expect(unread).to_have_count(1)
    await unread.get_by_role("link").click()
    await expect(answers(page)).to_have_count(1)
    await expect(unread).to_have_count(0)


# --- Foreign content is text ------------------------------------------------------------------------------


async def test_script_in_messages_titles_tags_and_tool_results_is_shown_as_text(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    message = api.post(session, "user.message.v1", message=INJECTION)
    answer = (
        f"{INJECTION}\n\n[click](javascript:document.title='broken into') ![p](data:text/html,x) <b>bold</b>"
    )
    api.post(session, "agent.response.v1", message=answer, trigger_id=message)
    api.post(session, "agent.error.v1", error=INJECTION, trigger_id=message)
    tool = {"tool": INJECTION, "request_id": "r1", "trigger_id": message}
    api.post(session, "tool.request.v1", **tool, input={INJECTION: INJECTION})
    api.post(session, "tool.response.v1", **tool, status="success", output=[INJECTION])
    api.name(session, INJECTION)
    page = await open_window(chat_url(crumb_up.url, session))
    await expect(answers(page)).to_contain_text([INJECTION])
    await expect(said(page)).to_have_text([INJECTION])
    await expect(page.locator(".chat-title")).to_have_text(INJECTION)
    await expect(page.locator(".session.current .session-name")).to_have_text(INJECTION)
    await page.locator(".tool-call summary").click()
    await expect(page.get_by_label(f"Result of {INJECTION}")).to_contain_text("<img src=x onerror=")
    await expect(page.locator(".notice")).to_contain_text(INJECTION)
    inside = page.locator(".chat")
    assert (
        await inside.locator(
            "script, img, b, iframe, object, a[href^='javascript:'], a[href^='data:']"
        ).count()
        == 0
    )
    assert "broken into" not in re.sub(re.escape(INJECTION[:60]), "", await page.title())[:12]
    assert await page.evaluate("window.name") == ""


async def test_markdown_is_rendered_and_only_safe_links_become_links(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    text = (
        "# Title\n\nSome **bold**, *slanted*, ~~gone~~ and `code <b>`.\n\n1. one\n   - inner\n2. two\n\n"
        "> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint('<hi>')\n```\n\n"
        "[good](https://example.org/a?b=1) https://example.org/bare. [bad](javascript:alert(1)) [own](#/board) "
        "[file](file:///etc/passwd)"
    )
    api.post(session, "agent.response.v1", message=text)
    page = await open_window(chat_url(crumb_up.url, session))
    answer = answers(page)
    await expect(answer.locator("h3")).to_have_text("Title")
    await expect(answer.locator("strong")).to_have_text("bold")
    await expect(answer.locator("em")).to_have_text("slanted")
    await expect(answer.locator("del")).to_have_text("gone")
    await expect(answer.locator("p > code")).to_have_text("code <b>")
    await expect(answer.locator("ol > li > ul > li")).to_have_text("inner")
    await expect(answer.locator("blockquote")).to_have_text("quoted")
    await expect(answer.locator("td")).to_have_text(["1", "2"])
    await expect(answer.locator("pre code")).to_have_text("print('<hi>')")
    links = answer.locator("a")
    assert await links.evaluate_all("all => all.map(link => link.href)") == [
        "https://example.org/a?b=1",
        "https://example.org/bare",
    ]
    assert set(await links.evaluate_all("all => all.map(link => link.rel)")) == {
        "noopener noreferrer nofollow"
    }


async def test_pathological_markdown_does_not_block_the_page(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    for piece in (
        "> ",
        "- ",
        "**a ",
        "__a*",
        "[a](",
        "```\n",
        "*a **b ",
        "|a|\n|-|\n",
        "`a ",
        "http://",
        "1. ",
    ):
        api.post(session, "agent.response.v1", message=piece * (20_000 // len(piece)))
    api.post(session, "agent.response.v1", message="the last word")
    page = await open_window(chat_url(crumb_up.url, session))
    await expect(answers(page).last).to_have_text("the last word", timeout=15_000)


# --- Accessibility ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
async def test_axe_finds_nothing_serious(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api, scheme: str, width: int
) -> None:
    session = new_session_id("axe")
    message = api.post(session, "user.message.v1", message="Hello there")
    api.post(session, "agent.error.v1", error="It broke", trigger_id=message)
    api.post(
        session,
        "agent.response.v1",
        message="**Yes** [so](https://example.org)\n\n- `a`\n\n```js\n1\n```\n\n|a|\n|-|\n|1|",
        trigger_id=message,
    )
    api.post(session, "tool.request.v1", tool="clock", request_id="r", trigger_id=message, input={"a": 1})
    page = await open_window(
        chat_url(crumb_up.url, session),
        viewport={"width": width, "height": 780},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    await expect(answers(page).first).to_be_visible()
    await page.locator(".tool-call summary").click()
    assert await serious(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    if width < 700:
        await page.get_by_role("button", name="Show sessions").click()
        await expect(page.get_by_role("button", name="New session", exact=True)).to_be_visible()
        assert await serious(page) == []
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name="New session", exact=True)).not_to_be_visible()
    await page.locator("main").focus()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    assert await serious(page) == []


async def test_everything_works_with_the_keyboard(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    first, second = new_session_id("by keyboard"), new_session_id("also by keyboard")
    page = await open_window(chat_url(crumb_up.url))
    await expect(page.locator("#composer")).to_be_focused()
    await page.keyboard.type(f"{first}")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("a second line")
    await page.keyboard.press("Enter")
    await expect(answers(page)).to_have_count(1)
    await expect(said(page)).to_have_text([f"{first}\na second line"], use_inner_text=True)
    await page.locator("main").focus()
    await page.keyboard.press("n")
    await expect(page.get_by_role("heading", name="Start a session")).to_be_visible()
    await expect(page.locator("#composer")).to_be_focused()
    await page.keyboard.type(second)
    await page.keyboard.press("Enter")
    await expect(page.locator(".session.current")).to_contain_text(second)
    await page.keyboard.press("Alt+ArrowDown")
    await expect(page.locator(".session.current")).to_contain_text(first)
    await page.keyboard.press("Alt+ArrowUp")
    await expect(page.locator(".session.current")).to_contain_text(second)
    # The menu of a session
    await page.locator(".session.current").get_by_role("button", name="Actions for").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    await page.keyboard.press("ArrowUp")
    await expect(page.get_by_role("menuitem", name="Delete")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    # Other pages, and back
    await page.locator("main").focus()
    await page.keyboard.press("g")
    await page.keyboard.press("b")
    await expect(page.get_by_role("link", name="Blackboard")).to_have_attribute("aria-current", "page")
    await page.keyboard.press("g")
    await page.keyboard.press("c")
    await expect(page.locator("#composer")).to_be_visible()


async def test_a_finished_answer_is_announced_once(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(chat_url(crumb_up.url))
    await say(page, "Hello")
    await expect(page.locator(".chat-scroll [aria-live=polite]")).to_contain_text("Answer: Hello!")


async def test_the_colour_scheme_follows_the_system_until_the_user_chooses(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(crumb_up.url), color_scheme="dark", reduced_motion="reduce")
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = await page.evaluate(colour)
    await page.get_by_role("button", name="Theme: system").click()
    light = await page.evaluate(colour)
    assert light != dark
    await page.reload()
    assert await page.evaluate(colour) == light
    await page.get_by_role("button", name="Theme: light").click()
    assert await page.evaluate(colour) == dark
    await page.get_by_role("button", name="Theme: dark").click()
    await page.emulate_media(color_scheme="light")
    assert await page.evaluate(colour) == light


# --- With keys --------------------------------------------------------------------------------------------


async def test_a_server_with_keys_requires_one_and_no_url_contains_it(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    key = "a-key-that-is-long-enough-to-be-one"
    keys = f'[{{"key": "{key}", "owner_id": "aaaaaaaa-0000-4000-8000-000000000001"}}]'
    up = make_crumb_up(CRUMB_API_KEYS=keys)
    page = await open_window(chat_url(up.url))
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    dialog = page.get_by_role("dialog", name="Enter your API key")
    field = dialog.get_by_label("API key or token")
    await expect(field).to_be_focused()
    await field.fill("not it")
    await field.press("Enter")
    await expect(dialog.get_by_role("alert")).to_be_visible()
    await field.fill(key)
    await field.press("Enter")
    await expect(dialog).to_have_count(0)
    await expect_connected(page)
    await say(page, "Hello")
    await expect(answers(page)).to_have_count(1)
    await page.reload()
    await expect(answers(page)).to_have_count(1)
    await expect_connected(page)
    assert any("access_token=" in address for address in addresses)
    assert not [address for address in addresses if key in address]
