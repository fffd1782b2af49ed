"""Definitions that owners post as breadcrumbs: context configs and agent definitions.

If several definitions of an owner have the same key, the one that was written last is in force. If an edit makes a
definition invalid, its last valid version stays in force.
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
"""Maximum number of definitions of one type that are read per owner. Older ones are ignored."""
_MAX_REPORTED: Final = 10_000
"""Problems to remember so that each is logged once. The set is cleared above this size."""


@dataclass(frozen=True, slots=True)
class DefinitionType(Generic[T]):
    """Type of definition: its schema, and the functions that read it."""

    schema_name: str
    label: str
    """Name in messages, such as "context config"."""
    parse: Callable[[Breadcrumb], tuple[T | None, str]]
    """Returns the definition in a breadcrumb, or None and the problem."""
    key: Callable[[T], str]
    """Returns the key of a definition. A newer definition with the same key replaces it."""
    restriction: Callable[[Breadcrumb], str]
    """Returns why a breadcrumb is ignored regardless of its content, or an empty string."""

    def read(self, crumb: Breadcrumb) -> tuple[T | None, str]:
        """Return the definition in a breadcrumb, or None and the problem."""
        if problem := self.restriction(crumb):
            return None, problem
        return self.parse(crumb)


@dataclass(frozen=True, slots=True)
class PostedDefinition(Generic[T]):
    """Breadcrumb that contains a definition."""

    crumb: Breadcrumb
    definition: T | None
    """Definition of the last valid version. None if no version is valid."""
    problem: str
    """Why the newest version is not used. Empty if it is valid."""
    in_force: bool
    """Whether this definition was written last of all definitions with its key."""


async def resolve_definitions(
    store: Store, kind: DefinitionType[T], crumbs: Iterable[Breadcrumb]
) -> list[PostedDefinition[T]]:
    """Return the definition of each breadcrumb, last written first.

    If the newest version is invalid, the last valid version and its time are used.
    """
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
    """Return the newest earlier version that is valid, with the time it was written."""

    def read(version: Breadcrumb) -> tuple[int, T] | None:
        definition = kind.read(version)[0]
        return None if definition is None else (version.updated, definition)

    return await store.last_usable(crumb, read)


async def report_unusable(
    store: Store, turn: Turn, kind: DefinitionType[T], *, creator: str, inherited: tuple[str, ...]
) -> None:
    """Write an error if the definition of an event is not used.

    This concerns the version that the event refers to. Do nothing if that version no longer exists.
    """
    event = turn.event
    try:
        definition, problem = kind.read(await store.get_version(event.owner_id, event.id, event.version))
    except NotFound:
        return
    if definition is None:
        error = TurnFailed(f"this {kind.label} is not used: {problem}")
        await leave_error(store, turn, error, ErrorDetails(creator, event.id, inherited))


class OwnDefinitions(Generic[T]):
    """Cache of the definitions in force, by owner."""

    def __init__(self, store: Store, kind: DefinitionType[T]) -> None:
        self._store = store
        self._kind = kind
        self._cache = OwnerCache(self._load, name=f"{kind.label}s".replace(" ", "_"))
        self._reported: set[tuple[UUID, int]] = set()
        self._warned: set[UUID] = set()
        self._origins: dict[UUID, dict[str, Breadcrumb]] = {}

    async def get(self, owner: UUID) -> tuple[T, ...]:
        """Return the definitions in force, last written first.

        They are at most half a second old.
        """
        return await self._cache.get(owner)

    def get_stale(self, owner: UUID) -> tuple[T, ...]:
        """Return the last loaded definitions regardless of their age, or none."""
        return self._cache.get_stale(owner) or ()

    def origin(self, owner: UUID, key: str) -> Breadcrumb | None:
        """Return the breadcrumb of the definition that was last loaded for a key, or None.

        If its newest version is invalid, an earlier version is in force.
        """
        return self._origins.get(owner, {}).get(key)

    def invalidate(self, owner: UUID) -> None:
        """Drop the cached definitions of an owner, because they have changed."""
        self._cache.invalidate(owner)

    async def _load(self, owner: UUID) -> tuple[T, ...]:
        # Definitions apply to all sessions, so breadcrumbs inside a session are not read.
        (shared,) = await self._store.read_batch(
            recent_shared(self._store, owner, self._kind.schema_name, MAX_DEFINITIONS)
        )
        if len(shared) == MAX_DEFINITIONS:
            self._warn_of_too_many(owner)
        resolved = await resolve_definitions(self._store, self._kind, shared)
        for posted in resolved:
            if posted.problem:
                self._report(posted)
        if len(self._origins) > _MAX_REPORTED:
            self._origins.clear()
        in_force = [posted for posted in resolved if posted.in_force]
        self._origins[owner] = {
            self._kind.key(posted.definition): posted.crumb
            for posted in in_force
            if posted.definition is not None
        }
        return tuple(posted.definition for posted in in_force if posted.definition is not None)

    def _warn_of_too_many(self, owner: UUID) -> None:
        if owner not in self._warned:
            self._warned.add(owner)
            message = f"limit of {self._kind.label}s reached, older ones are ignored: delete some"
            _log.warning(message, owner=str(owner), read=f"the newest {MAX_DEFINITIONS}")

    def _report(self, posted: PostedDefinition[T]) -> None:
        version = (posted.crumb.id, posted.crumb.version)
        if version in self._reported:
            return
        if len(self._reported) > _MAX_REPORTED:
            self._reported.clear()
        self._reported.add(version)
        message = f"{self._kind.label} is not used"
        _log.warning(message, breadcrumb=str(posted.crumb.id), problem=posted.problem)
