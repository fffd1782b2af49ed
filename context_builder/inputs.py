"""Loads everything that contexts are built from, in one round trip per node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.context_breadcrumb import context_id
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.retrieval.sources import Fetching
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.batched_reads import Question, newest_of, version_of
from breadcrumbs.runtime.store.placement import last_write_beside
from breadcrumbs.runtime.store.store import Store


@dataclass(frozen=True, slots=True)
class ContextInputs:
    """Everything that one context is built from."""

    as_of: int
    """Everything that was written up to this time is included."""
    previous: Breadcrumb | None
    """The newest stored version of the context."""
    paused_at: int | None
    """Since when the session is paused; None: it is not."""
    fetching: Fetching


class InputLoader:
    """Loads the inputs of contexts."""

    def __init__(self, store: Store, hints: SchemaHints) -> None:
        self._store = store
        self._hints = hints
        self._sessions = Sessions(store)

    async def load_with_trigger(
        self, configs: Sequence[ContextConfig], event: Event
    ) -> tuple[Breadcrumb | None, list[ContextInputs]]:
        """Return the breadcrumb of an event (None: it is gone), and the inputs of each config.

        The event has all that the other reads need, so they need not wait for the breadcrumb.
        """
        trigger = version_of(self._store, event.owner_id, event.id, event.version)
        inputs = await self._load(configs, event, trigger)
        return trigger.answer, inputs

    async def load(self, config: ContextConfig, trigger: Breadcrumb) -> ContextInputs:
        """Return the inputs of one config."""
        (inputs,) = await self._load([config], trigger)
        return inputs

    async def _load(
        self, configs: Sequence[ContextConfig], trigger: Event | Breadcrumb, *others: Question[Any]
    ) -> list[ContextInputs]:
        store, owner, session = self._store, trigger.owner_id, trigger.session_id
        # The time comes first: breadcrumbs that are written after it may be missing in the results below.
        as_of = last_write_beside(store, trigger)
        questions: list[Question[Any]] = [*others, as_of]
        paused_at = None if session is None else self._sessions.paused_at(owner, session)
        if paused_at is not None:
            questions.append(paused_at)
        loading = []
        for config in configs:
            previous = newest_of(store, owner, context_id(store, config, trigger))
            fetching = Fetching(store, config.sources, trigger)
            questions += [previous, *fetching.questions]
            loading.append((previous, fetching))
        looking_up = self._hints.looking_up(owner, _schemas_of(configs, trigger))
        questions += looking_up.questions.values()
        # Listings take several round trips: they run beside the questions.
        listings: list[Awaitable[Any]] = [entry.list_all() for _, entry in loading if entry.has_listings]
        if listings:
            await asyncio.gather(store.ask(*questions), *listings)
        else:
            await store.ask(*questions)
        self._hints.learn(looking_up)
        paused = None if paused_at is None else paused_at.answer
        return [ContextInputs(as_of.answer, previous.answer, paused, entry) for previous, entry in loading]


def _schemas_of(configs: Sequence[ContextConfig], trigger: Event | Breadcrumb) -> set[str]:
    """Return the schemas of the sources and of the trigger."""
    names = {source.schema_name for config in configs for source in config.sources} | {trigger.schema_name}
    return {name for name in names if name is not None}
