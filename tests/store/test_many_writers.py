from __future__ import annotations

import asyncio

from redis import Redis

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from tests.store.contract.base import ALICE, change, crumb
from tests.store.opening import opener_of


async def test_hundreds_of_concurrent_updates_of_one_breadcrumb_all_succeed(
    embedded_server: EmbeddedServer,
) -> None:
    with Redis.from_url(embedded_server.url) as client:
        client.flushall()
    async with opener_of(embedded_server.url) as opener:
        first, second = await opener(), await opener()
        written = await first.create(ALICE, crumb())
        results = await asyncio.gather(
            *(
                store.update(ALICE, written.id, change(title=f"{number}"))
                for number in range(150)
                for store in (first, second)
            )
        )
        assert sorted(result.version for result in results) == list(range(2, 302))
