"""Checks of the store's format, its number of lanes, and its scripts."""

from __future__ import annotations

from dataclasses import asdict

from breadcrumbs.runtime.backend.connection import load_scripts
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.store.conversion import read_progress
from breadcrumbs.runtime.store.formats import old_workers, raise_format
from breadcrumbs.runtime.store.opening import FORMAT, FORMATS
from breadcrumbs.runtime.store.store import Store


async def check_layout(store: Store, *, wanted_lanes: int | None = None, fix: bool = False) -> Finding:
    """Check that format and number of lanes match this version and the settings. With `fix`, raise the format."""
    flat = await store.connection.call(0, b"HGETALL", store.keys.meta)
    meta = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
    stored = meta.get("format", b"").decode()
    if stored not in FORMATS:
        return Finding(
            "layout",
            "error",
            f"the store has format {stored or 'none'}, this version needs format {' or '.join(FORMATS)}",
            "export with the version of Breadcrumbs that wrote the store, and import with this version",
        )
    if wanted_lanes is not None and wanted_lanes != store.lanes:
        return Finding(
            "layout",
            "error",
            f"the store has {store.lanes} lanes, but the setting lanes is {wanted_lanes}",
            "remove the setting, or export, start with an empty store and import",
        )
    if stored != FORMAT:
        return await _judge_old_format(store, stored, fix=fix)
    progress = await read_progress(store)
    details: dict[str, object] = {"format": stored, "lanes": store.lanes}
    if progress is not None and progress.done:
        return Finding("layout", "ok", f"format {stored}, {store.lanes} lanes", details=details)
    shown = "not begun: an API process does it"
    if progress is not None:
        details["conversion"] = asdict(progress)
        shown = (
            f"{progress.indexes_done:,} of {progress.indexes:,} indexes, {progress.removed:,} entries removed"
        )
    return Finding(
        "layout", "ok", f"format {stored}, {store.lanes} lanes; conversion: {shown}", details=details
    )


async def _judge_old_format(store: Store, stored: str, *, fix: bool) -> Finding:
    """Report that the store can be raised to the newest format, or raise it."""
    shown, details = f"format {stored}, {store.lanes} lanes", {"format": stored, "lanes": store.lanes}
    old = await old_workers(store)
    if old:
        return Finding(
            "layout",
            "ok",
            f"{shown}; workers of an earlier version run: {', '.join(sorted(old)[:3])}",
            f"replace them, then run crumb doctor --fix to raise the store to format {FORMAT}",
            details,
        )
    if not fix:
        return Finding(
            "layout",
            "ok",
            f"{shown}; format {FORMAT} needs less memory and time per message",
            "when no process of an earlier version uses the store, run crumb doctor --fix",
            details,
        )
    await raise_format(store)
    return Finding(
        "layout",
        "ok",
        f"raised to format {FORMAT}; the API removes index entries that are no longer needed, in the background",
        details={"format": FORMAT, "lanes": store.lanes},
    )


async def check_scripts(store: Store) -> Finding:
    """Check that every node accepts the scripts."""
    scripts = load_scripts()
    refused = []
    for lane in store.connection.node_lanes():
        for script in scripts:
            try:
                await store.connection.call(lane, b"SCRIPT", b"LOAD", script.source)
            except StoreError as error:
                refused.append(f"{script.name}: {error}")
    if refused:
        return Finding(
            "scripts",
            "error",
            f"the server rejected {len(refused)} scripts: {refused[0]}",
            "use Redis 7+ or Valkey 8+, and allow this user SCRIPT and EVAL (ACL SETUSER … +@scripting)",
        )
    return Finding("scripts", "ok", f"all {len(scripts)} scripts loaded")
