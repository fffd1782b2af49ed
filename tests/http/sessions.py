"""Requests for tests of sessions, with checks of the responses."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.http.conftest import Site


async def held(site: Site) -> dict[bytes, bytes]:
    """Return all keys and dumps of this site's namespace."""
    store = site.store
    prefix = store.keys.meta.removesuffix(b"meta")
    keys = sorted(await store.connection.call(0, b"KEYS", prefix + b"*"))
    return dict(
        zip(keys, await store.connection.call_all([(0, (b"DUMP", key)) for key in keys]), strict=True)
    )


async def begin(site: Site, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    answer = await site.client.post("/sessions", json=fields, headers=headers)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def say(
    site: Site, session: str, text: str, headers: dict[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    answer = await site.client.post(
        f"/sessions/{quote(session, safe='')}/messages", json={"message": text, **fields}, headers=headers
    )
    assert answer.status_code == 201, answer.text
    said: dict[str, Any] = answer.json()
    return said


async def read(site: Site, session: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = await site.client.get(f"/sessions/{quote(session, safe='')}", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["etag"] == f'"{answer.json()["version"]}"'
    found: dict[str, Any] = answer.json()
    return found


async def answer_to(site: Site, message: dict[str, Any], text: str = "yes", **fields: Any) -> dict[str, Any]:
    return await site.post(
        schema_name="agent.response.v1",
        tags=[tag for tag in message["tags"] if tag != "user:message"],
        context={
            "message": text,
            "trigger_id": message["id"],
            "creator": {"type": "agent", "agent_id": "a"},
            **fields,
        },
    )


async def ids(site: Site, headers: dict[str, str] | None = None, **params: Any) -> list[str]:
    """Return the session ids of all pages of the list."""
    found: list[str] = []
    while True:
        page = (await site.client.get("/sessions", params=params, headers=headers)).json()
        found += [session["id"] for session in page["sessions"]]
        assert page["has_more"] == ("next_cursor" in page)
        if not page["has_more"]:
            return found
        params["cursor"] = page["next_cursor"]


def nulls_in(value: Any) -> bool:
    if isinstance(value, dict):
        return any(nulls_in(part) for part in value.values())
    return any(nulls_in(part) for part in value) if isinstance(value, list) else value is None
