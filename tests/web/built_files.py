"""Hashes the sources of built files, as `web/scripts/stamp.mjs` does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

WEB = Path(__file__).resolve().parents[2] / "web"
CLIENT_SOURCES = ("client/src", "package-lock.json", "scripts")
PAGE_SOURCES = (*CLIENT_SOURCES, "index.html", "src", "tsconfig.json", "vite.config.ts")
OUTDATED = "the built files are older than their sources: run npm ci && npm run build in web/"


def source_hash(sources: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for file in sorted(source_files(sources), key=lambda file: file.relative_to(WEB).as_posix()):
        digest.update(file.relative_to(WEB).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def source_files(sources: Iterable[str]) -> Iterator[Path]:
    for name in sources:
        path = WEB / name
        for file in path.rglob("*") if path.is_dir() else [path]:
            hidden = any(part.startswith(".") for part in file.relative_to(WEB).parts)
            if file.is_file() and not hidden:
                yield file


def built_from(folder: Path) -> str:
    """Return the hash of the sources that the files in a folder were built from."""
    return (folder / "stamp.txt").read_text("utf-8").strip()
