"""Accessibility check of a page with axe-core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from axe_playwright_python.base import AXE_FILE_PATH
from playwright.async_api import Page

_AXE = Path(AXE_FILE_PATH).read_text("utf-8")


async def serious(page: Page) -> list[dict[str, Any]]:
    """Return the serious and critical violations.

    The script is evaluated from here, because the policy of the page allows no foreign script.
    """
    await page.evaluate(_AXE)
    found = await page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        {"rule": one["id"], "where": [node["target"] for node in one["nodes"]], "help": one["help"]}
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
