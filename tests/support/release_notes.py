"""Print the notes of a release from `CHANGELOG.md`: `python -m tests.support.release_notes v0.2.0`.

Fails if the tag is not the version in `pyproject.toml`, or if the changelog has no date for that version. The release
workflow runs this before anything is built. Only the standard library is imported.
"""

from __future__ import annotations

import re
import sys

from tests.support.release_version import ROOT, project_version


class NotReleasable(Exception):
    """The tag, the version and the changelog do not agree."""


def release_notes(tag: str, version: str, changelog: str) -> str:
    """Return the section of a version, without its heading."""
    if tag != f"v{version}":
        raise NotReleasable(
            f"the tag is {tag}, but the version in pyproject.toml is {version}: use the tag v{version}"
        )
    heading = re.compile(rf"^## \[?{re.escape(version)}\]? - \d{{4}}-\d{{2}}-\d{{2}}$", re.MULTILINE)
    found = heading.search(changelog)
    if found is None:
        raise NotReleasable(f"CHANGELOG.md has no heading like `## [{version}] - 2030-12-31`: add the date")
    notes = re.split(r"^(?:## |\[[^\]]+\]: )", changelog[found.end() :], maxsplit=1, flags=re.MULTILINE)[
        0
    ].strip()
    if not notes:
        raise NotReleasable(f"CHANGELOG.md lists no changes of {version}")
    return notes


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.support.release_notes TAG")
    try:
        notes = release_notes(sys.argv[1], project_version(), (ROOT / "CHANGELOG.md").read_text("utf-8"))
    except NotReleasable as error:
        sys.exit(str(error))
    sys.stdout.write(f"{notes}\n")
