"""Check of the identity of the store."""

from __future__ import annotations

from breadcrumbs.runtime.backend.identity import describe_loss
from breadcrumbs.runtime.errors import StoreReplaced
from breadcrumbs.runtime.maintenance.checks.finding import Finding


def check_identity(found: str | None, *, expected: str | None, source: str = "") -> Finding:
    """Check that a server contains the expected store.

    `found`: the identity of its store, "" if the store has none yet, None if there is no store. `source`: the setting
    or the file that contains the expected identity.
    """
    id = "store-identity"
    details = {"store_id": found, "expected": expected}
    if expected is not None and found != expected:
        return Finding(
            id,
            "error",
            f"{describe_loss(expected, found or None)} (expected by {source})",
            StoreReplaced.advice,
            details,
        )
    if found is None:
        return Finding(id, "skipped", "no store yet", details=details)
    if not found:
        return Finding(id, "skipped", "the store has none yet: the next crumb up or crumb serve adds it")
    return Finding(id, "ok", found, details=details)
