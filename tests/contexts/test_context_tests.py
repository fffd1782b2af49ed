"""Context tests: past turns with the old and with a changed config, in process, over HTTP and on the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import anyio
import httpx
import pytest

from breadcrumbs.cli import context_tests as command
from breadcrumbs.context_builder import context_tests, timeline
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.context_tests import (
    ContextTester,
    ContextTestReport,
    ContextTestRequest,
    Position,
)
from breadcrumbs.context_builder.http import context_tests as route
from breadcrumbs.context_builder.http import contexts
from breadcrumbs.context_builder.http.contexts import routes as CONTEXTS
from breadcrumbs.context_builder.old_configs import OldConfigs
from breadcrumbs.context_builder.past import assemble_past
from breadcrumbs.context_builder.references import read_record
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.retrieval.histories import HistoryReader
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.archive import delete_archive
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.store import Store
from tests.contexts import test_http
from tests.contexts.support import ANSWERS, MESSAGES, OWNER, book_of, building, config, document, post
from tests.contexts.test_cli_contexts import Shell, shell
from tests.contexts.test_http import KEY, Site

__all__ = ["shell"]

OTHERS: dict[str, Any] = {
    "key": "others", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "all", "limit": 5}
}  # fmt: skip


async def talk(store: Store, turns: int = 4, session: str = "s", owner: UUID = OWNER) -> list[UUID]:
    """Hold a conversation with the default config. Return the ids of the messages."""
    async with building(store, book_of(store)) as builder:
        messages = []
        for number in range(turns):
            context = await builder.say(f"question {number}", session, owner=owner)
            messages.append(read_record(context).trigger_id)
            await post(store, f"answer {number}", session=session, schema="agent.response.v1", owner=owner)
    return messages


async def run(store: Store, changed: ContextConfig, **request: Any) -> ContextTestReport:
    tester = ContextTester(
        store, ContextTestRequest(OWNER, changed, **request), OldConfigs(store, OWNER, [config()]).get
    )
    report = ContextTestReport()
    async for result in tester.run():
        report.add(result)
    return report


def _tester(store: Store, changed: ContextConfig, **request: Any) -> ContextTester:
    old = OldConfigs(store, OWNER, [config()])
    return ContextTester(store, ContextTestRequest(OWNER, changed, **request), old.get)


# In process


async def test_the_breadcrumbs_of_other_sessions_are_bounded_for_all_sources_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        await post(store, f"note {number}", session=f"t{number}", schema="note.v1")
    await talk(store, 2)
    sources = [
        {
            "key": f"n{number}",
            "schema_name": "note.v1",
            "fetch": {"conversation_scope": "all", "limit": number},
        }
        for number in range(1, 9)
    ]
    changed = config(sources=[MESSAGES, ANSWERS, *sources])
    pools: list[timeline.SharedPools] = []
    make = timeline.SharedPools.__init__

    def remember(self: timeline.SharedPools, reader: HistoryReader) -> None:
        make(self, reader)
        pools.append(self)

    monkeypatch.setattr(timeline.SharedPools, "__init__", remember)
    whole = await run(store, changed)
    tagged = [source | {"any_tags": ["session:t1", f"x{source['key']}"]} for source in sources]
    monkeypatch.setattr(timeline, "_SHARED_BYTES", 500)
    bounded = await run(store, changed)
    assert bounded.added == whole.added  # the store has the rest
    await run(store, config(sources=[MESSAGES, ANSWERS, *tagged]))
    assert [sum(pool._sizes.values()) < 1_000 for pool in pools] == [False, True, True]


async def test_the_turns_of_a_server_are_assembled_beside_other_requests(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk(store, 1)
    threads: set[int] = set()
    original = assemble_past

    def assemble(*arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return original(*arguments)

    monkeypatch.setattr(context_tests, "assemble_past", assemble)
    report = await run(store, config(sources=[MESSAGES]), in_thread=True)
    assert report.turns == 1 and threads and threading.get_ident() not in threads


async def test_a_report_lists_a_limited_number_of_changed_items(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk(store, 6)
    monkeypatch.setattr(context_tests, "MAX_LISTED_ITEMS", 2)
    report = await run(store, config(sources=[MESSAGES]))
    assert report.changed == 5 and report.removed.total() == 15
    assert [len(turn["removed"]) for turn in report.listed] == [1, 2]


async def test_the_same_config_changes_nothing(store: Store) -> None:
    await talk(store)
    report = await run(store, config())
    assert (report.turns, report.changed, report.skipped.total()) == (4, 0, 0)
    assert report.tokens[0] == report.tokens[1] > 0
    assert report.reuse is not None and report.reuse[0] == report.reuse[1] > 0.5


async def test_a_smaller_limit_removes_items_and_tokens(store: Store) -> None:
    await talk(store)
    smaller = config(sources=[MESSAGES | {"fetch": {"limit": 2}}, ANSWERS])
    report = await run(store, smaller)
    assert (report.turns, report.changed) == (4, 2)
    assert report.removed == {"conversation": 3} and not report.added
    assert report.tokens[1] < report.tokens[0]
    assert [len(turn["removed"]) for turn in report.listed] == [1, 2]
    assert report.reuse is not None and report.reuse[1] < report.reuse[0]


async def test_an_item_of_another_session_or_user_is_reported(store: Store) -> None:
    await post(store, "of Ada", session="t", tags=("user:ada",))
    await talk(store, turns=1)
    report = await run(store, config(sources=[MESSAGES, ANSWERS, OTHERS]))
    assert report.crossings == 2
    assert [(one["boundary"], one["origin"]) for one in report.listed_crossings] == [
        ("session", "t"),
        ("user", "ada"),
    ]


async def test_edits_and_deletions_since_are_not_changes(store: Store) -> None:
    first, second, *_ = await talk(store)
    await store.update(OWNER, first, BreadcrumbUpdate(context={"message": "edited since"}))
    assert (await run(store, config())).changed == 0
    await store.delete(OWNER, second)
    report = await run(store, config(formatting={"max_tokens": 3000}))
    assert (report.changed, report.with_gone) == (0, 2)
    assert report.skipped == {"its message was deleted": 1}


async def test_the_old_config_comes_from_the_archive(store: Store) -> None:
    await talk(store)
    changed = config(formatting={"max_tokens": 9})

    async def test() -> ContextTestReport:
        tester = ContextTester(store, ContextTestRequest(OWNER, changed), OldConfigs(store, OWNER).get)
        report = ContextTestReport()
        async for result in tester.run():
            report.add(result)
        return report

    report = await test()
    assert (report.turns, report.skipped) == (4, {}) and report.changed > 0
    await delete_archive(store, OWNER)
    report = await test()
    assert (report.turns, report.skipped) == (0, {"its config is not known": 4})


async def test_turns_are_tested_after_the_ttl_of_their_context(store: Store) -> None:
    brief = document(output={"ttl_seconds": 1})
    async with building(store, book_of(store, brief)) as builder:
        for number in range(3):
            await builder.say(f"question {number}", "s")
    await anyio.sleep(1.1)
    for lane in range(store.lanes):
        await purge_expired(store, lane)
    report = await run(store, config(**brief, formatting={"max_tokens": 4}))
    assert (report.turns, report.skipped) == (3, {}) and report.changed == 2


async def test_a_sample_is_the_same_each_time(store: Store) -> None:
    await talk(store, turns=12)
    one, again = [await run(store, config(formatting={"max_tokens": 5}), sample=4) for _ in range(2)]
    assert 0 < one.turns < 12 and one.listed == again.listed


async def test_reuse_compares_only_turns_that_follow_each_other(store: Store) -> None:
    await talk(store, turns=12)
    whole = [result async for result in _tester(store, config()).run()]
    sampled = [result async for result in _tester(store, config(), sample=5).run()]
    chosen = {result.context_version for result in sampled}
    by_version = {result.context_version: result for result in whole}
    assert any(result.context_version - 1 not in chosen for result in sampled[1:])
    for result in sampled:
        adjacent = result.context_version - 1 in chosen
        assert result.repeated == (by_version[result.context_version].repeated if adjacent else None)


async def test_all_parts_of_a_run_choose_the_same_sample(store: Store) -> None:
    for session in ("s", "t", "u"):
        await talk(store, turns=6, session=session)
    whole = [result async for result in _tester(store, config(), sample=9).run()]
    found, after = [], None
    while part := [result async for result in _tester(store, config(), sample=9, after=after).run()]:
        found.append(part[0].position)
        after = part[0].position
    assert found == [result.position for result in whole]
    assert await _tester(store, config(), after=found[-1]).count_turns() == 18


async def test_a_run_that_continues_has_the_totals_of_one_run(store: Store) -> None:
    await talk(store, session="s")
    await talk(store, session="t")
    changed = config(formatting={"max_tokens": 6})
    whole = await run(store, changed)
    total, after = ContextTestReport(), None
    while True:
        tester = ContextTester(
            store, ContextTestRequest(OWNER, changed, after=after), OldConfigs(store, OWNER, [config()]).get
        )
        part = ContextTestReport()
        async for result in tester.run():
            part.add(result)
            if part.turns == 3:
                break
        if part.position is None:
            break
        after = Position.parse(str(part.position))
        total.merge(ContextTestReport.from_dict(json.loads(json.dumps(part.as_dict()))))
    assert (total.turns, total.changed, total.listed) == (whole.turns, whole.changed, whole.listed)
    assert total.tokens == whole.tokens


async def test_a_test_writes_nothing(store: Store) -> None:
    await talk(store)
    before = [(crumb.id, crumb.version) async for crumb in store.walk(OWNER, Query())]
    await run(store, config(formatting={"max_tokens": 5}))
    assert [(crumb.id, crumb.version) async for crumb in store.walk(OWNER, Query())] == before


# HTTP


@pytest.fixture
async def site(embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(test_http, "CONTEXTS", [*CONTEXTS, *route.routes])
    keys = ({"key": KEY, "owner_id": str(OWNER)},)
    async with test_http.opened(embedded_server.url, api_keys=keys) as site:
        yield site


@asynccontextmanager
async def filled(site: Site) -> AsyncIterator[None]:
    await post(site.store, schema="context.config.v1", context=document())
    await talk(site.store, session="s")
    await talk(site.store, session="t")
    yield


async def ask(site: Site, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    answer = await site.client.post("/contexts/test", json=body, headers=headers or {"X-API-Key": KEY})
    return site._checked(answer, "/contexts/test", "post")


async def test_the_server_tests_page_by_page(site: Site) -> None:
    changed = document(formatting={"max_tokens": 6})
    async with filled(site):
        whole = (await ask(site, config=changed)).json()
        assert (whole["turns"], whole["total"]) == (8, 8) and 0 < whole["changed"] < 8
        assert "next_cursor" not in whole
        turns, cursor = 0, None
        for _ in range(10):
            page = (await ask(site, config=changed, limit=3, **({"cursor": cursor} if cursor else {}))).json()
            turns += page["turns"]
            if (cursor := page.get("next_cursor")) is None:
                break
        assert turns == 8
        one = (await ask(site, config=changed, session_id="t")).json()
        assert one["turns"] == 4 and {turn["session_id"] for turn in one["changed_turns"]} == {"t"}


async def test_a_narrowed_token_tests_only_its_own_sessions(site: Site) -> None:
    wide = document(sources=[MESSAGES, ANSWERS, OTHERS])
    async with filled(site):
        narrowed = await site.token(session_id="t")
        told = (await ask(site, narrowed, config=wide)).json()
        assert told["turns"] == 4 and told["boundary_crossings"] == 0
        assert (await ask(site, narrowed, config=wide, session_id="s")).status_code == 404
        ann = await site.token(user_id="ann")
        assert (await ask(site, ann, config=wide)).json()["turns"] == 0


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"config": {"consumer_id": "x"}}, "config"),
        ({"config": document(), "limit": 501}, "limit"),
        ({"config": document(), "limit": 0}, "limit"),
        ({"config": document(), "cursor": "nonsense"}, ""),
        ({"config": document(), "cursor": "1.2.3"}, ""),
        ({"config": document(), "since": "yesterday"}, "since"),
        ({"config": document(), "sample": 0}, "sample"),
        ({"config": [document(), document(consumer_id="b")]}, "consumer_id"),
        ({"sesion": "s"}, ""),
    ],
)
async def test_an_invalid_request_is_refused(site: Site, body: dict[str, Any], where: str) -> None:
    answer = await ask(site, **body)
    assert answer.status_code in (400, 422) and where in answer.text


async def test_a_config_with_which_a_turn_takes_too_long_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "MAX_SECONDS_PER_TURN", 0.0)
    body = {"config": document(), "session_id": "s"}
    async with filled(site):
        for path in ("/contexts/test", "/contexts/preview"):
            refused = await site.client.post(path, json=body, headers={"X-API-Key": KEY})
            assert refused.status_code == 422, refused.text
            assert "lower the limits of its sources" in refused.text


async def test_an_unknown_session_is_not_found(site: Site) -> None:
    assert (await ask(site, config=document(), session_id="nowhere")).status_code == 404


# Command line


@pytest.fixture
def told(shell: Shell) -> Shell:
    async def fill(store: Store) -> None:
        await post(store, schema="context.config.v1", context=document(), owner=DEVELOPER)
        await talk(store, session="demo", owner=DEVELOPER)

    shell.on_store(fill)
    return shell


def test_exit_codes_of_the_command(told: Shell) -> None:
    same = told.file("same.json", document())
    changed = told.file("changed.json", document(formatting={"max_tokens": 6}))
    assert told.json("context", "test", "--config", same)["changed"] == 0
    report = told.json("context", "test", "--config", changed, code=1)
    assert (report["turns"], report["failed"]) == (4, ["changed"]) and report["changed"] > 0
    assert told.run("context", "test", "--config", changed, "--fail-on", "boundary").exit_code == 0
    assert told.run("context", "test", "--config", changed, "--fail-on", "tokens:+10%").exit_code == 0
    assert told.run("context", "test", "--config", changed, "--fail-on", "lost-item").exit_code == 1
    wide = told.file("wide.json", document(sources=[MESSAGES, ANSWERS, OTHERS], formatting={"max_tokens": 8}))
    assert told.run("context", "test", "--config", wide, "--fail-on", "gone").exit_code == 0


def test_a_test_without_turns_says_so(told: Shell) -> None:
    other = told.file("other.json", document(consumer_id="misspelt"))
    done = told.run("context", "test", "--config", other)
    assert json.loads(done.stdout)["turns"] == 0 and done.exit_code == 0
    assert "no past turns of misspelt were found" in done.stderr


def test_errors_have_the_exit_code_2(told: Shell) -> None:
    same = told.file("same.json", document())
    bad = told.file("bad.json", '{"consumer_id": "x",\n "sourcs": []}')
    test = ("context", "test", "--config")
    assert f"{bad}:2:2: sourcs" in told.fails(*test, bad, code=2)
    assert "cannot read missing.json" in told.fails(*test, "missing.json", code=2)
    assert "'nowhere' not found" in told.fails(*test, same, "--session", "nowhere", code=2)
    assert "tokens:+10%" in told.fails(*test, same, "--fail-on", "tokens:10", code=2)
    assert "--since" in told.fails(*test, same, "--since", "soon", code=2)
    assert "no server at" in told.fails(*test, same, "--url", "http://127.0.0.1:1", code=2)


def test_a_run_continues_from_its_file(told: Shell) -> None:
    changed = told.file("changed.json", document(formatting={"max_tokens": 6}))
    file = told.folder / "progress.json"
    run_test = ("context", "test", "--config", changed, "--resume", str(file))
    whole = told.json(*run_test, code=1)
    saved = json.loads(file.read_bytes())
    assert saved["report"]["turns"] == 4
    assert told.json(*run_test, code=1) == whole  # finished: nothing is tested twice
    # A run that was stopped after the second turn.
    created, id, _ = saved["cursor"].split(".")
    empty = ContextTestReport(turns=2).as_dict()
    file.write_text(json.dumps(saved | {"cursor": f"{created}.{id}.2", "report": empty}))
    assert told.json(*run_test, code=1)["turns"] == 4
    other = told.file("other.json", document(formatting={"max_tokens": 7}))
    assert "another config" in told.fails("context", "test", "--config", other, "--resume", str(file), code=2)
    for wrong in ("{}", "[]", json.dumps(saved | {"cursor": "x"})):
        file.write_text(wrong)
        assert "not the progress of a context test" in told.fails(*run_test, code=2)
        assert file.read_text() == wrong
    nowhere = str(told.folder / "nowhere" / "progress.json")
    assert "there is no folder" in told.fails(*run_test[:-1], nowhere, code=2)


def test_the_last_page_of_a_server_is_added_once(told: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = told.file("changed.json", document(formatting={"max_tokens": 6}))
    file = told.folder / "progress.json"
    pages = {
        None: "1.00000000-0000-0000-0000-000000000001.2",
        "1.00000000-0000-0000-0000-000000000001.2": None,
    }

    def answer(client: Any, method: str, path: str, body: dict[str, Any]) -> httpx.Response:
        following = pages[body.get("cursor")]
        page = ContextTestReport(turns=2).as_dict() | {"total": 4}
        return httpx.Response(200, json=page if following is None else page | {"next_cursor": following})

    monkeypatch.setattr(command, "send_json", answer)
    monkeypatch.setattr(command, "choose_place", lambda place: "http://127.0.0.1:1")
    run_test = ("context", "test", "--config", changed, "--resume", str(file))
    assert told.json(*run_test)["turns"] == 4
    assert told.json(*run_test)["turns"] == 4
    assert json.loads(file.read_bytes())["report"]["turns"] == 2


@pytest.mark.parametrize("resume", [True, False])
def test_a_stopped_run_says_how_to_continue(
    told: Shell, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_test_stored", stop)
    same = told.file("same.json", document())
    options = ("--resume", "progress.json") if resume else ()
    done = told.fails("context", "test", "--config", same, *options, code=130)
    assert ("--resume progress.json continues" if resume else "with --resume FILE") in done


def test_people_see_a_table(told: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "for_people", lambda as_json: not as_json)
    changed = told.file("changed.json", document(formatting={"max_tokens": 6}))
    done = told.run("context", "test", "--config", changed, "--price", "2")
    assert "of 4 turns would have been different" in done.stdout
    assert "cost of the input" in done.stdout and "conversation" in done.stdout
    assert "context preview --session demo" in done.stdout and "\x1b" not in done.stdout
