"""The examples run as they are, and so does every block of the Python document."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import breadcrumbs
from tests.client.support import CrumbUp, environment

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))


def run(program: Path | str, up: CrumbUp, folder: Path) -> str:
    given = [str(program)] if isinstance(program, Path) else ["-c", program]
    ended = subprocess.run(
        [sys.executable, "-W", "error", *given],
        env=environment(CRUMB_URL=up.url, CRUMB_DATA=str(up.data)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def test_there_are_three_examples_and_each_fits_on_a_screen() -> None:
    assert len(EXAMPLES) == 3
    for example in EXAMPLES:
        assert len(example.read_text("utf-8").splitlines()) < 40


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_is(example: Path, up: CrumbUp, tmp_path: Path) -> None:
    assert run(example, up, tmp_path).strip()


def test_an_example_runs_again_on_the_same_server(up: CrumbUp, tmp_path: Path) -> None:
    for _ in range(2):
        assert "5 words" in run(DOCS / "examples" / "02_agent.py", up, tmp_path)


def blocks() -> list[str]:
    tokens = MarkdownIt("commonmark").parse((DOCS / "python.md").read_text("utf-8"))
    return [token.content for token in tokens if token.type == "fence" and token.info == "python"]


def test_the_blocks_of_the_python_document_run_one_after_the_other(up: CrumbUp, tmp_path: Path) -> None:
    assert len(blocks()) >= 8
    run("\n".join([*blocks(), "client.close()"]), up, tmp_path)


def test_the_python_document_names_every_public_name() -> None:
    text = (DOCS / "python.md").read_text("utf-8")
    missing = [name for name in breadcrumbs.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_the_links_of_the_python_document_lead_somewhere() -> None:
    text = (DOCS / "python.md").read_text("utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or os.path.exists(DOCS / target), target
