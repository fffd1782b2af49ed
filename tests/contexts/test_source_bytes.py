"""The sources of one context share a byte budget."""

from __future__ import annotations

from typing import Any

import pytest

from breadcrumbs.runtime.retrieval.sources import Source, fetch
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.batched_reads import RECENT_BYTES
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import crumb

MB = 1_000_000


@pytest.mark.parametrize("keep", [None, lambda crumb: True], ids=["by question", "by listing"])
async def test_all_sources_share_one_byte_limit(store: Store, keep: Any) -> None:
    for _ in range(20):
        await store.create(DEVELOPER, crumb(session="s", schema="note.v1", context={"text": "x" * MB}))
    trigger = await store.create(DEVELOPER, crumb("trigger", session="s"))
    recent = {"schema_name": "note.v1", "fetch": {"method": "recent", "limit": 1000}}
    sources = [Source.model_validate({"key": f"k{number}", **recent}) for number in range(8)]
    fetched = await fetch(store, sources, await store.get(DEVELOPER, trigger.id), keep=keep)
    found = [crumbs for crumbs in fetched.results if crumbs is not None]
    assert len(found) == 8 and all(found)
    assert sum(len(one.json) for crumbs in found for one in crumbs) <= RECENT_BYTES
