"""Selects the breadcrumbs that sources would have found at a past time, in the versions of that time.

This module does no I/O. `HistoryReader` and the timelines of context tests load the versions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.retrieval.sources import Fetched, Source, shared_filter
from breadcrumbs.runtime.store.record import is_gone

Keep = Callable[[Breadcrumb], bool]


def keep_all(crumb: Breadcrumb) -> bool:
    """Keep every breadcrumb. A search does not call it."""
    return True


class History:
    """The stored versions of one breadcrumb, the oldest first."""

    __slots__ = ("created", "id", "versions")

    def __init__(self, versions: Sequence[Breadcrumb]) -> None:
        self.versions = tuple(versions)
        self.id = versions[-1].id
        self.created = versions[-1].created

    @property
    def newest(self) -> Breadcrumb:
        return self.versions[-1]

    def current_at(self, time: int) -> Breadcrumb | None:
        """Return the version that was current at a time.

        Return None if the breadcrumb did not exist, had expired, or if that version is no longer stored. The expiry
        of a version counts, because an update can change it.
        """
        if self.created > time:
            return None
        for version in reversed(self.versions):
            if version.updated <= time:
                return None if is_gone(version, time) else version
        oldest = self.versions[0]
        # An imported first version can have an update time after its creation.
        return oldest if oldest.version == 1 and not is_gone(oldest, time) else None

    def version(self, number: int) -> Breadcrumb | None:
        """Return a version by its number, or None if it is no longer stored."""
        for version in reversed(self.versions):
            if version.version == number:
                return version
        return None


class ContextHistory(History):
    """The newest version of a context instead of all versions.

    A session of a thousand turns has a thousand versions of its context. A context is never an item of another one, so
    the versions do not matter: it only uses up a place among the results of a source.
    """

    __slots__ = ()

    def current_at(self, time: int) -> Breadcrumb | None:
        return self.newest if self.created <= time else None

    def version(self, number: int) -> Breadcrumb | None:
        return self.newest


@dataclass(frozen=True, slots=True)
class Moment:
    """A past time, and the versions that a context of that time refers to."""

    time: int
    """Breadcrumbs created later did not exist. Later versions of breadcrumbs are not used."""
    pinned: Mapping[UUID, int] = field(default_factory=dict)
    """Versions by id. The builder reads shortly after the time that it records, so these can be later versions."""
    until: int = 0
    """Time when the context was written. The builder read everything before it."""
    by_source: Mapping[int, Mapping[UUID, int]] | None = None
    """The pinned versions by the index of the source that found them. None: the config has other sources."""

    def pinned_for(self, number: int) -> Mapping[UUID, int]:
        """Return the pinned versions that a source found, by its index."""
        return self.pinned if self.by_source is None else self.by_source.get(number, {})

    def version_of(self, history: History, pinned: Mapping[UUID, int]) -> Breadcrumb | None:
        """Return the version of a breadcrumb that a source found at this moment, or None.

        `pinned` is what `pinned_for` returned for the source.
        """
        version = pinned.get(history.id)
        if version is not None:
            return history.version(version)
        if self.by_source is not None and self._changed_meanwhile(history):
            # The sources were read one after the other. This one saw a state that it does not match.
            return None
        return history.current_at(self.time)

    def _changed_meanwhile(self, history: History) -> bool:
        """Return whether a breadcrumb was written between the recorded time and the end of the reads."""
        if history.newest.updated <= self.time:
            return False
        return any(self.time < version.updated <= self.until for version in history.versions)


class _Entry(NamedTuple):
    """Position of a history in a pool. Compares by time of creation, then by id."""

    created: int
    id: bytes
    history: History


class Pool:
    """Breadcrumbs that a source can find, sorted by time of creation."""

    def __init__(self, histories: Iterable[History] = (), *, complete_since: int = 0) -> None:
        """Breadcrumbs created before `complete_since` can exist that the pool does not contain."""
        self._entries = sorted(
            _Entry(history.created, history.id.bytes, history)
            for history in {history.id: history for history in histories}.values()
        )
        self._complete_since = complete_since
        self._dropped = 0
        self.ran_out = False
        """Whether a search went further back than the pool is complete."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, history: History) -> None:
        """Add a history. Its id must not be in the pool yet."""
        entry = _Entry(history.created, history.id.bytes, history)
        if not self._entries or entry[:2] > self._entries[-1][:2]:
            self._entries.append(entry)
        else:
            insort(self._entries, entry, key=lambda other: other[:2])

    def include(self, history: History) -> None:
        """Add a history unless its id is in the pool."""
        at = bisect_left(self._entries, (history.created, history.id.bytes), key=lambda entry: entry[:2])
        if at == len(self._entries) or self._entries[at].history.id != history.id:
            self._entries.insert(at, _Entry(history.created, history.id.bytes, history))

    def trim(self, size: int) -> None:
        """Drop the oldest entries if there are more than twice `size`."""
        if len(self._entries) > 2 * size:
            self._dropped += len(self._entries) - size
            del self._entries[:-size]
            self._complete_since = self._entries[0].created

    def count(self, until: int) -> int:
        """Return the number of breadcrumbs created up to a time, including those that were dropped."""
        return self._dropped + bisect_right(self._entries, until, key=lambda entry: entry.created)

    def newest_first(self, until: int) -> Iterator[History]:
        """Yield the histories created up to a time, the newest first."""
        entries, complete_since = self._entries, self._complete_since
        end = bisect_right(entries, until, key=lambda entry: entry.created)
        for number in range(end - 1, -1, -1):
            created, _, history = entries[number]
            if created < complete_since:
                self.ran_out = True
            yield history
        if self._complete_since:
            self.ran_out = True


@dataclass(frozen=True, slots=True)
class SourcePools:
    """The pools of one source."""

    own: Pool
    """Breadcrumbs of its scope."""
    shared: Pool | None = None
    """Breadcrumbs without a session, for sources that also find these."""
    extra_tags: tuple[str, ...] | None = ()
    """Tags that the scope requires in addition. None: the scope finds nothing."""
    note: str | None = None
    """Explains why the scope finds nothing."""
    counted: int | None = None
    """Number of breadcrumbs up to the trigger. None: those of the pool are counted."""

    def count(self, until: int) -> int:
        """Return the number of breadcrumbs of the source up to the trigger, for stepped windows."""
        return self.own.count(until) if self.counted is None else self.counted

    @property
    def ran_out(self) -> bool:
        return self.own.ran_out or (self.shared is not None and self.shared.ran_out)


class _Search(NamedTuple):
    """A source with its index and its pools."""

    number: int
    source: Source
    pools: SourcePools


@dataclass(frozen=True, slots=True)
class PastFetch:
    """Moment, trigger and reader of a fetch."""

    trigger: Breadcrumb
    moment: Moment
    waits: Keep
    """Whether a message waits for its own turn. Such messages do not count against limits."""
    sees: Keep = keep_all
    """Whether the reader may see a breadcrumb, in the old and in the newest version."""
    existed: Callable[[Breadcrumb, int], bool] = lambda crumb, time: True
    """Whether a breadcrumb existed at a time. Copies in forks have older times than the fork."""

    def fetch(self, sources: Sequence[Source], pools: Sequence[SourcePools]) -> Fetched:
        """Return what each source found, as `sources.fetch` and `Fetched.refill` would have at the moment."""
        results: list[list[Breadcrumb] | None] = []
        notes = []
        for number, (source, its_pools) in enumerate(zip(sources, pools, strict=True)):
            if source.fetch.method == "event_data":
                results.append(None)
                continue
            if its_pools.note is not None:
                notes.append(f"{source.key}: {its_pools.note}")
            results.append(self._find_source(_Search(number, source, its_pools)))
        return Fetched(sources, results, notes)

    def extend(self, fetched: Fetched, sources: Mapping[int, Source], pools: Sequence[SourcePools]) -> None:
        """Replace sources by others with larger limits, by their index, as `Fetched.extend` does."""
        fetched.sources = [sources.get(number, source) for number, source in enumerate(fetched.sources)]
        for number, source in sources.items():
            search = _Search(number, source, pools[number])
            fetched.results[number] = self._with_further(search, fetched.results[number] or [])

    def _find_source(self, search: _Search) -> list[Breadcrumb]:
        first = self._find_first(search, keep_all)
        if len(first) < search.source.fetch.max_items or not any(map(self.waits, first)):
            return first
        return self._with_further(search, first)

    def _with_further(self, search: _Search, first: Sequence[Breadcrumb]) -> list[Breadcrumb]:
        """Add older results. Waiting messages remain in the results, but do not count against the limit."""
        waits, source = self.waits, search.source
        only_before = source.schema_name is not None and source.fetch.scope == "current"
        end = self.trigger.created if only_before and not source.fetch.includes_shared else None

        def counts(crumb: Breadcrumb) -> bool:
            return not waits(crumb) and (end is None or crumb.created <= end)

        further = self._find_first(search, counts)
        merged = sorted(
            {crumb.id_text: crumb for crumb in (*first, *further)}.values(),
            key=lambda crumb: (crumb.created, crumb.id.bytes),
            reverse=True,
        )
        counted = [crumb for crumb in merged if not waits(crumb)][: source.fetch.max_items]
        included = {crumb.id_text for crumb in counted}
        return [crumb for crumb in merged if crumb.id_text in included or waits(crumb)]

    def _find_first(self, search: _Search, accept: Keep) -> list[Breadcrumb]:
        """Return the results of the scope, or else those without a session."""
        pools = search.pools
        if pools.extra_tags is None:
            return []
        own = self._find(search, pools.own, pools.extra_tags, accept)
        if own or pools.shared is None:
            return own
        is_shared = shared_filter(self.trigger)
        return self._find(search, pools.shared, (), lambda crumb: is_shared(crumb) and accept(crumb))

    def _find(
        self, search: _Search, pool: Pool, extra_tags: tuple[str, ...], accept: Keep
    ) -> list[Breadcrumb]:
        source, found = search.source, list[Breadcrumb]()
        moment, sees, existed = self.moment, self.sees, self.existed
        # This loop takes most of the time of a context test, so it calls nothing that has no effect.
        pinned, limit, schema = moment.pinned_for(search.number), source.fetch.max_items, source.schema_name
        only_schema = schema is not None and not (source.all_tags or source.any_tags or extra_tags)
        for history in pool.newest_first(max(moment.time, moment.until)):
            crumb = moment.version_of(history, pinned)
            if (
                crumb is not None
                and (crumb.schema_name == schema if only_schema else matches(source, crumb, extra_tags))
                and (accept is keep_all or accept(crumb))
                and (sees is keep_all or (sees(crumb) and (crumb is history.newest or sees(history.newest))))
                and (existed(crumb, moment.time) or crumb.id in moment.pinned)
            ):
                found.append(crumb)
                if len(found) == limit:
                    break
        return found


def matches(source: Source, crumb: Breadcrumb, extra_tags: tuple[str, ...] = ()) -> bool:
    """Return whether a version of a breadcrumb has the schema and the tags of a source."""
    tags = crumb.tags
    return (
        (source.schema_name is None or crumb.schema_name == source.schema_name)
        and all(tag in tags for tag in source.all_tags)
        and all(tag in tags for tag in extra_tags)
        and (not source.any_tags or any(tag in tags for tag in source.any_tags))
    )
