"""Limits the memory of large replies whose clients do not read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.errors import RateLimited
from breadcrumbs.runtime.http.api.replies import CHUNK_BYTES
from breadcrumbs.runtime.http.open_streams import token_key

MAX_NARROWED_BYTES: Final = 32 << 20
"""Unsent bytes of a token for one session or one user."""
MAX_OTHER_BYTES: Final = 256 << 20
"""Unsent bytes of any other token. It may serve many users at once."""
_RETRY_AFTER_SECONDS: Final = 2


class UnsentReplies:
    """Counts the bytes of large replies, by token, while they are sent."""

    def __init__(self) -> None:
        self._bytes: Counter[Hashable] = Counter()

    @contextmanager
    def count_until_sent(self, principal: Principal, size: int) -> Iterator[None]:
        """Count a reply until it is sent. Refuses a large one if the token has too many of them in flight."""
        if size <= CHUNK_BYTES:
            yield
            return
        key, limit = token_key(principal), MAX_NARROWED_BYTES if principal.is_narrowed else MAX_OTHER_BYTES
        if self._bytes[key] and self._bytes[key] + size > limit:
            raise RateLimited(
                f"large replies to this token are waiting to be read, {self._bytes[key]} bytes in all: read them first",
                _RETRY_AFTER_SECONDS,
                limit=limit,
            )
        self._bytes[key] += size
        try:
            yield
        finally:
            self._bytes[key] -= size
            if not self._bytes[key]:
                del self._bytes[key]
