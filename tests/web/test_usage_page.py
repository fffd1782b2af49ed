"""The usage page: totals, bars per day, tables and budgets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.async_api import expect

from tests.web.accessibility import serious
from tests.web.chat import new_session_id
from tests.web.conftest import ControlledServer, OpenWindow


@pytest.fixture
def used(controlled: ControlledServer) -> Iterator[dict[str, Any]]:
    """Return the usage of two answers, with a budget in force."""
    controlled.behave("normal")
    with httpx.Client(base_url=controlled.url, trust_env=False, timeout=60) as http:
        session = new_session_id("usage")
        for text in ("Hello", "And again"):
            reply = http.post(f"/sessions/{session}/messages", params={"wait": 30}, json={"message": text})
            assert reply.status_code == 200, reply.text
        budget = {"scope": "owner", "period": "total", "tokens": 10_000_000}
        new = {"schema_name": "usage.budget.v1", "title": "A budget", "context": budget}
        posted = http.post("/breadcrumbs", json=new)
        assert posted.status_code == 201, posted.text
        yield http.get("/usage", params={"by": "agent"}).raise_for_status().json()
        http.delete(f"/breadcrumbs/{posted.json()['id']}")


async def test_usage_of_answers_and_a_budget_are_shown(
    controlled: ControlledServer, open_window: OpenWindow, used: dict[str, Any]
) -> None:
    assert used["total"]["calls"] >= 2 and used["total"]["tokens"] > 0
    page = await open_window(f"{controlled.url}/#/usage")
    await expect(page.locator(".usage-sum")).to_contain_text(f"{used['total']['tokens']:,} tokens")
    await expect(page.locator(".usage-plot").first).to_contain_text("Tokens per day")
    row = page.locator("tbody tr", has_text=used["rows"][0]["agent_id"])
    await expect(row.locator("td").first).to_have_text(str(used["rows"][0]["calls"]))
    await expect(page.locator(".usage-budgets")).to_contain_text("10,000,000 tokens in total")
    await page.get_by_role("button", name="Model", exact=True).click()
    await expect(page.get_by_role("heading", name="Per model")).to_be_visible()
    assert await serious(page) == []
