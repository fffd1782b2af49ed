"""Check and repair of the stored facts of sessions."""

from __future__ import annotations

from uuid import UUID

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.maintenance.checks.indexes import SAMPLE_KEYS
from breadcrumbs.runtime.store.keys import IN_SESSION, SESSION, SESSIONS, SESSIONS_OF_USER
from breadcrumbs.runtime.store.scan import scan
from breadcrumbs.runtime.store.session_users import count_strays, is_missing, rebuild
from breadcrumbs.runtime.store.store import Store

SAMPLE_SESSIONS = 500
"""Maximum number of sessions that are checked without `fix`."""

_SESSION = Script("session")


async def check_sessions(store: Store, *, fix: bool = False) -> Finding:
    """Check that the stored facts of sessions agree with their breadcrumbs.

    Check a sample, or with `fix` check and repair all sessions.
    """
    sessions: set[tuple[int, UUID, str]] = set()
    strays = 0
    async for found in scan(store, max_keys=None if fix else SAMPLE_KEYS):
        if not fix and len(sessions) >= SAMPLE_SESSIONS:
            break
        if found.kind == SESSION:
            sessions.add((found.lane, UUID(bytes=found.name[:16]), found.name[16:].decode()))
        elif found.kind == IN_SESSION:
            owner, session = store.keys.session_in(found.name)
            if session:
                sessions.add((found.lane, owner, session))
        elif found.kind == SESSIONS:
            names = await store.connection.call(found.lane, b"ZRANGE", found.key, 0, -1)
            owner = UUID(bytes=found.name)
            sessions |= {(found.lane, owner, name.decode()) for name in names}
        elif found.kind == SESSIONS_OF_USER:
            strays += await count_strays(store, found, remove=fix)
    results = [
        await _compare_session(store, lane, owner, session, fix=fix)
        for lane, owner, session in sorted(sessions, key=str)
    ]
    return _finding(results, strays, fix=fix)


def _finding(results: list[int | None], strays: int, *, fix: bool) -> Finding:
    """Return the finding for the numbers of wrong facts of all checked sessions, and for strays in lists of users."""
    wrong, unknown = sum(bool(result) for result in results) + strays, results.count(None)
    checked = f"{len(results) - unknown:,} sessions"
    details = {"sessions": len(results) - unknown, "wrong": wrong}
    if unknown:
        details["not_compared"] = unknown
    if unknown and not wrong:
        return Finding(
            "sessions",
            "unknown",
            f"{checked} are consistent, {unknown:,} changed too fast to be compared",
            "run the check again when fewer schemas are being created",
            details,
        )
    if not wrong:
        return Finding(
            "sessions", "ok", f"{checked}{'' if fix else ' (sample)'} are consistent", details=details
        )
    if fix:
        return Finding(
            "sessions", "ok", f"repaired: {wrong:,} did not match their breadcrumbs", details=details
        )
    return Finding(
        "sessions",
        "error",
        f"{wrong:,} do not match their breadcrumbs (checked {checked})",
        "run crumb doctor --fix to check and repair all of them",
        details,
    )


async def _compare_session(store: Store, lane: int, owner: UUID, session: str, *, fix: bool) -> int | None:
    """Return the number of wrong facts. None: the schemas change too fast to compare."""
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
                    names.users_mark(lane, owner),
                    *(names.by_session(lane, owner, session, schema) for schema in schemas),
                ],
                [session, int(fix), *schemas],
            )
        )
        if wrong >= 0:
            return wrong + await _check_user_index(store, lane, owner, session, fix=fix)
    return None


async def _check_user_index(store: Store, lane: int, owner: UUID, session: str, *, fix: bool) -> int:
    """Return 1 if the index of its user does not have the session."""
    if not await is_missing(store, lane, owner, session):
        return 0
    if fix:
        await rebuild(store, lane, owner)
    return 1
