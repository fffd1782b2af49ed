"""Actions and locators for the chat page, and a client for its server."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
from playwright.async_api import Locator, Page, expect


def new_session_id(name: str = "") -> str:
    """Return an unused session id."""
    return f"{name or 's'}-{uuid4().hex[:10]}"


def chat_url(url: str, session: str = "") -> str:
    return f"{url}/#/chat/{quote(session, safe='')}" if session else f"{url}/#/chat"


async def say(page: Page, text: str) -> None:
    await page.locator("#composer").fill(text)
    await page.locator("#composer").press("Enter")


def said(page: Page) -> Locator:
    """Return the messages of the user that the server has confirmed."""
    return page.locator(".said.user:not(.unsent) .bubble")


def answers(page: Page) -> Locator:
    """Return the stored answers, without drafts."""
    return page.locator(".said.agent[aria-label=Answer] .prose")


def sessions(page: Page) -> Locator:
    return page.locator(".session")


async def expect_connected(page: Page) -> None:
    await expect(page.locator(".connection")).to_have_class("connection open")


class Api:
    """HTTP client that reads and writes the store behind the page."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=60)

    def post(self, session: str, schema_name: str, *tags: str, **context: Any) -> str:
        """Create a breadcrumb in a session and return its id."""
        crumb = {"schema_name": schema_name, "tags": [f"session:{session}", *tags], "context": context}
        return str(self._checked("POST", "/breadcrumbs", json=crumb)["id"])

    def change(self, id: str, **context: Any) -> None:
        self._checked("PATCH", f"/breadcrumbs/{id}", json={"context": context})

    def remove(self, id: str) -> None:
        self._checked("DELETE", f"/breadcrumbs/{id}")

    def remove_session(self, session: str) -> None:
        self._checked("DELETE", f"/sessions/{session}")

    def name(self, session: str, title: str) -> None:
        self._checked("PATCH", f"/sessions/{session}", json={"title": title})

    def has_session(self, session: str) -> bool:
        return self._client.get(f"/sessions/{session}").status_code == 200

    def messages(self, session: str) -> list[str]:
        """Return the texts of the user messages, oldest first."""
        wanted = {
            "session_id": session,
            "schema_name": "user.message.v1",
            "sort": "created_at",
            "include_context": "true",
        }
        return [crumb["context"]["message"] for crumb in self._checked("GET", "/breadcrumbs", params=wanted)]

    def close(self) -> None:
        self._client.close()

    def _checked(self, method: str, path: str, **options: Any) -> Any:
        reply = self._client.request(method, path, **options)
        assert reply.is_success, reply.text
        return reply.json()
