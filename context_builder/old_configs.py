"""Finds the config of a past context by its digest: in the archive, among the configs in force, in their history."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import ConfigError, check_config, parse_configs
from breadcrumbs.context_builder.configs_in_force import CONTEXT_CONFIGS
from breadcrumbs.context_builder.published_configs import published_configs
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.schema_names import CONTEXT_CONFIG
from breadcrumbs.runtime.store.archive import Archive
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.definitions import MAX_DEFINITIONS

_BUILDERS = "contexts"
"""Kind of the workers that publish their config files."""


class OldConfigs:
    """Configs of one owner by digest. Configs that were found are kept in memory."""

    def __init__(self, store: Store, owner: UUID, known: Iterable[ContextConfig] = ()) -> None:
        self._store = store
        self._owner = owner
        self._archive = Archive(store)
        self._found: dict[str, ContextConfig | None] = {config.digest: config for config in known}
        self._searched = False

    async def get(self, digest: str) -> ContextConfig | None:
        """Return the config with a digest, or None if it is not known any more."""
        if digest not in self._found:
            self._found[digest] = await self._archived(digest)
            if self._found[digest] is None and not self._searched:
                self._searched = True
                await self._search()
        return self._found[digest]

    async def _archived(self, digest: str) -> ContextConfig | None:
        archived = await self._archive.get(self._owner, digest, "config")
        config = None if archived is None else check_config(archived.document)[0]
        return config if config is not None and config.digest == digest else None

    async def _search(self) -> None:
        """Add the published config files, and all versions of the posted configs."""
        for published, _ in await published_configs(self._store, _BUILDERS):
            try:
                self._add(parse_configs((published.text or "").encode()))
            except ConfigError:
                pass  # the text is missing
        page = await self._store.list(
            self._owner, Query(schema_name=CONTEXT_CONFIG, limit=MAX_DEFINITIONS, max_bytes=16 << 20)
        )
        for crumb in page.items:
            try:
                async for version in self._store.versions(self._owner, crumb.id):
                    config, _ = CONTEXT_CONFIGS.parse(version)
                    self._add(() if config is None else (config,))
            except NotFound:
                pass  # deleted just now

    def _add(self, configs: Iterable[ContextConfig]) -> None:
        for config in configs:
            if self._found.get(config.digest) is None:
                self._found[config.digest] = config
