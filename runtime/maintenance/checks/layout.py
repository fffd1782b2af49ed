"""Checks of the store's format, its number of lanes, and its scripts."""

from __future__ import annotations

from breadcrumbs.runtime.backend.connection import load_scripts
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.store.opening import FORMAT
from breadcrumbs.runtime.store.store import Store


async def check_layout(store: Store, *, wanted_lanes: int | None = None) -> Finding:
    """Check that format and number of lanes match this version and the settings."""
    flat = await store.connection.call(0, b"HGETALL", store.keys.meta)
    meta = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
    stored = meta.get("format", b"").decode()
    if stored != FORMAT:
        return Finding(
            "layout",
            "error",
            f"the store has format {stored or 'none'}, this version needs format {FORMAT}",
            "export with the version of Breadcrumbs that wrote the store, and import with this version",
        )
    if wanted_lanes is not None and wanted_lanes != store.lanes:
        return Finding(
            "layout",
            "error",
            f"the store has {store.lanes} lanes, but the setting lanes is {wanted_lanes}",
            "remove the setting, or export, start with an empty store and import",
        )
    return Finding(
        "layout",
        "ok",
        f"format {stored}, {store.lanes} lanes",
        details={"format": stored, "lanes": store.lanes},
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
