"""Interface to a Redis server or cluster: commands, scripts and errors.

Every command has a lane. A standalone server ignores the lane. On a cluster the lane decides the node,
because all keys of a lane share one hash slot.

Errors: every method of `Connection` and `LaneChannels` raises only `StoreError` and its subclasses:

- `StoreUnavailable`: the link broke, or the server cannot serve the command now. The caller cannot tell
  whether the command was executed.
- `CommandRefused`: the server refuses the login or the command (a password, an ACL).
- `StoreReplaced`: the server does not contain the store that the connection protects. The command was not sent.
- `StoreFull`: the server has no memory left. The command was not executed.
- `StoreError`: the server replied with another error.

`LinkLost` and `ReplyError` (see `link.py`) do not leave this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, Protocol, TypeVar

from breadcrumbs.runtime.backend.identity import StoreIdentity
from breadcrumbs.runtime.backend.link import (
    ChannelHandler,
    Command,
    LinkClosed,
    LinkLost,
    MessageHandler,
    ReplyError,
)
from breadcrumbs.runtime.errors import CommandRefused, StoreError, StoreFull, StoreUnavailable
from breadcrumbs.runtime.telemetry.store_calls import STORE_CALLS

_T = TypeVar("_T")

_UNAVAILABLE_CODES: Final = frozenset((
    "LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "TRYAGAIN", "NOREPLICAS", "MISCONF", "BUSY",
))  # fmt: skip
_REFUSED_CODES: Final = frozenset(("NOAUTH", "WRONGPASS", "NOPERM"))


class Script:
    """A Lua script from `runtime/store/lua`. Its header lists its keys, arguments and replies."""

    def __init__(self, name: str, *, inside: str | Sequence[str] = ()) -> None:
        """Load a script. `inside`: the scripts that wrap it, the innermost first."""
        self.name = name
        self.source = _read_script(name)
        for wrapper in (inside,) if isinstance(inside, str) else inside:
            flags, _, body = self.source.partition(b"\n")
            around = _read_script(wrapper).partition(b"\n")[2]
            self.source = flags + b"\n" + around.replace(b"-- the other script", body)
        self.read_only = self.source.startswith(b"#!lua flags=no-writes\n")
        # The server identifies scripts by SHA-1. The hash is not used for security.
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest().encode()


def load_scripts() -> list[Script]:
    """Load every script of the store."""
    names = [entry.name for entry in _script_folder().iterdir()]
    return [Script(name.removesuffix(".lua")) for name in names if name.endswith(".lua")]


def _read_script(name: str) -> bytes:
    return _script_folder().joinpath(f"{name}.lua").read_bytes()


def _script_folder() -> Traversable:
    # Read as a resource, so that the backend does not import the store.
    return files("breadcrumbs.runtime.store").joinpath("lua")


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """A call of a script that may run twice, for `Connection.call_all`. Most of these scripts only read."""

    script: Script
    keys: list[bytes]
    args: list[bytes | str | int]

    @property
    def command(self) -> Command:
        """The EVALSHA command."""
        return (b"EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)


class Connection(Protocol):
    """A connection to a server or a cluster. Opens on first use, and reconnects after a broken link."""

    async def call(self, lane: int, *command: bytes | str | int | float) -> Any:
        """Send one command and return its reply."""
        ...

    async def call_all(self, commands: Sequence[tuple[int, Command | ScriptCall]]) -> list[Any]:
        """Send commands, each with its lane, in one round trip per node. Raises the first error."""
        ...

    async def run(self, lane: int, script: Script, keys: list[bytes], args: list[bytes | str | int]) -> Any:
        """Run a script and return its reply."""
        ...

    def post(self, lane: int, *command: bytes | str | int | float) -> None:
        """Send a command before all later ones, without waiting for its reply.

        Never raises. The command can get lost.
        """
        ...

    def reader_groups(self) -> list[list[int]]:
        """Return the lanes in groups that one command can read together."""
        ...

    def node_lanes(self) -> list[int]:
        """Return one lane per server. Commands to these lanes reach every server once."""
        ...

    def node_of(self, lane: int) -> object:
        """Return the server of a lane, as a value that can be compared. It can change at any time."""
        ...

    async def open_channels(self, lane: int, on_message: ChannelHandler) -> LaneChannels:
        """Open a link to the server of a lane, for the sharded channels of all its lanes.

        `on_message` is called as soon as a message is read, like that of `listen`.
        """
        ...

    async def listen(self, channel: bytes, on_message: MessageHandler) -> None:
        """Call `on_message` with each message of a channel, until the link breaks. Then raise.

        `on_message` is called as soon as a message is read, not in a later iteration of the event loop. The event
        of an answer follows its last delta on another link and must not overtake it.
        """
        ...

    def protect(self, identity: StoreIdentity) -> None:
        """Check the identity on each new link, before anything else is sent on it.

        A link to a server without this identity raises `StoreReplaced` for every command, until the identity is back.
        """
        ...

    async def verify(self) -> None:
        """Check now that every server has the protected identity. Raises `StoreReplaced`, like all later commands.

        This detects a loss on links that did not break.
        """
        ...

    async def close(self) -> None: ...


class LaneChannels(Protocol):
    """Subscriptions to channels of one server."""

    def subscribe(self, channel: bytes) -> None:
        """Begin a subscription. The handler is called with None when the server has confirmed it."""
        ...

    def unsubscribe(self, channel: bytes) -> None: ...

    async def wait_lost(self) -> None:
        """Wait until the link broke, or the server refused or ended a subscription. Then raise the reason."""
        ...

    def close(self) -> None: ...


def to_store_error(error: LinkLost | ReplyError) -> StoreError:
    """Translate an error of a link into the error that the backend raises, and count it."""
    translated = _translate(error)
    if not isinstance(error, LinkClosed):
        STORE_CALLS.failed(translated)
    return translated


def _translate(error: LinkLost | ReplyError) -> StoreError:
    if isinstance(error, LinkLost):
        return StoreUnavailable(str(error))
    if error.code == "OOM":
        return StoreFull(
            "the Redis server has no memory left: raise its maxmemory, or delete old breadcrumbs"
        )
    if error.code in _REFUSED_CODES:
        return CommandRefused(str(error))
    if error.code in _UNAVAILABLE_CODES:
        return StoreUnavailable(str(error))
    return StoreError(str(error))


def raise_first_error(replies: list[_T]) -> list[_T]:
    """Return the replies of a batch, or raise the first error among them."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise to_store_error(reply) from reply
    return replies


def to_command(command: Command | ScriptCall) -> Command:
    """Return the command in the form that a link sends."""
    return command.command if isinstance(command, ScriptCall) else command
