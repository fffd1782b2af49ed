"""Limits the memory used by large replies that clients have not read yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.errors import RateLimited
from breadcrumbs.runtime.http.api.replies import CHUNK_BYTES
from breadcrumbs.runtime.http.open_streams import token_key
from breadcrumbs.runtime.http.processes.group import other_counts

MAX_NARROWED_BYTES: Final = 32 << 20
"""Maximum unsent bytes of a narrowed token."""
MAX_OTHER_BYTES: Final = 256 << 20
"""Maximum unsent bytes of any other token. Such a token can serve many users at once."""
_RETRY_AFTER_SECONDS: Final = 2


class UnsentReplies:
    """Counts the bytes of large replies per token while they are sent."""

    def __init__(self) -> None:
        self._bytes: Counter[Hashable] = Counter()
        self._others = other_counts()

    @contextmanager
    def count_until_sent(self, principal: Principal, size: int) -> Iterator[None]:
        """Count a large reply until it is sent. Raises `RateLimited` above the limit of its token.

        Replies of up to `CHUNK_BYTES` are not counted. The only large reply of a token is never refused.
        """
        if size <= CHUNK_BYTES:
            yield
            return
        key, limit = token_key(principal), MAX_NARROWED_BYTES if principal.is_narrowed else MAX_OTHER_BYTES
        shared_key = ("unsent", key)
        unread = self._bytes[key] + self._others.of_others(shared_key)
        if unread and unread + size > limit:
            raise RateLimited(
                f"this token has {unread} bytes of replies that were not read yet: read them first",
                _RETRY_AFTER_SECONDS,
                limit=limit,
            )
        self._bytes[key] += size
        self._others.add(shared_key, size)
        try:
            yield
        finally:
            self._others.add(shared_key, -size)
            self._bytes[key] -= size
            if not self._bytes[key]:
                del self._bytes[key]
