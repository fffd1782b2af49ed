"""Paginated lists."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Unpack

from breadcrumbs.client.aio.connection import AsyncServerConnection
from breadcrumbs.client.feedback import Feedback, FeedbackListing, feedback_page_of, list_feedback_request
from breadcrumbs.client.options import Listing
from breadcrumbs.client.replies import next_cursor, parse_breadcrumbs, parse_session_page, parse_versions
from breadcrumbs.client.requests import history_request, list_params, list_request, list_sessions_request
from breadcrumbs.client.values import Breadcrumb, SessionInfo, Version


async def list_breadcrumbs(
    connection: AsyncServerConnection, **wanted: Unpack[Listing]
) -> AsyncGenerator[Breadcrumb, None]:
    """Yield all matching breadcrumbs, reading page by page."""
    params, limit, given, cursor = list_params(wanted), wanted.get("limit"), 0, None
    while limit is None or given < limit:
        request = list_request(params, limit=limit, given=given, cursor=cursor)
        reply = await connection.perform(request)
        page = connection.replies.read(reply, parse_breadcrumbs)
        for crumb in page:
            yield crumb
        given, cursor = given + len(page), next_cursor(reply)
        if cursor is None:
            return


async def list_versions(connection: AsyncServerConnection, id: str) -> tuple[Version, ...]:
    """Return all versions of a breadcrumb, newest first."""
    found: list[Version] = []
    cursor: str | None = None
    while True:
        reply = await connection.perform(history_request(id, cursor))
        found += connection.replies.read(reply, parse_versions)
        cursor = next_cursor(reply)
        if cursor is None:
            return tuple(found)


async def list_sessions(
    connection: AsyncServerConnection, user_id: str | None, limit: int | None
) -> AsyncGenerator[SessionInfo, None]:
    """Yield sessions, last active first, reading page by page."""
    given, cursor = 0, None
    while limit is None or given < limit:
        request = list_sessions_request(user_id, limit=limit, given=given, cursor=cursor)
        page, cursor = await connection.fetch(request, parse_session_page)
        for session in page:
            yield session
        given += len(page)
        if cursor is None:
            return


async def list_feedback(
    connection: AsyncServerConnection, **wanted: Unpack[FeedbackListing]
) -> AsyncGenerator[Feedback, None]:
    """Yield the matching feedback, newest first, reading page by page."""
    limit, given, cursor = wanted.get("limit"), 0, None
    while limit is None or given < limit:
        request = list_feedback_request(wanted, limit=limit, given=given, cursor=cursor)
        page, cursor = await connection.fetch(request, feedback_page_of)
        for feedback in page:
            yield feedback
        given += len(page)
        if cursor is None:
            return
