"""`./crumb test`: all checks run, every process ends, and an ignored SIGINT changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import supervisor
from tests.support.check_command import QUICK_TESTS, parse

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LIMIT = 60.0

RUN_CHECKS = """
import sys
from pathlib import Path
from tests.support.check_command import main
sys.exit(main(sys.argv[2:], Path(sys.argv[1])))
"""

# One test that hangs. Its fixture starts COMMAND, and a process in a session of its own.
HANGING_TEST = """
import subprocess, sys, time
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def processes():
    program = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert program.stdout.readline()
    sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path("pids.part").write_text(f"{program.pid} {sleeper.pid}")
    Path("pids.part").rename("pids")
    yield
    time.sleep(TEARDOWN)
    for process in (program, sleeper):
        process.kill()
        process.wait()
    Path("torn_down").touch()

@pytest.mark.timeout(SECONDS, method="thread", func_only=True)
def test_that_hangs(processes):
    time.sleep(1000)
"""
SMALL_PROGRAM = ("sh", "-c", "echo ready; sleep 1000")
REAL_SERVER = (str(BIN / "crumb"), "up", "--port", "0", "--data", "data")


def hanging_test(command: tuple[str, ...] = SMALL_PROGRAM, seconds: int = 1000, teardown: int = 0) -> str:
    values = {"COMMAND": command, "SECONDS": seconds, "TEARDOWN": teardown}
    return re.sub("|".join(values), lambda found: repr(values[found[0]]), HANGING_TEST)


INTERRUPTED_TEST = """
import signal, subprocess, sys

def test_a_child_ends_at_ctrl_c():
    script = "import time; print(flush=True); time.sleep(1000)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == -signal.SIGINT
    child.stdout.close()
"""


class Project:
    """A folder with tests, and with tools that record their calls in place of ruff and mypy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tools = folder / "tools"
        self.tools.mkdir()
        plugins = "-p no:cacheprovider -p xdist.plugin -p pytest_timeout"
        (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {plugins}\n")
        for name in ("ruff", "mypy", "pytest"):
            self.replace_tool(name)

    def replace_tool(self, name: str, *, code: int = 0) -> None:
        (self.tools / name).write_text(f'#!/bin/sh\necho "{name}: $*"\nexit {code}\n')
        (self.tools / name).chmod(0o755)

    def use_pytest(self, test: str) -> None:
        (self.tools / "pytest").unlink()
        (self.tools / "pytest").symlink_to(BIN / "pytest")
        (self.folder / "test_it.py").write_text(test)

    def start(self, *arguments: str, ignored: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RUN_CHECKS, str(self.tools), *arguments]
        if ignored:
            command = ["sh", "-c", f'trap "" {ignored}; exec "$@"', "sh", *command]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, ignored: str = "") -> tuple[int, str]:
        with self.start(*arguments, ignored=ignored) as process:
            output, _ = process.communicate(timeout=LIMIT)
        return process.returncode, output

    def pids(self) -> list[int]:
        """Wait for the processes of the hanging test and return their ids."""
        until((self.folder / "pids").exists, "the test does not start")
        return [int(pid) for pid in (self.folder / "pids").read_text().split()]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)


def running() -> set[int]:
    return {info.pid for info in supervisor.process_table()}


def descendants_of(pid: int) -> set[int]:
    return {info.pid for info in supervisor.descendants(pid, supervisor.process_table())}


# The checks


def test_every_check_runs_and_pytest_gets_the_arguments(project: Project) -> None:
    code, output = project.run("tests/unit", "-k", "two words")
    calls = [line for line in output.splitlines() if not line.startswith("crumb:")]
    assert code == 0
    assert calls == [
        "ruff: check .",
        "ruff: format --check .",
        "pytest: -n 5 --dist worksteal -q --durations=10 tests/unit -k two words",
        "mypy: ",
    ]


@pytest.mark.parametrize("broken", ["ruff", "mypy", "pytest"])
def test_one_failed_check_fails_the_command_after_all_have_run(project: Project, broken: str) -> None:
    project.replace_tool(broken, code=1)
    code, output = project.run()
    assert code == 1
    assert broken in output.splitlines()[-1]
    assert "pytest:" in output


@pytest.mark.parametrize(
    ("arguments", "duration"),
    [
        ((), r"about \d+ minutes on two cores"),
        (("--quick",), "less than two minutes on two cores"),
        (("tests/unit",), "depends on the choice"),
    ],
)
def test_the_first_line_has_the_expected_duration(
    project: Project, arguments: tuple[str, ...], duration: str
) -> None:
    _, output = project.run(*arguments)
    assert re.search(f"expected duration: {duration}", output.splitlines()[0])


def test_the_durations_of_the_checks_are_printed_at_the_end(project: Project) -> None:
    _, output = project.run()
    assert re.search(
        r"durations: ruff check [\d.]+ s, .*, pytest [\d.]+ s, mypy [\d.]+ s", output.splitlines()[-2]
    )


def test_mypy_and_pytest_run_at_the_same_time(project: Project) -> None:
    """Each waits for a file of the other."""
    for name, other in (("mypy", "pytest"), ("pytest", "mypy")):
        script = f"touch {name}-began; while ! [ -e {other}-began ]; do sleep 0.05; done"
        (project.tools / name).write_text(f"#!/bin/sh\n{script}\n")
    code, output = project.run()
    assert code == 0, output


def test_an_interrupted_run_also_ends_mypy(project: Project) -> None:
    (project.tools / "mypy").write_text("#!/bin/sh\nexec sleep 1000\n")
    project.use_pytest(hanging_test())
    process = project.start("-n", "1")
    left = {*project.pids(), *descendants_of(process.pid)}
    process.terminate()
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 143, output
    assert not running() & left
    assert (project.folder / "torn_down").exists()


def test_output_that_is_not_a_terminal_has_no_escape_sequences(project: Project) -> None:
    project.use_pytest("def test_it():\n    pass\n")
    code, output = project.run()
    assert code == 0 and "1 passed" in output
    assert "\x1b" not in output


def test_quick_runs_the_essential_tests_and_keeps_the_other_arguments() -> None:
    plan = parse(["-x", "--quick"])
    assert plan.quick and plan.pytest_arguments == ("-x",)


@pytest.mark.parametrize("chosen", QUICK_TESTS)
def test_every_essential_test_exists(chosen: str) -> None:
    path, *names = chosen.split("::")
    assert (ROOT / path).exists()
    for name in names:
        assert re.search(
            rf"^\s*(class|(async )?def) {re.escape(name)}\b", (ROOT / path).read_text(), re.MULTILINE
        )


# Processes


def test_a_test_that_times_out_leaves_no_process(project: Project) -> None:
    project.use_pytest(hanging_test(REAL_SERVER, seconds=1))
    code, output = project.run("-n", "1")
    left = project.pids()
    assert code == 1 and "crashed while running" in output
    assert not running().intersection(left)
    assert "that were still running" in output and f"sleep ({left[1]})" in output


@pytest.mark.parametrize("to_the_group", [True, False], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_leaves_no_process(project: Project, to_the_group: bool) -> None:
    project.use_pytest(hanging_test())
    process = project.start("-n", "1")
    left = {*project.pids(), *descendants_of(process.pid)}
    if to_the_group:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    else:
        process.terminate()
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == (130 if to_the_group else 143), output
    assert not running() & left
    assert (project.folder / "torn_down").exists(), "the fixtures had no time to stop their servers"


def test_a_second_signal_ends_everything_at_once(project: Project) -> None:
    project.use_pytest(hanging_test(teardown=1000))
    process = project.start("-n", "1")
    left = {*project.pids(), *descendants_of(process.pid)}
    process.terminate()
    time.sleep(1)
    began = time.monotonic()
    process.terminate()
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 143, output
    assert time.monotonic() - began < supervisor._INTERRUPT_SECONDS
    assert not running() & left


@pytest.mark.skipif(not shutil.which("ps"), reason="there is no ps on this system")
def test_orphans_are_found_without_a_subreaper_too() -> None:
    script = """
from tests.support import supervisor
supervisor.process_table = supervisor._ask_ps
with supervisor.Supervisor(use_subreaper=False) as one:
    one.run(["sh", "-c", "sleep 1000 & echo $!; sleep 4"])
print([info.name for info in one.left_behind])
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    pid, names = ended.stdout.splitlines()
    assert names == "['sleep']"
    assert int(pid) not in running()


# An ignored SIGINT


@pytest.mark.parametrize("ignored", ["INT QUIT", "INT QUIT HUP"], ids=["background", "nohup"])
def test_ctrl_c_reaches_children_of_a_run_that_was_started_in_the_background(
    project: Project, ignored: str
) -> None:
    project.use_pytest(INTERRUPTED_TEST)
    code, output = project.run("-n", "1", ignored=ignored)
    assert code == 0, output


def test_pytest_alone_restores_an_ignored_sigint() -> None:
    chosen = "tests/acceptance/test_cli.py::test_a_signal_during_startup_leaves_nothing_behind"
    ended = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", BIN / "pytest", "-q", "-p", "no:cacheprovider", chosen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout
