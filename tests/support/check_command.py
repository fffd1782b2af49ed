"""The command behind `./crumb test`: ruff, mypy and pytest, with every process ended afterwards.

`./crumb` installs the dependencies and then runs this module. Only the standard library is imported.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.supervisor import Ended, Interrupted, Supervisor

QUICK_TESTS: Final = (
    "tests/unit",
    "tests/store/test_contract_fake.py",
    "tests/store/test_contract_embedded.py",
    "tests/http/test_auth.py",
    "tests/http/test_breadcrumbs.py",
    "tests/http/test_isolation.py",
    "tests/contexts/test_isolation.py",
    "tests/turns/test_one_turn.py",
    "tests/turns/test_kills.py::test_P2_P13_killed_workers_lose_duplicate_and_mix_up_nothing",
    "tests/acceptance/test_store_survives_sigkill.py",
)
"""The essentials: the store's contract, HTTP basics, isolation, one turn, kills. About 100 s of CPU time."""

_WORKERS: Final = 5
"""Number of pytest workers. The tests wait half of the time, so two cores can run more than two."""

_FULL_DURATION: Final = "about 24 minutes on two cores"
_QUICK_DURATION: Final = "less than two minutes on two cores"


@dataclass(frozen=True, slots=True)
class Plan:
    """Parsed arguments of `./crumb test`."""

    quick: bool
    pytest_arguments: tuple[str, ...]

    @property
    def announcement(self) -> str:
        if self.quick:
            return f"ruff, mypy and the essential tests; expected duration: {_QUICK_DURATION}"
        if self.pytest_arguments:
            return "ruff, mypy and the chosen tests; expected duration: depends on the choice"
        return f"ruff, mypy and all tests; expected duration: {_FULL_DURATION}"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    argv: tuple[str, ...]
    runs_beside: bool = False
    """Whether the next check starts before this one has ended. Its output is then printed after that of the next."""


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    ended: Ended


def parse(arguments: Sequence[str]) -> Plan:
    """Take `--quick` out. All other arguments go to pytest."""
    others = tuple(argument for argument in arguments if argument != "--quick")
    return Plan(quick=len(others) < len(arguments), pytest_arguments=others)


def checks(plan: Plan, tools: Path) -> list[Check]:
    tests = [*QUICK_TESTS] if plan.quick else ["--durations=10"]
    spread = ("-n", str(_WORKERS), "--dist", "worksteal")
    return [
        Check("ruff check", (str(tools / "ruff"), "check", ".")),
        Check("ruff format", (str(tools / "ruff"), "format", "--check", ".")),
        # mypy uses one core. Tests often wait, so both together take little longer than the tests alone.
        Check("mypy", (str(tools / "mypy"),), runs_beside=True),
        Check("pytest", (str(tools / "pytest"), *spread, "-q", *tests, *plan.pytest_arguments)),
    ]


def main(arguments: Sequence[str], tools: Path) -> int:
    """Run all checks and return the exit code. `tools` is the folder with ruff, mypy and pytest."""
    plan = parse(arguments)
    _say(plan.announcement)
    supervisor = Supervisor()
    try:
        with supervisor:
            outcomes = _run_all(supervisor, checks(plan, tools))
    except Interrupted as interrupted:
        _report_left_behind(supervisor)
        _say(f"stopped by {interrupted}")
        return interrupted.exit_code
    _report_left_behind(supervisor)
    return _report(outcomes)


def _run_all(supervisor: Supervisor, checks: Sequence[Check]) -> list[Outcome]:
    """Run the checks. Return their outcomes in the order of the ends."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryFile() as output:
        beside: list[tuple[Check, int]] = []
        for check in checks:
            _say(f"{check.name} …")
            if check.runs_beside:
                beside.append((check, supervisor.start(check.argv, output=output)))
            else:
                outcomes.append(Outcome(check.name, supervisor.wait(supervisor.start(check.argv))))
        outcomes += [Outcome(check.name, supervisor.wait(pid)) for check, pid in beside]
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.flush()
    return outcomes


def _report_left_behind(supervisor: Supervisor) -> None:
    if left := supervisor.left_behind:
        names = ", ".join(f"{info.name} ({info.pid})" for info in left)
        _say(f"ended {len(left)} processes that were still running: {names}")


def _report(outcomes: Sequence[Outcome]) -> int:
    _say("durations: " + ", ".join(f"{one.name} {one.ended.seconds:.1f} s" for one in outcomes))
    failed = [one.name for one in outcomes if one.ended.code]
    _say(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


def _say(text: str) -> None:
    sys.stderr.write(f"crumb: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(sys.executable).parent))
