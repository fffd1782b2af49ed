"""Queries: which breadcrumbs to list, and in which order.

All filters must match. For `any_tags` one of the tags is enough. `store/listing.py` executes queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.errors import InvalidInput

Sort = Literal["-created_at", "created_at", "-updated_at", "updated_at"]

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000
MAX_OFFSET = 100_000


@dataclass(frozen=True, slots=True)
class Query:
    """Filters, order and limits of a listing. The default lists everything, newest first."""

    schema_name: str | None = None
    schema_names: tuple[str, ...] = ()
    """Accepted schema names. Empty: any."""
    session_id: str | None = None
    sessionless: bool = False
    """Only breadcrumbs without a session."""
    all_tags: tuple[str, ...] = ()
    any_tags: tuple[str, ...] = ()
    created_since: int | None = None
    """Microseconds since 1970, as in the next two fields. All three are inclusive."""
    created_until: int | None = None
    updated_since: int | None = None
    sort: Sort | None = None
    """None: newest first, by update time if `updated_since` is set, otherwise by creation time."""
    limit: int = DEFAULT_LIMIT
    offset: int = 0
    cursor: str | None = None
    max_bytes: int | None = None
    """Byte limit of a page, or None. A page above it ends early with a cursor, but has at least one breadcrumb."""
    without_contexts: bool = False
    """Omit the contexts of large breadcrumbs, for callers that do not use them."""
    keep: Callable[[Breadcrumb], bool] | None = field(default=None, compare=False)
    """Additional filter. It returns False for breadcrumbs that the caller must not see."""

    @property
    def order(self) -> Sort:
        """The order in effect."""
        return self.sort or ("-created_at" if self.updated_since is None else "-updated_at")

    @property
    def descending(self) -> bool:
        return self.order.startswith("-")

    @property
    def by_update(self) -> bool:
        return self.order.endswith("updated_at")

    @property
    def sessions(self) -> set[str]:
        """All sessions that the filters require. No breadcrumb matches more than one."""
        required = {tag[len(SESSION) :] for tag in self.all_tags if tag.startswith(SESSION)}
        return required | ({self.session_id} if self.session_id is not None else set())

    @property
    def start(self) -> SortKey | None:
        """Sort key to start at without a cursor, or None to start at the first entry."""
        if self.order == "created_at" and self.created_since is not None:
            return SortKey(self.created_since, b"")
        if self.order == "-created_at" and self.created_until is not None:
            return SortKey(self.created_until + 1, b"")
        return None

    def accepts(self, crumb: Breadcrumb) -> bool:
        """Return whether a breadcrumb matches all filters."""
        tags = crumb.tags
        return (
            (self.schema_name is None or crumb.schema_name == self.schema_name)
            and (not self.schema_names or crumb.schema_name in self.schema_names)
            and (self.session_id is None or crumb.session_id == self.session_id)
            and (not self.sessionless or crumb.session_id is None)
            and all(tag in tags for tag in self.all_tags)
            and (not self.any_tags or any(tag in tags for tag in self.any_tags))
            and (self.created_since is None or crumb.created >= self.created_since)
            and (self.created_until is None or crumb.created <= self.created_until)
            and (self.updated_since is None or crumb.updated >= self.updated_since)
            and (self.keep is None or self.keep(crumb))
        )

    def check(self) -> None:
        """Check the limits. Raises InvalidInput.

        Limit and offset must be in range. A cursor cannot be combined with an offset.
        """
        check_limit(self.limit)
        if not 0 <= self.offset <= MAX_OFFSET:
            raise InvalidInput(
                f"offset must be from 0 to {MAX_OFFSET}: use a cursor beyond that", where="offset"
            )
        if self.cursor is not None and self.offset:
            raise InvalidInput("cursor and offset cannot be combined: send one of them", where="cursor")


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit must be from 1 to {MAX_LIMIT}", where="limit")


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing."""

    items: list[Breadcrumb]
    next_cursor: str | None
    """None on the last page."""
    unindexed_tags: tuple[str, ...] = ()
    """Tags of the query that were answered from the indexes of schemas, which takes longer."""


class SortKey(NamedTuple):
    """Sort key of a breadcrumb in an index: its time in microseconds, then its id.

    Listings create and compare thousands of them, and a tuple is the fastest value for that.
    """

    score: int
    id: bytes
