"""Writes an error breadcrumb (`agent.error.v1`) into the session of a failed turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.breadcrumb.roots import root_of
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.schema_names import AGENT_ERROR, ROOT
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.errors import TurnCancelled, TurnRefused, TurnStopped, error_reason
from breadcrumbs.runtime.workers.turn import Turn

_STOPPED: Final = "A turn was stopped"


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """Fields of an `agent.error.v1`, apart from the reason."""

    creator: str
    """Handler that reports the error."""
    origin: UUID
    """Message that started the turn."""
    inherited: tuple[str, ...]
    """Prefixes of the tags that are copied from the trigger."""
    hops: int = 0
    """Number of times that agents have triggered each other since the message."""
    agent_id: str | None = None
    """Agent that failed. A client that waits for another agent continues to wait."""
    answers: Sequence[str] = ()
    """Messages that the turn would have answered, if there is more than one."""
    root: str | None = None
    """Message that the chain of the turn began with. None: the message that started the turn."""
    agents: Sequence[str] = ()
    """Agents of a chain that was stopped, in the order in which they answered."""
    id: UUID | None = None
    """Id of the error. None: it is derived from the event."""


def stopped_error_id(lane: int, message: UUID, retried_at: int) -> UUID:
    """Return the id of the error of a turn that a cancellation stopped.

    All runners and the API derive the same id, so the turn has one such error. `retried_at` is the time of the last
    retry of the message, or 0: a turn that is retried can be stopped again.
    """
    return derived_id(lane, "stopped", str(message), str(retried_at))


def stopped_error(message: Breadcrumb, creator: str, inherited: tuple[str, ...]) -> BreadcrumbCreate:
    """Return the error of a turn that a cancellation stopped, for a writer that is not its worker."""
    context = {
        "error": error_reason(TurnStopped()),
        "cancelled": True,
        "creator": creator,
        "trigger_id": message.id_text,
        ROOT: root_of(message),
        "hops": 1,
    }
    return _new_error(_STOPPED, [*message.tags], inherited, context)


async def leave_error(store: Store, turn: Turn, error: Exception, details: ErrorDetails) -> None:
    """Write an error into the session of the trigger, and acknowledge the event.

    A turn writes at most one error, even if this is repeated. If the trigger is itself an error, nothing is written or
    acknowledged. Otherwise a handler that reacts to errors and fails would loop forever.
    """
    event = turn.event
    if event.schema_name == AGENT_ERROR:
        return
    title = _title(error)
    new = _new_error(title, event.tags, details.inherited, _error_context(turn, error, details))
    # The id is derived from the event, so a turn has one error. A turn that is retried on request can fail again, so
    # its error needs another id.
    retry_time = (str(event.at),) if event.operation == "retried" else ()
    id = details.id or turn.derived_id(
        "error", details.creator, str(event.id), str(event.version), *retry_time
    )
    await store.create(event.owner_id, new, id=id, options=CreateOptions(fence=turn.fence(acknowledge=True)))


def _title(error: Exception) -> str:
    if isinstance(error, TurnRefused):
        return "A turn was refused"
    return _STOPPED if isinstance(error, TurnCancelled) else "A turn failed"


def _new_error(
    title: str, tags: Sequence[str], inherited: tuple[str, ...], context: dict[str, Any]
) -> BreadcrumbCreate:
    return BreadcrumbCreate.parse(
        {
            "schema_name": AGENT_ERROR,
            "title": title,
            "tags": ["agent:error", *inherited_tags(tags, inherited)],
            "context": context,
        }
    )


def _error_context(turn: Turn, error: Exception, details: ErrorDetails) -> dict[str, Any]:
    context: dict[str, Any] = {
        "error": error_reason(error),
        "cancelled": isinstance(error, TurnCancelled) and not isinstance(error, TurnRefused),
        "creator": details.creator,
        "trigger_id": str(details.origin),
        ROOT: details.root or str(details.origin),
        "attempts": turn.attempt,
        "hops": details.hops,
    }
    if isinstance(error, TurnRefused):
        context["refused_by"] = error.hook
    if details.agent_id is not None:
        context["agent_id"] = details.agent_id
    if details.agents:
        context["agents"] = list(details.agents)
    if details.answers:
        context["answers"] = list(details.answers)
    return context
