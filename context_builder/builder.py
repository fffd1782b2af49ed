"""Handler of the context builder: writes the contexts of the configs that match an event.

There is one context per consumer and session. Each turn writes the next version of the context. The newest version
contains the rendered parts. Older versions contain only references, from which the same parts can be rendered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

from breadcrumbs.context_builder.archiving import ContextArchive
from breadcrumbs.context_builder.assembly import (
    Assembled,
    assemble,
    find_sources_to_extend,
    select,
    waits_for_its_turn,
)
from breadcrumbs.context_builder.config import ContextConfig, Exclude, Formatting, Output
from breadcrumbs.context_builder.configs_in_force import CONTEXT_CONFIGS, ConfigsInForce
from breadcrumbs.context_builder.context_breadcrumb import (
    MAX_HOPS,
    check_hops,
    context_breadcrumb,
    context_id,
)
from breadcrumbs.context_builder.continuation import (
    CONVERSATION,
    Conversation,
    continue_conversation,
    conversation_of,
)
from breadcrumbs.context_builder.inputs import ContextInputs, InputLoader
from breadcrumbs.context_builder.references import gathered_references
from breadcrumbs.context_builder.spans import describe_retrieval, retrieval_span
from breadcrumbs.context_builder.tokens import token_counter
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.roots import root_of
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.breadcrumb.tags import DEFAULT_INHERITED
from breadcrumbs.runtime.errors import InvalidInput, NotFound, QuotaExceeded
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.retrieval.sources import Fetched, Source, fetch
from breadcrumbs.runtime.schema_names import CONTEXT_CONFIG, FEEDBACK, STATE_CHANGE
from breadcrumbs.runtime.sessions.pauses import written_while_paused
from breadcrumbs.runtime.store.batched_reads import Keep
from breadcrumbs.runtime.store.fence import InputsOutdated, LeaseLost, TriggerGone
from breadcrumbs.runtime.store.reduction import references_only
from breadcrumbs.runtime.store.state import PAUSED, RESUMED
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry import tracing
from breadcrumbs.runtime.workers.definitions import report_unusable
from breadcrumbs.runtime.workers.errors import STORE_UNAVAILABLE, TurnFailed
from breadcrumbs.runtime.workers.failures import ErrorDetails, leave_error
from breadcrumbs.runtime.workers.retries import is_retryable
from breadcrumbs.runtime.workers.turn import INTERNAL, Turn
from breadcrumbs.runtime.workers.turn_spans import turn_span

_CREATOR = "context-builder"


class _NewVersion(NamedTuple):
    """The next version of a context."""

    new: BreadcrumbCreate
    conversation: Conversation | None = None
    """The conversation that the next turn can continue."""


class ContextBuilder:
    """Handles the events of the context builder's workers."""

    kind = "contexts"

    def __init__(
        self,
        store: Store,
        configs: ConfigsInForce,
        *,
        inherited: tuple[str, ...] = DEFAULT_INHERITED,
        max_hops: int = MAX_HOPS,
    ) -> None:
        self._store = store
        self._configs = configs
        self._inherited = inherited
        self._max_hops = max_hops
        self._hints = SchemaHints(store)
        self._archive = ContextArchive(store)
        self._inputs = InputLoader(store, self._hints)
        token_counter()  # load the tokenizer now, not while the first message waits

    async def wants(self, event: Event) -> bool:
        """Return whether the event needs a turn.

        An event of a config also drops the cached configs of its owner.
        """
        if event.schema_name == CONTEXT_CONFIG:
            self._configs.invalidate(event.owner_id)
        if event.operation == "deleted":
            return False
        if event.imported:  # imported messages are not answered, but an imported config is in force
            return event.schema_name == CONTEXT_CONFIG
        if _is_pausing(event):
            return True
        return event.schema_name == CONTEXT_CONFIG or bool(await self._triggered_configs(event))

    def arrived(self, event: Event, running: Turn | None, waiting: Sequence[Event]) -> bool:
        return False  # a new event never interrupts a running turn

    async def handle(self, turn: Turn) -> None:
        """Build the contexts for an event.

        If the event is a config, report its errors. If it pauses or resumes a session, change the contexts of the
        session.
        """
        if turn.event.schema_name == CONTEXT_CONFIG:
            await report_unusable(
                self._store, turn, CONTEXT_CONFIGS, creator=_CREATOR, inherited=self._inherited
            )
        if turn.event.imported:
            return
        if _is_pausing(turn.event):
            await self._pause_or_resume(turn)
        try:
            await self._build_all(turn)
        except InputsOutdated:
            turn.bypasses_cache = True
            await self._build_all(turn)

    async def give_up(self, turn: Turn, error: Exception) -> None:
        """Write an error into the session after the last attempt failed."""
        event = turn.event
        try:
            root = root_of(await self._store.get_version(event.owner_id, event.id, event.version))
        except NotFound:
            root = None
        details = ErrorDetails(_CREATOR, event.id, self._inherited, root=root)
        await leave_error(self._store, turn, error, details)

    async def refresh(self, turn: Turn, context: Breadcrumb) -> Breadcrumb:
        """Build a context again for the same message, with breadcrumbs that were written since.

        Raise `TurnFailed` if its config no longer exists.
        """
        try:
            consumer = context.context["consumer_id"]
            message, version = UUID(context.context["trigger_id"]), int(context.context["trigger_version"])
        except (KeyError, TypeError, ValueError):
            raise TurnFailed("this context was not written by the context builder") from None
        trigger = await self._store.get_version(context.owner_id, message, version)
        if trigger.session_id != context.session_id:
            raise TurnFailed("the trigger of this context belongs to another session")
        for config in await self._configs.get(context.owner_id):
            if config.consumer_id == consumer:
                if (spans := tracing.active) is None:
                    return await self._rebuild(turn, config, trigger)
                async with turn_span(spans, self._store, turn, trigger, retrieval_span(consumer, trigger)):
                    return await self._rebuild(turn, config, trigger)
        raise TurnFailed(f"the context config of {consumer!r} no longer exists")

    async def _rebuild(self, turn: Turn, config: ContextConfig, trigger: Breadcrumb) -> Breadcrumb:
        inputs = await self._inputs.load(config, trigger)
        version = await self._new_version(turn, config, trigger, inputs)
        if inputs.paused_at is not None:
            version.new.tags.remove(config.consumer_tag)
        version.new.tags.append(INTERNAL)
        return await self._put(turn, context_id(self._store, config, trigger), version, inputs.previous)

    # Messages

    async def _build_all(self, turn: Turn) -> None:
        """Build the contexts of all configs that react to the event."""
        configs = await self._triggered_configs(turn.event)
        trigger, inputs = await self._inputs.load_with_trigger(configs, turn)
        if trigger is None:
            return
        chosen = [entry for entry in zip(configs, inputs, strict=True) if entry[0].reacts_to(trigger)]
        failures: list[Exception] = []
        for position, (config, its_inputs) in enumerate(chosen, 1):
            try:
                last = position == len(chosen) and not failures
                await self._build(turn, config, trigger, its_inputs, last=last)
            except (LeaseLost, TriggerGone, InputsOutdated, *STORE_UNAVAILABLE):
                raise
            except Exception as error:  # the contexts of the other consumers are still built
                failures.append(error)
        if failures:
            raise next((error for error in failures if is_retryable(error)), failures[0])

    async def _triggered_configs(self, event: Event) -> list[ContextConfig]:
        return _filter_triggered(await self._configs.get(event.owner_id), event)

    async def _build(
        self, turn: Turn, config: ContextConfig, trigger: Breadcrumb, inputs: ContextInputs, *, last: bool
    ) -> None:
        """Build and store the next version of a context.

        With `last`, the same write acknowledges the event.
        """
        event = turn.event
        if inputs.previous is not None and _is_about(inputs.previous, trigger, since=event.at):
            # An earlier attempt stored this context, but the reply of the store was lost.
            if last:
                await turn.acknowledge()
            return
        facts = turn.report.begin(config.consumer_id, message=trigger.id)
        await self._check_quota(trigger.owner_id)
        if (spans := tracing.active) is None:
            await self._write(turn, config, trigger, inputs, last=last)
        else:
            # A message that was sent during a pause is built with the event that resumes the session.
            wanted = replace(
                retrieval_span(config.consumer_id, trigger, inputs.began_ns),
                is_deferred=trigger.id != event.id,
            )
            async with turn_span(spans, self._store, turn, trigger, wanted):
                await self._write(turn, config, trigger, inputs, last=last)
        facts.answered = True

    async def _write(
        self, turn: Turn, config: ContextConfig, trigger: Breadcrumb, inputs: ContextInputs, *, last: bool
    ) -> None:
        version = await self._new_version(turn, config, trigger, inputs)
        # Contexts of messages from during the pause get no consumer tag, so they are not answered yet. Messages from
        # before the pause are still answered.
        if inputs.paused_at is not None and inputs.paused_at <= turn.event.at:
            version.new.tags.remove(config.consumer_tag)
            version.new.tags.append(INTERNAL)
        id = context_id(self._store, config, trigger)
        await self._put(turn, id, version, inputs.previous, acknowledge=last)

    async def _new_version(
        self, turn: Turn, config: ContextConfig, trigger: Breadcrumb, inputs: ContextInputs
    ) -> _NewVersion:
        owner = trigger.owner_id
        parts, explanation, conversation = await self._build_parts(config, trigger, inputs)
        await self._archive.keep_config(owner, config, self._configs.source_of(owner, config))
        check_hops(trigger, self._max_hops)
        try:
            new = context_breadcrumb(
                config, trigger, parts, explanation, as_of=inputs.as_of, inherited=self._inherited
            )
        except InvalidInput as error:
            raise TurnFailed(f"the context for {config.consumer_id} cannot be stored: {error}") from error
        if turn.event.operation == "retried":
            new.context["retried_at"] = turn.event.at
        return _NewVersion(new, conversation)

    async def _build_parts(
        self, config: ContextConfig, trigger: Breadcrumb, inputs: ContextInputs
    ) -> tuple[list[dict[str, Any]], dict[str, Any], Conversation | None]:
        """Return the parts of a context, its explanation, and the conversation that the next turn can continue."""
        fetched = inputs.fetching.fetched()
        spans = tracing.active
        last = None if inputs.previous is None or spans is not None else CONVERSATION.get(inputs.previous)
        if last is not None and not await self._hints.definitions(trigger.owner_id, config.source_schemas):
            conversation = continue_conversation(last, config, trigger, fetched, token_counter())
            if conversation is not None:
                return conversation.parts, conversation.explanation, conversation
        assembled = await _assemble_fetched(self._store, config, trigger, fetched, hints=self._hints)
        if spans is not None:
            describe_retrieval(spans, trigger, assembled)
        await self._archive.keep_hints(trigger.owner_id, assembled.definitions)
        parts = assembled.parts()
        explanation = assembled.explain(parts)
        return parts, explanation, conversation_of(config, fetched, assembled, parts, explanation)

    async def _put(
        self,
        turn: Turn,
        id: UUID,
        version: _NewVersion,
        previous: Breadcrumb | None,
        *,
        acknowledge: bool = False,
    ) -> Breadcrumb:
        fence = turn.fence(acknowledge=acknowledge)
        crumb = await self._store.put(
            turn.event.owner_id, id, version.new, after=previous, slim=references_only, fence=fence
        )
        if version.conversation is not None:
            CONVERSATION.set(crumb, version.conversation)
        turn.committed(self._store, crumb)
        return crumb

    async def _check_quota(self, owner: UUID) -> None:
        """Fail the turn if the quota leaves no room for an answer.

        The session then shows the reason.
        """
        if self._store.quotas is not None:
            try:
                await self._store.quotas.check(owner)
            except QuotaExceeded as error:
                raise TurnFailed(str(error)) from error

    # Pauses

    async def _pause_or_resume(self, turn: Turn) -> None:
        """Remove the consumer tags from the contexts of a session, or restore them.

        Agents react to the consumer tag, so a context without it is not answered. The tags are removed when the session
        is paused and restored when it is resumed. Then the contexts of the messages that waited are built first.
        """
        event = turn.event
        try:
            change = await self._store.get_version(event.owner_id, event.id, event.version)
        except NotFound:
            return
        if event.session_id is None:
            return
        configs = await self._configs.get(event.owner_id)
        is_paused = PAUSED in event.tags
        built = set() if is_paused else await self._build_waiting(turn, configs, change)
        for config in configs:
            if config.consumer_id not in built:
                await self._set_consumer(turn, config, active=not is_paused)

    async def _build_waiting(
        self, turn: Turn, configs: Sequence[ContextConfig], resumed: Breadcrumb
    ) -> set[str]:
        """Build a context for each message that waited, in order.

        Return the consumers of these contexts.
        """
        built: set[str] = set()
        async for trigger in written_while_paused(self._store, resumed):
            for config in configs:
                if config.produces(trigger.schema_name, trigger.tags) or not config.reacts_to(trigger):
                    continue
                inputs = await self._inputs.load(config, trigger)
                await self._build(turn, config, trigger, replace(inputs, paused_at=None), last=False)
                built.add(config.consumer_id)
        return built

    async def _set_consumer(self, turn: Turn, config: ContextConfig, *, active: bool) -> None:
        """Add the consumer tag to a context, or remove it.

        No worker reacts to this write.
        """
        event = turn.event
        id = context_id(self._store, config, event)
        newest = await self._newest(event.owner_id, id)
        if newest is None or (config.consumer_tag in newest.tags) == active:
            return
        others = [tag for tag in newest.tags if tag not in (config.consumer_tag, INTERNAL)]
        tags = [*others, *([config.consumer_tag] if active else []), INTERNAL]
        version = _NewVersion(newest.apply_change(BreadcrumbUpdate(tags=tags)))
        await self._put(turn, id, version, newest)

    async def _newest(self, owner: UUID, id: UUID) -> Breadcrumb | None:
        try:
            return await self._store.get(owner, id, count_read=False)
        except NotFound:
            return None


def _filter_triggered(configs: Iterable[ContextConfig], event: Event) -> list[ContextConfig]:
    """Return the configs that an event can trigger.

    Contexts of a config never trigger the same config. Feedback triggers none, because models never see it.
    """
    if event.schema_name == FEEDBACK:
        return []
    return [
        config
        for config in configs
        if not config.produces(event.schema_name, event.tags)
        and any(
            trigger.matches_meta(event.schema_name, event.tags, event.session_id)
            for trigger in config.update_triggers
        )
    ]


def _is_pausing(event: Event) -> bool:
    return event.schema_name == STATE_CHANGE and (PAUSED in event.tags or RESUMED in event.tags)


def _is_about(context: Breadcrumb, trigger: Breadcrumb, *, since: int) -> bool:
    """Return whether a context was built for a trigger, not before the time `since`."""
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
    """Fetch the sources and assemble a context.

    Breadcrumbs that `keep` rejects are treated as missing.
    """
    fetched = await fetch(store, config.first_sources, trigger, keep=keep, counted=config.counted_sources)
    return await _assemble_fetched(store, config, trigger, fetched, hints=hints, keep=keep)


async def _assemble_fetched(
    store: Store,
    config: ContextConfig,
    trigger: Breadcrumb,
    fetched: Fetched,
    *,
    hints: SchemaHints,
    keep: Keep | None = None,
) -> Assembled:
    """Assemble a context from the breadcrumbs that its sources found."""

    # Messages that wait for their turn must not use up the limit of a source.
    def waits(crumb: Breadcrumb) -> bool:
        return waits_for_its_turn(config, trigger, crumb)

    await fetched.refill(store, trigger, waits, keep=keep)
    await fetched.recount(store, trigger)
    items = fetched.items(trigger)
    selection = select(config, trigger, items, fetched.sources, fetched.counts)
    if further := find_sources_to_extend(config, selection):
        await fetched.extend(store, trigger, further, waits, keep=keep)
        items = fetched.items(trigger)
        selection = select(config, trigger, items, fetched.sources, fetched.counts)
    schemas = {item.crumb.schema_name for item in items} | {trigger.schema_name}
    definitions = await hints.definitions(trigger.owner_id, {name for name in schemas if name is not None})
    assembled = assemble(
        config, trigger, items, counter=token_counter(), definitions=definitions, selection=selection
    )
    assembled.notes.extend(fetched.notes)
    return assembled


async def gather_parts(
    store: Store,
    sources: Sequence[Source],
    trigger: Breadcrumb,
    *,
    triggers: Sequence[Selector],
    hints: SchemaHints,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the parts of a prompt for an agent with its own sources, and the references of their items.

    Such an agent has no context config. `triggers` are the selectors that the agent reacts to. Messages that match them
    and are newer than the trigger are left out, because they get answers of their own.
    """
    config = ContextConfig.model_construct(
        consumer_id="",
        update_triggers=tuple(triggers),
        sources=tuple(sources),
        limits=(),
        exclude=Exclude(),
        output=Output(),
        formatting=Formatting(),
    )
    if (spans := tracing.active) is None:
        assembled = await build_context(store, config, trigger, hints=hints)
    else:
        wanted = retrieval_span("", trigger)
        with spans.span(wanted.name, wanted.attributes):
            assembled = await build_context(store, config, trigger, hints=hints)
            describe_retrieval(spans, trigger, assembled)
    return assembled.parts(), gathered_references(assembled, trigger)
