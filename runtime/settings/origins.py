"""Checks origins in the settings.

A browser sends an origin as scheme, host and port, without the default port. A value in any other form never matches.
"""

from __future__ import annotations

import re
from typing import Final

_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(?P<port>\d{1,5}))?/?"
)
_EXCEPTIONS: Final = frozenset(("*", "null"))
"""`*` allows every origin. Browsers send `null` for pages without an origin, such as local files."""
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_EXAMPLE: Final = "https://app.example"


def check_origin(origin: str) -> str:
    """Return an origin of a web page. Raises ValueError with the right form if no browser sends such an origin."""
    if origin in _EXCEPTIONS:
        return origin
    match = _ORIGIN.fullmatch(origin.lower())
    if match is None or match["port"] == _DEFAULT_PORTS.get(match["scheme"], ""):
        raise ValueError(f"{origin[:200]!r} can never match: {_reason(origin)}; use {suggest_origin(origin)}")
    return origin


def suggest_origin(text: str) -> str:
    """Return the origin that was probably meant by a text such as a URL, or an example."""
    scheme, separator, rest = text.strip().lower().partition("://")
    if not separator:
        scheme, rest = "http" if scheme.startswith(("localhost", "127.")) else "https", scheme
    authority = re.split(r"[/?#\\]", rest, maxsplit=1)[0].rpartition("@")[2]
    host, _, port = authority.rpartition(":") if re.search(r":\d*$", authority) else (authority, "", "")
    try:
        host = host.encode("idna").decode() if not host.isascii() else host
    except UnicodeError:
        return _EXAMPLE
    suggested = f"{scheme}://{host}"
    if port and port != _DEFAULT_PORTS.get(scheme):
        suggested += f":{port}"
    return suggested if _ORIGIN.fullmatch(suggested) else _EXAMPLE


def _reason(origin: str) -> str:
    scheme, separator, rest = origin.partition("://")
    if not separator:
        return "an origin starts with a scheme"
    if "*" in origin:
        return "a wildcard inside an origin is not supported, list each origin (or * for all)"
    if re.search(r"[/?#\\]", rest.rstrip("/")):
        return "an origin has no path"
    if not origin.isascii():
        return "browsers send a host with other letters in its ASCII form"
    if rest.rstrip("/").endswith(f":{_DEFAULT_PORTS.get(scheme.lower())}"):
        return "browsers omit the default port"
    return "an origin is a scheme, a host and optionally a port"
