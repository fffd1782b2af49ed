"""W3C trace context: the headers `traceparent` and `tracestate`, and their encoding in events.

The encoded form is the `traceparent`, followed by a space and the `tracestate` if there is one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_TRACESTATE_CHARACTERS: Final = 512
"""Longer values are dropped. The specification requires that at least this many characters are passed on."""
_MAX_TRACESTATE_MEMBERS: Final = 32

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER: Final = re.compile(
    r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


class TraceContext(NamedTuple):
    """A span of some process, as the parent of another span or as the target of a link."""

    trace_id: int
    span_id: int
    flags: int
    state: str = ""
    """The `tracestate`. Empty: none."""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"

    def encode(self) -> str:
        """Return the form that events carry."""
        return f"{self.traceparent} {self.state}" if self.state else self.traceparent


def parse_headers(headers: Sequence[tuple[bytes, bytes]]) -> TraceContext | None:
    """Return the trace context of a request. None: it has none, or an invalid one.

    The specification requires to ignore an invalid header. It is not an error of the request.
    """
    parents = [value for name, value in headers if name == b"traceparent"]
    if len(parents) != 1:
        return None
    states = [value for name, value in headers if name == b"tracestate"]
    return _parse(parents[0].decode("latin-1"), b",".join(states).decode("latin-1"))


def decode(carried: str | None) -> TraceContext | None:
    """Return the trace context that an event carries. None: it carries none, or a damaged one."""
    if not isinstance(carried, str):
        return None
    parent, _, state = carried.partition(" ")
    return _parse(parent, state)


def trace_headers(carried: str | None) -> dict[str, str]:
    """Return the headers that pass a trace on to another server."""
    if (context := decode(carried)) is None:
        return {}
    return {"traceparent": context.traceparent} | ({"tracestate": context.state} if context.state else {})


def _parse(parent: str, state: str) -> TraceContext | None:
    match = _TRACEPARENT.fullmatch(parent.strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    # Later versions can have more fields. Version ff is invalid.
    if version == "ff" or (version == "00" and rest is not None):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), int(flags, 16), _checked_state(state))
    return context if context.trace_id and context.span_id else None


def _checked_state(state: str) -> str:
    """Return the members of a `tracestate`, or an empty text if they are invalid or too long."""
    members = [member.strip(" \t") for member in state.split(",")]
    members = [member for member in members if member]
    joined = ",".join(members)
    if len(members) > _MAX_TRACESTATE_MEMBERS or len(joined) > MAX_TRACESTATE_CHARACTERS:
        return ""
    return joined if all(_MEMBER.fullmatch(member) for member in members) else ""
