"""Limits the event streams and waiting requests that are open in all processes of the port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.errors import RateLimited
from breadcrumbs.runtime.http.processes.group import other_counts
from breadcrumbs.runtime.telemetry import metrics

_RETRY_AFTER_SECONDS: Final = 10


class OpenStreams:
    """Counts open event streams and waiting requests, per token and per owner."""

    def __init__(self, per_token: int, per_owner: int) -> None:
        self._per_token = per_token
        self._per_owner = per_owner
        self._open: Counter[Hashable] = Counter()
        self._others = other_counts()

    @contextmanager
    def count_stream(self, principal: Principal) -> Iterator[None]:
        """Count an event stream while it is open. Raises `RateLimited` above the limit of its token or owner."""
        with (
            self._count_open(principal, [token_key(principal), principal.owner_id]),
            metrics.STREAM_CLIENTS.track_inprogress(),
        ):
            yield

    @contextmanager
    def count_waiting_request(self, principal: Principal) -> Iterator[None]:
        """Count a request that waits for an answer. It counts like an event stream.

        A token that is not narrowed can serve many users at once, so only the limit of its owner applies to it.
        """
        keys: list[Hashable] = [token_key(principal)] if principal.is_narrowed else []
        with (
            self._count_open(principal, [*keys, principal.owner_id]),
            metrics.WAITING_REQUESTS.track_inprogress(),
        ):
            yield

    @contextmanager
    def _count_open(self, principal: Principal, keys: list[Hashable]) -> Iterator[None]:
        for key in keys:
            is_owner = key == principal.owner_id
            limit = self._per_owner if is_owner else self._per_token
            if self._open[key] + self._others.of_others(_shared(key)) >= limit:
                raise RateLimited(
                    f"this {'owner' if is_owner else 'token'} has reached its limit of {limit} open event streams and "
                    "waiting requests: close some, or use one stream for several filters",
                    _RETRY_AFTER_SECONDS,
                    limit=limit,
                )
        self._open.update(keys)
        for key in keys:
            self._others.add(_shared(key), 1)
        try:
            yield
        finally:
            for key in keys:
                self._others.add(_shared(key), -1)
                self._open[key] -= 1
                if not self._open[key]:
                    del self._open[key]


def _shared(key: Hashable) -> Hashable:
    return "streams", key


def token_key(principal: Principal) -> Hashable:
    """Return the key of a token's limits. Tokens of one API key with the same narrowing share their limits."""
    key = principal.key_id or principal.agent_id
    return principal.owner_id, key, principal.session_id, principal.user_id
