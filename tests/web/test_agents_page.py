"""The agents page: list, editor with errors at the line, trial run, facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from tests.client.support import CrumbUp
from tests.web import configs
from tests.web.accessibility import serious
from tests.web.chat import new_session_id
from tests.web.conftest import OpenWindow


class Api:
    """Reads and writes agents over HTTP."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def post_agent(self, agent_id: str, **changes: Any) -> str:
        context = definition(agent_id, **changes)
        reply = self._client.post(
            "/breadcrumbs", json={"schema_name": "agent.def.v1", "title": agent_id, "context": context}
        )
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def change(self, id: str, context: dict[str, Any]) -> None:
        self._client.patch(f"/breadcrumbs/{id}", json={"context": context}).raise_for_status()

    def stored(self, id: str) -> dict[str, Any] | None:
        reply = self._client.get(f"/breadcrumbs/{id}/full")
        return None if reply.status_code == 404 else dict(reply.raise_for_status().json())

    def answerer(self, session: str, **message: Any) -> str:
        """Post a message, and return the agent that answers it."""
        reply = self._client.post(f"/sessions/{session}/messages", params={"wait": 30}, json=message)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["answer"]["context"]["creator"]["agent_id"])

    def newest(self) -> str:
        """Return the id of the newest breadcrumb."""
        reply = self._client.get("/breadcrumbs", params={"sort": "-created_at", "limit": 1})
        return str(reply.raise_for_status().json()[0]["id"])


@pytest.fixture
def api(crumb_up: CrumbUp) -> Iterator[Api]:
    with httpx.Client(base_url=crumb_up.url, trust_env=False, timeout=60) as client:
        yield Api(client)


def definition(agent_id: str, **changes: Any) -> dict[str, Any]:
    trigger = {"role": "trigger", "schema_name": "user.message.v1", "all_tags": [f"ask:{agent_id}"]}
    return {
        "agent_id": agent_id,
        "system_prompt": "Be brief.",
        "subscriptions": {"selectors": [trigger]},
        **changes,
    }


def agents_url(url: str, key: str = "") -> str:
    return f"{url}/#/agents/{key}"


async def expect_verdict(page: Page, text: str) -> None:
    await expect(page.locator(".json-code[data-ready]")).to_be_visible()
    await expect(page.locator(".json-verdict")).to_contain_text(text)


async def test_an_agent_is_created_and_answers(crumb_up: CrumbUp, open_window: OpenWindow, api: Api) -> None:
    name = new_session_id("agent")
    page = await open_window(agents_url(crumb_up.url))
    await page.get_by_role("button", name="New agent", exact=True).click()
    await expect_verdict(page, "Valid")
    await configs.edit(page, lambda text: text.replace("my-agent", name))
    await expect_verdict(page, "Valid")
    await configs.save(page)
    await expect(page.locator(".workbench-list a[aria-current]")).to_contain_text(name)
    assert api.answerer(name, message="Hello", tags=[f"ask:{name}"]) == name
    assert await serious(page) == []


async def test_an_error_is_shown_at_its_line_and_is_not_saved(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    name = new_session_id("agent")
    id = api.post_agent(name)
    page = await open_window(agents_url(crumb_up.url, name))
    await expect_verdict(page, "Valid")
    await configs.edit(page, lambda text: text.replace('"Be brief."', '"Be brief.",\n  "max_steps": 0'))
    await expect_verdict(page, "1 error")
    line = next(
        number
        for number, text in enumerate((await configs.editor_text(page)).splitlines(), 1)
        if "max_steps" in text
    )
    await expect(page.locator(".json-findings li")).to_contain_text(f"Line {line}")
    await expect(page.locator(".workbench-head").get_by_role("button", name="Save")).to_be_disabled()
    await configs.edit(page, lambda text: text.replace('"max_steps": 0', '"sytem_promt": "x"'))
    await expect(page.locator(".json-findings li.warning")).to_contain_text("system_prompt")
    saved = api.stored(id)
    assert saved is not None and saved["version"] == 1


async def test_two_editors_do_not_overwrite_each_other(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    name = new_session_id("agent")
    id = api.post_agent(name)
    page = await open_window(agents_url(crumb_up.url, name))
    await expect_verdict(page, "Valid")
    await configs.edit(page, lambda text: text.replace("Be brief.", "Mine."))
    api.change(id, definition(name, system_prompt="Theirs."))
    await expect(page.locator(".workbench-notice")).to_contain_text("Another user has saved")
    await configs.save(page)
    await expect(page.locator(".toast")).to_contain_text("another user")
    saved = api.stored(id)
    assert saved is not None and saved["context"]["system_prompt"] == "Theirs."
    await page.get_by_role("button", name="Keep mine").click()
    await configs.save(page)
    await expect(page.locator(".toast", has_text="Saved. It applies")).to_be_visible()
    saved = api.stored(id)
    assert saved is not None and saved["context"]["system_prompt"] == "Mine."


async def test_a_trial_runs_the_edited_definition_and_stores_nothing(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    name = new_session_id("agent")
    id = api.post_agent(name)
    page = await open_window(agents_url(crumb_up.url, name))
    await expect_verdict(page, "Valid")
    await page.get_by_label("Message for the trial").fill("What is 6 * 7?")
    await page.get_by_role("button", name="Try", exact=True).click()
    await expect(page.locator(".agents-result")).to_contain_text("offline")
    await expect(page.locator(".agents-result")).not_to_contain_text("42")  # the agent has no calculator
    await configs.edit(
        page, lambda text: text.replace('"Be brief."', '"Be brief.",\n  "tools": ["calculator"]')
    )
    await expect_verdict(page, "Valid")
    before = api.newest()
    await page.get_by_role("button", name="Try", exact=True).click()
    await expect(page.locator(".agents-result")).to_contain_text("42")
    assert api.newest() == before
    saved = api.stored(id)
    assert saved is not None and "tools" not in saved["context"]
    await page.get_by_role("button", name="Delete", exact=True).click()
    await page.locator("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator(".workbench-list")).not_to_contain_text(name)
    assert api.stored(id) is None


async def test_names_from_others_are_shown_as_text(
    crumb_up: CrumbUp, open_window: OpenWindow, api: Api
) -> None:
    name = new_session_id("agent")
    api.post_agent(name, description=configs.INJECTION)
    page = await open_window(agents_url(crumb_up.url, name))
    await expect(page.locator(".agents-facts")).to_contain_text("<img src=x")
    assert "broken" not in await page.title()
