"""The TypeScript client that the page and the extension share."""

from __future__ import annotations

import json
import re

from tests.web.built_files import CLIENT_SOURCES, OUTDATED, WEB, built_from, source_hash
from tests.web.extension_support import EXTENSION

CLIENT = WEB / "client"
SOURCES = sorted((CLIENT / "src").glob("*.ts"))
IMPORTED = re.compile(r'\b(?:from|import)\s*\(?\s*"([^"]+)"')


def test_the_client_of_the_extension_is_built_from_the_current_sources() -> None:
    assert source_hash(CLIENT_SOURCES) == built_from(EXTENSION / "client"), OUTDATED


def test_the_client_imports_nothing_from_outside() -> None:
    for file in SOURCES:
        imported = IMPORTED.findall(file.read_text("utf-8"))
        assert all((CLIENT / "src" / name).is_file() for name in imported), file.name
    package = json.loads((CLIENT / "package.json").read_text("utf-8"))
    assert "dependencies" not in package


def test_the_client_works_without_a_page() -> None:
    for file in SOURCES:
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read_text("utf-8"), flags=re.DOTALL)
        used = re.findall(r"\b(?:document|window|localStorage|sessionStorage|chrome)\s*\.", code)
        assert not used, file.name


def test_the_built_client_exports_what_the_extension_needs() -> None:
    built = (EXTENSION / "client" / "index.js").read_text("utf-8")
    exports = re.search(r"export \{([^}]*)\}", built)
    assert exports is not None
    assert {"Client", "EventStream", "Outbox", "renderMarkdown"} <= set(re.findall(r"\w+", exports[1]))
