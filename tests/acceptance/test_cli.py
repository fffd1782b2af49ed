"""The `crumb` command with real processes, a real embedded server and real output."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from typer.testing import CliRunner

from breadcrumbs.cli.app import app
from tests.support.servers import Server

CRUMB = Path(sys.executable).parent / "crumb"
LIMIT = 60.0
COLOURS = re.compile(r"\x1b\[")


def environment(**extra: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.upper().startswith("CRUMB_")}
    return plain | {"NO_PROXY": "127.0.0.1", **extra}


class Up:
    """A `crumb up` or `crumb serve` in its own process."""

    def __init__(self, *arguments: str, command: str = "up", cwd: Path, **extra: str) -> None:
        self.cwd = cwd
        self._errors = cwd / f"stderr-{time.monotonic_ns()}"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [CRUMB, command, "--port", "0", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=cwd,
                env=environment(**extra),
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait(LIMIT)
            self.process.stdout.close()
            raise AssertionError(f"crumb {command} ended with {code}: {self.errors}")
        self.ready: dict[str, Any] = json.loads(line)
        self.url: str = self.ready["url"]

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(sig)
        return self.end()

    def end(self) -> int:
        code = self.process.wait(LIMIT)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()


@dataclass(frozen=True, slots=True)
class Outcome:
    returncode: int
    stdout: str
    stderr: str


class User:
    """Runs commands like a user at a shell.

    With `quick`, commands other than `up` and `serve` run in this process. Otherwise each has its own process.
    """

    def __init__(self, url: str, cwd: Path, *, quick: bool = True) -> None:
        self.url, self.cwd, self.quick = url, cwd, quick

    def run(self, *arguments: str, input: str | None = None, **extra: str) -> Outcome:
        if self.quick and arguments[0] not in ("up", "serve"):
            return self._run_here(arguments, input, extra)
        done = subprocess.run(
            [CRUMB, *arguments],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            cwd=self.cwd,
            env=environment(CRUMB_URL=self.url, **extra),
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def _run_here(self, arguments: tuple[str, ...], input: str | None, extra: dict[str, str]) -> Outcome:
        ours = {name: None for name in os.environ if name.upper().startswith("CRUMB_")}
        with contextlib.chdir(self.cwd):
            done = CliRunner().invoke(
                app, arguments, input=input, env={**ours, "CRUMB_URL": self.url, **extra}
            )
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Outcome(done.exit_code, done.stdout, done.stderr)

    def json(self, *arguments: str, input: str | None = None, **extra: str) -> Any:
        result = self.run(*arguments, input=input, **extra)
        assert result.returncode == 0, result.stderr
        assert not COLOURS.search(result.stdout)
        return json.loads(result.stdout)

    def post(self, text: str, *arguments: str, **extra: str) -> str:
        """Post a note and return its id. The agent of `crumb up` answers messages, but not notes."""
        id: str = self.json("post", text, "--schema", "note.v1", *arguments, **extra)["id"]
        return id

    def fails(self, *arguments: str, code: int = 1, **extra: str) -> str:
        result = self.run(*arguments, **extra)
        assert result.returncode == code, result
        assert "Traceback" not in result.stderr
        return result.stderr

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [CRUMB, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.cwd,
            env=environment(CRUMB_URL=self.url),
            **options,
        )


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return not Path("/proc/self").exists()
    return state != "Z"


def wait_until(condition: Callable[[], object], message: str, limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(message)
        time.sleep(0.02)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    with Up("--data", str(folder / "data"), cwd=folder) as running:
        yield running


@pytest.fixture
def user(up: Up, tmp_path: Path) -> User:
    return User(up.url, tmp_path)


# Breadcrumbs


def test_a_posted_breadcrumb_can_be_read_listed_changed_and_deleted(user: User) -> None:
    user.quick = False
    posted = user.json("post", "Hello there", "--session", "day", "--tag", "blue", "--ttl", "1h")
    id = posted["id"]
    assert posted["version"] == 1
    assert user.json("get", id)["context"]["message"] == "Hello there"
    full = user.json("get", id, "--full")
    assert full["schema_name"] == "user.message.v1" and full["expires_at"] > full["created_at"]
    assert set(full["tags"]) == {"blue", "user:message", "session:day"}
    httpx.patch(f"{user.url}/breadcrumbs/{id}", json={"title": "changed"}).raise_for_status()
    assert [version["version"] for version in user.json("history", id)] == [2, 1]
    messages = ("list", "--session", "day", "--schema", "user.message.v1")
    assert [item["id"] for item in user.json(*messages, "--tag", "blue")] == [id]
    assert user.json("list", "--session", "night") == []
    assert user.json("delete", id, "--yes") == [{"id": id, "deleted": True}]
    assert "breadcrumb not found" in user.fails("get", id)
    assert user.json(*messages) == []


def test_a_context_can_come_from_a_file_or_a_pipe(user: User) -> None:
    (user.cwd / "c.json").write_text('{"list": [], "big": 9007199254740993}')
    posted = user.json("post", "--schema", "data.v1", "--context", "@c.json")
    assert user.json("get", posted["id"])["context"] == {"list": [], "big": 9007199254740993}
    piped = user.json("post", "-", "--schema", "note.v1", input="two\nlines\n")
    assert user.json("get", piped["id"])["context"]["message"] == "two\nlines"


def test_a_post_repeated_with_its_idempotency_key_is_written_once(user: User) -> None:
    first, second = (user.post("once", "-s", "key", "--idempotency-key", "k1") for _ in range(2))
    assert first == second
    assert len(user.json("list", "--session", "key")) == 1
    assert "another body" in user.fails(
        "post", "twice", "--schema", "note.v1", "-s", "key", "--idempotency-key", "k1"
    )


def test_a_list_reads_all_pages_or_reports_that_there_are_more(user: User) -> None:
    with httpx.Client(base_url=user.url) as client:
        for number in range(30):
            document = {"schema_name": "many.v1", "context": {"n": number}}
            client.post("/breadcrumbs", json=document).raise_for_status()
    some = user.run("list", "--schema", "many.v1", "--limit", "7")
    assert len(json.loads(some.stdout)) == 7 and "--all" in some.stderr
    everything = user.json("list", "--schema", "many.v1", "--all", "--context", "--sort", "created_at")
    assert [item["context"]["n"] for item in everything] == list(range(30))
    recent = user.json("list", "--schema", "many.v1", "--since", "1h")
    assert len(recent) == 30
    assert user.json("list", "--schema", "many.v1", "--since", "2100-01-01T00:00:00Z") == []


def test_a_tag_is_matched_literally_with_any_character(user: User) -> None:
    for tag in ("a,b", "x:*", '["q"]', "ünïcode tag"):
        user.json("post", f"with {tag}", "--schema", "odd.v1", "--tag", tag)
    for tag in ("a,b", "x:*", '["q"]', "ünïcode tag"):
        assert [item["title"] for item in user.json("list", "--tag", tag)] == [f"with {tag}"]
    either = user.json("list", "--any-tag", "a,b", "--any-tag", "x:*")
    assert {item["title"] for item in either} == {"with a,b", "with x:*"}


def test_a_failed_deletion_is_reported_and_the_others_are_done(user: User) -> None:
    id = user.post("away")
    missing = "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b"
    result = user.run("delete", missing, id, "--yes")
    assert result.returncode == 1 and missing in result.stderr
    assert [one["deleted"] for one in json.loads(result.stdout)] == [False, True]


def test_a_token_is_printed_alone_and_works_only_for_its_session(user: User) -> None:
    printed = user.run(
        "token", "--session", "mine", "--role", "emitter", "--role", "subscriber", "--ttl", "1h"
    )
    token = printed.stdout.strip()
    assert printed.stdout == f"{token}\n" and token.count(".") == 2
    user.post("inside", "--session", "mine", CRUMB_TOKEN=token)
    assert "only" in user.fails("post", "outside", "--session", "other", CRUMB_TOKEN=token)
    assert {item["title"] for item in user.json("list", CRUMB_TOKEN=token)} == {"inside"}
    assert "token" in user.fails("list", "--token", "a.b.c")


def test_an_invalid_post_fails_with_an_explanation(user: User) -> None:
    stderr = user.fails("post", "x", "--tag", "session:a", "--session", "b")
    assert "one session" in stderr and len(stderr.splitlines()) == 1
    assert "duration" in user.fails("post", "x", "--ttl", "long")
    assert "'nonsense' is not an id: use a whole id" in user.fails("get", "nonsense", code=2)


# tail


class Tail:
    def __init__(self, user: User, *arguments: str) -> None:
        self.process = user.start("tail", *arguments)
        self.events: list[dict[str, Any]] = []
        self.stderr_lines: list[str] = []
        self._threads = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        self.events.extend(json.loads(line) for line in self.process.stdout)

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        self.stderr_lines.extend(self.process.stderr)

    def messages(self) -> list[str]:
        return [event["context"]["message"] for event in self.events if "message" in event.get("context", {})]

    def post_until_received(self, user: User, session: str) -> None:
        """Post messages until one arrives. A stream gets no events before it is connected."""

        def heard() -> bool:
            document = {"tags": [f"session:{session}"], "context": {"message": "knock"}}
            httpx.post(f"{user.url}/breadcrumbs", json=document).raise_for_status()
            time.sleep(0.2)
            return "knock" in self.messages()

        wait_until(heard, "the tail receives no events")

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        code = self.process.wait(LIMIT)
        for thread in self._threads:
            thread.join(LIMIT)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


def test_a_tail_shows_only_its_session_live(user: User) -> None:
    tail = Tail(user, "--session", "live")
    tail.post_until_received(user, "live")
    user.post("elsewhere", "--session", "other")
    id = user.post("here", "--session", "live")
    user.json("delete", id, "--yes")
    wait_until(
        lambda: any(event["operation"] == "deleted" for event in tail.events),
        "the tail does not receive the deletion",
    )
    assert tail.interrupt() == 130
    assert [message for message in tail.messages() if message != "knock"] == ["here"]
    assert all(event["session_id"] == "live" for event in tail.events)
    assert tail.stderr_lines == []


def test_a_tail_can_resume_after_an_event(user: User) -> None:
    tail = Tail(user, "--session", "resume")
    tail.post_until_received(user, "resume")
    tail.interrupt()
    last = tail.events[-1]["event_id"]
    user.post("missed", "--session", "resume")
    again = Tail(user, "--session", "resume", "--since-id", last)
    wait_until(lambda: "missed" in again.messages(), "the tail does not receive the missed event")
    again.interrupt()


def test_a_tail_with_a_closed_pipe_ends_silently(user: User) -> None:
    tail = user.start("tail", "--session", "gone")
    assert tail.stdout is not None and tail.stderr is not None
    tail.stdout.close()

    def ended() -> bool:
        user.post("anybody?", "--session", "gone")
        return tail.poll() is not None

    wait_until(ended, "the tail continues to write to a closed pipe")
    assert (tail.returncode, tail.stderr.read()) == (0, "")
    tail.stderr.close()


def test_a_tail_survives_a_restart_of_the_server_and_misses_nothing(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with Up("--data", data, cwd=tmp_path) as first:
        port = first.url.rpartition(":")[2]
        user = User(first.url, tmp_path)
        tail = Tail(user, "--session", "s")
        tail.post_until_received(user, "s")
        first.stop()
    wait_until(
        lambda: any("reconnecting" in line for line in tail.stderr_lines),
        "the tail does not notice the restart",
    )
    with Up("--data", data, "--port", port, cwd=tmp_path):
        user.post("while you were away", "--session", "s")
        wait_until(lambda: "while you were away" in tail.messages(), "the tail has missed an event")
        assert any("connected again" in line for line in tail.stderr_lines)
        assert tail.interrupt() == 130


# export, import


def test_an_export_is_imported_completely_into_another_store(up: Up, user: User) -> None:
    id = user.post("first", "--session", "moving")
    httpx.patch(f"{user.url}/breadcrumbs/{id}", json={"title": "second"}).raise_for_status()
    before, history = user.json("get", id, "--full"), user.json("history", id)
    file = user.cwd / "backup.jsonl"
    exported = user.run("export", str(file), "--session", "moving", "--data", up.ready["data"])
    assert (exported.returncode, exported.stdout) == (0, ""), exported.stderr
    assert file.stat().st_mode & 0o077 == 0

    other = user.cwd / "other"
    dry = user.json("import", str(file), "--dry-run", "--data", str(other))
    assert (dry["imported"], dry["would_import"]) == (0, 1)
    assert user.json("import", str(file), "--data", str(other))["imported"] == 1
    again = user.json("import", str(file), "--data", str(other))
    assert (again["imported"], again["already_there"]) == (0, 1)
    with Up("--data", str(other), cwd=user.cwd) as second:
        there = User(second.url, user.cwd)
        assert there.json("get", id, "--full") == before
        assert there.json("history", id) == history
        assert there.json("list", "--session", "moving")[0]["title"] == "second"


def test_an_export_does_not_replace_a_pipe_or_a_link(up: Up, user: User) -> None:
    user.post("one line", "--session", "fifo")
    options = ("--session", "fifo", "--no-history", "--data", up.ready["data"])
    pipe = user.cwd / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        exported = user.run("export", str(pipe), *options)
        if not pipe.is_fifo():
            reader.kill()
        assert (exported.returncode, pipe.is_fifo()) == (0, True), exported.stderr
        assert "one line" in reader.communicate(timeout=10)[0]
    assert "one line" in user.run("export", "/dev/stdout", *options).stdout
    target, link = user.cwd / "target.jsonl", user.cwd / "link.jsonl"
    target.write_text("old")
    link.symlink_to(target)
    assert user.run("export", str(link), *options).returncode == 1
    assert target.read_text() == "old"
    assert user.run("export", str(link), "--force", *options).returncode == 0
    assert link.is_symlink() and "one line" in target.read_text()


def test_an_export_to_a_pipe_is_json_lines(up: Up, user: User) -> None:
    user.post("one line", "--session", "piped")
    result = user.run("export", "--session", "piped", "--no-history", "--data", up.ready["data"])
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["breadcrumb"]["context"]["message"] == "one line"


def test_an_import_reports_bad_lines_and_imports_the_rest(up: Up, user: User) -> None:
    user.post("good", "--session", "mixed")
    good = user.run("export", "--session", "mixed", "--data", up.ready["data"]).stdout
    file = user.cwd / "mixed.jsonl"
    file.write_text("no json\n" + good + '{"breadcrumb": {"title": 5}}\n')
    result = user.run("import", str(file), "--data", str(user.cwd / "new"))
    assert result.returncode == 1
    report = json.loads(result.stdout)
    assert report["imported"] == 1
    assert [bad["line"] for bad in report["bad_lines"]] == [1, 3]


def test_an_import_into_a_running_server_is_visible_at_once(up: Up, user: User) -> None:
    id = user.post("mine", "--session", "given")
    lines = user.run("export", "--session", "given", "--data", up.ready["data"]).stdout
    owner = "5f1c6f0e-0000-4000-8000-000000000009"
    arguments = ("import", "-", "--owner", owner, "--data", up.ready["data"])
    assert user.json(*arguments, input=lines)["imported"] == 1
    token = user.run("token", "--owner", owner).stdout.strip()
    assert user.json("get", id, "--full", CRUMB_TOKEN=token)["owner_id"] == owner


# doctor


def test_doctor_finds_no_fault_in_a_healthy_system(up: Up, user: User) -> None:
    report = user.json("doctor", "--data", up.ready["data"])
    assert (report["ok"], report["status"]) == (True, "ok")
    found = {finding["id"]: finding for finding in report["findings"]}
    assert {
        "settings",
        "api",
        "data-directory",
        "disk",
        "persistence",
        "workers",
        "scripts",
        "models",
    } <= set(found)
    assert str(up.ready["server_pid"]) in found["data-directory"]["message"]


def test_doctor_reports_a_stopped_system_only_as_unreachable(tmp_path: Path) -> None:
    with Up("--data", str(tmp_path / "data"), cwd=tmp_path) as running:
        running.stop()
        user = User(running.url, tmp_path)
    result = user.run("doctor", "--data", str(tmp_path / "data"))
    assert result.returncode == 2
    report = json.loads(result.stdout)
    assert (report["ok"], report["status"]) == (False, "error")
    wrong = [one for one in report["findings"] if one["status"] not in ("ok", "skipped")]
    assert [one["id"] for one in wrong] == ["api"] and "crumb up" in wrong[0]["advice"]


# up and serve


@pytest.mark.parametrize(("sig", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_stops_everything_and_the_next_start_has_the_data(
    tmp_path: Path, sig: signal.Signals, code: int
) -> None:
    data = str(tmp_path / "data")
    with Up("--data", data, cwd=tmp_path) as first:
        id = User(first.url, tmp_path).post("kept")
        server = first.ready["server_pid"]
        assert is_alive(server)
        with httpx.stream("GET", f"{first.url}/events/stream", timeout=LIMIT) as stream:
            next(stream.iter_raw())
            began = time.monotonic()
            assert first.stop(sig) == code
            assert time.monotonic() - began < 8, "an open stream must not delay the end"
        assert not is_alive(server)
        assert "Traceback" not in first.errors
    with Up("--data", data, cwd=tmp_path) as second:
        assert User(second.url, tmp_path).json("get", id)["context"]["message"] == "kept"


@pytest.mark.parametrize(("sig", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_during_startup_leaves_nothing_behind(
    tmp_path: Path, sig: signal.Signals, code: int
) -> None:
    data = tmp_path / "data"
    with (tmp_path / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [CRUMB, "up", "--port", "0", "--data", data],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment(),
            start_new_session=True,
        )
    wait_until((data / "lock").exists, "crumb up does not start")
    process.send_signal(sig)
    assert process.wait(LIMIT) == code
    assert "Traceback" not in (tmp_path / "errors").read_text()
    # A server that was being forked ends a moment after its parent.
    wait_until(lambda: all(is_free(data / name) for name in ("lock", "server.lock")), "a lock is still held")


def is_free(lock: Path) -> bool:
    if not lock.exists():
        return True
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_second_start_on_the_same_directory_names_the_holder(up: Up, user: User) -> None:
    stderr = user.fails("up", "--port", "0", "--data", up.ready["data"])
    assert "in use" in stderr and str(up.ready["pid"]) in stderr and "--data" in stderr


def test_a_taken_port_is_reported_before_anything_starts(user: User) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        stderr = user.fails("up", "--port", port, "--data", str(user.cwd / "data"))
    assert port in stderr and "--port 0" in stderr
    assert not (user.cwd / "data").exists()


def test_a_killed_parent_leaves_no_server_behind(tmp_path: Path) -> None:
    with Up("--data", str(tmp_path / "data"), cwd=tmp_path) as running:
        id = User(running.url, tmp_path).post("confirmed")
        running.process.kill()
        running.end()
        wait_until(lambda: not is_alive(running.ready["server_pid"]), "the embedded server is an orphan")
    with Up("--data", str(tmp_path / "data"), cwd=tmp_path) as again:
        assert User(again.url, tmp_path).json("get", id)["version"] == 1


def test_a_killed_embedded_server_is_restarted_with_its_data(tmp_path: Path) -> None:
    with Up("--data", str(tmp_path / "data"), cwd=tmp_path) as running:
        user = User(running.url, tmp_path)
        id = user.post("before")
        os.kill(running.ready["server_pid"], signal.SIGKILL)
        wait_until(
            lambda: "embedded server restarted" in running.errors, "the embedded server is not restarted"
        )
        assert user.json("get", id)["context"]["message"] == "before"
        user.post("after")
        assert running.stop() == 0


def test_settings_are_read_from_the_file_in_the_folder(tmp_path: Path) -> None:
    key = "a key of thirty-two characters!!"
    (tmp_path / "crumb.toml").write_text(
        f'data = "./here"\n[[api_keys]]\nkey = "{key}"\nowner_id = "5f1c6f0e-0000-4000-8000-000000000001"\n'
    )
    with Up(cwd=tmp_path) as running:
        assert running.ready["mode"] == "keys" and running.ready["data"] == str(tmp_path / "here")
        user = User(running.url, tmp_path)
        assert "CRUMB_API_KEY" in user.fails("list")
        user.post("with a key", CRUMB_API_KEY=key)
        assert len(user.json("list", CRUMB_API_KEY=key)) == 1
        token = user.run("token", CRUMB_API_KEY=key).stdout.strip()
        assert len(user.json("list", CRUMB_TOKEN=token)) == 1
        assert key not in running.errors and token not in running.errors


def test_serve_works_on_a_server_with_a_password_and_does_not_show_it(tmp_path: Path) -> None:
    with Server(password="hunter2 with spaces") as server:
        one = Up("--redis", server.url, command="serve", cwd=tmp_path)
        two = Up("--redis", server.url, command="serve", cwd=tmp_path)
        with one, two:
            id = User(one.url, tmp_path).post("shared")
            assert User(two.url, tmp_path).json("get", id)["context"]["message"] == "shared"
            assert "hunter2" not in json.dumps(two.ready) + two.errors
        stderr = User("", tmp_path).fails("serve", "--redis", server.url.replace("hunter2", "wrong"))
        assert "cannot be used" in stderr and "wrong" not in stderr.partition("cannot be used")[0]


def test_an_invalid_context_config_fails_with_an_explanation(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"consumer_id": 5}')
    user = User("", tmp_path)
    stderr = user.fails("up", "--port", "0", "--data", str(tmp_path / "data"), "--context-config", "bad.json")
    assert "bad.json" in stderr
    wait_until(lambda: is_free(tmp_path / "data" / "server.lock"), "the embedded server is still running")


# Output


def on_a_terminal(*arguments: str, cwd: Path, columns: int = 120, **extra: str) -> str:
    """Run a command on a terminal and return its output."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [CRUMB, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=cwd,
        env=environment(TERM="xterm-256color", COLUMNS=str(columns), **extra),
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # Linux raises an error after the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(controller)
    process.wait(LIMIT)
    return shown.decode()


def test_output_on_a_terminal_has_colours_and_is_not_json(user: User) -> None:
    id = user.post("[bold]look[/] \x1b[31m", "--session", "seen")
    shown = on_a_terminal("list", "--session", "seen", cwd=user.cwd, CRUMB_URL=user.url)
    assert COLOURS.search(shown) and id in shown and "[bold]look[/] \\x1b[31m" in shown
    assert not shown.lstrip().startswith("[\n")
    one = on_a_terminal("get", id, cwd=user.cwd, CRUMB_URL=user.url)
    assert "note.v1" in one and "\x1b[31m\n" not in one
    assert "version 1" in on_a_terminal("history", id, cwd=user.cwd, CRUMB_URL=user.url)


def test_no_color_and_json_apply_on_a_terminal(user: User) -> None:
    user.post("plain", "--session", "bare")
    plain = on_a_terminal("list", "--session", "bare", cwd=user.cwd, CRUMB_URL=user.url, NO_COLOR="1")
    assert "plain" in plain and not re.search(r"\x1b\[[0-9;]*3[0-9]", plain)
    as_json = on_a_terminal("list", "--session", "bare", "--json", cwd=user.cwd, CRUMB_URL=user.url)
    assert json.loads(as_json)[0]["title"] == "plain"


def imported_by(*command: str) -> set[str]:
    """Return the names of all modules that a command imports."""
    program = (
        "import atexit, sys; from breadcrumbs.cli import main; "
        "atexit.register(lambda: print(*(name for name, module in sys.modules.items() if module), file=sys.stderr)); "
        "main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *command],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    return set(ended.stderr.split())


def test_the_help_imports_no_heavy_packages() -> None:
    loaded = {name.partition(".")[0] for name in imported_by("--help")}
    heavy = {"rich", "httpx", "pydantic", "redis", "starlette", "uvicorn", "structlog", "orjson", "anyio"}
    assert loaded & heavy == set()


def test_a_post_imports_only_its_command_and_the_client(user: User) -> None:
    loaded = imported_by("post", "hello", "--session", "s", "--tag", "t", "--url", user.url)
    heavy = {
        "google",
        "joserfc",
        "opentelemetry",
        "prometheus_client",
        "pydantic",
        "redis",
        "rich",
        "starlette",
    }
    heavy |= {"structlog", "uvicorn", "uvloop"}
    assert {name.partition(".")[0] for name in loaded} & heavy == set()
    own = {
        name.removeprefix("breadcrumbs.").partition(".")[0]
        for name in loaded
        if name.startswith("breadcrumbs.")
    }
    assert own <= {"cli", "client", "runtime", "agents"}
    assert "breadcrumbs.client.sync" in loaded and "breadcrumbs.cli.crumbs" in loaded
    unused = {
        "cli.servers",
        "cli.doctor",
        "client.aio",
        "runtime.workers",
        "runtime.http",
        "runtime.store",
        "agents.definition",
    }
    assert {name for name in unused if f"breadcrumbs.{name}" in loaded} == set()


def test_the_help_takes_less_than_300_milliseconds() -> None:
    """CPU time is measured, because other tests run at the same time."""
    took = []
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([CRUMB, "--help"], check=True, capture_output=True, env=environment())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        if took[-1] < 0.3:
            return
    raise AssertionError(f"crumb --help takes {min(took):.3f} s at best")
