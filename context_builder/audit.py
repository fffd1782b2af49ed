"""A proof, on the store itself, that no session has bled into another.

Every breadcrumb is looked at once, key by key: whether its session tag and its `session_id` agree, and whether
it lies in its session's lane and index. Then every context: whether each item is where its source may look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from breadcrumbs.context_builder.config import CONSUMER
from breadcrumbs.context_builder.references import Kept, NoContext, Recorded, recorded
from breadcrumbs.runtime.breadcrumb.breadcrumb import SESSION, Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import lane_for
from breadcrumbs.runtime.store import record as bodies
from breadcrumbs.runtime.store.keys import BODY
from breadcrumbs.runtime.store.scan import FoundKey, scan
from breadcrumbs.runtime.store.store import Store

_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must not be."""

    what: str
    owner_id: UUID
    breadcrumb_id: UUID
    version: int | None = None
    item_id: UUID | None = None

    def as_dict(self) -> dict[str, Any]:
        document = {
            "what": self.what,
            "owner_id": str(self.owner_id),
            "breadcrumb_id": str(self.breadcrumb_id),
        }
        more = {"version": self.version, "item_id": None if self.item_id is None else str(self.item_id)}
        return document | {name: value for name, value in more.items() if value is not None}


@dataclass(slots=True)
class Report:
    """What was looked at, and what was found."""

    owners: set[UUID] = field(default_factory=set)
    breadcrumbs: int = 0
    contexts: int = 0
    versions: int = 0
    """Of contexts; the older ones only where they were asked for."""
    items: int = 0
    gone: int = 0
    """Items that were deleted or have expired since: whose they were can no longer be seen."""
    unreadable: int = 0
    """Look like contexts, but the context builder did not make them."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.is_clean,
            "owners": len(self.owners),
            "breadcrumbs": self.breadcrumbs,
            "contexts": self.contexts,
            "context_versions": self.versions,
            "items": self.items,
            "items_gone": self.gone,
            "unreadable_contexts": self.unreadable,
            "findings": [finding.as_dict() for finding in self.findings],
        }


async def audit_isolation(
    store: Store,
    owner: UUID | None = None,
    *,
    history: bool = False,
    progress: Callable[[int], None] = lambda looked_at: None,
) -> Report:
    """Look at everything of one owner, or of everybody. `history`: also at the older versions of contexts."""
    report = Report()
    seen: set[int] = set()
    async for keys in _batches(store, owner):
        fresh = [found for found in keys if hash(found.key) not in seen]  # a scan may give a key twice
        seen.update(hash(found.key) for found in fresh)
        await _check_batch(store, fresh, report, history=history)
        progress(report.breadcrumbs)
    report.findings.sort(
        key=lambda finding: (str(finding.owner_id), str(finding.breadcrumb_id), finding.what)
    )
    return report


async def _batches(store: Store, owner: UUID | None) -> AsyncIterator[list[FoundKey]]:
    batch: list[FoundKey] = []
    async for found in scan(store):
        if found.kind == BODY and (owner is None or found.name[:16] == owner.bytes):
            batch.append(found)
            if len(batch) == _AT_ONCE:
                yield batch
                batch = []
    if batch:
        yield batch


async def _check_batch(store: Store, keys: list[FoundKey], report: Report, *, history: bool) -> None:
    raw = await store.connection.call_all([(found.lane, (b"GET", found.key)) for found in keys])
    now = store.now()
    crumbs: list[tuple[FoundKey, Breadcrumb]] = []
    for found, body in zip(keys, raw, strict=True):
        if body is None:
            continue
        crumb = bodies.decode(UUID(bytes=found.name[:16]), UUID(bytes=found.name[16:]), body)
        if not bodies.is_gone(crumb, now):
            crumbs.append((found, crumb))
    report.breadcrumbs += len(crumbs)
    report.owners.update(crumb.owner_id for _, crumb in crumbs)
    for found, crumb in crumbs:
        report.findings += _session_findings(store, found, crumb)
    report.findings += await _index_findings(store, crumbs)
    for _, crumb in crumbs:
        if _looks_like_a_context(crumb):
            await _check_context(store, crumb, report, history=history)


# Each breadcrumb by itself


def _sessions(crumb: Breadcrumb) -> list[str]:
    """What the tags say. Two are against the rule, which is what we are here to see."""
    return sorted({tag[len(SESSION) :] for tag in crumb.tags if tag.startswith(SESSION)})


def _session_findings(store: Store, found: FoundKey, crumb: Breadcrumb) -> Iterable[Finding]:
    tagged, stated = _sessions(crumb), crumb.context.get("session_id")
    if tagged != ([] if stated is None else [stated]):
        said = f"the tags say {', '.join(tagged) or 'none'}, context.session_id says {stated!r}"
        yield Finding(f"tag and session_id do not agree: {said}", crumb.owner_id, crumb.id)
    elif tagged and (lane := lane_for(crumb.owner_id, "session", tagged[0], store.lanes)) != found.lane:
        what = f"it is of session {tagged[0]!r}, whose lane is {lane}, but lies in lane {found.lane}"
        yield Finding(what, crumb.owner_id, crumb.id)


async def _index_findings(store: Store, crumbs: list[tuple[FoundKey, Breadcrumb]]) -> list[Finding]:
    """Whether each is in its session's index: that index is all that a context with scope `current` is made from."""
    missing = await _not_indexed(store, [(found.lane, crumb) for found, crumb in crumbs])
    # It may have been changed or deleted between the two looks: only one that stays missing is at fault.
    again = [(lane, await _newest(store, crumb.owner_id, crumb.id)) for lane, crumb in missing]
    still = await _not_indexed(store, [(lane, crumb) for lane, crumb in again if crumb is not None])
    return [Finding("it is not in the index of its session", crumb.owner_id, crumb.id) for _, crumb in still]


async def _not_indexed(store: Store, crumbs: list[tuple[int, Breadcrumb]]) -> list[tuple[int, Breadcrumb]]:
    indexes = [
        store.keys.by_session(lane, crumb.owner_id, "".join(_sessions(crumb)[:1]), crumb.schema_name or "")
        for lane, crumb in crumbs
    ]
    scores = await store.connection.call_all(
        [
            (lane, (b"ZSCORE", index, crumb.id.bytes))
            for (lane, crumb), index in zip(crumbs, indexes, strict=True)
        ]
    )
    return [entry for entry, score in zip(crumbs, scores, strict=True) if score is None]


# Contexts


def _looks_like_a_context(crumb: Breadcrumb) -> bool:
    return crumb.schema_name == "agent.context.v1" or (
        "explain" in crumb.context and any(tag.startswith(CONSUMER) for tag in crumb.tags)
    )


async def _check_context(store: Store, newest: Breadcrumb, report: Report, *, history: bool) -> None:
    report.contexts += 1
    versions = await store.history(newest.owner_id, newest.id) if history and newest.version > 1 else [newest]
    records: list[tuple[Breadcrumb, Recorded]] = []
    for context in versions:
        try:
            records.append((context, recorded(context)))
        except NoContext:
            report.unreadable += 1
    report.versions += len(records)
    ids = list({item.id for _, record in records for item in record.items})
    found = await asyncio.gather(*(_newest(store, newest.owner_id, id) for id in ids))
    crumbs = dict(zip(ids, found, strict=True))
    for context, record in records:
        for item in record.items:
            report.items += 1
            crumb = crumbs[item.id]
            if crumb is None:
                report.gone += 1
            elif wrong := _misplaced(context, record, item, crumb):
                report.findings.append(Finding(wrong, context.owner_id, context.id, context.version, item.id))
        try:
            report.findings += list(_rendered_findings(context, record))
        except (KeyError, TypeError):
            report.unreadable += 1


async def _newest(store: Store, owner: UUID, id: UUID) -> Breadcrumb | None:
    """A breadcrumb stays in its session, so any version tells; the newest is found with one look."""
    _, body = await store.look_up(owner, id)
    return None if body is None else bodies.decode(owner, id, body)


def _misplaced(context: Breadcrumb, record: Recorded, item: Kept, crumb: Breadcrumb) -> str | None:
    """What is wrong with an item being in a context; None, as it should be."""
    mine, its = " and ".join(_sessions(context)) or None, " and ".join(_sessions(crumb)) or None
    belongs = its == mine and mine is not None
    whose = f"of session {its!r}" if its is not None else "of no session"
    if item.number is None:
        if item.id != record.trigger_id:
            return "an item that no source found, and that is not the trigger"
        return None if its == mine else f"its trigger is {whose}, but the context is of {mine!r}"
    source = record.sources[item.number]
    scope = source.get("scope", "current")  # event_data has none: it is the trigger
    may_be_shared = source.get("shared", False) or item.id == record.trigger_id
    if scope == "current" and not belongs and not (its is None and may_be_shared):
        return f"source {item.source!r} has the scope current, but found something {whose}"
    place = (
        "conversation"
        if belongs or item.id == record.trigger_id
        else "shared"
        if its is None
        else "elsewhere"
    )
    if item.place != place:
        return f"{whose} and shown as {item.place!r}: it must be {place!r}"
    return None


def _rendered_findings(context: Breadcrumb, record: Recorded) -> Iterable[Finding]:
    """What was rendered must be what is accounted for, in the part it is accounted for."""
    places = {str(item.id): item.place for item in record.items}
    for part in context.context.get("parts", ()):
        for shown in part["items"]:
            if places.get(shown["id"]) != part["place"]:
                what = (
                    f"it shows {shown['id']} as {part['place']!r}, which its explanation does not account for"
                )
                yield Finding(what, context.owner_id, context.id, context.version)
