"""Query: which breadcrumbs to list, and in which order.

All filters are AND; `any_tags` is an OR inside itself. `store/listing.py` turns a query into a page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.errors import InvalidInput

Sort = Literal["-created_at", "created_at", "-updated_at", "updated_at"]

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000
MAX_OFFSET = 100_000


@dataclass(frozen=True, slots=True)
class Query:
    """What to list. The default is everything, newest first."""

    schema_name: str | None = None
    schema_names: tuple[str, ...] = ()
    """One of these; none: any."""
    session_id: str | None = None
    sessionless: bool = False
    """Only what belongs to no session."""
    all_tags: tuple[str, ...] = ()
    any_tags: tuple[str, ...] = ()
    created_since: int | None = None
    created_until: int | None = None
    updated_since: int | None = None
    sort: Sort | None = None
    """None: newest first; by update time where `updated_since` asks for changes."""
    limit: int = DEFAULT_LIMIT
    offset: int = 0
    cursor: str | None = None
    max_bytes: int | None = None
    """A page ends (with a cursor) before its breadcrumbs exceed so many bytes; it has at least one. None: no limit."""
    without_contexts: bool = False
    """Leave the contexts of large breadcrumbs out, for a reader that does not use them."""
    keep: Callable[[Breadcrumb], bool] | None = field(default=None, compare=False)
    """A last word on each breadcrumb, for what the reader may not see."""

    @property
    def order(self) -> Sort:
        return self.sort or ("-created_at" if self.updated_since is None else "-updated_at")

    @property
    def descending(self) -> bool:
        return self.order.startswith("-")

    @property
    def by_update(self) -> bool:
        return self.order.endswith("updated_at")

    @property
    def sessions(self) -> set[str]:
        """Every session that the filters demand; more than one can never be met."""
        demanded = {tag[len(SESSION) :] for tag in self.all_tags if tag.startswith(SESSION)}
        return demanded | ({self.session_id} if self.session_id is not None else set())

    @property
    def start(self) -> SortKey | None:
        """Where to begin to read without a cursor; None: at the first."""
        if self.order == "created_at" and self.created_since is not None:
            return SortKey(self.created_since, b"")
        if self.order == "-created_at" and self.created_until is not None:
            return SortKey(self.created_until + 1, b"")
        return None

    def accepts(self, crumb: Breadcrumb) -> bool:
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
        check_limit(self.limit)
        if not 0 <= self.offset <= MAX_OFFSET:
            raise InvalidInput(
                f"offset must be from 0 to {MAX_OFFSET}: use cursor beyond that", where="offset"
            )
        if self.cursor is not None and self.offset:
            raise InvalidInput("cursor and offset exclude each other", where="cursor")


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit must be from 1 to {MAX_LIMIT}", where="limit")


@dataclass(frozen=True, slots=True)
class Page:
    items: list[Breadcrumb]
    next_cursor: str | None
    """None: this was the end."""


@dataclass(frozen=True, slots=True, order=True)
class SortKey:
    """Sort key of a breadcrumb in an index: its time in microseconds, then its id."""

    score: int
    id: bytes
