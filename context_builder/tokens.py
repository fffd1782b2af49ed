"""How many tokens a text costs a model: counted where a tokenizer is installed, else a stated estimate."""

from __future__ import annotations

import re
from functools import cache
from typing import Protocol

# Words, numbers in threes, runs of punctuation, anything else by itself: close to how BPE splits.
_PIECES = re.compile(r"[A-Za-z]+|\d{1,3}|[^\sA-Za-z\d]|\s+")


class TokenCounter(Protocol):
    method: str
    """Written into every context, so that nobody takes an estimate for a count."""

    def count(self, text: str) -> int: ...


class Estimate:
    """No tokenizer needed. English words of up to seven letters count one; longer ones more."""

    method = "estimate"

    def count(self, text: str) -> int:
        total = 0
        for piece in _PIECES.finditer(text):
            length = piece.end() - piece.start()
            first = text[piece.start()]
            if first.isspace():
                total += length > 1
            elif first.isascii():
                total += 1 + (length - 1) // 7
            else:
                total += 1 if length == 1 and ord(first) < 0x2E80 else 2 * length
        return total


class Counted:
    """By the o200k vocabulary that `bpe-openai` brings along (extra `breadcrumbs[tokens]`)."""

    method = "o200k"

    def __init__(self) -> None:
        import bpe_openai

        self._count = bpe_openai.get_encoding("o200k_base").count

    def count(self, text: str) -> int:
        return int(self._count(text))


@cache
def token_counter() -> TokenCounter:
    try:
        return Counted()
    except ImportError:
        return Estimate()
