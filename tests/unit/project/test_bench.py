"""The entry point of the benchmarks, their targets, the capacity model, and internals of the store that they use."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import documents, model, simulation
from bench.__main__ import SECTIONS
from bench._common import CreateCommand, posted
from bench.measurements import MEASUREMENTS
from bench.model import Load, Machines, plan
from bench.targets import TARGETS
from breadcrumbs.runtime.backend.connection import Script

ROOT = Path(__file__).resolve().parents[3]
SMALL = Load(sessions=20_000, turns_per_second=200, streams=1_000, tenants=10)


def run_bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


async def test_the_recorded_create_command_can_be_repeated_with_another_id() -> None:
    command = await CreateCommand.of(posted("s"))
    first, second = command.arguments(), command.arguments()
    assert first[:2] == second[:2] == (b"EVALSHA", Script("create", inside="deletions").sha)
    assert first != second


# The entry point


def test_each_target_has_one_measurement() -> None:
    measured = [key for keys, *_ in MEASUREMENTS.values() for key in keys]
    assert sorted(measured) == sorted(TARGETS)


def test_the_list_shows_every_target_with_its_bound() -> None:
    shown = run_bench("--list")
    assert shown.returncode == 0, shown.stderr
    for target in TARGETS.values():
        assert target.title in shown.stdout
        assert target.bound() in shown.stdout


@pytest.mark.parametrize("name", SECTIONS)
def test_each_section_can_be_imported(name: str) -> None:
    importlib.import_module(f"bench.{name}")


def test_the_help_lists_all_sections() -> None:
    shown = run_bench("--help").stdout
    assert [name for name in SECTIONS if f"\n  {name} " not in shown] == []


def test_an_unknown_section_and_an_unknown_measurement_are_refused_with_the_known_names() -> None:
    for options in (("nonsense",), ("--only", "turn,nonsense")):
        ended = run_bench(*options)
        assert ended.returncode == 2
        assert "nonsense" in ended.stderr
        assert "turn" in ended.stderr


# The documents


def test_the_documents_contain_the_results() -> None:
    ended = run_bench("documents", "--check")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_result_appears_in_the_document_between_its_marks() -> None:
    text = "before\n<!-- begin x -->\nold\n<!-- end x -->\nafter\n"
    assert documents.with_blocks(text, {"x": lambda: "new"}) == text.replace("old", "new")
    with pytest.raises(LookupError, match="no block y"):
        documents.with_blocks(text, {"y": lambda: "new"})


# The capacity model and the simulation


@pytest.fixture(scope="module")
def constants() -> dict[str, Any]:
    return model.load_constants()


def test_twice_the_load_needs_twice_the_workers(constants: dict[str, Any]) -> None:
    large = replace(SMALL, turns_per_second=2_000, streams=0)
    twice = replace(large, turns_per_second=4_000)
    one, two = plan(constants, large, Machines()), plan(constants, twice, Machines())
    assert two.builders == pytest.approx(2 * one.builders, abs=1)
    assert two.runners == pytest.approx(2 * one.runners, abs=1)
    assert two.nodes_for_cpu == pytest.approx(2 * one.nodes_for_cpu, abs=1)


def test_no_number_of_api_processes_is_enough_if_reading_the_events_fills_one(
    constants: dict[str, Any],
) -> None:
    most = plan(constants, SMALL, Machines()).max_turns_per_second_with_streams
    assert plan(constants, replace(SMALL, turns_per_second=most * 0.9), Machines()).api_processes is not None
    assert plan(constants, replace(SMALL, turns_per_second=most * 1.1), Machines()).api_processes is None
    assert plan(constants, replace(SMALL, turns_per_second=most * 1.1, streams=0), Machines()).api_processes


def test_no_session_is_faster_than_its_turns_one_after_the_other() -> None:
    rates = simulation.session_rates(replace(SMALL, skew=1.2), 0.5)
    assert max(rates) == 0.5
    assert sum(rates) == pytest.approx(SMALL.turns_per_second)
    assert list(rates) == sorted(rates, reverse=True)
    with pytest.raises(ValueError, match="at most"):
        simulation.session_rates(replace(SMALL, sessions=10), 0.5)


def test_lanes_and_nodes_of_the_simulation_are_those_of_the_store() -> None:
    from breadcrumbs.runtime.store.keys import Keys

    for lanes in (16, 256, 100):
        keys = Keys("bc", lanes)
        found = simulation.lanes_of_sessions(50, lanes)
        assert list(found) == [keys.session_lane(simulation.OWNER, f"chat-{n}") for n in range(50)]
    assert sum(simulation.lane_loads((1.0,) * 50, 16)) == 50
    assert set(simulation.nodes_of_lanes(256, 6, balanced=False)) == set(range(6))


def test_the_same_seed_gives_the_same_simulation_and_overload_is_reported(constants: dict[str, Any]) -> None:
    enough = simulation.Deployment(nodes=2, lanes=64, builders=4, runners=4, api_processes=4)
    first = simulation.simulate(constants, SMALL, Machines(), enough)
    assert first == simulation.simulate(constants, SMALL, Machines(), enough)
    assert not first["overloaded"]
    assert first["delay_p50_ms"] <= first["delay_p99_ms"]
    too_small = replace(SMALL, turns_per_second=5_000)
    assert simulation.simulate(constants, too_small, Machines(), enough)["overloaded"]


def test_an_outage_delays_turns_for_its_duration_and_longer_on_a_busy_node() -> None:
    idle, busy = simulation.outage(100, 0.001, 10), simulation.outage(700, 0.001, 10)
    assert idle["longest_delay"] == pytest.approx(10, rel=0.1)
    assert 10 < idle["over_after"] < busy["over_after"] < 60
