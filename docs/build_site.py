"""Builds the documentation site from the documents of the repository, and fails on a broken link.

    .venv/bin/python docs/build_site.py            # writes the folder build/site
    .venv/bin/python docs/build_site.py --out DIR

The site needs no server: open `index.html` in a browser. The pages load nothing from other servers. `./crumb test`
installs the generator. To install it alone: `pip install '.[docs]'`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

OTHER_PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "bench/README.md": "project/bench.md",
    "deploy/README.md": "project/deploy.md",
    "examples/README.md": "project/examples.md",
    "extension/README.md": "project/extension.md",
    "web/README.md": "project/web.md",
}
"""Documents outside of `docs/` and their pages on the site."""

HOME = {"README.md": "index.md", "docs/decisions": "decisions/README.md", "docs/reference": "index.md"}
"""Targets of links that are another page on the site."""

LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
EXTERNAL = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>"""
)
CANONICAL = re.compile(r"""rel=["']?canonical""")


class BuildError(Exception):
    """The site could not be built. The message says why."""


def page_of(file: str) -> str | None:
    """Return the page of a file of the repository, or None if it has none."""
    if file in HOME:
        return HOME[file]
    if file in OTHER_PAGES:
        return OTHER_PAGES[file]
    path = Path(file)
    if path.parts[:1] == ("docs",) and path.suffix in (".md", ".svg", ".png"):
        return path.relative_to("docs").as_posix()
    return None


def with_links_of_the_site(text: str, file: str, page: str) -> str:
    """Return a document with its links changed to pages. A link to a file without a page becomes plain text."""

    def changed(found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        named = os.path.normpath(os.path.join(os.path.dirname(file), target))
        if not (ROOT / named).exists():
            raise BuildError(f"{file}: the target of the link {found['target']} does not exist")
        inner = LINK.sub(changed, found["text"])
        to = page_of(named)
        if to is None:
            return inner
        relative = os.path.relpath(to, os.path.dirname(page) or ".")
        return f"{found['image']}[{inner}]({relative}{'#' + anchor if anchor else ''})"

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(changed, part) for part in parts[::2]]
    return "".join(parts)


def documents() -> dict[str, str]:
    """Return the documents of the site and their pages."""
    found = [file.relative_to(ROOT).as_posix() for file in sorted(DOCS.rglob("*.md"))]
    return {file: file.removeprefix("docs/") for file in found} | OTHER_PAGES


def stage(folder: Path) -> None:
    """Copy the documents, the pictures and the config to the folder that the generator reads."""
    pages = folder / "pages"
    for file, page in documents().items():
        target = pages / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(with_links_of_the_site((ROOT / file).read_text("utf-8"), file, page), "utf-8")
    shutil.copytree(DOCS / "img", pages / "img")
    shutil.copy(DOCS / "style.css", pages)
    shutil.copy(DOCS / "zensical.toml", folder)


def pages_of_the_navigation(entry: object) -> list[str]:
    """Return the pages that the navigation lists."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ()
    return [page for part in inner for page in pages_of_the_navigation(part)]


def check_navigation() -> None:
    """Raise BuildError unless the navigation lists each page once. The generator does not check this."""
    listed = pages_of_the_navigation(
        tomllib.loads((DOCS / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    )
    pages = set(documents().values())
    for problem, names in (
        ("missing in the navigation of docs/zensical.toml", pages - set(listed)),
        ("in the navigation of docs/zensical.toml, but not a document", set(listed) - pages),
        (
            "twice in the navigation of docs/zensical.toml",
            {name for name in listed if listed.count(name) > 1},
        ),
    ):
        if names:
            raise BuildError(f"{problem}: {', '.join(sorted(names))}")


def check_that_nothing_is_external(site: Path) -> None:
    """Raise BuildError if a page loads a script, a style sheet, a font or a picture from another server."""
    for page in site.rglob("*.html"):
        for tag in EXTERNAL.findall(page.read_text("utf-8")):
            if not CANONICAL.search(tag):
                raise BuildError(f"{page.relative_to(site)} loads something from another server: {tag}")
    for style in site.rglob("*.css"):
        found = re.search(r"@import[^;]*//|url\(['\"]?(?:https?:)?//[^)]*\)", style.read_text("utf-8"))
        if found:
            raise BuildError(f"{style.relative_to(site)} loads something from another server: {found[0]}")


def build(out: Path, report: Callable[[str], None] = print) -> None:
    """Build the site into a folder. Raise BuildError if something is wrong."""
    check_navigation()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stage(folder)
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        output = re.sub(r"\x1b\[[\d;]*m", "", ended.stdout + ended.stderr.partition("Traceback")[0])
        if ended.returncode != 0 or not (folder / "site" / "index.html").is_file():
            raise BuildError(f"zensical failed:\n{output}")
        check_that_nothing_is_external(folder / "site")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder / "site", out)
    report(f"{len(list(out.rglob('*.html')))} pages in {out}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder to write")
    out = parser.parse_args().out
    try:
        build(out)
    except BuildError as error:
        print(f"build_site: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
