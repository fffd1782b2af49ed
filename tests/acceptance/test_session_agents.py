"""The agent of a session: listed from files, breadcrumbs and programs, chosen by a curator, named in commands."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.support.commands import CRUMB, ask, environment, server

CURATOR, WRITER, STRANGER = "curator-key-0123456789", "writer-key-0123456789", "stranger-key-0123456789"
ASSISTANT = "default-chat-assistant"

MODULE = """
from breadcrumbs import Call, agent

ANY = [{"schema_name": "user.message.v1"}]

@agent("poet", triggers=ANY, description="Writes poems.")
async def poet(call: Call) -> str:
    return "a poem"

@agent("tagged", triggers=[{"schema_name": "user.message.v1", "any_tags": ["for:tagged"]}])
async def tagged(call: Call) -> str:
    return "tagged"

@agent("editor", triggers=[{"schema_name": "agent.response.v1", "all_tags": ["draft"]}])
async def editor(call: Call) -> str:
    return "edited"
"""

PROGRAM = """
import sys
from breadcrumbs import agent, run_agents

@agent("visitor", triggers=[{"schema_name": "user.message.v1"}])
async def visitor(call):
    return "a visit"

run_agents([visitor], redis=sys.argv[1])
"""


@dataclass
class Person:
    url: str
    key: str

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"x-api-key": self.key}
        return httpx.request(method, self.url + path, headers=headers, trust_env=False, **options)

    def change(self, session: str, **change: Any) -> httpx.Response:
        return self.request("PATCH", f"/sessions/{session}", json=change)

    def ask(self, text: str, session: str = "one") -> dict[str, Any]:
        return ask(self.url, text, session, **{"x-api-key": self.key})

    def agents(self) -> dict[str, dict[str, Any]]:
        listed = self.request("GET", "/agents/answering").json()["agents"]
        return {one["agent_id"]: one for one in listed}

    def authors(self, session: str) -> list[list[str]]:
        """Return the agents that answered each message of a session."""
        found = self.request("GET", f"/sessions/{session}/messages").json()["messages"]
        by_message: dict[str, list[str]] = {}
        for crumb in found:
            if crumb["role"] == "user":
                by_message[crumb["id"]] = []
        for crumb in found:
            if crumb["role"] == "assistant":
                by_message[crumb["context"]["trigger_id"]].append(crumb["context"]["creator"]["agent_id"])
        return [sorted(names) for names in by_message.values()]


@dataclass
class Running:
    curator: Person
    writer: Person
    stranger: Person
    folder: Path
    redis: str

    def crumb(self, *arguments: str, key: str = CURATOR) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CRUMB, *arguments, "--url", self.curator.url],
            cwd=self.folder,
            env=environment(CRUMB_API_KEY=key, COLUMNS="100"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A `crumb up` with the default assistant, a poet, and two agents that do not answer ordinary messages."""
    folder = tmp_path_factory.mktemp("up")
    folder.joinpath("my_agents.py").write_text(MODULE, "utf-8")
    keys = [(CURATOR, DEVELOPER, ""), (WRITER, DEVELOPER, 'roles = ["emitter", "subscriber"]')]
    folder.joinpath("crumb.toml").write_text(
        'load = ["my_agents"]\n'
        + "".join(
            f'[[api_keys]]\nkey = "{key}"\nowner_id = "{owner}"\n{roles}\n'
            for key, owner, roles in (*keys, (STRANGER, uuid4(), ""))
        ),
        "utf-8",
    )
    with server(folder, "--data", str(folder / "data")) as ready:
        url = ready["url"]
        socket = os.fsdecode((Path(ready["data"]) / "server.lock").read_bytes()).splitlines()[1]
        curator, writer, stranger = (Person(url, key) for key in (CURATOR, WRITER, STRANGER))
        yield Running(curator, writer, stranger, folder, f"unix://{quote(socket)}")


def within(seconds: float, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def definition(agent_id: str, **fields: Any) -> dict[str, Any]:
    triggers = fields.pop("triggers", [{"schema_name": "user.message.v1"}])
    context = {"agent_id": agent_id, "subscriptions": {"selectors": triggers}, **fields}
    return {"schema_name": "agent.def.v1", "title": agent_id, "tags": [], "context": context}


def test_the_list_has_agents_of_files_and_programs_that_answer_ordinary_messages(running: Running) -> None:
    within(10, lambda: "poet" in running.curator.agents())
    listed = running.curator.agents()
    assert set(listed) == {ASSISTANT, "poet"}
    assert listed["poet"] == {"agent_id": "poet", "description": "Writes poems."}
    assert listed[ASSISTANT]["consumer"] == ASSISTANT
    assert running.curator.request("GET", "/agents/answering").json()["may_choose"] is True
    assert running.writer.request("GET", "/agents/answering").json()["may_choose"] is False


def test_a_definition_is_listed_at_once_and_an_edit_or_a_deletion_within_a_second(running: Running) -> None:
    one = running.curator
    posted = one.request(
        "POST", "/breadcrumbs", json=definition("dora", description="First.", model="offline")
    )
    id = posted.json()["id"]
    assert one.agents()["dora"] == {"agent_id": "dora", "description": "First.", "model": "offline"}
    assert "dora" not in running.stranger.agents()
    context = definition("dora", description="Second.", model="http://10.0.0.7/v1#x")["context"]
    one.request("PATCH", f"/breadcrumbs/{id}", json={"context": context})
    within(1, lambda: one.agents()["dora"]["description"] == "Second.")
    assert one.agents()["dora"]["model"] == "x"
    context = definition("dora", triggers=[{"schema_name": "order.v1"}])["context"]
    one.request("PATCH", f"/breadcrumbs/{id}", json={"context": context})
    within(1, lambda: "dora" not in one.agents())
    one.request("DELETE", f"/breadcrumbs/{id}")
    within(1, lambda: "dora" not in one.agents())
    time.sleep(1.5)  # runners cache definitions for half a second: she must not answer in the next tests


def test_a_curator_chooses_the_agent_of_one_session_from_the_next_message_on(running: Running) -> None:
    one = running.curator
    within(10, lambda: "poet" in one.agents())
    one.ask("Hello", "chosen")
    within(10, lambda: one.authors("chosen") == [["poet"]])
    changed = one.change("chosen", agent="poet")
    assert changed.status_code == 200 and changed.json()["agent"] == "poet"
    assert one.ask("And now?", "chosen")["answer"]["text"] == "a poem"
    one.change("chosen", agent=ASSISTANT)
    one.ask("And now?", "chosen")
    fork = running.writer.request("POST", "/sessions/chosen/fork", json={}).json()
    assert fork["agent"] == ASSISTANT
    assert "agent" not in one.change("chosen", agent=None).json()
    one.ask("And now?", "chosen")
    within(10, lambda: one.authors("chosen")[1:] == [["poet"], [ASSISTANT], ["poet"]])


def test_only_a_curator_of_the_owner_can_choose(running: Running) -> None:
    running.curator.ask("Hello", "guarded")
    refused = running.writer.change("guarded", agent="poet", title="mine")
    assert refused.status_code == 403 and "curator" in refused.json()["detail"]
    assert running.stranger.change("guarded", agent="poet").status_code == 404
    for schema in ("session.state.v1", "session.v1"):
        for agent in ("poet", None):
            posted = {
                "schema_name": schema,
                "title": "x",
                "tags": ["session:guarded"],
                "context": {"agent": agent},
            }
            assert running.writer.request("POST", "/breadcrumbs", json=posted).status_code == 403
    read = running.curator.request("GET", "/sessions/guarded").json()
    assert "agent" not in read and "title" not in read


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        ("nobody", f"Agents that do: {ASSISTANT}"),
        ("tagged", "no such agent"),
        ("editor", "no such agent"),
        ("", "agent"),
        ("x" * 201, "agent"),
        (5, "agent"),
        (["poet"], "agent"),
    ],
)
def test_an_agent_that_does_not_answer_users_is_refused(running: Running, agent: Any, says: str) -> None:
    running.curator.ask("Hello", "strict")
    refused = running.curator.change("strict", agent=agent)
    assert 400 <= refused.status_code < 500 and says in refused.text
    assert "agent" not in running.curator.request("GET", "/sessions/strict").json()


def test_a_deleted_agent_leaves_a_clear_error_and_a_retry_asks_the_new_choice(running: Running) -> None:
    one = running.curator
    id = one.request("POST", "/breadcrumbs", json=definition("eve", model="offline")).json()["id"]
    one.ask("Hello", "deleted")
    assert one.change("deleted", agent="eve").status_code == 200
    assert one.ask("Who are you?", "deleted")["answer"]["context"]["creator"]["agent_id"] == "eve"
    one.request("DELETE", f"/breadcrumbs/{id}")
    time.sleep(1.5)  # runners cache definitions for half a second
    outcome = one.ask("Still there?", "deleted")
    assert "'eve'" in outcome["error"]["text"] and "choose another agent" in outcome["error"]["text"]
    assert one.request("GET", "/sessions/deleted").json()["counts"]["errors"] == 1
    one.change("deleted", agent="poet")
    assert one.request("POST", "/sessions/deleted/retry", json={}).status_code == 202
    within(10, lambda: one.authors("deleted")[-1] == ["poet"])


def test_the_agent_of_another_program_is_listed_while_it_runs_and_answers_alone(running: Running) -> None:
    one = running.curator
    script = running.folder / "program.py"
    script.write_text(PROGRAM, "utf-8")
    python = Path(CRUMB).parent / "python"
    with (running.folder / "program.log").open("ab") as log:
        program = subprocess.Popen([python, script, running.redis], env=environment(), stdout=log, stderr=log)
    try:
        within(60, lambda: "visitor" in one.agents())
        one.ask("Hello", "visited")
        one.change("visited", agent="visitor")
        assert one.ask("Who is it?", "visited")["answer"]["text"] == "a visit"
    finally:
        program.terminate()
        program.wait(30)
    within(20, lambda: "visitor" not in one.agents())
    assert one.change("visited", agent="visitor").status_code == 422
    assert one.authors("visited")[-1] == ["visitor"]
    assert one.request("GET", "/sessions/visited").json()["counts"]["errors"] == 0


def test_a_separate_api_process_lists_and_chooses_the_same_agents(running: Running) -> None:
    keys = [{"key": CURATOR, "owner_id": str(DEVELOPER)}]
    folder = running.folder / "serve"
    folder.mkdir()
    chained = {
        "schema_name": "context.config.v1",
        "title": "x",
        "tags": [],
        "context": {
            "consumer_id": "second",
            "update_triggers": [{"schema_name": "agent.response.v1"}],
            "sources": [{"key": "said", "schema_name": "user.message.v1", "fetch": {"method": "recent"}}],
        },
    }
    with server(folder, "--redis", running.redis, command="serve", CRUMB_API_KEYS=json.dumps(keys)) as ready:
        other = Person(ready["url"], CURATOR)
        assert other.agents() == running.curator.agents()
        config = other.request("POST", "/breadcrumbs", json=chained).json()["id"]
        triggers = [{"schema_name": "agent.context.v1", "all_tags": ["consumer:second"]}]
        second = other.request("POST", "/breadcrumbs", json=definition("second", triggers=triggers)).json()[
            "id"
        ]
        assert "second" not in other.agents() and "second" not in running.curator.agents()
        for id in (config, second):
            other.request("DELETE", f"/breadcrumbs/{id}")
        other.ask("Hello", "apart")
        assert other.change("apart", agent="poet").status_code == 200
        assert other.ask("And now?", "apart")["answer"]["text"] == "a poem"


def test_the_commands_choose_and_show_the_agent(running: Running) -> None:
    within(10, lambda: "poet" in running.curator.agents())
    done = running.crumb("ask", "Write something", "--session", "shell", "--agent", "poet")
    assert (done.returncode, done.stdout) == (0, "a poem\n"), done.stderr
    assert running.curator.request("GET", "/sessions/shell").json()["agent"] == "poet"
    assert running.crumb("ask", "Again", "--session", "shell").stdout == "a poem\n"
    shown = json.loads(running.crumb("sessions", "show", "shell", "--json").stdout)
    assert shown["agent"] == "poet"
    listed = json.loads(running.crumb("sessions", "list", "--all", "--json").stdout)
    assert {session["id"]: session.get("agent") for session in listed}["shell"] == "poet"
    unknown = running.crumb("ask", "Hello", "--session", "unknown", "--agent", "nobody")
    assert unknown.returncode == 1 and "poet" in unknown.stderr
    assert running.curator.request("GET", "/sessions/unknown").status_code == 404
    refused = running.crumb("ask", "Hello", "--session", "shell", "--agent", ASSISTANT, key=WRITER)
    assert refused.returncode == 1 and "curator" in refused.stderr
    assert running.crumb("ask", "All of you?", "--session", "shell", "--agent", "").returncode == 0
    assert "agent" not in running.curator.request("GET", "/sessions/shell").json()


# Messages for one agent


def test_a_message_is_answered_by_the_agent_that_it_is_addressed_to(running: Running) -> None:
    one = running.writer
    within(10, lambda: "poet" in one.agents())
    for agent in (ASSISTANT, "poet", ASSISTANT):
        posted = one.request(
            "POST", "/sessions/post/messages?wait=20", json={"message": "Hello", "agent": agent}
        )
        assert posted.json()["answer"]["agent_id"] == agent
        assert posted.json()["message"]["context"]["addressed_to"] == agent
    tagged = {"message": "Hello", "agent": "tagged", "tags": ["for:tagged"]}
    assert (
        one.request("POST", "/sessions/post/messages?wait=20", json=tagged).json()["answer"]["text"]
        == "tagged"
    )
    assert one.request("POST", "/sessions/post/messages", json={**tagged, "tags": []}).status_code == 422
    assert one.authors("post") == [[ASSISTANT], ["poet"], [ASSISTANT], ["tagged"]]
    done = running.crumb("ask", "Hello", "--session", "post", "--to", ASSISTANT)
    assert done.returncode == 0 and "Hello!" in done.stdout
    assert running.crumb("post", "Hello", "--session", "post", "--to", "poet").returncode == 0
    within(10, lambda: one.authors("post")[-2:] == [[ASSISTANT], ["poet"]])
    unknown = running.crumb("ask", "Hello", "--session", "post", "--to", "poett")
    assert unknown.returncode == 1 and "Did you mean 'poet'" in unknown.stderr


def test_only_a_curator_addresses_another_agent_than_the_chosen_one(running: Running) -> None:
    running.curator.ask("Hello", "locked")
    running.curator.change("locked", agent="poet")
    message = {"message": "Hello", "agent": ASSISTANT}
    refused = running.writer.request("POST", "/sessions/locked/messages", json=message)
    assert refused.status_code == 403 and "'poet'" in refused.json()["detail"]
    raw = {
        "schema_name": "user.message.v1",
        "title": "x",
        "tags": ["user:message", "session:locked"],
        "context": {"message": "Hello", "addressed_to": ASSISTANT},
    }
    assert running.writer.request("POST", "/breadcrumbs", json=raw).status_code == 403
    allowed = running.curator.request("POST", "/sessions/locked/messages?wait=20", json=message)
    assert allowed.json()["answer"]["agent_id"] == ASSISTANT


def test_the_agent_of_a_message_cannot_be_changed(running: Running) -> None:
    one = running.curator
    posted = one.request(
        "POST", "/sessions/kept/messages?wait=20", json={"message": "Hello", "agent": "poet"}
    )
    path = f"/breadcrumbs/{posted.json()['message']['id']}"
    changed = {"message": "Hello", "addressed_to": ASSISTANT}
    assert one.request("PATCH", path, json={"context": changed}).status_code == 422
    assert one.request("PATCH", path, json={"context": {"message": "Hello again"}}).status_code == 200
    assert one.request("GET", f"{path}/full").json()["context"]["addressed_to"] == "poet"
    one.ask("Next", "kept")
    assert one.authors("kept")[0] == ["poet"]


# Definitions


def test_an_unusable_definition_or_config_is_refused_with_positions(running: Running) -> None:
    one = running.curator

    def post(schema: str, context: str, **fields: Any) -> dict[str, Any]:
        tags = json.dumps(fields.get("tags", []))
        body = f'{{"schema_name": "{schema}", "title": "x", "tags": {tags},\n"context": {context}}}'
        headers = {"x-api-key": CURATOR, "content-type": "application/json"}
        reply = httpx.post(f"{one.url}/breadcrumbs", content=body, headers=headers, trust_env=False)
        assert reply.status_code == 422, reply.text
        return dict(reply.json()["errors"][0])

    wrong = '{"agent_id": "x",\n  "subscriptions": {"selectors": [{"schema_nam": "user.message.v1"}]}}'
    error = post("agent.def.v1", wrong)
    assert error["where"] == "context.subscriptions.selectors.0.schema_nam"
    assert error["pointer"] == "/context/subscriptions/selectors/0/schema_nam"
    assert (error["line"], error["column"]) == (3, 36) and "did you mean 'schema_name'" in error["message"]
    assert post("agent.def.v1", '{"agent_id": "x"}')["pointer"] == "/context/subscriptions/selectors"
    assert post("context.config.v1", '{"consumer_id": "x"}')["pointer"] == "/context/update_triggers"
    good = json.dumps(definition("x")["context"])
    assert post("agent.def.v1", good, tags=["session:one"])["where"] == "tags"
    id = one.request("POST", "/breadcrumbs", json=definition("patched")).json()["id"]
    refused = one.request("PATCH", f"/breadcrumbs/{id}", json={"context": {"agent_id": "patched"}})
    assert refused.status_code == 422 and "subscriptions" in refused.json()["errors"][0]["where"]
    assert one.request("PATCH", f"/breadcrumbs/{id}", json={"title": "other"}).status_code == 200
    one.request("DELETE", f"/breadcrumbs/{id}")
    time.sleep(1)


def test_an_edit_of_a_definition_applies_from_the_next_message_on(running: Running) -> None:
    one = running.curator
    triggers = [{"schema_name": "user.message.v1", "any_tags": ["for:edited"]}]
    fields = definition("edited", triggers=triggers, model="offline", tools=["clock"])
    id = one.request("POST", "/breadcrumbs", json=fields).json()["id"]
    message = {"message": "Hello", "tags": ["for:edited"], "agent": "edited"}
    for tool in ("clock", "calculator", "random"):
        context = {**fields["context"], "tools": [tool]}
        one.request("PATCH", f"/breadcrumbs/{id}", json={"context": context})
        answer = one.request("POST", "/sessions/edits/messages?wait=20", json=message).json()["answer"]
        assert answer["agent_id"] == "edited" and f"({tool})" in answer["text"]
    one.request("DELETE", f"/breadcrumbs/{id}")
    time.sleep(1)


def test_agents_are_listed_checked_and_tried_by_commands(running: Running) -> None:
    one = running.curator
    listed = json.loads(running.crumb("agents", "list", "--json").stdout)
    found = {agent["agent_id"]: agent for agent in listed["agents"]}
    assert (found[ASSISTANT]["source"], found["poet"]["source"]) == ("file", "program")
    assert found[ASSISTANT]["fallback"] and not found["poet"]["fallback"] and found["poet"]["running"]
    assert found["poet"]["answers_users"] and not found["tagged"]["answers_users"]
    assert listed["answering"] == "all" and "calculator" in found[ASSISTANT]["tools"]
    file = running.folder / "draft.json"
    draft = {**definition("draft", tools=["calculatr"], sytem_prompt="x")["context"], "model": "offline"}
    file.write_text(json.dumps(draft, indent=1), "utf-8")
    checked = running.crumb("agents", "check", "draft.json")
    warnings = {one["where"]: one for one in json.loads(checked.stdout)["warnings"]}
    assert checked.returncode == 0 and set(warnings) == {"sytem_prompt", "tools.0"}
    assert warnings["sytem_prompt"]["line"] == 13 and "'calculator'" in warnings["tools.0"]["message"]
    file.write_text(json.dumps({**draft, "tools": ["calculator"]}), "utf-8")
    before = one.request("GET", "/breadcrumbs?limit=1").json()
    tried = running.crumb("agents", "try", "draft.json", 'use calculator {"expression": "2+3"}')
    result = json.loads(tried.stdout)
    assert tried.returncode == 0 and "5" in result["answer"] and result["calls"] == 2
    assert result["tool_calls"][0]["ran"] and result["tool_calls"][0]["output"]["result"] == 5
    assert one.request("GET", "/breadcrumbs?limit=1").json() == before
    assert (
        running.writer.request("POST", "/agents/try", json={"definition": draft, "message": "x"}).status_code
        == 403
    )
    file.write_text('{"agent_id": 5}', "utf-8")
    assert running.crumb("agents", "check", "draft.json").returncode == 1
    refused = one.request("POST", "/agents/try", json={"text": '{"agent_id": 5}', "message": "x"})
    assert refused.status_code == 422 and refused.json()["errors"][0]["line"] == 1
    shown = json.loads(running.crumb("agents", "show", "poet").stdout)
    assert shown["description"] == "Writes poems."
    assert "poet" in running.crumb("agents", "show", "nobody").stderr
    doctor = one.request("GET", "/operations/checks").json()["findings"]
    assert {"agents"} <= {finding["id"] for finding in doctor if finding["status"] == "ok"}
