"""Errors of turns.

BreadcrumbsError
├── TurnFailed      a handler failed to handle an event
└── TurnCancelled   a turn was stopped on request
    ├── TurnStopped by a cancellation (`agent.cancel.v1`)
    └── TurnRefused by a hook of the agent
"""

from __future__ import annotations

from typing import Final

from breadcrumbs.runtime.breadcrumb.text import encodable_text
from breadcrumbs.runtime.errors import BreadcrumbsError, StoreFull, StoreUnavailable

STORE_UNAVAILABLE: Final = (StoreUnavailable, StoreFull)
"""Errors of a store that cannot serve a request now. The handler is not at fault, so no attempt is counted."""

_MAX_REASON_CHARACTERS: Final = 4_000


class TurnFailed(BreadcrumbsError):
    """A handler failed to handle an event."""

    def __init__(self, reason: str, *, retry: bool = False, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        """Whether another attempt can succeed."""
        self.retry_after = retry_after
        """Minimum number of seconds before the next attempt. None if the error requests no pause."""


class TurnCancelled(BreadcrumbsError):
    """A turn was stopped on request."""


class TurnStopped(TurnCancelled):
    """A turn was stopped by a cancellation (`agent.cancel.v1`) in its session."""

    def __init__(self) -> None:
        super().__init__("cancelled")


class TurnRefused(TurnCancelled):
    """A hook refused the message or the answer. The reason is for the user, and a retry would not help."""

    def __init__(self, reason: str, hook: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hook = hook


def error_reason(error: Exception) -> str:
    """Return the message of an error, shortened to 4,000 characters.

    The text can be encoded as UTF-8. If the message is empty, return the name of the error class.
    """
    text = encodable_text(str(error))
    if len(text) > _MAX_REASON_CHARACTERS:
        text = text[: _MAX_REASON_CHARACTERS - 1] + "…"
    return text or type(error).__name__
