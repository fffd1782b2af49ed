"""`crumb replay` as a user runs it: on a server and on its store, with real processes and a model server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.commands import CRUMB, ask, environment, run_here, server
from tests.support.model_server import ModelServer, Scenario
from tests.support.servers import Server

CONFIG = {
    "consumer_id": "default-chat-assistant",
    "update_triggers": [{"schema_name": "user.message.v1"}],
    "sources": [{"key": "conversation", "schema_name": "user.message.v1", "fetch": {"limit": 1}}],
}


@dataclass
class World:
    """A folder with data and settings, the answers in it, and the model servers."""

    folder: Path
    url: str
    answers: list[str]
    message: str
    big: Scenario
    slow: Scenario
    redis: str

    def run(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CRUMB, "replay", *arguments],
            cwd=self.folder,
            env=environment(**extra),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def replay(self, *arguments: str) -> dict[str, Any]:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    @property
    def places(self) -> tuple[tuple[str, ...], ...]:
        """The server, and its store without the server's help."""
        return (("--url", self.url), ("--redis", self.redis))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("replay")
    with ModelServer() as models, Server() as redis:
        big = models.scenario("normal", text="I am big.")
        slow = models.scenario("slow_first_byte", delay=30)
        broken = models.scenario("unauthorized")
        offered = ", ".join(
            f'"{one.url}#{name}"' for name, one in (("big", big), ("broken", broken), ("slow", slow))
        )
        folder.joinpath("crumb.toml").write_text(
            f"[models]\nretries = 0\noffered = [{offered}]\n[models.prices]\nbig = [3, 5]\n", "utf-8"
        )
        with server(folder, "--redis", redis.url) as ready:
            outcomes = [ask(ready["url"], text) for text in ("Hello there", "what is 6 * 7?")]
            found = [outcome["answer"]["id"] for outcome in outcomes]
            yield World(folder, ready["url"], found, outcomes[0]["message"]["id"], big, slow, redis.url)


def test_the_same_request_gives_the_same_answer_without_running_tools_or_writing(world: World) -> None:
    def stored() -> list[Any]:
        reply = httpx.get(f"{world.url}/breadcrumbs", params={"limit": 500}, trust_env=False)
        return [(crumb["id"], crumb["version"]) for crumb in reply.json()]

    before = stored()
    for place in world.places:
        document = world.replay(world.answers[1][:13], *place)
        (replayed,) = document["replays"]
        assert (replayed["same"], replayed["same_request"]) == (True, True)
        assert [call["result"] for call in replayed["tool_calls"]] == ["stored"]
        assert "42" in replayed["text"]
    assert stored() == before


def test_another_model_and_config_show_tokens_cost_and_repetitions(world: World) -> None:
    config = world.folder / "short.json"
    config.write_text(json.dumps(CONFIG), "utf-8")
    for place in world.places:
        world.big.requests.clear()
        document = world.replay(
            world.answers[1],
            "--model",
            "big",
            "--config",
            str(config),
            "--times",
            "2",
            "--price",
            "1,2",
            *place,
        )
        assert (document["same"], document["distinct"], len(document["replays"])) == (0, 1, 2)
        one = document["replays"][0]
        assert one["text"] == "I am big." and not one["same_request"]
        assert one["cost"] == pytest.approx((one["input_tokens"] + 2 * one["output_tokens"]) / 1e6)
        assert "cost" not in document["original"], "the price is that of another model"
        sent = world.big.requests[0].body["messages"]
        assert [message["content"] for message in sent[1:]] == ["what is 6 * 7?"]


def test_the_prices_of_the_settings_apply_without_an_option(world: World) -> None:
    for place in world.places:
        document = world.replay(world.answers[0], "--model", "big", *place)
        one = document["replays"][0]
        assert one["cost"] == pytest.approx((3 * one["input_tokens"] + 5 * one["output_tokens"]) / 1e6)
        assert "cost" not in document["original"], "its model has no price"


def test_a_failing_model_has_the_exit_code_1(world: World) -> None:
    for place in world.places:
        done = world.run(world.answers[0], "--model", "broken", "--times", "3", *place)
        assert done.returncode == 1
        assert [set(one) & {"text", "error"} for one in json.loads(done.stdout)["replays"]] == [{"error"}]


def test_wrong_arguments_have_the_exit_code_2_and_call_no_model(world: World) -> None:
    broken = world.folder / "broken.json"
    broken.write_text('{"consumer_id": ', "utf-8")
    first = world.answers[0]
    unknown = "01999999-0000-7000-8000-000000000000"
    world.big.requests.clear()
    invalid = (
        ("--times", "11"),
        ("--times", "0"),
        ("--price", "nan,1"),
        ("--config", "none.json"),
        ("--config", str(broken)),
        ("--agent", str(broken)),
    )
    for option, value in invalid:
        done = run_here(world.folder, "replay", first, option, value, "--url", world.url)
        assert (done.returncode, done.stdout) == (2, ""), (option, value, done.stderr)
        assert (value if value.endswith("json") else option) in done.stderr
    for place in world.places:
        for arguments, expected in (
            ((unknown,), "not found"),
            (("zzz",), ""),
            ((world.message,), "not an answer"),
            ((first, "--model", "no-such-model"), "model"),
        ):
            done = run_here(world.folder, "replay", *arguments, *place)
            assert (done.returncode, done.stdout) == (2, ""), (arguments, done.stderr)
            assert expected in done.stderr, (arguments, done.stderr)
            assert "Traceback" not in done.stderr
    assert not world.big.requests


def test_a_server_without_models_says_where_to_run_the_command(world: World) -> None:
    folder = world.folder / "serve"
    folder.mkdir()
    with server(folder, "--redis", world.redis, command="serve") as served:
        done = world.run(world.answers[0], "--url", served["url"])
        assert done.returncode == 2
        assert "no models" in done.stderr and "crumb replay" in done.stderr


@pytest.mark.parametrize("width", [80, 140])
def test_both_answers_are_side_by_side_only_on_a_wide_terminal(world: World, width: int) -> None:
    text = _on_terminal(world, width, world.answers[0], "--model", "big", "--url", world.url)
    lines = [line for line in text.splitlines() if "Original" in line]
    assert len(lines) == 1 and ("Replay" in lines[0]) == (width == 140)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "I am big." in text and "tokens" in text and "a different answer" in text


def test_ctrl_c_ends_a_waiting_replay(world: World) -> None:
    for place in world.places:
        world.slow.requests.clear()
        process = subprocess.Popen(
            [CRUMB, "replay", world.answers[0], "--model", "slow", *place],
            cwd=world.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + 60
        while not world.slow.requests:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=15)
        assert (process.returncode, out) == (130, b""), error
        assert b"Traceback" not in error


def _on_terminal(world: World, width: int, *arguments: str) -> str:
    """Run the command on a terminal of this width. Return its output without colours."""
    master, slave = pty.openpty()
    environment_of = environment(COLUMNS=str(width), NO_COLOR="1", TERM="dumb")
    process = subprocess.Popen(
        [CRUMB, "replay", *arguments],
        cwd=world.folder,
        env=environment_of,
        stdout=slave,
        stderr=subprocess.PIPE,
    )
    os.close(slave)
    pieces = []
    with suppress(OSError):  # the terminal is closed at the end
        while piece := os.read(master, 4096):
            pieces.append(piece)
    os.close(master)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 0, error
    return b"".join(pieces).decode().replace("\r\n", "\n")
