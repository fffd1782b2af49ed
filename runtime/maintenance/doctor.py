"""Check-ups: each looks at one thing and says whether it is well, and if not, how to mend it.

Most look at an open store. `--fix` mends what can be mended without a decision: index entries and sessions that
do not fit their breadcrumbs, and expired breadcrumbs that nobody has removed. Repairs are scripts that change
nothing if the breadcrumb was written meanwhile, so they are safe on a store in use.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.backend.embedded import server_binary
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.ids import home_lane
from breadcrumbs.runtime.errors import StartupError, StoreError
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.expiry import purge_expired
from breadcrumbs.runtime.store.indexes import indexes_of
from breadcrumbs.runtime.store.keys import BODY, IN_SESSION, INDEXES, SESSION, SESSIONS, UPDATED
from breadcrumbs.runtime.store.opening import FORMAT
from breadcrumbs.runtime.store.scan import FoundKey, node_lanes, owners, scan
from breadcrumbs.runtime.store.store import Store

Status = Literal["ok", "wrong", "skipped"]

OLDEST_PYTHON = (3, 11)
OLDEST_SERVER = (7, 0)
LOW_SPACE = 256 << 20
LARGEST_SKEW = 1_000_000
SAMPLE_KEYS = 20_000
SAMPLE_BODIES = 500
SAMPLE_INDEXES = 200
SAMPLE_ENTRIES = 20
SAMPLE_SESSIONS = 500
OVERDUE = 10 * 60 * 1_000_000

_REPAIR, _FORGET, _SESSION = Script("repair"), Script("forget"), Script("session")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check-up found."""

    check: str
    status: Status
    message: str
    advice: str = ""
    """How to mend it; empty where there is nothing to mend."""
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value or name == "message"}


# This machine


def check_python() -> Finding:
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", "wrong", f"Python {version} is too old", "use Python 3.11 or newer")
    return Finding("python", "ok", f"Python {version}")


def check_binary() -> Finding:
    try:
        binary = server_binary()
    except StartupError as error:
        message, _, advice = str(error).partition(". ")
        return Finding("embedded server", "wrong", message, advice)
    if not os.access(binary, os.X_OK):
        return Finding("embedded server", "wrong", f"{binary} may not be executed", f"chmod +x {binary}")
    return Finding("embedded server", "ok", str(binary))


def check_data_directory(directory: Path, *, holder: int | None) -> Finding:
    """`holder`: the process that runs a server on it now."""
    where = "data directory"
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        return Finding(where, "wrong", f"{existing} is not a directory", "choose another one with --data")
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(
            where,
            "wrong",
            f"{existing} cannot be written to",
            f"give yourself the right to (chmod u+rwx {existing}), or choose another one with --data",
        )
    free = shutil.disk_usage(existing).free
    details = {"path": str(directory), "free_bytes": free}
    if free < LOW_SPACE:
        return Finding(
            where,
            "wrong",
            f"only {free >> 20} MB are free where {directory} is",
            "free some space: a server that cannot write its append-only file refuses writes",
            details,
        )
    use = f"in use by the server with pid {holder}" if holder else "not in use"
    if not directory.exists():
        use = "not there yet: crumb up makes it"
    return Finding(where, "ok", f"{directory} ({use}, {free >> 30} GB free)", details=details)


# The server


async def check_server(store: Store) -> list[Finding]:
    """Version, persistence, memory and clock of every node."""
    findings = []
    lanes = await node_lanes(store)
    for lane in lanes:
        name = "server" if len(lanes) == 1 else f"server of lane {lane}"
        try:
            info = _parse_info(await store.connection.call(lane, b"INFO"))
        except StoreError as error:
            findings.append(Finding(name, "skipped", f"it does not tell about itself: {error}"))
            continue
        findings += [
            _version(name, info),
            _persistence(name, info),
            _memory(name, info),
            await _clock(store, lane, name),
        ]
    return findings


def _parse_info(raw: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in raw.decode(errors="replace").splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}


def _version(name: str, info: dict[str, str]) -> Finding:
    valkey = info.get("valkey_version")
    version = valkey or info.get("redis_version", "0")
    shown = f"{'Valkey' if valkey else 'Redis'} {version}"
    # Valkey counts on from Redis 7.2.
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if number < OLDEST_SERVER:
        return Finding(name, "wrong", f"{shown} is too old", "use Redis 7 or newer, or Valkey 8 or newer")
    return Finding(
        name,
        "ok",
        shown,
        details={"version": version, "uptime_seconds": int(info.get("uptime_in_seconds", 0))},
    )


def _persistence(name: str, info: dict[str, str]) -> Finding:
    check = f"{name}: persistence"
    if info.get("aof_enabled") != "1":
        return Finding(
            check,
            "wrong",
            "the append-only file is off: a restart loses what was written since the last snapshot",
            "CONFIG SET appendonly yes, and appendonly yes in its configuration file",
        )
    failed = [
        what
        for what in ("aof_last_write_status", "aof_last_bgrewrite_status")
        if info.get(what, "ok") != "ok"
    ]
    if failed:
        return Finding(
            check,
            "wrong",
            f"the append-only file cannot be written ({', '.join(failed)})",
            "look into the server's log; often the disk is full",
        )
    return Finding(check, "ok", "the append-only file is on")


def _memory(name: str, info: dict[str, str]) -> Finding:
    check = f"{name}: memory"
    policy = info.get("maxmemory_policy", "noeviction")
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    details = {"used_bytes": used, "limit_bytes": limit, "policy": policy}
    if policy != "noeviction":
        return Finding(
            check,
            "wrong",
            f"maxmemory-policy is {policy}: a full server would throw breadcrumbs away",
            "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file",
            details,
        )
    if limit and used > 0.9 * limit:
        return Finding(
            check,
            "wrong",
            f"{used >> 20} of {limit >> 20} MB are used: soon it refuses writes",
            "raise maxmemory, or delete old breadcrumbs",
            details,
        )
    return Finding(
        check,
        "ok",
        f"{used >> 20} MB used, {f'{limit >> 20} MB allowed' if limit else 'no limit'}",
        details=details,
    )


async def _clock(store: Store, lane: int, name: str) -> Finding:
    before = time.time_ns() // 1000
    seconds, microseconds = await store.connection.call(lane, b"TIME")
    after = time.time_ns() // 1000
    skew = int(seconds) * 1_000_000 + int(microseconds) - (before + after) // 2
    shown = f"{abs(skew) / 1e6:.3f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    if abs(skew) > LARGEST_SKEW:
        return Finding(
            f"{name}: clock",
            "wrong",
            f"its clock is {shown}",
            "let both keep time by NTP; the server's clock decides what has expired",
            {"skew_seconds": skew / 1e6},
        )
    return Finding(f"{name}: clock", "ok", shown, details={"skew_seconds": skew / 1e6})


# The store


async def check_layout(store: Store, *, wanted_lanes: int | None = None) -> Finding:
    flat = await store.connection.call(0, b"HGETALL", store.keys.meta)
    meta = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
    stored = meta.get("format", b"").decode()
    if stored != FORMAT:
        return Finding(
            "layout",
            "wrong",
            f"the store has format {stored or 'none'}, this version writes {FORMAT}",
            "use the version of Breadcrumbs that wrote it to export, and this one to import",
        )
    if wanted_lanes is not None and wanted_lanes != store.lanes:
        return Finding(
            "layout",
            "wrong",
            f"the store has {store.lanes} lanes, the settings say {wanted_lanes}",
            "leave the setting out, or export, start with an empty store and import",
        )
    return Finding(
        "layout",
        "ok",
        f"format {stored}, {store.lanes} lanes",
        details={"format": stored, "lanes": store.lanes},
    )


async def check_scripts(store: Store) -> Finding:
    folder = files("breadcrumbs.runtime").joinpath("lua")
    scripts = [Script(entry.name[:-4]) for entry in folder.iterdir() if entry.name.endswith(".lua")]
    refused = []
    for lane in await node_lanes(store):
        for script in scripts:
            try:
                await store.connection.call(lane, b"SCRIPT", b"LOAD", script.source)
            except StoreError as error:
                refused.append(f"{script.name}: {error}")
    if refused:
        return Finding(
            "scripts",
            "wrong",
            f"the server refuses {len(refused)} of our scripts: {refused[0]}",
            "allow this user SCRIPT and EVAL (ACL SETUSER … +@scripting), on Redis 7+ or Valkey 8+",
        )
    return Finding("scripts", "ok", f"all {len(scripts)} load")


async def check_events(store: Store, *, window: int) -> list[Finding]:
    """Streams, and who has not kept up with them. `window` in microseconds."""
    call_all, keys, lanes = store.connection.call_all, store.keys, range(store.lanes)
    lengths = await call_all([(lane, (b"XLEN", keys.events(lane))) for lane in lanes])
    marks = [
        int(mark or 0) for mark in await call_all([(lane, (b"GET", keys.trimmed(lane))) for lane in lanes])
    ]
    oldest = await call_all(
        [(lane, (b"XRANGE", keys.events(lane), b"-", b"+", b"COUNT", 1)) for lane in lanes]
    )
    ages = [store.now() - _stream_time(entry[0][0]) for entry in oldest if entry]
    total, age = sum(lengths), max(ages, default=0)
    details = {
        "events": total,
        "longest_lane": max(lengths),
        "oldest_seconds": age // 1_000_000,
        "trimmed_below": max(marks),
    }
    shown = f"{total:,} kept, the oldest from {_span(age)} ago" if total else "none kept"
    behind = await _behind(store, store.now() - window, [bool(length) for length in lengths])
    if behind:
        worst = max(behind, key=lambda one: one.lag)
        return [
            Finding(
                "events",
                "wrong",
                f"{worst.name} has not taken events of lane {worst.lane} that are {_span(worst.lag)} old; "
                f"the window is {_span(window)}. Nothing is lost, but the streams cannot be trimmed",
                "start its worker again; if it is gone for good, remove it: " + worst.removal,
                details | {"behind": sorted({one.name for one in behind})},
            )
        ]
    # Hygiene trims every now and then: twice the window is more than late.
    if age > 2 * window:
        return [
            Finding(
                "events",
                "wrong",
                f"{shown}, but the window is {_span(window)}",
                "no process trims them: is crumb up or crumb serve running?",
                details,
            )
        ]
    return [Finding("events", "ok", shown, details=details)]


@dataclass(frozen=True, slots=True)
class _Laggard:
    name: str
    lane: int
    lag: int
    removal: str


async def _behind(store: Store, floor: int, has_stream: Sequence[bool]) -> list[_Laggard]:
    """Consumer groups and kinds of workers that still need an event from before `floor`."""
    call, keys, now = store.connection.call, store.keys, store.now()
    found = []
    kinds = [kind.decode() for kind in await call(0, b"SMEMBERS", keys.worker_kinds())]
    for lane in (lane for lane in range(store.lanes) if has_stream[lane]):
        stream = keys.events(lane)
        for kind in kinds:
            low = int(await call(lane, b"GET", keys.low(lane, kind)) or 0)
            if (needed := await _first_after(store, lane, b"%d-0" % low)) is not None and needed < floor:
                removal = f"SREM {keys.worker_kinds().decode()} {kind}"
                found.append(_Laggard(f"worker kind {kind}", lane, now - needed, removal))
        for flat in await call(lane, b"XINFO", b"GROUPS", stream):
            group = dict(zip(flat[::2], flat[1::2], strict=True))
            _, lowest, _, _ = await call(lane, b"XPENDING", stream, group[b"name"])
            first = (
                _stream_time(lowest)
                if lowest
                else await _first_after(store, lane, group[b"last-delivered-id"])
            )
            if first is not None and first < floor:
                name = group[b"name"].decode(errors="replace")
                removal = f"XGROUP DESTROY {stream.decode()} {name}"
                found.append(_Laggard(f"consumer group {name}", lane, now - first, removal))
    return found


async def _first_after(store: Store, lane: int, id: bytes) -> int | None:
    entries = await store.connection.call(
        lane, b"XRANGE", store.keys.events(lane), b"(" + id, b"+", b"COUNT", 1
    )
    return _stream_time(entries[0][0]) if entries else None


def _stream_time(id: bytes) -> int:
    return int(id.partition(b"-")[0])


async def check_expired(store: Store, *, served: bool, fix: bool = False) -> Finding:
    """What has expired and is still there. `served`: a process that should be removing it is running."""
    keys, lanes = store.keys, range(store.lanes)
    now = store.now()
    planned = sum(
        await store.connection.call_all([(lane, (b"ZCARD", keys.expiries(lane))) for lane in lanes])
    )
    due = b"%d" % now
    expired = sum(
        await store.connection.call_all(
            [(lane, (b"ZCOUNT", keys.expiries(lane), b"0", due)) for lane in lanes]
        )
    )
    late = b"%d" % (now - OVERDUE)
    overdue = sum(
        await store.connection.call_all(
            [(lane, (b"ZCOUNT", keys.expiries(lane), b"0", late)) for lane in lanes]
        )
    )
    details = {"planned": planned, "expired": expired, "overdue": overdue}
    if fix and expired:
        removed = 0
        for lane in lanes:
            while purged := await purge_expired(store, lane):
                removed += purged
        return Finding(
            "expiry", "ok", f"removed {removed:,} that had expired", details=details | {"removed": removed}
        )
    shown = f"{planned:,} will expire, {expired:,} have expired and wait to be removed"
    if overdue and served:
        return Finding(
            "expiry",
            "wrong",
            f"{overdue:,} expired more than 10 minutes ago and are still in the indexes",
            "look for errors of the hygiene task in the log; crumb doctor --fix removes them now",
            details,
        )
    return Finding("expiry", "ok", shown, details=details)


async def check_quotas(store: Store, *, fix: bool = False) -> list[Finding]:
    """How much of their quotas owners have used, and whether that is counted right. With `fix`, counts again."""
    if store.quotas is None:
        return []
    findings = []
    for owner in await owners(store):
        quota = store.quotas.quota(owner)
        if quota is None:
            continue
        counts = [await store.quotas.count(owner, lane, keep=fix) for lane in range(store.lanes)]
        wrong = [count.lane for count in counts if count.kept not in (None, count.real)]
        usage = await store.quotas.usage(owner)
        shown = [
            f"{used:,} of {limit:,} {name}"
            for name, used in usage._asdict().items()
            if (limit := getattr(quota, name)) is not None
        ]
        check, details = f"quotas of {owner}", {"used": usage._asdict(), "quota": quota.model_dump()}
        if wrong and not fix:
            findings.append(
                Finding(
                    check,
                    "wrong",
                    f"{', '.join(shown)}; counted wrong in {len(wrong)} lanes",
                    "give every process on this store the same quotas; crumb doctor --fix counts again",
                    details,
                )
            )
        else:
            findings.append(Finding(check, "ok", ", ".join(shown), details=details))
    return findings


async def check_indexes(store: Store, *, fix: bool = False) -> Finding:
    """Do the indexes and the breadcrumbs say the same? A sample; with `fix`, all of them."""
    survey = _IndexSurvey(store, fix=fix)
    await survey.run()
    looked_at = f"{survey.bodies:,} breadcrumbs and {survey.entries:,} index entries"
    details = {
        "breadcrumbs": survey.bodies,
        "entries": survey.entries,
        "not_indexed": survey.not_indexed,
        "stray": survey.stray,
        "mended": survey.mended,
    }
    faults = survey.not_indexed + survey.stray
    if not faults:
        return Finding(
            "indexes", "ok", f"{looked_at}{'' if fix else ' (a sample)'}: all fit", details=details
        )
    missing, stray = f"{survey.not_indexed:,} breadcrumbs", f"{survey.stray:,} index entries"
    if fix:
        return Finding(
            "indexes",
            "ok",
            f"mended: {missing} were missing from an index, {stray} led nowhere or to the wrong one",
            details=details,
        )
    return Finding(
        "indexes",
        "wrong",
        f"{missing} are missing from an index, {stray} lead nowhere or to the wrong one "
        f"({looked_at} looked at)",
        "crumb doctor --fix goes through all and mends them",
        details,
    )


async def check_sessions(store: Store, *, fix: bool = False) -> Finding:
    """Does what is kept of each session agree with its breadcrumbs? A sample; with `fix`, all of them."""
    places: set[tuple[int, UUID, str]] = set()
    async for found in scan(store, most=None if fix else SAMPLE_KEYS):
        if not fix and len(places) >= SAMPLE_SESSIONS:
            break
        if found.kind == SESSION:
            places.add((found.lane, UUID(bytes=found.name[:16]), found.name[16:].decode()))
        elif found.kind == IN_SESSION:
            owner, session = store.keys.session_in(found.name)
            if session:
                places.add((found.lane, owner, session))
        elif found.kind == SESSIONS:
            names = await store.connection.call(found.lane, b"ZRANGE", found.key, 0, -1)
            owner = UUID(bytes=found.name)
            places |= {(found.lane, owner, name.decode()) for name in names}
    wrong = 0
    for lane, owner, session in sorted(places, key=str):
        wrong += bool(await _compare_session(store, lane, owner, session, fix=fix))
    looked_at = f"{len(places):,} sessions"
    details = {"sessions": len(places), "wrong": wrong}
    if not wrong:
        return Finding(
            "sessions", "ok", f"{looked_at}{'' if fix else ' (a sample)'}: all fit", details=details
        )
    if fix:
        return Finding(
            "sessions", "ok", f"mended: {wrong:,} did not agree with their breadcrumbs", details=details
        )
    return Finding(
        "sessions",
        "wrong",
        f"{wrong:,} do not agree with their breadcrumbs ({looked_at} looked at)",
        "crumb doctor --fix goes through all and mends them",
        details,
    )


async def _compare_session(store: Store, lane: int, owner: UUID, session: str, *, fix: bool) -> int:
    names = store.keys
    for _ in range(10):
        schemas = (await store.schemas(owner, [lane]))[lane]
        wrong = int(
            await store.connection.run(
                lane,
                _SESSION,
                [
                    names.session(lane, owner, session),
                    names.sessions(lane, owner),
                    names.state(lane, owner, session),
                    names.schemas(lane, owner),
                    *(names.by_session(lane, owner, session, schema) for schema in schemas),
                ],
                [session, int(fix), *schemas],
            )
        )
        if wrong >= 0:
            return wrong
    return 0  # too much is going on to tell


class _IndexSurvey:
    def __init__(self, store: Store, *, fix: bool) -> None:
        self._store = store
        self._fix = fix
        self.bodies = self.entries = self.not_indexed = self.stray = self.mended = 0

    async def run(self) -> None:
        indexes = 0
        async for found in scan(self._store, most=None if self._fix else SAMPLE_KEYS):
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
        if await self._is_found_everywhere(lane, crumb):
            return
        # It may have been written between the two looks: only one that stays as it was is at fault.
        if await store.connection.call(lane, b"GET", found.key) != body:
            return
        self.not_indexed += 1
        if self._fix:
            await self._repair(lane, crumb)

    async def _is_found_everywhere(self, lane: int, crumb: Breadcrumb) -> bool:
        keys, owner, member = self._store.keys, crumb.owner_id, crumb.id.bytes
        scores = [(index, crumb.created) for index in indexes_of(keys, lane, crumb)]
        if _was_updated(crumb):
            scores.append((keys.updated(lane, owner), crumb.updated))
        asked: list[tuple[int, tuple[bytes | str | int | float, ...]]] = [
            (lane, (b"ZSCORE", index, member)) for index, _ in scores
        ]
        expected: list[int | None] = [score for _, score in scores]
        if crumb.expires and crumb.max_reads >= 0:
            asked.append((lane, (b"ZSCORE", keys.expiries(lane), owner.bytes + member)))
            expected.append(crumb.expires)
        asked.append((lane, (b"SISMEMBER", keys.schemas(lane, owner), crumb.schema_name or "")))
        expected.append(1)
        home = home_lane(crumb.id, self._store.lanes)
        if home != lane:
            asked.append((home, (b"GET", keys.signpost(home, owner, member))))
            expected.append(lane)
        answers = await self._store.connection.call_all(asked)
        return [None if answer is None else int(float(answer)) for answer in answers] == expected

    async def _repair(self, lane: int, crumb: Breadcrumb) -> None:
        store, keys, owner = self._store, self._store.keys, crumb.owner_id
        self.mended += int(
            await store.connection.run(
                lane,
                _REPAIR,
                [
                    keys.body(lane, owner, crumb.id.bytes),
                    keys.expiries(lane),
                    keys.schemas(lane, owner),
                    keys.updated(lane, owner),
                    *indexes_of(keys, lane, crumb),
                ],
                [crumb.id.bytes, owner.bytes, crumb.version, crumb.schema_name or ""],
            )
        )
        home = home_lane(crumb.id, store.lanes)
        if home != lane:
            await store.connection.call(home, b"SET", keys.signpost(home, owner, crumb.id.bytes), lane)

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
                self.mended += int(
                    await store.connection.run(
                        lane, _FORGET, [found.key, store.keys.body(lane, owner, member)], [member, version]
                    )
                )

    def _belongs(self, found: FoundKey, crumb: Breadcrumb) -> bool:
        if found.kind == UPDATED:
            return _was_updated(crumb)
        return found.key in indexes_of(self._store.keys, found.lane, crumb)

    async def _is_stray(self, found: FoundKey, owner: UUID, member: bytes, version: str) -> bool:
        """A second look, because the breadcrumb may have been written between the first two."""
        body, score = await self._store.connection.call_all(
            [
                (found.lane, (b"GET", self._store.keys.body(found.lane, owner, member))),
                (found.lane, (b"ZSCORE", found.key, member)),
            ]
        )
        now = "" if body is None else str(record.decode(owner, UUID(bytes=member), body).version)
        return score is not None and now == version


def _was_updated(crumb: Breadcrumb) -> bool:
    """Whether it has a place among the updates; a first version that was imported may have one, by its times."""
    return crumb.version > 1 or crumb.created != crumb.updated


def _span(microseconds: int) -> str:
    seconds = microseconds // 1_000_000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
