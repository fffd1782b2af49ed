"""Checks of the files around the code: containers, packages, documents and their examples.

The tests do not need a Docker engine. They make the checks of Compose and of a build themselves. They run the parts
that work without Docker: the server's arguments, the health check, and the build of the wheel from exactly the files
that an image would get.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4
from xml.etree import ElementTree

import httpx
import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token
from typer.testing import CliRunner

from breadcrumbs.cli.app import app
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.ttl import parse_duration
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.settings.connection_limits import ConnectionLimits
from breadcrumbs.runtime.settings.settings import DEFAULT_TTLS, Settings, load_settings
from breadcrumbs.runtime.store.batched_reads import newest_of
from breadcrumbs.runtime.store.store import Store
from tests.support.events import log_of
from tests.support.servers import Server, free_port

ROOT = Path(__file__).resolve().parents[2]
CRUMB = Path(sys.executable).parent / "crumb"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]
DOCUMENTS = [
    "README.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "deploy/README.md",
    "examples/README.md",
    "extension/README.md",
    *sorted(str(file.relative_to(ROOT)) for file in (ROOT / "docs").rglob("*.md")),
]


# --- docker-compose.yml ----------------------------------------------------------------------------------

SERVICE_KEYS = {
    "build", "image", "command", "environment", "ports", "volumes", "depends_on", "healthcheck", "read_only",
    "tmpfs", "cap_drop", "security_opt", "restart", "stop_grace_period", "deploy",
}  # fmt: skip
VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?:(?P<operator>:?[-?])(?P<rest>[^}]*))?\})")


class _StrictLoader(yaml.SafeLoader):
    """YAML loader that refuses duplicate keys, like Compose. PyYAML would use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"duplicate key: {keys}"
        return super().construct_mapping(node, deep)


def interpolate(value: Any, environment: dict[str, str]) -> Any:
    """Replace `${NAME:?message}` and `${NAME:-default}` as Compose does."""
    if isinstance(value, dict):
        return {key: interpolate(item, environment) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolate(item, environment) for item in value]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        given = environment.get(found["name"])
        operator = found["operator"] or ""
        missing = not given if operator.startswith(":") else given is None
        if missing and operator.endswith("?"):
            raise LookupError(f"required variable {found['name']} is missing a value: {found['rest']}")
        return (found["rest"] if operator.endswith("-") else "") if missing else given or ""

    return VARIABLE.sub(fill, value)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.load((ROOT / "docker-compose.yml").read_text("utf-8"), _StrictLoader)
    return document


def test_the_compose_file_has_only_known_keys(compose: dict[str, Any]) -> None:
    assert compose.keys() == {"name", "x-worker", "services", "volumes"}
    assert compose["services"].keys() == {"redis", "api", "context-builder", "agent-runner"}
    for name, service in compose["services"].items():
        assert not service.keys() - SERVICE_KEYS, name
        assert "build" in service or "image" in service, name


def test_services_wait_for_services_that_can_become_healthy(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["api"]["depends_on"] == {"redis": {"condition": "service_healthy"}}
    for name in ("context-builder", "agent-runner"):
        assert services[name]["depends_on"]["redis"] == {"condition": "service_healthy"}
        assert services[name]["restart"] == "unless-stopped"
    assert services["agent-runner"]["deploy"] == {"replicas": 2}
    for name, service in services.items():
        if name in ("context-builder", "agent-runner"):
            continue  # they have no port; other workers take over the lanes of a failed one
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL"), name
        for key in ("interval", "timeout", "start_period"):
            assert re.fullmatch(r"\d+s", service["healthcheck"][key]), (name, key)
        assert service["restart"] == "unless-stopped"


def test_the_settings_of_the_workers_are_valid_and_their_commands_exist(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, expected in (("context-builder", "build-contexts"), ("agent-runner", "run-agents")):
        service = interpolate(compose, {"CRUMB_API_KEYS": "unused"})["services"][name]
        assert service["command"] == [expected]
        for variable, value in service["environment"].items():
            monkeypatch.setenv(variable, value)
        settings = load_settings()
        assert settings.redis == "redis://redis:6379/0"
        assert settings.model == "offline"
        mounted, inside, mode = service["volumes"][0].split(":")
        assert mode == "ro"
        assert settings.context_config is not None
        assert (ROOT / mounted / settings.context_config.relative_to(inside)).is_file()


def test_redis_keeps_its_data_in_a_named_volume_and_cannot_be_reached_from_outside(
    compose: dict[str, Any],
) -> None:
    redis = compose["services"]["redis"]
    assert "ports" not in redis and "network_mode" not in redis
    (volume,) = redis["volumes"]
    name, _, target = volume.partition(":")
    assert name in compose["volumes"] and target == "/data"


def test_a_real_server_accepts_the_arguments_of_the_redis_service(compose: dict[str, Any]) -> None:
    program, *arguments = compose["services"]["redis"]["command"]
    assert program == "redis-server"
    options = dict(zip((name.removeprefix("--") for name in arguments[::2]), arguments[1::2], strict=True))
    with Server(options=options) as server:
        wanted = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "save": "",
        }
        for name, value in wanted.items():
            found = server.command("CONFIG", "GET", name)
            assert (found[name] if isinstance(found, dict) else found[1]) == value


def test_the_api_is_published_on_loopback_only(compose: dict[str, Any]) -> None:
    assert compose["services"]["api"]["ports"] == [f"127.0.0.1:{Settings().port}:{Settings().port}"]


def test_without_api_keys_compose_fails_with_a_reference_to_the_docs(compose: dict[str, Any]) -> None:
    with pytest.raises(LookupError, match=r"CRUMB_API_KEYS is missing a value: .*docs/operations\.md"):
        interpolate(compose, {})


def test_the_settings_of_the_api_service_are_valid_with_documented_keys(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (command,) = (code for info, code in fences("docs/operations.md") if info == "sh" and "> .env" in code)
    made = f"{command}\nset -a; . ./.env; set +a; printenv CRUMB_API_KEYS"
    ended = subprocess.run(["sh", "-ec", made], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    api = interpolate(compose, {"CRUMB_API_KEYS": ended.stdout.strip()})["services"]["api"]
    monkeypatch.chdir(tmp_path)
    for name, value in api["environment"].items():
        assert name.removeprefix("CRUMB_").lower() in Settings.model_fields
        monkeypatch.setenv(name, value)
    assert api["command"] == ["serve", "--host", "0.0.0.0"]
    settings = load_settings(host="0.0.0.0")
    assert not settings.development_mode
    assert settings.redis == "redis://redis:6379/0"
    monkeypatch.delenv("CRUMB_API_KEYS")
    with pytest.raises(StartupError, match="no API key is set"):
        load_settings(host="0.0.0.0")


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_of_the_api_distinguishes_ready_from_not_ready(
    compose: dict[str, Any], status: int, code: int
) -> None:
    seen: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    kind, python, *arguments = compose["services"]["api"]["healthcheck"]["test"]
    assert (kind, python) == ("CMD", "python")
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        port = f":{server.server_port}/"
        command = [sys.executable, *(argument.replace(":8081/", port) for argument in arguments)]
        ended = subprocess.run(command, capture_output=True, timeout=30, check=False)
        server.shutdown()
    assert (ended.returncode, seen) == (code, ["/ready"])


def test_the_health_check_of_redis_distinguishes_loading_from_ready(
    compose: dict[str, Any], tmp_path: Path
) -> None:
    kind, command = compose["services"]["redis"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    client = tmp_path / "redis-cli"
    for reply, code in (("PONG", 0), ("LOADING the dataset in memory", 1)):
        client.write_text(f"#!/bin/sh\necho {shlex.quote(reply)}\n")
        client.chmod(0o755)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        assert subprocess.run(["sh", "-c", command], env=environment, check=False).returncode == code


# --- Dockerfile and packages -----------------------------------------------------------------------------


def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", read("Dockerfile"), flags=re.MULTILINE).replace("\\\n", " ")
    pairs = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return [(word.upper(), rest.strip()) for word, rest in pairs]


def copied_paths() -> list[str]:
    """Return the paths that the Dockerfile copies from the repository."""
    found: list[str] = []
    for word, rest in dockerfile():
        if word == "COPY" and not rest.startswith("--from="):
            *sources, _ = rest.split()
            found += sources
    return found


def is_in_build_context(path: str) -> bool:
    """Return whether .dockerignore keeps a top-level name in the build context. The last match decides."""
    kept = True
    for line in read(".dockerignore").splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith(("#", "**/")):
            wanted = pattern.startswith("!")
            if pattern.removeprefix("!") in ("*", path):
                kept = wanted
    return kept


def test_the_dockerfile_copies_existing_paths_and_every_package() -> None:
    for name in copied_paths():
        assert (ROOT / name).exists(), name
        assert is_in_build_context(name), f".dockerignore excludes {name}"
    assert (
        not is_in_build_context(".venv")
        and not is_in_build_context(".git")
        and not is_in_build_context(".env")
    )
    folders = {Path(folder).parts[0] for folder in SETUPTOOLS["package-dir"].values()}
    assert folders <= set(copied_paths())
    assert {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]} <= set(copied_paths())


def test_the_image_runs_the_command_as_an_unprivileged_user() -> None:
    instructions = dockerfile()
    last_stage = instructions[max(n for n, (word, _) in enumerate(instructions) if word == "FROM") :]
    words = dict(last_stage)
    assert words["USER"] not in ("root", "0")
    assert json.loads(words["ENTRYPOINT"]) == ["crumb"]  # the exec form, so that signals reach the server
    assert json.loads(words["CMD"]) == ["serve", "--host", "0.0.0.0"]
    for word, rest in instructions:
        if word == "FROM":
            image = re.match(r"python:3\.(\d+)-slim", rest)
            assert image and int(image[1]) >= int(PROJECT["project"]["requires-python"].partition("3.")[2])


def package_folders() -> dict[str, Path]:
    return {name: ROOT / folder for name, folder in SETUPTOOLS["package-dir"].items()}


def test_every_package_folder_is_in_the_distribution() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted(SETUPTOOLS["package-dir"])
    listed = set(package_folders().values())
    tops = {ROOT / folder.relative_to(ROOT).parts[0] for folder in listed} | {
        file.parent for file in ROOT.glob("*/__init__.py") if file.parent.name not in ("bench", "tests")
    }
    found = {file.parent for top in tops for file in top.rglob("__init__.py")}
    assert found == listed


def data_files() -> set[Path]:
    """Return the files of the packages that are not Python.

    The page counts with its built files only, and the documentation with its texts only.
    """
    return {
        file
        for folder in package_folders().values()
        for file in (folder / "dist" if folder == ROOT / "web" else folder).rglob("*")
        if file.is_file()
        and file.suffix != ".py"
        and "__pycache__" not in file.parts
        and (folder != ROOT / "docs" or file.suffix == ".md")
    }


def owner_of(file: Path) -> Path:
    """Return the folder of the innermost package that contains a file."""
    folders = set(package_folders().values())
    return next(parent for parent in file.parents if parent in folders)


def test_every_data_file_of_a_package_is_in_the_distribution() -> None:
    matched = {
        file
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for file in package_folders()[package].glob(pattern)
    }
    assert data_files() == matched
    assert any(file.suffix == ".lua" for file in matched)


def test_type_checkers_find_every_top_level_package() -> None:
    """`typings` links to the folders, because no type checker follows the mapping of an editable install."""
    for name, folder in package_folders().items():
        if name.count(".") == 1:
            assert (ROOT / "typings" / Path(*name.split("."))).resolve() == folder, name


NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.egg-info", "node_modules")


def test_a_wheel_built_from_the_files_of_the_image_is_complete(tmp_path: Path) -> None:
    tree = tmp_path / "src"
    tree.mkdir()
    for name in copied_paths():
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=NOT_COPIED)
        else:
            shutil.copy(source, tree / name)
    wheel = build_wheel(tree, tmp_path / "dist")
    expected = {
        str(Path(*name.split("."), file.relative_to(folder)))
        for name, folder in package_folders().items()
        for file in [*folder.glob("*.py"), *(file for file in data_files() if owner_of(file) == folder)]
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"breadcrumbs-{PROJECT['project']['version']}.dist-info/"
        assert {name for name in names if not name.startswith(info)} == expected
        assert "crumb = breadcrumbs.cli:main" in archive.read(f"{info}entry_points.txt").decode()
        assert f"{info}licenses/LICENSE" in names


def build_wheel(tree: Path, out: Path) -> Path:
    """Build a wheel with uv or pip. Skip the test if setuptools cannot be downloaded."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is not None:
        command = [uv, "build", "--wheel", "--out-dir", str(out), str(tree)]
    else:
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(out), str(tree)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    if ended.returncode != 0 and re.search(r"setuptools", ended.stderr) and re.search(
        r"(?i)no matching distribution|no solution found|failed to fetch|could not find a version|connection|"
        r"not found in the package registry|network", ended.stderr
    ):  # fmt: skip
        pytest.skip("setuptools cannot be fetched here, so no wheel can be built")
    assert ended.returncode == 0, ended.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


# --- Documents -------------------------------------------------------------------------------------------

MARKDOWN = MarkdownIt("commonmark").enable("table")
FOLDERS = (
    r"(?:runtime|tests|docs|bench|breadcrumbs|context_builder|agents|config|deploy|examples|extension|typings|web|\.ci"
    r"|\.github)/"
)


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def tokens_of(name: str) -> Iterator[Token]:
    """Yield all Markdown tokens of a document, including inline tokens."""
    for token in MARKDOWN.parse(read(name)):
        yield token
        yield from token.children or ()


def fences(name: str) -> list[tuple[str, str]]:
    return [(token.info, token.content) for token in tokens_of(name) if token.type == "fence"]


def tables(name: str) -> list[list[str]]:
    """Return the rows of all tables as text."""
    rows: list[list[str]] = []
    for token in MARKDOWN.parse(read(name)):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows and token.level >= 4:
            rows[-1].append(token.content)
    return rows


def anchors(name: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a document."""
    tokens = MARKDOWN.parse(read(name))
    titles = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_paths_in_documents_exist(document: str) -> None:
    here = (ROOT / document).parent
    for token in tokens_of(document):
        target = unquote(str(token.attrGet("href") or token.attrGet("src") or ""))
        if target and not target.startswith("https://"):
            path, _, anchor = target.partition("#")
            file = here / path if path else ROOT / document
            assert file.exists(), target
            if anchor:
                assert anchor in anchors(str(file.resolve().relative_to(ROOT))), target
        if token.type == "code_inline" and re.fullmatch(FOLDERS + r"[\w./*-]*", token.content):
            assert list(ROOT.glob(token.content.rstrip("/"))), token.content


def test_the_design_follows_one_message_through_few_files_that_exist() -> None:
    text = (ROOT / "docs" / "design.md").read_text("utf-8")
    section = text.partition("## One message, file by file")[2].partition("\n## ")[0]
    files = set(re.findall(r"`([\w/.-]+\.(?:py|lua|tsx?))`", section))
    assert 30 <= len(files) <= 45
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_tests_that_the_guarantees_name_exist() -> None:
    named = re.findall(r"\[`(test_\w+)`\]\(\.\./([\w/.]+)\)", read("docs/guarantees.md"))
    assert len(named) >= 20
    for test, file in named:
        assert re.search(rf"^\s*(?:async )?def {test}\(", read(file), re.MULTILINE), f"{test} in {file}"


def test_every_lesson_has_a_test_and_every_code_in_a_test_name_is_a_lesson() -> None:
    lessons = {row[0] for row in tables("docs/guarantees.md") if re.fullmatch(r"[RPA]\d+", row[0])}
    sources = [file.read_text("utf-8") for file in (ROOT / "tests").rglob("*.py")]
    names = [name for source in sources for name in re.findall(r"def (test_\w+)", source)]
    cited = {code for name in names for code in re.findall(r"(?<=_)[RPA]\d+(?=_)", name)}
    assert len(lessons) == 36
    assert cited == lessons


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\((\d{4}-[\w-]+\.md)\)", read("docs/decisions/README.md")))
    assert listed == {file.name for file in folder.glob("[0-9]*.md")}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_contain_no_leftovers(document: str) -> None:
    text = read(document)
    assert not re.search(r"TODO|FIXME|TBD|XXX|lorem", text)
    assert not re.search("[\U0001f000-\U0001faff]", text), "an emoji"
    for info, code in fences(document):
        assert info, "a block without a language"
        if info == "json":
            json.loads(code)
        elif info == "toml":
            tomllib.loads(code)


def test_the_readme_starts_and_tests_everything_with_the_launcher() -> None:
    commands = [code.strip() for info, code in fences("README.md") if info == "sh"]
    assert "./crumb up" in commands[0].splitlines()
    assert any("./crumb test" in command.splitlines() for command in commands)
    launcher = ROOT / "crumb"
    assert launcher.is_file() and os.access(launcher, os.X_OK)
    assert subprocess.run(["sh", "-n", str(launcher)], check=False).returncode == 0


def test_the_changelog_lists_this_version() -> None:
    version = PROJECT["project"]["version"]
    assert re.search(rf"^## {re.escape(version)}\b", read("CHANGELOG.md"), re.MULTILINE)


def test_pictures_are_well_formed_and_have_descriptions() -> None:
    pictures = list((ROOT / "docs" / "img").glob("*.svg"))
    assert pictures
    for picture in pictures:
        root = ElementTree.parse(picture).getroot()
        names = [element.tag.rpartition("}")[2] for element in root]
        assert {"title", "desc", "style"} <= set(names)
        assert "prefers-color-scheme: dark" in picture.read_text("utf-8")


# --- Commands --------------------------------------------------------------------------------------------


def help_of(*command: str) -> str:
    wide = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, [*command, "--help"], prog_name="crumb", env=wide)
    assert result.exit_code == 0, f"{command}: {result.output}"
    return result.output


COMMAND = re.compile(
    r"(?:^|[\s|;(])(?:\./)?crumb "
    r"((?:context|config|audit|sessions|dead-letters|workers|model|keys|feedback) [a-z-]+|[a-z][a-z-]*)([^|;#]*)"
)


def shown_commands() -> dict[str, set[str]]:
    """Return every `crumb` command in the documents with the options that they show."""
    shown: dict[str, set[str]] = {}
    for document in DOCUMENTS:
        lines = [
            line
            for info, code in fences(document)
            if info == "sh"
            for line in code.replace("\\\n", " ").splitlines()
        ]
        lines += [token.content for token in tokens_of(document) if token.type == "code_inline"]
        for line in lines:
            for found in COMMAND.finditer(line):
                shown.setdefault(found[1], set()).update(re.findall(r"(?<!\S)--?[a-z][\w-]*", found[2]))
    return shown


def test_every_command_and_option_that_the_documents_show_exists() -> None:
    shown = shown_commands()
    assert shown.keys() >= {"up", "post", "tail", "export", "import", "doctor", "test"}
    for command, options in shown.items():
        if command in (
            "test",
            "lock",
        ):  # commands of the launcher, checked in tests/unit/cli/test_launcher.py
            continue
        text = help_of(*command.split())
        for option in options:
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", text), f"crumb {command} {option}"


def test_the_readme_lists_every_command() -> None:
    listed = {found[1] for row in tables("README.md") if (found := re.match(r"`crumb ([a-z-]+)", row[0]))}
    known = set(re.findall(r"^  ([a-z-]+)  ", help_of().partition("Commands")[2], re.MULTILINE))
    assert known and listed == known


def test_every_documented_variable_is_used() -> None:
    named = {name for document in DOCUMENTS for name in re.findall(r"CRUMB_[A-Z_]+", read(document))}
    settings = {f"CRUMB_{field.upper()}" for field in Settings.model_fields}
    source = "".join(file.read_text("utf-8") for file in (ROOT / "breadcrumbs" / "cli").rglob("*.py"))
    for name in named - settings - {"CRUMB_CONFIG"}:
        assert f'"{name}"' in source, name


def test_every_setting_is_documented_with_its_default() -> None:
    rows = {row[0].strip("`"): row[1] for row in tables("docs/operations.md") if len(row) == 3}
    for name, field in Settings.model_fields.items():
        assert name in rows, name
        if isinstance(field.default, bool):
            assert rows[name] == f"`{str(field.default).lower()}`", name
        elif field.annotation is timedelta:
            amount, unit = rows[name].split()
            assert parse_duration(f"{amount}{unit[0]}") == parse_duration(field.default), name
        elif isinstance(field.default, str) or name == "port":
            assert rows[name] == f"`{field.default}`", name
        elif name in ("max_body_bytes", "max_response_bytes", "max_state_bytes"):
            assert rows[name] == f"{field.default >> 20} MiB"
        elif isinstance(field.default, int | float):
            assert rows[name] == f"{field.default:g}", name
        elif isinstance(field.default, tuple) and field.default:
            assert rows[name] == ", ".join(field.default), name
        else:
            assert "`" not in rows[name], f"{name} has no fixed default"
    for schema in DEFAULT_TTLS:
        assert f"`{schema}`" in read("docs/operations.md")


def test_every_connection_limit_is_documented_with_its_default() -> None:
    rows = {row[0].strip("`"): row[1] for row in tables("docs/operations.md") if len(row) == 4}
    for name, field in ConnectionLimits.model_fields.items():
        if field.annotation is timedelta:
            expected = field.default.replace("s", " s")
        elif (field.default % 1024 == 0 and "bytes" in name) or name == "min_body_rate":
            expected = (
                f"{field.default >> 20} MiB" if field.default >= 1 << 20 else f"{field.default >> 10} KiB"
            )
        else:
            expected = str(field.default)
        assert rows[name] == expected, name


async def test_the_documented_rights_of_a_redis_user_are_enough() -> None:
    shown = re.search(r"^ACL SETUSER crumb .*$", read("docs/operations.md"), re.MULTILINE)
    assert shown is not None
    owner = uuid4()
    with Server() as server:
        server.command(*shown[0].split())
        store = await Store.open(f"redis://crumb:password@{server.host}:{server.port}/0")
        try:
            written = await store.create(
                owner, BreadcrumbCreate(tags=["session:abc"]), idempotency_key="once"
            )
            await store.update(owner, written.id, BreadcrumbUpdate(title="Changed"))
            assert len(await store.history(owner, written.id)) == 2
            assert [crumb.id for crumb in (await store.list(owner, Query())).items] == [written.id]
            start = dict.fromkeys(range(store.lanes), 0)
            assert len(await log_of(store).after(start, count=10)) == 2
            announced: asyncio.Queue[bytes | None] = asyncio.Queue()
            channels = await store.connection.open_channels(
                0, lambda _, message: announced.put_nowait(message)
            )
            for lane in range(store.lanes):
                channels.subscribe(log_of(store).channel(lane))
            async with asyncio.timeout(10):
                for _ in range(store.lanes):
                    assert await announced.get() is None
                await store.create(owner, BreadcrumbCreate(tags=["session:other"]))
                assert await announced.get() is not None
            channels.close()
            heard: asyncio.Queue[bytes] = asyncio.Queue()
            listening = asyncio.create_task(store.connection.listen(store.keys.deltas(), heard.put_nowait))
            async with asyncio.timeout(10):
                while not await store.connection.call(0, b"PUBLISH", store.keys.deltas(), b"a piece"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert await heard.get() == b"a piece"
            listening.cancel()
            (newest,) = await store.read_batch(newest_of(store, owner, written.id))
            assert newest is not None
            await store.delete(owner, written.id)
            assert (await Hygiene(store, Settings()).run_once()).errors == 0
        finally:
            await store.close()


# --- HTTP examples, on a server started as in the README -------------------------------------------------


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("up")
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CRUMB_")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [CRUMB, "up", "--port", str(port), "--data", str(folder / "data")],
            cwd=folder, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 150
            while not _is_ready(url):
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            assert process.wait(30) == 0


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_two_sessions_of_the_readme_example_stay_isolated(base_url: str) -> None:
    (commands,) = (code for info, code in fences("README.md") if info == "sh" and "./crumb chat" in code)
    chats = [shlex.split(line.replace("./crumb", shlex.quote(str(CRUMB)))) for line in commands.splitlines()]
    for command, text in zip(chats, ("Hello, I am Ann", "Hello, I am Bob"), strict=True):
        assert "Hello" in _answer_of(command, text, base_url)
    for command, mine, others in zip(chats, ("Ann", "Bob"), ("Bob", "Ann"), strict=True):
        answer = _answer_of(command, "What did I say?", base_url)
        assert mine in answer
        assert others not in answer


def _answer_of(command: list[str], text: str, base_url: str) -> str:
    return subprocess.run(
        command,
        input=text,
        env={**os.environ, "CRUMB_URL": base_url},
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip


@pytest.mark.skipif(shutil.which("curl") is None, reason="the commands are curl's, and there is no curl")
def test_the_client_examples_of_the_readme_work(base_url: str) -> None:
    (commands,) = (code for info, code in fences("README.md") if info == "sh" and "curl" in code)
    post, _, read = commands.replace("http://127.0.0.1:8081", base_url).rpartition("curl")
    posted = json.loads(_shell(post))
    assert posted["answer"]["trigger_id"] == posted["message"]["id"]
    messages = json.loads(_shell("curl" + read))["messages"]
    assert [message["id"] for message in messages[-2:]] == [posted["message"]["id"], posted["answer"]["id"]]
    assert all("session:one" in message["tags"] for message in messages)


def _shell(command: str) -> str:
    return subprocess.run(
        ["sh", "-ec", command], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_the_documented_routes_are_the_routes_of_the_server(base_url: str) -> None:
    document = httpx.get(f"{base_url}/openapi.json", trust_env=False).json()
    routes = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    pattern = re.compile(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^`?]*)`")
    listed = {found[1] for row in tables("docs/http.md") if (found := pattern.fullmatch(row[0]))}
    assert listed == routes
    for document_name in ("README.md", "docs/design.md", "docs/operations.md"):
        assert set(pattern.findall(read(document_name))) <= routes, document_name


def test_the_documented_parameters_are_those_of_the_server(base_url: str) -> None:
    paths = httpx.get(f"{base_url}/openapi.json", trust_env=False).json()["paths"]
    text = read("docs/http.md")
    for path, heading, following in (
        ("/breadcrumbs", "## List", "## Events"),
        ("/events/stream", "## Events", "## Selectors"),
    ):
        section = text[text.index(heading) : text.index(following)]
        names = "".join(re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE))
        documented = set(re.findall(r"`(\w+)`", names))
        known = {given["name"] for given in paths[path]["get"]["parameters"] if given["in"] == "query"}
        assert documented == known, path


def test_the_documented_problems_are_those_of_the_code() -> None:
    from breadcrumbs.runtime.http.api.problems import PROBLEM_TYPES

    rows = [row for row in tables("docs/http.md") if len(row) == 3 and row[0].isdigit()]
    assert [(int(row[0]), row[1].strip("`")) for row in rows] == [
        (kind.status, kind.uri) for kind in PROBLEM_TYPES
    ]


@pytest.mark.skipif(
    shutil.which("curl") is None, reason="the examples are curl commands, and there is no curl"
)
def test_every_example_of_the_http_document_has_the_shown_result(base_url: str) -> None:
    blocks = fences("docs/http.md")
    variables = {"PATH": os.environ["PATH"]}
    ran = 0
    for (info, code), (next_info, shown) in pairwise(blocks):
        if info != "sh":
            continue
        command = code.replace("http://127.0.0.1:8081", base_url)
        if "curl -N" in command:
            check_stream(command, shown, base_url)
        else:
            assert next_info == "json", code
            ended = subprocess.run(
                ["sh", "-ec", command], env=variables, capture_output=True, text=True, timeout=60, check=True
            )
            answer = json.loads(ended.stdout)
            assert matches(answer, json.loads(shown)), f"{code}\nanswered\n{json.dumps(answer, indent=2)}"
            if isinstance(answer, dict) and "created_at" in answer:
                variables["ID"] = answer["id"]
            if isinstance(answer, dict) and "token" in answer:
                variables["TOKEN"] = answer["token"]
        ran += 1
    assert ran >= 15


def check_stream(command: str, shown: str, base_url: str) -> None:
    """Check that the stream of an example shows a message posted after it connected."""
    message = {
        "schema_name": "user.message.v1",
        "title": "Hello",
        "tags": ["user:message", "session:abc"],
        "context": {"message": "Hello!"},
    }
    with subprocess.Popen(["sh", "-ec", f"exec {command}"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            expected = shown.splitlines()
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if lines == expected[:3]:
                    httpx.post(f"{base_url}/breadcrumbs", json=message, trust_env=False).raise_for_status()
                if len(lines) == len(expected):
                    break
        finally:
            process.kill()
    assert [line.partition(" ")[0] for line in lines] == [line.partition(" ")[0] for line in expected]
    assert matches(*(json.loads(data[-1].removeprefix("data: ")) for data in (lines, expected)))


VARYING_FIELDS = {
    "id", "breadcrumb_id", "owner_id", "created_at", "updated_at", "checksum", "token", "exp", "last_active_at",
    "trigger_id", "root_id", "context_id", "message_id", "answer_id", "since", "before", "after", "next_cursor",
    "model_receipt",
}  # fmt: skip


def matches(answer: Any, shown: Any, name: str = "") -> bool:
    """Compare two documents, except values that differ between runs."""
    if name in VARYING_FIELDS:
        return type(answer) is type(shown)
    if isinstance(answer, dict) and isinstance(shown, dict):
        return answer.keys() == shown.keys() and all(matches(answer[key], shown[key], key) for key in shown)
    if isinstance(answer, list) and isinstance(shown, list):
        return len(answer) == len(shown) and all(map(matches, answer, shown))
    return bool(answer == shown)
