"""Encoder and incremental parser for server-sent events.

This module does no I/O and imports nothing from the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MAX_STRAY_BYTES: Final = 64 << 10
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_IGNORED_FIELDS: Final = (b"", b"retry")  # comments, and a field that no consumer uses


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event of a stream."""

    event: str
    data: bytes | None
    """None if the event has no data and only sets the id."""
    id: str | None
    """The id of this event, or else of the last event that had one."""

    @property
    def text(self) -> str:
        """The data as text."""
        return "" if self.data is None else self.data.decode(errors="replace")


class LineTooLong(ValueError):
    """A line of the stream is longer than `max_line_bytes`."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a line is longer than {limit:,} bytes")
        self.limit = limit


def encode_event(data: bytes, *, event: str | None = None, id: str | None = None) -> bytes:
    """Encode one event. `data` must not contain line breaks. Encoded JSON has none."""
    head = b"" if id is None else b"id: %s\n" % id.encode()
    if event is not None:
        head += b"event: %s\n" % event.encode()
    return b"%sdata: %s\n\n" % (head, data)


def encode_comment(text: str) -> bytes:
    """Encode a comment, which clients ignore."""
    return b": %s\n\n" % text.encode()


class Parser:
    """Incremental parser. Accepts chunks of any size and returns the completed events."""

    def __init__(self, *, max_line_bytes: int | None = None) -> None:
        """Create a parser. The line length is unlimited if `max_line_bytes` is None."""
        self.stray = bytearray()
        """The first 64 KiB of lines that are not fields. If the response is not an event stream, this is its body."""
        self._max_line_bytes = max_line_bytes
        self._unfinished = bytearray()
        self._at_start = True
        self._event = "message"
        self._data: list[bytes] = []
        self._id: str | None = None
        self._has_id = False

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """Return the events that this chunk completes. Raises LineTooLong."""
        searched = len(self._unfinished)
        self._unfinished += piece
        # Split at line feeds only: str.splitlines also splits at characters that occur inside JSON strings.
        end = self._unfinished.rfind(b"\n", searched)
        if end < 0:
            if self._max_line_bytes is not None and len(self._unfinished) > self._max_line_bytes:
                raise LineTooLong(self._max_line_bytes)
            return []
        lines = bytes(self._unfinished[:end]).split(b"\n")
        del self._unfinished[: end + 1]
        events = [self._take_line(line) for line in lines]
        return [event for event in events if event is not None]

    def end(self) -> ServerSentEvent | None:
        """Return the last event of the stream if its closing empty line is missing."""
        if self._unfinished:
            self._take_line(bytes(self._unfinished))
            self._unfinished.clear()
        return self._finish_event()

    def _take_line(self, line: bytes) -> ServerSentEvent | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        line = line.removesuffix(b"\r")
        if not line:
            return self._finish_event()
        name, colon, value = line.partition(b":")
        if not colon or not self._set_field(name, value.removeprefix(b" ")):
            self.stray += line[:_MAX_STRAY_BYTES] + b"\n"
            del self.stray[_MAX_STRAY_BYTES:]
        return None

    def _set_field(self, name: bytes, value: bytes) -> bool:
        """Apply a field. Return False if the field is unknown."""
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" not in value:  # the standard requires ids with NUL to be ignored
                self._id, self._has_id = value.decode(errors="replace"), True
        else:
            return name in _IGNORED_FIELDS
        return True

    def _finish_event(self) -> ServerSentEvent | None:
        event = None
        if self._data or self._has_id:
            event = ServerSentEvent(self._event, b"\n".join(self._data) if self._data else None, self._id)
        self._event, self._data, self._has_id = "message", [], False
        return event
