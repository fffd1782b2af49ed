"""What a worker is going to ask about an event, asked while the server still writes what the event speaks of.

Whoever posts a message may share its process with the builder that handles it, and the builder with the runner.
Then the questions of the next turn leave right behind the write that leads to it, on the same connection, and
are answered by the time that the event comes: two round trips fewer from a message to its answer.

It is a head start and no more. What was found out counts only for the event that it was asked for, where its turn
is the next one in its session, begins soon, and nothing has happened there since; else the turn asks by itself.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

from breadcrumbs.runtime.events import Event

_FRESH_SECONDS: Final = 0.1
_MOST: Final = 2
"""Where more is going on, a turn's waiting is filled with the work of others and there is nothing to gain; and
events come too late for what was asked ahead of them."""


@dataclass(slots=True)
class Ahead:
    """An event that is expected."""

    lane: object
    event: Event
    """But for its time, which only the server knows."""
    until: float
    found: asyncio.Future[Any]
    """What its turn will want to know; None: it has to ask."""
    came: bool = False

    def is_about(self, event: Event) -> bool:
        expected = self.event
        return (event.id, event.version, event.operation, event.owner_id) == (
            expected.id, expected.version, expected.operation, expected.owner_id,
        )  # fmt: skip

    def goes_before(self, lane: object, event: Event) -> bool:
        """Whether its turn comes first, and changes what that of the other one will want to know."""
        return self.lane is lane and not self.came and self.event.id != event.id


class Foresight:
    """What a worker expects: at most one event in each session."""

    def __init__(self) -> None:
        self._ahead: OrderedDict[Hashable, Ahead] = OrderedDict()

    def expect(self, session: Hashable, lane: object, event: Event) -> Ahead | None:
        """None: not now. `lane`: as long as it is the worker's; one that is lost and taken again is another one."""
        self._forget_the_late()
        earlier = self._ahead.get(session)
        if earlier is not None and earlier.goes_before(lane, event):
            return None
        self._ahead.pop(session, None)
        if len(self._ahead) >= _MOST:
            return None
        loop = asyncio.get_running_loop()
        ahead = self._ahead[session] = Ahead(lane, event, loop.time() + _FRESH_SECONDS, loop.create_future())
        return ahead

    def has_room(self) -> bool:
        """Whether one more may be expected."""
        self._forget_the_late()
        return len(self._ahead) < _MOST

    def _forget_the_late(self) -> None:
        """Writes that came to nothing, or whose events take too long."""
        now = asyncio.get_running_loop().time()
        while self._ahead and next(iter(self._ahead.values())).until < now:
            self._ahead.popitem(last=False)

    def passed(self, session: Hashable, event: Event) -> None:
        """Something has happened in a session. What comes after the event that was expected may change what is
        known; what comes before it was there when the questions were asked."""
        ahead = self._ahead.get(session)
        if ahead is None:
            return
        if ahead.is_about(event):
            ahead.came = True
        elif ahead.came:
            del self._ahead[session]

    def take(self, session: Hashable, lane: object, event: Event) -> asyncio.Future[Any] | None:
        """What was found out for a turn that begins now."""
        ahead = self._ahead.pop(session, None)
        if ahead is None or ahead.lane is not lane or not ahead.is_about(event):
            return None
        return ahead.found if asyncio.get_running_loop().time() <= ahead.until else None
