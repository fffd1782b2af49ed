"""Table of the open connections of one process: admission, eviction and deadlines.

A connection is unauthenticated until one of its requests was accepted. Unauthenticated connections can use only a
part of the connection limit and of the memory. When that part or the whole table is full, a new connection replaces
an unauthenticated one: the oldest of the address that has the most. Incomplete requests can therefore not lock out
clients that have a token.

Processes that share a port also share the limits on the number of connections. Each replaces only its own connections.
"""

from __future__ import annotations

import ipaddress
import math
import resource
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import structlog
from starlette.types import Scope

from breadcrumbs.runtime.http.processes.group import other_counts, share_of
from breadcrumbs.runtime.settings.connection_limits import ConnectionLimits

AUTHENTICATED: Final = "breadcrumbs.authenticated"
"""ASGI extension of this server: a function that marks the connection as authenticated."""

_SPARE_DESCRIPTORS: Final = 512  # Redis, model servers, files, and connections that are being closed
_MAX_REFUSED: Final = 64  # refused connections that stay open until their client has read the reply
_SWEEP_SECONDS: Final = 0.2
_REPORT_SECONDS: Final = 10.0
_SEARCH_PAUSE_SECONDS: Final = 0.1  # after a search for a replaceable connection found none

# Keys of the counts that processes of one port share.
_ALL: Final = "connections"
_UNAUTHENTICATED: Final = "unauthenticated connections"
_ADDRESS: Final = "connections of an address"

_log = structlog.get_logger("breadcrumbs.http")


class Phase(IntEnum):
    """Phase of a connection. The client waits for the server only in `HANDLING`."""

    WAITING = 0
    """No byte of the next request has arrived."""
    HEAD = 1
    BODY = 2
    HANDLING = 3
    """The request is complete, the response is not."""
    DRAINING = 4
    """The response is sent. The rest of the request is read and discarded."""


_REPLACEABLE: Final = frozenset((Phase.WAITING, Phase.HEAD, Phase.DRAINING))


class TrackedConnection(ABC):
    """A connection as the table sees it."""

    phase: Phase = Phase.WAITING
    address: str = ""
    """IPv4 address of the client, or its IPv6 network (/64)."""
    authenticated: bool = False
    buffered: int = 0
    """Bytes of an unfinished request that count towards `max_unauthenticated_bytes`."""
    deadline: float = math.inf

    @abstractmethod
    def check(self, now: float, elapsed: float) -> str | None:
        """Enforce the time limits. Returns a reason for `ConnectionTable.count`, or None.

        `now` is a time of the event loop. `elapsed` is the number of seconds since the last check, without pauses of
        this process.
        """

    @abstractmethod
    def evict(self) -> None:
        """Close the connection at once. A request that is being read gets a 503, unless its response has begun."""


class _AddressConnections:
    """Connections of one client address."""

    __slots__ = ("total", "unauthenticated")

    def __init__(self) -> None:
        self.total = 0
        self.unauthenticated: dict[TrackedConnection, None] = {}
        """Oldest first."""


_NO_CONNECTIONS: Final = _AddressConnections()


class ConnectionTable:
    """All open connections of one process."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._max_bytes = share_of(limits.max_unauthenticated_bytes)
        self._others = other_counts()
        self._connections: dict[TrackedConnection, None] = {}
        self._refused: dict[TrackedConnection, None] = {}
        self._addresses: dict[str, _AddressConnections] = {}
        self._unauthenticated = 0
        self._buffered = 0
        self._now = math.nan
        self._next_search = -math.inf
        self._next_report = -math.inf
        self._reasons: Counter[str] = Counter()

    # Admission

    def admit(self, connection: TrackedConnection) -> bool:
        """Register a new connection. Returns False if the table is full and no connection can be replaced."""
        limits = self.limits
        others = self._others
        same = self._addresses.get(connection.address, _NO_CONNECTIONS)
        of_address = same.total + others.of_others((_ADDRESS, connection.address))
        if of_address >= limits.max_connections_per_address and not self._replace(same.unauthenticated):
            return False
        full = len(self._connections) + others.of_others(_ALL) >= limits.max_connections
        unauthenticated = self._unauthenticated + others.of_others(_UNAUTHENTICATED)
        crowded = unauthenticated >= limits.max_connections - limits.reserved_connections
        if (full or crowded) and not self._make_room(full=full):
            return False
        address = self._addresses.setdefault(connection.address, _AddressConnections())
        address.total += 1
        self._connections[connection] = None
        address.unauthenticated[connection] = None
        others.add((_ADDRESS, connection.address), 1)
        others.add(_ALL, 1)
        self._count_unauthenticated(1)
        return True

    def _count_unauthenticated(self, change: int) -> None:
        self._unauthenticated += change
        self._others.add(_UNAUTHENTICATED, change)

    def keep_refused(self, connection: TrackedConnection) -> bool:
        """Keep a refused connection until its deadline. Returns False if too many are kept already."""
        if len(self._refused) >= _MAX_REFUSED:
            return False
        self._refused[connection] = None
        return True

    def remove(self, connection: TrackedConnection) -> None:
        self._refused.pop(connection, None)
        if connection not in self._connections:
            return
        del self._connections[connection]
        self.set_buffered(connection, 0)
        address = self._addresses[connection.address]
        address.total -= 1
        self._others.add((_ADDRESS, connection.address), -1)
        self._others.add(_ALL, -1)
        if not connection.authenticated:
            del address.unauthenticated[connection]
            self._count_unauthenticated(-1)
        if address.total == 0:
            del self._addresses[connection.address]

    def authenticate(self, connection: TrackedConnection) -> None:
        """Mark a connection as authenticated until it is closed."""
        if connection.authenticated or connection not in self._connections:
            return
        self.set_buffered(connection, 0)
        connection.authenticated = True
        del self._addresses[connection.address].unauthenticated[connection]
        self._count_unauthenticated(-1)

    # Eviction

    def _make_room(self, *, full: bool) -> bool:
        """Evict one connection. Returns False if no connection can be evicted.

        The first choice is a connection of the address with the most unauthenticated ones, unless it is sending a
        body. The second is any unauthenticated connection whose request is not being handled. The last is an idle
        authenticated one, only if the table is full.
        """
        busiest = max(
            self._addresses.values(),
            key=lambda address: len(address.unauthenticated),
            default=_NO_CONNECTIONS,
        )
        if self._replace(busiest.unauthenticated):
            return True
        if self._now < self._next_search:
            return False
        others = (c for c in self._connections if not c.authenticated and c.phase != Phase.HANDLING)
        idle = (c for c in self._connections if c.authenticated and c.phase == Phase.WAITING)
        if self._evict_first(others) or (full and self._evict_first(idle)):
            return True
        self._next_search = self._now + _SEARCH_PAUSE_SECONDS
        return False

    def _replace(self, candidates: Iterable[TrackedConnection]) -> bool:
        return self._evict_first(c for c in candidates if c.phase in _REPLACEABLE)

    def _evict_first(self, candidates: Iterable[TrackedConnection]) -> bool:
        victim = next(iter(candidates), None)
        if victim is None:
            return False
        self._evict(victim, "replaced")
        return True

    def _evict(self, victim: TrackedConnection, reason: str) -> None:
        self.remove(victim)
        victim.evict()
        self.count(reason)

    # Memory

    def set_buffered(self, connection: TrackedConnection, size: int) -> None:
        """Set the number of buffered bytes of an unauthenticated connection.

        Above the limit for all of them, the oldest other connections with incomplete requests are evicted. A
        connection is never evicted for the size of its own request: the limits on heads and bodies apply to it.
        """
        if connection.authenticated or size == connection.buffered:
            return
        grows = size > connection.buffered
        self._buffered += size - connection.buffered
        connection.buffered = size
        while grows and self._buffered > max(self._max_bytes, connection.buffered):
            victim = next(c for c in self._connections if c.buffered and c is not connection)
            self._evict(victim, "too-many-unauthenticated-bytes")

    # Time

    def sweep(self, now: float) -> None:
        """Enforce the time limits of all connections, at most every `_SWEEP_SECONDS`. Other calls do nothing."""
        if self._now + _SWEEP_SECONDS > now:
            return
        elapsed = 0.0 if math.isnan(self._now) else now - self._now
        self._now = now
        # If this process was paused, extend all deadlines by the pause. Clients can have sent their bytes in time.
        lag = max(0.0, elapsed - 3 * _SWEEP_SECONDS)
        for connection in [*self._connections, *self._refused]:
            if lag:
                connection.deadline += lag
            reason = connection.check(now, elapsed - lag)
            if reason is not None:
                self.count(reason)
        self._report(now)

    def count(self, reason: str) -> None:
        """Count a refused or closed connection for the log."""
        self._reasons[reason] += 1

    def _report(self, now: float) -> None:
        """Log at most one line per interval, so that an attack cannot fill the log."""
        if self._reasons and now >= self._next_report:
            _log.warning("connections refused or closed", open=len(self._connections), **self._reasons)
            self._reasons.clear()
            self._next_report = now + _REPORT_SECONDS


def mark_authenticated(scope: Scope) -> None:
    """Mark the connection of a request as authenticated, if the server supports it."""
    mark = scope.get("extensions", {}).get(AUTHENTICATED)
    if mark is not None:
        mark()


def network_of(host: str) -> str:
    """Return the network that the limits per address apply to.

    This is an IPv4 address or an IPv6 /64 network. One client usually controls a whole /64 network.
    """
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(address) >> 64 << 64)}/64"


def fit_to_descriptors(limits: ConnectionLimits) -> ConnectionLimits:
    """Raise the soft limit on open files if necessary, or else lower the connection limits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.max_connections + _SPARE_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):
        allowed = soft
    if allowed >= wanted:
        return limits
    max_connections = max(8, allowed - _SPARE_DESCRIPTORS, allowed // 2)
    _log.warning(
        "limit on open files too low for max_connections, raise it with ulimit -n",
        open_files=allowed,
        needed=wanted,
        max_connections=max_connections,
    )
    return limits.model_copy(
        update={
            "max_connections": max_connections,
            "max_connections_per_address": min(limits.max_connections_per_address, max_connections),
            "reserved_connections": min(limits.reserved_connections, max_connections // 4),
        }
    )
