"""Docstrings and comments start with their subject (see CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("runtime", "context_builder", "agents", "breadcrumbs", "bench", "tests", "examples")
NO_SUBJECT = re.compile(
    r"(?:who|whoever|whom|whose|what|whatever|where|wherever|nobody|somebody)\b", re.IGNORECASE
)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a file, with their lines."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text.strip()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#").strip()


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_and_comments_start_with_their_subject(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in files
        for line, text in texts(file.read_text("utf-8"))
        if NO_SUBJECT.match(text)
    ]
    assert found == []


def test_a_sentence_without_a_subject_is_found() -> None:
    source = '"""What a worker does."""\nx = 1  # Who waits is told\ny = 2  # the number of lanes\n'
    assert [line for line, text in texts(source) if NO_SUBJECT.match(text)] == [1, 2]
