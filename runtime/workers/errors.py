"""Errors of turns.

BreadcrumbsError
├── TurnFailed      the handler could not handle the event
└── TurnCancelled   the turn was stopped on request
"""

from __future__ import annotations

from typing import Final

from breadcrumbs.runtime.breadcrumb.text import encodable_text
from breadcrumbs.runtime.errors import BreadcrumbsError, StoreFull, StoreUnavailable

STORE_UNAVAILABLE: Final = (StoreUnavailable, StoreFull)
"""The store cannot serve the request now. The request itself is not at fault, so no attempt is counted."""

_MAX_REASON_CHARACTERS: Final = 4_000


class TurnFailed(BreadcrumbsError):
    """A handler could not handle an event. `retry`: another attempt may succeed."""

    def __init__(self, reason: str, *, retry: bool = False, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.retry_after = retry_after
        """Seconds to wait at least before the next attempt."""


class TurnCancelled(BreadcrumbsError):
    """The turn was stopped on request."""


def error_reason(error: Exception) -> str:
    """Return the message of an error, encodable and of a bounded length."""
    text = encodable_text(str(error))
    if len(text) > _MAX_REASON_CHARACTERS:
        text = text[: _MAX_REASON_CHARACTERS - 1] + "…"
    return text or type(error).__name__
