"""The files of a release: sdist, wheel and extension are built, and the wheel runs in an empty environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.test_project_files import build_wheel, copied_paths
from tests.support.release_files import build_sdist, copy_tree

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FILES = f"{PROJECT['name']}-{PROJECT['version']}"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = copy_tree(copied_paths(), tmp_path_factory.mktemp("tree"))
    return build_sdist(tree, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip builds from the sdist."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return build_wheel(folder / FILES, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel. It takes the dependencies, but not this project, from the tests."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    # A path in a .pth file is searched, but its own .pth files, such as that of an editable install, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--no-deps",
    ]
    subprocess.run(
        [*command, "--no-index", "--quiet", str(wheel)], check=True, capture_output=True, timeout=110
    )
    return folder


@pytest.fixture
def url(installed: Path, tmp_path: Path) -> Iterator[str]:
    command = [str(installed / "bin" / "crumb"), "up", "--port", "0", "--data", str(tmp_path / "data")]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("CRUMB_", "PYTHON"))
    }
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            assert process.wait(30) == 0


def test_the_sdist_contains_what_the_wheel_needs_and_no_more(sdist: Path, wheel: Path) -> None:
    assert sdist.name == f"{FILES}.tar.gz" and wheel.name.startswith(f"{FILES}-py3-none-any")
    with tarfile.open(sdist) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert {"pyproject.toml", "README.md", "LICENSE", "runtime", "agents", "web"} <= tops
    assert not tops & {"tests", "bench", ".venv", ".git", ".env"}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"breadcrumbs/web/dist/index.html", "breadcrumbs/runtime/store/lua/create.lua"} <= names


def test_the_installed_wheel_is_the_only_copy_of_the_package(installed: Path) -> None:
    program = (
        "import breadcrumbs, breadcrumbs.runtime; print(breadcrumbs.__file__, breadcrumbs.runtime.__file__)"
    )
    command = [str(installed / "bin" / "python"), "-c", program]
    ended = subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=60, check=True)
    assert all(Path(file).is_relative_to(installed) for file in ended.stdout.split())


def test_the_installed_command_prints_the_version(installed: Path) -> None:
    command = [str(installed / "bin" / "crumb"), "version"]
    ended = subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=60, check=True)
    assert PROJECT["version"] in ended.stdout


def test_crumb_up_of_the_installed_wheel_serves_the_page_and_answers(url: str) -> None:
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        assert "<!doctype html>" in client.get("/").text.lower()
        reply = client.post("/sessions/one/messages?wait=30", json={"message": "Hello from a wheel"})
        assert "Hello from a wheel" in reply.json()["answer"]["text"]
        assert client.get("/health").json()["version"] == PROJECT["version"]


def test_the_installed_server_links_to_the_guides_and_serves_their_text(url: str) -> None:
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        links = re.findall(r'href="(/docs/[^"]+)"', client.get("/docs").text)
        assert {"/docs/tutorial.md", "/docs/how-to.memory.md", "/docs/reference.settings.md"} <= set(links)
        for link in links:
            reply = client.get(link)
            assert reply.status_code == 200 and reply.headers["content-type"] == "text/plain; charset=utf-8"
            folder, _, name = link.removeprefix("/docs/").removesuffix(".md").rpartition(".")
            assert reply.text == (ROOT / "docs" / folder / f"{name}.md").read_text("utf-8")
        assert (
            client.get("/docs/__init__.py").status_code
            == client.get("/docs/%2e%2e%2fREADME.md").status_code
            == 404
        )


def test_the_extension_is_packed_with_its_manifest_and_client(tmp_path: Path) -> None:
    if not (ROOT / "extension" / "pack.py").is_file():
        pytest.skip("extension/pack.py, the command that packs the extension, does not exist yet")
    target = tmp_path / "extension.zip"
    command = [sys.executable, "extension/pack.py", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    with zipfile.ZipFile(target) as archive:
        names = set(archive.namelist())
        assert {"manifest.json", "background.js", "panel.html"} <= names
        assert json.loads(archive.read("manifest.json"))["version"] == PROJECT["version"]


# --- The name of the distribution ------------------------------------------------------------------------


def test_every_place_uses_the_name_of_the_distribution_in_pyproject() -> None:
    """Only `pyproject.toml` defines the name. docs/releasing.md lists the places that repeat it."""
    name = re.escape(PROJECT["name"])
    code = [
        file
        for folder in ("breadcrumbs", "runtime", "agents", "context_builder")
        for file in (ROOT / folder).rglob("*.py")
    ]
    users = [file for file in code if re.search(r"\bversion\(\"", file.read_text("utf-8"))]
    assert sorted(users) == [
        ROOT / "breadcrumbs" / "__init__.py",
        ROOT / "runtime" / "version.py",
    ]
    for file in users:
        assert re.search(rf'\bversion\("{name}"\)', file.read_text("utf-8")), file
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    assert f"https://pypi.org/project/{PROJECT['name']}/" in workflow
    for document in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for named in re.findall(
            r"pip install (?:--upgrade )?'?(breadcrumbs[\w-]*)", document.read_text("utf-8")
        ):
            assert named == PROJECT["name"], document


def test_the_release_checklist_starts_with_the_availability_of_the_name() -> None:
    checklist = (ROOT / "docs" / "releasing.md").read_text("utf-8").partition("## Checklist")[2]
    first = checklist.partition("\n2. ")[0]
    assert "1. **Name.**" in first and f"pip index versions {PROJECT['name']}" in first
