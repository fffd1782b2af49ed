"""The context builder: sees an event that a config reacts to, and writes that consumer's context.

There is one context per consumer and session; each turn writes its next version. The newest version holds
what was rendered. Older ones keep references only, from which the same can be rendered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from breadcrumbs.context_builder.assembly import Assembled, assemble
from breadcrumbs.context_builder.book import ConfigBook
from breadcrumbs.context_builder.config import ContextConfig, Exclude, Formatting, Output
from breadcrumbs.context_builder.references import references_only
from breadcrumbs.context_builder.tokens import token_counter
from breadcrumbs.runtime import clock
from breadcrumbs.runtime.breadcrumb import Breadcrumb, BreadcrumbCreate
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.events import Event
from breadcrumbs.runtime.failures import leave_error
from breadcrumbs.runtime.ids import derived_id
from breadcrumbs.runtime.inheritance import DEFAULT_INHERITED, inherited_tags
from breadcrumbs.runtime.schema_hints import SchemaHints
from breadcrumbs.runtime.sources import Keep, Source, fetch
from breadcrumbs.runtime.store import Store
from breadcrumbs.runtime.worker import Turn, TurnFailed


class ContextBuilder:
    """The handler of the builder's workers."""

    kind = "contexts"

    def __init__(
        self,
        store: Store,
        book: ConfigBook,
        *,
        inherited: tuple[str, ...] = DEFAULT_INHERITED,
    ) -> None:
        self._store = store
        self._book = book
        self._inherited = inherited
        self._hints = SchemaHints(store)

    async def wants(self, event: Event) -> bool:
        return event.operation != "deleted" and bool(await self._matching(event))

    def arrived(self, event: Event, running: Turn | None, waiting: int) -> None:
        pass

    async def handle(self, turn: Turn) -> None:
        await self._build_all(turn, await self._matching(turn.event))

    async def give_up(self, turn: Turn, error: Exception) -> None:
        await leave_error(
            self._store,
            turn,
            error,
            creator="context-builder",
            origin=turn.event.id,
            inherited=self._inherited,
        )

    async def _matching(self, event: Event) -> list[ContextConfig]:
        configs = await self._book.configs(event.owner_id)
        return [
            config
            for config in configs
            if any(
                trigger.matches_meta(event.schema_name, event.tags, event.session_id)
                for trigger in config.update_triggers
            )
        ]

    async def _build_all(self, turn: Turn, configs: list[ContextConfig]) -> None:
        event = turn.event
        try:
            trigger = await self._store.get_version(event.owner_id, event.id, event.version)
            configs = [
                config
                for config in configs
                if any(selector.matches(trigger) for selector in config.update_triggers)
            ]
        except NotFound:
            configs = []  # deleted or expired meanwhile: nothing to react to
        if not configs:
            return
        for config in configs[:-1]:
            await self._build(turn, config, trigger, last=False)
        await self._build(turn, configs[-1], trigger, last=True)

    async def refresh(self, turn: Turn, context: Breadcrumb) -> Breadcrumb:
        """Make a context again, for the same message, with what was said meanwhile."""
        trigger = await self._store.get_version(
            context.owner_id, UUID(context.context["trigger_id"]), int(context.context["trigger_version"])
        )
        consumer = context.context["consumer_id"]
        for config in await self._book.configs(context.owner_id):
            if config.consumer_id == consumer:
                return await self._build(turn, config, trigger, last=False)
        raise TurnFailed(f"there is no context config for {consumer!r} any more")

    async def _build(
        self, turn: Turn, config: ContextConfig, trigger: Breadcrumb, *, last: bool
    ) -> Breadcrumb:
        as_of = self._store.now() if trigger.session_id is None else await self._lane_time(turn.event.lane)
        made = await build_context(self._store, config, trigger, hints=self._hints)
        new = context_breadcrumb(config, trigger, made, as_of=as_of, inherited=self._inherited)
        id = context_id(turn.event.lane, config, trigger)
        return await self._store.put(
            trigger.owner_id, id, new, slim=references_only, fence=turn.fence(acknowledge=last)
        )

    async def _lane_time(self, lane: int) -> int:
        return int(await self._store.connection.call(lane, b"GET", self._store.keys.clock(lane)) or 0)


async def build_context(
    store: Store,
    config: ContextConfig,
    trigger: Breadcrumb,
    *,
    hints: SchemaHints,
    keep: Keep | None = None,
) -> Assembled:
    """Everything for one context: fetched once, chosen, counted. What `keep` refuses is not there."""
    found, notes = await fetch(store, config.sources, trigger, keep=keep)
    schemas = {entry.crumb.schema_name for entry in found} | {trigger.schema_name}
    definitions = await hints.definitions(trigger.owner_id, {name for name in schemas if name is not None})
    made = assemble(config, trigger, found, counter=token_counter(), definitions=definitions)
    made.notes.extend(notes)
    return made


async def gather_parts(
    store: Store, sources: Sequence[Source], trigger: Breadcrumb, *, hints: SchemaHints
) -> list[dict[str, Any]]:
    """The parts of a prompt for an agent that brings its own sources instead of a context config."""
    config = ContextConfig.model_construct(
        consumer_id="",
        update_triggers=(),
        sources=tuple(sources),
        exclude=Exclude(),
        output=Output(),
        formatting=Formatting(),
    )
    return (await build_context(store, config, trigger, hints=hints)).parts()


def context_id(lane: int, config: ContextConfig, trigger: Breadcrumb) -> UUID:
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
    hops = trigger.context.get("hops")
    parts = made.parts()
    context: dict[str, Any] = {
        "consumer_id": config.consumer_id,
        "trigger_id": str(trigger.id),
        "trigger_version": trigger.version,
        "trigger_created": trigger.created,
        "as_of": as_of,
        "as_of_time": clock.to_text(as_of),
        "config": config.digest,
        "parts": parts,
        "explain": made.explain(parts),
    }
    if isinstance(hops, int):
        context["hops"] = hops
    tags = [*config.output.tags, config.consumer_tag, *inherited_tags(trigger.tags, inherited)]
    fields: dict[str, Any] = {
        "schema_name": config.output.schema_name,
        "title": f"Context for {config.consumer_id}",
        "tags": list(dict.fromkeys(tags)),
        "context": context,
    }
    if config.output.ttl_seconds is not None:
        fields |= {"ttl_type": "duration", "ttl_config": {"duration_seconds": config.output.ttl_seconds}}
    return BreadcrumbCreate.parse(fields)
