"""`crumb chat` at a terminal and in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from uuid import uuid4

import pytest

from breadcrumbs import Client
from tests.client.support import CRUMB, CrumbUp, environment
from tests.support.model_server import ModelServer

LIMIT = 20.0
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
LONG_MESSAGE = " ".join(f"w{number}" for number in range(300))
ANSWER_START = 'You wrote: "w0 w1 w2 w3'
"""Start of the answer. The typed message alone does not match, although the terminal echoes it."""
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x01\x02]")


class TerminalUser:
    """A user of `crumb chat` at a pseudo-terminal."""

    def __init__(self, up: CrumbUp, *arguments: str, **variables: str) -> None:
        self._terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(inner, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [CRUMB, "chat", *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=up.folder,
            env=environment(
                **{"CRUMB_URL": up.url, "TERM": "xterm-256color", "XDG_STATE_HOME": f"{up.folder}/{uuid4()}"}
                | variables
            ),
            preexec_fn=take_terminal,
        )
        os.close(inner)
        self._bytes = b""
        self._screen_start = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT)
        os.close(self._terminal)

    @property
    def raw(self) -> str:
        return self._bytes.decode(errors="replace")

    @property
    def screen(self) -> str:
        """Output since the last `type`, without control sequences."""
        return _CODES.sub("", self._bytes[self._screen_start :].decode(errors="replace"))

    def wait_for(self, text: str, limit: float = LIMIT) -> str:
        """Wait until the text is on the screen, and return the screen."""
        deadline = time.monotonic() + limit
        while text not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} did not appear: {self.screen!r}"
            self._read_output()
        return self.screen

    def type(self, text: str, *, enter: bool = True) -> None:
        self._screen_start = len(self._bytes)
        os.write(self._terminal, (text + ("\r" if enter else "")).encode())

    def wait_for_prompt(self, session: str) -> None:
        """Wait for the prompt, because input before it can be lost."""
        deadline = time.monotonic() + LIMIT
        while not self.screen.endswith(f"{session} › "):
            assert time.monotonic() < deadline, f"no prompt: {self.screen!r}"
            self._read_output()
        time.sleep(0.05)  # readline takes over the terminal shortly after it shows the prompt

    def send(self, text: str, session: str) -> str:
        """Type a line, wait for the next prompt, and return the output between."""
        self.type(text)
        self.wait_for(f"{session} › ")
        self.wait_for_prompt(session)
        return self.screen

    def wait_for_exit(self) -> int:
        deadline = time.monotonic() + LIMIT
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"the chat does not end: {self.screen!r}"
            self._read_output()
        self._read_output()
        return self.process.returncode

    def _read_output(self) -> None:
        if select.select([self._terminal], [], [], 0.05)[0]:
            try:
                self._bytes += os.read(self._terminal, 65536)
            except OSError:  # the process has closed the terminal
                time.sleep(0.01)


@pytest.fixture
def client(up: CrumbUp) -> Iterator[Client]:
    with Client(up.url) as made:
        yield made


def run_in_pipe(
    up: CrumbUp, *arguments: str, input: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CRUMB, "chat", *arguments],
        input=input,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        cwd=up.folder,
        env=environment(CRUMB_URL=up.url, **variables),
    )


# At a terminal


def test_conversations_in_two_sessions_stay_separate(up: CrumbUp, name: str) -> None:
    one, two = "one-" + name[:8], "two-" + name[:8]
    with TerminalUser(up, "--session", one) as user:
        user.wait_for_prompt(one)
        user.send("Hello session 1", one)
        user.type(f"/new {two}")
        user.wait_for_prompt(two)
        shown = user.send("What did I say?", two)
        assert "nothing before this" in shown and "session 1" not in shown
        user.send("Hello session 2", two)
        user.type(f"/switch {one}")
        user.wait_for_prompt(one)
        assert "you: Hello session 1" in user.screen
        shown = user.send("What did I say?", one)
        assert 'You said: "Hello session 1"' in shown and "session 2" not in shown
        shown = user.send("/sessions", one)
        lines = [line.strip() for line in shown.splitlines()]
        mine = [line for line in lines if line.startswith(("* " + one, one, two))]
        assert mine[0].startswith(f"* {one}") and "Hello session 1" in mine[0]
        assert mine[1].startswith(two) and "What did I say?" in mine[1]
        user.type("/quit")
        assert user.wait_for_exit() == 0


def test_the_answer_is_shown_as_it_streams_and_its_final_text_remains(up: CrumbUp, name: str) -> None:
    with TerminalUser(up, "--session", name) as user:
        user.wait_for_prompt(name)
        user.type("say: alpha beta gamma delta epsilon zeta eta theta")
        user.wait_for("alpha")
        user.wait_for_prompt(name)
        shown = user.screen
        # Each delta redraws the answer. The last line before the prompt is the complete answer, once.
        assert shown.count("alpha") > 3
        final = shown.replace("\r\n", "\n").splitlines()[-2].rpartition("\r")[2]
        assert final == "alpha beta gamma delta epsilon zeta eta theta"
        user.type(CTRL_D, enter=False)
        assert user.wait_for_exit() == 0


def test_tool_calls_are_shown_before_the_answer(up: CrumbUp, name: str) -> None:
    with TerminalUser(up, "--session", name) as user:
        user.wait_for_prompt(name)
        shown = user.send("What is 6 * 7?", name)
        assert re.search(r'calculator \{"expression":"6 ?\* ?7"\}', shown)
        assert "calculator →" in shown and "42" in shown
        assert "\x1b[2m  calculator" in user.raw  # dimmed


def test_the_history_shows_the_requested_number_of_messages(up: CrumbUp, client: Client, name: str) -> None:
    session = client.session(name)
    for number in range(3):
        session.say(f"say: number {number}")
    with TerminalUser(up, "--session", name) as user:
        user.wait_for_prompt(name)
        assert "you: say: number 2" in user.screen  # the chat starts with the latest messages
        shown = user.send("/history 2", name)
        assert "number 2" in shown and "number 1" not in shown
        assert "you: say: number 0" in user.send("/history", name)
        assert "needs a number" in user.send("/history many", name)


def test_ctrl_c_cancels_an_answer_and_the_conversation_continues(
    up: CrumbUp, client: Client, name: str
) -> None:
    with TerminalUser(up, "--session", name) as user:
        user.wait_for_prompt(name)
        user.type(LONG_MESSAGE)
        user.wait_for(ANSWER_START)
        user.type(CTRL_C, enter=False)
        user.wait_for("cancelled")
        user.wait_for_prompt(name)
        shown = user.send("say: still here", name)
        # The cancellation is not reported again.
        assert "say: still here" in shown and "not answered" not in shown
        user.type(CTRL_D, enter=False)
        assert user.wait_for_exit() == 0
    roles = [(message.role, message.text) for message in client.session(name).messages()]
    assert roles == [("user", LONG_MESSAGE), ("user", "say: still here"), ("agent", "still here")]
    schemas = [crumb.schema_name for crumb in client.list(session=name)]
    assert schemas.count("agent.cancel.v1") == 1 and schemas.count("agent.error.v1") == 1


def test_ctrl_c_twice_in_a_row_ends_the_chat(up: CrumbUp, name: str) -> None:
    with TerminalUser(up, "--session", name) as user:
        user.wait_for_prompt(name)
        user.type("half a line", enter=False)
        user.wait_for("half a line")
        user.type(CTRL_C, enter=False)
        user.wait_for("to leave")
        user.wait_for_prompt(name)
        user.send("say: a line in between", name)
        user.type(CTRL_C, enter=False)
        user.wait_for("to leave")
        user.wait_for_prompt(name)
        user.type(CTRL_C, enter=False)
        assert user.wait_for_exit() == 130
        assert "Traceback" not in user.raw


def test_ctrl_c_after_a_cancelled_answer_ends_the_chat(up: CrumbUp, name: str) -> None:
    with TerminalUser(up, "--session", name) as user:
        user.wait_for_prompt(name)
        user.type(LONG_MESSAGE)
        user.wait_for(ANSWER_START)
        user.type(CTRL_C, enter=False)
        user.wait_for("cancelled")
        user.wait_for_prompt(name)
        user.type(CTRL_C, enter=False)
        assert user.wait_for_exit() == 130


def test_the_up_arrow_recalls_the_last_line(up: CrumbUp, name: str) -> None:
    with TerminalUser(up, "--session", name) as user:
        user.wait_for_prompt(name)
        user.send("say: again", name)
        user.type(UP)
        user.wait_for_prompt(name)
        user.wait_for("say: again")
    with Client(up.url) as client:
        said = [message.text for message in client.session(name).messages() if message.role == "user"]
    assert said == ["say: again"] * 2


def test_the_up_arrow_recalls_lines_of_an_earlier_chat(up: CrumbUp, name: str, tmp_path: Path) -> None:
    file = tmp_path / "breadcrumbs" / "chat-history"
    for line in ("say: first", "say: second"):
        with TerminalUser(up, "--session", name, XDG_STATE_HOME=str(tmp_path)) as user:
            user.wait_for_prompt(name)
            user.send(line, name)
            user.type("/quit")
            assert user.wait_for_exit() == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().splitlines() == ["say: first", "/quit", "say: second", "/quit"]
    with TerminalUser(up, "--session", name, "--no-history", XDG_STATE_HOME=str(tmp_path)) as user:
        user.wait_for_prompt(name)
        user.send("say: private", name)
        user.type("/quit")
        assert user.wait_for_exit() == 0
    assert "private" not in file.read_text()
    with TerminalUser(up, "--session", name, XDG_STATE_HOME=str(tmp_path)) as user:
        user.wait_for_prompt(name)
        user.type(UP * 4, enter=False)
        user.wait_for("say: first")


def test_the_history_file_is_bounded(up: CrumbUp, name: str, tmp_path: Path) -> None:
    file = tmp_path / "breadcrumbs" / "chat-history"
    file.parent.mkdir()
    file.write_text("".join(f"line {number}\n" for number in range(3_000)))
    with TerminalUser(up, "--session", name, XDG_STATE_HOME=str(tmp_path)) as user:
        user.wait_for_prompt(name)
        user.type("/quit")
        assert user.wait_for_exit() == 0
    lines = file.read_text().splitlines()
    assert len(lines) == 1_000 and lines[-1] == "/quit"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_ctrl_c_is_noticed_while_keys_are_processed(up: CrumbUp, name: str) -> None:
    with TerminalUser(up, "--session", name) as user:
        user.wait_for_prompt(name)
        for number in range(40):
            user.type("some keys to process", enter=False)
            time.sleep(number * 0.000_05)
            user.process.send_signal(signal.SIGINT)
            user.wait_for("to leave", limit=3)
            user.wait_for_prompt(name)
            user.type("/help")
            user.wait_for("like this")
            user.wait_for_prompt(name)


def test_messages_of_others_are_shown_with_the_next_turn(up: CrumbUp, client: Client, name: str) -> None:
    with TerminalUser(up, "--session", name) as user:
        user.wait_for_prompt(name)
        user.send("say: mine", name)
        client.session(name).say("say: from elsewhere")
        shown = user.send("say: mine again", name)
        assert "user: say: from elsewhere" in shown
        assert "default-chat-assistant: from elsewhere" in shown
        assert shown.index("from elsewhere") < shown.rindex("mine again")


def test_messages_shown_by_a_switch_are_not_repeated_with_the_next_turn(
    up: CrumbUp, client: Client, name: str
) -> None:
    with TerminalUser(up, "--session", name) as user:
        user.wait_for_prompt(name)
        user.send("say: mine", name)
        user.send(f"/new {name}-2", f"{name}-2")
        client.session(name).say("say: from elsewhere")
        assert "from elsewhere" in user.send(f"/switch {name}", name)
        assert "from elsewhere" not in user.send("say: mine again", name)


def test_an_agent_error_is_shown_without_a_traceback_and_the_chat_continues(
    up: CrumbUp, client: Client, name: str
) -> None:
    token = client.token(owner_id="dddddddd-0000-4000-8000-00000000000d").token
    with Client(up.url, token=token) as tenant:
        tenant.create(
            "agent.def.v1",
            {
                "agent_id": "default-chat-assistant",
                "model": "openai:gpt-of-nobody",
                "subscriptions": {
                    "selectors": [
                        {"schema_name": "agent.context.v1", "all_tags": ["consumer:default-chat-assistant"]}
                    ]
                },
            },
        )
    time.sleep(1)
    with TerminalUser(up, "--session", name, CRUMB_TOKEN=token) as user:
        user.wait_for_prompt(name)
        shown = user.send("Hello", name)
        assert "no answer:" in shown and "OPENAI_API_KEY" in shown
        assert "Traceback" not in shown
        assert "unknown command /nonsense" in user.send("/nonsense", name)
        assert "/sessions" in user.send("/help", name)
        assert "/switch needs the name of a session" in user.send("/switch", name)


def test_control_sequences_in_a_message_are_escaped(up: CrumbUp, client: Client, name: str) -> None:
    client.post("evil \x1b]0;title\x07 \x1b[31mred", name)
    with TerminalUser(up, "--session", name) as user:
        user.wait_for_prompt(name)
        user.send("/sessions", name)
        assert "\x1b]0;title" not in user.raw and "\\x1b]0;title" in user.raw


def test_the_chat_waits_for_a_server_that_restarts_during_an_answer(tmp_path: Path) -> None:
    with (
        CrumbUp(tmp_path, CRUMB_MODELS='{"offline_delay": 0.02}') as server,
        TerminalUser(server, "-s", "r") as user,
    ):
        user.wait_for_prompt("r")
        user.type(" ".join(f"w{number}" for number in range(100)))
        user.wait_for(ANSWER_START)
        server.stop()
        user.wait_for("connection lost")
        server.start()
        user.wait_for("connected again")
        user.wait_for_prompt("r")
        assert "w99" in user.screen and user.screen.count("connection lost") == 1
        with Client(server.url) as client:
            assert [message.role for message in client.session("r").messages()] == ["user", "agent"]


# In a pipe


def test_in_a_pipe_each_line_is_a_message_and_only_answers_are_printed(up: CrumbUp, name: str) -> None:
    ended = run_in_pipe(up, "--session", name, input="Hello session a\n\nWhat is 6 * 7?\n")
    assert ended.returncode == 0 and ended.stderr == ""
    assert ended.stdout.splitlines()[0] == 'Hello! You wrote: "Hello session a"'
    assert "42" in ended.stdout.splitlines()[-1]
    assert "\x1b" not in ended.stdout and "calculator" not in ended.stdout.splitlines()[-1]
    again = run_in_pipe(up, "--session", name, input="What did I say?")
    assert "Hello session a" in again.stdout


def test_a_double_slash_sends_a_message_that_begins_with_a_slash(
    up: CrumbUp, client: Client, name: str
) -> None:
    ended = run_in_pipe(up, "--session", name, input="//etc/hosts\n/etc/hosts\n")
    assert ended.returncode == 1 and "unknown command /etc/hosts" in ended.stderr
    assert [m.text for m in client.session(name).messages() if m.role == "user"] == ["/etc/hosts"]


def test_a_new_session_cannot_have_the_name_of_an_existing_one(
    up: CrumbUp, client: Client, name: str
) -> None:
    client.session(name).say("say: mine")
    ended = run_in_pipe(up, "--session", f"{name}-2", input=f"/new {name}\nsay: hi\n")
    assert ended.returncode == 1 and f"continue it with /switch {name}" in ended.stderr
    assert [m.text for m in client.session(name).messages()] == ["say: mine", "mine"]


def test_commands_work_in_a_pipe(up: CrumbUp, name: str) -> None:
    ended = run_in_pipe(up, input=f"/new {name}\nsay: hi\n/history\n/sessions\n/quit\nnot read\n")
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[:3] == ["hi", "you: say: hi", "default-chat-assistant: hi"]
    assert any(line.startswith(f"* {name[:39]}") for line in ended.stdout.splitlines())


def test_in_a_pipe_ctrl_c_cancels_the_answer_and_ends_the_chat(
    up: CrumbUp, client: Client, name: str
) -> None:
    process = subprocess.Popen(
        [CRUMB, "chat", "--session", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=up.folder,
        env=environment(CRUMB_URL=up.url),
    )
    assert process.stdin is not None
    process.stdin.write(LONG_MESSAGE + "\n")
    process.stdin.flush()
    deadline = time.monotonic() + LIMIT
    while not client.session(name).messages() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 130 and "cancelled" in errors and "Traceback" not in errors
    assert [message.role for message in client.session(name).messages()] == ["user"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--url", "http://127.0.0.1:9"), 1, "no server at http://127.0.0.1:9"),
        (("--url", "nonsense"), 1, "is not an address"),
        (("--token", "a.b.c"), 1, "--token"),
        (("--session", "two\nlines"), 1, "session"),
    ],
)
def test_a_startup_failure_is_reported_without_a_traceback(
    up: CrumbUp, arguments: tuple[str, ...], code: int, message: str
) -> None:
    ended = run_in_pipe(up, *arguments, input="Hello\n")
    assert ended.returncode == code
    assert message in ended.stderr and "Traceback" not in ended.stderr and ended.stdout == ""


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def test_a_failure_of_the_model_is_shown_until_it_answers(models: ModelServer, tmp_path: Path) -> None:
    failing = models.scenario("rate_limited", times=2, retry_after="1", text="Back again")
    with (
        CrumbUp(tmp_path, CRUMB_MODEL=f"{failing.url}#m") as up,
        TerminalUser(up, "--session", "one") as user,
    ):
        user.wait_for_prompt("one")
        shown = user.send("Hello", "one")
        assert "(429)" in shown and "Attempt 2 in 1 s …" in shown and "Attempt 3 in 1 s …" in shown
        assert shown.replace("\r\n", "\n").splitlines()[-2].rpartition("\r")[2] == "Back again"


def test_reasoning_is_shown_until_the_answer_begins(models: ModelServer, tmp_path: Path) -> None:
    deltas = [{"reasoning_content": "First I "}, {"reasoning_content": "count."}, {"content": "Three"}]
    thinking = models.scenario("chunks", deltas=deltas, pause=0.4)
    with (
        CrumbUp(tmp_path, CRUMB_MODEL=f"{thinking.url}#m") as up,
        TerminalUser(up, "--session", "one") as user,
    ):
        user.wait_for_prompt("one")
        shown = user.send("Hello", "one")
        assert "thinking …" in shown and "First I" in shown
        assert shown.replace("\r\n", "\n").splitlines()[-2].rpartition("\r")[2] == "Three"
        assert "First I" not in user.send("/history", "one")
