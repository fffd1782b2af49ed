"""Invisible characters in names."""

from __future__ import annotations

import unicodedata

import pytest

from breadcrumbs.runtime.breadcrumb.names import hidden_character

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"


@pytest.mark.parametrize(
    "name",
    [
        "a", "Trip to Rome", "a:b/c*{}", "ümläut", "漢字", "سلام", "हिन्दी", "🙂",
        "👩\u200d👩\u200d👧", "👩🏽\u200d💻", "❤\ufe0f", "❤\ufe0f\u200d🔥", "🏳\ufe0f\u200d🌈", "🤷\u200d♀\ufe0f",
        "1\ufe0f\u20e3", "e\u0301",
    ],
)  # fmt: skip
def test_visible_names_are_accepted(name: str) -> None:
    assert hidden_character(name) is None


@pytest.mark.parametrize(
    "character",
    [*BIDI, *"\x00\x07\n\x1f\x7f\x85\x9f\u00ad\u200b\u200c\u2028\u2029\u2060\ufeff\u180e\u3164\U000e0041"],
)
def test_invisible_characters_are_reported_with_their_position(character: str) -> None:
    found = hidden_character(f"ab{character}c")
    assert found is not None and found.startswith(f"character 3 is U+{ord(character):04X} (")
    if unicodedata.category(character) != "Cc":
        assert unicodedata.name(character) in found


@pytest.mark.parametrize(
    "name",
    [
        "ab\u200dc",
        "\u200d🙂",
        "🙂\u200d",
        "a\u200d🙂",
        "a\ufe0f",
        "\ufe0f",
        "1\ufe0f",
        "ab\ufe01",
        "a\U000e0101",
    ],
)
def test_joiners_and_styles_outside_of_an_emoji_are_hidden(name: str) -> None:
    assert hidden_character(name) is not None
