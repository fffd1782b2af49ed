"""The likely reason why a Redis server cannot be used, and what to do about it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Final

from breadcrumbs.runtime.maintenance.checks.finding import Finding

_BY_CODE: Final = {
    "NOAUTH": ("the server requires a password", "add it to the address: redis://:PASSWORD@host:port"),
    "WRONGPASS": ("the server refuses the password", "correct the user and the password in the address"),
    "NOPERM": (
        "the server does not allow this user the needed commands",
        "give the user more rights: ACL SETUSER NAME ~* &* +@all",
    ),
    "LOADING": ("the server is loading its data", "wait until it has loaded them, then try again"),
    "MISCONF": (
        "the server cannot save its data, so it refuses writes",
        "read the server's log; often its disk is full",
    ),
    "READONLY": ("the server is a replica", "use the address of the primary"),
    "CLUSTERDOWN": ("the cluster does not serve all slots", "run CLUSTER INFO on a node, and start failed nodes"),
}  # fmt: skip

_TIMEOUT: Final = (
    "the server did not answer in time",
    "check host, port and firewall, and the load of the server",
)

_BY_TYPE: Final[tuple[tuple[type[OSError], str, str], ...]] = (
    (
        ConnectionRefusedError,
        "no server listens at this address",
        "start the server, and check host, port and its setting bind",
    ),
    (socket.gaierror, "the name of the host is unknown", "correct the host in the address, or the DNS"),
    (ssl.SSLError, "TLS failed", "check the certificate; use redis:// if the server has no TLS"),
    (TimeoutError, *_TIMEOUT),
    (FileNotFoundError, "the socket does not exist", "start the server, and check the path"),
    (PermissionError, "this user may not open the socket", "run as the user of the server, or set its unixsocketperm"),
    (
        ConnectionResetError,
        "the server closed the connection",
        "the server may require TLS (use rediss://), or has reached maxclients",
    ),
)  # fmt: skip


def explain_unreachable(error: BaseException, *, where: str = "") -> Finding:
    """Return the finding for an error while connecting to the server or opening the store."""
    reason, advice = _likely_reason(error)
    text = f"{where}: {reason}" if where else reason
    details = {"error": str(error), "url": where} if where else {"error": str(error)}
    return Finding("store", "error", text, advice, details)


def _likely_reason(error: BaseException) -> tuple[str, str]:
    causes = list(_causes(error))
    for cause in causes:
        code = str(cause).partition(" ")[0].rstrip(":")
        if code in _BY_CODE:
            return _BY_CODE[code]
    for cause in reversed(causes):  # the root cause is the most specific
        for kind, reason, advice in _BY_TYPE:
            if isinstance(cause, kind):
                return reason, advice
    if any(str(cause).startswith("no reply for") for cause in causes):
        return _TIMEOUT
    return str(error), "fix this, then run crumb doctor again"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__
