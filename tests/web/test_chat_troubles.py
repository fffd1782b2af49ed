"""The chat page under failures: refusals, replaced stores, wrong clocks, background tabs, another key."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
from contextlib import closing
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Page, Request, Route, expect

from tests.client.support import CrumbUp, Line
from tests.web import configs
from tests.web.chat import Api, answers, chat_url, expect_connected, new_session_id, said, say, sessions
from tests.web.conftest import ControlledServer, MakeCrumbUp, OpenWindow
from tests.web.extension_support import Blackboard, kill

KEYS = {name: f"the-key-of-{name}-which-is-long-enough" for name in ("ann", "bob")}
WITH_KEYS = json.dumps(
    [
        {"key": key, "owner_id": f"aaaaaaaa-0000-4000-8000-00000000000{number}"}
        for number, key in enumerate(KEYS.values())
    ]
)
GAP = 'event: gap\ndata: {"type":"gap"}\n\n'


class Refusal:
    """Refuses posted messages of a page while `on` is true. Status 0 aborts the request."""

    def __init__(self, page: Page, status: int = 0, only: str = "") -> None:
        self.page, self.status, self.only, self.on = page, status, only, True

    async def install(self) -> None:
        await self.page.route("**/messages*", self._answer)

    async def _answer(self, route: Route) -> None:
        asked = route.request
        if not self.on or asked.method != "POST" or self.only not in (asked.post_data or ""):
            await route.continue_()
        elif self.status == 0:
            await route.abort()
        else:
            problem = {"title": "Refused", "status": self.status, "detail": f"refused with {self.status}"}
            await route.fulfill(status=self.status, json=problem, content_type="application/problem+json")


async def refuse_posts(page: Page, status: int = 0, only: str = "") -> Refusal:
    refusal = Refusal(page, status, only)
    await refusal.install()
    return refusal


async def enter_key(page: Page, key: str) -> None:
    dialog = page.get_by_role("dialog", name="Enter your API key")
    await dialog.get_by_label("API key or token").fill(key)
    await dialog.get_by_role("button", name="Sign in").click()
    await expect(dialog).to_have_count(0)


async def wait_for_messages(page: Page, api: Api, session: str, *texts: str) -> None:
    async with asyncio.timeout(30):
        while api.messages(session) != list(texts):
            await page.wait_for_timeout(100)


# --- Unsent messages --------------------------------------------------------------------------------------


async def test_a_refused_message_does_not_block_later_ones(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(crumb_up.url, new_session_id()))
    await refuse_posts(page, 422, only="not this")
    await say(page, "not this")
    refused = page.locator(".unsent.refused")
    await expect(refused).to_contain_text("Refused with 422.")
    await say(page, "but this")
    await expect(said(page)).to_have_text(["but this"])
    await expect(refused).to_have_count(1)
    await refused.get_by_role("button", name="Discard").click()
    await expect(page.locator(".unsent")).to_have_count(0)


async def test_a_message_refused_for_its_key_is_sent_with_the_next_key(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(make_crumb_up(CRUMB_API_KEYS=WITH_KEYS).url, "talk"))
    await enter_key(page, KEYS["ann"])
    await expect_connected(page)
    refusal = await refuse_posts(page, 401)
    await say(page, "first")
    await expect(page.get_by_role("dialog", name="Enter your API key")).to_be_visible()
    refusal.on = False
    await enter_key(page, KEYS["ann"])
    await expect(said(page)).to_have_text(["first"])
    await say(page, "second")
    await expect(said(page)).to_have_text(["first", "second"])


async def test_an_unsent_message_is_sent_while_another_session_or_page_is_open(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    one, two = new_session_id("one"), new_session_id("two")
    page = await open_window(chat_url(crumb_up.url, one))
    refusal = await refuse_posts(page)
    await say(page, "from one")
    await expect(page.locator(".unsent")).to_contain_text("Retrying automatically")
    await page.goto(chat_url(crumb_up.url, two))
    await expect(page.locator(".unsent")).to_have_count(0)
    refusal.on = False
    await wait_for_messages(page, api, one, "from one")
    # Its own session shows it once.
    await page.goto(chat_url(crumb_up.url, one))
    await expect(said(page)).to_have_text(["from one"])
    # It is also sent after a reload on a page without a chat.
    refusal.on = True
    await say(page, "once more")
    await expect(page.locator(".unsent")).to_contain_text("Retrying automatically")
    await page.goto(f"{crumb_up.url}/#/board")
    await page.reload()
    refusal.on = False
    await wait_for_messages(page, api, one, "from one", "once more")


async def test_a_message_older_than_a_day_is_not_resent_automatically(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    page = await open_window("about:blank")
    await page.clock.install()
    await page.goto(chat_url(crumb_up.url, session))
    refusal = await refuse_posts(page)
    await say(page, "before I sleep")
    await expect(page.locator(".unsent")).to_contain_text("Retrying automatically")
    refusal.on = False
    await page.clock.fast_forward("25:00:00")
    refused = page.locator(".unsent.refused")
    await expect(refused).to_contain_text("Check the conversation before you retry")
    assert api.messages(session) == []
    await refused.get_by_role("button", name="Retry").click()
    await expect(said(page)).to_have_text(["before I sleep"])


# --- Shown and stored state -------------------------------------------------------------------------------


async def test_an_edit_of_an_old_message_does_not_move_it_to_the_end(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    ids = [api.post(session, "agent.response.v1", message=f"number {number}.") for number in range(60)]
    page = await open_window(chat_url(crumb_up.url, session))
    await expect_connected(page)
    await expect(answers(page).last).to_have_text("number 59.")
    shown = await answers(page).count()
    assert shown < 60
    api.change(ids[0], message="edited", session_id=session)
    api.post(session, "agent.response.v1", message="the end")
    await expect(answers(page).last).to_have_text("the end")
    await page.wait_for_timeout(500)
    await expect(answers(page)).to_have_count(shown + 1)
    await expect(answers(page).first).not_to_have_text("edited")
    await page.locator(".chat-frame").evaluate("frame => frame.scrollTo(0, 0)")
    await expect(answers(page).first).to_have_text("edited")


async def test_the_page_notices_another_store_at_the_same_address(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    page = await open_window(chat_url(up.url))
    await say(page, "in the old store")
    await expect(answers(page)).to_have_count(1)
    await expect(sessions(page)).to_have_count(1)
    await expect_connected(page)
    kill(up)
    shutil.rmtree(up.data)
    up.start()
    await expect_connected(page)
    await expect(said(page)).to_have_count(0)
    await expect(sessions(page)).to_have_count(0)
    await say(page, "in the new store")
    await expect(answers(page)).to_have_count(1)
    await expect(sessions(page)).to_have_count(1)


async def test_a_deleted_and_recreated_session_is_shown_with_its_new_title(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session, old, new = new_session_id(), new_session_id("old"), new_session_id("new")
    api.post(session, "note.v1")
    for _ in range(3):
        api.name(session, old)
    page = await open_window("about:blank")
    await page.route("**/events/stream*", lambda route: route.abort())
    await page.goto(chat_url(crumb_up.url))
    await expect(sessions(page).filter(has_text=old)).to_have_count(1)
    api.remove_session(session)
    api.post(session, "note.v1")
    api.name(session, new)
    await page.evaluate("window.dispatchEvent(new Event('focus'))")
    await expect(sessions(page).filter(has_text=new)).to_have_count(1)
    await expect(sessions(page).filter(has_text=old)).to_have_count(0)


async def test_more_sessions_can_be_loaded_after_a_failed_first_request(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    with closing(Api(up.url)) as client:
        for number in range(45):
            client.post(f"s{number}", "note.v1")
    page = await open_window("about:blank")
    await page.route("**/sessions?*", lambda route: route.abort())
    await page.goto(chat_url(up.url))
    again = page.get_by_role("button", name="Retry")
    await expect(again).to_be_visible()
    await say(page, "Hello")
    await expect(answers(page)).to_have_count(1)
    await page.unroute("**/sessions?*")
    more = page.get_by_role("button", name="Load more")
    for _ in range(5):  # a request that began before `unroute` can still be aborted
        # Not a mouse click: the list can load just before it and put "Load more" in the same place.
        await again.evaluate_all("buttons => buttons.forEach(button => button.click())")
        await expect(more.or_(again)).to_be_visible()
        if await more.is_visible():
            break
    await expect(more).to_be_visible()


async def test_many_active_sessions_cause_few_session_requests(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    page = await open_window(chat_url(up.url))
    await expect_connected(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/sessions" in request.url else None)
    with closing(Api(up.url)) as client:
        for round in range(2):
            for number in range(30):
                client.post(f"s{number}", "agent.response.v1", "agent:response", message=f"{round}")
    await expect(sessions(page)).to_have_count(30)
    await page.wait_for_timeout(1_500)
    assert len(asked) < 20, asked


async def test_a_deleted_session_is_no_longer_counted_as_unread(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    page = await open_window(chat_url(up.url))
    await expect_connected(page)
    with closing(Api(up.url)) as client:
        client.post("elsewhere", "agent.response.v1", "agent:response", message="Hello")
        await expect(page).to_have_title(re.compile(r"^\(1\) "))
        client.remove_session("elsewhere")
    await expect(sessions(page)).to_have_count(0)
    await expect(page).to_have_title(re.compile(r"^Chat"))


async def test_an_answer_is_rendered_the_same_live_and_after_a_reload(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    page = await open_window(chat_url(crumb_up.url, session))
    await expect_connected(page)
    api.post(session, "agent.response.v1", verdict={"yes": 1, "no": None}, session_id=session)
    api.post(session, "agent.response.v1", parts=["one ", {"text": "two"}, {"picture": "x"}])
    api.post(session, "agent.response.v1", response_text="words", verdict=2)
    texts = ['{"verdict":{"yes":1}}', "one two", "words"]
    await expect(answers(page)).to_have_text(texts)
    await page.reload()
    await expect(answers(page)).to_have_text(texts)


async def test_an_error_of_another_agent_does_not_remove_the_draft_of_a_retry(
    controlled: ControlledServer, open_window: OpenWindow
) -> None:
    controlled.behave("failing", status=400)
    session = new_session_id()
    page = await open_window(chat_url(controlled.url, session))
    await expect_connected(page)
    await say(page, "Hello")
    error = page.locator(".said.agent[aria-label=Error]")
    await expect(error).to_be_visible()
    controlled.behave("normal", text="One two three four five six seven eight nine ten eleven.", pause=0.4)
    await error.get_by_role("button", name="Retry").click()
    draft = page.locator(".draft")
    await expect(draft).to_contain_text("One two")
    message = await page.locator(".said.user").get_attribute("data-id")
    with closing(Api(controlled.url)) as client:
        another = {"trigger_id": message, "agent_id": "another-agent", "creator": "agent-runner"}
        client.post(session, "agent.error.v1", error="of another agent", **another)
        client.post(session, "agent.response.v1", message="meanwhile")
    await expect(answers(page).filter(has_text="meanwhile")).to_be_visible()
    await page.wait_for_timeout(600)
    await expect(draft).to_contain_text("One two", timeout=1)
    await expect(answers(page).filter(has_text="eleven")).to_be_visible()


async def test_a_key_that_can_read_secrets_sees_them_live(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    """The token in the URL of the stream cannot read secrets, so the page fetches them with the key."""
    up = make_crumb_up(CRUMB_API_KEYS=WITH_KEYS)
    page = await open_window(chat_url(up.url, "talk"))
    await enter_key(page, KEYS["ann"])
    await expect_connected(page)
    secret = {
        "schema_name": "agent.response.v1",
        "tags": ["session:talk"],
        "sensitivity": "secret",
        "context": {"message": "between us"},
    }
    with Blackboard(up.url, **{"x-api-key": KEYS["ann"]}) as board:
        board.client.post("/breadcrumbs", json=secret).raise_for_status()
    await expect(answers(page)).to_have_text(["between us"])


async def test_two_equal_answers_are_announced_once_each(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    page = await open_window(chat_url(crumb_up.url, session))
    await expect_connected(page)
    await page.locator(".chat-scroll [aria-live=polite]").evaluate(
        """place => {
            window.readOut = [];
            const look = () => window.readOut.push(place.textContent);
            new MutationObserver(look).observe(place, {childList: true, subtree: true, characterData: true});
        }"""
    )
    for count in (1, 2):
        api.post(session, "agent.response.v1", message="Yes.")
        await expect(answers(page)).to_have_count(count)
    assert await page.evaluate("window.readOut") == ["Answer: Yes.", "Answer: Yes."]


async def test_the_last_answer_is_not_announced_again_after_a_gap(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    session = new_session_id()
    api.post(session, "agent.response.v1", message="Long ago")
    page = await open_window("about:blank")
    gaps = 0

    async def gap(route: Route) -> None:
        nonlocal gaps
        gaps += 1
        await route.fulfill(body=GAP, content_type="text/event-stream")

    await page.route("**/events/stream*", gap)
    await page.goto(chat_url(crumb_up.url, session))
    await expect(answers(page)).to_have_text(["Long ago"])
    async with asyncio.timeout(30):
        while gaps < 3:
            await page.wait_for_timeout(100)
    await expect(answers(page)).to_have_text(["Long ago"])
    await expect(page.locator(".chat-scroll [aria-live=polite]")).to_have_text("")


async def test_a_wrong_client_clock_does_not_make_messages_look_old(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up(CRUMB_PING_INTERVAL="1s", CRUMB_MODELS='{"offline_delay": 0.3}')
    page = await open_window("about:blank")
    await page.clock.install(time=datetime.now(UTC) + timedelta(hours=1))
    await page.goto(chat_url(up.url))
    await expect_connected(page)
    await page.wait_for_timeout(2_500)  # a ping with the server's time has arrived
    await say(page, "Hello")
    await expect(page.get_by_role("button", name="Stop answer")).to_be_visible()
    await expect(answers(page)).to_have_count(1)
    await expect(page.locator(".session.current time")).to_have_text(re.compile("now|second|0"))


# --- Connections ------------------------------------------------------------------------------------------


async def test_a_tab_opened_in_the_background_releases_its_connection(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    page = await open_window("about:blank")
    await page.add_init_script(
        "Object.defineProperty(document, 'hidden', {get: () => !window.isSeen, configurable: true})"
    )
    await page.clock.install()
    session = new_session_id()
    await page.goto(chat_url(crumb_up.url, session))
    await expect_connected(page)
    async with page.expect_event("requestfailed", lambda request: "/events/stream" in request.url):
        await page.clock.fast_forward(25_000)
    api.post(session, "agent.response.v1", message="while nobody looked")
    await page.evaluate("window.isSeen = true; document.dispatchEvent(new Event('visibilitychange'))")
    await expect(answers(page)).to_have_text(["while nobody looked"])


async def test_a_request_to_an_unresponsive_server_times_out(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window("about:blank")
    await page.clock.install()
    held: list[Route] = []

    async def hold(route: Route) -> None:
        held.append(route)

    await page.route("**/sessions?*", hold)
    await page.goto(chat_url(crumb_up.url))
    async with asyncio.timeout(30):
        while not held:
            await page.wait_for_timeout(50)
    await page.clock.fast_forward(31_000)
    await expect(page.locator(".sidebar-note")).to_contain_text("The server does not respond.")


def claims(token: str) -> dict[str, object]:
    middle = token.split(".")[1]
    found: dict[str, object] = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    return found


async def test_a_stream_url_has_a_read_only_token_and_never_the_key(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up(CRUMB_API_KEYS=WITH_KEYS)
    with Line(up.url) as line:
        page = await open_window("about:blank")
        streams: list[Request] = []
        page.on("request", lambda asked: streams.append(asked) if "/events/stream" in asked.url else None)
        refused = 0

        async def refuse(route: Route) -> None:
            nonlocal refused
            refused += 1
            await route.fulfill(status=429 if refused % 2 else 404, json={"title": "No", "status": 429})

        await page.route("**/auth/token", refuse)
        await page.goto(chat_url(line.url, "talk"))
        await enter_key(page, KEYS["ann"])
        async with asyncio.timeout(30):
            while refused < 4:
                await page.wait_for_timeout(100)
        await page.unroute("**/auth/token")
        await expect_connected(page)
        assert not [asked.url for asked in streams if KEYS["ann"] in asked.url]
        first = parse_qs(urlsplit(streams[-1].url).query)["access_token"][0]
        assert claims(first)["roles"] == ["subscriber"]
        await say(page, "Hello")
        await expect(answers(page)).to_have_count(1)
        # A lost connection, as after the token expires, resumes with a new token from the last event.
        await page.wait_for_timeout(1_100)
        count = len(streams)
        line.cut()
        async with asyncio.timeout(30):
            while len(streams) == count:
                await page.wait_for_timeout(50)
        await expect_connected(page)
        again = parse_qs(urlsplit(streams[-1].url).query)
        assert again["access_token"][0] != first
        assert again["last_event_id"]


# --- Keys -------------------------------------------------------------------------------------------------


async def test_the_key_dialog_stays_open_until_a_key_is_entered(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(make_crumb_up(CRUMB_API_KEYS=WITH_KEYS).url))
    dialog = page.get_by_role("dialog", name="Enter your API key")
    await expect(dialog).to_be_visible()
    for _ in range(4):
        await page.keyboard.press("Escape")
    await expect(dialog).to_be_visible()
    await expect(dialog.get_by_label("API key or token")).to_be_focused()


async def test_a_different_key_shows_nothing_of_the_previous_user(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up(CRUMB_API_KEYS=WITH_KEYS)
    page = await open_window(chat_url(up.url, "talk"))
    await enter_key(page, KEYS["ann"])
    await say(page, "of Ann")
    await expect(answers(page)).to_have_count(1)
    await expect(sessions(page)).to_have_count(1)
    refusal = await refuse_posts(page, 401)
    await say(page, "also of Ann")
    await expect(page.get_by_role("dialog", name="Enter your API key")).to_be_visible()
    refusal.on = False
    await enter_key(page, KEYS["bob"])
    await expect_connected(page)
    await expect(said(page)).to_have_count(0)
    await expect(sessions(page)).to_have_count(0)
    # Ann's unsent message is not sent with Bob's key automatically.
    await expect(page.locator(".unsent.refused")).to_contain_text("with the key of another owner")


async def test_the_config_page_loads_after_the_first_login(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(configs.config_url(make_crumb_up(CRUMB_API_KEYS=WITH_KEYS).url))
    await enter_key(page, KEYS["ann"])
    await expect(page.locator(".workbench-list li").first).to_be_visible()
