"""Sources: where the parts of a context come from, for context configs and agent definitions alike.

The session filter is not a filter here: with the scope `current` only that session's own index is read.
Without a session on the trigger there is nothing to read, and the result says so; it never widens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Literal, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, SchemaName, Tag, user_tags, users_of
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.batched_reads import RECENT_BYTES, Read, recent_of, recent_shared
from breadcrumbs.runtime.store.store import Store

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
    def most(self) -> int:
        return 1 if self.method == "latest" else self.limit

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


class Found(NamedTuple):
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

    async def look_behind(
        self, store: Store, trigger: Breadcrumb, waits: Keep, *, keep: Keep | None = None
    ) -> None:
        """Fill up sources that reached their limit with breadcrumbs that wait for a turn of their own."""

        def counts(crumb: Breadcrumb) -> bool:
            return not waits(crumb) and (keep is None or keep(crumb))

        full = [
            (number, source, crumbs)
            for number, (source, crumbs) in enumerate(zip(self.sources, self.answers, strict=True))
            if crumbs is not None and len(crumbs) >= source.fetch.most and any(map(waits, crumbs))
        ]
        if not full:
            return
        share = RECENT_BYTES // len(full)
        older = await asyncio.gather(
            *(_fetch_behind(store, source, trigger, counts, share) for _, source, _ in full)
        )
        for (number, source, crumbs), behind in zip(full, older, strict=True):
            found = _newest_first([*crumbs, *behind])
            counted = [crumb.id for crumb in found if counts(crumb)][: source.fetch.most]
            self.answers[number] = [crumb for crumb in found if crumb.id in counted or waits(crumb)]


@dataclass(frozen=True, slots=True)
class _Way:
    """How one source finds its breadcrumbs: the first read with a result, or a listing."""

    reads: tuple[Read[list[Breadcrumb]], ...] = ()
    listing: Callable[[], Awaitable[list[Breadcrumb]]] | None = None
    is_trigger: bool = False


class Fetching:
    """The reads and listings of some sources. The reads may be sent together with others."""

    def __init__(
        self,
        store: Store,
        sources: Sequence[Source],
        asker: Asker,
        *,
        keep: Keep | None = None,
        most_bytes: int = RECENT_BYTES,
    ) -> None:
        """`keep` has the last word on each breadcrumb: what it refuses is as if it were not there.

        `most_bytes`: a byte budget for all sources together, in equal shares. Each source finds at least one.
        """
        self._sources = sources
        self._notes: list[str] = []
        share = most_bytes // max(1, len(sources))
        self._ways = [_way(_Search(store, source, asker, keep, share, self._notes)) for source in sources]
        self._results: Sequence[list[Breadcrumb]] = ()
        self._listed: dict[int, list[Breadcrumb]] = {}
        self._failure: Exception | None = None

    @property
    def reads(self) -> list[Read[list[Breadcrumb]]]:
        return [read for way in self._ways for read in way.reads]

    def take_results(self, results: Iterator[list[Breadcrumb]]) -> None:
        """Take the results of `reads` from the beginning of an iterator."""
        self._results = list(islice(results, len(self.reads)))

    @property
    def has_listings(self) -> bool:
        """Whether some sources need more than reads."""
        return any(way.listing is not None for way in self._ways)

    async def list_all(self) -> None:
        """Run the listings. They may run beside the reads."""
        numbers = [number for number, way in enumerate(self._ways) if way.listing is not None]
        try:
            listed = await asyncio.gather(*(way.listing() for way in self._ways if way.listing is not None))
            self._listed = dict(zip(numbers, listed, strict=True))
        except Exception as error:  # what others find beside us is theirs all the same
            self._failure = error

    def fetched(self) -> Fetched:
        """Return what was found, once all results are there. Raises the error of a listing that failed."""
        if self._failure is not None:
            raise self._failure
        results = iter(self._results)
        answers: list[list[Breadcrumb] | None] = []
        for number, way in enumerate(self._ways):
            own = list(islice(results, len(way.reads)))
            if way.is_trigger:
                answers.append(None)
            elif way.listing is not None:
                answers.append(self._listed[number])
            else:
                answers.append(next(filter(None, own), []))
        return Fetched(self._sources, answers, self._notes)


async def fetch(
    store: Store,
    sources: Sequence[Source],
    asker: Asker,
    *,
    keep: Keep | None = None,
    most_bytes: int = RECENT_BYTES,
) -> Fetched:
    """What the sources find, all side by side."""
    fetching = Fetching(store, sources, asker, keep=keep, most_bytes=most_bytes)
    results, _ = await asyncio.gather(store.read_batch(*fetching.reads), fetching.list_all())
    fetching.take_results(iter(results))
    return fetching.fetched()


async def _fetch_behind(
    store: Store, source: Source, trigger: Breadcrumb, counts: Keep, most_bytes: int
) -> list[Breadcrumb]:
    """Return what a source finds if only some breadcrumbs count."""
    alone = source.schema_name is not None and source.fetch.scope == "current"
    if alone and not source.fetch.includes_shared:
        # Up to the trigger only: a thousand may wait after it, and each of them would look at all the others.
        # Where other schemas count too, there may be answers among them.
        search = _Search(store, source, trigger, counts, most_bytes, [])
        return await search.find(session_id=trigger.session_id, created_until=trigger.created)
    fetched = await fetch(store, (source,), trigger, keep=counts, most_bytes=most_bytes)
    return fetched.answers[0] or []


def _newest_first(crumbs: Sequence[Breadcrumb]) -> list[Breadcrumb]:
    """Return the breadcrumbs without duplicates, the newest first."""
    distinct = {crumb.id: crumb for crumb in crumbs}.values()
    return sorted(distinct, key=lambda crumb: (crumb.created, crumb.id.bytes), reverse=True)


@dataclass(frozen=True, slots=True)
class _Search:
    """What a source looks for, and on whose behalf."""

    store: Store
    source: Source
    asker: Asker
    keep: Keep | None
    max_bytes: int
    notes: list[str]
    """Reasons why a source could not look are added here."""

    @property
    def schema(self) -> str | None:
        """The schema whose index alone holds the result; None: other filters count too."""
        source = self.source
        return source.schema_name if not (source.any_tags or source.all_tags or self.keep) else None

    def note(self, reason: str) -> None:
        self.notes.append(f"{self.source.key}: {reason}")

    async def find(
        self,
        *,
        session_id: str | None = None,
        sessionless: bool = False,
        tags: Sequence[str] = (),
        created_until: int | None = None,
        keep: Keep | None = None,
    ) -> list[Breadcrumb]:
        """`tags`: required besides those of the source. `keep`: instead of the search's own."""
        source = self.source
        query = Query(
            schema_name=source.schema_name,
            session_id=session_id,
            sessionless=sessionless,
            any_tags=source.any_tags,
            all_tags=(*source.all_tags, *tags),
            created_until=created_until,
            limit=source.fetch.most,
            max_bytes=self.max_bytes,
            keep=keep or self.keep,
        )
        return (await self.store.list(self.asker.owner_id, query)).items

    async def find_of_user(self, session: str) -> list[Breadcrumb]:
        """Find what carries the tag of the user stored for the session. A tag of the trigger proves nothing."""
        held = await Sessions(self.store).belonging(self.asker.owner_id, session)
        tags = user_tags(None if held is None else held.user)
        if not tags:
            self.note("the session belongs to no user, so there is no user to look for")
            return []
        return await self.find(tags=tags)

    async def find_own_or_shared(self) -> list[Breadcrumb]:
        """Find what the session has; if it has nothing, what belongs to no session."""
        session, keep, admits = self.asker.session_id, self.keep, _shared_with(self.asker)

        def shared_and_kept(crumb: Breadcrumb) -> bool:
            return admits(crumb) and (keep is None or keep(crumb))

        shared = self.find(sessionless=True, keep=shared_and_kept)
        if session is None:
            return await shared
        own, found = await asyncio.gather(self.find(session_id=session), shared)
        return own or found


def _way(search: _Search) -> _Way:
    session = search.asker.session_id
    if search.source.fetch.method == "event_data":
        return _Way(is_trigger=True)
    match search.source.fetch.scope:
        case "current":
            if search.source.fetch.includes_shared:
                return _own_or_shared_way(search)
            if session is None:
                search.note("the trigger has no session, so there is no conversation to look at")
                return _Way()
            return _session_way(search, session)
        case "user":
            if session is None:
                search.note("the trigger has no session, so there is no user to look for")
                return _Way()
            return _Way(listing=lambda: search.find_of_user(session))
        case "all":
            return _Way(listing=search.find)


def _session_way(search: _Search, session: str) -> _Way:
    schema, limit = search.schema, search.source.fetch.most
    if schema is None:
        return _Way(listing=lambda: search.find(session_id=session))
    owner = search.asker.owner_id
    return _Way((recent_of(search.store, owner, session, schema, limit, max_bytes=search.max_bytes),))


def _own_or_shared_way(search: _Search) -> _Way:
    schema, asker = search.schema, search.asker
    if schema is None:
        return _Way(listing=search.find_own_or_shared)
    shared = recent_shared(
        search.store,
        asker.owner_id,
        schema,
        search.source.fetch.most,
        _shared_with(asker),
        max_bytes=search.max_bytes,
    )
    if asker.session_id is None:
        return _Way((shared,))
    own = _session_way(search, asker.session_id)
    return replace(own, reads=(*own.reads, shared))


def _shared_with(asker: Asker) -> Keep:
    """Return a filter for breadcrumbs of no session: it refuses those of another user, private and secret ones."""
    own = set(users_of(asker.tags))

    def admits(crumb: Breadcrumb) -> bool:
        return (
            crumb.visibility != "private"
            and crumb.sensitivity != "secret"
            and own.issuperset(users_of(crumb.tags))
        )

    return admits
