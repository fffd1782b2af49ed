"""How many tokens a text costs a model: counted where a tokenizer is installed, else a stated estimate."""

from __future__ import annotations

import re
import warnings
from functools import cache, lru_cache
from typing import Protocol

import structlog

_log = structlog.get_logger("breadcrumbs.context_builder")

_REMEMBERED_LENGTH = 2_000
"""The messages of a session are counted again with every turn; only long ones are not worth the memory."""


class TokenCounter(Protocol):
    method: str
    """Written into every context, so that nobody takes an estimate for a count."""

    def count(self, text: str) -> int: ...


# The pieces into which o200k takes a text apart before it looks anything up. A word takes the sign before it
# along, a number does not. Scripts that share no words are told apart by their letters.
_PIECES = re.compile(
    r"""
    [^\w\r\n]? _? (?P<word> [A-ZÀ-ÖØ-Þ]* [a-zß-öø-ɏḀ-ỿ]+ | [A-ZÀ-ÖØ-Þ]+ )
  | (?P<number> \d{1,3} )
  | (?P<newline> \s* [\r\n]+ )
  | \ ? (?P<signs> [!-/:-@\[-`{-~–—…„“”‘’«»]+ [\r\n/]* )
  | (?P<han> [\u3001-\u303f\u3400-\u9fff\uf900-\ufaff\uff01-\uff65] )
  | (?P<kana> [\u3040-\u30ff] )
  | (?P<hangul> [\uac00-\ud7a3]+ )
  | [^\w\r\n]? (?P<greek> [\u0370-\u03ff\u1f00-\u1fff]+ )
  | [^\w\r\n]? (?P<semitic> [\u0590-\u06ff]+ )
  | [^\w\r\n]? (?P<indic> [\u0900-\u0dff]+ )
  | (?P<thai> [\u0e00-\u0eff] )
  | [^\w\r\n]? (?P<letters> [^\W\d_A-Za-zÀ-ɏḀ-ỿ\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]+ )
  | (?P<spaces> \s+ )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ACCENTED = re.compile("[À-ɏḀ-ỿ]")

# What the first letter of a piece costs, and each further one.
_PER_LETTER = {
    "han": (0.8, 0.0),
    "kana": (0.7, 0.0),
    "thai": (0.45, 0.0),
    "hangul": (1.0, 0.57),
    "letters": (0.8, 0.15),
    "greek": (1.0, 0.36),
    "semitic": (0.9, 0.25),
    "indic": (0.9, 0.2),
}


class Estimate:
    """No tokenizer needed: by the script and the length of words. Its error against o200k is in the tests."""

    method = "estimate"

    def count(self, text: str) -> int:
        total = 0.0
        words: list[int] = []
        for piece in _PIECES.finditer(text):
            kind = piece.lastgroup
            if kind == "word":
                words.append(piece.end() - piece.start(kind))
            elif kind == "signs":
                total += _of_signs(piece[kind])
            elif kind == "spaces":
                # A single space belongs to the word after it; a number takes none along.
                following = text[piece.end() : piece.end() + 1]
                total += piece.end() - piece.start() > 1 or following.isdigit() or not following
            elif kind == "other":
                total += _of_other(ord(piece[0]))
            elif kind in _PER_LETTER:
                first, each = _PER_LETTER[kind]
                total += first + each * (piece.end() - piece.start(kind) - 1)
            else:
                total += 1
        return round(total + _of_words(words, len(_ACCENTED.findall(text))))


def _of_words(lengths: list[int], accented: int) -> float:
    """A vocabulary knows whole English words, and of other languages the shorter ones: accents give them away."""
    share = accented / max(1, sum(lengths))
    known, each = max(2.5, 7 - 60 * share), min(0.35, 0.12 + 4 * share)
    return sum(1.0 + each * (length - known) if length > known else 1.0 for length in lengths)


def _of_signs(signs: str) -> float:
    return 1.0 if len(set(signs)) == 1 else 1.0 + (len(signs) - 1) // 4 * 0.9


def _of_other(code: int) -> float:
    if code < 0x1F000:
        return 1.0
    rare = code >= 0x1F900 or 0x1F1E6 <= code <= 0x1F1FF or 0x1F3FB <= code <= 0x1F3FF
    return 2.0 if rare else 1.5


class Counted:
    """By the o200k vocabulary that `bpe-openai` brings along (extra `breadcrumbs[tokens]`)."""

    method = "o200k"

    def __init__(self) -> None:
        import bpe_openai

        with warnings.catch_warnings():  # of its own doing, while it reads the vocabulary
            warnings.simplefilter("ignore", DeprecationWarning)
            # Not `encode`: that refuses text which looks like a control token of the model.
            self._encode = bpe_openai.get_encoding("o200k_base").encode_ordinary

    def count(self, text: str) -> int:
        return len(self._encode(text))


class Remembering:
    """A counter that does not count the same short text twice."""

    def __init__(self, counter: TokenCounter) -> None:
        self.method = counter.method
        self._counter = counter
        self._remembered = lru_cache(maxsize=4096)(counter.count)

    def count(self, text: str) -> int:
        return self._remembered(text) if len(text) <= _REMEMBERED_LENGTH else self._counter.count(text)


@cache
def token_counter() -> TokenCounter:
    """The best one there is. Reading the vocabulary takes a third of a second, once."""
    try:
        return Remembering(Counted())
    except ImportError:
        pass
    except Exception as error:  # an extra that does not work must not stop every turn
        _log.warning("the tokenizer does not work, tokens are estimated", error=repr(error))
    return Remembering(Estimate())
