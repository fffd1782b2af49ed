"""The model of a session: published by the agent runners, chosen by a curator, recorded in each answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.support.commands import ask, server
from tests.support.model_server import ModelServer

CURATOR, WRITER = "curator-key-0123456789", "writer-key-0123456789"


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


@dataclass
class Running:
    ready: dict[str, Any]
    curator: Person
    writer: Person
    folder: Path


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture(scope="module")
def running(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A `crumb up` with the offline model and two others, a curator and a client that only writes and reads."""
    folder = tmp_path_factory.mktemp("up")
    big, house = models.scenario("normal", text="I am big."), models.scenario("normal", text="I am house.")
    folder.joinpath("crumb.toml").write_text(
        f"""
        [models]
        offered = ["{big.url}#big"]
        [models.aliases]
        house = "{house.url}#small"
        paid = "openai:gpt-4.1-mini"
        [[api_keys]]
        key = "{CURATOR}"
        owner_id = "{DEVELOPER}"
        [[api_keys]]
        key = "{WRITER}"
        owner_id = "{DEVELOPER}"
        roles = ["emitter", "subscriber"]
        """,
        "utf-8",
    )
    with server(folder, "--data", str(folder / "data"), OPENAI_API_KEY="") as ready:
        url = ready["url"]
        yield Running(ready, Person(url, CURATOR), Person(url, WRITER), folder)


def answer(outcome: dict[str, Any]) -> tuple[str, str]:
    """Return the text of an answer and the model that it records."""
    found = outcome["answer"]
    return found["text"], found["context"]["creator"]["model"]


def test_the_list_has_the_default_the_aliases_and_the_offered_models_without_urls(running: Running) -> None:
    listed = running.curator.request("GET", "/models").json()
    assert (listed["default"], listed["may_choose"]) == ("offline", True)
    named = {model["name"]: model["model"] for model in listed["models"]}
    assert named == {
        "offline": "offline",
        "house": "small",
        "paid": "openai:gpt-4.1-mini",
        "big": "big",
    }
    problems = {model["name"]: model.get("problem") for model in listed["models"] if "problem" in model}
    assert list(problems) == ["paid"] and "OPENAI_API_KEY" in str(problems["paid"])
    assert "127.0.0.1" not in json.dumps(listed)
    assert running.writer.request("GET", "/models").json()["may_choose"] is False


def test_a_curator_chooses_the_model_of_one_session_from_the_next_message_on(running: Running) -> None:
    one = running.curator
    assert answer(one.ask("Hello"))[1] == "offline"
    changed = one.change("one", model="big")
    assert changed.status_code == 200 and changed.json()["model"] == "big"
    assert answer(one.ask("And now?")) == ("I am big.", "big")
    assert answer(one.ask("Elsewhere?", "other"))[1] == "offline"
    assert one.change("one", model="house").json()["model"] == "house"
    assert answer(one.ask("Again?")) == ("I am house.", "small")
    assert "model" not in one.change("one", model=None).json()
    assert answer(one.ask("Back?"))[1] == "offline"


def test_a_choice_is_listed_and_a_fork_keeps_it(running: Running) -> None:
    one = running.curator
    one.ask("Hello", "forked")
    one.change("forked", model="big")
    listed = one.request("GET", "/sessions").json()["sessions"]
    assert {session["id"]: session.get("model") for session in listed}["forked"] == "big"
    fork = running.writer.request("POST", "/sessions/forked/fork", json={}).json()
    assert fork["model"] == "big"
    assert answer(running.writer.ask("Who are you?", fork["id"])) == ("I am big.", "big")


def test_only_a_curator_can_choose(running: Running) -> None:
    running.curator.ask("Hello", "guarded")
    refused = running.writer.change("guarded", model="big", title="mine")
    assert refused.status_code == 403 and "curator" in refused.json()["detail"]
    for schema in ("session.state.v1", "session.v1"):
        posted = {
            "schema_name": schema,
            "title": "x",
            "tags": ["session:guarded"],
            "context": {"model": "big"},
        }
        assert running.writer.request("POST", "/breadcrumbs", json=posted).status_code == 403
    read = running.curator.request("GET", "/sessions/guarded").json()
    assert "model" not in read and "title" not in read


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("gpt-9", "Offered models: offline, house"),
        ("paid", "OPENAI_API_KEY is not set"),
        ("openai:gpt-4.1-mini", "not offered"),
        ("http://127.0.0.1:1/v1#x", "not offered"),
        ("", "model"),
        ("x" * 301, "model"),
        (5, "model"),
    ],
)
def test_a_model_that_is_not_offered_is_refused(running: Running, model: Any, says: str) -> None:
    running.curator.ask("Hello", "strict")
    refused = running.curator.change("strict", model=model)
    assert 400 <= refused.status_code < 500 and says in refused.text
    assert "model" not in running.curator.request("GET", "/sessions/strict").json()


def test_a_model_that_is_no_longer_offered_fails_the_turn_with_the_reason(running: Running) -> None:
    one = running.curator
    one.ask("Hello", "removed")
    posted = {
        "schema_name": "session.state.v1",
        "title": "x",
        "tags": ["session:removed"],
        "context": {"model": "retired"},
    }
    assert one.request("POST", "/breadcrumbs", json=posted).status_code == 201
    outcome = one.ask("Still there?", "removed")
    assert "retired" in outcome["error"]["text"] and "no longer offered" in outcome["error"]["text"]


def test_a_separate_api_process_lists_the_models_of_the_runners(running: Running) -> None:
    path = os.fsdecode((Path(running.ready["data"]) / "server.lock").read_bytes()).splitlines()[1]
    keys = [{"key": CURATOR, "owner_id": str(DEVELOPER)}]
    folder = running.folder / "serve"
    folder.mkdir()
    redis = f"unix://{quote(path)}"
    with server(folder, "--redis", redis, command="serve", CRUMB_API_KEYS=json.dumps(keys)) as ready:
        assert "model" not in ready
        other = Person(ready["url"], CURATOR)
        assert other.request("GET", "/models").json() == running.curator.request("GET", "/models").json()
        other.ask("Hello", "apart")
        assert other.change("apart", model="big").status_code == 200
        assert answer(other.ask("And now?", "apart")) == ("I am big.", "big")
