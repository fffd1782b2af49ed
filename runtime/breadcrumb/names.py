"""Finds invisible characters in names.

Two different names must not look alike, and a name must not change how the text around it is displayed.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_HIDDEN_CATEGORIES: Final = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Control and format characters (including all bidi controls), lone surrogates, line and paragraph separators."""
_BLANKS: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
"""Letters and marks without a glyph."""
_JOINER: Final = "\u200d"
_EMOJI_STYLE: Final = "\ufe0f"
_KEYCAP: Final = "\u20e3"
_SYMBOLS: Final = frozenset(("So", "Sm", "Sk"))


def hidden_character(name: str) -> str | None:
    """Return a description of the first invisible character, or None.

    A joiner (U+200D) and the emoji style (U+FE0F) are accepted inside an emoji, because they change its shape.
    """
    if name.isascii() and name.isprintable():
        return None
    for at, character in enumerate(name):
        if _is_hidden(character) and not _shapes_emoji(name, at):
            title = unicodedata.name(character, "a control character")
            return f"character {at + 1} is U+{ord(character):04X} ({title})"
    return None


def _is_hidden(character: str) -> bool:
    return (
        unicodedata.category(character) in _HIDDEN_CATEGORIES
        or character in _BLANKS
        or "\ufe00" <= character <= _EMOJI_STYLE
        or "\U000e0100" <= character <= "\U000e01ef"
    )


def _shapes_emoji(name: str, at: int) -> bool:
    before, after = name[at - 1 : at] if at else "", name[at + 1 : at + 2]
    if name[at] == _JOINER:
        return (_is_symbol(before) or before == _EMOJI_STYLE) and _is_symbol(after)
    return name[at] == _EMOJI_STYLE and (_is_symbol(before) or after == _KEYCAP)


def _is_symbol(character: str) -> bool:
    return character != "" and unicodedata.category(character) in _SYMBOLS
