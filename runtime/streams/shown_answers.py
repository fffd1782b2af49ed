"""How much of each running answer one subscriber has got.

Deltas can be lost, repeated or belong to an earlier attempt. `ShownAnswers.next` turns them into a text without gaps
and repetitions, or reports that a piece is missing. The missing piece is then read from the store (`answer_joins.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final
from uuid import UUID

from breadcrumbs.runtime.events.deltas import Delta
from breadcrumbs.runtime.events.notices import Notice
from breadcrumbs.runtime.store.running_answers import Run

_MAX_ANSWERS: Final = 256
"""Maximum number of answers to remember per subscriber. The oldest is forgotten, and read again if it continues."""


class Missing(Enum):
    """A piece before the delta is missing."""

    PIECE = auto()


@dataclass(frozen=True, slots=True)
class _Shown:
    run: Run
    text: int
    """Number of characters."""
    reasoning: int
    """Number of characters."""
    notice: Notice | None


class ShownAnswers:
    """The running answers that one subscriber has got."""

    __slots__ = ("_next_join", "_shown")

    def __init__(self) -> None:
        self._shown: dict[UUID, _Shown] = {}
        self._next_join = 0.0

    def next(self, delta: Delta) -> Delta | Missing | None:
        """Return the part of a delta that continues the text of the subscriber.

        None: the subscriber has it already, or it belongs to an earlier attempt.
        """
        shown = self._shown.get(delta.breadcrumb_id)
        if shown is not None and delta.run < shown.run:
            return None
        if shown is None or delta.run > shown.run:
            continued, is_new = _Shown(delta.run, 0, 0, None), True
        else:
            continued, is_new = shown, False
        start = delta.offset - len(delta.before)
        reasoning_start = delta.reasoning_offset - len(delta.reasoning_before)
        if start > continued.text or reasoning_start > continued.reasoning:
            return Missing.PIECE
        text = (delta.before + delta.text)[continued.text - start :]
        reasoning = (delta.reasoning_before + delta.reasoning)[continued.reasoning - reasoning_start :]
        if not (text or reasoning or is_new or (delta.notice and delta.notice != continued.notice)):
            return None
        self._remember(
            delta.breadcrumb_id,
            _Shown(delta.run, continued.text + len(text), continued.reasoning + len(reasoning), delta.notice),
        )
        if continued.text == delta.offset and continued.reasoning == delta.reasoning_offset:
            return delta  # the usual case: all subscribers share one value
        return replace(
            delta,
            offset=continued.text,
            text=text,
            reasoning_offset=continued.reasoning,
            reasoning=reasoning,
            before="",
            reasoning_before="",
        )

    def lengths(self, delta: Delta) -> tuple[int, int]:
        """Return how many characters of text and reasoning the subscriber has of the attempt of a delta."""
        shown = self._shown.get(delta.breadcrumb_id)
        return (0, 0) if shown is None or shown.run != delta.run else (shown.text, shown.reasoning)

    def may_join(self, now: float, pause: float) -> bool:
        """Return whether the missing piece may be read. At most one read per `pause` seconds is allowed."""
        if now < self._next_join:
            return False
        self._next_join = now + pause
        return True

    def forget(self, answer: UUID) -> None:
        """Forget an answer that is complete."""
        self._shown.pop(answer, None)

    def _remember(self, answer: UUID, shown: _Shown) -> None:
        if answer not in self._shown and len(self._shown) >= _MAX_ANSWERS:
            del self._shown[next(iter(self._shown))]
        self._shown[answer] = shown
