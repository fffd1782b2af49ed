"""The Python document: its code blocks run, and it contains every public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from markdown_it import MarkdownIt

import breadcrumbs
from tests.client.support import CrumbUp, environment

DOCS = Path(__file__).resolve().parents[2] / "docs"


def run(program: str, up: CrumbUp, folder: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment(CRUMB_URL=up.url, CRUMB_DATA=str(up.data)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def blocks() -> list[str]:
    tokens = MarkdownIt("commonmark").parse((DOCS / "python.md").read_text("utf-8"))
    return [token.content for token in tokens if token.type == "fence" and token.info == "python"]


def test_the_code_blocks_of_the_python_document_run_in_order(up: CrumbUp, tmp_path: Path) -> None:
    assert len(blocks()) >= 8
    run("\n".join([*blocks(), "client.close()"]), up, tmp_path)


def test_the_python_document_contains_every_public_name() -> None:
    text = (DOCS / "python.md").read_text("utf-8")
    missing = [name for name in breadcrumbs.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_the_links_of_the_python_document_have_a_target() -> None:
    text = (DOCS / "python.md").read_text("utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or os.path.exists(DOCS / target), target
