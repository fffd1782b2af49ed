"""Server-sent events: encoding, and a parser for bytes that arrive in pieces. Pure; imports nothing of the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MAX_STRAY_BYTES: Final = 64 << 10
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_OTHER_FIELDS: Final = (b"", b"retry")  # comments, and a field that no consumer uses


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event of a stream."""

    event: str
    data: bytes | None
    """None: the event has no data and only sets the id."""
    id: str | None
    """The last id so far, of this event or of an earlier one."""

    @property
    def text(self) -> str:
        return "" if self.data is None else self.data.decode(errors="replace")


class LineTooLong(ValueError):
    """A line of the stream is longer than the parser accepts."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a line is longer than {limit:,} bytes")
        self.limit = limit


def encode_event(data: bytes, *, event: str | None = None, id: str | None = None) -> bytes:
    """Encode one event. `data` must not contain line breaks, which holds for JSON."""
    head = b"" if id is None else b"id: %s\n" % id.encode()
    if event is not None:
        head += b"event: %s\n" % event.encode()
    return b"%sdata: %s\n\n" % (head, data)


def encode_comment(text: str) -> bytes:
    """Encode a comment, which clients ignore."""
    return b": %s\n\n" % text.encode()


class Parser:
    """Takes the bytes of a stream in any pieces and returns the events that are complete."""

    def __init__(self, *, max_line_bytes: int | None = None) -> None:
        """`max_line_bytes`: None: lines are not limited."""
        self.stray = bytearray()
        """The first lines that are no fields: a body that is not an event stream ends up here."""
        self._max_line_bytes = max_line_bytes
        self._unfinished = bytearray()
        self._at_start = True
        self._event = "message"
        self._data: list[bytes] = []
        self._id: str | None = None
        self._has_id = False

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """Return the events that this piece completes. Raises LineTooLong."""
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
        """Return the event at the end of the stream if the empty line after it is missing."""
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
        """Apply a field. Returns False if there is no such field."""
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" not in value:  # the standard ignores such ids
                self._id, self._has_id = value.decode(errors="replace"), True
        else:
            return name in _OTHER_FIELDS
        return True

    def _finish_event(self) -> ServerSentEvent | None:
        event = None
        if self._data or self._has_id:
            event = ServerSentEvent(self._event, b"\n".join(self._data) if self._data else None, self._id)
        self._event, self._data, self._has_id = "message", [], False
        return event
