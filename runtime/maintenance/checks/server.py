"""Checks of every node of the server: version, persistence, memory, role and clock."""

from __future__ import annotations

import time

import structlog

from breadcrumbs.runtime.backend.servers import server_info
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.store.lane_counts import read_server_infos
from breadcrumbs.runtime.store.store import Store

_log = structlog.get_logger("breadcrumbs.store")

OLDEST_SERVER = (7, 0)
LARGEST_SKEW = 1_000_000
"""Largest accepted difference between the clocks of server and machine, in microseconds."""


async def check_server(store: Store) -> list[Finding]:
    """Check version, persistence, memory, role and clock of every node."""
    findings = []
    lanes = store.connection.node_lanes()
    for lane in lanes:
        name = "server" if len(lanes) == 1 else f"server of lane {lane}"
        try:
            info = await server_info(store.connection, lane)
        except StoreError as error:
            findings.append(Finding(name, "skipped", f"INFO is not available: {error}"))
            continue
        findings += [*judge_server(name, info), await _clock(store, lane, name)]
    return findings


def judge_server(name: str, info: dict[str, str]) -> list[Finding]:
    """Judge a server by its INFO. `crumb doctor`, the operations page and the log at a start all use this."""
    return [_version(name, info), _persistence(name, info), _memory(name, info), _role(name, info)]


async def log_server_problems(store: Store) -> None:
    """Log a warning for each problem of a server that can lose or refuse data, for a process that starts."""
    lanes = store.connection.node_lanes()
    for number, info in enumerate(await read_server_infos(store)):
        name = "server" if len(lanes) == 1 else f"server {number + 1}"
        for finding in judge_server(name, info):
            if finding.status == "wrong":
                _log.warning(f"{finding.check}: {finding.message}", advice=finding.advice)


def _version(name: str, info: dict[str, str]) -> Finding:
    valkey = info.get("valkey_version")
    version = valkey or info.get("redis_version", "0")
    shown = f"{'Valkey' if valkey else 'Redis'} {version}"
    # Valkey continues the version numbers of Redis 7.2.
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
            "the append-only file is off: a restart loses all writes since the last snapshot",
            "run CONFIG SET appendonly yes, and set appendonly yes in the server's configuration file",
        )
    failed = [
        name
        for name in ("aof_last_write_status", "aof_last_bgrewrite_status")
        if info.get(name, "ok") != "ok"
    ]
    if failed:
        return Finding(
            check,
            "wrong",
            f"the append-only file cannot be written ({', '.join(failed)})",
            "check the server's log; often the disk is full",
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
            f"maxmemory-policy is {policy}: a full server would evict breadcrumbs",
            "run CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration file",
            details,
        )
    if limit and used > 0.9 * limit:
        return Finding(
            check,
            "wrong",
            f"{used >> 20} of {limit >> 20} MB are used: the server will soon reject writes",
            "raise maxmemory, or delete old breadcrumbs",
            details,
        )
    return Finding(
        check,
        "ok",
        f"{used >> 20} MB used, {f'limit {limit >> 20} MB' if limit else 'no limit'}",
        details=details,
    )


def _role(name: str, info: dict[str, str]) -> Finding:
    check = f"{name}: role"
    if info.get("role") != "slave":
        return Finding(check, "ok", "primary")
    primary = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
    return Finding(
        check,
        "wrong",
        f"this server is a replica of {primary}: it refuses writes, and its data can be behind",
        "use the address of the primary, or make this server the primary with REPLICAOF NO ONE",
        {"primary": primary},
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
            f"the server's clock is {shown}",
            "synchronize both clocks with NTP; breadcrumbs expire by the server's clock",
            {"skew_seconds": skew / 1e6},
        )
    return Finding(f"{name}: clock", "ok", shown, details={"skew_seconds": skew / 1e6})
