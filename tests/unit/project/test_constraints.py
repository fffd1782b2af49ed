"""constraints.txt pins every dependency and names nothing of the machine that wrote it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LINES = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if line[:1] != "#"]
PINS = [Requirement(line) for line in LINES]

# A name, a plain version, and for some an environment marker: no URL, path, hash, option or local version.
PIN = re.compile(r"[a-z0-9-]+==[0-9a-z.]+( ; [a-z0-9_.'<>=! ()]+)?", re.IGNORECASE)


def required() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    lists = [PROJECT["build-system"]["requires"], PROJECT["project"]["dependencies"], *extras]
    return [Requirement(text) for texts in lists for text in texts]


def test_every_line_is_a_name_and_a_version() -> None:
    assert [line for line in LINES if not PIN.fullmatch(line)] == []
    names = [pin.name for pin in PINS]
    assert names == sorted(names)


def test_every_dependency_of_the_project_is_pinned_within_its_bounds() -> None:
    for requirement in required():
        versions = [pin.specifier for pin in PINS if pin.name == canonicalize_name(requirement.name)]
        assert versions, f"{requirement.name} is not pinned: run ./crumb lock"
        for version in versions:
            assert allows(requirement.specifier, version), f"{requirement} is not met: run ./crumb lock"


def test_a_package_has_one_version_per_environment() -> None:
    environments = [(pin.name, str(pin.marker)) for pin in PINS]
    assert len(environments) == len(set(environments))


def test_the_published_package_keeps_its_lower_bounds() -> None:
    specifiers = [one for requirement in required() for one in requirement.specifier]
    assert {one.operator for one in specifiers} == {">="}


def allows(bounds: SpecifierSet, pinned: SpecifierSet) -> bool:
    [version] = pinned
    return bounds.contains(version.version)
