"""The command line itself: help, exit codes, errors in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_group
from typer.testing import CliRunner, Result

from breadcrumbs import __version__
from breadcrumbs.cli.app import app
from breadcrumbs.cli.id_prefixes import unique_length
from breadcrumbs.cli.program import MODULES, build_program, modules_for
from breadcrumbs.cli.server_url import server_url

COMMANDS = list(get_group(app).commands)
PROMISED = {
    "up", "serve", "post", "get", "list", "tail", "history", "delete", "token", "export", "import", "doctor",
    "version", "model", "models", "init", "keys", "chat", "ask", "completion", "config", "verify", "feedback", "replay",
    "workers", "usage", "run-agents", "run-tools",
}  # fmt: skip
NOBODY = "http://127.0.0.1:9"
ID = "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRUMB_URL", NOBODY)
    for name in (
        "CRUMB_REDIS",
        "CRUMB_DATA",
        "CRUMB_TOKEN",
        "CRUMB_API_KEY",
        "CRUMB_CONFIG",
        "CRUMB_LAUNCHER",
        "CRUMB_HOST",
        "CRUMB_PORT",
    ):
        monkeypatch.delenv(name, raising=False)


def crumb(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=input)


def test_each_module_has_the_commands_that_the_program_expects_there() -> None:
    assert [name for names in MODULES.values() for name in names] == COMMANDS
    for module, names in MODULES.items():
        assert list(get_group(build_program([module])).commands) == list(names)


def test_a_command_line_loads_the_module_of_its_command_or_all() -> None:
    assert list(modules_for(["post", "hello"])) == ["crumbs"]
    for arguments in ([], ["--help"], ["nope"], ["--version", "post"]):
        assert list(modules_for(arguments)) == list(MODULES)


def test_the_help_lists_every_command() -> None:
    shown = crumb("--help").stdout
    assert re.findall(r"^  ([\w-]+) ", shown.partition("Commands:")[2], re.MULTILINE) == COMMANDS
    assert set(COMMANDS) >= PROMISED


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    result = crumb(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"^  .*crumb {command}", result.stdout.partition("\n")[2], re.MULTILINE)
    assert "Traceback" not in result.output


def test_the_declarations_load_neither_the_client_nor_the_server() -> None:
    heavy = "{'anyio', 'asyncio', 'httpx', 'orjson', 'pydantic', 'redis', 'rich', 'breadcrumbs.runtime.store.store'}"
    check = f"import sys, breadcrumbs.cli.app; print(sorted({heavy} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_no_command_shows_the_help_and_is_a_usage_error() -> None:
    result = crumb()
    assert result.exit_code == 2 and "Commands:" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("get",),
        ("get", ID, "--nonsense"),
        ("list", "--limit", "0"),
        ("list", "--since", "a while"),
        ("post",),
        ("post", "a", "--context", "{"),
        ("delete", ID),
        ("token", "--owner", "me"),
        ("token", "--ttl", "long"),
        ("export", "--owner", "me"),
        ("model", "check", "no-such-model"),
        ("init", "--model", "no-such-model"),
        ("keys", "new", "--roles", "admin"),
        ("keys", "new", "--agent-id", "me"),
        ("keys", "new", "--owner", "me"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_no_traceback(arguments: tuple[str, ...]) -> None:
    result = crumb(*arguments)
    assert result.exit_code == 2
    assert result.stdout == "" and result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("post", "hello"),
        ("get", ID),
        ("list",),
        ("tail",),
        ("history", ID),
        ("delete", ID, "--yes"),
        ("token",),
    ],
)
def test_without_a_server_a_command_explains_how_to_start_one(arguments: tuple[str, ...]) -> None:
    result = crumb(*arguments)
    assert result.exit_code == 1
    assert "crumb up" in result.stderr and NOBODY in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_advice_names_the_launcher_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRUMB_LAUNCHER", "./crumb")
    assert "./crumb up" in crumb("list").stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("up", "--port", "70000"), "port"),
        (("up", "--log-level", "loud"), "log_level"),
        (("up", "--host", "0.0.0.0"), "CRUMB_API_KEYS"),
        (("up", "--host", "203.0.113.1"), "CRUMB_API_KEYS"),
        (("up", "--config", "missing.toml"), "missing.toml"),
        (("up", "--redis", "http://x"), "rediss://"),
        (("serve",), "--redis"),
        (("export", "--data", "nothing-here"), "no data in"),
        (("import", "missing.jsonl"), "missing.jsonl"),
        (("export", "--redis", "redis://127.0.0.1:9"), "cannot be used"),
        (("serve", "--redis", "redis://127.0.0.1:9", "--port", "0"), "cannot be used"),
        (("get", ID, "--url", "127.0.0.1:8081"), "not an address"),
    ],
)
def test_invalid_options_are_reported_before_anything_starts(arguments: tuple[str, ...], says: str) -> None:
    result = crumb(*arguments)
    assert result.exit_code == 1
    assert result.stdout == "" and says in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [("post", "caf\udce9"), ("get", "\udcff"), ("list", "--session", "\udcff"), ("tail", "-t", "\udcff")],
)
def test_arguments_that_are_not_utf_8_are_refused(arguments: tuple[str, ...]) -> None:
    result = crumb(*arguments)
    assert result.exit_code == 2 and "UTF-8" in result.stderr


def test_standard_input_that_is_not_utf_8_is_refused() -> None:
    result = CliRunner().invoke(app, ["post", "-"], input=b"\xff")
    assert result.exit_code == 2 and "UTF-8" in result.stderr


def test_an_export_of_a_missing_store_creates_no_directory(tmp_path: Path) -> None:
    crumb("export", "--data", str(tmp_path / "new"))
    crumb("doctor", "--data", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_the_version_is_json_in_a_pipe() -> None:
    result = crumb("version")
    assert result.exit_code == 0 and f'"version": "{__version__}"' in result.stdout


def test_the_option_version_prints_one_line() -> None:
    result = crumb("--version")
    assert (result.exit_code, result.stdout) == (0, f"crumb {__version__}\n")


def command_paths(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from command_paths(command, (*path, name))


@pytest.mark.parametrize("path", list(command_paths(get_group(app))), ids=" ".join)
def test_the_help_fits_80_columns_and_nothing_is_cut(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = crumb(*path, "--help").stdout
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    listed = shown.partition("Commands:")[2]
    assert "..." not in listed


def test_without_a_server_and_data_a_context_command_names_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CRUMB_URL")
    monkeypatch.setenv("CRUMB_PORT", "9")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    result = crumb("context", "explain", "demo")
    assert result.exit_code == 1 and result.stdout == ""
    assert NOBODY in result.stderr and "no data in" in result.stderr and "--url" in result.stderr


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"CRUMB_PORT": "9000"}, "http://127.0.0.1:9000"),
        ({"CRUMB_HOST": "::", "CRUMB_PORT": "9000"}, "http://[::1]:9000"),
        ({"CRUMB_HOST": "0.0.0.0"}, "http://127.0.0.1:7000"),
        ({"CRUMB_URL": "http://other", "CRUMB_PORT": "9000"}, "http://other"),
        ({}, "http://127.0.0.1:7000"),
    ],
)
def test_variables_have_priority_over_the_settings_file(
    settings: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("crumb.toml").write_text("port = 7000\n")
    monkeypatch.delenv("CRUMB_URL")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert server_url() == url


@pytest.mark.parametrize(
    ("content", "says"), [("port = 0", "--url"), ("port = 'x'", "'x'"), ("port =", "crumb.toml")]
)
def test_a_settings_file_without_a_usable_port_is_reported(
    content: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("crumb.toml").write_text(content)
    monkeypatch.delenv("CRUMB_URL")
    result = crumb("list")
    assert result.exit_code == 1 and says in result.stderr and "Traceback" not in result.stderr


def test_ids_are_shortened_to_whole_groups_that_tell_them_apart() -> None:
    first, second = "01a1eb5a-372e-7008-a4c4-6bf0011ced05", "01a1eb5a-372e-7009-a4c4-6bf0011ced05"
    assert unique_length([first]) == 13
    assert unique_length([first, second]) == 18
    assert unique_length([first, first[:-1] + "6"]) == 36


def test_doctor_reports_invalid_settings() -> None:
    Path("crumb.toml").write_text("prot = 1\n")
    result = crumb("doctor")
    assert result.exit_code == 2
    assert '"id": "settings"' in result.stdout and "prot" in result.stdout
