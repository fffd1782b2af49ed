"""Sources: where the parts of a context come from, for context configs and agent definitions alike.

The session filter is not a filter here: with the scope `current` only that session's own index is read.
Without a session on the trigger there is nothing to read, and the result says so; it never widens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, TypeAlias
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from breadcrumbs.runtime.access import USER
from breadcrumbs.runtime.breadcrumb import Breadcrumb, SchemaName, Tag
from breadcrumbs.runtime.query import Query
from breadcrumbs.runtime.store import Store

Scope = Literal["current", "user", "all"]
Tags = Annotated[tuple[Tag, ...], Field(max_length=64)]
Keep: TypeAlias = Callable[[Breadcrumb], bool]


class Fetch(BaseModel):
    """How a source finds its breadcrumbs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["recent", "latest", "event_data"] = Field(
        "recent",
        description="recent: the newest ones; latest: the newest one; event_data: the breadcrumb that triggered",
    )
    limit: Annotated[int, Field(ge=1, le=1000, strict=True)] = Field(
        10, description="How many at most (recent)"
    )
    conversation_scope: Scope | None = Field(
        None,
        description="current: this session only, the default; user: every session of this user; all: every session. "
        "`latest` without a scope also finds what belongs to no session, such as a catalogue",
    )

    @property
    def scope(self) -> Scope:
        return self.conversation_scope or "current"

    @property
    def includes_shared(self) -> bool:
        """Whether what belongs to no session counts too. Another session's never does."""
        return self.method == "latest" and self.conversation_scope is None


class Source(BaseModel):
    """One place where parts of a context come from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")]
    schema_name: SchemaName | None = None
    any_tags: Tags = ()
    all_tags: Tags = ()
    fetch: Fetch = Fetch()

    @model_validator(mode="after")
    def _says_what(self) -> Source:
        if (
            self.fetch.method != "event_data"
            and self.schema_name is None
            and not (self.any_tags or self.all_tags)
        ):
            raise ValueError("a source needs a schema_name or tags: without them it would fetch everything")
        return self


@dataclass(frozen=True, slots=True)
class Found:
    """A breadcrumb that a source found."""

    source: str
    rank: int
    """0: the newest that this source found."""
    crumb: Breadcrumb
    number: int | None = None
    """Which of the sources it was: several may share a key. None: no source, it is the trigger."""


class Asker(Protocol):
    """Who asks: a trigger, or the event that speaks of it and is known before it is loaded."""

    @property
    def owner_id(self) -> UUID: ...

    @property
    def session_id(self) -> str | None: ...

    @property
    def tags(self) -> list[str]: ...


@dataclass(slots=True)
class Fetched:
    """What each of some sources found."""

    sources: Sequence[Source]
    answers: list[list[Breadcrumb] | None]
    """None: what the source stands for is the trigger itself."""
    notes: list[str]
    """On those that could not look."""

    def found(self, trigger: Breadcrumb) -> list[Found]:
        return [
            Found(source.key, rank, crumb, number)
            for number, (source, crumbs) in enumerate(zip(self.sources, self.answers, strict=True))
            for rank, crumb in enumerate([trigger] if crumbs is None else crumbs)
        ]


async def fetch(
    store: Store, sources: Sequence[Source], asker: Asker, *, keep: Keep | None = None
) -> Fetched:
    """What the sources find, all side by side.

    `keep` has the last word on each breadcrumb: what it refuses is as if it were not there.
    """
    notes: list[str] = []
    answers = await asyncio.gather(*(_fetch_one(store, source, asker, notes, keep) for source in sources))
    return Fetched(sources, answers, notes)


async def _fetch_one(
    store: Store, source: Source, asker: Asker, notes: list[str], keep: Keep | None
) -> list[Breadcrumb] | None:
    owner, session = asker.owner_id, asker.session_id
    limit = 1 if source.fetch.method == "latest" else source.fetch.limit
    if source.fetch.method == "event_data":
        return None
    match source.fetch.scope:
        case "current":
            if source.fetch.includes_shared:
                if session is None:
                    return await _shared(store, owner, source, limit, keep)
                mine, shared = await asyncio.gather(
                    _of_session(store, owner, session, source, limit, keep),
                    _shared(store, owner, source, limit, keep),
                )
                return mine or shared
            if session is not None:
                return await _of_session(store, owner, session, source, limit, keep)
            notes.append(f"{source.key}: the trigger has no session, so there is no conversation to look at")
            return []
        case "user":
            users = [tag for tag in asker.tags if tag.startswith(USER) and tag != "user:message"]
            if not users:
                notes.append(f"{source.key}: the trigger has no user: tag, so there is no user to look for")
                return []
            return await _listed(store, owner, source, limit, keep, extra=(users[0],))
        case "all":
            return await _listed(store, owner, source, limit, keep)


async def _shared(
    store: Store, owner: UUID, source: Source, limit: int, keep: Keep | None
) -> list[Breadcrumb]:
    if source.schema_name is not None and not source.any_tags and not source.all_tags and keep is None:
        return await store.recent_shared(owner, source.schema_name, limit)
    return await _listed(store, owner, source, limit, keep, sessionless=True)


async def _of_session(
    store: Store, owner: UUID, session: str, source: Source, limit: int, keep: Keep | None
) -> list[Breadcrumb]:
    if source.schema_name is not None and not source.any_tags and not source.all_tags and keep is None:
        return await store.recent(owner, session, source.schema_name, limit)
    return await _listed(store, owner, source, limit, keep, session=session)


async def _listed(
    store: Store,
    owner: UUID,
    source: Source,
    limit: int,
    keep: Keep | None,
    *,
    session: str | None = None,
    sessionless: bool = False,
    extra: tuple[str, ...] = (),
) -> list[Breadcrumb]:
    query = Query(
        schema_name=source.schema_name,
        session_id=session,
        sessionless=sessionless,
        any_tags=source.any_tags,
        all_tags=source.all_tags + extra,
        limit=limit,
        keep=keep,
    )
    return (await store.list(owner, query)).items
