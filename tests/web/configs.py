"""Actions, locators and servers for tests of the config editor and the why panel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
from playwright.async_api import Locator, Page, expect

from tests.client.support import CrumbUp

INJECTION = (
    "<img src=x onerror=\"document.title='broken into'\"><script>document.title='broken into'</script>"
)

MESSAGES: dict[str, Any] = {
    "key": "conversation",
    "schema_name": "user.message.v1",
    "fetch": {"method": "recent", "limit": 10},
}
ANSWERS: dict[str, Any] = MESSAGES | {"schema_name": "agent.response.v1"}


def config(**changes: Any) -> dict[str, Any]:
    return {
        "consumer_id": "default-chat-assistant",
        "update_triggers": [{"schema_name": "user.message.v1"}],
        "sources": [MESSAGES, ANSWERS],
    } | changes


def format_json(document: Any) -> str:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


class Server:
    """HTTP client of a `crumb up`, and its context config file."""

    def __init__(self, url: str, file: Path) -> None:
        self.url = url
        self.file = file
        self.client = httpx.Client(base_url=url, trust_env=False, timeout=60)

    def say(self, session: str, text: str) -> dict[str, Any]:
        """Post a message, wait for the answer and return it."""
        reply = self.client.post(f"/sessions/{session}/messages", params={"wait": 30}, json={"message": text})
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()["answer"]
        return answer

    def post(self, schema_name: str, **fields: Any) -> str:
        reply = self.client.post("/breadcrumbs", json={"schema_name": schema_name, **fields})
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def change(self, id: str, **fields: Any) -> None:
        reply = self.client.patch(f"/breadcrumbs/{id}", json=fields)
        assert reply.status_code == 200, reply.text

    def configs_of(self, consumer: str) -> list[dict[str, Any]]:
        """Return the configs of a consumer that are stored as breadcrumbs."""
        listed = self.client.get("/contexts/configs").json()["breadcrumbs"]
        return [one for one in listed if one.get("consumer_id") == consumer]

    def explain(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the explanation of the context that an answer was made from."""
        glue = answer["context"]
        reply = self.client.get(
            f"/contexts/{glue['context_id']}/explain", params={"version": glue["context_version"]}
        )
        assert reply.status_code == 200, reply.text
        explained: dict[str, Any] = reply.json()
        return explained

    def receipt(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the receipt of an answer."""
        reply = self.client.get(f"/breadcrumbs/{answer['id']}/receipt")
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def put(self, document: Any) -> None:
        """Replace the config file through the API. It takes effect at once."""
        reply = self.client.put("/contexts/config", json={"text": format_json(document)})
        assert reply.status_code == 200, reply.text


@contextmanager
def run_server(folder: Path, document: Any) -> Iterator[Server]:
    """Run `crumb up` with its own context config file."""
    file = folder / "context.json"
    file.write_text(format_json(document))
    with CrumbUp(folder, CRUMB_CONTEXT_CONFIG=str(file)) as up, connect_to(up, file) as server:
        yield server


@contextmanager
def connect_to(up: CrumbUp, file: Path) -> Iterator[Server]:
    server = Server(up.url, file)
    try:
        yield server
    finally:
        server.client.close()


# The editor

_VIEW = "(field.cmTile ?? field.cmView).view"  # the CodeMirror view of its element


def config_url(url: str, key: str = "", session: str = "") -> str:
    query = f"?session={session}" if session else ""
    return f"{url}/#/config{f'/{key}' if key else ''}{query}"


def text_field(page: Page) -> Locator:
    return page.locator(".json-code .cm-content")


async def expect_ready(page: Page) -> None:
    await expect(page.locator(".json-code[data-ready]")).to_be_visible()
    await expect(page.locator(".json-verdict")).to_contain_text("Valid")


async def editor_text(page: Page) -> str:
    text: str = await text_field(page).evaluate(f"field => {_VIEW}.state.doc.toString()")
    return text


async def set_cursor(page: Page, place: int) -> None:
    await text_field(page).evaluate(f"(field, anchor) => {_VIEW}.dispatch({{selection: {{anchor}}}})", place)


async def edit(page: Page, change: Callable[[str], str]) -> None:
    """Replace the text of the editor by typing."""
    text = change(await editor_text(page))
    await text_field(page).click()
    await page.keyboard.press("ControlOrMeta+a")
    await page.keyboard.insert_text(text)
    assert await editor_text(page) == text


async def save(page: Page) -> None:
    await page.locator(".workbench-head").get_by_role("button", name="Save").click()


def lines(page: Page, change: str) -> Locator:
    """Return the lines of the preview with this change: in, out or same."""
    return page.locator(f".preview-line[data-change={change}]")
