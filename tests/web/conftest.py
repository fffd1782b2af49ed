"""Fixtures for tests of the page in a real Chromium, with a real `crumb up`."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from tests.client.support import CrumbUp
from tests.support.model_server import ModelServer, Scenario
from tests.web.chat import Api

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Generous, because test machines can be slow. A wait ends as soon as its condition is met.
TIMEOUT_MS = 30_000


@pytest.fixture(scope="session")
def chromium() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        how = "there is no Chromium here (Debian: apt-get install chromium), so the page cannot be looked at"
        if os.environ.get("CI") == "true":
            pytest.fail(how)
        pytest.skip(how)
    return found


@pytest.fixture(scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    expect.set_options(timeout=TIMEOUT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture(scope="session")
def crumb_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrumbUp]:
    """Server with the offline model. All tests of the page share it, so each test uses its own session."""
    with CrumbUp(tmp_path_factory.mktemp("page")) as up:
        yield up


class MakeCrumbUp(Protocol):
    def __call__(self, **settings: str) -> CrumbUp: ...


@pytest.fixture
def make_crumb_up(tmp_path: Path) -> Iterator[MakeCrumbUp]:
    """Factory for servers of one test, which it can kill or configure."""
    made: list[CrumbUp] = []

    def make(**settings: str) -> CrumbUp:
        folder = tmp_path / f"up{len(made)}"
        folder.mkdir()
        made.append(CrumbUp(folder, **settings))
        made[-1].start()
        return made[-1]

    yield make
    for up in made:
        up.__exit__()


@dataclass(frozen=True, slots=True)
class ControlledServer:
    """A `crumb up` with a model that a test controls."""

    url: str
    model: Scenario

    def behave(self, behaviour: str, **options: Any) -> None:
        """Set the behaviour of the model. `tests/support/model_server.py` lists the behaviours."""
        self.model.behaviour = behaviour
        self.model.options.clear()
        self.model.options.update(options)
        self.model.requests.clear()


@pytest.fixture(scope="session")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlledServer]:
    with ModelServer() as server:
        model = server.scenario("normal")
        with CrumbUp(tmp_path_factory.mktemp("controlled"), CRUMB_MODEL=f"{model.url}#test") as up:
            yield ControlledServer(up.url, model)


class OpenWindow(Protocol):
    def __call__(self, url: str, **context: Any) -> Awaitable[Page]: ...


@pytest.fixture
async def open_window(browser: Browser) -> AsyncIterator[OpenWindow]:
    """Open windows in separate browser contexts.

    The test fails if a page violated its content security policy or raised an error.
    """
    errors: list[str] = []
    contexts = []

    def note(message: ConsoleMessage) -> None:
        # Tests cause network errors on purpose. A violation of the policy is always a fault.
        if "Content Security Policy" in message.text or "Refused to" in message.text:
            errors.append(message.text)

    async def open_window(url: str, **options: Any) -> Page:
        context = await browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = await context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.goto(url)
        return page

    yield open_window
    for context in contexts:
        await context.close()
    assert not errors


@pytest.fixture
def api(crumb_up: CrumbUp) -> Iterator[Api]:
    with closing(Api(crumb_up.url)) as api:
        yield api
