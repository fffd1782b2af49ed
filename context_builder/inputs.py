"""Loads everything that contexts are built from, in one round trip per node."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.context_breadcrumb import context_id
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.retrieval.sources import Fetching
from breadcrumbs.runtime.store.batched_reads import Read, newest_of, pause_of, version_of
from breadcrumbs.runtime.store.placement import last_write_beside
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry import tracing


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
        self, configs: Sequence[ContextConfig], event: Event
    ) -> tuple[Breadcrumb | None, list[ContextInputs]]:
        """Return the breadcrumb of an event and the inputs of each config.

        The breadcrumb is None if it no longer exists. The other reads need only fields of the event, so they run in the
        same batch as the read of the breadcrumb.
        """
        trigger = version_of(self._store, event.owner_id, event.id, event.version)
        inputs, (crumb,) = await self._load(configs, event, trigger)
        return crumb, inputs

    async def load(self, config: ContextConfig, trigger: Breadcrumb) -> ContextInputs:
        """Return the inputs of one config."""
        (inputs,), _ = await self._load([config], trigger)
        return inputs

    async def _load(
        self, configs: Sequence[ContextConfig], trigger: Event | Breadcrumb, *others: Read[Any]
    ) -> tuple[list[ContextInputs], tuple[Any, ...]]:
        """Return the inputs of each config, and the results of the reads in `others`."""
        store, owner, session = self._store, trigger.owner_id, trigger.session_id
        began = None if tracing.active is None else time.time_ns()
        # `as_of` is read before the sources: a breadcrumb written after this time can be missing in the results.
        reads: list[Read[Any]] = [*others, last_write_beside(store, trigger)]
        if session is not None:
            reads.append(pause_of(store, owner, session))
        fetchings = []
        for config in configs:
            fetching = Fetching(store, config.first_sources, trigger, counted=config.counted_sources)
            reads += [newest_of(store, owner, context_id(store, config, trigger)), *fetching.reads]
            fetchings.append(fetching)
        definitions = self._hints.missing(owner, _schemas_of(configs, trigger))
        reads += definitions.reads.values()
        results = iter(await self._read(reads, fetchings))  # in the order of `reads`
        other_results = tuple(islice(results, len(others)))
        as_of = next(results)
        paused_at = None if session is None else next(results)
        loaded = []
        for fetching in fetchings:
            loaded.append(ContextInputs(as_of, next(results), paused_at, fetching, began))
            fetching.take_results(results)
        self._hints.store_results(definitions, results)
        return loaded, other_results

    async def _read(self, reads: Sequence[Read[Any]], fetchings: Sequence[Fetching]) -> Sequence[Any]:
        # Listings take several round trips, so they run concurrently with the reads.
        listings: list[Awaitable[Any]] = [entry.list_all() for entry in fetchings if entry.has_listings]
        if not listings:
            return await self._store.read_batch(*reads)
        results: Sequence[Any]
        results, *_ = await gather(self._store.read_batch(*reads), *listings)
        return results


def _schemas_of(configs: Sequence[ContextConfig], trigger: Event | Breadcrumb) -> set[str]:
    """Return the schemas of the sources and of the trigger."""
    names = {source.schema_name for config in configs for source in config.sources} | {trigger.schema_name}
    return {name for name in names if name is not None}
