"""Ends the turns that a cancellation (`agent.cancel.v1`) stops, if no runner does it in time.

A runner that sees the cancellation ends its turns itself within milliseconds. It cannot if it has died, is suspended or
does not run. The process that wrote the cancellation then writes the errors. This is safe at any time: commit.lua
refuses an answer that is older than the cancellation, and the id of the error is derived from the message, so runners
and API write one error together.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import anyio

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import NotFound, QuotaExceeded, SessionGone
from breadcrumbs.runtime.events.deltas import read_running
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.events.unfinished import unfinished_events
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, USER_MESSAGE
from breadcrumbs.runtime.sessions.outcomes import find_outcome
from breadcrumbs.runtime.store import running_answers
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.placement import lane_beside
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.turn_retries import last_retry_time
from breadcrumbs.runtime.workers.failures import stopped_error, stopped_error_id

_CREATOR: Final = "api"

_LOOKS: Final = (0.02, 0.05, 0.1, 0.2)
"""Pauses in seconds. In each, a living runner can end its turns. Then the errors are written here."""
_MAX_TURNS: Final = 100
"""Maximum number of turns to end, the newest first."""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A stored cancellation."""

    owner: UUID
    session: str
    created: int


async def end_stopped_turns(store: Store, cancellation: Cancellation, inherited: tuple[str, ...]) -> None:
    """Return when all turns that a cancellation stops have an outcome. Write the errors that runners did not write.

    `inherited` are the prefixes of the tags that an error copies from its message. If the session is deleted meanwhile,
    there is nothing left to end.
    """
    with suppress(NotFound, SessionGone, QuotaExceeded):
        await _end_stopped_turns(store, cancellation, inherited)


async def _end_stopped_turns(store: Store, cancellation: Cancellation, inherited: tuple[str, ...]) -> None:
    stopped = await _stopped_messages(store, cancellation)
    for pause in _LOOKS:
        stopped = [message for message in stopped if await _is_unfinished(store, message, cancellation)]
        if not stopped:
            break
        await anyio.sleep(pause)
    for message in stopped:
        if await _is_unfinished(store, message, cancellation):
            await _write_error(store, message, cancellation, inherited)
    await running_answers.end_before(store, cancellation.owner, cancellation.session, cancellation.created)


async def _is_unfinished(store: Store, message: Breadcrumb, cancellation: Cancellation) -> bool:
    if await last_retry_time(store, message) > cancellation.created:
        return False  # the retry is newer than the cancellation and continues
    principal = Principal(cancellation.owner, cancellation.owner)
    return await find_outcome(store, principal, message) is None


async def _write_error(
    store: Store, message: Breadcrumb, cancellation: Cancellation, inherited: tuple[str, ...]
) -> None:
    lane = lane_beside(store, message)
    id = stopped_error_id(lane, message.id, await last_retry_time(store, message))
    error = stopped_error(message, _CREATOR, inherited)
    await store.create(cancellation.owner, error, id=id, options=CreateOptions(session_version="*"))


async def _stopped_messages(store: Store, cancellation: Cancellation) -> list[Breadcrumb]:
    """Return the messages of turns that began before the cancellation and may be unfinished, the newest first."""
    messages: dict[UUID, Breadcrumb] = {}

    async def add(id: UUID) -> None:
        if id in messages:
            return
        try:
            crumb = await store.get(cancellation.owner, id, count_read=False)
        except NotFound:
            return
        if crumb.session_id == cancellation.session and crumb.created < cancellation.created:
            messages[id] = crumb

    unfinished = unfinished_events(store, cancellation.owner, cancellation.session, cancellation.created)
    async for event in unfinished:
        if (message := await _message_of(store, event)) is not None:
            await add(message)
        if len(messages) == _MAX_TURNS:
            break
    # An agent can also answer breadcrumbs of other schemas.
    for answer in await read_running(store, cancellation.owner, cancellation.session):
        if (message := _parse_id(answer.trigger_id)) is not None:
            await add(message)
    return list(messages.values())


async def _message_of(store: Store, event: Event) -> UUID | None:
    """Return the message of an event that can be part of a turn, or None."""
    if event.operation == "deleted" or event.imported:
        return None
    if event.schema_name == USER_MESSAGE:
        return event.id
    if event.schema_name != AGENT_CONTEXT:
        return None
    try:
        context = await store.get_version(event.owner_id, event.id, event.version)
    except NotFound:
        return None
    return _parse_id(context.context.get("trigger_id"))


def _parse_id(value: object) -> UUID | None:
    """Return the id, or None. A client can have written the value."""
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None
