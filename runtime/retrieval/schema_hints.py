"""Loads and caches the `llm_hints` of schema definitions.

They apply to breadcrumbs of the schema that have no hints of their own.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple
from uuid import UUID

from breadcrumbs.runtime.access.policy import find_restriction
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.schema_names import SCHEMA_DEFINITION
from breadcrumbs.runtime.store.batched_reads import Read, newest_tagged
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry import metrics

_HITS: Final = metrics.CACHE_HITS.labels("schema_definitions")
_MISSES: Final = metrics.CACHE_MISSES.labels("schema_definitions")

DEFINES_PREFIX: Final = "defines:"
_TTL_SECONDS: Final = 1.0
_MAX_CACHED_SCHEMAS: Final = 1_024


def own_hints(crumb: Breadcrumb) -> Any:
    """Return the hints of the breadcrumb itself."""
    return crumb.own_hints


class DefinitionReads(NamedTuple):
    """Reads for definitions that are not cached."""

    owner: UUID
    at: float
    reads: dict[str, Read[list[Breadcrumb]]]
    """By schema name."""


class SchemaHints:
    """Cache of schema definitions by owner and schema name, with a TTL of one second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cached: OrderedDict[tuple[UUID, str], tuple[float, Breadcrumb | None]] = OrderedDict()
        """Time of expiry (`time.monotonic`) and definition, by owner and schema name. None: there is no definition."""

    async def of(self, owner: UUID, schema_name: str) -> Any:
        """Return the hints of the owner's newest definition of a schema, or None."""
        definition = (await self.definitions(owner, {schema_name})).get(schema_name)
        return None if definition is None else own_hints(definition)

    async def definitions(self, owner: UUID, schema_names: AbstractSet[str]) -> dict[str, Breadcrumb]:
        """Return the definitions of those schemas that have one. All reads are sent together."""
        missing = self.missing(owner, schema_names)
        # Taken before the reads, because entries stored during the reads can evict them.
        found = {name: self._cached[owner, name][1] for name in schema_names - missing.reads.keys()}
        if missing.reads:
            found |= self.store_results(missing, await self._store.read_batch(*missing.reads.values()))
        return {name: crumb for name in sorted(found) if (crumb := found[name]) is not None}

    def missing(self, owner: UUID, schema_names: AbstractSet[str]) -> DefinitionReads:
        """Return reads for the definitions that are not cached. They can be sent together with other reads."""
        now = time.monotonic()
        reads = {
            name: newest_tagged(
                self._store, owner, SCHEMA_DEFINITION, DEFINES_PREFIX + name, applies_to_all_sessions
            )
            for name in schema_names
            if (cached := self._cached.get((owner, name))) is None or cached[0] <= now
        }
        if reads:
            _MISSES.value += len(reads)
        if len(reads) < len(schema_names):
            _HITS.value += len(schema_names) - len(reads)
        return DefinitionReads(owner, now, reads)

    def store_results(
        self, missing: DefinitionReads, results: Iterable[list[Breadcrumb]]
    ) -> dict[str, Breadcrumb | None]:
        """Cache the results of the reads and return them by schema."""
        found = {name: next(iter(crumbs), None) for name, crumbs in zip(missing.reads, results, strict=True)}
        for name, crumb in found.items():
            self._cached[missing.owner, name] = (missing.at + _TTL_SECONDS, crumb)
            self._cached.move_to_end((missing.owner, name))
        while len(self._cached) > _MAX_CACHED_SCHEMAS:
            self._cached.popitem(last=False)
        return found


async def load_all_definitions(store: Store, owner: UUID) -> dict[str, Breadcrumb]:
    """Return the newest definition of each schema."""
    found: dict[str, Breadcrumb] = {}
    async for crumb in store.walk(owner, Query(schema_name=SCHEMA_DEFINITION, keep=applies_to_all_sessions)):
        for tag in crumb.tags:
            if tag.startswith(DEFINES_PREFIX):
                found.setdefault(tag.removeprefix(DEFINES_PREFIX), crumb)
    return found


def applies_to_all_sessions(definition: Breadcrumb) -> bool:
    """Return whether a definition is not limited to one session, user or agent.

    Hints can contain literal text, so those of one session must not reach another.
    """
    return find_restriction(definition) is None
