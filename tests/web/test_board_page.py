"""The blackboard page: live events in lanes, filters, and the details of one breadcrumb."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.client.support import CrumbUp
from tests.web.accessibility import serious
from tests.web.chat import chat_url
from tests.web.conftest import MakeCrumbUp, OpenWindow
from tests.web.extension_support import kill
from tests.web.watching import INJECTION, Crumbs, board, card, cards, lanes, texts, unique_name


@pytest.fixture
def crumbs(crumb_up: CrumbUp) -> Iterator[Crumbs]:
    with closing(Crumbs(crumb_up.url)) as crumbs:
        yield crumbs


async def expect_live(page: Page) -> None:
    await expect(page.locator(".connection")).to_have_class("connection open")


async def distance_from_end(page: Page) -> float:
    """Return the distance in pixels from the end of the board."""
    distance: float = await page.locator(".board-scroller").evaluate(
        "e => e.scrollHeight - e.scrollTop - e.clientHeight"
    )
    return distance


# --- The timeline -----------------------------------------------------------------------------------------


async def test_the_board_shows_stored_events_and_then_new_ones(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session = unique_name("live")
    for number in range(3):
        crumbs.post("note.v1", f"session:{session}", title=f"note {number}")
    page = await open_window(board(crumb_up.url, session=session))
    await expect(texts(page)).to_have_text(["note 0", "note 1", "note 2"])
    await expect_live(page)
    crumbs.say(session, "What is 6*7?")
    await expect(cards(page, "answer")).to_have_count(1)
    kinds = await cards(page).evaluate_all("cards => cards.map(card => card.dataset.kind)")
    turn = ["message", "context", "step", "request", "started", "response", "answer"]
    assert kinds == ["other", "other", "other", *turn]
    await expect(cards(page, "message")).to_contain_text("What is 6*7?")
    await expect(cards(page, "answer")).to_contain_text("6*7 = 42")
    # Each write is shown once, although both the list and the stream contain it.
    await page.reload()
    await expect(cards(page)).to_have_count(len(kinds))


async def test_breadcrumbs_without_a_title_show_their_text_after_a_reload(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session = unique_name("untitled")
    crumbs.post("agent.response.v1", f"session:{session}", message="an answer without a title")
    page = await open_window(board(crumb_up.url, session=session))
    await expect(texts(page)).to_have_text(["an answer without a title"])


async def test_each_session_has_a_lane_and_one_more_is_for_no_session(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    topic, one, two = unique_name("topic"), unique_name("one"), unique_name("two")
    crumbs.post("note.v1", topic, f"session:{one}", title="of one")
    crumbs.post("note.v1", topic, f"session:{two}", title="of two")
    crumbs.post("note.v1", topic, title="of nobody")
    page = await open_window(board(crumb_up.url, tag=topic))
    await expect(texts(page)).to_have_count(3)
    heads = await page.locator(".board-lane-head").all()
    names = [await head.locator(".board-lane-name").inner_text() for head in heads]
    assert set(names[:2]) == {one, two} and names[2] == "No session"
    for session, text in ((one, "of one"), (two, "of two"), ("No session", "of nobody")):
        head = await heads[names.index(session)].bounding_box()
        box = await cards(page).filter(has_text=text).bounding_box()
        assert head and box
        assert head["x"] <= box["x"] and box["x"] + box["width"] <= head["x"] + head["width"]
    await lanes(page).filter(has_text=one).click()
    await expect(texts(page)).to_have_text(["of one"])


async def test_many_events_in_many_sessions_stay_usable(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    topic = unique_name("many")
    for number in range(260):
        crumbs.post("note.v1", topic, f"session:{topic}-{number % 26}", title=f"note {number}")
    page = await open_window(board(crumb_up.url, tag=topic))
    await expect(page.locator(".board-count")).to_contain_text("200 events")
    shown = await lanes(page).count()
    assert 3 <= shown <= 8
    await expect(texts(page).filter(has_text="note 259")).to_be_in_viewport()
    # Only the cards near the viewport are in the document.
    assert await cards(page).count() < 150
    await page.get_by_role("button", name=f"Show {26 - shown} more sessions").click()
    await expect(lanes(page)).to_have_count(shown + 8)
    await page.locator(".board-scroller").evaluate("e => e.scrollTo(0, 0)")
    await page.get_by_role("button", name="Show older").click()
    await expect(page.locator(".board-count")).to_contain_text("260 events")
    await expect(page.get_by_role("button", name="Show older")).to_have_count(0)


async def test_the_board_follows_new_events_unless_the_user_scrolled_back(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session = unique_name("follow")
    for number in range(40):
        crumbs.post("note.v1", f"session:{session}", title=f"note {number}")
    page = await open_window(board(crumb_up.url, session=session))
    await expect_live(page)
    await expect(texts(page).filter(has_text="note 39")).to_be_in_viewport()
    crumbs.post("note.v1", f"session:{session}", title="the 41st")
    await expect(texts(page).filter(has_text="the 41st")).to_be_in_viewport()

    await page.locator(".board-scroller").evaluate("e => e.scrollTo(0, 300)")
    looked_at = texts(page).filter(has_text="note 8")
    before = await looked_at.bounding_box()
    for number in range(3):
        crumbs.post("note.v1", f"session:{session}", title=f"later {number}")
    more = page.get_by_role("button", name="3 new")
    await expect(more).to_be_visible()
    assert await looked_at.bounding_box() == before
    await more.click()
    await expect(texts(page).filter(has_text="later 2")).to_be_in_viewport()
    await expect(more).to_have_count(0)
    assert await distance_from_end(page) < 5


async def test_a_paused_board_stands_still_and_shows_the_waiting_events_afterwards(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session = unique_name("still")
    crumbs.post("note.v1", f"session:{session}", title="before")
    page = await open_window(board(crumb_up.url, session=session))
    await expect(texts(page)).to_have_text(["before"])
    await expect_live(page)
    await page.get_by_role("button", name="Pause", exact=True).click()
    crumbs.post("note.v1", f"session:{session}", title="meanwhile")
    await page.get_by_role("button", name="Resume · 1 waiting").wait_for()
    await expect(texts(page)).to_have_text(["before"])
    await page.keyboard.press("p")
    await expect(texts(page)).to_have_text(["before", "meanwhile"])


async def test_a_long_pause_reports_the_omitted_events(crumb_up: CrumbUp, open_window: OpenWindow) -> None:
    page = await open_window("about:blank")
    session, wanted = unique_name("flood"), asyncio.Event()
    event = {
        "operation": "created",
        "version": 1,
        "tags": [f"session:{session}"],
        "session_id": session,
        "updated_at": "2026-01-01T00:00:00Z",
    }
    flood = "".join(
        f"data: {json.dumps({**event, 'breadcrumb_id': str(number)})}\n\n" for number in range(2_005)
    )

    async def tell(route: Route) -> None:
        await wanted.wait()
        await route.fulfill(body=flood, content_type="text/event-stream")

    await page.route("**/events/stream*", tell)
    await page.goto(board(crumb_up.url, session=session))
    await page.get_by_role("button", name="Pause", exact=True).click()
    wanted.set()
    await expect(page.locator(".board-count")).to_contain_text("paused too long: 5 events dropped")


async def test_the_board_misses_no_event_of_a_killed_and_restarted_server(
    make_crumb_up: MakeCrumbUp, open_window: OpenWindow
) -> None:
    up = make_crumb_up()
    with closing(Crumbs(up.url)) as crumbs:
        crumbs.post("note.v1", "session:s", title="before")
        page = await open_window(board(up.url))
        await expect(texts(page)).to_have_text(["before"])
        await expect_live(page)
        kill(up)
        await expect(page.locator(".connection.lost")).to_be_visible()
        up.start()
        crumbs.post("note.v1", "session:s", title="while it was away")
        await expect(texts(page)).to_have_text(["before", "while it was away"])
        await expect_live(page)
        crumbs.post("note.v1", "session:s", title="after")
        await expect(texts(page)).to_have_text(["before", "while it was away", "after"])


async def test_a_change_has_its_own_card_and_deleted_breadcrumbs_are_struck_out(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session = unique_name("change")
    id = crumbs.post("note.v1", f"session:{session}", title="first")
    page = await open_window(board(crumb_up.url, session=session))
    await expect(texts(page)).to_have_text(["first"])
    await expect_live(page)
    crumbs.change(id, title="second")
    await expect(texts(page)).to_have_text(["first", "second"])
    await expect(card(page, id).nth(1)).to_contain_text("v2")
    crumbs.remove(id)
    await expect(texts(page)).to_have_text(["first", "second", "Deleted"])
    await expect(page.locator(".board-card.gone")).to_have_count(3)
    await card(page, id).first.locator(".board-open").click()
    await expect(page.get_by_text("Not found. The breadcrumb was deleted or has expired.")).to_be_visible()


async def test_an_empty_board_says_that_nothing_matches_and_shows_later_events(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    topic = unique_name("nothing")
    page = await open_window(board(crumb_up.url, tag=topic))
    await expect(page.get_by_role("heading", name="No matches")).to_be_visible()
    await expect_live(page)
    crumbs.post("note.v1", topic, title="there it is")
    await expect(texts(page)).to_have_text(["there it is"])


# --- Filters ----------------------------------------------------------------------------------------------


async def test_a_click_on_a_tag_or_schema_filters_and_changes_the_url(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    topic, session = unique_name("topic"), unique_name("filter")
    red, blue = f"colour:red {topic}", f"colour:blue {topic}"
    crumbs.post("note.v1", topic, red, f"session:{session}", title="a red note")
    crumbs.post("note.v1", topic, blue, f"session:{session}", title="a blue note")
    crumbs.post("other.v1", topic, red, f"session:{session}", title="another red one")
    page = await open_window(board(crumb_up.url, tag=topic))
    await expect(texts(page)).to_have_count(3)
    await cards(page).first.get_by_title(f"Show only {red}").click()
    await expect(texts(page)).to_have_text(["a red note", "another red one"])
    await cards(page).first.get_by_title("Show only note.v1").click()
    await expect(texts(page)).to_have_text(["a red note"])
    chips = page.get_by_role("list", name="Filters").locator(".board-chip")
    await expect(chips).to_have_text(["note.v1", topic, red])

    await page.reload()
    await expect(texts(page)).to_have_text(["a red note"])
    await expect_live(page)
    crumbs.post("note.v1", topic, blue, f"session:{session}", title="blue again")
    crumbs.post("note.v1", topic, red, f"session:{session}", title="red again")
    await expect(texts(page)).to_have_text(["a red note", "red again"])

    await page.get_by_role("button", name="Remove filter note.v1").click()
    await expect(texts(page)).to_have_text(["a red note", "another red one", "red again"])
    await page.go_back()
    await expect(texts(page)).to_have_text(["a red note", "red again"])
    await page.get_by_role("button", name="Clear filters").click()
    await expect(page.get_by_role("list", name="Filters")).to_have_count(0)


async def test_a_filter_can_be_typed(crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs) -> None:
    topic = unique_name("typed")
    crumbs.post("note.v1", topic, title="mine")
    page = await open_window(board(crumb_up.url))
    await expect(cards(page).last).to_be_visible()
    await page.locator("main").focus()
    await page.keyboard.press("f")
    await page.keyboard.type(topic)
    await page.keyboard.press("Enter")
    await expect(texts(page)).to_have_text(["mine"])
    await page.locator("#board-filter").fill("no.such.v1")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="No matches")).to_be_visible()


# --- One breadcrumb ---------------------------------------------------------------------------------------


async def test_the_json_of_a_breadcrumb_is_shown_as_a_tree_and_as_text(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    deep = {"outer": {"inner": {"core": ["a", {"b": "found it"}]}}, "long": "x" * 5_000, "number": 17}
    id = crumbs.post("note.v1", unique_name("json"), title="A document", **deep)
    page = await open_window(board(crumb_up.url, id))
    tree = page.locator(".json-tree")
    await expect(tree).to_contain_text("number: 17")
    await expect(tree).not_to_contain_text("found it")
    for name in ("outer", "inner", "core", "1"):
        closed = tree.get_by_role("button", name=re.compile(rf"^{name} \d")).and_(
            page.locator("[aria-expanded=false]")
        )
        if await closed.count():
            await closed.first.click()
    await expect(tree).to_contain_text("b: found it")
    assert len(await tree.inner_text()) < 4_000
    await tree.get_by_role("button", name="Show all 5,000 characters").click()
    assert len(await tree.inner_text()) > 5_000
    await page.get_by_role("button", name="Show text").click()
    await expect(page.locator("pre.json")).to_contain_text('"b": "found it"')


async def test_versions_are_listed_and_any_two_can_be_compared(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    id = crumbs.post("note.v1", "draft", title="A note", text="one", kept=["a", "b", "c"])
    crumbs.change(id, context={"text": "two", "kept": ["a", "b", "c"]})
    crumbs.change(id, tags=["final"], context={"text": "three", "kept": ["a", "b", "c"]})
    page = await open_window(board(crumb_up.url, id))
    await page.get_by_role("tab", name="Versions").click()
    await expect(page.get_by_role("radio")).to_have_count(3)
    added, removed = page.locator(".board-diff .plus"), page.locator(".board-diff .minus")
    await expect(removed).to_have_text([re.compile('"draft"'), re.compile('"text": "two"')])
    await expect(added).to_have_text([re.compile('"final"'), re.compile('"text": "three"')])
    await expect(page.locator(".board-diff")).not_to_contain_text('"c"')
    await page.get_by_label("Compare with version").select_option("v1")
    await expect(removed).to_have_text([re.compile('"draft"'), re.compile('"text": "one"')])
    await page.get_by_role("radio").nth(1).check()
    await expect(removed).to_have_text([re.compile('"text": "one"')])
    await expect(added).to_have_text([re.compile('"text": "two"')])
    # A change while the versions are shown.
    await expect_live(page)
    crumbs.change(id, context={"text": "four"})
    await expect(page.get_by_role("radio")).to_have_count(4)


def _ms(later: str, earlier: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds() * 1000


def _shown(ms: float) -> float:
    """Round like the page's `duration`, to compare the result with the shown time."""
    return round(ms, 1) if ms < 10 else float(round(ms))


def _read(text: str) -> float:
    number, unit = re.fullmatch(r"\+?([\d.]+) (µs|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"µs": 0.001, "ms": 1, "s": 1000}[unit]


async def test_the_turn_graph_leads_from_message_to_answer_with_times_on_edges(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session = unique_name("turn")
    crumbs.say(session, "Hello")  # makes the context of the next turn its second version
    page = await open_window(board(crumb_up.url, session=session))
    await expect(cards(page, "answer")).to_have_count(1)
    crumbs.say(session, "What is 12*12?")
    await expect(cards(page, "answer")).to_have_count(2)
    await cards(page, "answer").last.locator(".board-open").click()
    labels = page.locator(".turn-node .turn-label")
    await expect(labels).to_have_text(
        ["Message", "Context", "Model step", "Tool call", "Tool result", "Answer"]
    )
    nodes = page.locator(".turn-node .turn-text")
    await expect(nodes.first).to_have_text("What is 12*12?")
    await expect(nodes.last).to_have_text("12*12 = 144")
    await expect(page.locator(".turn-node.here .turn-label")).to_have_text("Answer")

    found = {crumb["schema_name"]: crumb for crumb in crumbs.in_session(session)}  # the newest of each schema
    times = [
        found["user.message.v1"]["created_at"],
        found["agent.context.v1"]["updated_at"],
        *(
            found[name]["created_at"]
            for name in ("agent.step.v1", "tool.request.v1", "tool.response.v1", "agent.response.v1")
        ),
    ]
    wanted = [_shown(_ms(later, earlier)) for earlier, later in pairwise(times)]
    read = [_read(text) for text in await page.locator(".turn-edge text").all_text_contents()]
    assert read == pytest.approx(wanted, rel=0.06, abs=0.11)

    # The graph has a text alternative.
    await expect(
        page.get_by_role("img", name=re.compile("Graph of the turn. Answered after"))
    ).to_be_visible()
    steps = page.get_by_role("table", name="Steps of the turn with their times")
    await expect(steps.get_by_role("row")).to_have_count(7)
    await steps.get_by_role("button", name="Message").click()
    await expect(page.locator(".board-detail h2")).to_have_text("Message")
    await expect(labels).to_have_text(
        ["Message", "Context", "Model step", "Tool call", "Tool result", "Answer"]
    )
    await page.locator(".turn-node").nth(1).click()
    await expect(page.locator(".board-detail h2")).to_contain_text("Context")
    await expect(labels).to_have_count(6)


async def test_an_older_version_of_a_context_shows_the_turn_of_its_message(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session = unique_name("older")
    page = await open_window(board(crumb_up.url, session=session))
    await expect_live(page)
    for number, text in enumerate(("first thing", "second thing"), start=1):
        crumbs.say(session, text)
        await expect(cards(page, "answer")).to_have_count(number)
    await cards(page, "context").first.locator(".board-open").click()
    await expect(page.locator(".turn-node .turn-text").first).to_have_text("first thing")
    await cards(page, "context").last.locator(".board-open").click()
    await expect(page.locator(".turn-node .turn-text").first).to_have_text("second thing")


def post_chain(crumbs: Crumbs, name: str) -> None:
    """Post two agents. The first one reacts to messages with a tag, the second one to its answers."""
    for agent, schema, tag, emitted in (
        ("first", "user.message.v1", "start", [f"{name}:draft"]),
        ("second", "agent.response.v1", "draft", []),
    ):
        trigger = {"role": "trigger", "schema_name": schema, "all_tags": [f"{name}:{tag}"]}
        crumbs.post(
            "agent.def.v1",
            agent_id=f"{name}-{agent}",
            system_prompt="Answer.",
            subscriptions={"selectors": [trigger]},
            emits={"tags": emitted},
        )


async def test_a_running_turn_is_shown_as_running_and_updated_live(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session = unique_name("way")
    tag = f"session:{session}"
    message = crumbs.post(
        "user.message.v1", tag, message="Anybody there?"
    )  # has no tag that an agent reacts to
    page = await open_window(board(crumb_up.url, message))
    await expect(page.locator(".turn-sum")).to_have_text("No steps yet.")
    await expect(page.locator(".turn-node.waiting")).to_contain_text("No answer yet")
    await expect_live(page)
    asked = crumbs.post(
        "tool.request.v1", tag, trigger_id=message, tool="clock", input={}, requestedBy="helper"
    )
    await expect(page.locator(".turn-sum")).to_have_text(re.compile("In progress for .* · 1 tool call"))
    crumbs.post(
        "tool.response.v1",
        tag,
        trigger_id=message,
        tool="clock",
        request_id=asked,
        status="success",
        output="noon",
    )
    crumbs.post(
        "agent.error.v1", tag, trigger_id=message, error="The other one broke", creator="agent-runner"
    )
    await expect(page.locator(".turn-sum")).to_have_text(re.compile("Failed after"))
    labels = page.locator(".turn-node .turn-label")
    await expect(labels).to_have_text(["Message", "Tool call", "Tool result", "Error"])
    # A retry is answered. Another agent answers too, in its own column.
    crumbs.post(
        "agent.response.v1", tag, trigger_id=message, message="At noon", creator={"agent_id": "helper"}
    )
    crumbs.post("agent.response.v1", tag, trigger_id=message, message="Yes", creator={"agent_id": "second"})
    await expect(page.locator(".turn-sum")).to_have_text(re.compile("Answered after .* · 2 agents"))
    columns = await page.locator(".turn-node.answer").evaluate_all(
        "nodes => nodes.map(n => n.getAttribute('transform'))"
    )
    assert len({column.split(" ")[0] for column in columns}) == 2
    await expect(page.locator(".turn-node.waiting")).to_have_count(0)


async def test_a_chain_is_one_graph_that_begins_with_the_users_message(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session, name = unique_name("chain"), unique_name("tag")
    post_chain(crumbs, name)
    crumbs.post("user.message.v1", f"session:{session}", f"{name}:start", message="Begin")
    page = await open_window(board(crumb_up.url, session=session))
    await expect(cards(page, "answer")).to_have_count(2)
    await cards(page, "answer").last.locator(".board-open").click()
    await expect(page.locator(".turn-node .turn-text").first).to_have_text("Begin")
    await expect(page.locator(".turn-node.answer")).to_have_count(2)
    await expect(page.locator(".turn-sum")).to_have_text(re.compile("Answered after .* · 2 agents"))
    # The second agent is below the answer of the first one, and connected with it.
    first, second = [
        float(place.split(" ")[1].rstrip(")"))
        for place in await page.locator(".turn-node.answer").evaluate_all(
            "nodes => nodes.map(n => n.getAttribute('transform'))"
        )
    ]
    assert second > first
    await page.goto(chat_url(crumb_up.url, session))
    await expect(page.locator(".handover")).to_have_text(f"{name}-first handed over to {name}-second")


# --- Safety and accessibility -----------------------------------------------------------------------------


async def test_foreign_content_is_shown_as_text_everywhere(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session, tag = unique_name(INJECTION), INJECTION.replace(" ", "_")[:200]
    message = crumbs.post(
        "user.message.v1",
        f"session:{session}",
        tag,
        title=INJECTION,
        message=INJECTION,
        **{INJECTION: [INJECTION, {INJECTION: INJECTION}]},
    )
    crumbs.post(INJECTION.replace(" ", "_")[:100], f"session:{session}", tag, title=INJECTION)
    crumbs.post(
        "tool.response.v1",
        f"session:{session}",
        tag,
        title=INJECTION,
        trigger_id=message,
        tool=INJECTION,
        request_id=INJECTION,
        output=INJECTION,
    )
    crumbs.change(message, title=f"{INJECTION} again", context={"message": INJECTION, INJECTION: INJECTION})
    page = await open_window(board(crumb_up.url, tag=tag))
    await expect(texts(page).filter(has_text="<script>")).to_have_count(3)
    await expect(lanes(page)).to_contain_text("<img")
    await expect(page.locator(".board-chip")).to_contain_text("<img")
    await card(page, message).last.locator(".board-open").click()
    await expect(page.locator(".turn-node .turn-text").first).to_contain_text("<img")
    for tab in ("Content", "Versions"):
        await page.get_by_role("tab", name=tab).click()
        await expect(page.get_by_role("tabpanel")).to_contain_text("<script>")
    assert await page.locator("main img, main script").count() == 0
    assert await page.title() == "Blackboard · Breadcrumbs"


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1200)])
async def test_axe_finds_nothing_serious(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs, scheme: str, width: int
) -> None:
    session = unique_name("axe")
    crumbs.say(session, "What is 3*5?")
    look: dict[str, Any] = {"color_scheme": scheme, "reduced_motion": "reduce"}
    page = await open_window(
        board(crumb_up.url, session=session), viewport={"width": width, "height": 780}, **look
    )
    await expect(cards(page, "answer")).to_have_count(1)
    crumbs.post("agent.error.v1", f"session:{session}", error="broken")
    await expect(cards(page, "error")).to_have_count(1)
    assert await serious(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    await cards(page, "answer").locator(".board-open").click()
    await expect(page.locator(".turn-node")).to_have_count(6)
    for tab in ("Turn", "Content", "Versions"):
        await page.get_by_role("tab", name=tab).click()
        assert await serious(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_everything_works_with_the_keyboard(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    topic, one, two = unique_name("keys"), unique_name("one"), unique_name("two")
    first = crumbs.post("note.v1", topic, f"session:{one}", title="first of one")
    crumbs.change(first, title="changed")
    crumbs.post("note.v1", topic, f"session:{one}", title="second of one")
    crumbs.post("note.v1", topic, f"session:{two}", title="first of two")
    page = await open_window(board(crumb_up.url, tag=topic))
    await expect(texts(page)).to_have_count(3)
    # All cards share one tab stop, on the newest card.
    newest = page.locator(".board-open[tabindex='0']")
    await expect(newest).to_have_count(1)
    await newest.focus()
    focused = page.locator(".board-open:focus .board-text")
    await expect(focused).to_have_text("first of two")
    across = "ArrowRight" if await lanes(page).first.inner_text() == two else "ArrowLeft"
    await page.keyboard.press(across)
    await expect(focused).to_have_text(re.compile("of one|changed"))
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowUp")
    await expect(focused).to_have_text("changed")
    await page.keyboard.press("Enter")
    await expect(page.locator(".board-detail h2")).to_be_focused()
    await page.get_by_role("tab", name="Content").focus()
    await page.keyboard.press("ArrowRight")
    await expect(page.get_by_role("tab", name="Versions")).to_be_focused()
    await expect(page.get_by_role("radio")).to_have_count(2)
    await page.keyboard.press("Escape")
    await expect(page.locator(".board-detail")).to_have_count(0)
    await expect(focused).to_have_text("changed")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_contain_text("Filter by tag or schema")


async def test_the_focused_card_survives_scrolling_out_of_view(
    crumb_up: CrumbUp, open_window: OpenWindow, crumbs: Crumbs
) -> None:
    session = unique_name("far")
    for number in range(80):
        crumbs.post("note.v1", f"session:{session}", title=f"note {number}")
    page = await open_window(board(crumb_up.url, session=session))
    await expect(texts(page).last).to_have_text("note 79")
    await page.locator(".board-open[tabindex='0']").focus()
    await page.keyboard.press("ArrowUp")
    focused = page.locator(".board-open:focus .board-text")
    await expect(focused).to_have_text("note 78")
    await page.locator(".board-scroller").evaluate("e => e.scrollTo(0, 0)")
    await expect(texts(page).filter(has_text="note 0")).to_be_in_viewport()
    await expect(focused).to_have_text("note 78")
    await page.locator("#board-filter").focus()
    await expect(page.locator(".board-open[tabindex='0']")).to_have_count(1)
    await page.keyboard.press("Tab")
    for _ in range(10):
        if await focused.count():
            break
        await page.keyboard.press("Tab")
    await expect(focused).to_have_text("note 78")
    await expect(focused).to_be_in_viewport()
