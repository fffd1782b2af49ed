"""Measures `crumb audit isolation` in a store of 1,000,000 breadcrumbs.

    python -m bench audit [--quick] [--json]

The store needs 2 GB of memory. `--quick` uses 100,000 breadcrumbs, and prints ten times their duration.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time

from bench import _common
from bench._common import CreateCommand, RawLink, Report, embedded, posted
from bench.store import fill
from bench.targets import TARGETS
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.store.store import Store

FULL, QUICK = 1_000_000, 100_000
SESSIONS = 1_000


async def audit_seconds(quick: bool) -> dict[str, float]:
    """Return the breadcrumbs of the store, the seconds of an audit, and the seconds at 1,000,000 breadcrumbs."""
    count = QUICK if quick else FULL
    with embedded() as server:
        store = await Store.open(server.url)
        await store.close()
        raw = RawLink(server.url)
        commands = [
            await CreateCommand.of(posted(f"chat-{number}"), owner=DEVELOPER) for number in range(SESSIONS)
        ]
        fill(raw, commands, count)
        raw.settle()
        raw.close()
        seconds = await asyncio.to_thread(_audit, server.url, count)
    return {"breadcrumbs": count, "seconds": seconds, "seconds_per_million": seconds * FULL / count}


def _audit(url: str, count: int) -> float:
    """Run the command. Return its seconds."""
    with tempfile.TemporaryDirectory() as folder:  # no settings file of this folder
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "breadcrumbs", "audit", "isolation", "--redis", url, "--json"],
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
        )
        took = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"crumb audit isolation ended with {done.returncode}: {done.stderr[-500:]}")
    checked = str(json.loads(done.stdout))
    if str(count) not in checked:
        raise RuntimeError(f"the audit did not read {count:,} breadcrumbs: {checked[:500]}")
    return took


async def bench(chosen: argparse.Namespace) -> None:
    report, began = Report("audit", chosen), time.monotonic()
    found = await audit_seconds(chosen.quick)
    report.section(
        "audit", f"crumb audit isolation with {found['breadcrumbs']:,.0f} breadcrumbs", dict(found)
    )
    report.table(["", "seconds"], [["audit", f"{found['seconds']:.1f}"]])
    report.verdict(TARGETS["audit"].verdict(found["seconds_per_million"]))
    report.finish(began)


def main() -> None:
    chosen = _common.options(__doc__ or "").parse_args()
    _common.run(lambda: bench(chosen))


if __name__ == "__main__":
    main()
