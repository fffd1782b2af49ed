"""The built page comes with the licences of all packages that are in it, also in the wheel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

WEB = Path(__file__).resolve().parents[3] / "web"
NOTICES = (WEB / "dist" / "THIRD_PARTY_NOTICES.txt").read_text("utf-8")
LOCKED: dict[str, dict[str, Any]] = json.loads((WEB / "package-lock.json").read_text("utf-8"))["packages"]
BUNDLERS = {"node_modules/rolldown", "node_modules/vite"}  # they add helper functions of their own
OUTDATED = "the notices are outdated: run npm ci && npm run build in web/"


def bundled() -> list[str]:
    """Return name, version and licence of each package that can be in the built page."""
    return [
        f"{folder.rpartition('node_modules/')[2]} {package['version']} ({package['license']})"
        for folder, package in LOCKED.items()
        if folder and (not package.get("dev") or folder in BUNDLERS)
    ]


def sections() -> dict[str, str]:
    """Return the licence text of each package in the notices."""
    found: dict[str, str] = {}
    for section in re.split(r"^-{80}$", NOTICES, flags=re.MULTILINE)[1:]:
        packages, _, licence = section.strip().partition("\n\n")
        found |= dict.fromkeys(packages.splitlines(), licence)
    return found


def test_the_notices_list_exactly_the_packages_in_the_page() -> None:
    assert len(bundled()) > 10
    assert sorted(sections()) == sorted(bundled()), OUTDATED


@pytest.mark.parametrize("package", bundled())
def test_each_package_has_its_copyright_and_its_permission(package: str) -> None:
    licence = sections()[package]
    assert re.search(r"Copyright \(c\)|Copyright ©", licence, re.IGNORECASE)
    assert "Permission is hereby granted, free of charge" in licence
    assert "WITHOUT WARRANTY OF ANY KIND" in licence


def test_every_package_in_the_page_has_a_licence_that_asks_for_a_notice_only() -> None:
    assert {package.rpartition(" ")[2] for package in bundled()} == {"(MIT)"}


def test_a_build_writes_the_notices_again() -> None:
    scripts = json.loads((WEB / "package.json").read_text("utf-8"))["scripts"]
    assert scripts["build"].split(" && ") == ["node scripts/build.mjs", "node notices.mjs"]
