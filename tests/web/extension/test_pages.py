"""Pages that the chat extension attaches, and script injection in foreign content."""

from __future__ import annotations

import json

from playwright.async_api import expect

from breadcrumbs.runtime.settings.settings import OWN_EXTENSION
from tests.web.extension_support import (
    EXTENSION,
    FOREIGN_HOST,
    Blackboard,
    Chrome,
    answers,
    readme_json,
    say,
    web_page,
)

INJECTION = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


async def test_the_extension_has_the_id_that_servers_allow_by_default(installed: Chrome) -> None:
    assert installed.url("").rstrip("/") == OWN_EXTENSION


# --- Pages -----------------------------------------------------------------------------------------------

ARTICLE = f"""<!doctype html><title>On crumbs {INJECTION.replace("<", "&lt;")}</title>
<p id="first">Crumbs lead home.</p><p style="display:none">A hidden paragraph</p>
<input value="a typed secret"><p>{"long text " * 2000}</p>"""


async def test_a_page_is_attached_after_a_click_and_reaches_the_model(
    chrome: Chrome, board: Blackboard, session: str
) -> None:
    config = json.loads((EXTENSION.parent / "config" / "context-builder-config.json").read_text("utf-8"))
    assert json.loads(readme_json()[0]) in config["sources"]
    with web_page(ARTICLE) as port:
        panel = await chrome.panel(session)
        page = await chrome.context.new_page()
        await page.goto(f"http://{FOREIGN_HOST}:{port}/article?page=1#part")
        await panel.get_by_role("button", name="Attach page").click()
        await expect(panel.locator("#advice")).to_contain_text("Click the Breadcrumbs icon")
        assert board.crumbs(session, "page.content.v1") == []

        await chrome.click_icon(page)
        card = panel.locator(".page .page-card")
        await expect(card).to_contain_text("On crumbs <img")
        await expect(card).to_contain_text("page attached · 8,000 characters, truncated")
        await expect(panel.locator("#advice")).to_be_hidden()
        assert chrome.url("panel.html") in [
            address.partition("#")[0] for address in await chrome.open_documents()
        ]

        [crumb] = board.crumbs(session, "page.content.v1")
        assert crumb["tags"] == ["page:content", "extension:chat", f"session:{session}"]
        assert crumb["context"]["url"] == f"http://{FOREIGN_HOST}:{port}/article?page=1"
        assert crumb["context"]["text"].startswith("Crumbs lead home.")
        assert "hidden" not in crumb["context"]["text"] and "secret" not in crumb["context"]["text"]
        assert len(crumb["context"]["text"]) == 8000
        documented = json.loads(readme_json()[1])
        assert crumb["context"].keys() - {"session_id"} == documented["context"].keys()

        await say(panel, "What do you see?")
        await expect(answers(panel)).to_contain_text("1 attached page, no messages from elsewhere")
        [context] = board.crumbs(session, "agent.context.v1")
        assert "Crumbs lead home." in json.dumps(context["context"]["parts"])

        await card.get_by_role("button").click()
        await expect(card).to_have_count(0)
        assert board.crumbs(session, "page.content.v1") == []


async def test_only_the_selected_text_is_attached(chrome: Chrome, board: Blackboard, session: str) -> None:
    with web_page(ARTICLE) as port:
        panel = await chrome.panel(session)
        page = await chrome.context.new_page()
        await page.goto(f"http://127.0.0.1:{port}/")  # a local page: no click needed
        await page.locator("#first").select_text()
        await panel.keyboard.press("Alt+a")
        await expect(panel.locator(".page .page-card")).to_contain_text("selected text attached")
    [crumb] = board.crumbs(session, "page.content.v1")
    assert crumb["context"]["text"] == "Crumbs lead home."
    assert crumb["context"]["selection"] is True and crumb["context"]["truncated"] is False


async def test_a_page_that_no_extension_can_read_is_refused_with_an_explanation(
    chrome: Chrome, session: str
) -> None:
    panel = await chrome.panel(session)
    page = await chrome.context.new_page()
    await page.goto("chrome://version")
    await panel.get_by_role("button", name="Attach page").click()
    await expect(panel.locator("#advice")).to_contain_text(
        "Chrome does not allow extensions to read this page"
    )


# --- Foreign content is text -----------------------------------------------------------------------------


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


async def test_the_browser_refuses_html_and_foreign_script_in_the_extension(
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


# --- Answers ---------------------------------------------------------------------------------------------


async def test_an_answer_shows_tables_and_strikethrough_and_code_can_be_copied(
    chrome: Chrome, board: Blackboard, session: str
) -> None:
    code = "let a = '<b>';\n\nlet b = 2;"
    board.post(
        session,
        "agent.response.v1",
        message=f"~~old~~\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```js\n{code}\n```",
        creator={"type": "agent", "agent_id": "tester"},
    )
    panel = await chrome.panel(session)
    answer = answers(panel)
    copy = answer.locator("button.copy")
    await expect(answer.locator("del")).to_have_text("old")
    await expect(answer.locator("td")).to_have_text(["1", "2"])
    # The button shows a result for 1.5 s only, so all its labels are recorded.
    await copy.evaluate(
        "(button) => { window.labels = [];"
        " new MutationObserver(() => window.labels.push(button.textContent)).observe(button, {childList: true}); }"
    )
    await panel.evaluate(
        "() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }"
    )
    await copy.click()
    await panel.wait_for_function("() => window.labels.join() === 'Copied,Copy'")
    assert await panel.evaluate("() => window.copied") == code
    await panel.evaluate("() => { navigator.clipboard.writeText = async () => { throw new Error('no'); }; }")
    await copy.click()
    await panel.wait_for_function("() => window.labels.join() === 'Copied,Copy,Not copied,Copy'")
