# Generated from breadcrumbs/client/aio/listing.py by `python -m tests.support.sync_client`. Do not edit.
"""Paginated lists."""

from __future__ import annotations

from collections.abc import Generator
from typing import Unpack

from breadcrumbs.client.feedback import Feedback, FeedbackListing, feedback_page_of, list_feedback_request
from breadcrumbs.client.options import Listing
from breadcrumbs.client.replies import next_cursor, parse_breadcrumbs, parse_session_page, parse_versions
from breadcrumbs.client.requests import history_request, list_params, list_request, list_sessions_request
from breadcrumbs.client.sync.connection import ServerConnection
from breadcrumbs.client.values import Breadcrumb, SessionInfo, Version


def list_breadcrumbs(
    connection: ServerConnection, **wanted: Unpack[Listing]
) -> Generator[Breadcrumb, None, None]:
    """Yield all matching breadcrumbs, reading page by page."""
    params, limit, given, cursor = list_params(wanted), wanted.get("limit"), 0, None
    while limit is None or given < limit:
        request = list_request(params, limit=limit, given=given, cursor=cursor)
        reply = connection.perform(request)
        page = connection.replies.read(reply, parse_breadcrumbs)
        yield from page
        given, cursor = given + len(page), next_cursor(reply)
        if cursor is None:
            return


def list_versions(connection: ServerConnection, id: str) -> tuple[Version, ...]:
    """Return all versions of a breadcrumb, newest first."""
    found: list[Version] = []
    cursor: str | None = None
    while True:
        reply = connection.perform(history_request(id, cursor))
        found += connection.replies.read(reply, parse_versions)
        cursor = next_cursor(reply)
        if cursor is None:
            return tuple(found)


def list_sessions(
    connection: ServerConnection, user_id: str | None, limit: int | None
) -> Generator[SessionInfo, None, None]:
    """Yield sessions, last active first, reading page by page."""
    given, cursor = 0, None
    while limit is None or given < limit:
        request = list_sessions_request(user_id, limit=limit, given=given, cursor=cursor)
        page, cursor = connection.fetch(request, parse_session_page)
        yield from page
        given += len(page)
        if cursor is None:
            return


def list_feedback(
    connection: ServerConnection, **wanted: Unpack[FeedbackListing]
) -> Generator[Feedback, None, None]:
    """Yield the matching feedback, newest first, reading page by page."""
    limit, given, cursor = wanted.get("limit"), 0, None
    while limit is None or given < limit:
        request = list_feedback_request(wanted, limit=limit, given=given, cursor=cursor)
        page, cursor = connection.fetch(request, feedback_page_of)
        yield from page
        given += len(page)
        if cursor is None:
            return
