"""The configs in force: from a file that people edit, and from `context.config.v1` breadcrumbs.

A saved edit is live within a second. One that does not work is refused with its place in the file, and
the last good config stays.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import anyio
import structlog

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import (
    MAX_BYTES,
    ConfigComplaint,
    ConfigError,
    check_config,
    parse_configs,
)
from breadcrumbs.runtime.access.policy import restriction_of
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.store.batched_reads import recent_shared
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.owner_cache import Remembered

__all__ = [
    "CONFIG_SCHEMA",
    "ConfigBook",
    "ConfigComplaint",
    "ConfigError",
    "OwnConfig",
    "config_in",
    "own_configs",
    "parse_configs",
]

_log = structlog.get_logger("breadcrumbs.context_builder")

CONFIG_SCHEMA: Final = "context.config.v1"

_FRESH_SECONDS = 0.5
_SETTLED_SECONDS = 0.2
"""A file that was written to less than this ago may not be complete yet."""
_MOST_REMEMBERED = 10_000
_MOST_CONFIGS = 1_000
"""Of an owner: the newest count."""


class ConfigBook:
    """Answers: which configs hold for this owner now?"""

    def __init__(self, store: Store, path: Path | None, *, default: bytes | None = None) -> None:
        self._store = store
        self._path = path
        self._file: tuple[ContextConfig, ...] = parse_configs(default, name="built-in") if default else ()
        self._read: bytes | None = None
        """The file as it was last seen; None: there is none."""
        self._looked = float("-inf")
        self._own = Remembered(self._from_breadcrumbs)
        self._complained: set[tuple[UUID, int]] = set()
        self.refused: ConfigError | None = None
        """The last edit, where it could not be used."""

    def load(self) -> None:
        """Read the file now; what is wrong with it is raised. For start-up."""
        self._look(patiently=False)
        if self.refused is not None:
            raise self.refused

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look at the file also while nothing happens: who saves an edit wants to know at once what is wrong."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            yield
            tasks.cancel_scope.cancel()

    async def _watch(self) -> None:
        while True:
            self._look()
            await anyio.sleep(_FRESH_SECONDS)

    def look_now(self) -> None:
        """The file was just written: let the edit hold at once."""
        self._look(patiently=False)

    async def configs(self, owner: UUID) -> tuple[ContextConfig, ...]:
        """File configs, and the owner's own on top: the same consumer_id replaces."""
        if time.monotonic() - self._looked > _FRESH_SECONDS:
            self._look()
        return self._in_force(await self._own.get(owner))

    def _in_force(self, own: tuple[ContextConfig, ...]) -> tuple[ContextConfig, ...]:
        if not own:
            return self._file
        replaced = {config.consumer_id for config in own}
        return tuple(config for config in self._file if config.consumer_id not in replaced) + own

    def forget(self, owner: UUID) -> None:
        """The owner's configs have changed: read them again before they are used."""
        self._own.forget(owner)

    # The file

    def _look(self, *, patiently: bool = True) -> None:
        """See whether the file has changed. By its content: times and sizes miss quick edits."""
        self._looked = time.monotonic()
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except OSError as error:
            self._read = None
            complaint = ConfigComplaint("", 1, 1, f"cannot be read: {error.strerror or error}")
            self._refuse(ConfigError(str(self._path), [complaint]))
            return
        if raw == self._read:
            return
        try:
            configs = parse_configs(raw, name=str(self._path))
        except ConfigError as error:
            if patiently and self._is_being_written():
                return
            self._read = raw
            self._refuse(error)
            return
        if self._read is not None or self.refused is not None:
            _log.info(
                "context config reloaded",
                file=str(self._path),
                consumers=[config.consumer_id for config in configs],
            )
        self._read = raw
        self._file = configs
        self.refused = None

    def _is_being_written(self) -> bool:
        try:
            age = time.time() - self._path.stat().st_mtime if self._path is not None else 0.0
        except OSError:
            return True
        return 0 <= age < _SETTLED_SECONDS

    def _refuse(self, error: ConfigError) -> None:
        if self.refused is None or str(self.refused) != str(error):
            _log.error("context config refused, the last good one stays", problem=str(error))
        self.refused = error

    # Breadcrumbs

    async def _from_breadcrumbs(self, owner: UUID) -> tuple[ContextConfig, ...]:
        holding: list[ContextConfig] = []
        # Those in a session are not used: who posts one is told so there.
        (shared,) = await self._store.read_batch(
            recent_shared(self._store, owner, CONFIG_SCHEMA, _MOST_CONFIGS)
        )
        for own in await _in_order(self._store, shared):
            crumb = own.crumb
            if own.config is not None and own.holds:
                holding.append(own.config)
            if own.problem and (crumb.id, crumb.version) not in self._complained:
                if len(self._complained) > _MOST_REMEMBERED:
                    self._complained.clear()
                self._complained.add((crumb.id, crumb.version))
                _log.warning("a context config is not usable", breadcrumb=str(crumb.id), problem=own.problem)
        return tuple(holding)


@dataclass(frozen=True, slots=True)
class OwnConfig:
    """What a `context.config.v1` breadcrumb comes to."""

    crumb: Breadcrumb
    config: ContextConfig | None
    """Of its last version that can be used. None: there is none."""
    problem: str
    """Why its newest version cannot be used."""
    holds: bool
    """It is the one that was written last for its consumer."""


async def own_configs(store: Store, owner: UUID) -> list[OwnConfig]:
    """An owner's configs, the one that was written last first."""
    page = await store.list(owner, Query(schema_name=CONFIG_SCHEMA, limit=_MOST_CONFIGS))
    return await _in_order(store, page.items)


async def _in_order(store: Store, crumbs: Iterable[Breadcrumb]) -> list[OwnConfig]:
    read: list[tuple[int, Breadcrumb, ContextConfig | None, str]] = []
    for crumb in crumbs:
        (config, problem), written = config_in(crumb), crumb.updated
        if config is None and not _withheld(crumb):
            # A misspelt edit must not put a config in force that shows more.
            earlier = await store.last_usable(crumb, _written_config)
            written, config = earlier or (written, None)
        read.append((written, crumb, config, problem))
    found: list[OwnConfig] = []
    seen: set[str] = set()
    for _, crumb, config, problem in sorted(read, key=lambda entry: entry[0], reverse=True):
        holds = config is not None and config.consumer_id not in seen
        if config is not None:
            seen.add(config.consumer_id)
        found.append(OwnConfig(crumb, config, problem, holds))
    return found


def _written_config(crumb: Breadcrumb) -> tuple[int, ContextConfig] | None:
    config = config_in(crumb)[0]
    return None if config is None else (crumb.updated, config)


def config_in(crumb: Breadcrumb) -> tuple[ContextConfig | None, str]:
    """The config in a `context.config.v1` breadcrumb, or why it cannot be used."""
    if withheld := _withheld(crumb):
        return None, withheld
    document = {key: value for key, value in crumb.context.items() if key != "llm_hints"}
    config, faults = check_config(document)
    return config, "; ".join(f"{fault.where}: {fault.message}" for fault in faults)


def _withheld(crumb: Breadcrumb) -> str:
    """Why a config holds for nobody, whatever is in it; empty: it may hold."""
    match restriction_of(crumb):
        case "narrowed":
            return "a config holds for all sessions and users: post it without session: and user: tags"
        case "hidden":
            return "a config that is private or secret holds for nobody"
        case None:
            return ""
