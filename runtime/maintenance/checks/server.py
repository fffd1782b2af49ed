"""Checks of every node of the server: version, role, persistence, eviction, memory and clock.

`judge_server` is the only function that decides whether a server is fit for a store. Everything that reports about
servers uses it, so that all reports agree.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import structlog

from breadcrumbs.runtime.backend.servers import server_info
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.maintenance.checks.finding import Finding, Status
from breadcrumbs.runtime.store.store import Store

_log = structlog.get_logger("breadcrumbs.store")

OLDEST_SERVER: Final = (7, 0)
HIGH_MEMORY: Final = (0.80, 0.95)
"""Used part of the memory limit from which a server gets a warning and an error."""
HIGH_SYSTEM_MEMORY: Final = 0.90
"""Used part of the machine's memory from which a server without a limit gets a warning."""
LARGEST_SKEW: Final = (1_000_000, 60_000_000)
"""Differences of two clocks in microseconds above which there is a warning and an error."""

SERVER_CHECKS: Final = ("server-version", "replica", "persistence", "eviction", "memory")


async def check_server(store: Store) -> list[Finding]:
    """Check version, role, persistence, eviction, memory and clock of every node."""
    findings = []
    lanes = store.connection.node_lanes()
    for lane in lanes:
        subject = "" if len(lanes) == 1 else f"server of lane {lane}"
        try:
            info = await server_info(store.connection, lane)
        except StoreError as error:
            findings += [_not_checked(id, subject, error) for id in SERVER_CHECKS]
        else:
            findings += judge_server(info, await _snapshot_rule(store, lane), subject)
        findings.append(await _clock(store, lane, subject))
    return findings


async def log_server_problems(store: Store) -> None:
    """Log a warning for each problem of a server that can lose or refuse data, for a process that starts."""
    for finding in await check_server(store):
        if finding.id in SERVER_CHECKS and finding.status in ("warning", "error"):
            server = finding.subject or None
            _log.warning(finding.message, check=finding.id, server=server, advice=finding.advice)


def judge_server(info: Mapping[str, str], snapshots: str | None, subject: str = "") -> list[Finding]:
    """Return the findings about a server from its INFO.

    `snapshots` is its setting `save`: empty if it makes no snapshots, None if the setting cannot be read.
    """
    return [
        _version(info, subject),
        _role(info, subject),
        _persistence(info, snapshots, subject),
        _eviction(info, subject),
        _memory(info, subject),
    ]


def judge_skew(skew: int, uncertainty: int = 0) -> Status:
    """Return the status of a difference of two clocks. `uncertainty` is the possible error of the measurement."""
    certain = max(0, abs(skew) - uncertainty)
    warning, error = LARGEST_SKEW
    return "error" if certain > error else "warning" if certain > warning else "ok"


def _not_checked(id: str, subject: str, error: StoreError) -> Finding:
    return Finding(
        id,
        "unknown",
        f"the server does not allow INFO: {error}",
        f"allow this user INFO (ACL SETUSER … +info), or skip the check: --skip {id}",
        subject=subject,
    )


async def _snapshot_rule(store: Store, lane: int) -> str | None:
    """Return the setting `save` of a server. None: the server does not allow the command."""
    try:
        reply = await store.connection.call(lane, b"CONFIG", b"GET", b"save")
    except StoreError:
        return None
    return reply[1].decode(errors="replace") if len(reply) == 2 else None


def _version(info: Mapping[str, str], subject: str) -> Finding:
    valkey = info.get("valkey_version")
    version = valkey or info.get("redis_version", "0")
    shown = f"{'Valkey' if valkey else 'Redis'} {version}"
    details = {"version": version, "uptime_seconds": int(info.get("uptime_in_seconds", 0))}
    # Valkey continues the version numbers of Redis 7.2.
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if number < OLDEST_SERVER:
        advice = "use Redis 7 or newer, or Valkey 8 or newer"
        return Finding("server-version", "error", f"{shown} is too old", advice, details, subject)
    return Finding("server-version", "ok", shown, details=details, subject=subject)


def _role(info: Mapping[str, str], subject: str) -> Finding:
    if info.get("role", "master") == "master":
        replicas = int(info.get("connected_slaves", 0))
        shown = f"primary with {replicas} {'replica' if replicas == 1 else 'replicas'}"
        return Finding("replica", "ok", shown, details={"replicas": replicas}, subject=subject)
    primary = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
    link = info.get("master_link_status", "unknown")
    return Finding(
        "replica",
        "error",
        f"the server is a replica (its link to the primary is {link}): it refuses writes, or loses them",
        "use the address of the primary (INFO replication shows it); after a failover, promote this server with "
        "REPLICAOF NO ONE",
        {"primary": primary, "link": link},
        subject,
    )


def _persistence(info: Mapping[str, str], snapshots: str | None, subject: str) -> Finding:
    details: dict[str, Any] = {
        "append_only_file": info.get("aof_enabled") == "1",
        "snapshots": snapshots,
        "changes_since_snapshot": int(info.get("rdb_changes_since_last_save", 0)),
    }

    def finding(status: Status, message: str, advice: str = "") -> Finding:
        return Finding("persistence", status, message, advice, details, subject)

    failed = [
        name
        for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
        if info.get(name, "ok") != "ok"
    ]
    if failed:
        details["failed"] = failed
        return finding(
            "error",
            f"the server could not save its data ({', '.join(failed)})",
            "check the server's log; often the disk is full or the directory is not writable",
        )
    if details["append_only_file"]:
        return finding("ok", "the append-only file is on")
    turn_on = "run CONFIG SET appendonly yes, and set appendonly yes in the server's configuration file"
    if snapshots == "":
        return finding("error", "the server saves nothing: a restart loses all data", turn_on)
    return finding(
        "warning",
        "the append-only file is off: a restart loses all writes since the last snapshot "
        f"({details['changes_since_snapshot']:,} now)",
        turn_on,
    )


def _eviction(info: Mapping[str, str], subject: str) -> Finding:
    policy = info.get("maxmemory_policy", "noeviction")
    limit = int(info.get("maxmemory", 0))
    details = {"policy": policy, "limit_bytes": limit}
    if policy == "noeviction":
        return Finding("eviction", "ok", "maxmemory-policy is noeviction", details=details, subject=subject)
    now = "a full server deletes breadcrumbs" if limit else "with a memory limit it would delete breadcrumbs"
    return Finding(
        "eviction",
        "error" if limit else "warning",
        f"maxmemory-policy is {policy}: {now}",
        "run CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration file",
        details,
        subject,
    )


def _memory(info: Mapping[str, str], subject: str) -> Finding:
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    machine = int(info.get("total_system_memory", 0))
    details = {"used_bytes": used, "limit_bytes": limit, "machine_bytes": machine}
    if limit:
        warning, error = (part * limit for part in HIGH_MEMORY)
        shown = f"{_megabytes(used)} of {_megabytes(limit)} are used"
        status: Status = "error" if used >= error else "warning" if used >= warning else "ok"
        effect = ": the server rejects writes when it is full"
    else:
        shown = f"{_megabytes(used)} are used, without a limit"
        status = "warning" if machine and used >= HIGH_SYSTEM_MEMORY * machine else "ok"
        effect = f", and the machine has only {_megabytes(machine)}: the system can end the server"
    if status == "ok":
        return Finding("memory", "ok", shown, details=details, subject=subject)
    advice = "raise maxmemory or add memory, delete old sessions, or set shorter ttl_defaults"
    return Finding("memory", status, shown + effect, advice, details, subject)


def _megabytes(size: int) -> str:
    return f"{size >> 20:,} MB"


async def _clock(store: Store, lane: int, subject: str) -> Finding:
    before = time.time_ns() // 1000
    try:
        seconds, microseconds = await store.connection.call(lane, b"TIME")
    except StoreError as error:
        return Finding(
            "clock",
            "unknown",
            f"the server does not allow TIME: {error}",
            "allow this user TIME (ACL SETUSER … +time): Breadcrumbs needs it",
            subject=subject,
        )
    after = time.time_ns() // 1000
    skew = int(seconds) * 1_000_000 + int(microseconds) - (before + after) // 2
    status = judge_skew(skew, (after - before) // 2)
    shown = f"the server's clock is {skew_text(skew)} this machine"
    details = {"skew_seconds": skew / 1e6}
    if status == "ok":
        return Finding("clock", "ok", shown, details=details, subject=subject)
    advice = "synchronize both clocks with NTP; breadcrumbs expire by the server's clock"
    return Finding("clock", status, shown, advice, details, subject)


def skew_text(skew: int) -> str:
    """Return a difference of clocks in words, such as `0.002 s ahead of`."""
    return f"{abs(skew) / 1e6:,.3f} s {'ahead of' if skew > 0 else 'behind'}"
