"""`crumb ask` and the other commands of `crumb` against a running server."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from breadcrumbs import Client
from breadcrumbs.cli.app import app
from tests.client.support import CRUMB, CrumbUp, environment

LIMIT = 60.0
LONG_MESSAGE = " ".join(f"w{number}" for number in range(300))


@pytest.fixture
def client(up: CrumbUp) -> Iterator[Client]:
    with Client(up.url) as made:
        yield made


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(up: CrumbUp, *arguments: str, input: str | bytes | None = None, **variables: str) -> Done:
    """Run a command in this process. It finds the server by `CRUMB_PORT` only."""
    ours: dict[str, str | None] = {name: None for name in os.environ if name.upper().startswith("CRUMB_")}
    port = {"CRUMB_PORT": up.url.rpartition(":")[2]}
    with contextlib.chdir(up.folder):
        done = CliRunner().invoke(app, arguments, input=input, env={**ours, **port, **variables})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


def read_json(up: CrumbUp, *arguments: str) -> Any:
    done = run(up, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def at_terminal(up: CrumbUp, *arguments: str, **variables: str) -> str:
    """Return what a command shows on a terminal with 80 columns."""
    terminal, inner = pty.openpty()
    settings = {"CRUMB_URL": up.url, "COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"} | variables
    process = subprocess.Popen(
        [CRUMB, *arguments],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=environment(**settings),
        cwd=up.folder,
    )
    os.close(inner)
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:  # the process has closed the terminal
        pass
    os.close(terminal)
    assert process.wait(LIMIT) == 0, shown
    return shown.decode().replace("\r\n", "\n")


# ask


def test_an_answer_is_all_that_ask_prints_on_standard_output(up: CrumbUp, client: Client, name: str) -> None:
    done = run(up, "ask", "say: exactly this", "--session", name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "exactly this\n", "")
    again = run(up, "ask", "What did I say?", "-s", name)
    assert "exactly this" in again.stdout
    assert client.session(name).messages()[0].text == "say: exactly this"


def test_each_question_without_a_session_starts_a_new_one(up: CrumbUp) -> None:
    assert run(up, "ask", "Hello").returncode == 0
    assert "nothing before this" in run(up, "ask", "What did I say?").stdout


def test_text_from_a_pipe_is_added_to_the_question(up: CrumbUp, client: Client, name: str) -> None:
    assert run(up, "ask", "Summarize this", "-s", name, input="two\nlines\n").returncode == 0
    assert run(up, "ask", "-s", name, input="only this\n").returncode == 0
    said = [message.text for message in client.session(name).messages() if message.role == "user"]
    assert said == ["Summarize this\n\ntwo\nlines", "only this"]


def test_ask_without_a_question_or_with_binary_input_is_a_usage_error(up: CrumbUp) -> None:
    done = run(up, "ask")
    assert (done.returncode, done.stdout) == (2, "") and "no question" in done.stderr
    done = run(up, "ask", "Summarize", input=b"\xff\xfe")
    assert (done.returncode, done.stdout) == (2, "") and "UTF-8" in done.stderr


def test_ask_reports_why_there_is_no_answer(up: CrumbUp, name: str) -> None:
    done = run(up, "ask", LONG_MESSAGE, "-s", name, "--timeout", "0.5")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("crumb: no answer: ") and name in done.stderr
    done = run(up, "ask", "Hello", CRUMB_PORT="9")
    assert (done.returncode, done.stdout) == (1, "") and "crumb up" in done.stderr


def test_ctrl_c_cancels_the_question(up: CrumbUp, client: Client, name: str) -> None:
    process = subprocess.Popen(
        [CRUMB, "ask", LONG_MESSAGE, "--session", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=up.folder,
        env=environment(CRUMB_URL=up.url),
    )
    deadline = time.monotonic() + LIMIT
    while not list(client.list(session=name, schema_name="agent.context.v1")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, out, errors) == (130, "", "")
    while not (found := list(client.list(session=name, schema_name="agent.error.v1"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert found[0].context["error"] == "cancelled"


def test_ask_at_a_terminal_streams_and_names_the_session(up: CrumbUp) -> None:
    shown = at_terminal(up, "ask", "say: one two three four", TERM="xterm")
    assert shown.count("one two") > 1  # the answer was shown while it was written
    assert "continue with: crumb ask --session ask-" in shown


# Users


def test_a_user_sees_only_own_sessions(up: CrumbUp, client: Client, name: str) -> None:
    assert run(up, "ask", "say: hi", "--user", f"ann-{name}", "-s", name).stdout == "hi\n"
    assert client.request("GET", f"/sessions/{name}").json()["user_id"] == f"ann-{name}"
    done = run(up, "chat", "--user", f"bob-{name}", "-s", name, input="say: mine now\n")
    assert done.returncode == 1 and "not found" in done.stderr
    assert run(up, "chat", "--user", f"ann-{name}", "-s", name, input="say: again\n").stdout == "again\n"


def test_the_scope_user_can_be_tried_with_the_option_user(tmp_path: Path) -> None:
    config = tmp_path / "context.json"
    source = {
        "schema_name": "user.message.v1",
        "fetch": {"method": "recent", "limit": 20, "conversation_scope": "user"},
    }
    config.write_text(
        json.dumps(
            {
                "consumer_id": "default-chat-assistant",
                "update_triggers": [{"schema_name": "user.message.v1"}],
                "sources": [{"key": "earlier", **source}],
            }
        )
    )
    with CrumbUp(tmp_path, CRUMB_CONTEXT_CONFIG=str(config)) as own:
        for user, session in (("ann", "monday"), ("ann", "tuesday"), ("bob", "friday")):
            done = run(own, "ask", f"{user} likes green", "--user", user, "-s", session)
            assert done.returncode == 0, done.stderr
        places = {
            session: {item["excerpt"] for item in read_json(own, "context", "explain", session)["items"]}
            for session in ("tuesday", "friday")
        }
        sessions = [
            item.get("session_id") for item in read_json(own, "context", "explain", "tuesday")["items"]
        ]
    assert places == {"tuesday": {"ann likes green"}, "friday": {"bob likes green"}}
    assert "monday" in sessions


# The address of the server


def test_every_command_finds_the_server_by_its_port(up: CrumbUp, client: Client, name: str) -> None:
    client.session(name).say("say: something")
    explained = read_json(up, "context", "explain", name)
    assert explained["session_id"] == name and explained["items"][-1]["excerpt"] == "say: something"
    assert read_json(up, "sessions", "show", name)["id"] == name
    assert read_json(up, "context", "diff", name, f"{name}@1")["stayed"] == 1
    parts = read_json(up, "context", "explain", name, "--parts")
    assert parts["parts"][0]["items"][0]["content"] == {"message": "say: something"}
    assert parts["parts_are_as_shown_then"] is True and parts["parts_gone"] == []
    port = up.url.rpartition(":")[2]
    elsewhere = run(up, "context", "explain", name, "--url", "http://127.0.0.1:9", CRUMB_PORT=port)
    assert elsewhere.returncode == 1 and "no server at http://127.0.0.1:9" in elsewhere.stderr
    both = run(up, "context", "explain", name, "--url", up.url, "--data", "x")
    assert both.returncode == 2 and "use one of them" in both.stderr
    invalid = run(up, "list", CRUMB_PORT="many")
    assert invalid.returncode == 1 and "'many'" in invalid.stderr


def test_a_cut_page_is_explained_by_the_server_as_by_the_store(
    up: CrumbUp, client: Client, name: str
) -> None:
    page = {"url": "https://example.org/", "text": "A sentence about zebras. " * 1000}
    client.create(schema_name="page.content.v1", title="A long page", session=name, context=page)
    client.session(name).say("say: what is on the page?")
    (shown,) = (item for item in read_json(up, "context", "explain", name)["items"] if "cut" in item)
    assert shown["cut"]["of"] == len(page["text"]) > shown["cut"]["kept"]
    for where in ((), ("--data", str(up.data))):
        assert "attached: A long page (cut to" in at_terminal(up, "context", "explain", name, *where)


def test_check_compares_a_config_with_the_names_of_the_server(up: CrumbUp, tmp_path: Path) -> None:
    file = tmp_path / "context.json"
    config = {
        "consumer_id": "unread",
        "update_triggers": [{"schema_name": "user.message.v1"}],
        "sources": [{"key": "conversation", "schema_name": "user.message.v1"}],
    }
    file.write_text(json.dumps(config))
    (warning,) = read_json(up, "context", "check", str(file))["warnings"]
    assert warning["where"] == "consumer_id" and "no agent of this server reads" in warning["message"]
    assert run(up, "context", "check", str(file), CRUMB_PORT="9").returncode == 0, "no server is needed"
    named = run(up, "context", "check", str(file), "--url", "http://127.0.0.1:9")
    assert named.returncode == 1 and "no server at http://127.0.0.1:9" in named.stderr


def test_the_settings_file_names_the_port(up: CrumbUp, name: str, tmp_path: Path) -> None:
    file = tmp_path / "crumb.toml"
    file.write_text(f"host = '0.0.0.0'\nport = {up.url.rpartition(':')[2]}\n")
    arguments = ("ask", "say: found it", "-s", name)
    assert run(up, *arguments, CRUMB_CONFIG=str(file), CRUMB_PORT="").stdout == "found it\n"
    assert run(up, *arguments, CRUMB_CONFIG=str(tmp_path / "none.toml")).returncode == 1


def test_a_context_of_the_server_and_of_the_store_is_the_same(
    up: CrumbUp, client: Client, name: str, tmp_path: Path
) -> None:
    for number in range(3):
        client.session(name).say(f"say: {number}")
    store = ("--data", str(up.data))
    assert read_json(up, "context", "explain", name) == read_json(up, "context", "explain", name, *store)
    assert read_json(up, "context", "diff", f"{name}@1", name) == read_json(
        up, "context", "diff", f"{name}@1", name, *store
    )
    config = tmp_path / "context.json"
    config.write_text(
        json.dumps(
            {
                "consumer_id": "default-chat-assistant",
                "update_triggers": [{"schema_name": "user.message.v1"}],
                "sources": [
                    {"key": "c", "schema_name": "user.message.v1", "fetch": {"method": "recent", "limit": 2}}
                ],
            }
        )
    )
    preview = ("context", "preview", "--session", name, "--config", str(config), "--diff")
    assert read_json(up, *preview) == read_json(up, *preview, *store)


# Ids


def test_the_beginning_of_an_id_is_enough(up: CrumbUp, client: Client, name: str) -> None:
    posted = client.create("note.v1", {"n": 1}, tags=[f"session:{name}"])
    answer = client.session(name).say("say: yes")
    message = client.session(name).messages()[0].id
    assert read_json(up, "get", answer.id[:13])["id"] == answer.id
    assert [version["version"] for version in read_json(up, "history", answer.id[:18].upper())] == [1]
    assert read_json(up, "sessions", "show", name[:-3])["id"] == name
    assert read_json(up, "sessions", "fork", name[:-3], "--message", message[:18])["counts"]["messages"] == 1
    context = read_json(up, "context", "explain", name)["context_id"]
    assert read_json(up, "context", "explain", context[:12])["context_id"] == context
    assert read_json(up, "delete", posted.id[:23], "--yes") == [{"id": posted.id, "deleted": True}]


def test_a_text_that_cannot_be_an_id_is_a_usage_error_with_the_rule(up: CrumbUp) -> None:
    for text in ("01a", "zzzz"):
        refused = run(up, "get", text)
        assert refused.returncode == 2 and "at least 4 characters" in refused.stderr


def test_an_ambiguous_beginning_lists_the_candidates(up: CrumbUp, client: Client, name: str) -> None:
    for end in "ab":
        client.session(f"{name}-{end}").say("say: yes")
    done = run(up, "sessions", "show", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"  {name}-a" in done.stderr and f"  {name}-b" in done.stderr
    messages = [client.session(f"{name}-{end}").messages()[0].id for end in "ab"]
    shared = messages[0][: next(at for at in range(36) if messages[0][at] != messages[1][at])]
    done = run(up, "delete", shared, "--yes")
    assert done.returncode == 1 and all(id in done.stderr for id in messages)
    none = run(up, "get", "ffff-ffff")
    assert none.returncode == 1 and "not found" in none.stderr


def test_a_deletion_without_confirmation_needs_whole_session_ids(
    up: CrumbUp, client: Client, name: str
) -> None:
    client.session(f"{name}-2").say("say: yes")
    done = run(up, "sessions", "delete", name, "--yes")
    assert done.returncode == 1 and "not found" in done.stderr
    assert len(client.session(f"{name}-2").messages()) == 2


# Tables


def test_lists_have_headers_and_fit_80_columns(up: CrumbUp, client: Client) -> None:
    client.session("short").say("say: a sentence that is much longer than the rest of the line permits")
    listed = at_terminal(up, "list", "--session", "short").splitlines()
    assert listed[0].split() == ["created", "id", "v", "schema", "session", "title"]
    assert max(map(len, listed)) <= 80
    assert read_json(up, "get", listed[1].split()[1])["id"].startswith(listed[1].split()[1])
    sessions = at_terminal(up, "sessions", "list", "-n", "3").splitlines()
    assert sessions[0].split("  ")[0] == "last active" and "title" in sessions[0]


def test_an_explanation_fits_80_columns(up: CrumbUp, client: Client) -> None:
    for _ in range(3):
        client.session("wide").say(
            "say: a sentence that is much longer than the rest of the line permits, really"
        )
    shown = at_terminal(up, "context", "explain", "wide")
    assert max(map(len, shown.splitlines())) <= 80
    assert "conversation  5 items" in shown and "▸ say: a sentence" in shown
    assert max(map(len, at_terminal(up, "context", "diff", "wide@1", "wide").splitlines())) <= 80


# Completion


def complete(up: CrumbUp, line: str, **variables: str) -> list[str]:
    words = line.split(" ")
    shell = {"_CRUMB_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [CRUMB],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=environment(**{"CRUMB_URL": up.url} | shell | variables),
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_the_tab_key_completes_commands_options_and_sessions(up: CrumbUp, client: Client, name: str) -> None:
    client.session(name).say("say: yes")
    id = client.session(name).messages()[0].id
    assert complete(up, "crumb sess") == ["sessions"]
    assert complete(up, "crumb ask --ti") == ["--timeout"]
    assert complete(up, f"crumb sessions show {name[:10]}") == [name]
    assert name in complete(up, f"crumb chat --session {name[:10]}")
    assert complete(up, f"crumb get {id[:20]}") == [id]


def test_completion_is_silent_without_a_server_and_offers_no_unsafe_names(
    up: CrumbUp, client: Client, name: str
) -> None:
    client.session(f"{name[:10]}$(id)").say("say: yes")
    client.session(f"{name[:10]}-safe").say("say: yes")
    assert complete(up, f"crumb sessions show {name[:10]}") == [f"{name[:10]}-safe"]
    started = time.monotonic()
    assert complete(up, "crumb sessions show ", CRUMB_URL="http://127.0.0.1:9") == []
    assert complete(up, "crumb sessions show ", CRUMB_URL="nonsense") == []
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_printed_for_each_shell(up: CrumbUp, shell: str) -> None:
    assert f"complete_{shell}" in run(up, "completion", shell).stdout
    assert f"complete_{shell}" in run(up, "completion", SHELL=f"/bin/{shell}").stdout


def test_a_real_bash_completes(up: CrumbUp, client: Client, name: str) -> None:
    client.session(name).say("say: yes")
    script = (
        'eval "$(crumb completion bash)"; COMP_WORDS=(crumb sessions show "$1"); COMP_CWORD=3; '
        '_crumb_completion crumb; echo "${COMPREPLY[@]}"'
    )
    path = f"{CRUMB.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script, "bash", name[:12]],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=environment(CRUMB_URL=up.url, PATH=path),
    )
    assert (done.stdout, done.stderr) == (f"{name}\n", "")
