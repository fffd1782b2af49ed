"""The first hour of a new user: `crumb init`, `crumb up`, a question, and an API key."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import tomllib
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from breadcrumbs.agents.models.providers import model_forms
from breadcrumbs.cli.app import app
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.settings.settings import DEVELOPER, load_settings
from tests.support.commands import CRUMB, ask, environment, server
from tests.support.servers import free_port

FILES = ["crumb.toml", "context.json", "agents/assistant.json", "project_tools.py"]
FILES += ["tests/test_assistant.py", ".gitignore"]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRUMB_PORT", str(free_port()))  # commands must not find the server of another test
    for name in ("CRUMB_CONFIG", "CRUMB_API_KEYS", "CRUMB_LAUNCHER", "CRUMB_HOST"):
        monkeypatch.delenv(name, raising=False)


def crumb(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


# crumb init


def test_a_new_project_answers_with_its_own_tool(tmp_path: Path) -> None:
    created = crumb("init", "project")
    assert created.exit_code == 0 and json.loads(created.stdout)["files"] == FILES
    with server(tmp_path / "project") as ready:
        assert ready["model"] == "offline"
        assert Path(ready["data"]).parent == tmp_path / "project"
        answered = ask(ready["url"], 'use word_count {"text": "one two three"}')
        assert "3" in answered["answer"]["text"]
        assert answered["answer"]["agent_id"] == "assistant"
        used = httpx.get(f"{ready['url']}/breadcrumbs?schema_name=tool.response.v1", trust_env=False).json()
        (response,) = used if isinstance(used, list) else used["items"]
        read = httpx.get(f"{ready['url']}/breadcrumbs/{response['id']}/full", trust_env=False).json()
        assert (read["context"]["tool"], read["context"]["output"]) == ("word_count", 3)


def test_a_project_is_not_overwritten_without_force() -> None:
    assert crumb("init", "project").exit_code == 0
    tool = Path("project/project_tools.py")
    tool.write_text("mine", "utf-8")
    Path("project/crumb.toml").unlink()
    refused = crumb("init", "project")
    assert refused.exit_code == 2
    assert "project_tools.py" in refused.stderr and "--force" in refused.stderr
    assert tool.read_text("utf-8") == "mine" and not Path("project/crumb.toml").exists()
    assert crumb("init", "project", "--force").exit_code == 0
    assert "word_count" in tool.read_text("utf-8")


def test_a_file_in_place_of_the_folder_is_an_error_without_a_traceback() -> None:
    Path("project").write_text("", "utf-8")
    result = crumb("init", "project")
    assert result.exit_code == 1 and "cannot write" in result.stderr and "Traceback" not in result.stderr


def test_the_settings_of_a_new_project_have_the_chosen_model_and_valid_comments() -> None:
    assert crumb("init", ".", "--model", "ollama:llama3.2").exit_code == 0
    text = Path("crumb.toml").read_text("utf-8")
    assert tomllib.loads(text)["model"] == "ollama:llama3.2"
    commented = text.partition("# [models]")
    settings = re.sub(r"^# ?", "", "".join(commented[1:]), flags=re.MULTILINE)
    Path("crumb.toml").write_text(commented[0] + settings, "utf-8")
    assert load_settings().models["offered"] == ["ollama:llama3.2"]


def test_an_attached_page_reaches_the_agent_of_a_new_project() -> None:
    assert crumb("init", "project").exit_code == 0
    config = json.loads(Path("project/context.json").read_text("utf-8"))
    (pages,) = [source for source in config["sources"] if source["schema_name"] == "page.content.v1"]
    assert pages["max_tokens"] < config["formatting"]["max_tokens"]
    checked = crumb("context", "check", "project/context.json", "--strict", "--json")
    assert checked.exit_code == 0, checked.output


# crumb keys new


def test_a_new_key_is_required_and_accepted_after_it_was_added(tmp_path: Path) -> None:
    created = crumb("keys", "new", "--add", "--name", "chät")
    assert created.exit_code == 0
    entry = json.loads(created.stdout)
    assert Path("crumb.toml").stat().st_mode & 0o077 == 0
    assert entry["key"] not in Path("crumb.toml").read_text("utf-8")
    with server(tmp_path, "--data", str(tmp_path / "data")) as ready:
        assert ready["mode"] == "keys"
        refused = httpx.get(f"{ready['url']}/sessions", trust_env=False)
        assert refused.status_code == 401
        assert ask(ready["url"], "Hello", **{"x-api-key": entry["key"]})["answer"]["text"]
    assert entry["key"] not in (tmp_path / "log").read_text("utf-8")


def test_a_key_has_the_requested_fields_and_the_owner_of_the_other_keys() -> None:
    first = json.loads(crumb("keys", "new", "--add", "--owner", "new").stdout)
    agent = "5f1c6f0e-0000-4000-8000-000000000002"
    arguments = ("keys", "new", "--add", "--agent-id", agent, "--roles", "emitter,subscriber")
    second = json.loads(crumb(*arguments).stdout)
    assert second["owner_id"] == first["owner_id"] != str(DEVELOPER)
    (_, read) = load_settings().api_keys
    assert read.key is None and read.digest == sha256(second["key"].encode()).digest()
    assert second["key"] != first["key"] and second["key_sha256"] == read.key_sha256
    assert (str(read.agent_id), read.roles) == (agent, ("emitter", "subscriber"))


def test_the_first_key_has_the_owner_of_development_mode_and_changes_no_file() -> None:
    entry = json.loads(crumb("keys", "new").stdout)
    assert entry["owner_id"] == str(DEVELOPER)
    assert list(Path().iterdir()) == []


def test_a_settings_file_with_keys_in_another_form_is_not_changed() -> None:
    text = f'api_keys = [{{ key = "0123456789abcdef", owner_id = "{DEVELOPER}" }}]\n'
    Path("crumb.toml").write_text(text, "utf-8")
    refused = crumb("keys", "new", "--add")
    assert refused.exit_code == 1 and "[[api_keys]]" in refused.stderr
    assert Path("crumb.toml").read_text("utf-8") == text


def test_a_key_is_not_added_to_a_file_that_the_environment_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRUMB_API_KEYS", f'[{{"key": "0123456789abcdef", "owner_id": "{DEVELOPER}"}}]')
    assert crumb("keys", "new", "--add").exit_code == 2
    assert not Path("crumb.toml").exists()


def test_a_project_that_is_committed_after_the_tutorial_contains_no_secret() -> None:
    """`git add -A` of a new project with an added key must not store the key."""
    assert crumb("init", "project").exit_code == 0
    os.chdir("project")
    key = json.loads(crumb("keys", "new", "--add").stdout)["key"]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "-A"], check=True)
    staged = subprocess.run(["git", "grep", "--cached", "-F", key], capture_output=True, check=False)
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout
    assert staged.returncode == 1 and staged.stdout == b""
    assert "crumb.toml" in listed.split()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"key": "0123456789abcdef", "key_sha256": "0" * 64},
        {"key_sha256": "0" * 63},
        {"key_sha256": "G" * 64},
    ],
)
def test_an_api_key_has_either_a_key_or_a_hash(
    fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRUMB_API_KEYS", json.dumps([{"owner_id": str(DEVELOPER), **fields}]))
    with pytest.raises(StartupError, match=r"key_sha256|at least 16"):
        load_settings()


# Output on a terminal


def on_a_terminal(folder: Path, *arguments: str, until: str | None = None) -> str:
    """Run a command on a terminal and return its output. With `until`, end the command after this text."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [CRUMB, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=folder,
        env=environment(TERM="dumb", COLUMNS="200", NO_COLOR="1"),
    )
    os.close(terminal)
    shown = b""
    while until is None or until.encode() not in shown:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # the other end is closed
            break
        shown += piece
        if not piece:
            break
    process.terminate()
    process.wait(30)
    os.close(controller)
    return shown.decode()


def test_the_banner_names_the_model_and_how_to_choose_a_real_one(tmp_path: Path) -> None:
    arguments = ("up", "--port", "0", "--data", str(tmp_path / "data"))
    offline = on_a_terminal(tmp_path, *arguments, until="Press Ctrl-C")
    lines = offline.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.strip().startswith("model ")]
    assert "offline" in lines[place] and "crumb up --model ollama:llama3.2" in lines[place + 1]
    assert "crumb model list" in lines[place + 2]
    (tmp_path / "crumb.toml").write_text('[models.aliases]\nhouse = "ollama:llama3.2"\n', "utf-8")
    real = on_a_terminal(tmp_path, *arguments, "--model", "house", until="Press Ctrl-C")
    assert "house (ollama:llama3.2)" in real and "crumb model list" not in real


def test_the_help_of_up_and_run_agents_lists_every_form() -> None:
    for name in ("up", "run-agents"):
        shown = crumb(name, "--help").output
        assert [form.example for form in model_forms() if form.example not in shown] == []
        assert "OPENAI_API_KEY" in shown and "crumb model check" in shown


def test_a_person_sees_the_next_commands_of_a_new_project_and_how_to_use_a_key(tmp_path: Path) -> None:
    created = on_a_terminal(tmp_path, "init", "project")
    assert "cd project" in created and "crumb up" in created and "crumb model list" in created
    key = on_a_terminal(tmp_path, "keys", "new")
    assert "[[api_keys]]" in key and "export CRUMB_API_KEY=crumb_" in key and "CRUMB_API_KEYS='[{" in key


def test_a_person_sees_the_problem_of_a_model_and_the_next_step(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        shown = on_a_terminal(tmp_path, "model", "check", f"http://127.0.0.1:{port}/v1#m")
    assert "server not reachable" in shown and "Start the model server" in shown
    works = on_a_terminal(tmp_path, "model", "check")
    assert "offline answers" in works and "crumb up --model offline" in works
