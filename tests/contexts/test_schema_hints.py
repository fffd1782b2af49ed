"""The hints of schema definitions, cached for a second."""

from __future__ import annotations

from typing import Any

import pytest

from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import OWNER, post


async def define(store: Store, schema: str) -> None:
    await post(store, schema="schema.def.v1", tags=(f"defines:{schema}",))


async def test_cached_hints_stay_available_during_a_reload(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breadcrumbs.runtime.retrieval.schema_hints._MAX_CACHED_SCHEMAS", 3)
    for schema in ("offer.v1", "order.v1"):
        await define(store, schema)
    hints = SchemaHints(store)
    assert (await hints.definitions(OWNER, {"offer.v1"})).keys() == {"offer.v1"}
    read_batch = store.read_batch

    async def meanwhile(*reads: Any) -> Any:
        monkeypatch.setattr(store, "read_batch", read_batch)
        await hints.definitions(OWNER, {"this.v1", "that.v1", "another.v1"})
        return await read_batch(*reads)

    monkeypatch.setattr(store, "read_batch", meanwhile)
    found = await hints.definitions(OWNER, {"offer.v1", "order.v1"})
    assert found.keys() == {"offer.v1", "order.v1"}
