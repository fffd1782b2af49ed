"""The history of configs in a real Chromium: list, difference, rollback."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest
from playwright.async_api import expect

from breadcrumbs.context_builder.config_checks import parse_configs
from tests.web.accessibility import serious
from tests.web.chat import new_session_id
from tests.web.configs import Server, config, config_url, run_server
from tests.web.conftest import OpenWindow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(tmp_path_factory.mktemp("history"), config()) as server:
        yield server


async def test_a_past_config_is_compared_with_the_one_in_force_and_rolled_back(
    server: Server, open_window: OpenWindow
) -> None:
    session = new_session_id("history")
    page = await open_window(config_url(server.url))
    await page.get_by_role("link", name="History").click()
    await expect(page.get_by_text("No config was used yet")).to_be_visible()

    server.say(session, "one")
    changed = config(formatting={"max_tokens": 1234})
    server.put(changed)
    server.say(session, "two")
    await page.reload()
    entries = page.get_by_role("list", name="Configs, the newest first").get_by_role("button")
    await expect(entries).to_have_count(2)
    await expect(entries.first).to_contain_text("in force")
    await expect(entries.first).to_contain_text("context.json")
    await expect(entries.last).to_have_attribute("aria-pressed", "true")
    lines = page.get_by_label("Difference", exact=True)
    await expect(lines.locator(".history-removed")).to_contain_text(
        ["]", '"formatting": {"max_tokens": 1234}']
    )
    await expect(page.get_by_role("region", name="Selected config")).to_contain_text(
        "compared with the config in force"
    )
    assert await serious(page) == []
    await page.set_viewport_size({"width": 390, "height": 800})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    await page.set_viewport_size({"width": 1280, "height": 800})

    await page.get_by_role("button", name="Roll back").click()
    await page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    await expect(page.get_by_role("status").filter(has_text="Rolled back.")).to_be_visible()
    (written,) = parse_configs(server.file.read_bytes())
    (original,) = parse_configs(orjson.dumps(config()))
    assert written.digest == original.digest
    await expect(entries.last).to_contain_text("in force")
    await expect(lines.locator(".history-added")).to_contain_text(["]", '"formatting": {"max_tokens": 1234}'])
    server.say(session, "three")
    await page.reload()
    await expect(entries).to_have_count(3)


async def test_a_link_names_the_config_to_show(server: Server, open_window: OpenWindow) -> None:
    session = new_session_id("linked")
    for tokens in (2001, 2002, 2003):
        server.put(config(formatting={"max_tokens": tokens}))
        server.say(session, f"with {tokens} tokens")
    (wanted,) = parse_configs(orjson.dumps(config(formatting={"max_tokens": 2001})))
    page = await open_window(f"{server.url}/#/config/history?digest={wanted.digest}")
    shown = page.get_by_role("region", name="Selected config")
    await expect(shown.get_by_role("heading")).to_contain_text(wanted.digest[:8])
    entries = page.get_by_role("list", name="Configs, the newest first").get_by_role("button")
    pressed = entries.and_(page.locator('[aria-pressed="true"]'))
    await expect(pressed).to_have_count(1)
    await expect(pressed).to_contain_text(wanted.digest[:8])

    await entries.first.click()
    await expect(shown.get_by_role("heading")).to_contain_text("is in force")
    await page.reload()  # the address names the chosen one
    await expect(shown.get_by_role("heading")).to_contain_text("is in force")

    await page.goto(f"{server.url}/#/config/history?digest=ffffffffffffffff")
    await expect(page.get_by_role("alert")).to_contain_text("no config with the digest ffffffffffffffff")
