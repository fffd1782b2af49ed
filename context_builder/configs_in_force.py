"""The context configs in force, from a config file and from `context.config.v1` breadcrumbs.

A saved edit takes effect within a second. An invalid edit is logged with its line and column, and the last valid
config stays in force.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import anyio
import structlog

from breadcrumbs.context_builder.archiving import breadcrumb_source
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_changes import describe_changes
from breadcrumbs.context_builder.config_checks import (
    MAX_BYTES,
    ConfigComplaint,
    ConfigError,
    Fault,
    check_config,
    parse_configs,
)
from breadcrumbs.runtime.access.policy import find_restriction
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.schema_names import CONTEXT_CONFIG
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.definitions import (
    MAX_DEFINITIONS,
    DefinitionType,
    OwnDefinitions,
    PostedDefinition,
    resolve_definitions,
)

_log = structlog.get_logger("breadcrumbs.context_builder")


_CHECK_SECONDS: Final = 0.5
"""Time between two checks of the file."""
_SETTLED_SECONDS: Final = 0.2
"""A file that was modified less than this ago can be incomplete."""

_MAX_REPORTED: Final = 10_000

TEXT_KEY: Final = "$text"
"""Key of the text in a config breadcrumb. An editor stores it there to keep the layout. It has no effect."""


def _parse_config(crumb: Breadcrumb) -> tuple[ContextConfig | None, str]:
    config, faults = check_config(_document_in(crumb.context))
    return config, "; ".join(f"{fault.where}: {fault.message}" for fault in faults)


def check_posted_config(context: Mapping[str, Any]) -> list[Fault]:
    """Return the errors of a config in the context of a breadcrumb."""
    return check_config(_document_in(context))[1]


def _document_in(context: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in context.items() if key not in ("llm_hints", TEXT_KEY)}


def _restriction_message(crumb: Breadcrumb) -> str:
    match find_restriction(crumb):
        case "narrowed":
            return "a config applies to all sessions and users: post it without session: and user: tags"
        case "hidden":
            return "a private or secret config is not used: post it without this visibility or sensitivity"
        case None:
            return ""


CONTEXT_CONFIGS: Final[DefinitionType[ContextConfig]] = DefinitionType(
    schema_name=CONTEXT_CONFIG,
    label="context config",
    parse=_parse_config,
    key=lambda config: config.consumer_id,
    restriction=_restriction_message,
)


class ConfigsInForce:
    """Returns the configs that are in force for an owner.

    `default` is the JSON of the configs that are used until the file has been read.
    """

    def __init__(self, store: Store, path: Path | None, *, default: bytes | None = None) -> None:
        self.path = path
        self.valid_content: bytes = default or b""
        """The last valid content of the file, which is in force. Empty if there is none."""
        self._from_file: tuple[ContextConfig, ...] = (
            parse_configs(default, name="built-in") if default else ()
        )
        self._last_content: bytes | None = None
        """Content of the file at the last check. None if it could not be read."""
        self._was_valid = False
        """Whether the file has been valid since the start of the process."""
        self._checked_at = float("-inf")
        self._own = OwnDefinitions(store, CONTEXT_CONFIGS)
        self._overriding: set[tuple[UUID, int]] = set()
        """Breadcrumbs that were logged as overriding the file, with their versions."""
        self.refused: ConfigError | None = None
        """Errors of the current content of the file, or None if it is valid."""

    @property
    def file_configs(self) -> tuple[ContextConfig, ...]:
        """The configs of the file."""
        return self._from_file

    def load(self) -> None:
        """Read the file at startup. Raise `ConfigError` if it is invalid."""
        self._check_file(allow_partial=False)
        if self.refused is not None:
            raise self.refused

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Check the file regularly while the block runs.

        An invalid edit is then logged even if no turn runs.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            yield
            tasks.cancel_scope.cancel()

    async def _watch(self) -> None:
        while True:
            self._check_file()
            await anyio.sleep(_CHECK_SECONDS)

    def reload(self) -> None:
        """Read the file immediately, after this process has written it."""
        self._check_file(allow_partial=False)

    async def get(
        self, owner: UUID, shared: tuple[ContextConfig, ...] | None = None
    ) -> tuple[ContextConfig, ...]:
        """Return the configs of the file and of the owner.

        A config of the owner replaces the config of the file for the same consumer. `shared` are configs to use instead
        of those of the file.
        """
        if time.monotonic() - self._checked_at > _CHECK_SECONDS:
            self._check_file()
        own = await self._own.get(owner)
        shared = self._from_file if shared is None else shared
        if not own:
            return shared
        replaced = {config.consumer_id for config in own}
        self._report_overridden(owner, replaced)
        return tuple(config for config in shared if config.consumer_id not in replaced) + own

    def _report_overridden(self, owner: UUID, replaced: set[str]) -> None:
        """Log each version of a breadcrumb that replaces a config of the file, once."""
        for config in self._from_file:
            consumer = config.consumer_id
            if consumer not in replaced or (origin := self._own.origin(owner, consumer)) is None:
                continue
            version = (origin.id, origin.version)
            if version in self._overriding:
                continue
            if len(self._overriding) >= _MAX_REPORTED:
                self._overriding.clear()
            self._overriding.add(version)
            _log.info(
                "context config of the file overridden",
                consumer=consumer,
                owner=str(owner),
                breadcrumb=str(origin.id),
                version=origin.version,
                file="built-in" if self.path is None else str(self.path),
            )

    def source_of(self, owner: UUID, config: ContextConfig) -> str:
        """Return the source of a config that `get` has returned: a breadcrumb, the path of the file, or "built-in"."""
        origin = self._own.origin(owner, config.consumer_id)
        if origin is not None:
            return breadcrumb_source(origin.id, origin.version)
        return "built-in" if self.path is None else str(self.path)

    def invalidate(self, owner: UUID) -> None:
        """Drop the cached configs of an owner after a change."""
        self._own.invalidate(owner)

    def _check_file(self, *, allow_partial: bool = True) -> None:
        """Reload the file if its content has changed.

        The content is compared, because a check of time and size would miss quick edits. With `allow_partial`, an
        invalid file that was modified just now is not reported yet, because it can be incomplete. The next check reads
        it again.
        """
        self._checked_at = time.monotonic()
        if self.path is None:
            return
        try:
            with self.path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except OSError as error:
            self._last_content = None
            complaint = ConfigComplaint("", 1, 1, f"cannot be read: {error.strerror or error}")
            self._refuse(ConfigError(str(self.path), [complaint]))
            return
        if raw == self._last_content:
            return
        try:
            configs = parse_configs(raw, name=str(self.path))
        except ConfigError as error:
            if allow_partial and self._is_being_written():
                return
            self._last_content = raw
            self._refuse(error)
            return
        if self._last_content is not None or self.refused is not None:
            _log.info(
                "context config reloaded",
                file=str(self.path),
                consumers=[config.consumer_id for config in configs],
                **describe_changes(self._from_file, configs),
            )
        self._last_content = self.valid_content = raw
        self._was_valid = True
        self._from_file = configs
        self.refused = None

    def _is_being_written(self) -> bool:
        try:
            age = time.time() - self.path.stat().st_mtime if self.path is not None else 0.0
        except OSError:
            return True
        return 0 <= age < _SETTLED_SECONDS

    @property
    def _used_instead(self) -> str:
        if self._was_valid:
            return "keeping the last valid one"
        return "using the built-in one" if self.valid_content else "and there is no earlier one"

    def _refuse(self, error: ConfigError) -> None:
        if self.refused is None or str(self.refused) != str(error):
            _log.error(f"context config invalid, {self._used_instead}", problem=str(error))
        self.refused = error


async def own_configs(store: Store, owner: UUID) -> list[PostedDefinition[ContextConfig]]:
    """Return all configs that an owner has posted, the most recently written first."""
    page = await store.list(owner, Query(schema_name=CONTEXT_CONFIG, limit=MAX_DEFINITIONS))
    return await resolve_definitions(store, CONTEXT_CONFIGS, page.items)
