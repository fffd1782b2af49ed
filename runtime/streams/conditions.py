"""Evaluates the conditions of event streams.

Conditions come from clients and are evaluated for every event. Three rules keep them from delaying other clients:

- Each distinct condition is evaluated once per event, regardless of how many streams have it.
- A stream has a budget per event for all of its conditions. A condition that exceeds the budget is undecided, and the
  client gets an `undecided` event.
- All evaluations of a process run one at a time, alternate between tokens, and use at most a quarter of its time.
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

_MAX_WORK_SECONDS: Final = 0.002  # evaluation without a pause; short, because it blocks the event loop
_PAUSE_FACTOR: Final = 3  # a pause is this many times as long as the work before it
_MAX_PAUSE_SECONDS: Final = 0.05

_T = TypeVar("_T")


class _CrumbView:
    """Breadcrumb as some principals may see it, with cached results of conditions."""

    def __init__(self, crumb: Breadcrumb) -> None:
        self.crumb = crumb
        self._decided: dict[bytes, bool] = {}

    def decide(self, condition: ContextMatch, budget: SearchBudget) -> bool | None:
        """Return whether a condition matches, or None if the budget is used up."""
        cached = self._decided.get(condition.key)
        if cached is not None:
            return cached
        decision = condition.decide(self.crumb.context, budget)
        if decision is not None:  # undecided is not cached, because another stream can have more budget left
            self._decided[condition.key] = decision
        return decision


class Evaluation:
    """Evaluates conditions on the breadcrumb of one event, for all streams."""

    def __init__(self, crumb: Breadcrumb) -> None:
        self.crumb = crumb
        self._unredacted = _CrumbView(crumb)
        self._views: dict[Principal, _CrumbView] = {}

    def decide(self, principal: Principal, selector: Selector, budget: SearchBudget) -> bool | None:
        """Return whether a selector matches the part that a principal may see.

        Return None if the evaluation exceeds the budget.
        """
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

    def _view(self, principal: Principal) -> _CrumbView:
        view = self._views.get(principal)
        if view is None:
            seen = redact_context(principal, self.crumb)
            view = self._unredacted if seen is self.crumb else _CrumbView(seen)
            self._views[principal] = view
        return view


class Pacer:
    """Runs evaluations one at a time with pauses in between.

    The pauses leave time for other tasks of the event loop.
    """

    def __init__(self) -> None:
        self._turn = anyio.Lock(fast_acquire=True)
        self._token_locks: WeakValueDictionary[Hashable, anyio.Lock] = WeakValueDictionary()
        self._worked_seconds = 0.0
        """CPU time of evaluations since the last pause."""

    async def run(self, token: Hashable, work: Callable[[], _T]) -> _T:
        """Run `work` when no other evaluation runs.

        A token waits with only one evaluation at a time, regardless of how many it has. So tokens alternate.
        """
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
