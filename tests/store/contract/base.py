"""Fixtures and helpers shared by all parts of the contract."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

import pytest

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.store.store import Store

ALICE = UUID("a11ce000-0000-4000-8000-000000000001")
BOB = UUID("b0b00000-0000-4000-8000-000000000002")
AGENT = UUID("a6e27000-0000-4000-8000-000000000003")
OTHER_AGENT = UUID("a6e27000-0000-4000-8000-000000000004")

MESSAGE = "user.message.v1"
ANSWER = "agent.response.v1"


class Opener(Protocol):
    """Opens a store on the backend's one server, which was empty when the test began."""

    def __call__(self, **options: Any) -> Awaitable[Store]: ...


class Contract:
    """A backend adds the fixture `opener`."""

    @pytest.fixture
    async def store(self, opener: Opener) -> Store:
        return await opener()


def crumb(
    title: str = "",
    *,
    schema: str | None = MESSAGE,
    session: str | None = None,
    tags: tuple[str, ...] = (),
    context: dict[str, Any] | None = None,
    **fields: Any,
) -> BreadcrumbCreate:
    all_tags = [*tags, f"session:{session}"] if session is not None else list(tags)
    return BreadcrumbCreate.parse(
        {"schema_name": schema, "title": title, "tags": all_tags, "context": context or {}, **fields}
    )


def change(**fields: Any) -> BreadcrumbUpdate:
    return BreadcrumbUpdate.parse(fields)


async def everything(
    store: Store, owner: UUID, query: Query, *, limit: int | None = None
) -> list[Breadcrumb]:
    """All pages of a query, in steps of `limit`; checks that no page but the last is short."""
    if limit is not None:
        query = replace(query, limit=limit)
    found: list[Breadcrumb] = []
    while True:
        page = await store.list(owner, query)
        found += page.items
        if page.next_cursor is None:
            return found
        assert len(page.items) == query.limit
        query = replace(query, cursor=page.next_cursor, offset=0)


async def titles(store: Store, owner: UUID = ALICE, **query: Any) -> list[str]:
    return [item.title for item in await everything(store, owner, Query(**query))]
