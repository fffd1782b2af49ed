"""Identity of a store: a random value in its metadata, by which a process recognizes its store.

A server that was restarted without its data, or emptied, accepts commands as before. A connection therefore checks the
identity on each new link before it sends anything else. See `Connection.protect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from breadcrumbs.runtime.backend.link import Command, ReplyError
from breadcrumbs.runtime.errors import StoreReplaced

IDENTITY_FIELD: Final = b"id"
"""Field of the metadata that contains the identity."""


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The identity of a store, and the keys that contain it."""

    value: str
    meta: bytes
    """Key of the metadata."""
    markers: Sequence[bytes]
    """Keys of the markers, by lane. Only on a cluster: each of its servers can lose its data alone."""

    @property
    def read_meta(self) -> Command:
        return b"HGET", self.meta, IDENTITY_FIELD

    def read_marker(self, lane: int) -> Command:
        return b"GET", self.markers[lane]

    def check_meta(self, found: Any) -> None:
        """Check the reply to `read_meta`. Raises `StoreReplaced` for another value, and an error reply as it is."""
        if isinstance(found, ReplyError):
            raise found
        if found != self.value.encode():
            raise StoreReplaced(describe_loss(self.value, None if found is None else found.decode()))

    def check_marker(self, lane: int, found: Any) -> None:
        """Check the reply to `read_marker`, like `check_meta`."""
        if isinstance(found, ReplyError):
            raise found
        if found is None:
            raise StoreReplaced(
                f"lane {lane} of the store {self.value} is gone: a server of the cluster was emptied, or restarted "
                "without its data"
            )
        if found != self.value.encode():
            raise StoreReplaced(
                f"lane {lane} belongs to another store: {found.decode()} instead of {self.value}"
            )


def describe_loss(expected: str, found: str | None) -> str:
    """Describe what a server contains instead of the expected store. `found`: its identity, None if it has none."""
    if found is None:
        return f"the store {expected} is gone: the Redis server was emptied, or restarted without its data"
    return f"the Redis server contains another store: {found} instead of {expected}"
