"""Observes the calls to the store: durations, errors, and whether the store is available.

An outage makes every task of a process fail several times per second. `STORE_CALLS` sees all of these failures and logs
the outage once when it begins and once when it ends. The tasks log their own failures at the level debug. A server that
has lost the store, or contains another one, is an outage too, although it replies.
"""

from __future__ import annotations

import time
from typing import Any, Final

import structlog

from breadcrumbs.runtime.errors import CommandRefused, StoreError, StoreFull, StoreReplaced, StoreUnavailable
from breadcrumbs.runtime.telemetry import metrics

_log = structlog.get_logger("breadcrumbs.store")

QUIET_SECONDS: Final = 1.0
"""An outage is over when a call succeeds and no call has failed for this long. Links reconnect at different times."""

_FULL_SECONDS: Final = 60.0
"""Time between two log lines about a full store. Each refused write would be one otherwise."""

_OUTAGE: Final = "unavailable"
_FULL: Final = "full"
_REASONS: Final = (
    (
        CommandRefused,
        "refused",
    ),  # a subclass of `StoreUnavailable`: an ACL can forbid one command and allow others
    (StoreUnavailable, _OUTAGE),
    (StoreFull, _FULL),
    (StoreError, "error"),
)


class StoreCalls:
    """The calls of this process to its store."""

    def __init__(self) -> None:
        self.record = metrics.STORE_CALL_DURATION.labels().record
        """Counts the seconds from sending commands to their replies, and the number of the commands."""
        self._errors = {reason: metrics.STORE_CALL_ERRORS.labels(reason) for _, reason in _REASONS}
        self.settled = False
        """Whether the store is known to be available. The fast path of every reply is one check of this."""
        self._lost_at: float | None = None
        """Time (`time.monotonic`) when the outage began. None: there is no outage."""
        self._failed_at = 0.0
        self._replied_at: float | None = None
        """Time of the first reply after the last failure."""
        self._failures = 0
        self._replaced = False
        """Whether the server was found without the store. Its replies do not end the outage, only `verified` does."""
        self._full_at = -_FULL_SECONDS
        """Time of the last log line about a full store."""

    def replied(self) -> None:
        """Note a reply that is not an error. It ends an outage if no call has failed for a moment."""
        if not self.settled:
            self._settle()

    def failed(self, error: StoreError) -> None:
        """Count a failed call. The first failure of an outage is logged."""
        reason = _reason(error)
        self._errors[reason].inc()
        if reason == _FULL:
            self._report_full(error)
        if reason != _OUTAGE:
            return
        if self._begin_or_extend():
            _log.warning("store lost", reason=str(error))

    def replaced(self, error: StoreReplaced) -> None:
        """Count a check that did not find the store. The first one is logged, also during an outage."""
        self._begin_or_extend()
        if not self._replaced:
            self._replaced = True
            _log.error("store replaced, nothing is written any more", reason=str(error), advice=error.advice)

    def verified(self) -> None:
        """Note that the server contains the store. The next replies can end the outage."""
        self._replaced = False

    def _begin_or_extend(self) -> bool:
        """Count a failure of an outage. Return whether the outage begins with it."""
        self._failed_at, self._replied_at = time.monotonic(), None
        self._failures += 1
        if (
            not self.settled
        ):  # a store that was never reached is an error of the command that starts the process
            return False
        self.settled = False
        self._lost_at, self._failures = self._failed_at, 1
        metrics.STORE_UP.set(0)
        metrics.STORE_OUTAGES.labels().inc()
        return True

    def _report_full(self, error: StoreError) -> None:
        now = time.monotonic()
        if now - self._full_at >= _FULL_SECONDS:
            self._full_at = now
            _log.error("store full", reason=str(error))

    def _settle(self) -> None:
        if self._replaced:
            return
        now = time.monotonic()
        if self._replied_at is None:
            self._replied_at = now
        if self._lost_at is not None:
            if now - self._failed_at < QUIET_SECONDS:
                return
            seconds = round(self._replied_at - self._lost_at, 3)
            _log.warning("store back", seconds=seconds, failed_calls=self._failures)
            self._lost_at = None
        self.settled = True
        metrics.STORE_UP.set(1)


STORE_CALLS: Final = StoreCalls()
"""The observer of this process. A process has one store."""


def log_store_error(log: Any, event: str, error: StoreError, **fields: Any) -> None:
    """Log that a task failed because of the store.

    The level is debug during an outage, because `STORE_CALLS` logs it. Any other error is a warning.
    """
    write = log.debug if _reason(error) == _OUTAGE else log.warning
    write(event, **fields, error=str(error))


def _reason(error: StoreError) -> str:
    return next(name for kind, name in _REASONS if isinstance(error, kind))
