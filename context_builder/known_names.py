"""Names that exist in a store, for the warnings and the completion of the config editor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from breadcrumbs.context_builder.config_warnings import KnownNames
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.schema_names import INTERNAL_SCHEMAS
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.worker_records import has_living_worker, read_worker_kinds

LoadConsumers: TypeAlias = Callable[[UUID], Awaitable[frozenset[str]]]
"""Returns the consumers whose contexts the known agents read."""

_MAX_NAMES: Final = 500
_RECENT: Final = 200
"""Number of breadcrumbs whose tags are collected."""
_OWN_AGENTS: Final = "agents/"
"""Prefix of the kinds of workers that run agents inside a user's program."""


@dataclass(frozen=True, slots=True)
class CompletionValues:
    """Values that the config editor offers, each list sorted and limited."""

    schemas: list[str]
    tags: list[str]
    consumers: list[str]


async def load_known_names(store: Store, owner: UUID, load_consumers: LoadConsumers | None) -> KnownNames:
    """Return the names that a config of an owner can be compared with."""
    schemas, consumers = await gather(store.schema_names(owner), _consumers(store, owner, load_consumers))
    return KnownNames(schemas, consumers)


async def load_values(
    store: Store, owner: UUID, load_consumers: LoadConsumers | None, may_see: Callable[[Breadcrumb], bool]
) -> CompletionValues:
    """Return values for completion. Tags come from the newest breadcrumbs that the reader may see."""

    async def consumers() -> frozenset[str]:
        return frozenset() if load_consumers is None else await load_consumers(owner)

    query = Query(limit=_RECENT, keep=may_see, max_bytes=4 << 20)
    schemas, reading, page = await gather(store.schema_names(owner), consumers(), store.list(owner, query))
    tags = {tag for crumb in page.items for tag in crumb.tags if not tag.startswith(SESSION)}
    return CompletionValues(
        sorted(schemas - INTERNAL_SCHEMAS)[:_MAX_NAMES],
        sorted(tags)[:_MAX_NAMES],
        sorted(reading)[:_MAX_NAMES],
    )


async def _consumers(
    store: Store, owner: UUID, load_consumers: LoadConsumers | None
) -> frozenset[str] | None:
    """Return the consumers that agents read. None: a user's program runs agents that are not known here."""
    if load_consumers is None:
        return None
    for kind in await read_worker_kinds(store):
        if kind.startswith(_OWN_AGENTS) and await has_living_worker(store, kind):
            return None
    return await load_consumers(owner)
