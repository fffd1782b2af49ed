"""Which `llm_hints` apply to a breadcrumb: its own, or those of its schema's definition."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Any, Final
from uuid import UUID

from breadcrumbs.runtime.access import USER
from breadcrumbs.runtime.breadcrumb import SESSION, Breadcrumb
from breadcrumbs.runtime.query import Query
from breadcrumbs.runtime.store import Store

DEFINITION: Final = "schema.def.v1"
DEFINES: Final = "defines:"
_LIFETIME: Final = 1.0
_MOST: Final = 1_024


def own_hints(crumb: Breadcrumb) -> Any:
    """The hints that a breadcrumb carries itself; older RCRT data has them in the context."""
    return crumb.document.get("llm_hints") or crumb.context.get("llm_hints")


class SchemaHints:
    """The hints of schema definitions, looked up at most once a second per owner and schema."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[tuple[UUID, str], tuple[float, Breadcrumb | None]] = OrderedDict()

    async def of(self, owner: UUID, schema_name: str) -> Any:
        """The hints of the owner's newest definition of this schema, or None."""
        definition = (await self.definitions(owner, {schema_name})).get(schema_name)
        return None if definition is None else own_hints(definition)

    async def definitions(self, owner: UUID, schema_names: set[str]) -> dict[str, Breadcrumb]:
        """The definitions of those schemas that have one, looked up side by side."""
        missing = self.missing(owner, schema_names)
        found = {name: self._known[owner, name][1] for name in schema_names - missing}
        if missing:
            found |= await asyncio.gather(*(self._look_up(owner, name) for name in missing))
        return {name: crumb for name in sorted(found) if (crumb := found[name]) is not None}

    def missing(self, owner: UUID, schema_names: set[str]) -> set[str]:
        """The schemas that would have to be looked up now."""
        now = time.monotonic()
        return {
            name
            for name in schema_names
            if (known := self._known.get((owner, name))) is None or known[0] <= now
        }

    async def _look_up(self, owner: UUID, schema_name: str) -> tuple[str, Breadcrumb | None]:
        asked = time.monotonic()
        page = await self._store.list(
            owner,
            Query(schema_name=DEFINITION, all_tags=(DEFINES + schema_name,), limit=1, keep=speaks_for_all),
        )
        newest = page.items[0] if page.items else None
        self._known[owner, schema_name] = (asked + _LIFETIME, newest)
        self._known.move_to_end((owner, schema_name))
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return schema_name, newest


async def all_definitions(store: Store, owner: UUID) -> dict[str, Breadcrumb]:
    """By schema, the definition that holds: the newest."""
    found: dict[str, Breadcrumb] = {}
    async for crumb in store.walk(owner, Query(schema_name=DEFINITION, keep=speaks_for_all)):
        for tag in crumb.tags:
            if tag.startswith(DEFINES):
                found.setdefault(tag.removeprefix(DEFINES), crumb)
    return found


def speaks_for_all(definition: Breadcrumb) -> bool:
    """Hints hold literal text: that of one session, user or agent must not show in the views of others."""
    return (
        definition.visibility != "private"
        and definition.sensitivity != "secret"
        and not any(tag.startswith((SESSION, USER)) for tag in definition.tags)
    )
