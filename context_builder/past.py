"""Assembles the context of a past turn again, with the versions of that time and with any config.

Nothing is written. With the config of the stored context, the result has the same items, versions, cuts and order, or
`gone` names what no longer exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal
from uuid import UUID

import anyio.to_thread
import orjson

from breadcrumbs.context_builder.archiving import archived_hints
from breadcrumbs.context_builder.assembly import (
    Assembled,
    assemble,
    checksum,
    find_sources_to_extend,
    select,
    waits_for_its_turn,
)
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.referenced import defines
from breadcrumbs.context_builder.references import ContextRecord, NotAContext, read_record
from breadcrumbs.context_builder.tokens import counter_of, token_counter
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.retrieval.histories import HistoryReader, StorePools, definition_at
from breadcrumbs.runtime.retrieval.past import History, Keep, Moment, PastFetch, Pool, SourcePools, keep_all
from breadcrumbs.runtime.retrieval.schema_hints import DEFINES_PREFIX, own_hints
from breadcrumbs.runtime.schema_names import SCHEMA_DEFINITION
from breadcrumbs.runtime.store.store import Store

GoneReason = Literal["deleted", "version lost"]
"""Reason why a version cannot be loaded: the breadcrumb was deleted or has expired, or its history lacks it."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A version that a stored context refers to, but that no longer exists."""

    id: UUID
    version: int
    role: str
    """The key of the source, `trigger`, or `hints of <schema>`."""
    reason: GoneReason

    def __str__(self) -> str:
        if self.reason == "deleted":
            return f"breadcrumb {self.id} ({self.role}) was deleted or has expired"
        return f"version {self.version} of breadcrumb {self.id} ({self.role}) is no longer in its history"


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A past turn: the trigger, the time, and the versions that its stored context refers to."""

    trigger: Breadcrumb
    moment: Moment
    record: ContextRecord | None = None
    """The stored facts about its context. None if the context was not stored."""
    pinned: Mapping[UUID, History] = field(default_factory=dict)
    """Histories with the versions that the context refers to, by id."""
    gone: tuple[Gone, ...] = ()

    def moment_for(self, config: ContextConfig) -> Moment:
        """Return the moment. With the config of the stored context, versions are pinned for each source."""
        record = self.record
        if record is None or record.config != config.digest:
            return self.moment
        by_source = {
            number: {record.trigger_id: record.trigger_version} for number in range(len(record.sources))
        }
        for reference in (*record.left_out, *record.items):
            if reference.number is not None:
                by_source.setdefault(reference.number, {})[reference.id] = reference.version
        return replace(self.moment, by_source=by_source)

    @property
    def gone_items(self) -> tuple[Gone, ...]:
        """The gone versions that were part of the prompt or of its hints."""
        items = set() if self.record is None else {reference.id for reference in self.record.items}
        return tuple(entry for entry in self.gone if entry.id in items or entry.role.startswith("hints of "))


class TriggerGone(NotFound):
    """The trigger of a past turn no longer exists, so its context cannot be assembled again."""

    def __init__(self, gone: Gone) -> None:
        super().__init__(str(gone))
        self.gone = gone


def pinned_versions(record: ContextRecord) -> dict[UUID, int]:
    """Return the versions that a context refers to, by id."""
    pinned = {reference.id: reference.version for reference in (*record.left_out, *record.items)}
    pinned[record.trigger_id] = record.trigger_version
    return pinned


def moment_of(context: Breadcrumb, record: ContextRecord) -> Moment:
    """Return the moment at which a version of a context was built."""
    return Moment(record.as_of, pinned_versions(record), max(record.as_of, context.updated))


def find_gone(record: ContextRecord, histories: Mapping[UUID, History]) -> list[Gone]:
    """Return the references of a context, except those to its hints, that cannot be loaded."""
    roles = {reference.id: reference for reference in (*record.left_out, *record.items)}
    found = []
    for id, version in pinned_versions(record).items():
        history = histories.get(id)
        if history is None or history.version(version) is None:
            reference = roles.get(id)
            is_trigger = id == record.trigger_id or reference is None
            role = "trigger" if is_trigger or reference is None else reference.source
            found.append(Gone(id, version, role, "deleted" if history is None else "version lost"))
    return found


async def load_turn(reader: HistoryReader, context: Breadcrumb) -> PastTurn:
    """Return the past turn of a version of a context.

    Raise `TriggerGone` if its trigger no longer exists, and `NotFound` if the breadcrumb is not a context.
    """
    try:
        record = read_record(context)
    except NotAContext as error:
        raise NotFound(str(error)) from None
    moment = moment_of(context, record)
    pinned = await reader.load_pinned([*moment.pinned.items(), *record.hints.values()])
    return make_turn(context, record, pinned | await deleted_definitions(reader, record, pinned))


async def deleted_definitions(
    reader: HistoryReader, record: ContextRecord, histories: Mapping[UUID, History]
) -> dict[UUID, History]:
    """Return the schema definitions of a context that were deleted. The archive has their hints."""
    deleted = {schema: named for schema, named in record.hints.items() if named[0] not in histories}
    hints = await archived_hints(reader.store, reader.owner, deleted)
    return {
        deleted[schema][0]: History([_archived_definition(reader.owner, schema, *deleted[schema], found)])
        for schema, found in hints.items()
    }


def _archived_definition(owner: UUID, schema: str, id: UUID, version: int, hints: Any) -> Breadcrumb:
    document = {
        "schema_name": SCHEMA_DEFINITION,
        "tags": [DEFINES_PREFIX + schema],
        "context": {},
        "llm_hints": hints,
    }
    return Breadcrumb(id, owner, version, 0, 0, 0, 0, None, None, orjson.dumps(document))


def make_turn(context: Breadcrumb, record: ContextRecord, histories: Mapping[UUID, History]) -> PastTurn:
    """Return the past turn of a version of a context whose breadcrumbs are loaded."""
    gone = find_gone(record, histories)
    for schema, (id, version) in record.hints.items():
        history = histories.get(id)
        if history is None or history.version(version) is None:
            reason: GoneReason = "deleted" if history is None else "version lost"
            gone.append(Gone(id, version, f"hints of {schema}", reason))
    for entry in gone:
        if entry.id == record.trigger_id:
            raise TriggerGone(entry)
    trigger = histories[record.trigger_id].version(record.trigger_version)
    if trigger is None or trigger.session_id != context.session_id:
        raise NotFound(f"breadcrumb {context.id} is not a context of the context builder")
    return PastTurn(trigger, moment_of(context, record), record, histories, tuple(gone))


@dataclass(frozen=True, slots=True)
class PastView:
    """Access of a reader to the past: what it may see, and which breadcrumbs existed."""

    reader: HistoryReader
    sees: Keep = keep_all


def assemble_past(
    config: ContextConfig,
    turn: PastTurn,
    pools: Sequence[SourcePools],
    definitions: Pool,
    view: PastView,
) -> Assembled:
    """Assemble the context of a past turn. `pools` are those of `config.full_sources`."""
    trigger = turn.trigger

    def waits(crumb: Breadcrumb) -> bool:
        return waits_for_its_turn(config, trigger, crumb)

    fetch = PastFetch(trigger, turn.moment_for(config), waits, view.sees, view.reader.existed)
    fetched = fetch.fetch(config.first_sources, pools)
    items = fetched.items(trigger)
    counts = _count_sources(config, turn, pools)
    selection = select(config, trigger, items, fetched.sources, counts)
    if further := find_sources_to_extend(config, selection):
        fetch.extend(fetched, further, pools)
        items = fetched.items(trigger)
        selection = select(config, trigger, items, fetched.sources, counts)
    schemas = {item.crumb.schema_name for item in items} | {trigger.schema_name}
    found = {
        name: definition
        for name in sorted(schema for schema in schemas if schema is not None)
        if (definition := _definition(turn, definitions, name)) is not None
    }
    record = turn.record
    counter = token_counter() if record is None else counter_of(record.counted_by)
    assembled = assemble(config, trigger, items, counter=counter, definitions=found, selection=selection)
    assembled.notes.extend(fetched.notes)
    return assembled


def _count_sources(config: ContextConfig, turn: PastTurn, pools: Sequence[SourcePools]) -> dict[int, int]:
    """Return the counts that stepped windows need.

    The stored context recorded its counts. They include breadcrumbs that were deleted since.
    """
    if turn.trigger.session_id is None or not config.counted_sources:
        return {}
    recorded = {
        source.get("schema_name"): count
        for source in (() if turn.record is None else turn.record.sources)
        if isinstance(count := source.get("count"), int)
    }
    return {
        number: recorded.get(config.sources[number].schema_name, pools[number].count(turn.trigger.created))
        for number in config.counted_sources
    }


def _definition(turn: PastTurn, definitions: Pool, schema: str) -> Breadcrumb | None:
    """Return the definition of a schema at the time of a turn.

    The builder caches definitions for a second, so the version that the context refers to has precedence. An item
    without a definition in the context had none, unless it has hints of its own.
    """
    record = turn.record
    if record is not None and schema in record.hints:
        return _pinned_definition(turn, schema, *record.hints[schema])
    for reference in () if record is None else record.items:
        history = turn.pinned.get(reference.id)
        crumb = None if history is None else history.version(reference.version)
        if crumb is not None and crumb.schema_name == schema and not own_hints(crumb):
            return None
    return definition_at(definitions, schema, turn.moment)


def _pinned_definition(turn: PastTurn, schema: str, id: UUID, version: int) -> Breadcrumb | None:
    history = turn.pinned.get(id)
    definition = None if history is None else history.version(version)
    if history is None or definition is None:
        return None
    is_valid = defines(definition, schema) and defines(history.newest, schema)
    return definition if is_valid else None


@dataclass(frozen=True, slots=True)
class Reassembled:
    """The context of a past turn, assembled again."""

    turn: PastTurn
    assembled: Assembled
    notes: tuple[str, ...] = ()
    """Explain which older breadcrumbs were not searched."""

    @property
    def same(self) -> bool | None:
        """Whether the prompt is byte for byte the stored one. None if there is no stored context."""
        record = self.turn.record
        return None if record is None else checksum(self.assembled.parts()) == record.checksum


async def reassemble_turn(
    reader: HistoryReader, config: ContextConfig, turn: PastTurn, *, sees: Keep = keep_all
) -> Reassembled:
    """Assemble the context of a past turn again, with data from the store.

    A large config can take seconds of computing time, so a thread does it. Other requests of the process continue.
    """
    pools = StorePools(reader, turn.trigger.session_id, turn.moment, dict(turn.pinned))
    definitions = await reader.definitions(turn.moment.time)
    view = PastView(reader, sees)
    while True:
        read = await pools.read(config.full_sources, config.counted_sources, turn.trigger.created)
        assembled = await anyio.to_thread.run_sync(
            partial(assemble_past, config, turn, read, definitions, view)
        )
        if not any(entry.ran_out for entry in read):
            return Reassembled(turn, assembled, tuple(pools.notes))
        if not pools.deepen():
            note = "not all older breadcrumbs were searched"
            return Reassembled(turn, assembled, (*pools.notes, note))


async def reassemble(
    store: Store, owner: UUID, context_id: UUID, version: int, config: ContextConfig
) -> Reassembled:
    """Assemble a stored version of a context again, with its own config or with another one.

    Raise `NotFound` if the version does not exist, and `TriggerGone` if its trigger was deleted.
    """
    reader = HistoryReader(store, owner)
    context = await store.get_version(owner, context_id, version)
    return await reassemble_turn(reader, config, await load_turn(reader, context))
