"""The zip file of the extension."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from tests.web.extension_support import EXTENSION, chrome_with_extension

REFERENCE = re.compile(
    r"""(?:\bfrom|\bimport|\bsrc=|\bhref=|["']?\w+["']?\s*:)\s*\(?\s*["']([\w./-]+\.(?:js|css|html|png))["']"""
)


def packed(target: Path, *options: str) -> Path:
    subprocess.run([sys.executable, EXTENSION / "pack.py", target, *options], check=True, capture_output=True)
    return target


def test_the_zip_contains_every_file_that_another_one_names_and_no_sources(tmp_path: Path) -> None:
    with zipfile.ZipFile(packed(tmp_path / "extension.zip")) as archive:
        names = set(archive.namelist())
        for name in names - {"LICENSE", "client/index.js"}:
            if name.endswith((".js", ".html", ".json")):
                folder = PurePosixPath(name).parent
                for reference in REFERENCE.findall(archive.read(name).decode()):
                    path = (EXTENSION / folder / reference).resolve().relative_to(EXTENSION)
                    assert path.as_posix() in names, f"{name} names {reference}"
    assert {"manifest.json", "background.js", "panel.html", "src/panel.js", "LICENSE"} <= names
    assert not {
        name for name in names if name.endswith((".md", ".py", ".ts", ".txt", ".svg", "jsconfig.json"))
    }


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (packed(tmp_path / name).read_bytes() for name in ("a.zip", "b.zip"))
    assert first == second


def test_the_manifest_for_the_store_has_no_key(tmp_path: Path) -> None:
    with zipfile.ZipFile(packed(tmp_path / "store.zip", "--store")) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    original = json.loads((EXTENSION / "manifest.json").read_text("utf-8"))
    assert "key" not in manifest and manifest == {k: v for k, v in original.items() if k != "key"}


async def test_the_unpacked_zip_runs_in_a_browser(
    chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(packed(tmp_path / "extension.zip")) as archive:
        archive.extractall(folder)
    monkeypatch.setattr("tests.web.extension_support.EXTENSION", folder)
    async with chrome_with_extension(chromium, tmp_path / "profile") as chrome:
        panel = await chrome.page("panel.html")
        await panel.get_by_role("button", name="Attach page").wait_for()
        assert chrome.errors == []
