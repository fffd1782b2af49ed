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
        definition = await self._definition(owner, schema_name)
        return None if definition is None else own_hints(definition)

    async def definitions(self, owner: UUID, schema_names: set[str]) -> dict[str, Breadcrumb]:
        """The definitions of those schemas that have one, looked up side by side."""
        names = sorted(schema_names)
        found = await asyncio.gather(*(self._definition(owner, name) for name in names))
        return {name: crumb for name, crumb in zip(names, found, strict=True) if crumb is not None}

    async def _definition(self, owner: UUID, schema_name: str) -> Breadcrumb | None:
        key = (owner, schema_name)
        known = self._known.get(key)
        now = time.monotonic()
        if known is not None and known[0] > now:
            return known[1]
        page = await self._store.list(
            owner,
            Query(
                schema_name=DEFINITION, all_tags=(f"defines:{schema_name}",), limit=1, keep=_speaks_for_all
            ),
        )
        newest = page.items[0] if page.items else None
        self._known[key] = (now + _LIFETIME, newest)
        self._known.move_to_end(key)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return newest


def _speaks_for_all(definition: Breadcrumb) -> bool:
    """Hints hold literal text: that of one session, user or agent must not show in the views of others."""
    return (
        definition.visibility != "private"
        and definition.sensitivity != "secret"
        and not any(tag.startswith((SESSION, USER)) for tag in definition.tags)
    )
