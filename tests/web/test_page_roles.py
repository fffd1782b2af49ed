"""The page with API keys: sign-in, identity menu, sign-out, and controls that the role cannot use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
from playwright.async_api import Page, Request, expect

from tests.client.support import CrumbUp
from tests.web import configs
from tests.web.accessibility import serious
from tests.web.chat import answers, chat_url, expect_connected, said, say, sessions
from tests.web.conftest import OpenWindow

OWNER = "aaaaaaaa-0000-4000-8000-000000000001"
KEYS = {
    "writer": ["emitter", "subscriber"],
    "reader": ["subscriber"],
    "curator": ["curator"],
}


def key_of(name: str) -> str:
    return f"the-key-of-the-{name}-which-is-long-enough"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrumbUp]:
    keys = [{"key": key_of(name), "owner_id": OWNER, "roles": roles} for name, roles in KEYS.items()]
    with CrumbUp(tmp_path_factory.mktemp("roles"), CRUMB_API_KEYS=json.dumps(keys)) as up:
        headers = {"x-api-key": key_of("writer")}
        with httpx.Client(base_url=up.url, headers=headers, trust_env=False, timeout=60) as client:
            reply = client.post("/sessions/talk/messages", params={"wait": 30}, json={"message": "first"})
            assert reply.status_code == 200, reply.text
        yield up


async def sign_in(page: Page, credential: str) -> None:
    dialog = page.get_by_role("dialog", name="Enter your API key")
    await dialog.get_by_label("API key or token").fill(credential)
    await dialog.get_by_role("button", name="Sign in").click()
    await expect(dialog).to_have_count(0)


async def test_nothing_is_requested_while_the_page_waits_for_a_key(
    keyed: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(keyed.url))
    dialog = page.get_by_role("dialog", name="Enter your API key")
    await expect(dialog).to_be_visible()
    await expect(dialog).not_to_contain_text("POST /auth/token")
    assert await serious(page) == []
    await page.wait_for_timeout(500)  # requests that were under way
    requests: list[Request] = []
    page.on("request", lambda request: requests.append(request))
    await page.wait_for_timeout(4_000)  # the stream reconnected twice in this time
    assert [request.url for request in requests] == []


async def test_a_wrong_key_is_refused_with_the_right_advice(keyed: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(chat_url(keyed.url))
    dialog = page.get_by_role("dialog", name="Enter your API key")
    await dialog.get_by_label("API key or token").fill("a-key-that-nobody-has-configured")
    await dialog.get_by_role("button", name="Sign in").click()
    await expect(dialog.get_by_role("alert")).to_have_text(
        "This server has no such API key. Check that you copied the whole key."
    )
    await dialog.get_by_label("API key or token").fill("e30.e30.e30")
    await dialog.get_by_role("button", name="Sign in").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Enter an API key or a new token.")


@pytest.mark.parametrize("width", [390, 360, 320])
async def test_the_identity_menu_does_not_cover_the_navigation_on_a_phone(
    keyed: CrumbUp, open_window: OpenWindow, width: int
) -> None:
    page = await open_window(chat_url(keyed.url), viewport={"width": width, "height": 700})
    await sign_in(page, key_of("writer"))
    navigation = page.locator(".bar nav")
    await expect(navigation).to_be_visible()
    # Only the current page has a label here, so the pages with long names need the most space.
    for name in ("Chat", "Blackboard", "Operations"):
        await navigation.get_by_role("link", name=name, exact=True).click()
        await expect(navigation.locator(".name:visible")).to_have_text([name])
        needed, available = await navigation.evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert needed <= available
        assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_the_identity_menu_shows_the_roles_and_signs_out(
    keyed: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(keyed.url, "talk"))
    await sign_in(page, key_of("writer"))
    await expect(said(page)).to_have_count(1)
    await page.locator("#composer").fill("typed, but not sent")
    menu = page.get_by_role("button", name="Signed in")
    await menu.click()
    sheet = page.locator(".sheet:popover-open")
    await expect(sheet).to_contain_text("emitter, subscriber")
    await expect(sheet).to_contain_text(OWNER)
    await expect(sheet).not_to_contain_text(key_of("writer"))
    assert await serious(page) == []
    await page.reload()
    await menu.click()
    await expect(sheet).to_contain_text("emitter, subscriber")
    await sheet.get_by_role("menuitem", name="Sign out").click()
    await expect(page.get_by_role("dialog", name="Enter your API key")).to_be_visible()
    await expect(said(page)).to_have_count(0)
    stored = await page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}])")
    assert key_of("writer") not in stored and "typed, but not sent" not in stored
    await page.reload()
    await expect(page.get_by_role("dialog", name="Enter your API key")).to_be_visible()
    await sign_in(page, key_of("writer"))
    await expect(said(page)).to_have_count(1)


async def test_a_key_that_can_only_read_finds_other_controls_disabled_with_the_reason(
    keyed: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(keyed.url, "talk"))
    await sign_in(page, key_of("reader"))
    await expect(answers(page)).to_have_count(1)
    reason = "Your API key does not have the role emitter."
    composer = page.locator("#composer")
    await expect(composer).to_be_disabled()
    await expect(composer).to_have_attribute("placeholder", reason)
    for button in (
        page.get_by_role("button", name="New session"),
        page.get_by_role("button", name="Fork from here").first,
    ):
        await expect(button).to_be_disabled()
        await expect(button).to_have_attribute("title", reason)
    await page.get_by_role("button", name="Session actions").click()
    for name in ("Rename", "Fork", "Pause answers", "Delete"):
        item = page.get_by_role("menuitem", name=name)
        await expect(item).to_have_attribute("aria-disabled", "true")
        await expect(item).to_have_attribute("title", reason)
    await page.get_by_role("menuitem", name="Rename").click(force=True)
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.get_by_role("menuitem", name="Open blackboard").click()
    await expect(page.locator(".board-card").first).to_be_visible()


async def test_a_config_can_be_saved_only_with_a_sufficient_role(
    keyed: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(configs.config_url(keyed.url))
    await sign_in(page, key_of("reader"))
    await expect(page.locator(".workbench-effect")).to_contain_text("does not have the role")
    await page.locator(".cm-content").press("End")
    await page.keyboard.type(" ")
    save = page.get_by_role("button", name="Save")
    await expect(save).to_be_disabled()
    await expect(save).to_have_attribute("title", "Your API key does not have the role emitter.")


async def test_the_operations_page_names_the_missing_role_and_requests_nothing(
    keyed: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window(chat_url(keyed.url))
    await sign_in(page, key_of("writer"))
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    await page.goto(f"{keyed.url}/#/operations")
    await expect(page.get_by_role("alert")).to_have_text(
        "This page requires the role curator. Your API key does not have the role curator."
    )
    await page.wait_for_timeout(500)
    assert not [address for address in addresses if address.endswith(("/operations", "/dlq"))]


async def test_a_token_for_one_session_cannot_start_another(keyed: CrumbUp, open_window: OpenWindow) -> None:
    wanted = {"session_id": "talk", "roles": ["emitter", "subscriber"]}
    headers = {"x-api-key": key_of("writer")}
    with closing(httpx.Client(base_url=keyed.url, headers=headers, trust_env=False)) as client:
        token = client.post("/auth/token", json=wanted).json()["token"]
    page = await open_window(chat_url(keyed.url, "talk"))
    await sign_in(page, token)
    await expect_connected(page)
    reason = "Your token is for one session only."
    await expect(page.get_by_role("button", name="New session")).to_have_attribute("title", reason)
    await expect(page.get_by_role("button", name="Fork from here").first).to_be_disabled()
    await say(page, "allowed")
    await expect(said(page).last).to_have_text("allowed")
    await expect(sessions(page)).to_have_count(1)
