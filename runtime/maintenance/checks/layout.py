"""Checks the format of the store, its number of lanes, and its scripts."""

from __future__ import annotations

from breadcrumbs.runtime.backend.connection import load_scripts
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.store.opening import FORMAT
from breadcrumbs.runtime.store.store import Store


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
            "wrong",
            f"the server refuses {len(refused)} of our scripts: {refused[0]}",
            "allow this user SCRIPT and EVAL (ACL SETUSER … +@scripting), on Redis 7+ or Valkey 8+",
        )
    return Finding("scripts", "ok", f"all {len(scripts)} load")
