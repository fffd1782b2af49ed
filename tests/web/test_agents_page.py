"""The agents page: list, editor with errors at the line, trial run, facts."""

from __future__ import annotations

import json
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


@pytest.fixture
def http(crumb_up: CrumbUp) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=crumb_up.url, trust_env=False, timeout=60) as client:
        yield client


def definition(agent_id: str, **changes: Any) -> dict[str, Any]:
    trigger = {"role": "trigger", "schema_name": "user.message.v1", "all_tags": [f"ask:{agent_id}"]}
    return {
        "agent_id": agent_id,
        "system_prompt": "Be brief.",
        "subscriptions": {"selectors": [trigger]},
        **changes,
    }


def post_agent(http: httpx.Client, agent_id: str, **changes: Any) -> str:
    new = {"schema_name": "agent.def.v1", "title": agent_id, "context": definition(agent_id, **changes)}
    reply = http.post("/breadcrumbs", json=new)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


def stored(http: httpx.Client, id: str) -> dict[str, Any]:
    crumb: dict[str, Any] = http.get(f"/breadcrumbs/{id}/full").raise_for_status().json()
    return crumb


def agents_url(url: str, key: str = "") -> str:
    return f"{url}/#/agents/{key}"


async def expect_verdict(page: Page, text: str) -> None:
    await expect(page.locator(".json-code[data-ready]")).to_be_visible()
    await expect(page.locator(".json-verdict")).to_contain_text(text)


async def test_an_agent_is_created_and_answers(
    crumb_up: CrumbUp, open_window: OpenWindow, http: httpx.Client
) -> None:
    name = new_session_id("agent")
    page = await open_window(agents_url(crumb_up.url))
    await page.get_by_role("button", name="New agent", exact=True).click()
    await expect_verdict(page, "Valid")
    await configs.edit(page, lambda text: text.replace("my-agent", name))
    await expect_verdict(page, "Valid")
    await configs.save(page)
    await expect(page.locator(".workbench-list a[aria-current]")).to_contain_text(name)
    posted = {"message": "Hello", "tags": [f"ask:{name}"], "agent": name}
    answer = http.post(f"/sessions/{name}/messages", params={"wait": 30}, json=posted)
    assert answer.status_code == 200, answer.text
    assert answer.json()["answer"]["context"]["creator"]["agent_id"] == name
    assert await serious(page) == []


async def test_an_error_is_shown_at_its_line_and_is_not_saved(
    crumb_up: CrumbUp, open_window: OpenWindow, http: httpx.Client
) -> None:
    name = new_session_id("agent")
    id = post_agent(http, name)
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
    assert stored(http, id)["version"] == 1


async def test_two_editors_do_not_overwrite_each_other(
    crumb_up: CrumbUp, open_window: OpenWindow, http: httpx.Client
) -> None:
    name = new_session_id("agent")
    id = post_agent(http, name)
    page = await open_window(agents_url(crumb_up.url, name))
    await expect_verdict(page, "Valid")
    await configs.edit(page, lambda text: text.replace("Be brief.", "Mine."))
    changed = definition(name, system_prompt="Theirs.")
    http.patch(f"/breadcrumbs/{id}", json={"context": changed}).raise_for_status()
    await expect(page.locator(".workbench-notice")).to_contain_text("Another user has saved")
    await configs.save(page)
    await expect(page.locator(".toast")).to_contain_text("another user")
    assert stored(http, id)["context"]["system_prompt"] == "Theirs."
    await page.get_by_role("button", name="Keep mine").click()
    await configs.save(page)
    await expect(page.locator(".toast", has_text="Saved")).to_be_visible()
    assert stored(http, id)["context"]["system_prompt"] == "Mine."


async def test_a_trial_runs_the_edited_definition_and_stores_nothing(
    crumb_up: CrumbUp, open_window: OpenWindow, http: httpx.Client
) -> None:
    name = new_session_id("agent")
    id = post_agent(http, name, tools=["calculator"])
    page = await open_window(agents_url(crumb_up.url, name))
    await expect_verdict(page, "Valid")
    before = json.dumps(http.get("/operations").json().get("events"))
    await page.get_by_label("Message for the trial").fill("What is 6 * 7?")
    await page.get_by_role("button", name="Try", exact=True).click()
    await expect(page.locator(".agents-result")).to_contain_text("42")
    await expect(page.locator(".agents-result")).to_contain_text("offline")
    assert json.dumps(http.get("/operations").json().get("events")) == before
    await expect(page.locator(".agents-facts")).to_contain_text("calculator")
    await page.get_by_role("button", name="Delete", exact=True).click()
    await page.locator("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator(".workbench-list")).not_to_contain_text(name)
    assert http.get(f"/breadcrumbs/{id}/full").status_code == 404


async def test_names_from_others_are_shown_as_text(
    crumb_up: CrumbUp, open_window: OpenWindow, http: httpx.Client
) -> None:
    name = new_session_id("agent")
    post_agent(http, name, description=configs.INJECTION)
    page = await open_window(agents_url(crumb_up.url, name))
    await expect(page.locator(".agents-facts")).to_contain_text("<img src=x")
    assert "broken" not in await page.title()
