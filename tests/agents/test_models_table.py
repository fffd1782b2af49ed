"""The table of models: entries of the package, of a file that changes, and of the settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from breadcrumbs.agents.models.prices import Price, price_of, prices_in
from breadcrumbs.agents.models.table import ModelTable, builtin_entries, table_in
from breadcrumbs.agents.models.windows import window_of, windows_in
from breadcrumbs.runtime.errors import StartupError

NAME = "openai:gpt-4.1-mini"


def write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    stamp = path.stat().st_mtime_ns + 1_000_000_000  # two writes can have the same time
    os.utime(path, ns=(stamp, stamp))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models.toml"
    write(path, '["gpt-4.1-mini"]\nprice = [0.4, 1.6]\n')
    return path


def test_a_change_of_the_file_applies_while_the_process_runs(file: Path) -> None:
    now = 0.0
    table = ModelTable(file, clock=lambda: now)
    assert table.price(NAME) == (0.4, 1.6) and table.price("openai:gpt-4.1") is None
    assert table.window(NAME) == 1_047_576 and table.accepts_images(NAME)  # of the package
    write(file, f'["{NAME}"]\nprice = [1, 2]\nwindow = 5\nimages = false\n')
    assert table.price(NAME) == (0.4, 1.6)
    now = 1.0
    assert table.price(NAME) == (1, 2) and table.window(NAME) == 5 and not table.accepts_images(NAME)


def test_an_invalid_change_keeps_the_last_valid_content_and_is_reported_once(file: Path) -> None:
    now = 0.0
    table = ModelTable(file, clock=lambda: now)
    with capture_logs() as lines:
        for moment, content in enumerate(("[a]\nwindow = -1\n", "[a\n", "[a]\nwindow = 7\n"), start=1):
            write(file, content)
            now = float(2 * moment)
            assert table.price(NAME) == (None if moment == 3 else (0.4, 1.6))
            now += 1.0
            table.price(NAME)
        file.unlink()
        now += 1.0
        assert table.window("a") == 7 and "cannot be read" in table.problem
    assert [line["event"].split(",")[0] for line in lines] == [
        "model table not used",
        "model table not used",
        "model table is valid again",
        "model table not used",
    ]
    assert "a.window" in lines[0]["error"] and "line 1" in lines[1]["error"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[a]\nwindo = 1\n", "a.windo"),
        ("[a]\nprice = [1]\n", "a.price"),
        ("[a]\nprice = [nan, 1]\n", "a.price"),
        ("[a]\nwindow = 0\n", "a.window"),
        ("a = 1\n", "a: "),
        ("nonsense\n", "line 1"),
    ],
)
def test_an_invalid_file_is_refused_at_startup_with_its_position(
    tmp_path: Path, content: str, complaint: str
) -> None:
    path = tmp_path / "models.toml"
    write(path, content)
    with pytest.raises(StartupError, match=complaint):
        ModelTable(path)


def test_a_missing_file_is_refused_at_startup(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be read"):
        ModelTable(tmp_path / "none.toml")


def test_the_settings_have_priority_over_the_table(file: Path) -> None:
    models = {"table": str(file), "windows": {"gpt-4.1-mini": 9}, "prices": {NAME: [7, 8], "bad": "x"}}
    assert price_of(NAME, prices_in(models)) == Price(7, 8)
    assert window_of(NAME, windows_in(models)) == 9
    table_only = {"table": str(file)}
    assert price_of(NAME, prices_in(table_only)) == Price(0.4, 1.6)
    assert dict(prices_in(table_only)) == {"gpt-4.1-mini": Price(0.4, 1.6)}
    assert table_in(table_only) is table_in(table_only)


def test_the_built_in_table_is_valid_and_has_no_prices() -> None:
    assert len(builtin_entries()) > 30
    assert all(facts.price is None for facts in builtin_entries().values())
