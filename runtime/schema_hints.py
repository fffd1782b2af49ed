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
        self._known: OrderedDict[tuple[UUID, str], tuple[float, Any]] = OrderedDict()

    async def of(self, owner: UUID, schema_name: str) -> Any:
        """The hints of the owner's newest definition of this schema, or None."""
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
        hints = own_hints(page.items[0]) if page.items else None
        self._known[key] = (now + _LIFETIME, hints)
        self._known.move_to_end(key)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return hints

    async def of_schemas(self, owner: UUID, schema_names: set[str]) -> dict[str, Any]:
        """The hints of several schemas, those that have any, looked up side by side."""
        names = sorted(schema_names)
        found = await asyncio.gather(*(self.of(owner, name) for name in names))
        return {name: hints for name, hints in zip(names, found, strict=True) if hints is not None}


def _speaks_for_all(definition: Breadcrumb) -> bool:
    """Hints hold literal text: that of one session, user or agent must not show in the views of others."""
    return (
        definition.visibility != "private"
        and definition.sensitivity != "secret"
        and not any(tag.startswith((SESSION, USER)) for tag in definition.tags)
    )
