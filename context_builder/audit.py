"""Audits the isolation of sessions in a store.

A breadcrumb is correct if its session tag equals its `session_id`, and if it is stored in the lane and in the index
of its session. A context is correct if the scope of each source allows the items that it found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

from breadcrumbs.context_builder.assembly import ItemPlace
from breadcrumbs.context_builder.config import CONSUMER
from breadcrumbs.context_builder.references import ContextRecord, ItemReference, NotAContext, read_record
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT
from breadcrumbs.runtime.store.breadcrumb_scan import (
    NamedGroup,
    StoredBreadcrumb,
    describe_wrong_lane,
    find_sessions,
    find_unindexed,
    list_groups,
    load_group,
    tagged_sessions,
)
from breadcrumbs.runtime.store.store import Store

_GROUP_SIZE: Final = 2_000
"""Breadcrumbs that are checked as one unit of work."""

_Sessions: TypeAlias = Mapping[UUID, tuple[str, ...] | None]
"""Sessions in the tags of items. None for an item that does not exist."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of the isolation of sessions."""

    what: str
    owner_id: UUID
    breadcrumb_id: UUID
    version: int | None = None
    """Version of a context."""
    item_id: UUID | None = None
    """The wrong item of a context."""

    def as_dict(self) -> dict[str, Any]:
        document = {
            "what": self.what,
            "owner_id": str(self.owner_id),
            "breadcrumb_id": str(self.breadcrumb_id),
        }
        more = {"version": self.version, "item_id": None if self.item_id is None else str(self.item_id)}
        return document | {name: value for name, value in more.items() if value is not None}


@dataclass(slots=True)
class AuditReport:
    """Result of an audit, with the numbers of checked objects and the violations."""

    owners: set[UUID] = field(default_factory=set)
    breadcrumbs: int = 0
    contexts: int = 0
    versions: int = 0
    """Versions of contexts. Older versions are checked only with `history`."""
    items: int = 0
    gone: int = 0
    """Items that were deleted or have expired. They cannot be checked, because their session is unknown."""
    unreadable: int = 0
    """Versions that look like contexts, but were not written by the context builder."""
    findings: list[Violation] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def add(self, other: AuditReport) -> None:
        """Add the report about other breadcrumbs of the same store."""
        self.owners |= other.owners
        self.breadcrumbs += other.breadcrumbs
        self.contexts += other.contexts
        self.versions += other.versions
        self.items += other.items
        self.gone += other.gone
        self.unreadable += other.unreadable
        self.findings = (
            sorted(self.findings + other.findings, key=_order) if other.findings else self.findings
        )

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


def _order(finding: Violation) -> tuple[str, str, str]:
    return str(finding.owner_id), str(finding.breadcrumb_id), finding.what


async def audit_isolation(store: Store, owner: UUID | None = None, *, history: bool = False) -> AuditReport:
    """Check the breadcrumbs of one owner, or of all owners.

    `history` also checks the older versions of contexts.
    """
    report = AuditReport()
    for group in await list_audited(store, owner):
        report.add(await check_group(store, group, history=history))
    return report


async def list_audited(store: Store, owner: UUID | None = None) -> list[NamedGroup]:
    """Return the breadcrumbs to check. Each group is one unit of work."""
    return await list_groups(store, owner, _GROUP_SIZE)


async def check_group(store: Store, group: NamedGroup, *, history: bool) -> AuditReport:
    """Check the breadcrumbs of a group that still exist."""
    report = AuditReport()
    async for batch in load_group(store, group):
        await _check_batch(store, batch, report, history=history)
    report.findings.sort(key=_order)
    return report


async def _check_batch(
    store: Store, batch: list[StoredBreadcrumb], report: AuditReport, *, history: bool
) -> None:
    report.breadcrumbs += len(batch)
    report.owners.update({stored.owner for stored in batch})
    for stored in batch:
        if wrong := _check_session(store, stored):
            report.findings.append(Violation(wrong, stored.owner, stored.id))
    # Sources with the scope `current` read only the index of their session.
    report.findings += [
        Violation("the breadcrumb is not in the index of its session", stored.owner, stored.id)
        for stored in await find_unindexed(store, batch)
    ]
    contexts = [stored.crumb for stored in batch if _may_be_context(stored.document)]
    if contexts:
        await _check_contexts(store, contexts, report, history=history)


def _check_session(store: Store, stored: StoredBreadcrumb) -> str | None:
    """Check the session of one breadcrumb. Return the error, or None."""
    tagged, stated = stored.sessions, stored.document["context"].get("session_id")
    if tagged != (() if stated is None else (stated,)):
        values = f"tag {', '.join(tagged) or 'none'}, context.session_id {stated!r}"
        return f"session tag and session_id differ: {values}"
    return describe_wrong_lane(store, stored, tagged[0]) if tagged else None


# Contexts


def _may_be_context(document: Mapping[str, Any]) -> bool:
    if document.get("schema_name") == AGENT_CONTEXT:
        return True
    return "explain" in document["context"] and any(tag.startswith(CONSUMER) for tag in document["tags"])


async def _check_contexts(
    store: Store, contexts: Sequence[Breadcrumb], report: AuditReport, *, history: bool
) -> None:
    records: dict[UUID, list[tuple[Breadcrumb, ContextRecord]]] = {}
    for newest in contexts:
        report.contexts += 1
        is_old = history and newest.version > 1
        for context in await store.history(newest.owner_id, newest.id) if is_old else [newest]:
            try:
                records.setdefault(newest.owner_id, []).append((context, read_record(context)))
            except NotAContext:
                report.unreadable += 1
    for owner, of_owner in records.items():
        report.versions += len(of_owner)
        # The newest versions of the items are enough, because the session of a breadcrumb cannot change.
        sessions = await find_sessions(
            store, owner, {item.id for _, found in of_owner for item in found.items}
        )
        for context, found in of_owner:
            _check_items(context, found, sessions, report)
            try:
                report.findings += list(_rendered_findings(context, found))
            except (KeyError, TypeError):
                report.unreadable += 1


def _check_items(
    context: Breadcrumb, record: ContextRecord, sessions: _Sessions, report: AuditReport
) -> None:
    for item in record.items:
        report.items += 1
        of_item = sessions[item.id]
        if of_item is None:
            report.gone += 1
        elif wrong := _check_item(context, record, item, of_item):
            report.findings.append(Violation(wrong, context.owner_id, context.id, context.version, item.id))


def _check_item(
    context: Breadcrumb, record: ContextRecord, item: ItemReference, sessions: tuple[str, ...]
) -> str | None:
    """Check that an item of some sessions may be in a context. Return the error, or None."""
    own_session = " and ".join(tagged_sessions(context.document)) or None
    item_session = " and ".join(sessions) or None
    origin = f"session {item_session!r}" if item_session is not None else "no session"
    is_trigger = item.id == record.trigger_id
    if item.number is None:
        if not is_trigger:
            return "no source found this item, and it is not the trigger"
        if item_session == own_session:
            return None
        return f"the trigger belongs to {origin}, but the context belongs to session {own_session!r}"
    source = record.sources[item.number]
    scope = source.get("scope", "current")  # event_data has no scope: it returns the trigger
    is_shared = item_session is None and (source.get("shared", False) or is_trigger)
    is_own = item_session == own_session and own_session is not None
    if scope == "current" and not is_own and not is_shared:
        return f"source {item.source!r} has the scope current, but this item belongs to {origin}"
    place = _expected_place(own_session, item_session, is_trigger=is_trigger)
    if item.place != place:
        return f"this item belongs to {origin}, but its place is {item.place!r} instead of {place!r}"
    return None


def _expected_place(own_session: str | None, item_session: str | None, *, is_trigger: bool) -> ItemPlace:
    if is_trigger or (item_session == own_session and own_session is not None):
        return "conversation"
    return "shared" if item_session is None else "elsewhere"


def _rendered_findings(context: Breadcrumb, record: ContextRecord) -> Iterable[Violation]:
    """Check that each rendered item appears in `explain`, in the same part."""
    places = {str(item.id): item.place for item in record.items}
    for part in context.context.get("parts", ()):
        for shown in part["items"]:
            if places.get(shown["id"]) != part["place"]:
                what = f"the context shows {shown['id']} in place {part['place']!r}, but its explanation does not"
                yield Violation(what, context.owner_id, context.id, context.version)
