"""Commit the breadcrumbs of a turn: answers, tool requests and tool responses."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal
from uuid import UUID

import anyio
import structlog

from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, Content
from breadcrumbs.runtime.concurrency import cancel_scope
from breadcrumbs.runtime.store.fence import AnswerCancelled, Fence, RequestedAnswer
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry.store_calls import log_store_error
from breadcrumbs.runtime.workers.errors import STORE_UNAVAILABLE, TurnStopped
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
    ends: Literal["nothing", "answer", "turn"] = "nothing",
) -> None:
    """Write a breadcrumb with the fence of the turn.

    An answer ends its text so far. The last answer also ends the turn: the write acknowledges the event. Raise
    `TurnStopped` if a cancellation is stored that is newer than the request of the answer.
    Retries while the store is unavailable, so that the model or the tool need not run again.
    """
    pause = _FIRST_PAUSE_SECONDS
    acknowledge = ends == "turn"
    while True:
        try:
            # Shielded: after a cancellation it would be unknown whether the breadcrumb was written.
            with cancel_scope(shield=True):
                fence = _fence(turn, id, ends)
                written = await store.create(
                    turn.event.owner_id, new, options=CreateOptions(content=content, fence=fence), id=id
                )
                if written.breadcrumb is not None:
                    turn.committed(store, written.breadcrumb)
                if written.found and acknowledge:
                    await turn.acknowledge()
            return
        except AnswerCancelled as error:
            raise TurnStopped from error
        except STORE_UNAVAILABLE as error:
            log_store_error(_log, "store unavailable, retrying commit", error, trigger=str(turn.event.id))
        await anyio.sleep(pause)
        pause = min(_MAX_PAUSE_SECONDS, 2 * pause)


def _fence(turn: Turn, id: UUID, ends: Literal["nothing", "answer", "turn"]) -> Fence:
    event = turn.event
    fence = turn.fence(acknowledge=ends == "turn", answer=id if ends == "answer" else None)
    if ends == "nothing" or event.session_id is None:
        return fence
    return replace(fence, requested=RequestedAnswer(event.owner_id, event.session_id, turn.requested_at))
