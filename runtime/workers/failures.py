"""Leave errors in the session where they happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.schema_names import AGENT_ERROR
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import TurnCancelled, error_reason
from breadcrumbs.runtime.workers.turn import Turn


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """What an `agent.error.v1` says besides the reason."""

    creator: str
    """The handler that reports the error."""
    origin: UUID
    """The message that started the turn."""
    inherited: tuple[str, ...]
    """Prefixes of the tags that are copied from the trigger."""
    hops: int = 0
    agent_id: str | None = None
    """The one agent that failed. A client that waits for another agent goes on waiting."""
    answers: Sequence[str] = ()
    """The messages that the turn would have answered, if they are more than one."""


async def leave_error(store: Store, turn: Turn, error: Exception, details: ErrorDetails) -> None:
    """Write an `agent.error.v1` into the trigger's session, once per turn, and acknowledge the event.

    An error about an error is not written: a handler that reacts to errors and fails would never come to an end.
    """
    event = turn.event
    if event.schema_name == AGENT_ERROR:
        return
    new = BreadcrumbCreate.parse(
        {
            "schema_name": AGENT_ERROR,
            "title": "A turn was stopped" if isinstance(error, TurnCancelled) else "A turn failed",
            "tags": ["agent:error", *inherited_tags(event.tags, details.inherited)],
            "context": _error_context(turn, error, details),
        }
    )
    # One error per turn; a turn that was retried on request may fail again.
    again = (str(event.at),) if event.operation == "retried" else ()
    id = turn.derived_id("error", details.creator, str(event.id), str(event.version), *again)
    await store.create(event.owner_id, new, id=id, options=CreateOptions(fence=turn.fence(acknowledge=True)))


def _error_context(turn: Turn, error: Exception, details: ErrorDetails) -> dict[str, Any]:
    context: dict[str, Any] = {
        "error": error_reason(error),
        "cancelled": isinstance(error, TurnCancelled),
        "creator": details.creator,
        "trigger_id": str(details.origin),
        "attempts": turn.attempt,
        "hops": details.hops,
    }
    if details.agent_id is not None:
        context["agent_id"] = details.agent_id
    if details.answers:
        context["answers"] = list(details.answers)
    return context
