"""Builds the source distribution of a copy of the project."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.egg-info", "node_modules")


def copy_tree(paths: Iterable[str], tree: Path) -> Path:
    """Copy paths of the repository to a folder, so that a build leaves no files in the repository."""
    for name in paths:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=NOT_COPIED)
        else:
            shutil.copy(source, tree / name)
    return tree


def build_sdist(tree: Path, out: Path) -> Path:
    """Build the sdist with the build backend of the project, in an environment that has only setuptools."""
    python = out / "build" / "bin" / "python"
    venv.create(out / "build", with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "setuptools>=77"]
    subprocess.run(pip, check=True, capture_output=True, timeout=110)
    subprocess.run(
        [str(python), "-c", PROGRAM, str(out)], cwd=tree, check=True, capture_output=True, timeout=110
    )
    (sdist,) = out.glob("*.tar.gz")
    return sdist
