"""Counts the tokens of a text. Estimates them if no tokenizer is installed."""

from __future__ import annotations

import re
import warnings
from functools import cache, lru_cache
from typing import Final, Protocol

import structlog

_log = structlog.get_logger("breadcrumbs.context_builder")

_MAX_CACHED_LENGTH: Final = 2_000
"""Maximum number of characters of a text in the cache. Each turn counts the messages of its session again, so counts
are cached. Longer texts would take too much memory."""


class TokenCounter(Protocol):
    """Counts the tokens of a text."""

    method: str
    """Name of the method. Every context stores it, so that an estimate is not mistaken for a count."""

    def count(self, text: str) -> int: ...


# The pieces into which o200k splits a text before the lookup in its vocabulary. A word includes the character before
# it, such as a space. A number does not. Scripts other than Latin are recognized by their letters.
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

# Tokens for the first letter of a piece, and for each further letter.
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


class TokenEstimator:
    """Estimates tokens from the script and the length of words.

    The tests limit its error against o200k.
    """

    method = "estimate"

    def count(self, text: str) -> int:
        total = 0.0
        words: list[int] = []
        for piece in _PIECES.finditer(text):
            kind = piece.lastgroup
            if kind == "word":
                words.append(piece.end() - piece.start(kind))
            elif kind == "signs":
                total += _estimate_signs(piece[kind])
            elif kind == "spaces":
                # A single space belongs to the word after it, but not to a number.
                following = text[piece.end() : piece.end() + 1]
                total += piece.end() - piece.start() > 1 or following.isdigit() or not following
            elif kind == "other":
                total += _estimate_other(ord(piece[0]))
            elif kind in _PER_LETTER:
                first, each = _PER_LETTER[kind]
                total += first + each * (piece.end() - piece.start(kind) - 1)
            else:
                total += 1
        return round(total + _estimate_words(words, len(_ACCENTED.findall(text))))


def _estimate_words(lengths: list[int], accented: int) -> float:
    """Estimate the tokens of words.

    The vocabulary contains most English words as one token, but only short words of languages with accents.
    """
    share = accented / max(1, sum(lengths))
    one_token, per_letter = max(2.5, 7 - 60 * share), min(0.35, 0.12 + 4 * share)
    return sum(1.0 + per_letter * (length - one_token) if length > one_token else 1.0 for length in lengths)


def _estimate_signs(signs: str) -> float:
    return 1.0 if len(set(signs)) == 1 else 1.0 + (len(signs) - 1) // 4 * 0.9


def _estimate_other(code: int) -> float:
    if code < 0x1F000:
        return 1.0
    rare = code >= 0x1F900 or 0x1F1E6 <= code <= 0x1F1FF or 0x1F3FB <= code <= 0x1F3FF
    return 2.0 if rare else 1.5


class O200kCounter:
    """Counts tokens with the o200k vocabulary of `bpe-openai` (extra `breadcrumbs[tokens]`)."""

    method = "o200k"

    def __init__(self) -> None:
        import bpe_openai

        with warnings.catch_warnings():  # bpe-openai warns while it reads the vocabulary
            warnings.simplefilter("ignore", DeprecationWarning)
            # `encode` would reject text that looks like a control token of the model.
            self._encode = bpe_openai.get_encoding("o200k_base").encode_ordinary

    def count(self, text: str) -> int:
        return len(self._encode(text))


class CachedCounter:
    """Caches the counts of short texts."""

    def __init__(self, counter: TokenCounter) -> None:
        self.method = counter.method
        self._counter = counter
        self._cached = lru_cache(maxsize=4096)(counter.count)

    def count(self, text: str) -> int:
        return self._cached(text) if len(text) <= _MAX_CACHED_LENGTH else self._counter.count(text)


@cache
def token_counter() -> TokenCounter:
    """Return the best available counter.

    The first call loads the vocabulary, which takes a third of a second.
    """
    try:
        return CachedCounter(O200kCounter())
    except ImportError:
        pass
    except Exception as error:  # a broken extra must not stop every turn
        _log.warning("tokenizer failed, estimating tokens", error=repr(error))
    return CachedCounter(TokenEstimator())


@cache
def counter_of(method: str) -> TokenCounter:
    """Return the counter with a name, for contexts that were counted with it.

    Return the best available counter if this one is unknown or not installed.
    """
    best = token_counter()
    return CachedCounter(TokenEstimator()) if method == TokenEstimator.method != best.method else best
