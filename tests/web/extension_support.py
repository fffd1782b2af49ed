"""Support for tests of the chat extension, loaded unpacked into a real Chromium."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
from playwright.async_api import BrowserContext, Locator, Page, async_playwright, expect

from tests.client.support import CrumbUp

EXTENSION = Path(__file__).resolve().parents[2] / "extension"
FOREIGN_HOST = "pages.example"
"""Host that resolves to loopback and counts as foreign, so Chrome requires a permission for its pages."""

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-unsafe-extension-debugging",  # for clicks on the toolbar icon
)

# Generous, because test machines can be slow. A wait ends as soon as its condition is met.
TIMEOUT_MS = 30_000


class Chrome:
    """Chromium with the extension installed."""

    def __init__(self, context: BrowserContext, extension_id: str) -> None:
        self.context = context
        self.extension_id = extension_id
        self.errors: list[str] = []
        """Uncaught errors of the extension's pages."""

    def url(self, path: str) -> str:
        return f"chrome-extension://{self.extension_id}/{path}"

    async def page(self, path: str) -> Page:
        page = await self.context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        await page.goto(self.url(path))
        return page

    async def panel(self, session: str) -> Page:
        """Open the panel with this session in a tab and wait for its connection."""
        panel = await self.page(f"panel.html#session={quote(session, safe='')}")
        await expect_connected(panel)
        return panel

    async def reset(self) -> None:
        """Clear the stored settings and unsent messages, as after an installation."""
        page = await self.page("options.html")
        await page.evaluate("() => chrome.storage.local.clear()")
        await page.close()

    async def configure(self, server: str, token: str = "") -> None:
        """Store the settings as the options page does."""
        page = await self.page("options.html")
        await page.evaluate(
            "settings => chrome.storage.local.set(settings)", {"server": server, "token": token}
        )
        await page.close()

    async def click_icon(self, page: Page) -> None:
        """Click the extension's toolbar icon while this page is in front."""
        assert self.context.browser is not None
        devtools = await self.context.browser.new_browser_cdp_session()
        targets = await devtools.send("Target.getTargets", {"filter": [{"type": "tab"}]})
        [tab] = [target["targetId"] for target in targets["targetInfos"] if target["url"] == page.url]
        await devtools.send("Extensions.triggerAction", {"id": self.extension_id, "targetId": tab})
        await devtools.detach()

    async def open_documents(self) -> list[str]:
        """Return the URLs of all open documents, including the side panel."""
        assert self.context.browser is not None
        devtools = await self.context.browser.new_browser_cdp_session()
        targets = await devtools.send("Target.getTargets", {"filter": [{"type": "page"}]})
        await devtools.detach()
        return [target["url"] for target in targets["targetInfos"]]


@asynccontextmanager
async def chrome_with_extension(chromium: str, profile: Path) -> AsyncIterator[Chrome]:
    expect.set_options(timeout=TIMEOUT_MS)
    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(
            profile,
            executable_path=chromium,
            viewport={"width": 400, "height": 760},
            ignore_default_args=["--disable-extensions"],
            args=[
                *FLAGS,
                f"--host-resolver-rules=MAP {FOREIGN_HOST} 127.0.0.1",
                f"--load-extension={EXTENSION}",
                f"--disable-extensions-except={EXTENSION}",
            ],
        )
        try:
            workers = context.service_workers
            worker = workers[0] if workers else await context.wait_for_event("serviceworker")
            yield Chrome(context, worker.url.split("/")[2])
        finally:
            await context.close()


async def expect_connected(panel: Page) -> None:
    await expect(panel.locator("#dot")).to_have_attribute("data-status", "open")


async def wait_until_confirmed(panel: Page) -> None:
    """Wait until the outbox of the extension is empty."""
    waiting = await panel.evaluate(
        """(patience) => new Promise((resolve) => {
            const look = async () => {
                const { outbox } = await chrome.storage.local.get({ outbox: [] });
                if (!outbox.length) resolve([]);
            };
            chrome.storage.local.onChanged.addListener(look);
            setTimeout(async () => resolve((await chrome.storage.local.get("outbox")).outbox), patience);
            look();
        })""",
        TIMEOUT_MS,
    )
    assert waiting == [], "the outbox is not empty"


async def say(panel: Page, text: str) -> None:
    await panel.locator("#text").fill(text)
    await panel.locator("#text").press("Enter")


def answers(panel: Page) -> Locator:
    """Return the stored answers, without drafts."""
    return panel.locator(".answer:not(.draft)")


class Blackboard:
    """HTTP client that reads and writes the store behind the extension."""

    def __init__(self, url: str, **headers: str) -> None:
        self.client = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def crumbs(self, session: str, schema_name: str) -> list[dict[str, Any]]:
        """Return the breadcrumbs of a session with this schema, oldest first."""
        found = self.client.get(
            "/breadcrumbs",
            params={
                "session_id": session,
                "schema_name": schema_name,
                "include_context": "true",
                "sort": "created_at",
            },
        )
        found.raise_for_status()
        return list(found.json())

    def said(self, session: str) -> list[str]:
        return [crumb["context"]["message"] for crumb in self.crumbs(session, "user.message.v1")]

    def post(self, session: str | None, schema_name: str, title: str = "", **context: Any) -> str:
        reply = self.client.post(
            "/breadcrumbs",
            json={
                "schema_name": schema_name,
                "title": title,
                "tags": [] if session is None else [f"session:{session}"],
                "context": context,
            },
        )
        reply.raise_for_status()
        return str(reply.json()["id"])


def kill(up: CrumbUp) -> None:
    """Kill `crumb up` with SIGKILL, like a crash, and wait until its embedded server has ended."""
    assert up.process is not None and up.process.stdout is not None
    os.kill(up.process.pid, signal.SIGKILL)
    up.process.wait(60)
    up.process.stdout.close()
    # The embedded server gets a signal from the kernel and needs time to release its files.
    children = subprocess.run(
        ["pgrep", "-s", str(up.process.pid)], capture_output=True, text=True, check=False
    )
    for pid in children.stdout.split():
        _wait_for_end_of(int(pid))


def _wait_for_end_of(pid: int) -> None:
    ended = threading.Event()
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        ended.wait(0.05)
    raise AssertionError(f"process {pid} outlives the server that it belongs to")


@contextmanager
def web_page(html: str) -> Iterator[int]:
    """Serve a page on loopback and yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = html.encode()
            self.send_response(200)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def readme_json() -> list[str]:
    """Return the JSON blocks of the extension's README."""
    return re.findall(r"```json\n(.*?)```", (EXTENSION / "README.md").read_text("utf-8"), re.DOTALL)
