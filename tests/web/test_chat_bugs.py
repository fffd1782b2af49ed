"""The chat page in situations that once went wrong: old sessions, no workers, keyboards, forks, URLs in errors."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Route, expect

from tests.client.support import CRUMB, CrumbUp, environment
from tests.support.model_server import ModelServer
from tests.support.servers import Server
from tests.web.chat import Api, answers, chat_url, expect_connected, new_session_id, said, say
from tests.web.configs import MESSAGES, config, run_server
from tests.web.conftest import MakeCrumbUp, OpenWindow


@contextmanager
def running(folder: Path, *arguments: str, **settings: str) -> Iterator[str]:
    """Run a command of the CLI, and yield the first line of its output."""
    with running_process(folder, *arguments, **settings) as process:
        assert process.stdout is not None
        yield process.stdout.readline()


@contextmanager
def running_process(folder: Path, *arguments: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    with (folder / "stderr").open("ab") as errors:
        process = subprocess.Popen(
            [CRUMB, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            env=environment(**settings),
            text=True,
        )
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def make_sessions(url: str, count: int) -> None:
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        for number in range(count):
            made = client.post("/sessions", json={"id": f"old-{number}", "title": f"Session {number}"})
            assert made.status_code == 201, made.text


async def test_an_old_session_has_its_title_and_menu_after_a_deep_link_and_a_reload(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    make_sessions(up.url, 45)
    page = await open_window(chat_url(up.url, "old-0"))
    for _ in range(2):
        await expect(page.locator(".chat-title")).to_have_text("Session 0")
        await expect(page.get_by_role("button", name="Session actions")).to_be_visible()
        await expect(page.locator(".session.current")).to_contain_text("Session 0")
        await expect(page.locator(".session")).to_have_count(41)
        await page.reload()
    await page.goto(chat_url(up.url, "old-1"))
    await expect(page.locator(".chat-title")).to_have_text("Session 1")


async def test_missing_workers_are_named_with_the_commands_that_start_them(
    tmp_path: Path, open_window: OpenWindow
) -> None:
    with Server() as server, running(tmp_path, "serve", "--redis", server.url, "--port", "0") as line:
        page = await open_window(chat_url(json.loads(line)["url"], new_session_id()))
        await expect_connected(page)
        await say(page, "Is anybody there?")
        notice = page.locator(".no-worker")
        await expect(notice).to_contain_text("No context builder and no agent runner is running.")
        await expect(notice.locator("code")).to_have_text(["crumb build-contexts", "crumb run-agents"])
        await expect(page.locator(".dots")).to_have_count(0)
        with running(tmp_path, "build-contexts", "--redis", server.url):
            await expect(notice).to_contain_text("No agent runner is running.")
            await expect(notice.locator("code")).to_have_text(["crumb run-agents"])
            with running(tmp_path, "run-agents", "--redis", server.url):
                await expect(answers(page)).to_have_count(1)
                await expect(notice).to_have_count(0)


async def test_an_answer_that_stalls_because_its_worker_ended_says_so(
    tmp_path: Path, open_window: OpenWindow
) -> None:
    with (
        ModelServer() as models,
        Server() as server,
        running(tmp_path, "serve", "--redis", server.url, "--port", "0") as line,
        running(tmp_path, "build-contexts", "--redis", server.url),
    ):
        model = models.scenario("stalls", delay=600)
        runner = ("run-agents", "--redis", server.url)
        page = await open_window(chat_url(json.loads(line)["url"], new_session_id()))
        await expect_connected(page)
        notice, draft = page.locator(".no-worker"), page.locator(".draft .prose")
        with running_process(tmp_path, *runner, CRUMB_MODEL=f"{model.url}#test") as process:
            await say(page, "Begin!")
            await expect(draft).to_contain_text("Well,")
            # Text is saved 0.1 s after it was published. A page that joins later shows what is saved.
            await page.reload()
            await expect(draft).to_contain_text("Well,")
            process.kill()
            await expect(notice).to_contain_text("No agent runner is running.")
            await expect(draft).to_contain_text("Well,")
            await page.reload()
            await expect(draft).to_contain_text("Well,")
            await expect(notice.locator("code")).to_have_text(["crumb run-agents"])
        model.behaviour, model.options["text"] = "normal", "The end."
        with running(tmp_path, *runner, CRUMB_MODEL=f"{model.url}#test"):
            await expect(answers(page)).to_have_text(["The end."])
            await expect(notice).to_have_count(0)


async def test_enter_sends_unless_the_device_has_only_a_touch_screen(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    pointers = """
        window.matchMedia = (query) => ({
            matches: query.includes("any-pointer") && %s.some((kind) => query.includes(kind)),
            addEventListener() {}, removeEventListener() {}, addListener() {}, removeListener() {},
        });
    """
    for kinds, sends in (("['coarse']", False), ("['coarse', 'fine']", True), ("[]", True)):
        page = await open_window("about:blank")
        await page.add_init_script(pointers % kinds)
        await page.goto(chat_url(crumb_up.url, new_session_id()))
        composer = page.locator("#composer")
        await expect(composer).to_have_attribute("enterkeyhint", "send" if sends else "enter")
        await composer.fill("Hello!")
        await composer.press("Enter")
        if sends:
            await expect(said(page)).to_have_text(["Hello!"])
        else:
            await expect(composer).to_have_value("Hello!\n")


async def test_forks_are_named_after_their_origin(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    page = await open_window(chat_url(crumb_up.url, session))
    await say(page, "Hello!")
    await expect(answers(page)).to_have_count(1)
    origin = f"Plans {session}"
    api.name(session, origin)
    title = page.locator(".chat-title")
    await expect(title).to_have_text(origin)
    for expected in (f"{origin} (fork)", f"{origin} (fork 2)", f"{origin} (fork 3)"):
        await page.get_by_role("button", name="Session actions").click()
        await page.get_by_role("menuitem", name="Fork").click()
        await expect(title).to_have_text(expected)
        await expect(answers(page)).to_have_count(1)


async def test_an_error_that_starts_with_a_url_keeps_its_case(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    texts = {
        "http://127.0.0.1:9/v1 cannot be reached": "http://127.0.0.1:9/v1 cannot be reached.",
        "max_tokens is too large": "max_tokens is too large.",
        "the model gave no answer": "The model gave no answer.",
    }
    for error in texts:
        api.post(session, "agent.error.v1", "agent:error", error=error)
    page = await open_window(chat_url(crumb_up.url, session))
    shown = page.locator(".said.agent .notice .grow")
    await expect(shown).to_have_text([f"No answer. {text}" for text in texts.values()])


async def test_the_why_panel_reports_what_the_sources_did_not_fetch(
    tmp_path: Path, open_window: OpenWindow
) -> None:
    messages: dict[str, Any] = MESSAGES | {"fetch": {"method": "recent", "limit": 2}}
    prices: dict[str, Any] = {"key": "prices", "schema_name": "price.list.v1", "all_tags": ["price"]}
    prices["fetch"] = {"method": "latest"}
    tools = {"key": "tools", "schema_name": "tool.catalog.v1", "fetch": {"method": "latest"}}
    with run_server(tmp_path, config(sources=[messages, prices, tools])) as server:
        session = new_session_id()
        for number in range(3):
            answer = server.say(session, f"question {number}")
        assert server.explain(answer)["left_out"] == []
        page = await open_window(chat_url(server.url, session))
        await page.get_by_role("button", name="Why this answer?").last.click()
        section = page.locator("section", has=page.locator("#why-out"))
        await expect(section.locator("#why-out .badge")).to_have_text("0+")
        await expect(section).not_to_contain_text("Nothing.")
        for badge, text in (
            ("not fetched", "More than 2 of user.message.v1conversation · limit 2"),
            ("found nothing", "pricesthe newest one of price.list.v1 with price"),
            ("no source", "agent.response.v1"),
        ):
            group = section.locator(".why-out").filter(has=page.locator(".badge", has_text=badge))
            await expect(group.locator("li")).to_contain_text([text])


async def test_the_default_config_leaves_nothing_out_of_a_short_session(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    """Empty sources and the tool calls of a finished turn are normal, so they are no news."""
    page = await open_window(chat_url(crumb_up.url, new_session_id()))
    for number, text in enumerate(["What is 6*7?", "Thanks!"], 1):
        await say(page, text)
        await expect(answers(page)).to_have_count(number)
        await page.get_by_role("button", name="Why this answer?").last.click()
        section = page.locator("section", has=page.locator("#why-out"))
        await expect(section).to_have_text(
            "Left out 0Nothing. Everything that matches the sources is included."
        )
        await page.keyboard.press("Escape")


async def test_a_fork_whose_reply_is_lost_is_not_made_twice(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    page = await open_window(chat_url(crumb_up.url, session))
    await say(page, "Hello!")
    await expect(answers(page)).to_have_count(1)
    origin = f"Plans {session}"
    api.name(session, origin)
    title = page.locator(".chat-title")
    await expect(title).to_have_text(origin)
    lost = 0

    async def lose_reply(route: Route) -> None:
        nonlocal lost
        lost += 1
        await route.fetch()
        await route.abort()

    await page.route("**/fork", lose_reply, times=1)
    actions = page.get_by_role("button", name="Session actions")
    await actions.click()
    await page.get_by_role("menuitem", name="Fork").click()
    await expect(page.get_by_text("Forking failed")).to_be_visible()
    forks = page.locator(".session", has_text=origin)
    await expect(forks).to_have_count(2)  # the fork exists
    await actions.click()
    await page.get_by_role("menuitem", name="Fork").click()
    await expect(title).to_have_text(f"{origin} (fork)")
    assert lost == 1
    await page.reload()
    await expect(forks).to_have_count(2)
