"""Retries of failed turns, on request.

A retry does not post the message again. A message is never answered twice.
"""

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

_MAX_ERRORS: Final = 20
"""Number of newest errors to search for a turn that failed and was not answered since."""


@dataclass(frozen=True, slots=True)
class _FailedTurn:
    """Turn to retry: its message, and the dead letters that the retry removes."""

    message: Breadcrumb
    letters: list[DeadLetter]


async def retry(
    store: Store, principal: Principal, session: str, message_id: UUID | None
) -> tuple[UUID, int]:
    """Make workers run the turn of a message again.

    Without a message, retry the newest failed turn of the session. Return the id of the message, and the time of the
    event that starts the retry. Raise `NothingToRetry` if the message is answered or no turn has failed.
    """
    letters = await _letters_by_message(store, principal.owner_id, session)
    if message_id is None:
        failed = await _find_newest_failed(store, principal, session, letters)
    else:
        failed = await _find_turn(store, principal, session, message_id, letters)
    message = failed.message
    keys = [letter.key for letter in failed.letters]
    return message.id, await announce_retry(store, TurnRetry(message, message.id, keys))


async def _find_turn(
    store: Store, principal: Principal, session: str, id: UUID, letters: dict[UUID, list[DeadLetter]]
) -> _FailedTurn:
    """Return the turn of a message. Raise `NothingToRetry` if the message is answered."""
    message = await message_in(store, principal, session, id)
    outcome = await find_outcome(store, principal, message)
    if id not in letters and outcome is not None and outcome.schema_name != AGENT_ERROR:
        raise NothingToRetry(
            f"message {id} is already answered: send a new message, or fork the session before it"
        )
    return _FailedTurn(message, letters.get(id, []))


async def _find_newest_failed(
    store: Store, principal: Principal, session: str, letters: dict[UUID, list[DeadLetter]]
) -> _FailedTurn:
    """Return the newest turn that failed and was not answered since.

    Raise `NothingToRetry` if there is none.
    """
    errors = await store.recent(principal.owner_id, session, AGENT_ERROR, _MAX_ERRORS)
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
        return _FailedTurn(message, letters.get(id, []))
    raise NothingToRetry(f"session {session!r} has no failed turn to retry: send a new message")


async def _letters_by_message(store: Store, owner: UUID, session: str) -> dict[UUID, list[DeadLetter]]:
    """Return the dead letters of a session by the message of their turn, newest first."""
    found: dict[UUID, list[DeadLetter]] = {}
    for letter in await DeadLetters(store).all(owner, session=session):
        try:
            crumb = await store.get_version(owner, letter.breadcrumb_id, letter.version)
        except NotFound:
            continue  # a context that has expired; its message can still be found through the error
        message = _message_of(crumb)
        if message is not None:
            found.setdefault(message, []).append(letter)
    return found


async def retry_letter(store: Store, letter: DeadLetter) -> None:
    """Retry the event of a dead letter.

    Only the kind of worker that gave up handles the event. All attempts are available again.
    """
    crumb = await store.get_version(letter.owner_id, letter.breadcrumb_id, letter.version)
    message = _message_of(crumb) or crumb.id
    await announce_retry(store, TurnRetry(crumb, message, [letter.key], only_for=letter.kind))


def _message_of(crumb: Breadcrumb) -> UUID | None:
    """Return the message whose turn a breadcrumb is part of.

    Return None for a context without `trigger_id`.
    """
    return _trigger(crumb) if crumb.schema_name == AGENT_CONTEXT else crumb.id


def _trigger(crumb: Breadcrumb) -> UUID | None:
    try:
        return UUID(crumb.context.get("trigger_id"))
    except (TypeError, ValueError, AttributeError):
        return None
