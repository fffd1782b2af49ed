"""Provenance with a real `crumb up`: contexts after their TTL and after a kill, and the commands `crumb config …`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.client.support import CRUMB, CrumbUp, environment

SHORT = {
    "consumer_id": "default-chat-assistant",
    "update_triggers": [{"schema_name": "user.message.v1"}],
    "sources": [{"key": "conversation", "schema_name": "user.message.v1"}],
    "output": {"ttl_seconds": 1},
}


def _write(file: Path, document: Any) -> None:
    file.write_text(json.dumps(document, indent=2))


def _crumb(up: CrumbUp, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CRUMB, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=up.folder,
        env=environment(CRUMB_URL=up.url),
    )


def _say(client: httpx.Client, text: str) -> dict[str, Any]:
    reply = client.post("/sessions/s/messages", params={"wait": 30}, json={"message": text})
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()["answer"]["context"]
    return answer


def _explain(client: httpx.Client, answer: dict[str, Any]) -> dict[str, Any]:
    reply = client.get(
        f"/contexts/{answer['context_id']}/explain",
        params={"version": answer["context_version"], "parts": "true"},
    )
    assert reply.status_code == 200, reply.text
    explained: dict[str, Any] = reply.json()
    return explained


def _is_reduced(client: httpx.Client, answer: dict[str, Any]) -> bool:
    crumb = client.get(f"/breadcrumbs/{answer['context_id']}/full").json()
    return "parts" not in crumb["context"]


def test_an_answer_is_explained_alike_after_its_ttl_and_after_a_kill(tmp_path: Path) -> None:
    _write(tmp_path / "context.json", SHORT)
    up = CrumbUp(tmp_path, CRUMB_CONTEXT_CONFIG="context.json", CRUMB_HYGIENE_INTERVAL="1s")
    with up, httpx.Client(base_url=up.url, timeout=60, trust_env=False) as client:
        first = _say(client, "one")
        answer = _say(client, "two")
        before = _explain(client, answer)
        assert up.process is not None and up.process.stdout is not None
        os.killpg(up.process.pid, signal.SIGKILL)
        up.process.wait()
        up.process.stdout.close()
        time.sleep(1)
        up.start()
        deadline = time.monotonic() + 30
        while not _is_reduced(client, answer):
            assert time.monotonic() < deadline, "the context was not reduced"
            time.sleep(0.1)
        assert _explain(client, answer) == before
        assert before["parts_as_shown"] and "two" in json.dumps(before["parts"])
        assert _explain(client, first)["parts_as_shown"]
        shown = json.loads(_crumb(up, "context", "explain", "s", "--parts").stdout)
        assert shown["parts"] == before["parts"] and shown["parts_are_as_shown_then"]
        third = _say(client, "three")
        assert third["context_version"] == 3 and _explain(client, third)["parts_as_shown"]
        assert client.delete("/sessions/s").status_code == 200
        assert client.get(f"/contexts/{answer['context_id']}/explain").status_code == 404


def test_configs_are_listed_shown_compared_and_rolled_back(tmp_path: Path) -> None:
    file = tmp_path / "context.json"
    _write(file, SHORT)
    with (
        CrumbUp(tmp_path, CRUMB_CONTEXT_CONFIG=str(file)) as up,
        httpx.Client(base_url=up.url, timeout=60, trust_env=False) as client,
    ):
        empty = _crumb(up, "config", "log")
        assert empty.returncode == 0 and json.loads(empty.stdout) == []
        _say(client, "one")
        changed = SHORT | {"formatting": {"max_tokens": 777}}
        _write(file, changed)
        time.sleep(1.2)
        _say(client, "two")
        new, old = json.loads(_crumb(up, "config", "log").stdout)
        assert (new["in_force"], old["in_force"]) == (True, False)
        assert new["source"] == old["source"] == str(file)
        assert json.loads(_crumb(up, "config", "log", "--consumer", "another").stdout) == []

        shown = _crumb(up, "config", "show", old["digest"][:6])
        assert json.loads(shown.stdout) == SHORT, "the output is a config file"
        assert json.loads(_crumb(up, "config", "show", old["digest"], "--json").stdout)["in_force"] is False
        compared = _crumb(up, "config", "diff", old["digest"][:6])
        assert compared.returncode == 0 and '+    "max_tokens": 777' in compared.stdout
        assert "\x1b" not in compared.stdout, "there are no colours in a pipe"
        equal = _crumb(up, "config", "diff", old["digest"], old["digest"])
        assert equal.returncode == 0 and "equal" in equal.stderr

        dry = _crumb(up, "config", "rollback", old["digest"][:6], "--dry-run")
        assert dry.returncode == 0 and '-    "max_tokens": 777' in dry.stdout
        assert json.loads(file.read_text()) == changed, "a dry run writes nothing"
        done = _crumb(up, "config", "rollback", old["digest"][:6])
        assert done.returncode == 0 and json.loads(done.stdout)["origin"] == "file"
        assert json.loads(file.read_text()) == SHORT
        assert json.loads(_crumb(up, "config", "rollback", old["digest"][:6]).stdout)["origin"] == "none"

        exported = tmp_path / "export.jsonl"
        assert _crumb(up, "export", str(exported), "--data", str(up.data)).returncode == 0
        copy = ["import", str(exported), "--data", str(tmp_path / "copy")]
        imported = json.loads(_crumb(up, *copy).stdout)
        assert imported["archived"] >= 2 and imported["bad_lines"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["show", "nonsense"], 2, "is not a digest"),
        (["show", "abc"], 2, "is not a digest"),
        (["show"], 2, "DIGEST"),
        (["diff", "0123456789"], 2, "no config with the digest"),
        (["rollback", "0123456789"], 2, "no config with the digest"),
    ],
)
def test_unknown_digests_are_reported_and_nothing_is_written(
    crumb_up: CrumbUp, arguments: list[str], code: int, message: str
) -> None:
    done = _crumb(crumb_up, "config", *arguments)
    assert (done.returncode, done.stdout) == (code, "") and message in done.stderr


def test_without_a_server_the_command_says_how_to_start_one(tmp_path: Path) -> None:
    up = CrumbUp(tmp_path)
    up.url = "http://127.0.0.1:9"
    done = _crumb(up, "config", "log")
    assert done.returncode == 1 and "no server at" in done.stderr


@pytest.fixture(scope="module")
def crumb_up(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with CrumbUp(tmp_path_factory.mktemp("up")) as up:
        yield up
