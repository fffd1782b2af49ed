"""Commit the breadcrumbs of a turn."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import anyio
import structlog

from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, Content
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import STORE_UNAVAILABLE
from breadcrumbs.runtime.workers.turn import Turn

_log = structlog.get_logger("breadcrumbs.agents")

_FIRST_PAUSE_SECONDS: Final = 0.1
_MAX_PAUSE_SECONDS: Final = 2.0


async def commit(
    store: Store,
    turn: Turn,
    id: UUID,
    new: BreadcrumbCreate,
    content: Content | None = None,
    *,
    acknowledge: bool = False,
) -> None:
    """Write a breadcrumb. Waits for a store that is unavailable, so that the result need not be made again."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            # Shielded: a cancelled commit could not know whether it was written.
            with anyio.CancelScope(shield=True):
                fence = turn.fence(acknowledge=acknowledge)
                written = await store.create(
                    turn.event.owner_id, new, options=CreateOptions(content=content, fence=fence), id=id
                )
                if written.found and acknowledge:
                    await turn.acknowledge()
            return
        except STORE_UNAVAILABLE as error:
            _log.warning("an answer waits for the store", trigger=str(turn.event.id), error=str(error))
        await anyio.sleep(pause)
        pause = min(_MAX_PAUSE_SECONDS, 2 * pause)
