"""Each lesson of the systems before this one is shown by a test whose name begins with its number."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

LESSONS = {
    *(f"R{number}" for number in range(1, 10)),  # the session fix: isolation
    *(f"P{number}" for number in range(1, 24)),  # session persistence and recovery
    *(f"A{number}" for number in range(1, 5)),  # the ADK session client
}
_TEST = re.compile(r"^(?:async )?def test_((?:[RPA]\d+_)+)", re.MULTILINE)


def named() -> dict[str, list[str]]:
    """Which files have a test for which lesson."""
    found: dict[str, list[str]] = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        for numbers in _TEST.findall(file.read_text("utf-8")):
            for number in numbers.rstrip("_").split("_"):
                found.setdefault(number, []).append(str(file.relative_to(TESTS)))
    return found


def test_every_lesson_has_a_test_that_names_it() -> None:
    assert LESSONS - named().keys() == set()


def test_tests_name_no_lesson_that_there_is_not() -> None:
    assert {number: files for number, files in named().items() if number not in LESSONS} == {}
