"""`crumb verify` and `GET /breadcrumbs/{id}/receipt`, with a real `crumb up`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest

from tests.support.process import Process
from tests.support.servers import free_port

CRUMB = [sys.executable, "-c", "from breadcrumbs.cli import main; main()"]


@dataclass
class Site:
    url: str
    folder: Path
    client: httpx.Client

    def ask(self, session: str, text: str) -> dict[str, Any]:
        reply = self.client.post(f"/sessions/{session}/messages", params={"wait": 30}, json={"message": text})
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()["answer"]
        return answer

    def verify(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        return self.run("verify", *arguments)

    def run(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("CRUMB_")}
        run = subprocess.run(
            [*CRUMB, *arguments],
            capture_output=True,
            env=plain | {"NO_PROXY": "127.0.0.1"},
            cwd=self.folder,
            check=False,
            timeout=120,
        )
        return run.returncode, orjson.loads(run.stdout) if run.stdout else {}, run.stderr.decode()

    def verify_here(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        return self.verify(*arguments, "--url", self.url)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, port = tmp_path_factory.mktemp("verify"), free_port()
    command = [*CRUMB, "up", "--data", str(folder / "data"), "--port", str(port)]
    with (
        Process(folder, command, port=port, ready="/ready") as process,
        httpx.Client(base_url=process.url, trust_env=False, timeout=60) as client,
    ):
        yield Site(process.url, folder, client)


def test_equal_answers_end_with_0_over_http_and_from_the_store(site: Site) -> None:
    answers = [site.ask("equal", text) for text in ("hello", "what is 3*7?", "what did I say?")]
    for place in (("--url", site.url), ("--data", str(site.folder / "data"))):
        code, report, errors = site.verify("--session", "equal", *place)
        assert (code, errors) == (0, "")
        assert report["summary"]["equal"] == 3 and report["summary"]["verified"] == 3
        assert {one["requests"] for one in report["answers"]} == {1, 2}
        code, report, _ = site.verify(answers[0]["id"][:13], *place)
        assert code == 0 and [one["answer_id"] for one in report["answers"]] == [answers[0]["id"]]


def test_a_deleted_item_ends_with_2_and_is_named(site: Site) -> None:
    first = site.ask("deleted", "tea, please")
    second = site.ask("deleted", "what did I say?")
    site.ask("deleted", "thanks")
    site.client.delete(f"/breadcrumbs/{first['id']}").raise_for_status()
    code, report, _ = site.verify_here(second["id"])
    assert code == 2
    (result,) = report["answers"]
    assert result["outcome"] == "not rebuildable" and result["missing"][0]["id"] == first["id"]


def test_unknown_ids_and_ids_that_are_not_answers_end_with_2(site: Site) -> None:
    answer = site.ask("unknown", "hello")
    for place in (("--url", site.url), ("--data", str(site.folder / "data"))):
        for arguments, words in (
            ((str(uuid4()),), "not found"),
            (("ffff0000",), "not found"),
            (("no-id",), "id"),
            (("--session", "nothing"), "not found"),
            ((), "choose what to verify"),
            ((answer["id"], "--all"), "choose what to verify"),
        ):
            code, report, errors = site.verify(*arguments, *place)
            assert code == 2 and not report and words in errors, (arguments, errors)
        code, report, errors = site.verify(answer["id"], str(uuid4()), *place)
        assert code == 2 and not report and "not found" in errors
        code, report, _ = site.verify(answer["context"]["trigger_id"], *place)
        assert code == 2 and "not an answer" in report["answers"][0]["missing"][0]["reason"]


def test_a_store_that_cannot_be_read_ends_with_2_because_1_means_different(site: Site) -> None:
    for place, words in (
        (("--url", "http://127.0.0.1:9"), "no server"),
        (("--redis", "redis://127.0.0.1:9"), "cannot be used"),
        (("--data", str(site.folder / "nothing")), "no data"),
    ):
        code, report, errors = site.verify("--all", *place)
        assert code == 2 and not report and words in errors, (place, errors)
    assert not (site.folder / "nothing").exists()


def test_an_edited_answer_is_marked_and_an_edit_cannot_hide_it_or_forge_a_receipt(site: Site) -> None:
    first, second = site.ask("edited", "hello"), site.ask("edited", "thanks")
    forged = {**first["context"], "message": "I never said that"}
    for id, context in ((first["id"], forged), (second["id"], {"message": "nothing here"})):
        site.client.patch(f"/breadcrumbs/{id}", json={"context": context}).raise_for_status()
    posted = {"schema_name": "agent.response.v1", "title": "x", "tags": ["session:edited"], "context": forged}
    invented = site.client.post("/breadcrumbs", json=posted).json()["id"]
    site.client.post("/sessions/edited/fork", json={"id": "edited-fork"}).raise_for_status()
    for place in (("--url", site.url), ("--data", str(site.folder / "data"))):
        for session, answers in (("edited", 2), ("edited-fork", 1)):
            code, report, _ = site.verify("--session", session, *place)
            assert code == 0 and report["summary"]["equal"] == answers, report
            assert all(one["edited"] for one in report["answers"])
        code, report, _ = site.verify(invented, *place)
        assert code == 2 and "written by a client" in report["answers"][0]["missing"][0]["reason"]


def test_an_exported_session_is_verified_in_another_store(site: Site) -> None:
    site.ask("moved", "what is 3*7?")
    site.ask("moved", "thanks")
    file, other = site.folder / "moved.jsonl", site.folder / "other"
    data = str(site.folder / "data")
    for command in (
        ("export", str(file), "--session", "moved", "--data", data),
        ("import", str(file), "--data", str(other)),
    ):
        subprocess.run([*CRUMB, *command], check=True, capture_output=True, cwd=site.folder, timeout=120)
    code, report, errors = site.verify("--all", "--data", str(other))
    assert (code, errors) == (0, "") and report["summary"]["equal"] == 2
    assert b'"kind":"agent"' in file.read_bytes()  # the definition, which the setup names


def test_the_receipt_of_an_answer_has_its_complete_prompt(site: Site) -> None:
    answer = site.ask("receipt", "hello")
    receipt = site.client.get(f"/breadcrumbs/{answer['id']}/receipt", params={"verify": "true"}).json()
    assert receipt["verification"] == {"outcome": "equal", "requests": 1}
    assert receipt["tokens"]["total"] > receipt["tokens"]["items"] > 0
    assert receipt["prompt"]["system_prompt"] and receipt["prompt"]["tools"]
    assert [item["content"]["message"] for item in receipt["prompt"]["items"]] == ["hello"]
    assert "verification" not in site.client.get(f"/breadcrumbs/{answer['id']}/receipt").json()
    for path, status in ((f"/breadcrumbs/{uuid4()}/receipt", 404), ("/breadcrumbs/x/receipt", 422)):
        assert site.client.get(path).status_code == status
    message = answer["context"]["trigger_id"]
    assert site.client.get(f"/breadcrumbs/{message}/receipt").status_code == 404
    assert site.client.get(f"/breadcrumbs/{answer['id']}/receipt?verify=maybe").status_code == 422


def test_the_context_of_an_answer_is_explained_by_the_id_of_the_answer(site: Site) -> None:
    session = f"explained-{uuid4()}"
    first, second = site.ask(session, "one"), site.ask(session, "two")
    for named in (first["id"], first["id"][:13]):
        code, told, _ = site.run("context", "explain", named, "--url", site.url)
        assert (code, told["version"], told["receipt"]["answer_id"]) == (0, 1, first["id"])
    code, told, _ = site.run("context", "explain", second["id"], "--url", site.url)
    assert (code, told["version"]) == (0, 2)
