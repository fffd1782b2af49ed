"""Assemble the events of one run of an ADK app into one answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from breadcrumbs.agents.models.base import ModelError
from breadcrumbs.agents.models.chat_format import show_excerpt

TEMPORARY = "temp:"
"""State of one run, which nobody keeps."""

_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class AdkReply:
    """The whole reply of an app."""

    text: str
    author: str
    """The agent of the app that had the last word: in the app's own history that is who said it."""
    state_delta: dict[str, Any] = field(default_factory=dict)


class AnswerReader:
    """Assembles the events of a run. `add_event` returns the new text of each.

    An app may speak several times in a run, before and after it uses its tools, or with several agents. All of
    it is the answer: what was shown is what is stored. Thoughts are not.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._said: list[str] = []
        self._unfinished = ""
        self._bytes = 0
        self._author = ""
        self._state: dict[str, Any] = {}
        self._problem = ""

    def add_event(self, event: Any) -> str:
        if not isinstance(event, dict):
            raise ModelError(f"this is no event of an ADK server: {show_excerpt(str(event))}", retry=False)
        if isinstance(error := event.get("error"), str):
            raise ModelError(f"the app failed: {show_excerpt(error)}", retry=False)
        if event.get("author") == "user":
            return ""
        text = _event_text(event)
        if event.get("partial") is True:
            return self._add_partial(text)
        self._state |= _state_delta(event)
        if code := event.get("errorCode"):
            self._problem = show_excerpt(f"{code} {event.get('errorMessage') or ''}")
        if not text.strip():
            return ""
        self._problem = ""  # it has words all the same
        self._author = str(event.get("author") or "")
        return self._add_complete(text)

    def reply(self) -> AdkReply:
        if self._problem:
            raise ModelError(f"the app failed: {self._problem}", retry=False)
        if self._unfinished.strip():
            raise ModelError("the answer ended in the middle", retry=True)
        if not self._said:
            raise ModelError("the app ran and said nothing", retry=False)
        return AdkReply(_SEPARATOR.join(self._said), self._author, self._state)

    def _add_partial(self, text: str) -> str:
        new = text if self._unfinished or not self._said or not text else _SEPARATOR + text
        self._unfinished += text
        return self._count_bytes(new)

    def _add_complete(self, text: str) -> str:
        begun, self._unfinished = self._unfinished, ""
        if not begun:
            new = _SEPARATOR + text if self._said else text
        else:
            # Word for word what came in pieces, or the app has changed its mind: then the pieces were for the eye.
            new = text[len(begun) :] if text.startswith(begun) else ""
        self._said.append(text)
        return self._count_bytes(new)

    def _count_bytes(self, new: str) -> str:
        self._bytes += len(new.encode("utf-8", "replace"))
        if self._bytes > self._max_bytes:
            raise ModelError(
                f"the answer was cut off: it has more than the {self._max_bytes:,} bytes that are allowed",
                retry=False,
            )
        return new


def _event_text(event: dict[str, Any]) -> str:
    content = event.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    if not isinstance(parts, list):
        return ""
    return "".join(
        part["text"]
        for part in parts
        if isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("thought") is not True
    )


def _state_delta(event: dict[str, Any]) -> dict[str, Any]:
    actions = event.get("actions")
    delta = actions.get("stateDelta") if isinstance(actions, dict) else None
    if not isinstance(delta, dict):
        return {}
    return {name: value for name, value in delta.items() if not name.startswith(TEMPORARY)}
