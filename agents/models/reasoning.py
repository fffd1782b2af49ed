"""Separates the reasoning of a model from its answer.

Servers send reasoning in a field of its own (`reasoning_content` or `reasoning`). Some local models write it into the
text instead, as `<think>…</think>` at the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

_FIELDS: Final = ("reasoning_content", "reasoning")
_OPEN, _CLOSE = "<think>", "</think>"

_State: TypeAlias = Literal["start", "thinking", "after", "answer"]


def reasoning_in(message: Mapping[str, Any]) -> str:
    """Return the reasoning in a message or a piece of one. Some servers send both fields with the same text."""
    for name in _FIELDS:
        if (text := message.get(name)) and isinstance(text, str):
            return text
    return ""


class ThinkSplitter:
    """Splits a streamed text that can begin with `<think>…</think>`."""

    def __init__(self) -> None:
        self._state: _State = "start"
        self._held = ""
        """Text that can be the beginning of a tag."""
        self._thought: list[str] = []

    def feed(self, text: str) -> tuple[str, str]:
        """Return the next reasoning and the next text of the answer."""
        if self._state == "answer":
            return "", text
        self._held += text
        reasoning = ""
        if self._state == "start":
            self._state = self._state_after_start()
        if self._state == "thinking":
            reasoning = self._take_reasoning()
            self._thought.append(reasoning)
        if self._state == "after":
            self._held = self._held.lstrip()
            self._state = "answer" if self._held else "after"
        return reasoning, self._take() if self._state == "answer" else ""

    def end(self, *, complete: bool) -> str:
        """Return the rest of the answer when the reply has ended.

        In a complete reply, a tag that was never closed is part of the answer. Otherwise the model was cut off while it
        was thinking, and there is no answer.
        """
        if self._state == "thinking" and complete:
            return "".join([_OPEN, *self._thought, self._take()])
        return self._take() if self._state in ("start", "answer") else ""

    def _state_after_start(self) -> _State:
        """Remove the tag at the beginning. Without it, all text is the answer."""
        begin = self._held.lstrip()
        if begin.startswith(_OPEN):
            self._held = begin[len(_OPEN) :]
            return "thinking"
        return "start" if _OPEN.startswith(begin) else "answer"

    def _take_reasoning(self) -> str:
        reasoning, closed, rest = self._held.partition(_CLOSE)
        if closed:
            self._state, self._held = "after", rest
            return reasoning
        # Hold back the longest end that can be the beginning of the closing tag.
        keep = next((n for n in range(len(_CLOSE) - 1, 0, -1) if reasoning.endswith(_CLOSE[:n])), 0)
        self._held = reasoning[len(reasoning) - keep :]
        return reasoning[: len(reasoning) - keep]

    def _take(self) -> str:
        text, self._held = self._held, ""
        return text
