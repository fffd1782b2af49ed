"""What the client does, apart from how: operations that ask for effects.

An operation is a generator. It yields an effect (send this, wait so long, read on), gets its result back, and
returns in the end. Where it has something for the caller on the way, it yields an `Item`. `sync.py` and
`aio.py` each have one loop that carries effects out; everything else is written once, and without a socket
in sight.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import orjson

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the server."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    """Sent twice, it does the same as sent once."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer of the server. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Decode the body."""
        return orjson.loads(self.body)


class Channel:
    """An answer that goes on and on. What is in it is the business of who carries out the effects."""


class Lost(Exception):
    """The connection could not be made, or broke. Thrown into an operation as the result of an effect."""

    def __init__(self, reason: str, *, refused: bool = False, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused
        """There was no connection to begin with."""
        self.timed_out = timed_out


@dataclass(frozen=True, slots=True)
class Send:
    """Gives a `Reply`."""

    request: Request
    timeout: float | None = None
    """For how long at most; None: for as long as the client is set to."""


@dataclass(frozen=True, slots=True)
class Open:
    """Gives a `Channel`, or a `Reply` where the server did not begin to stream."""

    request: Request
    read_timeout: float


@dataclass(frozen=True, slots=True)
class Read:
    """Gives the next bytes; none when the server has ended it."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class Shut:
    """Closes a channel. Those that are still open when an operation ends are closed too."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Item(Generic[T_co]):
    """Something for the caller."""

    value: T_co


Effect: TypeAlias = Send | Open | Read | Shut | Pause
Operation: TypeAlias = Generator[Effect, Any, T]
"""Comes to one result."""
Series: TypeAlias = Generator[Effect | Item[T], Any, None]
"""Gives any number of items."""


def as_item(operation: Operation[T]) -> Series[T]:
    """The one result of an operation as the one item of a sequence, so that one loop can run both."""
    value = yield from operation
    yield Item(value)
