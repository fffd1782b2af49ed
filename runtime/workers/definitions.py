"""Definitions that owners post as breadcrumbs: context configs and agents.

Of the definitions with one key, the one that was written last is in force. A broken edit does not put a definition
out of force: its last usable version stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from uuid import UUID

import structlog

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.store.batched_reads import recent_shared
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import TurnFailed
from breadcrumbs.runtime.workers.failures import ErrorDetails, leave_error
from breadcrumbs.runtime.workers.owner_cache import OwnerCache
from breadcrumbs.runtime.workers.turn import Turn

_log = structlog.get_logger("breadcrumbs.definitions")

T = TypeVar("T")

MAX_DEFINITIONS: Final = 1_000
"""Definitions of an owner that are read: the newest."""
_MAX_REPORTED: Final = 10_000
"""Problems that are remembered, so that each is logged once."""


@dataclass(frozen=True, slots=True)
class DefinitionType(Generic[T]):
    """One type of definition."""

    schema_name: str
    label: str
    """Its name in messages, such as "context config"."""
    parse: Callable[[Breadcrumb], tuple[T | None, str]]
    """Returns the definition in a breadcrumb, or None and why it cannot be used."""
    key: Callable[[T], str]
    """Returns what a definition replaces another one by."""
    restriction: Callable[[Breadcrumb], str]
    """Returns why a breadcrumb applies to nobody, whatever its content, or an empty string."""

    def read(self, crumb: Breadcrumb) -> tuple[T | None, str]:
        """Return the definition in a breadcrumb, or None and why it cannot be used."""
        if problem := self.restriction(crumb):
            return None, problem
        return self.parse(crumb)


@dataclass(frozen=True, slots=True)
class PostedDefinition(Generic[T]):
    """A breadcrumb that holds a definition."""

    crumb: Breadcrumb
    definition: T | None
    """The definition of its last usable version. None: there is none."""
    problem: str
    """Why its newest version cannot be used."""
    in_force: bool
    """It was written last of those with its key."""


async def resolve_definitions(
    store: Store, kind: DefinitionType[T], crumbs: Iterable[Breadcrumb]
) -> list[PostedDefinition[T]]:
    """Return what each breadcrumb defines, the one that was written last first."""
    read: list[tuple[int, Breadcrumb, T | None, str]] = []
    for crumb in crumbs:
        definition, problem = kind.read(crumb)
        written = crumb.updated
        if definition is None and not kind.restriction(crumb):
            written, definition = await _last_usable(store, kind, crumb) or (written, None)
        read.append((written, crumb, definition, problem))
    resolved: list[PostedDefinition[T]] = []
    keys: set[str] = set()
    for _, crumb, definition, problem in sorted(read, key=lambda entry: entry[0], reverse=True):
        in_force = definition is not None and kind.key(definition) not in keys
        if definition is not None:
            keys.add(kind.key(definition))
        resolved.append(PostedDefinition(crumb, definition, problem, in_force))
    return resolved


async def _last_usable(store: Store, kind: DefinitionType[T], crumb: Breadcrumb) -> tuple[int, T] | None:
    """Return the newest earlier version that can be used, with the time it was written."""

    def read(version: Breadcrumb) -> tuple[int, T] | None:
        definition = kind.read(version)[0]
        return None if definition is None else (version.updated, definition)

    return await store.last_usable(crumb, read)


async def report_unusable(
    store: Store, turn: Turn, kind: DefinitionType[T], *, creator: str, inherited: tuple[str, ...]
) -> None:
    """Leave an error if the definition that an event is about cannot be used."""
    event = turn.event
    try:
        definition, problem = kind.read(await store.get_version(event.owner_id, event.id, event.version))
    except NotFound:
        return
    if definition is None:
        error = TurnFailed(f"this {kind.label} is not used: {problem}")
        await leave_error(store, turn, error, ErrorDetails(creator, event.id, inherited))


class OwnDefinitions(Generic[T]):
    """The definitions of each owner, cached."""

    def __init__(self, store: Store, kind: DefinitionType[T]) -> None:
        self._store = store
        self._kind = kind
        self._cache = OwnerCache(self._load)
        self._reported: set[tuple[UUID, int]] = set()
        self._warned: set[UUID] = set()

    async def get(self, owner: UUID) -> tuple[T, ...]:
        """Return the definitions in force, the one that was written last first."""
        return await self._cache.get(owner)

    def get_stale(self, owner: UUID) -> tuple[T, ...]:
        """Return the last loaded definitions regardless of their age."""
        return self._cache.get_stale(owner) or ()

    def invalidate(self, owner: UUID) -> None:
        """Load the definitions again before their next use: they have changed."""
        self._cache.invalidate(owner)

    async def _load(self, owner: UUID) -> tuple[T, ...]:
        # Breadcrumbs of a session are not read: a definition applies to all sessions.
        (shared,) = await self._store.read_batch(
            recent_shared(self._store, owner, self._kind.schema_name, MAX_DEFINITIONS)
        )
        if len(shared) == MAX_DEFINITIONS:
            self._warn_of_too_many(owner)
        resolved = await resolve_definitions(self._store, self._kind, shared)
        for posted in resolved:
            if posted.problem:
                self._report(posted)
        return tuple(
            posted.definition for posted in resolved if posted.in_force and posted.definition is not None
        )

    def _warn_of_too_many(self, owner: UUID) -> None:
        if owner not in self._warned:
            self._warned.add(owner)
            message = f"an owner has more {self._kind.label}s than are read, or just as many: delete old ones"
            _log.warning(message, owner=str(owner), read=f"the newest {MAX_DEFINITIONS}")

    def _report(self, posted: PostedDefinition[T]) -> None:
        version = (posted.crumb.id, posted.crumb.version)
        if version in self._reported:
            return
        if len(self._reported) > _MAX_REPORTED:
            self._reported.clear()
        self._reported.add(version)
        message = f"the {self._kind.label} is not usable"
        _log.warning(message, breadcrumb=str(posted.crumb.id), problem=posted.problem)
