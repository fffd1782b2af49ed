"""The commands `crumb context …` and `crumb audit …`."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner, Result

from breadcrumbs.cli import audits, contexts
from breadcrumbs.cli.app import app
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.ids import home_lane
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import MESSAGES, book_of, building, context_of, document, post


class Shell:
    """Runs commands on a store with contexts."""

    def __init__(self, url: str, namespace: str, folder: Path) -> None:
        self.url, self.namespace, self.folder = url, namespace, folder

    def run(self, *arguments: str, **env: str) -> Result:
        given = {"CRUMB_REDIS": self.url, "CRUMB_NAMESPACE": self.namespace} | env
        done = CliRunner().invoke(app, arguments, env=given)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert "Traceback" not in done.output
        return done

    def json(self, *arguments: str, code: int = 0) -> Any:
        done = self.run(*arguments)
        assert done.exit_code == code, done.stderr
        return json.loads(done.stdout)

    def fails(self, *arguments: str, code: int = 1, **env: str) -> str:
        done = self.run(*arguments, **env)
        assert (done.exit_code, done.stdout) == (code, ""), done.output
        return done.stderr

    def file(self, name: str, content: Any) -> str:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def on_store(self, work: Callable[[Store], Awaitable[None]]) -> None:
        async def main() -> None:
            store = await Store.open(self.url, namespace=self.namespace)
            try:
                await work(store)
            finally:
                await store.close()

        asyncio.run(main())


@pytest.fixture
def shell(embedded_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("CRUMB_CONFIG", "CRUMB_DATA", "CRUMB_API_KEYS", "CRUMB_LAUNCHER"):
        monkeypatch.delenv(name, raising=False)
    return Shell(embedded_server.url, f"c{secrets.token_hex(6)}", tmp_path)


async def three_turns(store: Store) -> None:
    second = document(consumer_id="second", update_triggers=[{"all_tags": ["for:both"]}])
    async with building(store, book_of(store, document(), second)) as builder:
        for number in range(3):
            await builder.say(f"question {number}", "demo", owner=DEVELOPER)
            await post(store, f"answer {number}", session="demo", schema="agent.response.v1", owner=DEVELOPER)
        await builder.say("both", "two", owner=DEVELOPER, tags=("for:both",))
        await builder.say("both again", "two", owner=DEVELOPER, tags=("for:both",), consumer="second")


@pytest.fixture
def filled(shell: Shell) -> Shell:
    shell.on_store(three_turns)
    return shell


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (contexts, audits):
        monkeypatch.setattr(module, "for_people", lambda as_json: not as_json)


# check


def test_a_valid_config_passes_the_check(shell: Shell, at_a_terminal: None) -> None:
    done = shell.run("context", "check", shell.file("one.json", document()))
    assert (done.exit_code, done.stdout) == (0, "valid, 1 config, consumer tester\n")
    two = shell.file("two.json", [document(), document(consumer_id="b")])
    assert shell.run("context", "check", two).stdout == "valid, 2 configs, consumers tester, b\n"


def test_a_bad_config_is_shown_line_by_line(shell: Shell) -> None:
    bad = shell.file("bad.json", '{"consumer_id": "x",\n "update_triggers": [{}],\n "sourcs": []}')
    done = shell.run("context", "check", bad, shell.file("good.json", document()))
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        f"{bad}:1:1: sources: this field is required",
        f"{bad}:2:22: update_triggers.0: this trigger matches everything: add a schema_name or tags",
        f"{bad}:3:2: sourcs: unknown field: did you mean 'sources'?",
    ]
    told = json.loads(done.stdout)
    assert told["ok"] is False and [config["consumer_id"] for config in told["configs"]] == ["tester"]
    assert told["complaints"][1] | {"message": ""} == {
        "file": bad, "line": 2, "column": 22, "where": "update_triggers.0", "message": ""
    }  # fmt: skip


def test_a_missing_config_file_is_reported(shell: Shell) -> None:
    assert "cannot read missing.json: No such file" in shell.fails("context", "check", "missing.json")


# explain


def test_a_session_is_explained(filled: Shell) -> None:
    told = filled.json("context", "explain", "demo")
    assert (told["session_id"], told["consumer_id"], told["version"]) == ("demo", "tester", 3)
    assert [item["excerpt"] for item in told["items"]] == [
        "question 0", "answer 0", "question 1", "answer 1", "question 2",
    ]  # fmt: skip
    assert filled.json("context", "explain", told["context_id"]) == told
    older = filled.json("context", "explain", "demo", "--version", "1", "--parts")
    assert [item["excerpt"] for item in older["items"]] == ["question 0"]
    assert older["parts"][0]["items"][0]["content"] == {"message": "question 0"}
    assert older["parts_are_as_shown_then"] is True and older["parts_gone"] == []


def test_the_context_of_an_answer_is_explained(filled: Shell) -> None:
    wanted = filled.json("context", "explain", "demo", "--version", "2")
    answers: list[UUID] = []

    async def write(store: Store) -> None:
        for content in ({"context_id": wanted["context_id"], "context_version": 2}, {"message": "hello"}):
            answer = await post(store, schema="agent.response.v1", owner=DEVELOPER, context=content)
            answers.append(answer.id)

    filled.on_store(write)
    assert filled.json("context", "explain", str(answers[0])) == wanted
    assert "this answer has no context" in filled.fails("context", "explain", str(answers[1]))


def test_a_terminal_shows_a_table_with_a_budget_bar(filled: Shell, at_a_terminal: None) -> None:
    shown = filled.run("context", "explain", "demo", "--parts").stdout
    assert "session demo" in shown and "consumer tester" in shown
    assert "█" in shown and "of 4,000 (0%, estimate)" in shown
    assert "prefix  " in shown and "% repeats version 2: " in shown
    assert "conversation  5 items, " in shown
    assert "agent.response.v1" in shown and "▸ question 2" in shown
    assert "byte for byte what the model was shown" in shown


def test_several_contexts_require_a_choice(filled: Shell) -> None:
    assert "--consumer" in filled.fails("context", "explain", "two", code=2)
    assert filled.json("context", "explain", "two", "--consumer", "second")["consumer_id"] == "second"
    assert "no context of third" in filled.fails("context", "explain", "two", "--consumer", "third")


def test_a_missing_context_is_reported(filled: Shell) -> None:
    assert "session 'nowhere' has no context: a context is built when a message arrives" in filled.fails(
        "context", "explain", "nowhere"
    )
    assert "no version 9" in filled.fails("context", "explain", "demo", "--version", "9")
    assert "session 'demo' has no context: a context is built when a message arrives" in filled.fails(
        "context", "explain", "demo", "--owner", str(uuid4())
    )
    assert "no store named" in filled.fails("context", "explain", "demo", CRUMB_NAMESPACE="empty")


def test_the_owner_defaults_to_that_of_the_only_api_key(filled: Shell) -> None:
    def keys(*owners: UUID) -> str:
        return json.dumps([{"key": secrets.token_hex(12), "owner_id": str(owner)} for owner in owners])

    done = filled.run("context", "explain", "demo", CRUMB_API_KEYS=keys(DEVELOPER))
    assert done.exit_code == 0
    two = keys(DEVELOPER, uuid4())
    assert "--owner" in filled.fails("context", "explain", "demo", code=2, CRUMB_API_KEYS=two)


# preview and diff


def test_a_preview_and_its_difference(filled: Shell) -> None:
    edited = filled.file("edited.json", document(sources=[{**MESSAGES, "fetch": {"limit": 1}}]))
    told = filled.json("context", "preview", "--session", "demo", "--config", edited, "--diff")
    assert [item["excerpt"] for item in told["items"]] == ["question 2"]
    assert "context_id" not in told and told["parts"][0]["items"][0]["content"] == {"message": "question 2"}
    assert [item["excerpt"] for item in told["diff"]["out"]] == [
        "question 0", "answer 0", "question 1", "answer 1",
    ]  # fmt: skip
    assert told["diff"]["stayed"] == 1 and told["diff"]["tokens"]["change"] < 0


def test_a_preview_of_an_older_message(filled: Shell) -> None:
    first = filled.json("context", "explain", "demo", "--version", "1")["trigger_id"]
    same = filled.file("same.json", document())
    told = filled.json("context", "preview", "-s", "demo", "--config", same, "--trigger", first, "--diff")
    assert [item["excerpt"] for item in told["items"]] == ["question 0"]
    assert told["diff"]["in"] == told["diff"]["out"] == told["diff"]["moved"] == []


def test_a_preview_at_a_terminal(filled: Shell, at_a_terminal: None) -> None:
    edited = filled.file("edited.json", document(formatting={"max_tokens": 8}))
    shown = filled.run("context", "preview", "--session", "demo", "--config", edited, "--diff").stdout
    assert "preview · consumer tester" in shown and "over budget" in shown
    assert "- conversation · user.message.v1 · 3 tokens · question 0 (over budget)" in shown


def test_an_impossible_preview_is_refused_with_the_reason(filled: Shell) -> None:
    bad, two = filled.file("bad.json", "{"), filled.file("two.json", [document(), document(consumer_id="b")])
    assert f"{bad}:1:2" in filled.fails("context", "preview", "-s", "demo", "--config", bad)
    assert "--consumer" in filled.fails("context", "preview", "-s", "demo", "--config", two, code=2)
    assert "of tester, b" in filled.fails(
        "context", "preview", "-s", "demo", "--config", two, "--consumer", "c"
    )
    other = filled.file("other.json", document(consumer_id="other"))
    no_context = filled.fails("context", "preview", "-s", "demo", "--config", other, "--diff")
    assert "no context of other to compare with" in no_context
    assert "no breadcrumb that matches the update_triggers" in filled.fails(
        "context", "preview", "-s", "x", "--config", other
    )
    assert "UUID" in filled.fails("context", "preview", "-s", "demo", "--config", other, "--trigger", "x")


def test_the_difference_of_two_versions(filled: Shell, at_a_terminal: None) -> None:
    told = filled.json("context", "diff", "demo@2", "demo@3", "--json")
    assert [item["excerpt"] for item in told["in"]] == ["answer 1", "question 2"] and told["out"] == []
    shown = filled.run("context", "diff", "demo@3", "demo@2").stdout
    assert "- conversation · user.message.v1 · 3 tokens · question 2" in shown
    assert "no difference" in filled.run("context", "diff", "demo", "demo@3").stdout


# audit


def test_a_clean_store_ends_with_0(filled: Shell, at_a_terminal: None) -> None:
    told = filled.json("audit", "isolation", "--history", "--json")
    assert told["ok"] and told["contexts"] == 3 and told["context_versions"] >= 5 and told["findings"] == []
    shown = filled.run("audit", "isolation").stdout
    assert "no session contains data of another one" in shown


def test_a_leak_is_reported_with_exit_code_1(filled: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    async def spoil(store: Store) -> None:
        crumb = await post(store, "x", session="a", owner=DEVELOPER)
        lane = home_lane(crumb.id, store.lanes)
        index = store.keys.by_session(lane, DEVELOPER, "a", "user.message.v1")
        await store.connection.call(lane, b"ZREM", index, crumb.id.bytes)

    filled.on_store(spoil)
    told = filled.json("audit", "isolation", code=1)
    assert not told["ok"] and "not in the index" in told["findings"][0]["what"]
    assert filled.json("audit", "isolation", "--owner", str(uuid4()))["breadcrumbs"] == 0
    monkeypatch.setattr(audits, "for_people", lambda as_json: True)
    done = filled.run("audit", "isolation")
    assert done.exit_code == 1 and told["findings"][0]["breadcrumb_id"] in done.stderr


@pytest.mark.parametrize(
    "command", [("context",), ("context", "check"), ("context", "explain"), ("context", "preview"),
                ("context", "diff"), ("audit",), ("audit", "isolation")],
)  # fmt: skip
def test_every_command_has_help_with_an_example(shell: Shell, command: tuple[str, ...]) -> None:
    done = shell.run(*command, "--help")
    assert done.exit_code == 0 and f"crumb {' '.join(command)}" in done.stdout.partition("\n")[2]


def test_context_of_matches_the_id_that_the_builder_writes(filled: Shell) -> None:
    """Other tests rely on it: each consumer and session has one context with a derived id."""

    async def look(store: Store) -> None:
        context = await store.get(DEVELOPER, context_of(store, "demo", owner=DEVELOPER))
        assert context.version == 3

    filled.on_store(look)
