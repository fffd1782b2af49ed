"""Cuts the texts of an item to the size limit of its source."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from breadcrumbs.context_builder.tokens import TokenCounter
from breadcrumbs.runtime.breadcrumb.text import plain_text

_ELLIPSIS: Final = "…"
_CHARACTERS_PER_TOKEN: Final = 8
"""No more characters per token are counted, so that the cost of a cut does not depend on the size of the item."""
_ATTEMPTS: Final = 8
_MARGIN: Final = 0.97


class Cut(NamedTuple):
    """How the texts of an item were cut."""

    kept: int
    """Maximum number of characters of each text."""
    of: int
    """Number of characters of the longest text before the cut."""


class CutContent(NamedTuple):
    """The content of an item that fits into its limit."""

    content: dict[str, Any]
    tokens: int
    cut: Cut | None = None


def cut_to_tokens(content: dict[str, Any], max_tokens: int, counter: TokenCounter) -> CutContent:
    """Cut the texts of an item until it has at most `max_tokens`.

    Only texts are cut. An item of many short texts can remain larger than the limit.
    """
    longest = _longest_text(content)
    kept = min(longest, max_tokens * _CHARACTERS_PER_TOKEN)
    for attempt in range(_ATTEMPTS):
        shortened = content if kept == longest else cut_texts(content, kept)
        tokens = counter.count(plain_text(shortened))
        if tokens <= max_tokens or kept == 0 or attempt == _ATTEMPTS - 1:
            break
        kept = min(kept - 1, int(kept * max_tokens / tokens * _MARGIN))
    return CutContent(shortened, tokens, None if kept == longest else Cut(kept, longest))


def cut_texts(content: dict[str, Any], kept: int) -> dict[str, Any]:
    """Return the content with each text cut to `kept` characters and an ellipsis."""
    return {key: _cut_value(value, kept) for key, value in content.items()}


def _cut_value(value: Any, kept: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= kept else value[:kept].rstrip() + _ELLIPSIS
    if isinstance(value, dict):
        return {key: _cut_value(inner, kept) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cut_value(inner, kept) for inner in value]
    return value


def _longest_text(value: Any) -> int:
    longest, pending = 0, [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, str):
            longest = max(longest, len(inner))
        elif isinstance(inner, dict):
            pending.extend(inner.values())
        elif isinstance(inner, list):
            pending.extend(inner)
    return longest
