"""Generates the sync client from the async one: `python -m tests.support.sync_client`.

Each module of `breadcrumbs/client/aio` becomes the module of the same name in `breadcrumbs/client/sync`. Words
are replaced also in docstrings, so their examples stay right.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).resolve().parents[2] / "breadcrumbs" / "client"
HEADER: Final = "# Generated from {source} by `python -m tests.support.sync_client`. Do not edit.\n"

_REPLACEMENTS: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\bAsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
        (r"\bAsync([A-Z])", r"\1"),
        (r"\basync_(shield|sleep)\b", r"\1"),
        (r"\b__a(enter|exit)__\b", r"__\1__"),
        (r"\ba(closing|close|next|read|iter_raw)\b", r"\1"),
        (r"\bbreadcrumbs\.client\.aio\b", "breadcrumbs.client.sync"),
    )
)


def sync_sources() -> dict[Path, str]:
    """Return the text of each generated module, by its path."""
    return {
        CLIENT / "sync" / source.name: _formatted(_sync_text(source))
        for source in sorted((CLIENT / "aio").glob("*.py"))
    }


def _sync_text(source: Path) -> str:
    if source.name == "__init__.py":
        text = source.read_text("utf-8").partition('"""\n')[2]
        text = '"""The sync client. Generated: see the package `aio`."""\n' + text
    else:
        text = source.read_text("utf-8")
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return HEADER.format(source=f"breadcrumbs/client/aio/{source.name}") + text


def _formatted(text: str) -> str:
    """Sort the imports, and simplify loops that only async code needs."""
    fix = ["check", "--select=I,C416,UP028", "--fix", "--unsafe-fixes"]
    for arguments in (fix, ["format"]):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *arguments,
            "--quiet",
            f"--stdin-filename={CLIENT}/sync.py",
            "-",
        ]
        ended = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        text = ended.stdout
    return text


def main() -> None:
    for path, text in sync_sources().items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
