"""Check and repair of the usage counters of quotas."""

from __future__ import annotations

from breadcrumbs.runtime.maintenance.checks.finding import Finding
from breadcrumbs.runtime.store.scan import owners
from breadcrumbs.runtime.store.store import Store


async def check_quotas(store: Store, *, fix: bool = False) -> list[Finding]:
    """Check the usage counters of each owner with a quota.

    With `fix`, count again and store the result.
    """
    if store.quotas is None:
        return []
    findings = []
    for owner in await owners(store):
        quota = store.quotas.quota(owner)
        if quota is None:
            continue
        counts = [await store.quotas.count(owner, lane, store_result=fix) for lane in range(store.lanes)]
        wrong = [count.lane for count in counts if count.stored not in (None, count.counted)]
        usage = await store.quotas.usage(owner)
        shown = [
            f"{used:,} of {limit:,} {name}"
            for name, used in usage._asdict().items()
            if (limit := getattr(quota, name)) is not None
        ]
        subject, details = str(owner), {"used": usage._asdict(), "quota": quota.model_dump()}
        if wrong and not fix:
            findings.append(
                Finding(
                    "quotas",
                    "warning",
                    f"{', '.join(shown)}; counters are wrong in {len(wrong)} lanes",
                    "use the same quotas in all processes of this store, then run crumb doctor --fix to count again",
                    details,
                    subject,
                )
            )
        else:
            findings.append(Finding("quotas", "ok", ", ".join(shown), details=details, subject=subject))
    return findings
