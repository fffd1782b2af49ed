"""Archives the documents that contexts are built with: context configs and schema hints.

A context names its config by the digest, and the hints by the id and version of the schema definition. The archive
keeps both after an edit of the file or a deletion of the breadcrumb, so past contexts can be rendered again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.retrieval.schema_hints import own_hints
from breadcrumbs.runtime.store.archive import Archive
from breadcrumbs.runtime.store.store import Store


class ContextArchive:
    """Keeps what the contexts of a context builder depend on. A turn normally needs no round trip for it."""

    def __init__(self, store: Store) -> None:
        self._archive = Archive(store)

    async def keep_config(self, owner: UUID, config: ContextConfig, source: str) -> None:
        """Keep a config that is in force. `source`: the file or the breadcrumb that contains it."""
        name = config.consumer_id
        if not self._archive.is_kept(owner, "config", config.digest, name=name, source=source):
            await self._archive.keep(owner, "config", config.archived_document(), name=name, source=source)

    async def keep_hints(self, owner: UUID, definitions: Mapping[str, Breadcrumb]) -> None:
        """Keep the hints of schema definitions that a context has used, by schema name."""
        for schema, crumb in definitions.items():
            source = breadcrumb_source(crumb.id, crumb.version)
            if not self._archive.is_kept(owner, "hints", None, name=schema, source=source):
                await self._archive.keep(owner, "hints", own_hints(crumb), name=schema, source=source)


def breadcrumb_source(id: UUID, version: int) -> str:
    """Return the source of a document that a version of a breadcrumb contains."""
    return f"breadcrumb {id} version {version}"


async def archived_hints(store: Store, owner: UUID, wanted: Mapping[str, tuple[UUID, int]]) -> dict[str, Any]:
    """Return the hints of deleted schema definitions, by schema name. `wanted`: id and version of each definition."""
    if not wanted:
        return {}
    archive, found = Archive(store), {}
    digests = {(entry.name, entry.source): entry.digest for entry in await archive.log(owner, "hints")}
    for schema, (id, version) in wanted.items():
        digest = digests.get((schema, breadcrumb_source(id, version)))
        kept = None if digest is None else await archive.get(owner, digest, "hints")
        if kept is not None:
            found[schema] = kept.document
    return found
