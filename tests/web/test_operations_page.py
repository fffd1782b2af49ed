"""The operations page: workers, lanes, lag, rates and dead letters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from playwright.async_api import Locator, Page, Route, expect
from redis import Redis

from breadcrumbs.runtime.store.opening import DEFAULT_LANES
from tests.client.support import CrumbUp
from tests.web.accessibility import serious
from tests.web.conftest import ControlledServer, MakeCrumbUp, OpenWindow
from tests.web.extension_support import kill
from tests.web.watching import INJECTION, Crumbs, board, unique_name


@pytest.fixture
def crumbs(crumb_up: CrumbUp) -> Iterator[Crumbs]:
    with closing(Crumbs(crumb_up.url)) as crumbs:
        yield crumbs


def operations(url: str) -> str:
    return f"{url}/#/operations"


def tile(page: Page, name: str) -> Locator:
    return page.locator(".ops-tile").filter(has=page.locator("dt", has_text=name)).locator(".ops-value")


def plot(page: Page, title: str) -> Locator:
    return page.locator(".ops-plot").filter(has=page.get_by_role("heading", name=title))


def letters(page: Page) -> Locator:
    return page.locator(".ops-letter")


async def change_reply(page: Page, changes: dict[str, Any]) -> None:
    """Change fields of the reply of GET /operations."""

    async def answer(route: Route) -> None:
        reply = await route.fetch()
        await route.fulfill(response=reply, body=json.dumps({**await reply.json(), **changes}))

    await page.route("**/operations", answer)


async def test_lanes_workers_and_the_store_match_the_operations_route(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session = unique_name("ops")
    crumbs.say(session, "Hello")
    page = await open_window(operations(crumb_up.url))
    facts = crumbs.asked("GET", "/operations")
    lanes = page.get_by_role("region", name="All lanes").locator("tbody tr")
    await page.get_by_role("button", name="more lanes").click()
    await expect(lanes).to_have_count(len(facts["lanes"]))
    workers = {worker["kind"]: worker["name"] for worker in facts["workers"] if worker["alive"]}
    assert set(workers) == {"agents", "contexts"}
    for name in workers.values():
        await expect(lanes.first).to_contain_text(name)
        rows = page.get_by_role("region", name="All workers").get_by_role("row").filter(has_text=name)
        await expect(rows).to_have_count(2)  # the workers of a process share its name
        await expect(rows.first).to_contain_text("running")
        await expect(rows.first.get_by_role("img", name=f"lanes 0–{DEFAULT_LANES - 1}")).to_be_visible()
    await expect(lanes.first).to_contain_text(re.compile(r"\d s, \d s left"))
    await expect(tile(page, "Workers")).to_have_text("2")
    await expect(tile(page, "Memory")).to_have_text(re.compile(r"MiB"))
    schemas = page.get_by_role("region", name="Breadcrumbs by schema")
    await expect(schemas.get_by_role("row").filter(has_text="user.message.v1")).to_be_visible()
    # The table has the busiest routes. Each opened window requests this one many times.
    await expect(page.get_by_role("region", name="Requests by route")).to_contain_text("GET /assets/{name}")


async def test_activity_shows_in_the_plots(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    page = await open_window(operations(crumb_up.url))
    for title in ("Turns per minute", "Per second", "HTTP latency", "Worker lag"):
        await expect(plot(page, title).locator("canvas")).to_be_visible()
    await expect(plot(page, "Per second").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"Now: events \d")
    )
    session = unique_name("plots")
    for number in range(5):
        crumbs.say(session, f"What is {number} + 1?")
    await expect(tile(page, "Turns per minute")).to_have_text(re.compile(r"^([5-9]|\d\d+)$"))
    await expect(tile(page, "HTTP latency")).to_have_text(re.compile(r"\d (µs|ms|s)$"))
    await expect(plot(page, "Turns per minute").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"answered ([5-9]|\d\d+)")
    )
    # The plot is drawn: the canvas has several colours.
    colours = (
        await plot(page, "Turns per minute")
        .locator("canvas")
        .evaluate(
            """canvas => new Set(new Uint32Array(canvas.getContext("2d")
            .getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"""
        )
    )
    assert colours > 3
    # The samples are kept during a visit to another page.
    await page.goto(board(crumb_up.url))
    await page.goto(operations(crumb_up.url))
    await expect(tile(page, "Events per second")).not_to_have_text("–")


def worker_row(page: Page, kind: str) -> Locator:
    cell = page.get_by_role("cell", name=kind, exact=True)
    return page.get_by_role("region", name="All workers").get_by_role("row").filter(has=cell)


async def test_a_worker_is_drained_after_a_confirmation(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up(CRUMB_WORKER_NAME="box")
    page = await open_window(operations(up.url))
    row = worker_row(page, "agents")
    await expect(row).to_contain_text("box")
    await expect(row).to_contain_text("default-chat-assistant")
    await expect(row).to_contain_text("offline")
    await expect(row).to_contain_text("pid")
    await row.get_by_role("button", name="Drain box").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("This ends its workers of kind agents and contexts.")
    await expect(dialog).to_contain_text("It is the last worker of kind agents")
    await dialog.get_by_role("button", name="Cancel").click()
    await expect(row).to_contain_text("running")
    await row.get_by_role("button", name="Drain box").click()
    await dialog.get_by_role("button", name="Drain").click()
    await expect(row).to_contain_text("stopped", timeout=30_000)
    await expect(row.get_by_role("button")).to_have_count(0)
    await expect(page.get_by_text(re.compile("no agent runner is running", re.IGNORECASE))).to_be_visible()


async def test_a_lost_worker_is_shown_with_its_time(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    facts = crumbs.asked("GET", "/operations")
    for worker in facts["workers"]:
        if worker["kind"] == "agents":
            worker |= {
                "state": "lost",
                "alive": False,
                "ended_at": "2026-01-02T03:04:05.000000Z",
                "lanes": [],
            }
    page = await open_window("about:blank")
    await change_reply(page, {"workers": facts["workers"]})
    await page.goto(operations(crumb_up.url))
    row = worker_row(page, "agents").first
    await expect(row).to_contain_text("lost")
    await expect(row.locator("time").first).to_have_attribute("datetime", "2026-01-02T03:04:05.000000Z")
    await expect(row.get_by_role("button")).to_have_count(0)


async def test_the_history_of_the_store_is_shown_after_a_reload(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    minutes = [
        {
            "at": f"2026-01-02T03:{minute:02}:00.000000Z",
            "events": 40,
            "kinds": [
                {"kind": "agents", "answered": 7, "failed": 1, "lag_ms": 1500, "waiting": 0, "workers": 1}
            ],
        }
        for minute in range(20)
    ]
    page = await open_window("about:blank")
    await page.route("**/operations/history", lambda route: route.fulfill(json={"minutes": minutes}))
    await page.goto(operations(crumb_up.url))
    for _ in range(2):
        await expect(plot(page, "Turns, last 6 hours").get_by_role("img")).to_have_attribute(
            "aria-label", re.compile(r"answered 7, failed 1")
        )
        await expect(plot(page, "Lag, last 6 hours").get_by_role("img")).to_have_attribute(
            "aria-label", re.compile(r"agents 1\.5 s")
        )
        await page.reload()


async def test_a_paused_operations_page_sends_no_requests(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window(operations(crumb_up.url))
    await expect(tile(page, "Workers")).to_have_text("2")
    await page.get_by_role("button", name="Pause").click()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.wait_for_timeout(4_000)
    assert asked == []
    async with page.expect_request("**/operations"):
        await page.get_by_role("button", name="Resume").click()


async def test_dead_letters_can_be_retried_and_deleted(
    controlled: ControlledServer, open_window: OpenWindow
) -> None:
    again, never = unique_name("again"), unique_name("never")
    controlled.behave("failing", status=400)
    with closing(Crumbs(controlled.url)) as crumbs:
        page = await open_window(operations(controlled.url))
        crumbs.say(again, "Answer me")
        crumbs.say(never, "Forget me")
        first, second = (letters(page).filter(has_text=f"session {name}") for name in (again, never))
        await expect(first).to_contain_text("The server had an error")
        await expect(second).to_be_visible()
        await expect(page.get_by_text("1 warning")).to_be_visible()
        controlled.behave("normal")

        await first.get_by_role("button", name="Retry").click()
        await expect(first).to_have_count(0)
        await second.get_by_role("button", name="Delete dead letter").click()
        await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        await expect(second).to_be_visible()
        await second.get_by_role("button", name="Delete dead letter").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(second).to_have_count(0)
        assert not {letter.get("session_id") for letter in crumbs.asked("GET", "/dlq")} & {again, never}

        # The turn has one message, one failure and the answer of the retry.
        await page.goto(board(controlled.url, session=again))
        await page.locator(".board-card[data-kind=answer] .board-open").click()
        labels = page.locator(".turn-node .turn-label")
        await expect(labels).to_have_text(["Message", "Context", "Error", "Answer"])
        # A failed turn names no context. Its version is found even after another message rebuilt the context.
        crumbs.say(never, "Another one")
        await page.goto(board(controlled.url, session=never))
        await expect(page.locator(".board-card[data-kind=answer]")).to_have_count(1)
        await page.locator(".board-card[data-kind=error] .board-open").click()
        await expect(labels).to_have_text(["Message", "Context", "Error"])


async def test_a_failed_read_of_dead_letters_is_retried(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window("about:blank")
    await page.route("**/dlq", lambda route: route.fulfill(status=503, json={"title": "Away", "status": 503}))
    lanes = [{"lane": 0, "kinds": [{"kind": "agent", "dead_letters": 2, "lag_ms": 0, "holder": "x"}]}]
    await change_reply(page, {"lanes": lanes, "kinds": []})
    await page.goto(operations(crumb_up.url))
    await expect(page.get_by_role("alert")).to_contain_text("Dead letters could not be loaded. Away.")
    await page.unroute("**/dlq")
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(page.get_by_text("No dead letters.")).to_be_visible()


async def test_the_operations_page_reports_a_lost_server_and_its_return(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    page = await open_window(operations(up.url))
    await expect(page.get_by_text("Healthy")).to_be_visible()
    await expect(page.get_by_text("No dead letters.")).to_be_visible()
    kill(up)
    await expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    await expect(page.get_by_text("Unreachable")).to_be_visible()
    up.start()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(page.get_by_text("Healthy")).to_be_visible()


async def test_the_operations_page_explains_a_lost_store(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    page = await open_window(operations(up.url))
    await expect(page.get_by_text("Healthy")).to_be_visible()
    socket = (up.data / "server.lock").read_text().splitlines()[1]
    with Redis(unix_socket_path=socket) as redis:
        redis.flushall()
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("is gone", timeout=30_000)
    for option in ("Restore a backup", "correct the address", "--new-store"):
        await expect(alert).to_contain_text(option)
    await expect(page.get_by_text("Store replaced")).to_be_visible()


async def test_problems_are_described_in_text(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    facts = crumbs.asked("GET", "/operations")
    dead = [{**worker, "alive": worker["kind"] != "agents"} for worker in facts["workers"]]
    late = facts["lanes"]
    late[3]["kinds"][1] |= {"lag_ms": 60_000, "waiting": 500, "more_waiting": True}
    del late[5]["kinds"][1]["holder"]
    page = await open_window("about:blank")
    await change_reply(page, {"workers": dead, "lanes": late})
    await page.goto(operations(crumb_up.url))
    await expect(page.get_by_text("No worker of kind “contexts” holds lane 5.")).to_be_visible()
    await expect(page.get_by_text("Workers of kind “contexts” are behind in lane 3.")).to_be_visible()
    await expect(page.get_by_text("2 warnings")).to_be_visible()
    await expect(tile(page, "Worst lag")).to_have_text("1 min 0 s")
    row = page.get_by_role("region", name="All lanes").locator("tbody tr").nth(3)
    await expect(row).to_contain_text("500+ waiting")


async def test_findings_are_shown_with_advice_and_the_rest_is_folded(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up(CRUMB_MODEL="http://127.0.0.1:1/v1#nobody")
    page = await open_window(operations(up.url))
    checks = page.get_by_role("region", name="Checks")
    problem = checks.locator(".ops-finding").filter(has_text="models (nobody)")
    await expect(problem).to_contain_text("its server cannot be reached")
    await expect(problem).to_contain_text("start the model server")
    await expect(problem.locator(".badge")).to_have_text("error")
    await expect(page.locator(".ops-head .badge")).to_have_text("1 error")
    passed = checks.locator(".ops-finding").filter(has_text="maxmemory-policy is noeviction")
    await expect(passed).to_be_hidden()
    await checks.get_by_text("other checks found no problem").click()
    await expect(passed).to_be_visible()
    assert await serious(page) == []
    with closing(Crumbs(up.url)) as crumbs:
        verdict = crumbs.asked("GET", "/operations/checks?models=true")
    assert verdict["status"] == "error"
    assert [one["id"] for one in verdict["findings"] if one["status"] == "error"] == ["models"]


async def test_checks_that_fail_are_reported_and_made_again(
    crumb_up: CrumbUp, open_window: OpenWindow
) -> None:
    page = await open_window("about:blank")
    away = {"title": "Away", "status": 503}
    await page.route("**/operations/checks?*", lambda route: route.fulfill(status=503, json=away))
    await page.goto(operations(crumb_up.url))
    await expect(page.get_by_text("The checks could not be made. Away.")).to_be_visible()
    await expect(page.locator(".ops-head .badge")).to_have_text("Not checked")
    await page.unroute("**/operations/checks?*")
    await expect(page.get_by_text("The checks could not be made.")).to_have_count(0, timeout=30_000)
    await expect(page.get_by_text("Healthy")).to_be_visible()


async def test_a_missing_role_is_reported(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window("about:blank")
    problem = {"type": "x", "title": "x", "status": 403, "detail": "this needs the role 'curator'"}
    await page.route(
        "**/operations",
        lambda route: route.fulfill(
            status=403, content_type="application/problem+json", body=json.dumps(problem)
        ),
    )
    await page.goto(operations(crumb_up.url))
    await expect(page.get_by_role("alert")).to_contain_text("This page requires the role curator.")


async def test_foreign_content_is_shown_as_text_everywhere(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    """Operators choose names of workers and kinds. Schemas and errors can come from any client."""
    crumbs.post(INJECTION.replace(" ", "_")[:180], title="x")
    facts = json.loads(
        json.dumps(crumbs.asked("GET", "/operations")).replace("contexts", INJECTION.replace('"', "'"))
    )
    for worker in facts["workers"]:
        worker["name"] = INJECTION
    letter = {
        "id": "01a1e2f4-40d9-7008-a8d3-9958abc20c9f",
        "kind": INJECTION,
        "breadcrumb_id": INJECTION,
        "version": 1,
        "session_id": INJECTION,
        "attempts": 4,
        "last_error": INJECTION,
        "created_at": facts["at"],
    }
    page = await open_window("about:blank")
    await change_reply(page, {name: facts[name] for name in ("workers", "lanes", "kinds")})
    await page.route("**/dlq", lambda route: route.fulfill(json=[letter]))
    await page.goto(operations(crumb_up.url))
    await expect(letters(page)).to_contain_text("<script>")
    await expect(page.get_by_role("region", name="All workers")).to_contain_text("<script>")
    await expect(page.get_by_role("region", name="Breadcrumbs by schema")).to_contain_text("<img")
    assert await page.locator("main img, main script").count() == 0
    assert await page.title() == "Operations · Breadcrumbs"


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1200)])
async def test_axe_finds_nothing_serious(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs, scheme: str, width: int
) -> None:
    letter = {
        "id": "01a1e2f4-40d9-7008-a8d3-9958abc20c9f",
        "kind": "agents",
        "breadcrumb_id": "01a1e2f4-40d9-7008-a8d3-9958abc20c9f",
        "version": 1,
        "session_id": "s",
        "attempts": 4,
        "last_error": "It broke",
        "created_at": crumbs.asked("GET", "/operations")["at"],
    }
    look: dict[str, Any] = {"color_scheme": scheme, "reduced_motion": "reduce"}
    page = await open_window("about:blank", viewport={"width": width, "height": 780}, **look)
    await page.route(
        "**/dlq", lambda route: route.fulfill(json=[letter, {**letter, "id": letter["id"][::-1]}])
    )
    await page.goto(operations(crumb_up.url))
    await expect(letters(page)).to_have_count(2)
    assert await serious(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    assert await page.locator(".ops-page").evaluate("e => e.scrollWidth <= e.clientWidth")
