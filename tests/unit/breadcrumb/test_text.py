"""Titles and the text of a message."""

from __future__ import annotations

import pytest

from breadcrumbs.runtime.breadcrumb.text import plain_text, printable_line, shorten_line


@pytest.mark.parametrize(
    "text",
    ["👩\u200d👩\u200d👧 trip", "❤\ufe0f\u200d🔥", "می\u200cخواهم", "क्\u200dष", "🤷\u200d♀\ufe0f"],
)
def test_a_title_keeps_joiners_between_visible_characters(text: str) -> None:
    assert printable_line(text) == shorten_line(text) == text


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\u200b b", "a b"),
        ("a\u202eb", "a b"),
        ("\u200da", "a"),
        ("a\u200d", "a"),
        ("a \u200d b", "a b"),
        ("a\u200d\u200db", "a b"),
        ("a\nb\x00c", "a b c"),
    ],
)
def test_other_invisible_characters_of_a_title_become_spaces(text: str, line: str) -> None:
    assert printable_line(text) == line


def test_a_shortened_title_does_not_end_with_a_joiner() -> None:
    assert shorten_line("a" * 78 + "👩\u200d👧") == "a" * 78 + "👩…"


def test_the_text_of_a_document_without_text_has_no_keys_of_the_runtime() -> None:
    assert plain_text({"score": 3, "trigger_id": "x", "session_id": "s"}) == '{"score":3}'
