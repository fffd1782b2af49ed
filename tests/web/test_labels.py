"""Labels in the documents. The documents write the label of a button or a page in italics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/context-config.md", "docs/operations.md", "extension/README.md")
SOURCES = ("web/src", "extension/src", "extension")
LABEL = re.compile(r"(?<![*\w])\*([A-Z][^*\n]{2,40})\*(?!\*)")


@pytest.fixture(scope="module")
def sources() -> str:
    files = [
        file
        for folder in SOURCES
        for file in (ROOT / folder).glob("**/*" if folder != "extension" else "*")
        if file.suffix in (".ts", ".tsx", ".js", ".html")
    ]
    return "\n".join(file.read_text("utf-8") for file in files)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_labels_in_the_documents_are_those_of_the_page(document: str, sources: str) -> None:
    labels = LABEL.findall((ROOT / document).read_text("utf-8"))
    assert [label for label in labels if label not in sources] == []


def test_the_documents_name_the_button_that_explains_an_answer() -> None:
    assert "Why this answer?" in LABEL.findall((ROOT / "docs/context-config.md").read_text("utf-8"))
