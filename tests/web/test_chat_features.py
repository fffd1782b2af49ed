"""Features of the chat page: code, formulas, forks that answer again, search, export, attached pages, shortcuts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.async_api import Locator, Page, Route, expect

from tests.client.support import CrumbUp
from tests.web.accessibility import serious
from tests.web.chat import Api, answers, chat_url, new_session_id, said, say, sessions
from tests.web.conftest import OpenWindow

CODE = (
    'def area(r: float) -> float:\n    """Area."""\n    return 3.14 * r**2  # <b>squared</b>\n'
    'print("it\'s", area(2))'
)
FORMULAS = r"""Inline $x^2 + \frac{1}{2}$ and \(a_n\), but not $5 or $10.

$$
\sum_{k=1}^{n} k = \frac{n(n+1)}{2}
$$

\[
A = \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
\]

Wrong: $\href{javascript:alert(1)}{x}$ and $\unknown<img src=x onerror=alert(1)>$."""


def session_of(page: Page) -> str:
    return unquote(page.url.rpartition("/")[2].partition("?")[0])


async def choose(page: Page, action: str) -> None:
    """Choose an action from the menu of the open session."""
    await page.get_by_role("button", name="Session actions").click()
    await page.get_by_role("menuitem", name=action).click()


# --- Markdown ---------------------------------------------------------------------------------------------


async def test_code_is_highlighted_and_copied_unchanged(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    text = f"```python\n{CODE}\n```\n\n```brainfuck\n+[->+<]\n```"
    api.post(session, "agent.response.v1", message=text)
    page = await open_window(
        chat_url(crumb_up.url, session), permissions=["clipboard-read", "clipboard-write"]
    )
    block = answers(page).locator(".code").first
    await expect(block.locator("pre")).to_have_text(CODE)
    await expect(block.locator(".token-keyword")).to_have_text(["def", "return"])
    await expect(block.locator(".token-string")).to_have_text(['"""Area."""', '"it\'s"'])
    await expect(block.locator(".token-number")).to_have_text(["3.14", "2", "2"])
    await expect(block.locator(".token-comment")).to_have_text("# <b>squared</b>")
    await expect(answers(page).locator(".code").last.locator("span[class^=token]")).to_have_count(0)
    await block.get_by_role("button", name="Copy code").click()
    await expect(page.get_by_text("Copied.")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == CODE


async def test_columns_of_a_table_are_aligned(crumb_up: CrumbUp, open_window: OpenWindow, api: Api) -> None:
    session = new_session_id()
    api.post(session, "agent.response.v1", message="| a | b | c |\n|:-|:-:|-:|\n| 1 | 2 | 3 |")
    page = await open_window(chat_url(crumb_up.url, session))
    cells = answers(page).locator("td")
    await expect(cells).to_have_text(["1", "2", "3"])
    alignments = await cells.evaluate_all("all => all.map(cell => getComputedStyle(cell).textAlign)")
    assert alignments == ["left", "center", "right"]


async def test_formulas_are_mathml_and_cannot_inject_anything(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    api.post(session, "agent.response.v1", message=FORMULAS)
    page = await open_window(chat_url(crumb_up.url, session))
    answer = answers(page)
    formulas = answer.locator("math")
    await expect(formulas).to_have_count(4)
    namespaces = await formulas.evaluate_all("all => all.map(one => one.firstElementChild.namespaceURI)")
    assert set(namespaces) == {"http://www.w3.org/1998/Math/MathML"}
    assert await formulas.evaluate_all("all => all.map(one => one.getAttribute('display'))") == [
        "inline",
        "inline",
        "block",
        "block",
    ]
    await expect(answer.locator("munderover, mtable")).to_have_count(2)
    assert await answer.locator("mfrac").first.evaluate("one => one.getBoundingClientRect().height") > 10
    await expect(answer).to_contain_text("but not $5 or $10.")
    await expect(answer.locator("code.tex")).to_have_text(
        [r"\href{javascript:alert(1)}{x}", r"\unknown<img src=x onerror=alert(1)>"]
    )
    await expect(answer.locator("a, img")).to_have_count(0)


async def test_large_code_and_pathological_formulas_do_not_block_the_page(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    for piece in ("$", "$$\n", "$x ", "\\(", "\\[\n- a\n", "$`", "\\[ a\n"):
        api.post(session, "agent.response.v1", message=piece * (20_000 // len(piece)))
    for tex in ("{" * 1_900, "x^" * 900, r"\frac{" * 300, r"\hat" * 400, "^{_" * 600):
        api.post(session, "agent.response.v1", message=f"$${tex}$$")
    for piece in ('"', "/*", "'''", "a ", "<a b=", "#", "1_"):
        for language in ("js", "python", "html", "css"):
            message = f"```{language}\n{piece * (19_000 // len(piece))}\n```"
            api.post(session, "agent.response.v1", message=message)
    api.post(session, "agent.response.v1", message="```js\n" + "let a = 1;\n" * 30_000 + "```")
    api.post(session, "agent.response.v1", message="the last word")
    page = await open_window(chat_url(crumb_up.url, session))
    await expect(answers(page).last).to_have_text("the last word", timeout=20_000)


# --- Edit and regenerate ----------------------------------------------------------------------------------


async def test_an_edited_message_is_answered_in_a_fork(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(chat_url(crumb_up.url))
    word = new_session_id()
    for number, text in enumerate([f"say: {word} one", "say: two", "say: three"], 1):
        await say(page, text)
        await expect(answers(page)).to_have_count(number)
    origin = session_of(page)
    second = page.locator(".said.user").nth(1)
    await second.hover()
    await second.get_by_role("button", name="Edit message").click()
    editor = page.get_by_role("textbox", name="Edit message")
    await expect(editor).to_have_value("say: two")
    await editor.press("Escape")
    await expect(editor).to_have_count(0)
    await second.get_by_role("button", name="Edit message").click()
    await editor.fill("say: 2")
    await page.get_by_role("button", name="Send in fork").click()

    await expect(said(page)).to_have_text([f"say: {word} one", "say: 2"])
    await expect(answers(page)).to_have_text([f"{word} one", "2"])
    assert session_of(page) != origin
    await expect(page.locator(".chat-title")).to_contain_text("(fork)")
    await expect(page.get_by_text("The original session is unchanged.")).to_be_visible()
    await page.reload()
    await page.locator(".fork-notice").get_by_role("link", name=f"say: {word} one").click()
    await expect(said(page)).to_have_text([f"say: {word} one", "say: two", "say: three"])
    assert session_of(page) == origin
    await expect(page.locator(".fork-notice")).to_have_count(0)


async def test_an_answer_is_regenerated_in_a_fork(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(chat_url(crumb_up.url))
    word = new_session_id()
    await say(page, f"say: {word}")
    await expect(answers(page)).to_have_count(1)
    origin = session_of(page)
    await page.locator(".said.agent").hover()
    await page.get_by_role("button", name="Answer again in a fork").click()
    await expect(page.locator(".fork-notice")).to_contain_text(f"Fork of say: {word}")
    await expect(said(page)).to_have_text([f"say: {word}"])
    await expect(answers(page)).to_have_text([word])
    assert session_of(page) != origin
    await page.go_back()
    await expect(answers(page)).to_have_text([word])
    assert session_of(page) == origin


# --- Session list -----------------------------------------------------------------------------------------


async def test_sessions_are_grouped_by_the_day_of_their_last_activity(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    for number in range(5):
        api.post(new_session_id(f"group{number}"), "agent.response.v1", message="x")
    page = await open_window("about:blank")
    now = await page.evaluate("new Date().setHours(12, 0, 0, 0)")
    ages = [0, 1, 3, 20, 400]

    async def make_older(route: Route) -> None:
        reply = await route.fetch()
        body = await reply.json()
        for index, session in enumerate(body["sessions"]):
            time = now - ages[min(index, 4)] * 86_400_000
            session["last_active_at"] = await page.evaluate("time => new Date(time).toISOString()", time)
        await route.fulfill(response=reply, json=body)

    await page.route(re.compile(r"/sessions\?limit"), make_older)
    await page.goto(chat_url(crumb_up.url))
    month = await page.evaluate(
        "time => new Intl.DateTimeFormat(undefined, {month: 'long', year: 'numeric'}).format(time)",
        now - 400 * 86_400_000,
    )
    groups = page.locator("#sessions .session-group")
    await expect(groups).to_have_text(["Today", "Yesterday", "Last 7 days", "Last 30 days", month])
    await expect(page.get_by_role("region", name="Yesterday").locator(".session")).to_have_count(1)


async def is_in_view(element: Locator) -> bool:
    found = await element.evaluate(
        """element => {
            const { top, bottom } = element.getBoundingClientRect();
            const frame = element.closest(".chat-frame").getBoundingClientRect();
            return top >= frame.top && bottom <= frame.bottom;
        }"""
    )
    return bool(found)


async def test_a_search_finds_an_old_message_and_opens_it(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session, word = new_session_id("searched"), new_session_id("needle")
    old = api.post(session, "agent.response.v1", message=f"Long ago the *{word}* was mentioned.")
    for number in range(120):
        api.post(session, "agent.response.v1", message=f"number {number}")
    api.name(session, "A conversation about something else")
    page = await open_window(chat_url(crumb_up.url))
    await expect(sessions(page).first).to_be_visible()
    await page.locator("#session-search").fill(word.upper())
    match = page.locator(".found .match")
    await expect(match).to_have_count(1)
    await expect(match).to_contain_text("A conversation about something else")
    await expect(match.locator("mark")).to_have_text(word)
    await match.click()
    message = page.locator(f'.said[data-id="{old}"]')
    await expect(message).to_be_focused()
    assert await is_in_view(message)
    await page.locator("#session-search").fill("something else")
    await expect(sessions(page).filter(has_text="A conversation about something else")).to_have_count(1)
    await page.locator("#session-search").fill(new_session_id("nowhere"))
    await expect(page.get_by_text("No matching messages.")).to_be_visible()


# --- Export -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["Export as Markdown", "Export as JSON"])
async def test_a_whole_conversation_is_exported(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api, action: str, tmp_path: Path
) -> None:
    session = new_session_id("export")
    ids = [
        api.post(session, "agent.response.v1", message=f"answer {number}", creator={"agent_id": "a"})
        for number in range(210)
    ]
    api.post(session, "tool.request.v1", tool="clock", request_id="r", input={"zone": "```"})
    api.name(session, 'My: "trip" / 2026?')
    page = await open_window(chat_url(crumb_up.url, session))
    await expect(answers(page).last).to_be_visible()
    async with page.expect_download() as downloading:
        await choose(page, action)
    download = await downloading.value
    assert download.suggested_filename.startswith("My trip 2026.")
    await download.save_as(tmp_path / "file")
    text = (tmp_path / "file").read_text("utf-8")
    if action == "Export as JSON":
        content = json.loads(text)
        assert content["session"]["id"] == session
        assert [message["id"] for message in content["messages"]][:-1] == ids
    else:
        assert text.startswith('# My: "trip" / 2026?\n') and f"`{session}`" in text
        assert text.count("\n## Agent `a` · ") == 210 and "Tool request `clock`" in text
        assert text.index("answer 0\n") < text.index("answer 209\n")
        assert '````json\n{\n  "zone": "```"\n}\n````' in text


# --- Attached pages ---------------------------------------------------------------------------------------


async def test_an_attached_page_is_shown_with_its_message(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id("attached")
    fields = {"selection": False, "truncated": True, "text": "<b>All</b> about tides"}
    api.post(session, "page.content.v1", url="https://example.org/tides?x=1", **fields)
    page = await open_window(chat_url(crumb_up.url, session))
    chip = page.locator(".attached-page")
    await expect(chip).to_have_count(1)
    await say(page, "say: read")
    await expect(answers(page)).to_have_count(1)
    api.post(session, "page.content.v1", url="javascript:alert(1)", **fields)
    await expect(chip).to_have_count(2)  # live, after the last message
    for _ in range(2):
        await expect(page.locator(".turn .attached-page")).to_have_count(1)
        first = page.locator(".turn .attached-page")
        await expect(first).to_contain_text("example.org")
        await first.locator("summary").click()
        await expect(first.locator("pre")).to_have_text("<b>All</b> about tides")
        await expect(first).to_contain_text("22 characters, shortened")
        assert await first.locator("a").get_attribute("href") == "https://example.org/tides?x=1"
        await expect(chip.last.locator("a")).to_have_count(0)
        await page.reload()
        await expect(chip).to_have_count(2)


# --- Shortcuts --------------------------------------------------------------------------------------------


async def test_shortcuts_change_sessions_but_never_while_typing(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    older, newer = new_session_id("older"), new_session_id("newer")
    for session in (older, newer):
        api.post(session, "agent.response.v1", message="x")
        api.name(session, session)
    page = await open_window(chat_url(crumb_up.url, newer))
    current = page.locator(".session.current")
    await expect(current).to_contain_text(newer)
    await page.locator("main").focus()
    await page.keyboard.press("j")
    await expect(current).to_contain_text(older)
    await page.keyboard.press("k")  # the composer did not take the focus
    await expect(current).to_contain_text(newer)
    await page.keyboard.press("/")
    await expect(page.locator("#session-search")).to_be_focused()
    await page.keyboard.type("njk?m/w")
    await expect(page.locator("#session-search")).to_have_value("njk?m/w")
    await page.keyboard.press("Alt+ArrowDown")
    assert session_of(page) == newer
    await page.locator("#session-search").fill("")
    await page.locator("main").focus()
    await page.keyboard.press("m")
    await expect(page.locator("#composer")).to_be_focused()
    await page.keyboard.type("jn?")
    await expect(page.locator("#composer")).to_have_value("jn?")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.locator("main").focus()
    await page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    for name in ("New session", "Next session", "Search sessions and messages", "Write a message"):
        await expect(dialog.get_by_text(name).first).to_be_visible()


# --- Accessibility ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
async def test_axe_finds_nothing_serious_in_code_formulas_and_results(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api, scheme: str, width: int
) -> None:
    session, word = new_session_id("axe"), new_session_id("word")
    api.post(session, "page.content.v1", url="https://example.org/", text="About tides")
    message = api.post(session, "user.message.v1", message="say: hello")
    text = (
        f"{FORMULAS}\n\n```python\n@x\n{CODE}\n```\n\n```diff\n- a\n+ b\n```\n\n```yaml\na: true\n```\n{word}"
    )
    api.post(session, "agent.response.v1", message=text, trigger_id=message)
    page = await open_window(
        chat_url(crumb_up.url, session),
        viewport={"width": width, "height": 780},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    await expect(answers(page).locator("math").first).to_be_visible()
    await page.locator(".attached-page summary").click()
    user = page.locator(".said.user").first
    await user.hover()
    await user.get_by_role("button", name="Edit message").click()
    assert await serious(page) == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.evaluate(overflow) <= 0
    chip = await page.locator(".attached-page").bounding_box()
    assert chip is not None and chip["x"] + chip["width"] <= width
    if width == 390:
        await page.get_by_role("button", name="Show sessions").click()
    await page.locator("#session-search").fill(word)
    await expect(page.locator(".found .match")).to_have_count(1)
    assert await serious(page) == []
