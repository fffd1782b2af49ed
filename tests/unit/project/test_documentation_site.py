"""The documentation site builds without a broken link, and its reference agrees with the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import breadcrumbs
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.runtime.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "docs" / "reference"


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build the site with the command of the workflow."""
    command = [sys.executable, "docs/build_site.py", "--out", str(out)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "site"
    ended = build(ROOT, out)
    assert ended.returncode == 0, ended.stderr
    return out


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the documents that a test can break. Everything else is a link to the repository."""
    root = tmp_path / "copy"
    root.mkdir()
    subprocess.run(["cp", "-R", str(ROOT / "docs"), str(root)], check=True)
    for entry in ROOT.iterdir():
        if entry.name not in ("docs", ".git"):
            (root / entry.name).symlink_to(entry)
    return root


def test_the_site_has_a_page_for_each_document(site: Path) -> None:
    documents = {
        file.relative_to(ROOT / "docs").with_suffix(".html") for file in (ROOT / "docs").rglob("*.md")
    }
    renamed = {Path(str(page).replace("README", "index")) for page in documents}
    pages = {page.relative_to(site) for page in site.rglob("*.html")}
    assert renamed <= pages
    assert Path("project/changelog.html") in pages


def test_the_pages_load_nothing_from_other_servers(site: Path) -> None:
    loading = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//""")
    assert [page.name for page in site.rglob("*.html") if loading.search(page.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[gone](no-such-page.md)", "no-such-page.md does not exist"),
        ("[gone](http.md#no-such-heading)", "anchor does not exist"),
        ("[gone](../no/such/file.py)", "does not exist"),
        ("![gone](img/no-such-picture.svg)", "does not exist"),
    ],
)
def test_a_broken_link_fails_the_build(copy: Path, tmp_path: Path, text: str, reason: str) -> None:
    with (copy / "docs" / "faq.md").open("a") as page:
        page.write(f"\n{text}\n")
    ended = build(copy, tmp_path / "site")
    assert ended.returncode == 1
    assert reason in ended.stderr
    assert not (tmp_path / "site").exists()


def test_a_page_outside_of_the_navigation_fails_the_build(copy: Path, tmp_path: Path) -> None:
    (copy / "docs" / "forgotten.md").write_text("# Forgotten\n")
    ended = build(copy, tmp_path / "site")
    assert ended.returncode == 1
    assert "missing in the navigation of docs/zensical.toml: forgotten.md" in ended.stderr


def test_a_picture_of_another_server_fails_the_build(copy: Path, tmp_path: Path) -> None:
    with (copy / "docs" / "faq.md").open("a") as page:
        page.write("\n![counter](https://counter.example/pixel.png)\n")
    ended = build(copy, tmp_path / "site")
    assert ended.returncode == 1
    assert "faq.html loads something from another server" in ended.stderr


def test_the_reference_agrees_with_the_code() -> None:
    command = [sys.executable, "docs/generate_reference.py", "--check"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


def test_an_outdated_reference_is_reported_with_the_command_that_updates_it(copy: Path) -> None:
    (copy / "docs" / "reference" / "cli.md").write_text("# Commands\n")
    command = [sys.executable, "docs/generate_reference.py", "--check"]
    ended = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "outdated: docs/reference/cli.md. Run: .venv/bin/python docs/generate_reference.py" in ended.stderr


def test_the_reference_contains_every_public_name_field_and_setting() -> None:
    api = (REFERENCE / "python-api.md").read_text("utf-8")
    for name in breadcrumbs.__all__:
        assert f"\n## {name}\n".replace("_", "\\_") in api or f"\n## {name}\n" in api, name
    for page, fields in (
        ("agent-definition.md", AgentDefinition.model_fields),
        ("context-config.md", ContextConfig.model_fields),
        ("settings.md", Settings.model_fields),
    ):
        text = (REFERENCE / page).read_text("utf-8")
        assert [name for name in fields if f"\n| `{name}` |" not in text] == [], page


def messages_of_the_code() -> list[str]:
    """Return the texts in the code, with `…` for each inserted value."""
    found = []
    for folder in ("runtime", "context_builder", "agents", "breadcrumbs"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                match node:
                    case ast.JoinedStr(values=values):
                        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in values]
                        found.append(" ".join("".join(map(str, parts)).split()))
                    case ast.Constant(value=str(text)):
                        found.append(" ".join(text.split()))
    return found


def test_the_messages_in_troubleshooting_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(rows) >= 25
    known = messages_of_the_code()
    for row in rows:
        pattern = re.compile(".*?".join(re.escape(part.strip()) for part in row.split("…")))
        assert any(pattern.search(message) for message in known), f"no message in the code matches {row!r}"
