"""Check and repair of the indexes of breadcrumbs."""

from __future__ import annotations

from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import home_lane
from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.indexes import indexes_of
from breadcrumbs.runtime.store.keys import BODY, INDEXES, UPDATED
from breadcrumbs.runtime.store.scan import FoundKey, scan
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.tag_index import unindexed_member

# Without `fix`, a check reads at most this many keys, breadcrumbs, indexes, and entries of each index.
SAMPLE_KEYS = 20_000
SAMPLE_BODIES = 500
SAMPLE_INDEXES = 200
SAMPLE_ENTRIES = 20
_FORGET = Script("forget")


async def check_indexes(store: Store, *, fix: bool = False) -> Finding:
    """Check that indexes and breadcrumbs agree.

    Check a sample, or with `fix` check and repair everything.
    """
    survey = _IndexSurvey(store, fix=fix)
    await survey.run()
    checked = f"{survey.bodies:,} breadcrumbs and {survey.entries:,} index entries"
    details = {
        "breadcrumbs": survey.bodies,
        "entries": survey.entries,
        "not_indexed": survey.not_indexed,
        "stray": survey.stray,
        "mended": survey.repaired,
    }
    faults = survey.not_indexed + survey.stray
    if not faults:
        return Finding(
            "indexes", "ok", f"{checked}{'' if fix else ' (sample)'} are consistent", details=details
        )
    missing, stray = f"{survey.not_indexed:,} breadcrumbs", f"{survey.stray:,} index entries"
    if fix:
        return Finding(
            "indexes",
            "ok",
            f"repaired: {missing} were missing from an index, {stray} were wrong",
            details=details,
        )
    return Finding(
        "indexes",
        "error",
        f"{missing} are missing from an index, {stray} are wrong (checked {checked})",
        "run crumb doctor --fix to check and repair all of them",
        details,
    )


class _IndexSurvey:
    """Compares breadcrumbs and index entries, counts the differences, and with `fix` repairs them."""

    def __init__(self, store: Store, *, fix: bool) -> None:
        self._store = store
        self._fix = fix
        self.bodies = self.entries = self.not_indexed = self.stray = self.repaired = 0

    async def run(self) -> None:
        indexes = 0
        async for found in scan(self._store, max_keys=None if self._fix else SAMPLE_KEYS):
            if found.kind == BODY and (self._fix or self.bodies < SAMPLE_BODIES):
                await self._check_body(found)
            elif found.kind in INDEXES or found.kind == UPDATED:
                indexes += 1
                if self._fix or indexes <= SAMPLE_INDEXES:
                    await self._check_index(found)

    async def _check_body(self, found: FoundKey) -> None:
        store, lane = self._store, found.lane
        owner, id = UUID(bytes=found.name[:16]), UUID(bytes=found.name[16:])
        body = await store.connection.call(lane, b"GET", found.key)
        if body is None:
            return
        self.bodies += 1
        crumb = record.decode(owner, id, body)
        if await self._is_indexed(lane, crumb):
            return
        # The breadcrumb can have been written between the two reads. Report it only if it has not changed.
        if await store.connection.call(lane, b"GET", found.key) != body:
            return
        self.not_indexed += 1
        if self._fix:
            await self._repair(lane, crumb)

    async def _is_indexed(self, lane: int, crumb: Breadcrumb) -> bool:
        """Return whether all indexes, the expiries, the schemas and the signpost contain a breadcrumb."""
        keys, owner, member = self._store.keys, crumb.owner_id, crumb.id.bytes
        missing = await self._unindexed(lane, crumb)
        scores = [(index, crumb.created) for index in indexes_of(keys, lane, crumb) if index not in missing]
        if _was_updated(crumb):
            scores.append((keys.updated(lane, owner), crumb.updated))
        commands: list[tuple[int, tuple[bytes | str | int | float, ...]]] = [
            (lane, (b"ZSCORE", index, member)) for index, _ in scores
        ]
        expected: list[int | None] = [score for _, score in scores]
        if crumb.expires and crumb.max_reads >= 0:
            commands.append((lane, (b"ZSCORE", keys.expiries(lane), owner.bytes + member)))
            expected.append(crumb.expires)
        commands.append((lane, (b"SISMEMBER", keys.schemas(lane, owner), crumb.schema_name or "")))
        expected.append(1)
        home = home_lane(crumb.id, self._store.lanes)
        if home != lane:
            commands.append((home, (b"GET", keys.signpost(home, owner, member))))
            expected.append(lane)
        replies = await self._store.connection.call_all(commands)
        return [None if reply is None else int(float(reply)) for reply in replies] == expected

    async def _unindexed(self, lane: int, crumb: Breadcrumb) -> set[bytes]:
        """Return the tag indexes that need not contain a breadcrumb: see tag_index.py."""
        keys, owner, schema = self._store.keys, crumb.owner_id, crumb.schema_name or ""
        recorded = await self._store.connection.call_all(
            [
                (lane, (b"ZSCORE", keys.unindexed_tags(lane, owner), unindexed_member(schema, tag)))
                for tag in crumb.tags
            ]
        )
        return {
            keys.by_tag(lane, owner, tag)
            for tag, score in zip(crumb.tags, recorded, strict=True)
            if score is not None
        }

    async def _repair(self, lane: int, crumb: Breadcrumb) -> None:
        store, owner = self._store, crumb.owner_id
        self.repaired += await store.repair_indexes(lane, crumb)
        home = home_lane(crumb.id, store.lanes)
        if home != lane:
            await store.connection.call(home, b"SET", store.keys.signpost(home, owner, crumb.id.bytes), lane)

    async def _check_index(self, found: FoundKey) -> None:
        call, lane = self._store.connection.call, found.lane
        if not self._fix:
            members = await call(lane, b"ZRANDMEMBER", found.key, SAMPLE_ENTRIES)
            await self._check_entries(found, members)
            return
        cursor = b"0"
        while True:
            cursor, flat = await call(lane, b"ZSCAN", found.key, cursor, b"COUNT", 500)
            await self._check_entries(found, flat[::2])
            if cursor == b"0":
                return

    async def _check_entries(self, found: FoundKey, members: list[bytes]) -> None:
        store, lane = self._store, found.lane
        owner = UUID(bytes=found.name[:16])
        bodies = await store.connection.call_all(
            [(lane, (b"GET", store.keys.body(lane, owner, member))) for member in members]
        )
        for member, body in zip(members, bodies, strict=True):
            self.entries += 1
            crumb = None if body is None else record.decode(owner, UUID(bytes=member), body)
            if crumb is not None and self._belongs(found, crumb):
                continue
            version = "" if crumb is None else str(crumb.version)
            if not await self._is_stray(found, owner, member, version):
                continue
            self.stray += 1
            if self._fix:
                self.repaired += int(
                    await store.connection.run(
                        lane, _FORGET, [found.key, store.keys.body(lane, owner, member)], [member, version]
                    )
                )

    def _belongs(self, found: FoundKey, crumb: Breadcrumb) -> bool:
        if found.kind == UPDATED:
            return _was_updated(crumb)
        return found.key in indexes_of(self._store.keys, found.lane, crumb)

    async def _is_stray(self, found: FoundKey, owner: UUID, member: bytes, version: str) -> bool:
        """Read an entry again and return whether it is still wrong.

        The breadcrumb can have been written since the first read.
        """
        body, score = await self._store.connection.call_all(
            [
                (found.lane, (b"GET", self._store.keys.body(found.lane, owner, member))),
                (found.lane, (b"ZSCORE", found.key, member)),
            ]
        )
        now = "" if body is None else str(record.decode(owner, UUID(bytes=member), body).version)
        return score is not None and now == version


def _was_updated(crumb: Breadcrumb) -> bool:
    """Return whether a breadcrumb belongs in the index of updates.

    An imported first version belongs there if its two times differ.
    """
    return crumb.version > 1 or crumb.created != crumb.updated
