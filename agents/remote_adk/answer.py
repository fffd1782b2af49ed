"""Assemble the events of one run of an ADK app into one reply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from breadcrumbs.agents.models.base import ModelError
from breadcrumbs.agents.models.chat_format import show_excerpt

TEMPORARY = "temp:"
"""Prefix of state that lasts for one run and is not stored."""

_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class AdkReply:
    """The complete reply of an app."""

    text: str
    author: str
    """The agent of the app that wrote the last text. The history of the app names the same author."""
    state_delta: dict[str, Any] = field(default_factory=dict)


class AnswerReader:
    """Assembles the events of a run into a reply.

    An app can write several texts in a run: before and after tool calls, or from several agents. All of them are
    streamed and belong to the reply. Thoughts are left out.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._texts: list[str] = []
        self._unfinished = ""
        self._bytes = 0
        self._author = ""
        self._state: dict[str, Any] = {}
        self._problem = ""

    def add_event(self, event: Any) -> str:
        """Add an event and return its new text."""
        if not isinstance(event, dict):
            raise ModelError(f"not an event of an ADK server: {show_excerpt(str(event))}", retry=False)
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
        self._problem = ""  # an event with text is not a failure
        self._author = str(event.get("author") or "")
        return self._add_complete(text)

    def reply(self) -> AdkReply:
        """Return the reply. Raises `ModelError` if the run failed, ended too early, or has no text."""
        if self._problem:
            raise ModelError(f"the app failed: {self._problem}", retry=False)
        if self._unfinished.strip():
            raise ModelError("the answer is incomplete", retry=True)
        if not self._texts:
            raise ModelError("the app returned no text", retry=False)
        return AdkReply(_SEPARATOR.join(self._texts), self._author, self._state)

    def _add_partial(self, text: str) -> str:
        new = text if self._unfinished or not self._texts or not text else _SEPARATOR + text
        self._unfinished += text
        return self._count_bytes(new)

    def _add_complete(self, text: str) -> str:
        streamed, self._unfinished = self._unfinished, ""
        if not streamed:
            new = _SEPARATOR + text if self._texts else text
        else:
            # The complete text normally starts with the streamed pieces. If it does not, the app has replaced them.
            # The reply then contains only the complete text, and nothing more is streamed.
            new = text[len(streamed) :] if text.startswith(streamed) else ""
        self._texts.append(text)
        return self._count_bytes(new)

    def _count_bytes(self, new: str) -> str:
        self._bytes += len(new.encode("utf-8", "replace"))
        if self._bytes > self._max_bytes:
            raise ModelError(
                f"the answer was cut off at {self._max_bytes:,} bytes, the maximum size of an answer",
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
