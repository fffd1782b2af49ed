"""Logs refused origins, so that an operator finds the setting that allows a page.

A page cannot read the reply to a refused request: the browser only reports a failed request.
"""

from __future__ import annotations

from typing import Final

import structlog

from breadcrumbs.runtime.breadcrumb.text import printable_line

_log = structlog.get_logger("breadcrumbs.http")

_MAX_ORIGINS: Final = 100
_MAX_LENGTH: Final = 200


class RefusedOrigins:
    """Logs each refused origin once, up to 100 of them."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def add(self, origin: str, setting: str) -> None:
        """Log an origin and the setting that would allow it, unless it was logged before."""
        # Clients choose the header: bound it, and keep control characters out of the log.
        origin = printable_line(origin[:_MAX_LENGTH])
        if origin in self._seen or len(self._seen) >= _MAX_ORIGINS:
            return
        self._seen.add(origin)
        _log.warning("origin refused", origin=origin, add_it_to_the_setting=setting)
        if len(self._seen) == _MAX_ORIGINS:
            _log.warning("further refused origins are not logged", after=_MAX_ORIGINS)
