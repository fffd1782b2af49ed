"""Commit the breadcrumbs of a turn: answers, steps, tool requests and tool responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Literal, TypeAlias
from uuid import UUID

import anyio
import structlog

from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, Content
from breadcrumbs.runtime.concurrency import cancel_scope
from breadcrumbs.runtime.store.fence import AnswerCancelled, Fence, RequestedAnswer
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.written import Written
from breadcrumbs.runtime.telemetry.store_calls import log_store_error
from breadcrumbs.runtime.workers.errors import STORE_UNAVAILABLE, TurnStopped
from breadcrumbs.runtime.workers.turn import Turn

_log = structlog.get_logger("breadcrumbs.agents")

_FIRST_PAUSE_SECONDS: Final = 0.1
_MAX_PAUSE_SECONDS: Final = 2.0

NewBreadcrumb: TypeAlias = tuple[UUID, BreadcrumbCreate]
"""A breadcrumb to write, with its id."""


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

    async def write() -> None:
        fence = turn.fence(acknowledge=ends == "turn", answer=id if ends == "answer" else None)
        if ends != "nothing":
            fence = _refused_when_cancelled(turn, fence)
        options = CreateOptions(content=content, fence=fence)
        written = await _create(store, turn, (id, new), options)
        if written.found and ends == "turn":
            await turn.acknowledge()

    await _until_written(turn, write)


async def commit_together(store: Store, turn: Turn, first: NewBreadcrumb, *others: NewBreadcrumb) -> bool:
    """Write breadcrumbs of a turn that goes on, all of them or none, before something begins.

    Return False if the first one exists already: an earlier attempt wrote them. Raise `TurnStopped` if the turn was
    cancelled, so nothing begins after a cancellation. Retries while the store is unavailable.
    """
    is_new = True

    async def write() -> None:
        nonlocal is_new
        fence = _refused_when_cancelled(turn, turn.fence(acknowledge=False))
        written = await _create(store, turn, first, CreateOptions(fence=fence, along=others))
        is_new = not written.found

    await _until_written(turn, write)
    return is_new


async def _create(store: Store, turn: Turn, new: NewBreadcrumb, options: CreateOptions) -> Written:
    id, crumb = new
    written = await store.create(turn.event.owner_id, crumb, options=options, id=id)
    if options.fence is not None:
        turn.recorded(options.fence.spent, written)
    if written.breadcrumb is not None:
        turn.committed(store, written.breadcrumb, *(other for other in written.along if other is not None))
    return written


async def _until_written(turn: Turn, write: Callable[[], Awaitable[None]]) -> None:
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            # Shielded: after a cancellation it would be unknown whether the breadcrumb was written.
            with cancel_scope(shield=True):
                await write()
            return
        except AnswerCancelled as error:
            raise TurnStopped from error
        except STORE_UNAVAILABLE as error:
            log_store_error(_log, "store unavailable, retrying commit", error, trigger=str(turn.event.id))
        await anyio.sleep(pause)
        pause = min(_MAX_PAUSE_SECONDS, 2 * pause)


def _refused_when_cancelled(turn: Turn, fence: Fence) -> Fence:
    """Return the fence of a commit that a later cancellation in the session refuses."""
    event = turn.event
    if event.session_id is None:
        return fence
    return replace(fence, requested=RequestedAnswer(event.owner_id, event.session_id, turn.requested_at))
