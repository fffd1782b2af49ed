"""Makes the pictures of the page in docs/img, from a real `crumb up` in a real Chromium.

    .venv/bin/python docs/screenshots.py

Needs what the tests need (`./crumb test` installs it) and a Chromium.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parent / "img"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDE = {"width": 1180, "height": 740}
NARROW = {"width": 360, "height": 700}

HARBOUR, GARDEN = "harbour", "garden"
TALK = (
    (HARBOUR, "The ferry leaves at **9:40** from pier 3."),
    (GARDEN, "The tomatoes need water every evening."),
    (HARBOUR, "What is 12 * 34.5?"),
    (GARDEN, "What did I say?"),
    (HARBOUR, "What did I say?"),
)


@contextmanager
def crumb_up() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="crumb-pictures-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "breadcrumbs", "up", "--port", "0", "--data", f"{folder}/data"],
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "CRUMB_LOG_LEVEL": "error"},
        )
        try:
            assert process.stdout is not None
            yield str(json.loads(process.stdout.readline())["url"])
        finally:
            process.terminate()
            process.wait(20)


def talk(url: str) -> str:
    """Two conversations; the id of the answer that took a tool."""
    answers = []
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        for session, title in ((HARBOUR, "Harbour"), (GARDEN, "Garden")):
            client.post("/sessions", json={"id": session, "title": title}).raise_for_status()
        for session, text in TALK:
            said = client.post(f"/sessions/{session}/messages", params={"wait": 30}, json={"message": text})
            said.raise_for_status()
            answers.append(str(said.json()["answer"]["id"]))
    return answers[2]


def window(browser: Browser, url: str, *, narrow: bool = False, dark: bool = False) -> Page:
    """A window of its own, ready to be looked at; `taken` takes the picture."""
    context = browser.new_context(
        viewport=NARROW if narrow else WIDE,  # type: ignore[arg-type]
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        locale="en-GB",
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_timeout(2_500)  # until nothing moves any more
    return page


def taken(page: Page, name: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    page.screenshot(path=IMAGES / f"{name}.png")
    page.context.close()
    print(f"docs/img/{name}.png")


def main() -> None:
    chromium = next((path for name in NAMES if (path := shutil.which(name))), None)
    if chromium is None:
        sys.exit("There is no Chromium here. Debian: apt-get install chromium")
    with crumb_up() as url, sync_playwright() as playwright:
        answer = talk(url)
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--headless=new", "--no-sandbox", "--disable-gpu"]
        )
        taken(window(browser, f"{url}/#/chat/{HARBOUR}"), "chat")
        taken(window(browser, f"{url}/#/chat/{GARDEN}", narrow=True, dark=True), "chat-narrow")
        why = window(browser, f"{url}/#/chat/{HARBOUR}")
        why.get_by_role("button", name="Why this answer?").last.click()
        why.wait_for_timeout(1_500)
        taken(why, "why")
        taken(window(browser, f"{url}/#/board"), "board")
        turn = window(browser, f"{url}/#/board/{answer}")
        taken(turn, "turn")
        taken(window(browser, f"{url}/#/config"), "config")
        operations = window(browser, f"{url}/#/operations")
        for _ in range(4):  # something for the plots to show
            talk_once(url)
            operations.wait_for_timeout(3_000)
        taken(operations, "operations")
        browser.close()


def talk_once(url: str) -> None:
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        for number in range(10):
            client.post(
                f"/sessions/{GARDEN}/messages", params={"wait": 30}, json={"message": f"Row {number}"}
            )


if __name__ == "__main__":
    main()
