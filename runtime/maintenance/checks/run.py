"""Runs checks one after the other, each within a time limit.

A check that fails or takes too long becomes a finding with the status `unknown`. The other checks still run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import anyio
import structlog

from breadcrumbs.runtime.errors import BreadcrumbsError
from breadcrumbs.runtime.maintenance.check_catalogue import CHECKS, Selection
from breadcrumbs.runtime.maintenance.checks.finding import Finding

_log = structlog.get_logger("breadcrumbs.checks")


@dataclass(frozen=True, slots=True)
class Check:
    """A function that returns the findings of one or more checks."""

    ids: tuple[str, ...]
    """Ids of the findings."""
    run: Callable[[], Awaitable[list[Finding]]]


async def run_checks(
    checks: Iterable[Check],
    selection: Selection,
    *,
    seconds: float | None,
    on_step: Callable[[str], None] | None = None,
) -> list[Finding]:
    """Run the selected checks and return their findings.

    `seconds` limits each check. None: no limit, for repairs. `on_step` is called with a description of each check.
    """
    findings: list[Finding] = []
    for check in checks:
        wanted = [id for id in check.ids if id in selection]
        if not wanted:
            continue
        if on_step is not None:
            on_step(CHECKS[wanted[0]])
        findings += [finding for finding in await _run(check, wanted, seconds) if finding.id in selection]
    return findings


async def _run(check: Check, wanted: list[str], seconds: float | None) -> list[Finding]:
    details: dict[str, str] = {}
    try:
        with anyio.fail_after(seconds):
            return await check.run()
    except TimeoutError:
        message, advice = f"the check did not end within {seconds:g} s", "the server is slow or overloaded"
    except BreadcrumbsError as error:
        message, advice = f"the check failed: {error}", "fix this, then run crumb doctor again"
        details = {"reason": str(error)}
    except Exception as error:
        # A fault in one check must not hide the findings of the others.
        _log.debug("check failed", checks=check.ids, exc_info=True)
        message = f"the check failed: {type(error).__name__}: {error}"
        advice = "please report this, with the output of crumb doctor --json"
        details = {"reason": str(error)}
    return [Finding(id, "unknown", message, advice, details) for id in wanted]
