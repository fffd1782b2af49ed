"""Waiting for the last answer of a chain, or for the answer of one agent in it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.deltas import Delta
from breadcrumbs.runtime.sessions.chains import Chain, Membership, read_chain
from breadcrumbs.runtime.sessions.open_turns import LoadTriggers
from breadcrumbs.runtime.sessions.outcome_matching import is_answer_or_error
from breadcrumbs.runtime.sessions.wait_for import WaitFor
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.stream_event import StreamValue
from breadcrumbs.runtime.streams.watch import SessionWatch

_FIRST_POLL_SECONDS: Final = 0.05
_MAX_POLL_SECONDS: Final = 1.0
"""Longest time between two reads of the chain. A chain can end without an event: an agent can decide not to answer."""


@dataclass(frozen=True, slots=True)
class Hop:
    """An answer or error of the chain that does not have to be the last one."""

    crumb: Breadcrumb


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a wait: the chain, and the outcome that the client waited for.

    Without an outcome, the chain has ended without it, or is not finished within the time.
    """

    chain: Chain
    outcome: Breadcrumb | None


@dataclass(frozen=True, slots=True)
class ChainReader:
    """Reads the chains of messages for a principal."""

    store: Store
    principal: Principal
    triggers: LoadTriggers

    async def read(self, message: Breadcrumb) -> Chain:
        return await read_chain(self.store, self.principal, message, self.triggers)


class ChainWatch:
    """Follows a session until a chain has the outcome that a client waits for."""

    def __init__(
        self, watch: SessionWatch, reader: ChainReader, message: Breadcrumb, wanted: WaitFor
    ) -> None:
        self._watch = watch
        self._reader = reader
        self._message = message
        self._wanted = wanted
        self._membership = Membership(message)
        self._shown: set[str] = set()
        """Ids of the outcomes that were yielded as hops."""
        self._poll = _FIRST_POLL_SECONDS

    async def until_ended(
        self, seconds: float, *, patience: float
    ) -> AsyncGenerator[Delta | Hop | Ended | None, None]:
        """Yield deltas and hops, and at last the end.

        Yield None each time nothing has happened for `patience` seconds.
        """
        deadline, heard = time.monotonic() + seconds, time.monotonic()
        self._watch.join_answers()  # a turn can already be running
        chain = await self._reader.read(self._message)
        while True:
            for hop in self._new_hops(chain):
                yield hop
            if (end := self._end(chain)) is not None:
                yield end
                return
            left = deadline - time.monotonic()
            if left <= 0:
                yield Ended(chain, None)
                return
            values = await self._watch.take(min(left, patience, self._pause(chain)))
            if values is None:
                return
            for value in values:
                if (piece := self._piece(value)) is not None:
                    heard = time.monotonic()
                    yield piece
            if time.monotonic() - heard >= patience:
                heard = time.monotonic()
                yield None
            if self._must_read(values, chain):
                chain = await self._reader.read(self._message)

    def _end(self, chain: Chain) -> Ended | None:
        outcome = chain.outcome(self._wanted)
        return Ended(chain, outcome) if outcome is not None or chain.finished else None

    def _pause(self, chain: Chain) -> float:
        """Return the seconds until the next read. A chain without an outcome gets one with an event."""
        if not chain.outcomes:
            return _MAX_POLL_SECONDS
        self._poll = min(_MAX_POLL_SECONDS, 2 * self._poll)
        return self._poll

    def _must_read(self, values: list[StreamValue], chain: Chain) -> bool:
        new = [value for value in values if not isinstance(value, Delta)]
        if new:
            self._poll = _FIRST_POLL_SECONDS
        return bool(new) or (not values and bool(chain.outcomes)) or self._watch.was_interrupted

    def _piece(self, value: StreamValue) -> Delta | Hop | None:
        if isinstance(value, Delta):
            return value if self._membership.is_id(value.trigger_id) else None
        crumb = self._watch.created_breadcrumb(value)
        if crumb is None or not self._membership.add(crumb):
            return None
        return self._hop(crumb)

    def _hop(self, crumb: Breadcrumb) -> Hop | None:
        if not is_answer_or_error(crumb.schema_name, crumb.context) or crumb.id_text in self._shown:
            return None
        self._shown.add(crumb.id_text)
        return Hop(crumb)

    def _new_hops(self, chain: Chain) -> list[Hop]:
        """Return the outcomes that no event has shown."""
        found = []
        for crumb in chain.outcomes:
            self._membership.add(crumb)
            if (hop := self._hop(crumb)) is not None:
                found.append(hop)
        return found
