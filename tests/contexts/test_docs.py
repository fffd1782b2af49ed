"""docs/context-config.md agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from breadcrumbs.cli.app import app
from breadcrumbs.context_builder.assembly import Reason
from tests.contexts.support import SHIPPED

PAGE = SHIPPED.parents[1] / "docs" / "context-config.md"
TEXT = PAGE.read_text("utf-8")
SHOWN = re.findall(r"crumb ((?:context|audit) [a-z]+)([^`#\n]*)", TEXT)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_resolves() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, anchor = link.partition("#")
        target = (PAGE.parent / path).resolve() if path else PAGE
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize(("command", "options"), SHOWN)
def test_every_command_and_option_exists(command: str, options: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for option in re.findall(r"--[a-z-]+", options):
        assert re.search(rf"{option}(?![\w-])", shown.stdout), option


def test_every_reason_is_explained() -> None:
    for reason in get_args(Reason):
        assert f"`{reason}`" in TEXT
