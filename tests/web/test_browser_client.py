"""The chat page in docs/http.md, extracted from the document and run in Chromium on another origin."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from tests.client.support import CrumbUp, Line
from tests.support.model_server import ModelServer, Scenario
from tests.web.conftest import OpenWindow

DOCUMENT = Path(__file__).parents[2] / "docs" / "http.md"
SERVER = "http://127.0.0.1:8081"
API_KEY = "a-key-of-the-backend"
OWNER = "00000000-0000-0000-0000-0000000000f1"


def documented_page() -> str:
    """Return the HTML page in the document."""
    (found,) = re.findall(r"^```html\n(.*?)^```$", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


class Backend:
    """The own site of the page: it serves the page and exchanges its API key for tokens."""

    def __init__(self) -> None:
        self.server = self.direct = ""
        """Address of Breadcrumbs for the browser, and for this backend."""
        self.line: Line
        self.model: Scenario
        self.session, self.lifetime, self.issued = "embedded", 600, 0
        backend = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = documented_page().replace(SERVER, backend.server)
                self._reply("text/html; charset=utf-8", page.encode())

            def do_POST(self) -> None:
                self._reply("application/json", json.dumps(backend.token()).encode())

            def _reply(self, kind: str, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._site = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._site.server_port}"
        threading.Thread(target=self._site.serve_forever, daemon=True).start()

    def token(self) -> Any:
        self.issued += 1
        wanted = {
            "session_id": self.session,
            "user_id": "ann",
            "roles": ["emitter", "subscriber"],
            "ttl_sec": self.lifetime,
        }
        reply = httpx.post(
            f"{self.direct}/auth/token", json=wanted, headers={"X-API-Key": API_KEY}, trust_env=False
        )
        return reply.raise_for_status().json()

    def close(self) -> None:
        self._site.shutdown()
        self._site.server_close()


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def backend(tmp_path: Path, model: ModelServer) -> Iterator[Backend]:
    site = Backend()
    scenario = model.scenario("normal", pause=0.01)
    settings = {
        "CRUMB_API_KEYS": json.dumps([{"key": API_KEY, "owner_id": OWNER}]),
        "CRUMB_ALLOWED_ORIGINS": json.dumps([site.origin]),
        "CRUMB_MODEL": f"{scenario.url}#test",
    }
    with CrumbUp(tmp_path, **settings) as up, Line(up.url) as line:
        site.direct, site.server = up.url, line.url
        site.line, site.model = line, scenario
        yield site
    site.close()


async def send(page: Page, text: str) -> None:
    await page.locator("#text").fill(text)
    await page.get_by_role("button", name="Send").click()


def lines(page: Page) -> Any:
    return page.locator("#log li")


def test_the_documented_page_has_40_lines() -> None:
    assert len(documented_page().splitlines()) <= 40


async def test_the_documented_page_chats_resumes_and_renews_its_token(
    backend: Backend, open_window: OpenWindow
) -> None:
    backend.lifetime = 3
    page = await open_window(backend.origin)
    await send(page, "first")
    await expect(lines(page)).to_have_count(2)
    await expect(lines(page).nth(0)).to_have_text("first")
    await expect(lines(page).nth(1)).not_to_be_empty()

    backend.line.cut()  # the stream resumes
    async with httpx.AsyncClient(
        base_url=backend.direct, headers={"X-API-Key": API_KEY}, trust_env=False
    ) as api:
        posted = await api.post("/sessions/embedded/messages?wait=30", json={"message": "from elsewhere"})
    assert posted.status_code == 200
    await expect(page.get_by_text("from elsewhere", exact=True)).to_have_count(1)
    await expect(lines(page)).to_have_count(4)

    issued = backend.issued
    await page.wait_for_timeout(3500)  # the token expires, the stream ends and starts again with a new token
    await send(page, "after the expiry")
    await expect(lines(page)).to_have_count(6)
    assert backend.issued > issued

    await page.reload()
    await expect(lines(page)).to_have_count(6)


async def test_the_documented_page_stops_an_answer(backend: Backend, open_window: OpenWindow) -> None:
    backend.model.behaviour = "slow_trickle"
    page = await open_window(backend.origin)
    await send(page, "a long answer")
    await expect(lines(page).nth(1)).to_contain_text("drip drip")
    await page.get_by_role("button", name="Stop").click()
    await expect(lines(page).nth(2)).to_contain_text("cancelled")


async def test_the_documented_page_is_refused_from_an_origin_that_is_not_allowed(
    backend: Backend, open_window: OpenWindow
) -> None:
    foreign = Backend()
    foreign.server, foreign.direct = backend.server, backend.direct
    page = await open_window(foreign.origin)
    await send(page, "hello")
    await expect(page.locator("#problem")).to_have_text("Failed to fetch")
    foreign.close()
