"""Loads everything that contexts are built from, in one round trip per node."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.context_breadcrumb import context_id
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.retrieval.sources import Fetching
from breadcrumbs.runtime.store.batched_reads import (
    NewestRead,
    PauseRead,
    Read,
    SessionRead,
    VersionRead,
    build_reads,
)
from breadcrumbs.runtime.store.placement import last_write_beside
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.workers.turn import Turn

ReadAll: TypeAlias = Callable[..., Awaitable[Sequence[Any]]]
"""Returns the results of all its arguments, which are reads."""


@dataclass(frozen=True, slots=True)
class ContextInputs:
    """Everything that one context is built from."""

    as_of: int
    """All writes up to this time are included."""
    previous: Breadcrumb | None
    """The newest stored version of the context."""
    paused_at: int | None
    """Time when the session was paused, or None if it is not paused."""
    fetching: Fetching
    began_ns: int | None = None
    """Time when the reads began, in nanoseconds since 1970. None: tracing is off."""


class InputLoader:
    """Loads the inputs of contexts."""

    def __init__(self, store: Store, hints: SchemaHints) -> None:
        self._store = store
        self._hints = hints

    async def load_with_trigger(
        self, configs: Sequence[ContextConfig], turn: Turn
    ) -> tuple[Breadcrumb | None, list[ContextInputs]]:
        """Return the trigger of a turn and the inputs of each config.

        The trigger is None if it no longer exists. The other reads need only fields of the event, so they run in the
        same batch as the read of the trigger.
        """
        event = turn.event
        trigger = VersionRead(event.owner_id, event.id, event.version)
        read_batch = partial(turn.read_batch, self._store)
        inputs, (crumb,) = await self._load(configs, event, trigger, read_batch=read_batch)
        return crumb, inputs

    async def load(self, config: ContextConfig, trigger: Breadcrumb) -> ContextInputs:
        """Return the inputs of one config."""
        (inputs,), _ = await self._load([config], trigger)
        return inputs

    async def _load(
        self,
        configs: Sequence[ContextConfig],
        trigger: Event | Breadcrumb,
        *others: SessionRead,
        read_batch: ReadAll | None = None,
    ) -> tuple[list[ContextInputs], tuple[Any, ...]]:
        """Return the inputs of each config, and the results of the reads in `others`."""
        store, owner, session = self._store, trigger.owner_id, trigger.session_id
        began = None if tracing.active is None else time.time_ns()
        # `as_of` is read before the sources: a breadcrumb written after this time can be missing in the results.
        reads: list[Read[Any] | SessionRead] = [*others, last_write_beside(store, trigger)]
        if session is not None:
            reads.append(PauseRead(owner, session))
        fetchings = []
        for config in configs:
            fetching = Fetching(store, config.first_sources, trigger, counted=config.counted_sources)
            reads += [NewestRead(owner, context_id(store, config, trigger)), *fetching.reads]
            fetchings.append(fetching)
        definitions = self._hints.missing(owner, _schemas_of(configs, trigger))
        reads += definitions.reads.values()
        results = iter(
            await _read(read_batch or self._read_batch, reads, fetchings)
        )  # in the order of `reads`
        other_results = tuple(islice(results, len(others)))
        as_of = next(results)
        paused_at = None if session is None else next(results)
        loaded = []
        for fetching in fetchings:
            loaded.append(ContextInputs(as_of, next(results), paused_at, fetching, began))
            fetching.take_results(results)
        self._hints.store_results(definitions, results)
        return loaded, other_results

    async def _read_batch(self, *reads: Read[Any] | SessionRead) -> Sequence[Any]:
        return await self._store.read_batch(*build_reads(self._store, reads))


async def _read(
    read_batch: ReadAll, reads: Sequence[Read[Any] | SessionRead], fetchings: Sequence[Fetching]
) -> Sequence[Any]:
    # Listings take several round trips, so they run concurrently with the reads.
    listings: list[Awaitable[Any]] = [entry.list_all() for entry in fetchings if entry.has_listings]
    if not listings:
        return await read_batch(*reads)
    results: Sequence[Any]
    results, *_ = await gather(read_batch(*reads), *listings)
    return results


def _schemas_of(configs: Sequence[ContextConfig], trigger: Event | Breadcrumb) -> set[str]:
    """Return the schemas of the sources and of the trigger."""
    own = () if trigger.schema_name is None else (trigger.schema_name,)
    return set(own).union(*(config.source_schemas for config in configs))
