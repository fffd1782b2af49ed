"""Finds what the sources of a context did not fetch: older breadcrumbs beyond a limit, and schemas without a source.

This is read when a context is explained, so building a context costs nothing more. The cost depends on the limits of
the sources, not on the length of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from pydantic import ValidationError

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import user_tags
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.retrieval.sources import Source
from breadcrumbs.runtime.schema_names import AGENT_RESPONSE, PAGE_CONTENT, USER_MESSAGE
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.store import Store

_CONVERSATION: Final = (USER_MESSAGE, AGENT_RESPONSE, PAGE_CONTENT)
"""Schemas that people expect in a context. A session that has them, but no source for them, is reported.

Tool results are not among them: the model gets them during their turn, and its answer contains what matters later.
"""

_MAX_SOURCES: Final = 64
_MAX_ITEMS: Final = 1_001  # one more than the largest limit of a source
_MAX_BYTES: Final = 1 << 20  # per source


@dataclass(frozen=True, slots=True)
class ContextFacts:
    """The facts about a context that decide what could have been fetched."""

    owner_id: UUID
    session_id: str | None
    as_of: int
    sources: Sequence[dict[str, Any]]
    """The sources as the explanation describes them."""
    known: Mapping[int, frozenset[UUID]] = field(default_factory=dict)
    """Ids that each source found, by the index of the source."""
    sees: Callable[[Breadcrumb], bool] = lambda crumb: True
    """Whether the reader may see a breadcrumb. Others are not counted."""


@dataclass(frozen=True, slots=True)
class NotFetched:
    """The result."""

    sources: list[dict[str, Any]]
    """The sources. `more` is true for those whose limit left out older breadcrumbs."""
    unread_schemas: list[str]
    """Schemas of the session that no source reads."""


async def find_not_fetched(store: Store, facts: ContextFacts) -> NotFetched:
    """Return what the sources of a context did not fetch."""
    numbers = range(min(len(facts.sources), _MAX_SOURCES))
    more, unread = await gather(
        gather(*(_has_more(store, facts, number) for number in numbers)), _unread_schemas(store, facts)
    )
    sources = [dict(source) for source in facts.sources]
    for number, has_more in zip(numbers, more, strict=True):
        if has_more:
            sources[number]["more"] = True
    return NotFetched(sources, unread)


async def _has_more(store: Store, facts: ContextFacts, number: int) -> bool:
    """Return whether a source with a limit matches more breadcrumbs than it found."""
    described = facts.sources[number]
    found = described.get("found")
    source = _parse_source(described)
    if source is None or source.fetch.method != "recent" or not isinstance(found, int) or found < 1:
        return False
    query = await _query_of(store, facts, source)
    if query is None:
        return False
    page = await store.list(facts.owner_id, replace(query, limit=min(found + 1, _MAX_ITEMS)))
    known = facts.known.get(number, frozenset())
    # Some of the ids can be unknown, because an explanation lists only the first breadcrumbs that were left out.
    return len(page.items) > found or (
        len(known) >= found and any(crumb.id not in known for crumb in page.items)
    )


def _parse_source(described: dict[str, Any]) -> Source | None:
    """Return a source from its description. None if it is not valid: clients can post invalid contexts."""
    given = {
        name: described[name] for name in ("key", "schema_name", "any_tags", "all_tags") if name in described
    }
    fetch = {"method": described.get("method"), "conversation_scope": described.get("scope")}
    try:
        return Source.model_validate(given | {"fetch": fetch})
    except ValidationError:
        return None


async def _query_of(store: Store, facts: ContextFacts, source: Source) -> Query | None:
    """Return the query of a source. None if it cannot find anything."""
    query = Query(
        schema_name=source.schema_name,
        any_tags=source.any_tags,
        all_tags=source.all_tags,
        created_until=facts.as_of,
        max_bytes=_MAX_BYTES,
        keep=facts.sees,
    )
    if source.fetch.scope == "all":
        return query
    if facts.session_id is None:
        return None
    if source.fetch.scope == "current":
        return replace(query, session_id=facts.session_id)
    belonging = await Sessions(store).belonging(facts.owner_id, facts.session_id)
    tags = user_tags(None if belonging is None else belonging.user)
    return replace(query, all_tags=(*source.all_tags, *tags)) if tags else None


async def _unread_schemas(store: Store, facts: ContextFacts) -> list[str]:
    """Return the schemas of the conversation that the session has, but that no source reads."""
    if facts.session_id is None:
        return []
    read = [source.get("schema_name") for source in facts.sources if source.get("method") != "event_data"]
    if None in read:
        return []  # a source without a schema finds breadcrumbs by their tags
    candidates = [schema for schema in _CONVERSATION if schema not in read]
    pages = await gather(
        *(
            store.list(
                facts.owner_id,
                Query(
                    session_id=facts.session_id,
                    schema_name=schema,
                    created_until=facts.as_of,
                    limit=1,
                    keep=facts.sees,
                ),
            )
            for schema in candidates
        )
    )
    return [schema for schema, page in zip(candidates, pages, strict=True) if page.items]
