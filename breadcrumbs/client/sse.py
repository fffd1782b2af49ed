"""Server-sent events: messages out of bytes, however these are cut into pieces."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One server-sent event; without data it still says where to go on from."""

    event: str
    data: str
    id: str | None
    """The last id seen so far."""


class Parser:
    """Takes bytes as they come and gives the messages that are complete."""

    def __init__(self) -> None:
        self._unfinished = bytearray()
        self._event = "message"
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, piece: bytes) -> list[Message]:
        self._unfinished += piece
        # Not str.splitlines: it also cuts at characters that JSON has inside of strings.
        end = self._unfinished.rfind(b"\n", len(self._unfinished) - len(piece))
        if end < 0:
            return []
        lines = bytes(self._unfinished[:end]).split(b"\n")
        del self._unfinished[: end + 1]
        messages = [self._take(line.removesuffix(b"\r").decode(errors="replace")) for line in lines]
        return [message for message in messages if message is not None]

    def _take(self, line: str) -> Message | None:
        if not line:
            message = None
            if self._data or self._id is not None:
                message = Message(self._event, "\n".join(self._data), self._id)
            self._event, self._data = "message", []
            return message
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None
