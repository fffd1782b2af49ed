"""A failure, left where the people of that session see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.worker import Turn, TurnCancelled, TurnFailed, reason_of

ERROR = "agent.error.v1"


async def check_posted(
    store: Store,
    turn: Turn,
    read: Callable[[Breadcrumb], tuple[object, str]],
    *,
    what: str,
    creator: str,
    inherited: tuple[str, ...],
) -> None:
    """Something was posted that is to hold for all sessions. If it cannot be used, its writer is told why.

    `read` gives what it comes to, or None and the reason.
    """
    event = turn.event
    try:
        usable, problem = read(await store.get_version(event.owner_id, event.id, event.version))
    except NotFound:
        return
    if usable is None:
        error = TurnFailed(f"this {what} is not used: {problem}")
        await leave_error(store, turn, error, creator=creator, origin=event.id, inherited=inherited)


async def leave_error(
    store: Store,
    turn: Turn,
    error: Exception,
    *,
    creator: str,
    origin: UUID,
    inherited: tuple[str, ...],
    hops: int = 0,
    agent_id: str | None = None,
    answers: Sequence[str] = (),
) -> None:
    """Write an `agent.error.v1` with the reason into the trigger's session, once per turn, and end the turn.

    `agent_id` is the one agent that failed, so that whoever waits for another one goes on waiting.
    `answers` are the messages that the turn would have answered, where they are more than one.

    An error about an error is left out: whoever reacts to errors and fails would never come to an end.
    """
    event = turn.event
    if event.schema_name == ERROR:
        return
    new = BreadcrumbCreate.parse(
        {
            "schema_name": ERROR,
            "title": "A turn was stopped" if isinstance(error, TurnCancelled) else "A turn failed",
            "tags": ["agent:error", *inherited_tags(event.tags, inherited)],
            "context": {
                "error": reason_of(error),
                "cancelled": isinstance(error, TurnCancelled),
                "creator": creator,
                "trigger_id": str(origin),
                "attempts": turn.attempt,
                "hops": hops,
                **({} if agent_id is None else {"agent_id": agent_id}),
                **({"answers": list(answers)} if answers else {}),
            },
        }
    )
    # One error per turn; a turn that somebody asked for again may fail again.
    again = (str(event.at),) if event.operation == "retried" else ()
    id = derived_id(event.lane, "error", creator, str(event.id), str(event.version), *again)
    await store.create(event.owner_id, new, id=id, options=CreateOptions(fence=turn.fence(acknowledge=True)))
