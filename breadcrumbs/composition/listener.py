"""Listening sockets of processes."""

from __future__ import annotations

import errno
import socket

from breadcrumbs.runtime.errors import StartupError


def open_listener(host: str, port: int, *, options: tuple[str, str] = ("--host", "--port")) -> socket.socket:
    """Open a listening socket. `options` are the flags that choose its address and port, for error messages.

    Call it before anything else starts, so that a port in use is reported first.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Listen now. If this waited until the start is complete, another process could take the port.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {host} port {port}: {error.strerror}; {_advice(error.errno or 0, *options)}"
        ) from None
    listener.setblocking(False)
    return listener


def _advice(code: int, host: str, port: str) -> str:
    if code == errno.EADDRINUSE:
        return f"stop the process that uses it, or choose another port: {port} 0 takes any free one"
    if code == errno.EACCES:
        return f"ports below 1024 need root: choose another port with {port}"
    if code == errno.EADDRNOTAVAIL:
        return f"this machine does not have that address: choose another one with {host}"
    return f"choose another port with {port}"
