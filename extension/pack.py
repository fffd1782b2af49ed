"""Packs the extension into a zip file: `python3 extension/pack.py`.

The file contains only what the browser needs. The same sources always give the same bytes: the order and the times of
the entries are fixed.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
NEEDED: Final = (
    "manifest.json",
    "background.js",
    "options.html",
    "panel.html",
    "client/index.js",
    "icons/*.png",
    "src/*.js",
    "style/*.css",
)
"""Patterns of the files in the zip. The licence is added from the top folder."""
LICENCE: Final = "LICENSE"
TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Time of every entry, the earliest that a zip file can contain."""


def needed_files() -> dict[str, Path]:
    """Return the path of each file of the extension by its name in the zip. Raises if a pattern finds no file."""
    found = {LICENCE: FOLDER.parent / LICENCE}
    for pattern in NEEDED:
        matches = sorted(FOLDER.glob(pattern))
        if not matches:
            raise SystemExit(f"extension/{pattern} is missing: build the client with `npm run build` in web/")
        found |= {path.relative_to(FOLDER).as_posix(): path for path in matches}
    return dict(sorted(found.items()))


def pack(target: Path, *, for_store: bool = False) -> None:
    """Write the zip file. The Chrome Web Store refuses a manifest with a key, so `for_store` removes it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, path in needed_files().items():
            content = path.read_bytes()
            if name == "manifest.json" and for_store:
                content = _without_key(content)
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)


def _without_key(manifest: bytes) -> bytes:
    document = json.loads(manifest)
    del document["key"]
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def main() -> None:
    version = json.loads((FOLDER / "manifest.json").read_text("utf-8"))["version"]
    default = FOLDER.parent / "dist" / f"breadcrumbs-extension-{version}.zip"
    parser = argparse.ArgumentParser(description="Pack the extension into a zip file.")
    parser.add_argument(
        "target", nargs="?", type=Path, default=default, help=f"default: {default.name} in dist/"
    )
    parser.add_argument("--store", action="store_true", help="remove the key, for the Chrome Web Store")
    wanted = parser.parse_args()
    pack(wanted.target, for_store=wanted.store)
    sys.stdout.write(f"{wanted.target} ({wanted.target.stat().st_size:,} bytes)\n")


if __name__ == "__main__":
    main()
