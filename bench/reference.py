"""Prepares the checkout of the reference commit, with its own environment.

The checkout is a worktree of this repository in the cache folder of the user. To remove it:

    git worktree remove --force ~/.cache/breadcrumbs-bench/1bd9899
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from platformdirs import user_cache_path

from bench._common import interpreter_of
from bench.targets import REFERENCE

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"


class NoReference(Exception):
    """The checkout of the reference could not be prepared. The message says what to do."""


def reference_checkout(given: Path | None, say: Callable[[str], None]) -> Path:
    """Return a checkout of the reference commit that has an environment. Create it at the first call.

    `given` is a checkout that the user prepared. Its environment is `.venv`.
    """
    checkout = given or user_cache_path("breadcrumbs-bench") / REFERENCE
    if not Path(interpreter_of(checkout)).exists():
        if given is not None:
            raise NoReference(f"{given} has no environment: create .venv there and install the project")
        _create(checkout, say)
    _check(checkout)
    return checkout


def _create(checkout: Path, say: Callable[[str], None]) -> None:
    if not (checkout / "pyproject.toml").exists():
        say(f"create a worktree of {REFERENCE} in {checkout}")
        checkout.parent.mkdir(parents=True, exist_ok=True)
        _call("git", "-C", str(ROOT), "worktree", "prune")
        _call("git", "-C", str(ROOT), "worktree", "add", "--detach", str(checkout), REFERENCE)
    # The environment gets its final name at the end. An interrupted installation is repeated.
    unfinished, finished = checkout / ".venv-unfinished", checkout / ".venv"
    say(f"install {REFERENCE} in its own environment (about a minute)")
    _call(sys.executable, "-m", "venv", "--clear", str(unfinished))
    # The same versions of the dependencies as in this checkout, so that only the project differs.
    pip = [str(unfinished / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    _call(*pip, "--constraint", str(CONSTRAINTS), "--editable", str(checkout))
    unfinished.rename(finished)


def _check(checkout: Path) -> None:
    # Another folder as working directory: in this checkout, its packages would have priority.
    command = [interpreter_of(checkout), "-c", "import breadcrumbs.runtime as r; print(r.__path__[0])"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode or not Path(done.stdout.strip()).is_relative_to(checkout.resolve()):
        raise NoReference(
            f"the environment {checkout}/.venv does not contain the project of this checkout. Install it there: "
            f".venv/bin/python -m pip install --editable . {done.stderr[-300:]}"
        )


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoReference(
            f"{' '.join(command)} failed: {done.stderr[-500:].strip()}. "
            f"In a shallow clone, run git fetch --unshallow. Or pass a checkout of {REFERENCE} with --reference"
        )
