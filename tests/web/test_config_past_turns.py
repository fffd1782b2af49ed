"""The test of an edited config on past turns, in a real Chromium, with a real `crumb up`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.async_api import Route, expect

from tests.web.accessibility import serious
from tests.web.chat import new_session_id
from tests.web.configs import Server, config, config_url, edit, expect_ready, run_server
from tests.web.conftest import OpenWindow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(tmp_path_factory.mktemp("past"), config()) as server:
        yield server


async def test_an_edit_is_tested_on_past_turns_while_it_is_typed(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("past")
    for text in ("apples", "bananas", "cherries"):
        server.say(session, text)
    page = await open_window(config_url(server.url, session=session))
    await expect_ready(page)
    past = page.get_by_role("region", name="Past turns")
    await expect(past).to_have_count(0)  # an unchanged config changes no turn

    await edit(page, lambda text: text.replace('"limit": 10', '"limit": 1'))
    await expect(past.get_by_role("status")).to_have_text("Would have changed 2 of 3 turns")
    await expect(past).to_contain_text("tokens")
    await past.get_by_text("Changed turns").click()
    turns = past.get_by_role("button")
    await expect(turns).to_have_count(2)
    await turns.last.click()
    table = past.get_by_role("table")
    await expect(table.get_by_role("columnheader")).to_have_text(["As it was", "With this config"])
    removed = table.locator('tr[data-change="out"]')
    await expect(removed.first.locator("td").first).to_contain_text("apples")
    await expect(removed.first.locator("td").last).to_have_text("")
    assert await serious(page) == []

    await edit(page, lambda text: text.replace('"limit": 1', '"limit": 50'))
    await expect(past.get_by_role("status")).to_have_text("Would have changed 0 of 3 turns")


async def test_a_newer_edit_cancels_the_test_of_an_older_one(server: Server, open_window: OpenWindow) -> None:
    session = new_session_id("past")
    server.say(session, "apples")
    server.say(session, "bananas")
    page = await open_window(config_url(server.url, session=session))
    await expect_ready(page)
    cancelled: list[str] = []
    page.on("requestfailed", lambda request: cancelled.append(request.url))
    held: list[Route] = []

    async def hold(route: Route) -> None:
        if held:
            await route.continue_()
        else:
            held.append(route)

    await page.route("**/contexts/test", hold)
    await edit(page, lambda text: text.replace('"limit": 10', '"limit": 1'))
    async with page.expect_event("requestfailed", lambda request: request.url.endswith("/contexts/test")):
        await page.wait_for_timeout(1500)
        assert held
        await edit(page, lambda text: text.replace('"limit": 1', '"limit": 40'))
    past = page.get_by_role("region", name="Past turns")
    await expect(past.get_by_role("status")).to_contain_text("Would have changed 0 of ")
    assert any(url.endswith("/contexts/test") for url in cancelled)


async def test_turns_that_cannot_be_tested_are_named_with_the_reason(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("gone")
    answer = server.say(session, "a message that is deleted")
    server.say(session, "another message")
    message = answer["context"]["trigger_id"]
    assert server.client.delete(f"/breadcrumbs/{message}").status_code in (200, 204)
    page = await open_window(config_url(server.url, session=session))
    await expect_ready(page)
    await edit(page, lambda text: text.replace('"limit": 10', '"limit": 1'))
    past = page.get_by_role("region", name="Past turns")
    await expect(past).to_contain_text("1 turn not tested: its message was deleted")
