"""Evaluation of the conditions of event streams: shared between streams, bounded per event, and paced.

Conditions come from clients and run on every event. Three rules keep them from delaying others:

- Each distinct condition is decided once per event, however many streams have it.
- A stream has a budget per event for all of its conditions. A condition that exceeds it is undecided, and the client is
  told so.
- All evaluations of a process take turns, token by token, and use at most a quarter of its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import anyio

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.access.redaction import redact_context
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.selectors import ContextMatch, Selector
from breadcrumbs.runtime.hints.jsonpath import SearchBudget

_MAX_WORK_SECONDS: Final = 0.002  # evaluation without a pause; short, because the event loop waits for it
_PAUSE_FACTOR: Final = 3  # a pause is this many times as long as the work before it
_MAX_PAUSE_SECONDS: Final = 0.05

_T = TypeVar("_T")


class _RedactedCrumb:
    """A breadcrumb as some principals see it, and the decisions about it."""

    def __init__(self, crumb: Breadcrumb) -> None:
        self.crumb = crumb
        self._decided: dict[bytes, bool] = {}

    def decide(self, condition: ContextMatch, budget: SearchBudget) -> bool | None:
        known = self._decided.get(condition.key)
        if known is not None:
            return known
        decision = condition.decide(self.crumb.context, budget)
        if decision is not None:  # another stream may have more budget left
            self._decided[condition.key] = decision
        return decision


class Evaluation:
    """Decides conditions about the breadcrumb of one event, for all streams."""

    def __init__(self, crumb: Breadcrumb) -> None:
        self.crumb = crumb
        self._unredacted = _RedactedCrumb(crumb)
        self._views: dict[Principal, _RedactedCrumb] = {}

    def decide(self, principal: Principal, selector: Selector, budget: SearchBudget) -> bool | None:
        """Whether a selector matches what the principal may see. None: the decision exceeds the budget."""
        view = self._view(principal)
        if not selector.matches_header(view.crumb):
            return False
        undecided = False
        for condition in selector.context_match or ():
            decision = view.decide(condition, budget)
            if decision is False:
                return False
            undecided = undecided or decision is None
        return None if undecided else True

    def _view(self, principal: Principal) -> _RedactedCrumb:
        view = self._views.get(principal)
        if view is None:
            seen = redact_context(principal, self.crumb)
            view = self._unredacted if seen is self.crumb else _RedactedCrumb(seen)
            self._views[principal] = view
        return view


class Pacer:
    """Runs evaluations in turns with pauses in between, so that they do not delay the rest of the event loop."""

    def __init__(self) -> None:
        self._turn = anyio.Lock(fast_acquire=True)
        self._token_locks: WeakValueDictionary[Hashable, anyio.Lock] = WeakValueDictionary()
        self._worked_seconds = 0.0

    async def run(self, token: Hashable, work: Callable[[], _T]) -> _T:
        """Run `work` when it is the token's turn. A token has one place in the queue, however much it has to do."""
        token_lock = self._token_locks.get(token)
        if token_lock is None:
            token_lock = self._token_locks[token] = anyio.Lock(fast_acquire=True)
        async with token_lock, self._turn:
            began = time.thread_time()
            try:
                return work()
            finally:
                self._worked_seconds += time.thread_time() - began
                if self._worked_seconds >= _MAX_WORK_SECONDS:
                    pause = min(self._worked_seconds * _PAUSE_FACTOR, _MAX_PAUSE_SECONDS)
                    self._worked_seconds = 0.0
                    await anyio.sleep(pause)
