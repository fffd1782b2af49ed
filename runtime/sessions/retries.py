"""Running a turn again that failed. The message is not posted again, and nobody answers it twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import NotFound, NothingToRetry
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, AGENT_ERROR
from breadcrumbs.runtime.sessions.messages import message_in
from breadcrumbs.runtime.sessions.outcomes import find_outcome
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.turn_retries import TurnRetry, announce_retry
from breadcrumbs.runtime.workers.dead_letters import DeadLetter, DeadLetters

_ERRORS_SEEN: Final = 20
"""How many of the last errors are looked at for one that nobody made up for."""


@dataclass(frozen=True, slots=True)
class _Failed:
    message: Breadcrumb
    letters: list[DeadLetter]


async def retry(
    store: Store, principal: Principal, session: str, message_id: UUID | None
) -> tuple[UUID, int]:
    """Ask the workers to run a turn again: that of a message, or the newest that failed. Which one, and when."""
    letters = await _letters(store, principal.owner_id, session)
    if message_id is None:
        failed = await _newest(store, principal, session, letters)
    else:
        failed = await _named(store, principal, session, message_id, letters)
    message = failed.message
    keys = [letter.key for letter in failed.letters]
    return message.id, await announce_retry(store, TurnRetry(message, message.id, keys))


async def _named(
    store: Store, principal: Principal, session: str, id: UUID, letters: dict[UUID, list[DeadLetter]]
) -> _Failed:
    message = await message_in(store, principal, session, id)
    outcome = await find_outcome(store, principal, message)
    if id not in letters and outcome is not None and outcome.schema_name != AGENT_ERROR:
        raise NothingToRetry(f"message {id} is answered: say something new, or fork the session before it")
    return _Failed(message, letters.get(id, []))


async def _newest(
    store: Store, principal: Principal, session: str, letters: dict[UUID, list[DeadLetter]]
) -> _Failed:
    errors = await store.recent(principal.owner_id, session, AGENT_ERROR, _ERRORS_SEEN)
    tried: set[UUID] = set()
    candidates = [id for error in errors if (id := _trigger(error)) is not None]
    for id in (*candidates, *letters):
        if id in tried:
            continue
        tried.add(id)
        try:
            message = await message_in(store, principal, session, id)
        except NotFound:
            continue
        if id not in letters:
            outcome = await find_outcome(store, principal, message)
            if outcome is not None and outcome.schema_name != AGENT_ERROR:
                continue
        return _Failed(message, letters.get(id, []))
    raise NothingToRetry(
        f"no turn has failed in session {session!r}, or all were answered since: say something new"
    )


async def _letters(store: Store, owner: UUID, session: str) -> dict[UUID, list[DeadLetter]]:
    """The dead letters of a session by the message that they are about, the newest first."""
    found: dict[UUID, list[DeadLetter]] = {}
    for letter in await DeadLetters(store).all(owner, session=session):
        try:
            crumb = await store.get_version(owner, letter.breadcrumb_id, letter.version)
        except NotFound:
            continue  # a context that has expired: its error still says which message it was about
        message = _message_of(crumb)
        if message is not None:
            found.setdefault(message, []).append(letter)
    return found


async def retry_letter(store: Store, letter: DeadLetter) -> None:
    """Let the kind of worker that gave up on an event try again, from the beginning."""
    crumb = await store.get_version(letter.owner_id, letter.breadcrumb_id, letter.version)
    message = _message_of(crumb) or crumb.id
    await announce_retry(store, TurnRetry(crumb, message, [letter.key], only_for=letter.kind))


def _message_of(crumb: Breadcrumb) -> UUID | None:
    """The message whose turn this is part of; None: a context that does not say."""
    return _trigger(crumb) if crumb.schema_name == AGENT_CONTEXT else crumb.id


def _trigger(crumb: Breadcrumb) -> UUID | None:
    try:
        return UUID(crumb.context.get("trigger_id"))
    except (TypeError, ValueError, AttributeError):
        return None
