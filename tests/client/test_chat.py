"""`crumb chat` as a person has it, at a terminal, and as a program has it, in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from breadcrumbs import Client
from tests.client.support import CRUMB, CrumbUp, environment

LIMIT = 20.0
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
SLOW = " ".join(f"w{number}" for number in range(300))
BEGUN = 'You wrote: "w0 w1 w2 w3'
"""Of the answer; the terminal has shown what was typed before."""
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x01\x02]")


class Person:
    """Somebody at a terminal: reads the screen, types."""

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
            env=environment(CRUMB_URL=up.url, TERM="xterm-256color", **variables),
            preexec_fn=take_terminal,
        )
        os.close(inner)
        self._bytes = b""
        self._read_up_to = 0

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
        """Everything that was shown since the last `type`, without colours."""
        return _CODES.sub("", self._bytes[self._read_up_to :].decode(errors="replace"))

    def reads(self, text: str, limit: float = LIMIT) -> str:
        """Waits until something is on the screen."""
        deadline = time.monotonic() + limit
        while text not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} did not appear: {self.screen!r}"
            self._take()
        return self.screen

    def types(self, text: str, *, enter: bool = True) -> None:
        self._read_up_to = len(self._bytes)
        os.write(self._terminal, (text + ("\r" if enter else "")).encode())

    def at_prompt(self, session: str) -> None:
        """Waits for the prompt: what is typed before it may be lost."""
        deadline = time.monotonic() + LIMIT
        while not self.screen.endswith(f"{session} › "):
            assert time.monotonic() < deadline, f"no prompt: {self.screen!r}"
            self._take()
        time.sleep(0.05)  # readline takes the terminal over right after it has shown the prompt

    def says(self, text: str, session: str) -> str:
        """Types a line at the prompt; what was shown by the time the next prompt is there."""
        self.types(text)
        self.reads(f"{session} › ")
        self.at_prompt(session)
        return self.screen

    def ends(self) -> int:
        deadline = time.monotonic() + LIMIT
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.screen!r}"
            self._take()
        self._take()
        return self.process.returncode

    def _take(self) -> None:
        if select.select([self._terminal], [], [], 0.05)[0]:
            try:
                self._bytes += os.read(self._terminal, 65536)
            except OSError:  # the other end has gone
                time.sleep(0.01)


@pytest.fixture
def client(up: CrumbUp) -> Iterator[Client]:
    with Client(up.url) as made:
        yield made


def piped(up: CrumbUp, *arguments: str, input: str, **variables: str) -> subprocess.CompletedProcess[str]:
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


def test_a_conversation_in_two_sessions_that_stay_apart(up: CrumbUp, name: str) -> None:
    one, two = "one-" + name[:8], "two-" + name[:8]
    with Person(up, "--session", one) as person:
        person.at_prompt(one)
        person.says("Hello session 1", one)
        person.types(f"/new {two}")
        person.at_prompt(two)
        shown = person.says("What did I say?", two)
        assert "nothing before this" in shown and "session 1" not in shown
        person.says("Hello session 2", two)
        person.types(f"/switch {one}")
        person.at_prompt(one)
        assert "you: Hello session 1" in person.screen
        shown = person.says("What did I say?", one)
        assert 'You said: "Hello session 1"' in shown and "session 2" not in shown
        shown = person.says("/sessions", one)
        lines = [line.strip() for line in shown.splitlines()]
        mine = [line for line in lines if line.startswith(("* " + one, one, two))]
        assert mine[0].startswith(f"* {one}") and "Hello session 1" in mine[0]
        assert mine[1].startswith(two) and "What did I say?" in mine[1]
        person.types("/quit")
        assert person.ends() == 0


def test_the_answer_appears_while_it_is_made_and_its_final_text_stays(up: CrumbUp, name: str) -> None:
    with Person(up, "--session", name) as person:
        person.at_prompt(name)
        person.types("say: alpha beta gamma delta epsilon zeta eta theta")
        person.reads("alpha")
        person.at_prompt(name)
        shown = person.screen
        # Each piece draws the answer anew; the last thing before the prompt is all of it, once.
        assert shown.count("alpha") > 3
        final = shown.replace("\r\n", "\n").splitlines()[-2].rpartition("\r")[2]
        assert final == "alpha beta gamma delta epsilon zeta eta theta"
        person.types(CTRL_D, enter=False)
        assert person.ends() == 0


def test_tools_are_shown_on_the_way(up: CrumbUp, name: str) -> None:
    with Person(up, "--session", name) as person:
        person.at_prompt(name)
        shown = person.says("What is 6 * 7?", name)
        assert re.search(r'calculator \{"expression":"6 ?\* ?7"\}', shown)
        assert "calculator →" in shown and "42" in shown
        assert "\x1b[2m  calculator" in person.raw  # dimmed


def test_the_history_shows_as_much_as_was_asked_for(up: CrumbUp, client: Client, name: str) -> None:
    session = client.session(name)
    for number in range(3):
        session.say(f"say: number {number}")
    with Person(up, "--session", name) as person:
        person.at_prompt(name)
        assert "you: say: number 2" in person.screen  # what was said last is shown at the start
        shown = person.says("/history 2", name)
        assert "number 2" in shown and "number 1" not in shown
        assert "you: say: number 0" in person.says("/history", name)
        assert "takes a number" in person.says("/history many", name)


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(up: CrumbUp, client: Client, name: str) -> None:
    with Person(up, "--session", name) as person:
        person.at_prompt(name)
        person.types(SLOW)
        person.reads(BEGUN)
        person.types(CTRL_C, enter=False)
        person.reads("cancelled")
        person.at_prompt(name)
        shown = person.says("say: still here", name)
        assert "say: still here" in shown and "not answered" not in shown  # that was said already
        person.types(CTRL_D, enter=False)
        assert person.ends() == 0
    roles = [(message.role, message.text) for message in client.session(name).messages()]
    assert roles == [("user", SLOW), ("user", "say: still here"), ("agent", "still here")]
    schemas = [crumb.schema_name for crumb in client.list(session=name)]
    assert schemas.count("agent.cancel.v1") == 1 and schemas.count("agent.error.v1") == 1


def test_ctrl_c_twice_leaves(up: CrumbUp, name: str) -> None:
    with Person(up, "--session", name) as person:
        person.at_prompt(name)
        person.types("half a line", enter=False)
        person.reads("half a line")
        person.types(CTRL_C, enter=False)
        person.reads("leaves")
        person.at_prompt(name)
        person.says("say: a line in between", name)
        person.types(CTRL_C, enter=False)
        person.reads("leaves")
        person.at_prompt(name)
        person.types(CTRL_C, enter=False)
        assert person.ends() == 130
        assert "Traceback" not in person.raw


def test_ctrl_c_after_an_answer_was_stopped_leaves(up: CrumbUp, name: str) -> None:
    with Person(up, "--session", name) as person:
        person.at_prompt(name)
        person.types(SLOW)
        person.reads(BEGUN)
        person.types(CTRL_C, enter=False)
        person.reads("cancelled")
        person.at_prompt(name)
        person.types(CTRL_C, enter=False)
        assert person.ends() == 130


def test_the_arrow_brings_the_last_line_back(up: CrumbUp, name: str) -> None:
    with Person(up, "--session", name) as person:
        person.at_prompt(name)
        person.says("say: again", name)
        person.types(UP)
        person.at_prompt(name)
        person.reads("say: again")
    with Client(up.url) as client:
        said = [message.text for message in client.session(name).messages() if message.role == "user"]
    assert said == ["say: again"] * 2


def test_what_others_said_meanwhile_is_shown_with_the_next_turn(
    up: CrumbUp, client: Client, name: str
) -> None:
    with Person(up, "--session", name) as person:
        person.at_prompt(name)
        person.says("say: mine", name)
        client.session(name).say("say: from elsewhere")
        shown = person.says("say: mine again", name)
        assert "somebody: say: from elsewhere" in shown
        assert "default-chat-assistant: from elsewhere" in shown
        assert shown.index("from elsewhere") < shown.rindex("mine again")


def test_what_a_switch_has_shown_is_not_shown_again_with_the_next_turn(
    up: CrumbUp, client: Client, name: str
) -> None:
    with Person(up, "--session", name) as person:
        person.at_prompt(name)
        person.says("say: mine", name)
        person.says(f"/new {name}-2", f"{name}-2")
        client.session(name).say("say: from elsewhere")
        assert "from elsewhere" in person.says(f"/switch {name}", name)
        assert "from elsewhere" not in person.says("say: mine again", name)


def test_an_error_of_an_agent_is_shown_in_words_and_the_chat_goes_on(
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
    with Person(up, "--session", name, CRUMB_TOKEN=token) as person:
        person.at_prompt(name)
        shown = person.says("Hello", name)
        assert "no answer:" in shown and "OPENAI_API_KEY" in shown
        assert "Traceback" not in shown
        assert "there is no command /nonsense" in person.says("/nonsense", name)
        assert "/sessions" in person.says("/help", name)
        assert "say which" in person.says("/switch", name)


def test_nothing_in_a_message_can_steer_the_terminal(up: CrumbUp, client: Client, name: str) -> None:
    client.post("evil \x1b]0;title\x07 \x1b[31mred", name)
    with Person(up, "--session", name) as person:
        person.at_prompt(name)
        person.says("/sessions", name)
        assert "\x1b]0;title" not in person.raw and "\\x1b]0;title" in person.raw


def test_a_server_that_restarts_in_the_middle_of_an_answer_is_waited_for(tmp_path: Path) -> None:
    with (
        CrumbUp(tmp_path, CRUMB_MODELS='{"offline_delay": 0.02}') as server,
        Person(server, "-s", "r") as person,
    ):
        person.at_prompt("r")
        person.types(" ".join(f"w{number}" for number in range(100)))
        person.reads(BEGUN)
        server.stop()
        person.reads("connection lost")
        server.start()
        person.reads("connected again")
        person.at_prompt("r")
        assert "w99" in person.screen and person.screen.count("connection lost") == 1
        with Client(server.url) as client:
            assert [message.role for message in client.session("r").messages()] == ["user", "agent"]


# In a pipe


def test_in_a_pipe_lines_are_messages_and_only_answers_are_printed(up: CrumbUp, name: str) -> None:
    ended = piped(up, "--session", name, input="Hello session a\n\nWhat is 6 * 7?\n")
    assert ended.returncode == 0 and ended.stderr == ""
    assert ended.stdout.splitlines()[0] == 'Hello! You wrote: "Hello session a"'
    assert "42" in ended.stdout.splitlines()[-1]
    assert "\x1b" not in ended.stdout and "calculator" not in ended.stdout.splitlines()[-1]
    again = piped(up, "--session", name, input="What did I say?")
    assert "Hello session a" in again.stdout


def test_a_message_that_begins_with_a_slash_is_sent_with_two(up: CrumbUp, client: Client, name: str) -> None:
    ended = piped(up, "--session", name, input="//etc/hosts\n/etc/hosts\n")
    assert ended.returncode == 1 and "there is no command /etc/hosts" in ended.stderr
    assert [m.text for m in client.session(name).messages() if m.role == "user"] == ["/etc/hosts"]


def test_a_new_session_is_not_one_that_is_there_already(up: CrumbUp, client: Client, name: str) -> None:
    client.session(name).say("say: mine")
    ended = piped(up, "--session", f"{name}-2", input=f"/new {name}\nsay: hi\n")
    assert ended.returncode == 1 and f"/switch {name} enters it" in ended.stderr
    assert [m.text for m in client.session(name).messages()] == ["say: mine", "mine"]


def test_commands_work_in_a_pipe_too(up: CrumbUp, name: str) -> None:
    ended = piped(up, input=f"/new {name}\nsay: hi\n/history\n/sessions\n/quit\nnot read\n")
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[:3] == ["hi", "you: say: hi", "default-chat-assistant: hi"]
    assert any(line.startswith(f"* {name[:39]}") for line in ended.stdout.splitlines())


def test_in_a_pipe_ctrl_c_stops_the_answer_and_ends(up: CrumbUp, client: Client, name: str) -> None:
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
    process.stdin.write(SLOW + "\n")
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
    ("arguments", "code", "says"),
    [
        (("--url", "http://127.0.0.1:9"), 1, "nothing answers at http://127.0.0.1:9"),
        (("--url", "nonsense"), 1, "is not an address"),
        (("--token", "a.b.c"), 1, "--token"),
        (("--session", "two\nlines"), 1, "session"),
    ],
)
def test_what_keeps_it_from_starting_is_said_in_words(
    up: CrumbUp, arguments: tuple[str, ...], code: int, says: str
) -> None:
    ended = piped(up, *arguments, input="Hello\n")
    assert ended.returncode == code
    assert says in ended.stderr and "Traceback" not in ended.stderr and ended.stdout == ""
