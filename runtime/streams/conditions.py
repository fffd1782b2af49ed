"""Evaluation of the conditions of event streams: shared between streams, bounded per event, and paced.

Conditions come from clients and run on every event. Three rules keep them from delaying others:

- Each distinct condition is decided once per event, however many streams have it.
- A stream has a budget per event for all of its conditions. A condition that it does not suffice for is undecided, and
  the client is told so.
- All evaluations of a process take turns, token by token, and use at most a quarter of its time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.access.redaction import redact_context
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.selectors import ContextMatch, Selector
from breadcrumbs.runtime.hints.jsonpath import Budget

_SLICE_SECONDS: Final = 0.002  # evaluation without a pause; short, because everything else waits for it
_PAUSE_FACTOR: Final = 3  # pause this many times as long as was worked: a quarter of the time is work
_LONGEST_PAUSE_SECONDS: Final = 0.05

_T = TypeVar("_T")


class _View:
    """A breadcrumb as some tokens see it, and what is decided about it."""

    def __init__(self, crumb: Breadcrumb) -> None:
        self.crumb = crumb
        self._decided: dict[bytes, bool] = {}

    def decide(self, condition: ContextMatch, budget: Budget) -> bool | None:
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
        self._whole = _View(crumb)
        self._views: dict[Principal, _View] = {}

    def decide(self, principal: Principal, selector: Selector, budget: Budget) -> bool | None:
        """Whether a selector matches what the principal may see. None: the budget does not suffice to tell."""
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

    def _view(self, principal: Principal) -> _View:
        view = self._views.get(principal)
        if view is None:
            seen = redact_context(principal, self.crumb)
            view = self._views[principal] = self._whole if seen is self.crumb else _View(seen)
        return view


class Pacer:
    """Runs evaluations in turns with pauses in between, so that they do not delay the rest of the event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._tokens: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._worked = 0.0

    async def run(self, token: Hashable, work: Callable[[], _T]) -> _T:
        """Run `work` when it is the token's turn. A token has one place in the queue, however much it has to do."""
        own = self._tokens.get(token)
        if own is None:
            own = self._tokens[token] = asyncio.Lock()
        async with own, self._turn:
            began = time.thread_time()
            try:
                return work()
            finally:
                self._worked += time.thread_time() - began
                if self._worked >= _SLICE_SECONDS:
                    pause = min(self._worked * _PAUSE_FACTOR, _LONGEST_PAUSE_SECONDS)
                    self._worked = 0.0
                    await asyncio.sleep(pause)
