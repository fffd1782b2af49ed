"""Parse server-sent events of chat completions: `data:` lines; an empty line ends an event."""

from __future__ import annotations

from breadcrumbs.agents.models.base import ModelError

_KEPT_FOR_DIAGNOSIS = 64 << 10


class EventParser:
    """Takes bytes as they come and gives the data of every event that is complete."""

    def __init__(self, *, max_line: int) -> None:
        self.stray = bytearray()
        """What is no field of an event, up to a limit: a body that is no event stream at all ends up here."""
        self._max_line = max_line
        self._unfinished = bytearray()
        self._data: list[bytes] = []
        self._at_start = True

    def feed(self, piece: bytes) -> list[bytes]:
        searched = len(self._unfinished)
        self._unfinished += piece
        if b"\n" not in piece:
            if len(self._unfinished) > self._max_line:
                raise ModelError(
                    f"a single line of the answer is longer than {self._max_line:,} bytes", retry=False
                )
            return []
        end = self._unfinished.rindex(b"\n", searched)
        lines = bytes(self._unfinished[:end]).split(b"\n")
        del self._unfinished[: end + 1]
        events = []
        for line in lines:
            event = self._take(line.removesuffix(b"\r"))
            if event is not None:
                events.append(event)
        return events

    def end(self) -> bytes | None:
        """The event that the stream ended in, if it ended without the empty line."""
        if self._unfinished:
            self._take(bytes(self._unfinished).removesuffix(b"\r"))
            self._unfinished.clear()
        return self._take(b"")

    def _take(self, line: bytes) -> bytes | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            event = b"\n".join(self._data) if self._data else None
            self._data.clear()
            return event
        field, colon, value = line.partition(b":")
        if field == b"data" and colon:
            self._data.append(value.removeprefix(b" "))
        elif not (field in (b"", b"event", b"id", b"retry") and colon):
            self.stray += line[:_KEPT_FOR_DIAGNOSIS] + b"\n"
            del self.stray[_KEPT_FOR_DIAGNOSIS:]
        return None
