"""The programs in `examples/` run as they are, on real servers."""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from breadcrumbs import Client
from tests.client.support import LIMIT, CrumbUp, environment
from tests.support.servers import Cluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = {"agent_with_tools.py", "chat_client.py", "cluster_worker.py", "framework_session.py"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrumbUp]:
    with CrumbUp(tmp_path_factory.mktemp("up")) as running:
        yield running


def run(program: str, up: CrumbUp, folder: Path) -> list[str]:
    """Run an example and return the lines that it prints. It must end with 0 and without warnings."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / program)],
        env=environment(CRUMB_URL=up.url, CRUMB_DATA=str(up.data)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout.splitlines()


def test_each_example_is_short_and_starts_with_how_to_run_it() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == PROGRAMS
    for name in PROGRAMS:
        text = (EXAMPLES / name).read_text("utf-8")
        assert len(text.splitlines()) < 80, name
        described = ast.get_docstring(ast.parse(text)) or ""
        assert "Shows:" in described and f"python examples/{name}" in described, name


def test_the_readme_of_the_examples_lists_each_of_them() -> None:
    listed = re.findall(
        r"^\| \[`(\w+\.py)`\]\(\1\) \|", (EXAMPLES / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(PROGRAMS)


def test_the_chat_client_keeps_two_sessions_apart(up: CrumbUp, tmp_path: Path) -> None:
    lines = run("chat_client.py", up, tmp_path)
    assert re.fullmatch(r"default-chat-assistant answered \d+ characters", lines[-3])
    assert lines[-2] == "user: Hello session 2"
    assert lines[-1].startswith("agent: ")
    assert "session 1" in "".join(lines[:-3]) and "session 2" not in "".join(lines[:-3])


def test_the_agent_with_tools_calls_its_tool_each_time_it_runs(up: CrumbUp, tmp_path: Path) -> None:
    for _ in range(2):
        *_, answer, step = run("agent_with_tools.py", up, tmp_path)
        assert "stressed" in answer
        assert step == "reverse stressed"


def test_the_framework_session_remembers_the_first_run_in_the_second(up: CrumbUp, tmp_path: Path) -> None:
    assert run("framework_session.py", up, tmp_path) == [
        "You said: I live in Oslo",
        "You said: I live in Oslo, I like trains",
        *["openai.item.v1 user", "openai.item.v1 assistant"] * 2,
    ]


@contextmanager
def cluster_worker(address: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the example and wait for the line that says that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLES / "cluster_worker.py"), address],
        env=environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            ready = json.loads(printed_line(process))
            assert (ready["event"], ready["kind"], ready["pid"]) == ("ready", "agents/counter", process.pid)
            yield process
        finally:
            process.kill()


def printed_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_cluster_workers_answer_and_replace_each_other(cluster_server: Cluster, tmp_path: Path) -> None:
    cluster_server.flush()
    with (
        CrumbUp(tmp_path, CRUMB_REDIS=cluster_server.url) as up,
        Client(up.url) as client,
        cluster_worker(cluster_server.url, tmp_path) as first,
    ):
        session = client.session()
        assert session.say("one two three", agent="counter", timeout=LIMIT).text == "3 words so far"
        assert printed_line(first) == f"worker {first.pid} counted 3 words"
        with cluster_worker(cluster_server.url, tmp_path) as second:
            first.kill()
            assert session.say("four five", agent="counter", timeout=LIMIT).text == "5 words so far"
            assert printed_line(second) == f"worker {second.pid} counted 5 words"
            second.send_signal(signal.SIGTERM)
            assert second.wait(LIMIT) == 0


def test_the_cluster_worker_prints_its_usage_without_an_address(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "cluster_worker.py")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "usage: python examples/cluster_worker.py redis+cluster://HOST:PORT\n"
