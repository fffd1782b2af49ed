"""Makes the reasons of failures fit for the log: short, on one line, and without the text of messages.

The full reason is stored in the session and in the dead letter, where only the owner can read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from breadcrumbs.runtime.errors import BreadcrumbsError

_MAX_CHARACTERS: Final = 200
_RUN: Final = 12
"""Length of the shortest run of characters of a message that is hidden in a reason."""
_MIN_MESSAGE: Final = 4
"""A shorter message is not hidden, because it would match almost anything."""
_MAX_COMPARED: Final = 50_000
"""Characters of the messages that are compared, the last ones. A model sees much more."""
_HIDDEN: Final = "…"


def log_reason(error: BaseException, messages: Iterable[str] = ()) -> str:
    """Return the reason of a failure for the log.

    Only errors of Breadcrumbs have their text in the log. Other errors come from the code of users and can contain
    anything, so only the name of their class is used. `messages` are texts that the reason must not quote.
    """
    if not isinstance(error, BreadcrumbsError):
        return type(error).__name__
    text = str(error) or type(error).__name__
    return shortened(hide_messages(text[: 4 * _MAX_CHARACTERS], messages))


def shortened(text: str) -> str:
    """Return a text on one line, cut to 200 characters."""
    line = "".join(char if char.isprintable() else " " for char in text[: _MAX_CHARACTERS + 1])
    return line if len(line) <= _MAX_CHARACTERS else line[: _MAX_CHARACTERS - 1] + _HIDDEN


def hide_messages(reason: str, messages: Iterable[str]) -> str:
    """Replace the parts of a reason that quote a message.

    Providers quote requests in their errors. Any run of 12 characters that also occurs in a message is hidden.
    """
    texts = [text for text in messages if len(text) >= _MIN_MESSAGE]
    if not texts:
        return reason
    for text in texts:
        if len(text) <= _RUN:
            reason = reason.replace(text, _HIDDEN)
    quoted = "\n".join(texts)[-_MAX_COMPARED:]
    hidden = [False] * len(reason)
    for start in range(len(reason) - _RUN + 1):
        if reason[start : start + _RUN] in quoted:
            hidden[start : start + _RUN] = [True] * _RUN
    return _join_visible(reason, hidden)


def _join_visible(reason: str, hidden: list[bool]) -> str:
    parts: list[str] = []
    for char, is_hidden in zip(reason, hidden, strict=True):
        if not is_hidden:
            parts.append(char)
        elif not parts or parts[-1] != _HIDDEN:
            parts.append(_HIDDEN)
    return "".join(parts)
