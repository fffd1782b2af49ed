"""The version number has one source, `pyproject.toml`, and every other place agrees with it."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

import breadcrumbs
from breadcrumbs.runtime.version import VERSION
from tests.support.release_version import FILES, ROOT, project_version, repeated_versions, set_version

PACKAGES = ("agents", "breadcrumbs", "config", "context_builder", "runtime", "web")


def test_the_package_and_the_server_report_the_version_of_the_project() -> None:
    assert version("breadcrumbs") == project_version(), "reinstall the package: pip install --editable ."
    assert breadcrumbs.__version__ == project_version()
    assert project_version() == VERSION


@pytest.mark.parametrize(("place", "found"), list(repeated_versions()))
def test_files_for_npm_chromium_and_helm_repeat_the_version_of_the_project(place: str, found: str) -> None:
    assert found == project_version(), f"{place}: run python -m tests.support.release_version"


def test_no_python_module_contains_the_version() -> None:
    files = [
        file for name in PACKAGES for file in (ROOT / name).rglob("*.py") if "node_modules" not in file.parts
    ]
    assert len(files) > 100
    assert [file for file in files if f'"{project_version()}"' in file.read_text("utf-8")] == []


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", *FILES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_new_version_is_written_into_every_place_and_changes_nothing_else(copied: Path) -> None:
    set_version("12.34.56", copied)
    assert project_version(copied) == "12.34.56"
    assert {found for _, found in repeated_versions(copied)} == {"12.34.56"}
    set_version(project_version(), copied)
    for name in ("pyproject.toml", *FILES):
        assert (copied / name).read_bytes() == (ROOT / name).read_bytes()


@pytest.mark.parametrize("wrong", ["v0.2.0", "0.2", "0.2.0rc1", ""])
def test_a_version_that_an_extension_cannot_have_is_refused(copied: Path, wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a version"):
        set_version(wrong, copied)
    assert project_version(copied) == project_version()
