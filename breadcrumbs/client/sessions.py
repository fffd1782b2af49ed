"""Sessions as wholes: list them, begin, change, fork and delete them. No sockets here (see effects.py)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import orjson

from breadcrumbs.client.core import Core
from breadcrumbs.client.effects import Item, Operation, Request, Series
from breadcrumbs.client.errors import InvalidInput, VersionMismatch
from breadcrumbs.client.options import SessionChange
from breadcrumbs.client.values import Retried, SessionInfo, session_info_of

_PAGE = 100
_CHANGES = frozenset(SessionChange.__annotations__)


def listed(core: Core, *, user_id: str | None, limit: int | None) -> Series[SessionInfo]:
    """The sessions, the last active one first, page by page."""
    given, cursor = 0, None
    while limit is None or given < limit:
        params = [("limit", str(_PAGE if limit is None else min(_PAGE, limit - given)))]
        if user_id is not None:
            params.append(("user_id", user_id))
        if cursor is not None:
            params.append(("cursor", cursor))
        reply = yield from core.perform(Request("GET", "/sessions", tuple(params), repeatable=True))
        page = orjson.loads(reply.body)
        for document in page["sessions"]:
            given += 1
            yield Item(session_info_of(document))
        cursor = page.get("next_cursor")
        if cursor is None:
            return


def created(
    core: Core, fields: Mapping[str, Any], *, idempotency_key: str | None = None
) -> Operation[SessionInfo]:
    return (yield from _post(core, "/sessions", fields, idempotency_key or str(uuid4())))


def read(core: Core, id: str) -> Operation[SessionInfo]:
    reply = yield from core.perform(Request("GET", _path(id), repeatable=True))
    return session_info_of(orjson.loads(reply.body))


def changed(
    core: Core, id: str, changes: SessionChange, *, expected_version: int | None
) -> Operation[SessionInfo]:
    if unknown := set(changes) - _CHANGES:
        raise TypeError(f"a session has no {sorted(unknown)[0]!r} that could be changed")
    headers = {"content-type": "application/json", **_if_match(expected_version)}
    request = Request("PATCH", _path(id), body=_json(changes), headers=headers)
    try:
        reply = yield from core.perform(request)
    except VersionMismatch as error:
        error.expected = expected_version or 0
        raise
    return session_info_of(orjson.loads(reply.body))


def deleted(core: Core, id: str, *, expected_version: int | None) -> Operation[int]:
    try:
        reply = yield from core.perform(Request("DELETE", _path(id), headers=_if_match(expected_version)))
    except VersionMismatch as error:
        error.expected = expected_version or 0
        raise
    return int(orjson.loads(reply.body)["deleted"])


def forked(core: Core, id: str, fields: Mapping[str, Any]) -> Operation[SessionInfo]:
    return (yield from _post(core, f"{_path(id)}/fork", fields, str(uuid4())))


def retried(core: Core, id: str, message_id: str | None) -> Operation[Retried]:
    # Asked twice, the turn is run twice and answered once.
    reply = yield from core.perform(
        Request(
            "POST",
            f"{_path(id)}/retry",
            body=_json({} if message_id is None else {"message_id": message_id}),
            headers={"content-type": "application/json"},
            repeatable=True,
        )
    )
    document = orjson.loads(reply.body)
    return Retried(document["message_id"], datetime.fromisoformat(document["retried_at"]))


def _post(core: Core, path: str, fields: Mapping[str, Any], key: str) -> Operation[SessionInfo]:
    headers = {"content-type": "application/json", "idempotency-key": key}
    body = _json({name: value for name, value in fields.items() if value is not None})
    reply = yield from core.perform(Request("POST", path, body=body, headers=headers, repeatable=True))
    return session_info_of(orjson.loads(reply.body))


def _path(id: str) -> str:
    return f"/sessions/{quote(id, safe='')}"


def _json(document: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError as error:
        raise InvalidInput({"status": 422, "detail": f"this cannot be written as JSON: {error}"}) from None


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"if-match": f'"{version}"'}
