"""Write one version number into every file that has to contain it.

    .venv/bin/python -m tests.support.release_version 0.2.0

`pyproject.toml` is the source: the package, the CLI and the server read the version of the installed package. npm,
Chromium and Helm do not read that file, so the page, the TypeScript client, the extension and the chart repeat the
number.
`tests/unit/project/test_version.py` checks that all of them agree.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]

JSON_FILES: Final = (
    "extension/manifest.json",
    "web/client/package.json",
    "web/package.json",
    "web/package-lock.json",
)
"""Files that repeat the version. The lock file has it twice: at the top, and for the package itself."""

CHART: Final = "deploy/helm/breadcrumbs/Chart.yaml"
"""The chart repeats the version twice: its own, and that of the image."""
FILES: Final = (*JSON_FILES, CHART)

_FORM: Final = re.compile(r"\d+\.\d+\.\d+")  # a manifest of an extension allows numbers and dots only
_JSON_VERSION: Final = re.compile(r'("version": ")([^"]*)(")')
_CHART_VERSION: Final = re.compile(r'^((?:version|appVersion): "?)([^"\n]*)("?)$', re.MULTILINE)
_PROJECT_VERSION: Final = re.compile(r'^(version = ")([^"]*)(")$', re.MULTILINE)


def project_version(root: Path = ROOT) -> str:
    """Return the version in `pyproject.toml`."""
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    version: str = project["project"]["version"]
    return version


def repeated_versions(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield file and version for each place that repeats the number."""
    for name in JSON_FILES:
        document = json.loads((root / name).read_text("utf-8"))
        yield name, document["version"]
        if name.endswith("package-lock.json"):
            yield f"{name}, packages", document["packages"][""]["version"]
    for line in _CHART_VERSION.finditer((root / CHART).read_text("utf-8")):
        yield f"{CHART}, {line[1]}", line[2]


def set_version(version: str, root: Path = ROOT) -> None:
    """Replace the version in all files and leave everything else as it is."""
    if not _FORM.fullmatch(version):
        raise ValueError(f"{version!r} is not a version: use three numbers, such as 0.2.0")
    _replace(root / "pyproject.toml", _PROJECT_VERSION, version, count=1)
    for name in JSON_FILES:
        _replace(root / name, _JSON_VERSION, version, count=2 if name.endswith("package-lock.json") else 1)
    _replace(root / CHART, _CHART_VERSION, version, count=2)


def _replace(path: Path, pattern: re.Pattern[str], version: str, *, count: int) -> None:
    text, replaced = pattern.subn(rf"\g<1>{version}\g<3>", path.read_text("utf-8"), count=count)
    if replaced != count:
        raise ValueError(f"{path} has {replaced} versions, expected {count}")
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.support.release_version VERSION")
    set_version(sys.argv[1])
