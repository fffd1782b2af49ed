"""Fetches the breadcrumbs of sources, for context configs and agent definitions.

A source with the scope `current` reads only the index of the trigger's session. Its isolation does not depend on a
filter. If the trigger has no session, such a source finds nothing and adds a note. Exception: `latest` without a scope
also reads the indexes of breadcrumbs without a session (see `Fetch.includes_shared`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, SchemaName, Tag
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import user_tags, users_of
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.batched_reads import (
    RECENT_BYTES,
    CountRead,
    Keep,
    Read,
    RecentRead,
    SessionRead,
    SharedRead,
    build_reads,
)
from breadcrumbs.runtime.store.store import Store

Scope = Literal["current", "user", "all"]
SourceTags = Annotated[tuple[Tag, ...], Field(max_length=64)]
SourceKey = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")]


COUNTABLE: Final = "a schema_name, no tags and the scope current"
"""Conditions of `Source.is_countable`, for error messages."""


class Fetch(BaseModel):
    """Method, limit and scope of a source."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["recent", "latest", "event_data"] = Field(
        "recent",
        description="recent: the newest breadcrumbs; latest: only the newest; event_data: the trigger",
    )
    limit: Annotated[int, Field(ge=1, le=1000, strict=True)] = Field(
        10, description="Maximum number of breadcrumbs, for the method recent"
    )
    keep: Annotated[int, Field(ge=1, le=999, strict=True)] | None = Field(
        None,
        description="Stepped window, for the method recent: the source grows up to limit and is then cut to keep, so "
        "that prompt caches can be used. It needs a schema_name, no tags and the scope current. Default: with each new "
        "breadcrumb beyond limit, the oldest one is dropped.",
    )
    conversation_scope: Scope | None = Field(
        None,
        description="current: this session only (default); user: all sessions of this user; all: all sessions. "
        "`latest` without a scope also finds breadcrumbs without a session, such as a tool catalog",
    )

    @model_validator(mode="after")
    def _check_keep(self) -> Fetch:
        if self.keep is not None and self.method != "recent":
            raise ValueError(f"keep needs the method recent, not {self.method}")
        if self.keep is not None and self.keep >= self.limit:
            raise ValueError(f"keep must be less than limit ({self.limit}), not {self.keep}")
        return self

    @property
    def scope(self) -> Scope:
        return self.conversation_scope or "current"

    @property
    def max_items(self) -> int:
        return 1 if self.method == "latest" else self.limit

    @property
    def includes_shared(self) -> bool:
        """Whether the source also finds breadcrumbs without a session. It never finds those of another session."""
        return self.method == "latest" and self.conversation_scope is None


class Source(BaseModel):
    """One entry of a context config: which breadcrumbs to fetch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: SourceKey
    schema_name: SchemaName | None = None
    any_tags: SourceTags = ()
    all_tags: SourceTags = ()
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000, strict=True)] | None = Field(
        None,
        description="Maximum number of tokens of one breadcrumb. Longer texts are cut. Default: only the budget "
        "limits it. The trigger is never cut.",
    )
    fetch: Fetch = Fetch()

    @model_validator(mode="after")
    def _check_not_empty(self) -> Source:
        if (
            self.fetch.method != "event_data"
            and self.schema_name is None
            and not (self.any_tags or self.all_tags)
        ):
            raise ValueError("a source requires a schema_name or tags, otherwise it would fetch everything")
        return self

    @model_validator(mode="after")
    def _check_keep(self) -> Source:
        if self.fetch.keep is not None and not self.is_countable:
            raise ValueError(f"fetch.keep needs {COUNTABLE}, because the breadcrumbs are counted")
        return self

    @property
    def is_countable(self) -> bool:
        """Whether an index of the session contains exactly the breadcrumbs of the source, so they can be counted."""
        return (
            self.fetch.method == "recent"
            and self.fetch.scope == "current"
            and self.schema_name is not None
            and not (self.any_tags or self.all_tags)
        )


class SourceItem(NamedTuple):
    """A breadcrumb that a source found."""

    source: str
    """The key of the source."""
    rank: int
    """Index among the results of the source. 0 is the newest."""
    crumb: Breadcrumb
    number: int | None = None
    """Index of the source, because several can share a key. None: the trigger, which no source found."""


class TriggerFacts(Protocol):
    """The fields of a trigger that sources use. Its event also has them, before the breadcrumb is loaded."""

    @property
    def owner_id(self) -> UUID: ...

    @property
    def session_id(self) -> str | None: ...

    @property
    def tags(self) -> list[str]: ...


@dataclass(slots=True)
class Fetched:
    """Breadcrumbs found by a list of sources."""

    sources: Sequence[Source]
    results: list[list[Breadcrumb] | None]
    """One list per source, newest first. None: the source is the trigger."""
    notes: list[str]
    """Explain which sources could not be read."""
    counts: dict[int, int] = field(default_factory=dict)
    """Number of breadcrumbs of counted sources up to the time `counted_until`, by index of the source."""
    counted_until: int = 0

    async def recount(self, store: Store, trigger: Breadcrumb) -> None:
        """Count again if the trigger is older than its event. That is so after an edit or a retry."""
        if self.counts and self.counted_until != trigger.created:
            reads = [_count(self.sources[number], trigger, trigger.created) for number in self.counts]
            counted = await store.read_batch(*build_reads(store, reads))
            self.counts = dict(zip(self.counts, counted, strict=True))
            self.counted_until = trigger.created

    def items(self, trigger: Breadcrumb) -> list[SourceItem]:
        """Return all results as items, in the order of the sources."""
        return [
            SourceItem(source.key, rank, crumb, number)
            for number, (source, crumbs) in enumerate(zip(self.sources, self.results, strict=True))
            for rank, crumb in enumerate([trigger] if crumbs is None else crumbs)
        ]

    async def refill(
        self, store: Store, trigger: Breadcrumb, waits: Keep, *, keep: Keep | None = None
    ) -> None:
        """Fetch more for sources that reached their limit because of messages that wait for their turn.

        Waiting messages remain in the results, but do not count against the limit.
        """
        now = trigger.created
        full = [
            number
            for number, (source, crumbs) in enumerate(zip(self.sources, self.results, strict=True))
            if crumbs  # the newest first, and only newer breadcrumbs than the trigger can wait
            and crumbs[0].created > now
            and len(crumbs) >= source.fetch.max_items
            and any(map(waits, crumbs))
        ]
        await self._fetch_more(store, trigger, full, waits, keep)

    async def extend(
        self,
        store: Store,
        trigger: Breadcrumb,
        sources: Mapping[int, Source],
        waits: Keep,
        *,
        keep: Keep | None = None,
    ) -> None:
        """Replace sources by others with larger limits, by their index, and fetch up to these limits."""
        self.sources = [sources.get(number, source) for number, source in enumerate(self.sources)]
        await self._fetch_more(store, trigger, list(sources), waits, keep)

    async def _fetch_more(
        self, store: Store, trigger: Breadcrumb, numbers: Sequence[int], waits: Keep, keep: Keep | None
    ) -> None:
        full = [(number, self.results[number] or []) for number in numbers]
        if not full:
            return

        def counts(crumb: Breadcrumb) -> bool:
            return not waits(crumb) and (keep is None or keep(crumb))

        request = _FetchRequest(store, trigger, counts, RECENT_BYTES // len(full), self.notes)
        further = await gather(
            *(_fetch_further(request, self.sources[number], trigger) for number, _ in full)
        )
        for (number, crumbs), more in zip(full, further, strict=True):
            merged = _newest_first({crumb.id: crumb for crumb in (*crumbs, *more)}.values())
            counted = [crumb for crumb in merged if counts(crumb)]
            included = {crumb.id for crumb in counted[: self.sources[number].fetch.max_items]}
            self.results[number] = [crumb for crumb in merged if crumb.id in included or waits(crumb)]


@dataclass(frozen=True, slots=True)
class _FetchRequest:
    """Parameters shared by all sources of a fetch."""

    store: Store
    trigger: TriggerFacts
    keep: Keep | None
    """Filter for results. None: no filter."""
    max_bytes: int
    """Byte budget of each source. Each can return at least one breadcrumb."""
    notes: list[str]

    def for_source(self, source: Source) -> Query:
        """Return the query of a source, without its scope."""
        return Query(
            schema_name=source.schema_name,
            any_tags=source.any_tags,
            all_tags=source.all_tags,
            limit=source.fetch.max_items,
            max_bytes=self.max_bytes,
            keep=self.keep,
        )

    async def find(self, query: Query) -> list[Breadcrumb]:
        """Return the first page of a query."""
        return (await self.store.list(self.trigger.owner_id, query)).items


@dataclass(frozen=True, slots=True)
class _Plan:
    """Plan of one source. It uses the first read with a result, or a listing."""

    reads: tuple[Read[list[Breadcrumb]] | SessionRead, ...] = ()
    listing: Callable[[], Awaitable[list[Breadcrumb]]] | None = None
    is_trigger: bool = False


class Fetching:
    """The reads and listings of a list of sources. The reads can be sent together with other reads."""

    def __init__(
        self,
        store: Store,
        sources: Sequence[Source],
        trigger: TriggerFacts,
        *,
        keep: Keep | None = None,
        max_bytes: int = RECENT_BYTES,
        counted: Collection[int] = (),
    ) -> None:
        """Plan the reads and listings.

        Breadcrumbs that `keep` refuses are treated as missing. `max_bytes` is the byte budget of all sources together,
        in equal shares. Each source can return at least one breadcrumb. `counted` are the indexes of sources whose
        breadcrumbs are counted, see `Source.is_countable`.
        """
        self._sources = sources
        self._counted = sorted(counted) if trigger.session_id is not None else ()
        self._counted_until = _time_of(trigger)
        self._count_reads = [
            _count(sources[number], trigger, self._counted_until) for number in self._counted
        ]
        self._counts: list[int] = []
        self._notes: list[str] = []
        request = _FetchRequest(store, trigger, keep, max_bytes // max(1, len(sources)), self._notes)
        self._plans = [_plan(request, source) for source in sources]
        self._results: list[list[list[Breadcrumb]]] = []
        """Results of the reads, by plan."""
        self._listed: dict[int, list[Breadcrumb]] = {}
        self._failure: Exception | None = None

    @property
    def reads(self) -> list[Read[Any] | SessionRead]:
        return [*(read for plan in self._plans for read in plan.reads), *self._count_reads]

    def take_results(self, results: Iterator[Any]) -> None:
        """Take the results of `reads` from the start of an iterator."""
        self._results = [list(islice(results, len(plan.reads))) for plan in self._plans]
        self._counts = list(islice(results, len(self._count_reads)))

    @property
    def has_listings(self) -> bool:
        """Whether some sources need a listing."""
        return any(plan.listing is not None for plan in self._plans)

    async def list_all(self) -> None:
        """Run the listings. They can run at the same time as the reads."""
        numbers = [number for number, plan in enumerate(self._plans) if plan.listing is not None]
        try:
            listed = await gather(*(plan.listing() for plan in self._plans if plan.listing is not None))
            self._listed = dict(zip(numbers, listed, strict=True))
        except Exception as error:
            # `fetched` raises the error. Other contexts that are loaded together with this one do not fail.
            self._failure = error

    def fetched(self) -> Fetched:
        """Return the results. Call it after all reads and listings. Raises the error of a failed listing."""
        if self._failure is not None:
            raise self._failure
        return Fetched(
            self._sources,
            [self._result(number, plan) for number, plan in enumerate(self._plans)],
            self._notes,
            dict(zip(self._counted, self._counts, strict=True)),
            self._counted_until,
        )

    def _result(self, number: int, plan: _Plan) -> list[Breadcrumb] | None:
        if plan.is_trigger:
            return None
        if plan.listing is not None:
            return self._listed[number]
        return next(filter(None, self._results[number]), [])


async def fetch(
    store: Store,
    sources: Sequence[Source],
    trigger: TriggerFacts,
    *,
    keep: Keep | None = None,
    max_bytes: int = RECENT_BYTES,
    counted: Collection[int] = (),
) -> Fetched:
    """Fetch all sources concurrently."""
    fetching = Fetching(store, sources, trigger, keep=keep, max_bytes=max_bytes, counted=counted)
    results, _ = await gather(store.read_batch(*build_reads(store, fetching.reads)), fetching.list_all())
    fetching.take_results(iter(results))
    return fetching.fetched()


def _time_of(trigger: TriggerFacts) -> int:
    """Return when a trigger was created. The event of an edit or a retry is later, see `Fetched.recount`."""
    if isinstance(trigger, Breadcrumb):
        return trigger.created
    return trigger.at if isinstance(trigger, Event) else 0


def _count(source: Source, trigger: TriggerFacts, until: int) -> CountRead:
    """Count the breadcrumbs of a countable source that are not newer than a time."""
    return CountRead(trigger.owner_id, trigger.session_id or "", source.schema_name or "", until + 1)


# Plans by scope


def _plan(request: _FetchRequest, source: Source) -> _Plan:
    if source.fetch.method == "event_data":
        return _Plan(is_trigger=True)
    session = request.trigger.session_id
    match source.fetch.scope:
        case "all":
            return _Plan(listing=lambda: request.find(request.for_source(source)))
        case "current" if source.fetch.includes_shared:
            return _plan_session_or_shared(request, source)
        case "current":
            if session is not None:
                return _plan_session(request, source, session)
            missing = "conversation to read"
        case "user":
            if session is not None:
                return _Plan(listing=lambda: _list_user(request, source, session))
            missing = "user to search for"
    request.notes.append(f"{source.key}: the trigger has no session, so there is no {missing}")
    return _Plan()


def _plan_session(request: _FetchRequest, source: Source, session: str) -> _Plan:
    schema = _only_schema(request, source)
    if schema is None:
        return _Plan(listing=lambda: request.find(replace(request.for_source(source), session_id=session)))
    newest = RecentRead(request.trigger.owner_id, session, schema, source.fetch.max_items, request.max_bytes)
    return _Plan((newest,))


def _plan_session_or_shared(request: _FetchRequest, source: Source) -> _Plan:
    """Plan to find breadcrumbs of the session, or else breadcrumbs without a session."""
    schema, session = _only_schema(request, source), request.trigger.session_id
    if schema is None:
        return _Plan(listing=lambda: _list_session_or_shared(request, source))
    shared = SharedRead(
        request.trigger.owner_id,
        schema,
        source.fetch.max_items,
        shared_filter(request.trigger),
        request.max_bytes,
    )
    if session is None:
        return _Plan((shared,))
    return _Plan((*_plan_session(request, source, session).reads, shared))


async def _list_session_or_shared(request: _FetchRequest, source: Source) -> list[Breadcrumb]:
    session, is_shared, keep = request.trigger.session_id, shared_filter(request.trigger), request.keep

    def keep_shared(crumb: Breadcrumb) -> bool:
        return is_shared(crumb) and (keep is None or keep(crumb))

    query = request.for_source(source)
    shared = request.find(replace(query, sessionless=True, keep=keep_shared))
    if session is None:
        return await shared
    own, of_no_session = await gather(request.find(replace(query, session_id=session)), shared)
    return own or of_no_session


async def _list_user(request: _FetchRequest, source: Source, session: str) -> list[Breadcrumb]:
    """List the breadcrumbs with the tag of the session's user. The user tag of the trigger cannot be trusted."""
    belonging = await Sessions(request.store).belonging(request.trigger.owner_id, session)
    tags = user_tags(None if belonging is None else belonging.user)
    if not tags:
        request.notes.append(f"{source.key}: the session has no user, so there is no user to search for")
        return []
    return await request.find(replace(request.for_source(source), all_tags=(*source.all_tags, *tags)))


async def _fetch_further(request: _FetchRequest, source: Source, trigger: Breadcrumb) -> list[Breadcrumb]:
    """Fetch older breadcrumbs that `request.keep` accepts, beyond those that wait for their turn."""
    is_one_schema = source.schema_name is not None and source.fetch.scope == "current"
    if is_one_schema and not source.fetch.includes_shared:
        # Start at the trigger. A thousand messages can wait after it, and each turn would read all of them.
        # With several schemas there can be answers among them, so everything is read.
        return await request.find(
            replace(request.for_source(source), session_id=trigger.session_id, created_until=trigger.created)
        )
    fetched = await fetch(request.store, (source,), trigger, keep=request.keep, max_bytes=request.max_bytes)
    return fetched.results[0] or []


def _only_schema(request: _FetchRequest, source: Source) -> str | None:
    """Return the schema if its index alone gives the result. None: breadcrumbs must be filtered."""
    return source.schema_name if not (source.any_tags or source.all_tags or request.keep) else None


def shared_filter(trigger: TriggerFacts) -> Keep:
    """Return a filter for breadcrumbs without a session. It refuses private, secret and other users' breadcrumbs."""
    own_users = set(users_of(trigger.tags))

    def admits(crumb: Breadcrumb) -> bool:
        return (
            crumb.visibility != "private"
            and crumb.sensitivity != "secret"
            and own_users.issuperset(users_of(crumb.tags))
        )

    return admits


def _newest_first(crumbs: Iterable[Breadcrumb]) -> list[Breadcrumb]:
    return sorted(crumbs, key=lambda crumb: (crumb.created, crumb.id.bytes), reverse=True)
