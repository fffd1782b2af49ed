"""Runners that die between any two commits of a turn with three tool calls.

No effect happens twice, no model reply is paid for twice, and every turn is answered. The long run is
`python -m bench steps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from tests.support.fleet import fleet
from tests.support.killable_worker import Nursery
from tests.support.step_kills import PaidModel, Plan, StepKills

TURNS = (
    # The first commits: the step with its request and start, and the response.
    Plan("a", at_once=False, keyed=False, point="after commit 1"),
    Plan("b", at_once=False, keyed=False, point="after commit 2"),
    Plan("c", at_once=False, keyed=False, point="after effect c/two"),
    Plan("d", at_once=True, keyed=False, point="after commit 3"),
    Plan("e", at_once=True, keyed=True, point="after effect e/two"),
    Plan("f", at_once=False, keyed=True, point="in model 3"),
)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    try:
        yield nursery
    finally:
        nursery.close()


@pytest.mark.timeout(300)
async def test_P2_no_effect_and_no_model_reply_is_repeated_when_runners_die(
    embedded_server: EmbeddedServer, nursery: Nursery, tmp_path: Path
) -> None:
    with PaidModel(tmp_path / "effects") as model:
        async with fleet(embedded_server.url, nursery, tmp_path) as running:
            kills = StepKills.prepare(running, model, tmp_path)
            await running.start("build-contexts")
            for plan in TURNS:
                await kills.run(plan)
    print(f"\n{kills.outcome.line()}")
    assert kills.outcome.problems == []
    # The calls of `d` run at the same time, so one kill can leave several of them unknown. `StepKills` compares them
    # with the calls that the dead runner had started.
    assert kills.outcome.kills == len(TURNS) and kills.outcome.told == 3
