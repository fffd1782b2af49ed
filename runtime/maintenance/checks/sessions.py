"""Checks that sessions agree with their breadcrumbs, and repairs them."""

from __future__ import annotations

from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.maintenance.checks.indexes import SAMPLE_KEYS
from breadcrumbs.runtime.store.keys import IN_SESSION, SESSION, SESSIONS
from breadcrumbs.runtime.store.scan import scan
from breadcrumbs.runtime.store.store import Store

SAMPLE_SESSIONS = 500

_SESSION = Script("session")


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
