"""The notes of a release are the section of its version in the changelog."""

from __future__ import annotations

import pytest

from tests.support.release_notes import NotReleasable, release_notes

CHANGELOG = """# Changelog

## [0.2.0] - 2030-12-31

### Added

- A route.

## 0.1.0 - 2030-11-30

### Added

- Everything.

## 0.0.1 - unreleased

- Nothing.

[0.2.0]: https://example.org/v0.2.0
"""


@pytest.mark.parametrize(
    ("version", "notes"),
    [("0.2.0", "### Added\n\n- A route."), ("0.1.0", "### Added\n\n- Everything.")],
)
def test_the_notes_are_one_section_without_its_heading(version: str, notes: str) -> None:
    assert release_notes(f"v{version}", version, CHANGELOG) == notes


def test_the_last_section_ends_before_the_links() -> None:
    text = CHANGELOG.replace("unreleased", "2030-10-31")
    assert release_notes("v0.0.1", "0.0.1", text) == "- Nothing."


@pytest.mark.parametrize(
    ("tag", "version", "reason"),
    [
        ("v0.2.1", "0.2.0", "use the tag v0.2.0"),
        ("0.2.0", "0.2.0", "use the tag v0.2.0"),
        ("v0.0.1", "0.0.1", "add the date"),
        ("v0.3.0", "0.3.0", "add the date"),
    ],
)
def test_a_release_without_a_matching_tag_and_a_dated_section_is_refused(
    tag: str, version: str, reason: str
) -> None:
    with pytest.raises(NotReleasable, match=reason):
        release_notes(tag, version, CHANGELOG)


def test_a_release_without_changes_is_refused() -> None:
    with pytest.raises(NotReleasable, match="lists no changes"):
        release_notes("v0.1.0", "0.1.0", "## 0.1.0 - 2030-01-01\n\n## 0.0.1 - 2029-01-01\n")
