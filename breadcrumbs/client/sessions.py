"""Sessions as wholes: list them, begin, change, fork and delete them. No sockets here (see effects.py)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import uuid4

from breadcrumbs.client.core import Core, json_of, segment
from breadcrumbs.client.effects import Item, Operation, Request, Series
from breadcrumbs.client.errors import VersionMismatch
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
        page, cursor = core.read(reply, _page)
        for session in page:
            given += 1
            yield Item(session)
        if cursor is None:
            return


def created(
    core: Core, fields: Mapping[str, Any], *, idempotency_key: str | None = None
) -> Operation[SessionInfo]:
    return (yield from _post(core, "/sessions", fields, idempotency_key or str(uuid4())))


def read(core: Core, id: str) -> Operation[SessionInfo]:
    reply = yield from core.perform(Request("GET", _path(id), repeatable=True))
    return core.read(reply, session_info_of)


def changed(
    core: Core, id: str, changes: SessionChange, *, expected_version: int | None
) -> Operation[SessionInfo]:
    if unknown := set(changes) - _CHANGES:
        raise TypeError(f"a session has no {sorted(unknown)[0]!r} that could be changed")
    headers = {"content-type": "application/json", **_if_match(expected_version)}
    request = Request("PATCH", _path(id), body=json_of(changes), headers=headers)
    try:
        reply = yield from core.perform(request)
    except VersionMismatch as error:
        error.expected = expected_version or 0
        raise
    return core.read(reply, session_info_of)


def deleted(core: Core, id: str, *, expected_version: int | None) -> Operation[int]:
    try:
        reply = yield from core.perform(Request("DELETE", _path(id), headers=_if_match(expected_version)))
    except VersionMismatch as error:
        error.expected = expected_version or 0
        raise
    return core.read(reply, lambda gone: int(gone["deleted"]))


def forked(core: Core, id: str, fields: Mapping[str, Any]) -> Operation[SessionInfo]:
    return (yield from _post(core, f"{_path(id)}/fork", fields, str(uuid4())))


def retried(core: Core, id: str, message_id: str | None) -> Operation[Retried]:
    # Asked twice, the turn is run twice and answered once.
    reply = yield from core.perform(
        Request(
            "POST",
            f"{_path(id)}/retry",
            body=json_of({} if message_id is None else {"message_id": message_id}),
            headers={"content-type": "application/json"},
            repeatable=True,
        )
    )
    return core.read(
        reply,
        lambda begun: Retried(begun["message_id"], datetime.fromisoformat(begun["retried_at"])),
    )


def _post(core: Core, path: str, fields: Mapping[str, Any], key: str) -> Operation[SessionInfo]:
    headers = {"content-type": "application/json", "idempotency-key": key}
    body = json_of({name: value for name, value in fields.items() if value is not None})
    reply = yield from core.perform(Request("POST", path, body=body, headers=headers, repeatable=True))
    return core.read(reply, session_info_of)


def _page(page: Any) -> tuple[list[SessionInfo], str | None]:
    return [session_info_of(document) for document in page["sessions"]], page.get("next_cursor")


def _path(id: str) -> str:
    return f"/sessions/{segment(id)}"


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"if-match": f'"{version}"'}
