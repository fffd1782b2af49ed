"""The context builder: sees an event that a config reacts to, and writes that consumer's context.

There is one context per consumer and session; each turn writes its next version. The newest version holds
what was rendered. Older ones keep references only, from which the same can be rendered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from uuid import UUID

from breadcrumbs.context_builder.assembly import Assembled, assemble, waits_for_its_turn
from breadcrumbs.context_builder.config import CONSUMER, ContextConfig, Exclude, Formatting, Output
from breadcrumbs.context_builder.configs_in_force import CONFIG_SCHEMA, CONTEXT_CONFIGS, ConfigsInForce
from breadcrumbs.context_builder.references import references_only
from breadcrumbs.context_builder.tokens import token_counter
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import (
    MAX_TAGS,
    SESSION,
    Breadcrumb,
    BreadcrumbCreate,
    BreadcrumbUpdate,
)
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.breadcrumb.tags import DEFAULT_INHERITED, inherited_tags
from breadcrumbs.runtime.errors import InvalidInput, NotFound, QuotaExceeded
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.retrieval.sources import Fetched, Fetching, Keep, Source, fetch
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.batched_reads import Read, newest_of, read_command, version_of
from breadcrumbs.runtime.store.fence import LeaseLost
from breadcrumbs.runtime.store.state import PAUSED, RESUMED, STATE_CHANGE
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.definitions import report_unusable
from breadcrumbs.runtime.workers.errors import STORE_UNAVAILABLE, TurnFailed
from breadcrumbs.runtime.workers.failures import ErrorDetails, leave_error
from breadcrumbs.runtime.workers.retries import is_retryable
from breadcrumbs.runtime.workers.turn import INTERNAL, Turn

_CREATOR = "context-builder"
MOST_HOPS = 16
"""How often contexts may lead to contexts of other consumers in a row; agents have limits of their own."""


@dataclass(frozen=True, slots=True)
class _Material:
    """What a context is made of."""

    as_of: int
    newest: Breadcrumb | None
    """The context that is there already."""
    paused_at: int | None
    """Since when nobody shall answer in this session."""
    fetching: Fetching


class ContextBuilder:
    """The handler of the builder's workers."""

    kind = "contexts"

    def __init__(
        self,
        store: Store,
        configs: ConfigsInForce,
        *,
        inherited: tuple[str, ...] = DEFAULT_INHERITED,
    ) -> None:
        self._store = store
        self._configs = configs
        self._inherited = inherited
        self._hints = SchemaHints(store)
        self._sessions = Sessions(store)
        token_counter()  # now, not while the first message waits

    async def wants(self, event: Event) -> bool:
        if event.schema_name == CONFIG_SCHEMA:
            self._configs.invalidate(event.owner_id)
        if event.operation == "deleted":
            return False
        if event.imported:  # history: nobody answers it, but a config counts from now on
            return event.schema_name == CONFIG_SCHEMA
        if _is_pausing(event):
            return True
        return event.schema_name == CONFIG_SCHEMA or bool(await self._matching(event))

    def arrived(self, event: Event, running: Turn | None, waiting: Sequence[Event]) -> bool:
        return False

    async def handle(self, turn: Turn) -> None:
        if turn.event.schema_name == CONFIG_SCHEMA:
            await report_unusable(
                self._store, turn, CONTEXT_CONFIGS, creator=_CREATOR, inherited=self._inherited
            )
        if turn.event.imported:
            return
        if _is_pausing(turn.event):
            await self._pause_or_resume(turn)
        await self._build_all(turn)

    async def give_up(self, turn: Turn, error: Exception) -> None:
        details = ErrorDetails(_CREATOR, turn.event.id, self._inherited)
        await leave_error(self._store, turn, error, details)

    async def _matching(self, event: Event) -> list[ContextConfig]:
        return _matching(await self._configs.get(event.owner_id), event)

    async def _look(
        self, turn: Turn
    ) -> tuple[Breadcrumb | None, Sequence[ContextConfig], Sequence[_Material]]:
        """What an event speaks of (None: it is gone), the configs that react to it, and what each needs."""
        event = turn.event
        configs = await self._matching(event)
        # All that the contexts are made of is asked for together with the trigger: its event says enough.
        trigger = version_of(self._store, event.owner_id, event.id, event.version)
        loaded, (crumb,) = await self._load(configs, event, event.lane, trigger)
        return crumb, configs, loaded

    async def _build_all(self, turn: Turn) -> None:
        trigger, configs, loaded = await self._look(turn)
        if trigger is None:
            return
        chosen = [
            (config, material)
            for config, material in zip(configs, loaded, strict=True)
            if any(selector.matches(trigger) for selector in config.update_triggers)
        ]
        failures: list[Exception] = []
        for config, material in chosen:
            try:
                last = config is chosen[-1][0] and not failures
                await self._build(turn, config, trigger, material, last=last)
            except (LeaseLost, *STORE_UNAVAILABLE):
                raise
            except Exception as error:  # the other consumers get their contexts all the same
                failures.append(error)
        if failures:
            raise next((error for error in failures if is_retryable(error)), failures[0])

    async def _pause_or_resume(self, turn: Turn) -> None:
        """A session was paused: its contexts lose their consumers. Or it goes on: they come back, with what waited."""
        event = turn.event
        try:
            change = await self._store.get_version(event.owner_id, event.id, event.version)
        except NotFound:
            return
        if event.session_id is None:
            return
        configs = await self._configs.get(event.owner_id)
        if PAUSED in event.tags:
            for config in configs:
                await self._consumed(turn, config, consumed=False)
            return
        # In their order, and as many as there are: each is answered, as if it had been said just now.
        answered: set[str] = set()
        async for trigger in self._waiting(event.owner_id, event.session_id, change):
            for config in configs:
                if not config.makes(trigger.schema_name, trigger.tags) and any(
                    selector.matches(trigger) for selector in config.update_triggers
                ):
                    (material,), _ = await self._load([config], trigger, event.lane)
                    await self._build(turn, config, trigger, replace(material, paused_at=None), last=False)
                    answered.add(config.consumer_id)
        for config in configs:
            if config.consumer_id not in answered:
                await self._consumed(turn, config, consumed=True)

    async def _waiting(self, owner: UUID, session: str, change: Breadcrumb) -> AsyncIterator[Breadcrumb]:
        """What was written while a session was paused, up to the change that ended it."""
        since = await self._paused_before(owner, session, change)
        if since is None:
            return
        query = Query(session_id=session, created_since=since, sort="created_at")
        async for crumb in self._store.walk(owner, query):
            if crumb.created >= change.created:
                return
            yield crumb

    async def _paused_before(self, owner: UUID, session: str, change: Breadcrumb) -> int | None:
        """When the pause began that a change ends. It may have been asked for more than once."""
        began = None
        changes = Query(session_id=session, schema_name=STATE_CHANGE, limit=50)
        async for earlier in self._store.walk(owner, changes):
            if earlier.created >= change.created:
                continue
            if RESUMED in earlier.tags:
                break
            # Who posts the breadcrumb itself need not know of the tag.
            if PAUSED in earlier.tags or earlier.context.get("active") is False:
                began = earlier.created
        return began

    async def _consumed(self, turn: Turn, config: ContextConfig, *, consumed: bool) -> None:
        """Put a context's consumer on it or take it off. Nobody reacts to that."""
        event = turn.event
        id = context_id(event.lane, config, event)
        newest = await self._newest(event.owner_id, id)
        if newest is None or (config.consumer_tag in newest.tags) == consumed:
            return
        others = [tag for tag in newest.tags if tag not in (config.consumer_tag, INTERNAL)]
        tags = [*others, *([config.consumer_tag] if consumed else []), INTERNAL]
        new = newest.changed_by(BreadcrumbUpdate(tags=tags))
        fence = turn.fence(acknowledge=False)
        await self._store.put(event.owner_id, id, new, after=newest, slim=references_only, fence=fence)

    async def refresh(self, turn: Turn, context: Breadcrumb) -> Breadcrumb:
        """Make a context again, for the same message, with what was said meanwhile."""
        try:
            consumer = context.context["consumer_id"]
            message, version = UUID(context.context["trigger_id"]), int(context.context["trigger_version"])
        except (KeyError, TypeError, ValueError):
            raise TurnFailed("this context was not made by the context builder") from None
        trigger = await self._store.get_version(context.owner_id, message, version)
        if trigger.session_id != context.session_id:
            raise TurnFailed("this context names a message of another session")
        for config in await self._configs.get(context.owner_id):
            if config.consumer_id == consumer:
                (material,), _ = await self._load([config], trigger, turn.event.lane)
                return await self._build(turn, config, trigger, material, last=False, again=True)
        raise TurnFailed(f"there is no context config for {consumer!r} any more")

    async def _load(
        self,
        configs: Sequence[ContextConfig],
        asker: Event | Breadcrumb,
        lane: int,
        *others: Read[Any],
    ) -> tuple[list[_Material], tuple[Any, ...]]:
        """Return everything for some contexts, and the results of other reads, in one round trip per lane."""
        store, owner, session = self._store, asker.owner_id, asker.session_id
        # The lane's time before the rest: what is written after it may be missing below.
        as_of = read_command(lane, (b"GET", store.keys.clock(lane)), lambda time: int(time or 0))
        reads: list[Read[Any]] = [*others, as_of]
        if session is not None:
            reads.append(self._sessions.paused_at(owner, session))
        fetchings = []
        for config in configs:
            newest = newest_of(store, owner, context_id(lane, config, asker))
            fetching = Fetching(store, config.sources, asker)
            reads += [newest, *fetching.reads]
            fetchings.append(fetching)
        names = {source.schema_name for config in configs for source in config.sources} | {asker.schema_name}
        definitions = self._hints.missing(owner, {name for name in names if name is not None})
        reads += definitions.reads.values()
        # Listings take several round trips: they run beside the reads.
        slow: list[Awaitable[Any]] = [fetching.list_all() for fetching in fetchings if fetching.has_listings]
        if slow:
            replies, *_ = await asyncio.gather(store.read_batch(*reads), *slow)
        else:
            replies = await store.read_batch(*reads)
        results = iter(replies)  # in the order of `reads`
        read_beside = tuple(islice(results, len(others)))
        time = next(results)
        paused_at = None if session is None else next(results)
        loaded = []
        for fetching in fetchings:
            loaded.append(_Material(time, next(results), paused_at, fetching))
            fetching.take_results(results)
        self._hints.store_results(definitions, results)
        return loaded, read_beside

    async def _build(
        self,
        turn: Turn,
        config: ContextConfig,
        trigger: Breadcrumb,
        material: _Material,
        *,
        last: bool,
        again: bool = False,
    ) -> Breadcrumb:
        event, owner, id = turn.event, trigger.owner_id, context_id(turn.event.lane, config, trigger)
        as_of, newest = material.as_of, material.newest
        if newest is not None and not again and _is_about(newest, trigger, since=event.at):
            if last:
                await turn.acknowledge()
            return newest  # made by a first try, whose answer was lost on the way
        if not again:
            await self._check_quota(owner)
        fetched = material.fetching.fetched()
        made = await assembled(self._store, config, trigger, fetched, hints=self._hints)
        try:
            new = context_breadcrumb(config, trigger, made, as_of=as_of, inherited=self._inherited)
        except InvalidInput as error:
            raise TurnFailed(f"the context for {config.consumer_id} cannot be stored: {error}") from error
        if event.operation == "retried":
            new.context["retried_at"] = event.at
        # What was said before the pause began is still answered; a context that is made again just follows suit.
        waits = material.paused_at is not None and (again or material.paused_at <= event.at)
        if waits:
            new.tags.remove(config.consumer_tag)
        if again or waits:
            new.tags.append(INTERNAL)
        fence = turn.fence(acknowledge=last)
        return await self._store.put(owner, id, new, after=newest, slim=references_only, fence=fence)

    async def _check_quota(self, owner: UUID) -> None:
        """Say in the session that there is no room for an answer, instead of preparing one."""
        if self._store.quotas is not None:
            try:
                await self._store.quotas.check(owner)
            except QuotaExceeded as error:
                raise TurnFailed(str(error)) from error

    async def _newest(self, owner: UUID, id: UUID) -> Breadcrumb | None:
        try:
            return await self._store.get(owner, id, count_read=False)
        except NotFound:
            return None


def _matching(configs: Iterable[ContextConfig], event: Event) -> list[ContextConfig]:
    return [
        config
        for config in configs
        if not config.makes(event.schema_name, event.tags)
        and any(
            trigger.matches_meta(event.schema_name, event.tags, event.session_id)
            for trigger in config.update_triggers
        )
    ]


def _is_pausing(event: Event) -> bool:
    return event.schema_name == STATE_CHANGE and (PAUSED in event.tags or RESUMED in event.tags)


def _is_about(context: Breadcrumb, trigger: Breadcrumb, *, since: int) -> bool:
    """Whether a context is the one for a trigger, made after something asked for it."""
    about = context.context.get("trigger_id"), context.context.get("trigger_version")
    return about == (str(trigger.id), trigger.version) and int(context.context.get("as_of", 0)) >= since


async def build_context(
    store: Store,
    config: ContextConfig,
    trigger: Breadcrumb,
    *,
    hints: SchemaHints,
    keep: Keep | None = None,
) -> Assembled:
    """Everything for one context: fetched once, chosen, counted. What `keep` refuses is not there."""
    fetched = await fetch(store, config.sources, trigger, keep=keep)
    return await assembled(store, config, trigger, fetched, hints=hints, keep=keep)


async def assembled(
    store: Store,
    config: ContextConfig,
    trigger: Breadcrumb,
    fetched: Fetched,
    *,
    hints: SchemaHints,
    keep: Keep | None = None,
) -> Assembled:
    """A context from what its sources found."""
    # Of many messages at once those that wait for their turn must not push out what was said before.
    await fetched.look_behind(
        store, trigger, lambda crumb: waits_for_its_turn(config, trigger, crumb), keep=keep
    )
    found = fetched.found(trigger)
    schemas = {entry.crumb.schema_name for entry in found} | {trigger.schema_name}
    definitions = await hints.definitions(trigger.owner_id, {name for name in schemas if name is not None})
    made = assemble(config, trigger, found, counter=token_counter(), definitions=definitions)
    made.notes.extend(fetched.notes)
    return made


async def gather_parts(
    store: Store,
    sources: Sequence[Source],
    trigger: Breadcrumb,
    *,
    triggers: Sequence[Selector],
    hints: SchemaHints,
) -> list[dict[str, Any]]:
    """The parts of a prompt for an agent that brings its own sources instead of a context config.

    `triggers`: what the agent answers. What came after the trigger gets an answer of its own.
    """
    config = ContextConfig.model_construct(
        consumer_id="",
        update_triggers=tuple(triggers),
        sources=tuple(sources),
        exclude=Exclude(),
        output=Output(),
        formatting=Formatting(),
    )
    return (await build_context(store, config, trigger, hints=hints)).parts()


def context_id(lane: int, config: ContextConfig, trigger: Breadcrumb | Event) -> UUID:
    """One context per consumer and session; a trigger without a session has one of its own."""
    place = (
        ("session", trigger.session_id) if trigger.session_id is not None else ("trigger", str(trigger.id))
    )
    return derived_id(lane, "context", str(trigger.owner_id), config.consumer_id, *place)


def context_breadcrumb(
    config: ContextConfig,
    trigger: Breadcrumb,
    made: Assembled,
    *,
    as_of: int,
    inherited: tuple[str, ...],
) -> BreadcrumbCreate:
    parts = made.parts()
    context: dict[str, Any] = {
        "consumer_id": config.consumer_id,
        "trigger_id": str(trigger.id),
        "trigger_version": trigger.version,
        "trigger_created": trigger.created,
        "as_of": as_of,
        "as_of_time": times.to_text(as_of),
        "config": config.digest,
        "parts": parts,
        "explain": made.explain(parts),
    }
    if hops := _hops(trigger):
        context["hops"] = hops
    tags = list(
        dict.fromkeys([*config.output.tags, config.consumer_tag, *inherited_tags(trigger.tags, inherited)])
    )
    if len(tags) > MAX_TAGS:  # some of what is inherited has to go, but never the session
        tags = sorted(tags, key=lambda tag: not tag.startswith(SESSION))[:MAX_TAGS]
    fields: dict[str, Any] = {
        "schema_name": config.output.schema_name,
        "title": f"Context for {config.consumer_id}",
        "tags": tags,
        "context": context,
    }
    if config.output.ttl_seconds is not None:
        fields |= {"ttl_type": "duration", "ttl_config": {"duration_seconds": config.output.ttl_seconds}}
    return BreadcrumbCreate.parse(fields)


def _hops(trigger: Breadcrumb) -> int:
    """How many agents and contexts lie behind a trigger; configs that trigger each other must end somewhere."""
    hops = trigger.context.get("hops")
    hops = hops if isinstance(hops, int) else 0
    if any(tag.startswith(CONSUMER) for tag in trigger.tags):
        hops += 1
    if hops > MOST_HOPS:
        raise TurnFailed(f"contexts triggered each other {hops} times in a row: stopped")
    return hops
