"""Why a context is as it is, what an older one looked like, and what another config would make of it.

Nothing here writes. `visible` is for readers who may not see everything: what it refuses is named by its
source and its tokens only (in contexts that exist), or is as if it were not there (in previews).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias
from uuid import UUID

import orjson

from breadcrumbs.context_builder.assembly import (
    Assembled,
    TriggerWithheld,
    checksum,
    parts_of,
    rendered,
)
from breadcrumbs.context_builder.builder import build_context, context_id
from breadcrumbs.context_builder.config import CONSUMER, ContextConfig
from breadcrumbs.context_builder.references import Dropped, Kept, NoContext, Recorded, Reference, recorded
from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, users_of
from breadcrumbs.runtime.breadcrumb.ids import lane_for
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.text import plain_text
from breadcrumbs.runtime.errors import InvalidInput, NotFound
from breadcrumbs.runtime.retrieval.model_view import hints_for, view_of
from breadcrumbs.runtime.retrieval.schema_hints import DEFINES, DEFINITION, SchemaHints, speaks_for_all
from breadcrumbs.runtime.retrieval.sources import Keep
from breadcrumbs.runtime.store.store import Store

Visible: TypeAlias = Callable[[Breadcrumb], bool]

_EXCERPT = 140
_AT_ONCE = 8
"""References that are followed at once: two versions of each are in memory."""
_REFERENCE_COST = 1_024  # bytes that each reference counts, also one that leads nowhere


def _as_dict(thing: Any) -> dict[str, Any]:
    """A field is real or absent."""
    values = ((entry.name, getattr(thing, entry.name)) for entry in fields(thing))
    return {
        name: value
        for name, value in values
        if value is not None and value is not False and value not in ("", ())
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedItem:
    """One breadcrumb in a context, in the order of the prompt."""

    source: str
    number: int | None = None
    """Which of the sources found it, from 0. None: it is the trigger, and none did."""
    place: str
    rank: int
    """0: the newest that the source found."""
    tokens: int
    id: str | None = None
    version: int | None = None
    schema_name: str | None = None
    session_id: str | None = None
    """Where it is not the context's own."""
    created_at: str | None = None
    title: str = ""
    excerpt: str = ""
    matched: tuple[str, ...] = ()
    """Which of the source's tags it carries."""
    is_trigger: bool = False
    gone: bool = False
    """Deleted or expired since."""
    hidden: bool = False
    """Not for this reader."""

    def as_dict(self) -> dict[str, Any]:
        return _as_dict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedLeftOut:
    """One breadcrumb that a source found, and that is not in the context."""

    source: str
    number: int | None = None
    reason: str
    tokens: int | None = None
    id: str | None = None
    version: int | None = None
    schema_name: str | None = None
    created_at: str | None = None
    title: str = ""
    gone: bool = False
    hidden: bool = False

    def as_dict(self) -> dict[str, Any]:
        return _as_dict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything there is to know about a context."""

    consumer_id: str
    session_id: str | None
    context_id: str | None = None
    """None: a preview, which is nowhere."""
    version: int | None = None
    made_at: str | None = None
    trigger_id: str
    trigger_version: int
    as_of: str
    config: str
    """Digest of the config that it was made by."""
    tokens: int
    budget: int
    counted_by: str
    sources: list[dict[str, Any]]
    items: list[ExplainedItem]
    left_out: list[ExplainedLeftOut]
    left_out_besides: int = 0
    """How many more were left out than are named here."""
    notes: list[str] = field(default_factory=list)
    next_start: int | None = None
    """Where the next page begins, in the order of items and then what was left out; None: this is all of it."""

    def as_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"consumer_id": self.consumer_id}
        for name in ("session_id", "context_id", "version", "made_at"):
            if (value := getattr(self, name)) is not None:
                document[name] = value
        return document | {
            "trigger_id": self.trigger_id,
            "trigger_version": self.trigger_version,
            "as_of": self.as_of,
            "config": self.config,
            "tokens": self.tokens,
            "budget": self.budget,
            "counted_by": self.counted_by,
            "sources": self.sources,
            "items": [item.as_dict() for item in self.items],
            "left_out": [out.as_dict() for out in self.left_out],
            "left_out_besides": self.left_out_besides,
            "notes": self.notes,
        }


# A context that exists


async def explain(
    store: Store,
    owner: UUID,
    context_id: UUID,
    version: int | None = None,
    *,
    visible: Visible | None = None,
    conceals_gone: bool = False,
    start: int = 0,
    budget: int | None = None,
) -> Explanation:
    """Why a context, or an older version of it, is as it is.

    `start`, `budget`: one page of it, which ends after about so many bytes of stored breadcrumbs were read.
    `conceals_gone`: a deleted item looks like an invisible one. A client may have made up the references.
    """
    context, record = await _context(store, owner, context_id, version)
    references: list[Kept | Dropped] = [*record.items, *record.left_out]
    items: list[ExplainedItem] = []
    left_out: list[ExplainedLeftOut] = []
    read = 0
    while start < len(references) and (budget is None or read < budget):
        group = references[start : start + _AT_ONCE]
        start += len(group)
        found = await _Found.load(store, owner, record, group, visible, conceals_gone=conceals_gone)
        read += found.size + len(group) * _REFERENCE_COST
        for reference in group:
            if isinstance(reference, Kept):
                items.append(found.item(reference, context, record))
            else:
                left_out.append(found.left_out(reference))
    return Explanation(
        consumer_id=record.consumer_id,
        session_id=context.session_id,
        context_id=str(context.id),
        version=context.version,
        made_at=context.updated_at,
        trigger_id=str(record.trigger_id),
        trigger_version=record.trigger_version,
        as_of=times.to_text(record.as_of),
        config=record.config,
        tokens=record.tokens,
        budget=record.budget,
        counted_by=record.counted_by,
        sources=record.sources,
        items=items,
        left_out=left_out,
        left_out_besides=record.left_out_besides,
        notes=record.notes,
        next_start=start if start < len(references) else None,
    )


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a model was shown, rendered again."""

    context_id: UUID
    version: int
    parts: list[dict[str, Any]]
    same: bool | None
    """Byte for byte what was shown then; None: it was not all rendered again, so that is not known."""
    gone: tuple[Reference, ...]
    """What is missing, because it or the schema definition that says what to show of it was deleted."""

    @property
    def json(self) -> bytes:
        return orjson.dumps(self.parts)


async def rebuild(
    store: Store,
    owner: UUID,
    context_id: UUID,
    version: int | None = None,
    *,
    only: slice = slice(None),
) -> Rebuilt:
    """Render a version of a context again from its references. `only`: a range of its items."""
    context, record = await _context(store, owner, context_id, version)
    if "parts" in context.context:
        parts = context.context["parts"]
        return Rebuilt(context.id, context.version, parts, checksum(parts) == record.checksum, ())
    trigger = await _load(store, owner, record.trigger_id, record.trigger_version)
    trigger_users = [] if trigger is None else users_of(trigger[0].tags)
    shown, gone = [], []
    wanted = record.items[only]
    for start in range(0, len(wanted), _AT_ONCE):
        group = wanted[start : start + _AT_ONCE]
        found = await _Found.load(store, owner, record, group, None)
        for reference in group:
            crumb = found.crumb(reference)
            content = None if crumb is None else found.content(crumb)
            if crumb is None or content is None:
                gone.append(reference)
            else:
                item = rendered(crumb, reference.place, content, trigger_users)
                shown.append((reference.place, reference.source, item))
    parts = parts_of(shown)
    same = checksum(parts) == record.checksum if len(wanted) == len(record.items) else None
    return Rebuilt(context.id, context.version, parts, same, tuple(gone))


async def _context(store: Store, owner: UUID, id: UUID, version: int | None) -> tuple[Breadcrumb, Recorded]:
    if version is None:
        context = await store.get(owner, id, count_read=False)
    else:
        context = await store.get_version(owner, id, version)
    try:
        return context, recorded(context)
    except NoContext as error:
        raise NotFound(str(error)) from None


class _Found:
    """The breadcrumbs that some references of a context lead to today."""

    def __init__(
        self,
        crumbs: dict[tuple[UUID, int], Breadcrumb],
        hidden: set[tuple[UUID, int]],
        record: Recorded,
        definitions: dict[str, Breadcrumb],
        size: int,
    ) -> None:
        self._crumbs = crumbs
        self._hidden = hidden
        self._borrowed = record.hints
        self._definitions = definitions
        self.size = size
        """Bytes that were read."""

    @classmethod
    async def load(
        cls,
        store: Store,
        owner: UUID,
        record: Recorded,
        references: Sequence[Reference],
        visible: Visible | None,
        *,
        conceals_gone: bool = False,
    ) -> _Found:
        """All of them side by side, each version once."""
        wanted = list({(reference.id, reference.version) for reference in references})
        loaded = await asyncio.gather(*(_load(store, owner, *key) for key in wanted))
        crumbs: dict[tuple[UUID, int], Breadcrumb] = {}
        hidden: set[tuple[UUID, int]] = set()
        size = 0
        for key, found in zip(wanted, loaded, strict=True):
            if found is None:
                continue
            crumbs[key], newest = found
            size += sum(len(version.json) for version in {id(version): version for version in found}.values())
            # What has become secret since is secret in its older versions too.
            if visible is not None and not (visible(crumbs[key]) and visible(newest)):
                hidden.add(key)
        if conceals_gone:
            hidden |= set(wanted) - crumbs.keys()
        schemas = list({crumb.schema_name or "" for crumb in crumbs.values()} & record.hints.keys())
        definitions = await asyncio.gather(
            *(_load(store, owner, *record.hints[schema]) for schema in schemas)
        )
        return cls(
            crumbs,
            hidden,
            record,
            {
                schema: found[0]
                for schema, found in zip(schemas, definitions, strict=True)
                if found is not None and all(_defines(version, schema) for version in found)
            },
            size,
        )

    def crumb(self, reference: Reference) -> Breadcrumb | None:
        return self._crumbs.get((reference.id, reference.version))

    def content(self, crumb: Breadcrumb) -> dict[str, Any] | None:
        """What a model was shown of it; None: what said so is gone, and it may have said to hide something."""
        schema = crumb.schema_name or ""
        hints, _ = hints_for(crumb, self._definitions)
        if hints is None and schema in self._borrowed and schema not in self._definitions:
            return None
        return view_of(crumb, hints)

    def about(self, reference: Reference) -> dict[str, Any]:
        if (reference.id, reference.version) in self._hidden:
            return {"hidden": True}
        known: dict[str, Any] = {"id": str(reference.id), "version": reference.version}
        crumb = self.crumb(reference)
        if crumb is None:
            return known | {"gone": True}
        return known | _about(crumb)

    def left_out(self, reference: Dropped) -> ExplainedLeftOut:
        return ExplainedLeftOut(
            source=reference.source,
            number=reference.number,
            reason=reference.reason,
            tokens=reference.tokens,
            **self.about(reference),
        )

    def item(self, reference: Kept, context: Breadcrumb, record: Recorded) -> ExplainedItem:
        about = self.about(reference)
        crumb = None if "hidden" in about else self.crumb(reference)
        if crumb is not None:
            about["excerpt"] = _excerpt(self.content(crumb))
            if crumb.session_id != context.session_id:
                about["session_id"] = crumb.session_id
            about["matched"] = reference.matched
        return ExplainedItem(
            source=reference.source,
            number=reference.number,
            place=reference.place,
            rank=reference.rank,
            tokens=reference.tokens,
            is_trigger=reference.id == record.trigger_id,
            **about,
        )


def _defines(crumb: Breadcrumb, schema: str) -> bool:
    """Whether hints of it may show: anybody can write a context that names any breadcrumb."""
    return crumb.schema_name == DEFINITION and DEFINES + schema in crumb.tags and speaks_for_all(crumb)


async def _load(store: Store, owner: UUID, id: UUID, version: int) -> tuple[Breadcrumb, Breadcrumb] | None:
    """A version, and the newest one."""
    try:
        newest = await store.get(owner, id, count_read=False)
        then = newest if newest.version == version else await store.get_version(owner, id, version)
    except NotFound:
        return None
    return then, newest


def _about(crumb: Breadcrumb) -> dict[str, Any]:
    return {"schema_name": crumb.schema_name, "created_at": crumb.created_at, "title": crumb.title}


def _excerpt(content: dict[str, Any] | None) -> str:
    if content is None:
        return ""
    words = " ".join(plain_text(content)[: 4 * _EXCERPT].split())
    return words if len(words) <= _EXCERPT else words[: _EXCERPT - 1] + "…"


async def contexts_of(store: Store, owner: UUID, session_id: str) -> list[Breadcrumb]:
    """The contexts of a session, the newest first."""

    def is_context(crumb: Breadcrumb) -> bool:
        return "explain" in crumb.context and any(tag.startswith(CONSUMER) for tag in crumb.tags)

    for schema in ("agent.context.v1", None):
        query = Query(session_id=session_id, schema_name=schema, sort="-updated_at", keep=is_context)
        if found := (await store.list(owner, query)).items:
            return found
    return []


# A context that might be


@dataclass(frozen=True, slots=True)
class Preview:
    """What a model would see."""

    explanation: Explanation
    parts: list[dict[str, Any]]


async def preview(
    store: Store,
    owner: UUID,
    session_id: str,
    config: ContextConfig,
    trigger_id: UUID | None = None,
    *,
    visible: Visible | None = None,
    hints: SchemaHints | None = None,
) -> Preview:
    """What a config would make of a session's newest message that it reacts to, or of a given one.

    It looks at the session as it was when the context for that message was made, so that the difference to
    that context is the config's doing alone.
    """
    trigger = await _trigger(store, owner, session_id, config, trigger_id, visible)
    as_of = await _time_of(store, owner, session_id, config, trigger)

    def keep(crumb: Breadcrumb) -> bool:
        return crumb.created <= as_of and (visible is None or visible(crumb))

    try:
        made = await build_context(store, config, trigger, hints=hints or SchemaHints(store), keep=keep)
    except TriggerWithheld as error:
        raise InvalidInput(error.reason, where="trigger_id") from None
    if not any(selector.matches(trigger) for selector in config.update_triggers):
        made.notes.append("this config does not react to this breadcrumb: update_triggers do not match it")
    return Preview(_explained(config, trigger, made, as_of), made.parts())


async def _trigger(
    store: Store,
    owner: UUID,
    session_id: str,
    config: ContextConfig,
    trigger_id: UUID | None,
    visible: Visible | None,
) -> Breadcrumb:
    if trigger_id is not None:
        try:
            trigger = await store.get(owner, trigger_id, count_read=False)
        except NotFound:
            trigger = None
        if trigger is None or trigger.session_id != session_id or not (visible is None or visible(trigger)):
            raise NotFound(f"there is no breadcrumb {trigger_id} in session {session_id!r}")
        return trigger

    def newest(selector: Any) -> Query:
        def fits(crumb: Breadcrumb) -> bool:
            return bool(selector.matches(crumb)) and (visible is None or visible(crumb))

        keep: Keep = fits
        return Query(session_id=session_id, schema_name=selector.schema_name, limit=1, keep=keep)

    pages = await asyncio.gather(
        *(store.list(owner, newest(selector)) for selector in config.update_triggers)
    )
    found = [crumb for page in pages for crumb in page.items]
    if not found:
        raise NotFound(f"session {session_id!r} has nothing that this config reacts to (update_triggers)")
    return max(found, key=lambda crumb: crumb.created)


async def _time_of(
    store: Store, owner: UUID, session_id: str, config: ContextConfig, trigger: Breadcrumb
) -> int:
    """When the context for a trigger was made; where there is none, when the trigger was posted."""
    id = context_id(lane_for(owner, "session", session_id, store.lanes), config, trigger)
    try:
        async for version in store.versions(owner, id):
            made = version.context.get("as_of")
            if (
                version.context.get("trigger_id") == str(trigger.id)
                and isinstance(made, int)
                and made <= times.LATEST
            ):
                return max(trigger.created, made)
    except NotFound:
        pass
    return trigger.created


def _explained(config: ContextConfig, trigger: Breadcrumb, made: Assembled, as_of: int) -> Explanation:
    return Explanation(
        consumer_id=config.consumer_id,
        session_id=trigger.session_id,
        trigger_id=str(trigger.id),
        trigger_version=trigger.version,
        as_of=times.to_text(as_of),
        config=config.digest,
        tokens=made.tokens,
        budget=made.budget,
        counted_by=made.method,
        sources=made.sources,
        items=[
            ExplainedItem(
                source=item.source,
                number=item.number,
                place=item.place,
                rank=item.rank,
                tokens=item.tokens,
                id=str(item.crumb.id),
                version=item.crumb.version,
                session_id=item.crumb.session_id if item.place == "elsewhere" else None,
                excerpt=_excerpt(item.content),
                matched=item.matched,
                is_trigger=item.crumb.id == trigger.id,
                **_about(item.crumb),
            )
            for item in made.items
        ],
        left_out=[
            ExplainedLeftOut(
                source=out.source,
                number=out.number,
                reason=out.reason,
                tokens=out.tokens,
                id=str(out.crumb.id),
                version=out.crumb.version,
                **_about(out.crumb),
            )
            for out in made.left_out
        ],
        notes=made.notes,
    )


# Two of them


@dataclass(frozen=True, slots=True)
class Difference:
    """What another config, or another turn, has changed."""

    tokens: tuple[int, int]
    budget: tuple[int, int]
    config: tuple[str, str]
    came: list[ExplainedItem]
    went: list[tuple[ExplainedItem, str | None]]
    """With the reason, where the new one gives one."""
    moved: list[tuple[ExplainedItem, int, int]]
    """In both, but at another place in the order, another part or from another source: from and to, from 1."""
    changed: list[tuple[ExplainedItem, ExplainedItem]]
    """In both, in another version or with other tokens."""
    stayed: int

    @property
    def is_empty(self) -> bool:
        return not (self.came or self.went or self.moved or self.changed)

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": {
                "old": self.tokens[0],
                "new": self.tokens[1],
                "change": self.tokens[1] - self.tokens[0],
            },
            "budget": {"old": self.budget[0], "new": self.budget[1]},
            "config": {"old": self.config[0], "new": self.config[1]},
            "in": [item.as_dict() for item in self.came],
            "out": [
                item.as_dict() | ({} if reason is None else {"reason": reason}) for item, reason in self.went
            ],
            "moved": [item.as_dict() | {"from": old, "to": new} for item, old, new in self.moved],
            "changed": [
                new.as_dict() | {"was": {"version": old.version, "tokens": old.tokens}}
                for old, new in self.changed
            ],
            "stayed": self.stayed,
        }


def diff(old: Explanation, new: Explanation) -> Difference:
    """What is in the new one and was not in the old, and the other way round."""
    before = {item.id: item for item in old.items if item.id is not None}
    after = {item.id: item for item in new.items if item.id is not None}
    was_at = {id: place for place, id in enumerate(before, 1)}
    is_at = {id: place for place, id in enumerate(after, 1)}
    common = [id for id in after if id in before]
    in_order = _longest_rise([was_at[id] for id in common])
    moved = [
        (after[id], was_at[id], is_at[id])
        for id in common
        if was_at[id] not in in_order
        or (before[id].place, before[id].source) != (after[id].place, after[id].source)
    ]
    reasons = {out.id: out.reason for out in new.left_out if out.reason != "duplicate"}
    changed = [
        (before[id], after[id])
        for id in common
        if (before[id].version, before[id].tokens) != (after[id].version, after[id].tokens)
    ]
    touched = {item.id for item, _, _ in moved} | {item.id for _, item in changed}
    return Difference(
        tokens=(old.tokens, new.tokens),
        budget=(old.budget, new.budget),
        config=(old.config, new.config),
        came=[item for id, item in after.items() if id not in before],
        went=[(item, reasons.get(id)) for id, item in before.items() if id not in after],
        moved=moved,
        changed=changed,
        stayed=sum(id not in touched for id in common),
    )


def _longest_rise(numbers: Sequence[int]) -> set[int]:
    """The longest rising subsequence: those that kept their order."""
    ends: list[int] = []
    chains: list[tuple[int, ...]] = []
    for number in numbers:
        at = bisect_left(ends, number)
        chain = (*(chains[at - 1] if at else ()), number)
        ends[at:] = [number] if at == len(ends) else [number, *ends[at + 1 :]]
        chains[at:] = [chain] if at == len(chains) else [chain, *chains[at + 1 :]]
    return set(chains[-1]) if chains else set()


def part_sizes(items: Iterable[ExplainedItem]) -> dict[str, int]:
    """Tokens by part of the prompt, in its order."""
    sizes: dict[str, int] = {}
    for item in items:
        name = "conversation" if item.place == "conversation" else f"{item.source} ({item.place})"
        sizes[name] = sizes.get(name, 0) + item.tokens
    return sizes
