"""The configs in force: from a file that people edit, and from `context.config.v1` breadcrumbs.

A saved edit is live within a second. One that does not work is refused with its place in the file, and
the last good config stays.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import structlog
from pydantic import ValidationError

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.json_places import place_of
from breadcrumbs.runtime.breadcrumb import complaints_of
from breadcrumbs.runtime.errors import BreadcrumbsError
from breadcrumbs.runtime.query import Query
from breadcrumbs.runtime.store import Store

_log = structlog.get_logger("breadcrumbs.context_builder")

_FRESH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ConfigComplaint:
    """One thing that is wrong in a config file."""

    where: str
    """Path in the document, such as `sources.0.fetch.limit`."""
    line: int
    column: int
    message: str


class ConfigError(BreadcrumbsError):
    """A config that cannot be used, with every complaint at its place."""

    def __init__(self, name: str, complaints: list[ConfigComplaint]) -> None:
        self.name = name
        self.complaints = complaints
        super().__init__(
            "\n".join(
                f"{name}:{c.line}:{c.column}: {c.where + ': ' if c.where else ''}{c.message}"
                for c in complaints
            )
        )


def parse_configs(raw: bytes, *, name: str = "config") -> tuple[ContextConfig, ...]:
    """Read a config document, or say line by line what is wrong with it."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ConfigError(
            name, [ConfigComplaint("", error.lineno, error.colno, f"not JSON: {error.msg}")]
        ) from None
    many = isinstance(document, list)
    entries: list[Any] = document if many else [document]
    configs: list[ContextConfig] = []
    complaints: list[ConfigComplaint] = []
    for number, entry in enumerate(entries):
        prefix: tuple[str | int, ...] = (number,) if many else ()
        if isinstance(entry, dict):
            entry = {key: value for key, value in entry.items() if key != "$schema"}
        try:
            configs.append(ContextConfig.model_validate(entry))
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)
            for detail, complaint in zip(details, complaints_of(error), strict=False):
                path = (*prefix, *detail["loc"])
                line, column = place_of(raw, path)
                message = complaint.message
                if detail["type"] == "extra_forbidden":
                    message = "there is no such field"
                complaints.append(
                    ConfigComplaint(".".join(str(part) for part in path), line, column, message)
                )
    seen: set[str] = set()
    for number, config in enumerate(configs):
        if config.consumer_id in seen and not complaints:
            line, column = place_of(raw, (number, "consumer_id"))
            complaints.append(
                ConfigComplaint(f"{number}.consumer_id", line, column, "this consumer_id is used twice")
            )
        seen.add(config.consumer_id)
    if not entries:
        complaints.append(ConfigComplaint("", 1, 1, "the list is empty: write at least one config"))
    if complaints:
        raise ConfigError(name, complaints)
    return tuple(configs)


class ConfigBook:
    """Answers: which configs hold for this owner now?"""

    def __init__(self, store: Store, path: Path | None, *, default: bytes | None = None) -> None:
        self._store = store
        self._path = path
        self._file: tuple[ContextConfig, ...] = parse_configs(default, name="built-in") if default else ()
        self._stamp: tuple[int, int, int] | None = None
        self._looked = 0.0
        self._owners: dict[UUID, tuple[float, tuple[ContextConfig, ...]]] = {}
        self.refused: ConfigError | None = None
        """The last edit, where it could not be used."""

    def load(self) -> None:
        """Read the file now; what is wrong with it is raised. For start-up."""
        self._reread()
        if self.refused is not None:
            raise self.refused

    async def configs(self, owner: UUID) -> tuple[ContextConfig, ...]:
        """File configs, and the owner's own on top: the same consumer_id replaces."""
        now = time.monotonic()
        if now - self._looked > _FRESH_SECONDS:
            self._looked = now
            self._reread()
        known = self._owners.get(owner)
        if known is None or now - known[0] > _FRESH_SECONDS:
            known = (now, await self._from_breadcrumbs(owner))
            if len(self._owners) > 10_000:
                self._owners.clear()
            self._owners[owner] = known
        own = known[1]
        if not own:
            return self._file
        replaced = {config.consumer_id for config in own}
        return tuple(config for config in self._file if config.consumer_id not in replaced) + own

    def _reread(self) -> None:
        if self._path is None:
            return
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            configs = parse_configs(self._path.read_bytes(), name=str(self._path))
        except OSError as error:
            self._refuse(
                ConfigError(str(self._path), [ConfigComplaint("", 1, 1, f"cannot be read: {error}")])
            )
            return
        except ConfigError as error:
            self._stamp = stamp
            self._refuse(error)
            return
        if self._stamp is not None:
            _log.info("context config reloaded", file=str(self._path), consumers=len(configs))
        self._stamp = stamp
        self._file = configs
        self.refused = None

    def _refuse(self, error: ConfigError) -> None:
        if self.refused is None or str(self.refused) != str(error):
            _log.error("context config refused, the last good one stays", problem=str(error))
        self.refused = error

    async def _from_breadcrumbs(self, owner: UUID) -> tuple[ContextConfig, ...]:
        page = await self._store.list(
            owner, Query(schema_name="context.config.v1", sort="created_at", limit=1000)
        )
        newest: dict[str, ContextConfig] = {}
        for crumb in page.items:
            document = {k: v for k, v in crumb.context.items() if k not in ("session_id", "llm_hints")}
            try:
                config = ContextConfig.model_validate(document)
            except ValidationError as error:
                _log.warning(
                    "a context.config.v1 breadcrumb is not usable",
                    breadcrumb=str(crumb.id),
                    problem="; ".join(f"{c.where}: {c.message}" for c in complaints_of(error)),
                )
                continue
            newest[config.consumer_id] = config
        return tuple(newest.values())
