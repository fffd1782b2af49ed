"""Kills agent runners between the commits of turns with three tool calls.

Counts from outside that no effect happens twice, that each model reply is paid for once, and that every turn is
answered. The kills are distributed over all points: after each commit, beside each effect, and during each model call;
with one tool call per reply and with three, with tools that are idempotent and with tools that are not.

    python -m bench steps                     # 60 kills, about two minutes
    python -m bench steps --kills 500         # the long run

Everything runs on loopback and unix sockets in a temporary directory, which is removed at the end, even after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import anyio
import anyio.to_thread
import uvloop

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from tests.support.fleet import fleet
from tests.support.killable_worker import Nursery
from tests.support.step_kills import PaidModel, Plan, StepKills, plans

PATIENCE_SECONDS = 300.0
PROGRESS_TURNS = 20


async def run(options: argparse.Namespace, url: str, folder: Path) -> bool:
    began = time.monotonic()
    shared = iter(list(islice(plans("t"), options.kills)))
    kills: list[StepKills] = []

    async def work(model: PaidModel, number: int) -> None:
        own = folder / str(number)
        own.mkdir()
        nursery = Nursery(own)  # each fleet ends all workers of its nursery
        try:
            async with fleet(url, nursery, own, patience=PATIENCE_SECONDS) as running:
                mine = StepKills.prepare(running, model, own)
                kills.append(mine)
                await running.start("build-contexts")
                for plan in shared:
                    await _run_one(mine, plan, began)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(nursery.close)

    with PaidModel(folder / "effects") as model:
        async with anyio.create_task_group() as tasks:
            for number in range(options.fleets):
                tasks.start_soon(work, model, number)
    return _report(kills, time.monotonic() - began)


async def _run_one(kills: StepKills, plan: Plan, began: float) -> None:
    await kills.run(plan)
    if kills.outcome.turns % PROGRESS_TURNS == 0:
        print(f"  {time.monotonic() - began:5.0f} s  {kills.outcome.line()}", flush=True)


def _report(kills: list[StepKills], seconds: float) -> bool:
    problems = [problem for one in kills for problem in one.outcome.problems]
    totals = {
        name: sum(getattr(one.outcome, name) for one in kills)
        for name in ("turns", "kills", "effects", "unknown", "told")
    }
    paid = sum(kills[0].model.paid.values())
    print(
        f"\n{totals['kills']} kills in {totals['turns']} turns, {seconds:.0f} s: {totals['effects']} effects, {paid} "
        f"paid replies, {totals['unknown']} unknown outcomes in {totals['told']} turns; problems: {len(problems)}"
    )
    for point in sorted({point for one in kills for point in one.outcome.points}):
        print(f"  {sum(one.outcome.points[point] for one in kills):5}  {point}")
    for problem in problems:
        print(f"  {problem}")
    return not problems


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=60, help="number of kills")
    parser.add_argument("--fleets", type=int, default=2, help="number of turns that run at the same time")
    options = parser.parse_args()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            EmbeddedServer(Path(folder) / "data") as server,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return 0 if runner.run(run(options, server.url, Path(folder))) else 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
