"""What axe-core has to say about a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from axe_playwright_python.base import AXE_FILE_PATH
from playwright.async_api import Page

_AXE = Path(AXE_FILE_PATH).read_text("utf-8")


async def serious(page: Page) -> list[dict[str, Any]]:
    """Its serious findings. Run from here, because the page's policy lets nothing in."""
    await page.evaluate(_AXE)
    found = await page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        {"rule": one["id"], "where": [node["target"] for node in one["nodes"]], "help": one["help"]}
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
