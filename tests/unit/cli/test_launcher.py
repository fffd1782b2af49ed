"""The launcher `./crumb`, tested with a fake Python that records calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SHELLS = [shell for shell in ("dash", "bash", "sh") if shutil.which(shell)]

# Answers as python3 does, as far as the launcher asks. Its virtual environments hold copies of itself.
PYTHON = r"""#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
case "$*" in
*print*) echo 3.12 ;;
*version_info*) [ -z "$OLD" ] ;;
*"import ensurepip"*) [ -z "$NO_VENV" ] ;;
"-m venv "*)
  for last; do :; done
  mkdir -p "$last/bin"
  cp "$0" "$last/bin/python"
  ;;
"-m tests.support.check_command"*)
  printf '%s\n' "$@" "${PYTHONDONTWRITEBYTECODE-unset}" "${PYTHONPYCACHEPREFIX-unset}"
  exit "${CHECKS_CODE-0}"
  ;;
"-m pip install "*" uv") printf '%s' "$FAKE_UV" >"${0%python}uv" && chmod +x "${0%python}uv" ;;
"-m pip install"*)
  echo "constraints: ${PIP_CONSTRAINT-none} ${PIP_BUILD_CONSTRAINT-none}" >>"$CALLS"
  [ -z "$NO_NETWORK" ] || { echo "no route to anywhere" >&2; exit 1; }
  printf '%s\n' '#!/bin/sh' 'echo "${0##*/}: $*"' >.venv/bin/crumb
  chmod +x .venv/bin/crumb
  ;;
esac
"""

# Answers as uv does, as far as the launcher asks.
UV = r"""#!/bin/sh
echo "uv $*" >>"$CALLS"
case "$1 $2" in
"venv --quiet")
  for last; do :; done
  mkdir -p "$last/bin"
  cp "${0%uv}python3" "$last/bin/python"
  ;;
"pip install") .venv/bin/python -m pip install ;;
"pip compile")
  [ -z "$NO_NETWORK" ] || { echo "no route to anywhere" >&2; exit 1; }
  echo "$RESOLVED"
  ;;
esac
"""


class Clone:
    """A fresh clone on a machine with nothing but that Python."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a fresh clone"
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        self.root.mkdir()
        self.bin.mkdir()
        self.calls.touch()
        for name in ("crumb", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.root)
        (self.bin / "python3").write_text(PYTHON)
        (self.bin / "python3").chmod(0o755)
        for tool in (
            "sh",
            "cat",
            "cksum",
            "mkdir",
            "rm",
            "cp",
            "dirname",
            "readlink",
            "sleep",
            "chmod",
            "kill",
            "mktemp",
        ):
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)

    def run(
        self, *arguments: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "crumb"), *arguments],
            cwd=cwd or self.root,
            env={"PATH": str(self.bin), "CALLS": str(self.calls), "FAKE_UV": UV, **environment},
            capture_output=True,
            text=True,
            timeout=30,
        )

    def install_uv(self) -> None:
        (self.bin / "uv").write_text(UV)
        (self.bin / "uv").chmod(0o755)

    def taken_calls(self) -> list[str]:
        calls = self.calls.read_text().splitlines()
        self.calls.write_text("")
        return calls


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_launcher_is_a_script_that_every_shell_can_read(shell: str) -> None:
    subprocess.run([shell, "-n", str(ROOT / "crumb")], check=True)
    assert os.access(ROOT / "crumb", os.X_OK) and os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_first_start_sets_up_and_the_second_does_not(clone: Clone) -> None:
    first = clone.run("up", "--port", "0")
    assert (first.returncode, first.stdout) == (0, "crumb: up --port 0\n")
    assert "installing into" in first.stderr
    assert sum("pip install" in call for call in clone.taken_calls()) == 1
    second = clone.run("list")
    assert (second.returncode, second.stdout, second.stderr) == (0, "crumb: list\n", "")
    assert clone.taken_calls() == []


def test_a_changed_pyproject_sets_up_again(clone: Clone) -> None:
    clone.run("version")
    clone.taken_calls()
    with (clone.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    clone.run("version")
    assert sum("pip install" in call for call in clone.taken_calls()) == 1


def test_a_folder_that_was_moved_sets_up_again(clone: Clone) -> None:
    clone.run("version")
    clone.taken_calls()
    clone.root = clone.root.rename(clone.root.with_name("moved"))
    assert clone.run("version").stdout == "crumb: version\n"
    assert sum("pip install" in call for call in clone.taken_calls()) == 1


def test_it_works_from_anywhere_and_through_a_link(clone: Clone, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "crumb"
    link.parent.mkdir()
    link.symlink_to(Path("..") / clone.root.name / "crumb")
    result = subprocess.run(
        [str(link), "post", "two words"],
        cwd=tmp_path,
        env={"PATH": str(clone.bin), "CALLS": str(clone.calls)},
        capture_output=True,
        text=True,
    )
    assert result.stdout == "crumb: post two words\n"
    assert not (tmp_path / ".venv").exists()


def test_a_failed_set_up_is_reported_and_repeated(clone: Clone) -> None:
    failed = clone.run("up", NO_NETWORK="1")
    assert failed.returncode == 1 and failed.stdout == ""
    assert "safe to run the same command again" in failed.stderr
    assert clone.run("up").stdout == "crumb: up\n"


def test_a_killed_set_up_does_not_block_the_next(clone: Clone) -> None:
    lock = clone.root / ".venv.lock"
    lock.mkdir()
    dead = subprocess.Popen(["true"])
    dead.wait()
    (lock / "pid").write_text(f"{dead.pid}\n")
    assert clone.run("up").stdout == "crumb: up\n"
    assert not lock.exists()


def test_an_old_python_is_reported_with_instructions(clone: Clone) -> None:
    result = clone.run("up", OLD="1")
    assert result.returncode == 1
    assert "3.11 or newer is needed" in result.stderr and "python3" in result.stderr and "uv" in result.stderr


def test_a_missing_python_is_reported_with_instructions(clone: Clone) -> None:
    (clone.bin / "python3").unlink()
    result = clone.run("up")
    assert result.returncode == 1 and "3.11 or newer is needed." in result.stderr


def test_a_python_without_venv_names_the_package_to_install(clone: Clone) -> None:
    result = clone.run("up", NO_VENV="1")
    assert result.returncode == 1 and "apt install python3.12-venv" in result.stderr


def test_a_newer_python_is_used_if_the_first_is_too_old(clone: Clone) -> None:
    (clone.bin / "python3.12").write_text(PYTHON)
    (clone.bin / "python3.12").chmod(0o755)
    (clone.bin / "python3").write_text("#!/bin/sh\nexit 1\n")
    assert clone.run("up").stdout == "crumb: up\n"


def test_uv_is_used_if_it_is_installed(clone: Clone) -> None:
    clone.install_uv()
    assert clone.run("up").stdout == "crumb: up\n"
    calls = clone.taken_calls()
    assert [call.split()[:2] for call in calls if call.startswith("uv")] == [["uv", "venv"], ["uv", "pip"]]
    assert not any(call.startswith("python3 -m venv") for call in calls)


def test_the_tests_install_their_extra_and_run_the_checks_with_all_arguments(clone: Clone) -> None:
    result = clone.run("test", "tests/unit", "-k", "two words")
    assert result.returncode == 0
    assert result.stdout.splitlines()[:5] == [
        "-m",
        "tests.support.check_command",
        "tests/unit",
        "-k",
        "two words",
    ]
    assert any("--editable .[test]" in call for call in clone.taken_calls())
    clone.run("up")
    assert clone.taken_calls() == [], "the tests' set-up has everything that running needs"


@pytest.mark.parametrize("code", [1, 130])
def test_the_exit_code_of_the_checks_is_that_of_the_launcher(clone: Clone, code: int) -> None:
    assert clone.run("test", CHECKS_CODE=str(code)).returncode == code


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_of_the_test_command_needs_no_set_up(clone: Clone, flag: str) -> None:
    result = clone.run("test", flag)
    assert (result.returncode, result.stderr) == (0, "")
    assert "--quick" in result.stdout and "pytest" in result.stdout
    assert clone.taken_calls() == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, ["unset", "unset"]),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, ["unset", ".venv/pycache"]),
        ({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "mine"}, ["unset", "mine"]),
    ],
    ids=["nothing said", "keep nothing", "keep it elsewhere"],
)
def test_compiled_files_are_cached_outside_of_the_sources(
    clone: Clone, given: dict[str, str], kept: list[str]
) -> None:
    said = clone.run("test", cwd=None, **given).stdout.splitlines()[-2:]
    assert [line.removeprefix(f"{clone.root}/") for line in said] == kept


def test_pip_installs_with_the_constraints_also_in_the_build_environment(clone: Clone) -> None:
    clone.run("up")
    assert "constraints: constraints.txt constraints.txt" in clone.taken_calls()


def test_uv_installs_with_the_constraints_also_in_the_build_environment(clone: Clone) -> None:
    clone.install_uv()
    clone.run("up")
    [call] = [call for call in clone.taken_calls() if call.startswith("uv pip install")]
    assert "--constraints constraints.txt --build-constraints constraints.txt" in call


def test_changed_constraints_set_up_again(clone: Clone) -> None:
    clone.run("version")
    clone.taken_calls()
    with (clone.root / "constraints.txt").open("a") as file:
        file.write("another-package==1.0\n")
    clone.run("version")
    assert sum("pip install" in call for call in clone.taken_calls()) == 1


def test_lock_writes_the_resolved_versions(clone: Clone) -> None:
    clone.install_uv()
    result = clone.run("lock", RESOLVED="one-package==1.0")
    assert result.returncode == 0, result.stderr
    lines = (clone.root / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["one-package==1.0"]
    assert "./crumb lock" in lines[0], "the file says how it is renewed"


def test_lock_without_uv_installs_it_into_a_temporary_environment(clone: Clone, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = clone.run("lock", RESOLVED="one-package==1.0", TMPDIR=str(scratch))
    assert result.returncode == 0, result.stderr
    assert "one-package==1.0" in (clone.root / "constraints.txt").read_text()
    assert list(scratch.iterdir()) == [], "the temporary environment is removed"
    assert not (clone.root / ".venv").exists()


def test_lock_refuses_arguments(clone: Clone) -> None:
    result = clone.run("lock", "--help")
    assert result.returncode == 1 and "updates constraints.txt" in result.stderr


def test_lock_keeps_the_old_versions_if_resolving_fails(clone: Clone) -> None:
    clone.install_uv()
    before = (clone.root / "constraints.txt").read_bytes()
    assert clone.run("lock", NO_NETWORK="1").returncode != 0
    assert (clone.root / "constraints.txt").read_bytes() == before


def test_ci_runs_the_same_command_as_a_developer() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    assert commands == ['exec "$(dirname "${BASH_SOURCE[0]}")/../crumb" test']


def test_every_package_is_checked_for_types_under_its_import_name() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"][
        "package-dir"
    ]
    for name, folder in packages.items():
        seen = ROOT / "typings" / Path(*name.split(".")) / "__init__.py"
        assert seen.resolve() == (ROOT / folder / "__init__.py").resolve(), f"typings has no link for {name}"
