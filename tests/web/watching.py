"""Locators and a client for tests of the blackboard and the operations page."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import httpx
from playwright.async_api import Locator, Page

INJECTION = (
    "<img src=x onerror=\"document.title='broken into'\"><script>document.title='broken into'</script>"
)


def unique_name(name: str) -> str:
    """Return a name that no other test uses, because the tests share a server."""
    return f"{name}-{uuid4().hex[:10]}"


def board(url: str, id: str = "", **query: str | list[str]) -> str:
    asked = urlencode(query, doseq=True)
    return f"{url}/#/board{'/' + id if id else ''}{'?' + asked if asked else ''}"


def cards(page: Page, kind: str = "") -> Locator:
    return page.locator(f".board-card{f'[data-kind={kind}]' if kind else ''}")


def card(page: Page, id: str) -> Locator:
    return page.locator(f'.board-card[data-id="{id}"]')


def texts(page: Page) -> Locator:
    return page.locator(".board-card .board-text")


def lanes(page: Page) -> Locator:
    return page.locator(".board-lane-head .board-lane-name")


class Crumbs:
    """HTTP client that reads and writes breadcrumbs without the page."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=60)

    def say(self, session: str, text: str, *tags: str) -> str:
        """Post a message that the agent answers and return its id."""
        everything = ["user:message", "extension:chat", f"session:{session}", *tags]
        return self.post("user.message.v1", *everything, message=text)

    def post(self, schema_name: str, *tags: str, title: str = "", **context: Any) -> str:
        crumb = {"schema_name": schema_name, "title": title, "tags": list(tags), "context": context}
        return str(self.asked("POST", "/breadcrumbs", json=crumb)["id"])

    def change(self, id: str, **fields: Any) -> None:
        self.asked("PATCH", f"/breadcrumbs/{id}", json=fields)

    def remove(self, id: str) -> None:
        self.asked("DELETE", f"/breadcrumbs/{id}")

    def in_session(self, session: str) -> list[dict[str, Any]]:
        """Return the breadcrumbs of a session, oldest first."""
        query = {"session_id": session, "sort": "created_at", "include_context": "true"}
        found: list[dict[str, Any]] = self.asked("GET", "/breadcrumbs", params=query)
        return found

    def asked(self, method: str, path: str, **options: Any) -> Any:
        reply = self._client.request(method, path, **options)
        assert reply.is_success, reply.text
        return reply.json()

    def close(self) -> None:
        self._client.close()
