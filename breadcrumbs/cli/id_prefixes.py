"""Completes ids. A person can type the beginning of an id instead of copying all of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from breadcrumbs.cli.client import check_encodable, path_of
from breadcrumbs.cli.output import CommandError, UsageError, one_line

if TYPE_CHECKING:
    from breadcrumbs.client.sync import Client

MAX_CANDIDATES = 1_000
"""Ids that are compared with a prefix, the newest first. This bounds the work of a command."""
_MAX_SHOWN = 10
_ID_LENGTH = 36
_ID_PREFIX = re.compile(r"[0-9a-f][0-9a-f-]{3,34}", re.IGNORECASE)


def is_id_prefix(text: str) -> bool:
    """Return whether a text can be the beginning of an id, with at least 4 characters, but not a whole id."""
    return _ID_PREFIX.fullmatch(text) is not None


def unique_length(ids: Sequence[str]) -> int:
    """Return how many characters of these ids are enough to tell them apart. It ends at the end of a group."""
    for length in (13, 18, 23):
        if len({id[:length] for id in ids}) == len(ids):
            return length
    return 36


def choose_id(prefix: str, candidates: Iterable[tuple[str, str]], what: str) -> str:
    """Return the only candidate that begins with the prefix. Raise `CommandError` if there is none or several.

    A candidate is an id with words that describe it.
    """
    found = {id: words for id, words in candidates if id.lower().startswith(prefix.lower())}
    if prefix in found:
        return prefix
    if len(found) == 1:
        return next(iter(found))
    if not found:
        raise CommandError(
            f"{what} {prefix!r} not found, and no id begins with it (compared with the newest {MAX_CANDIDATES:,})"
        )
    shown = [
        f"  {one_line(id)}  {one_line(words, 40)}".rstrip() for id, words in list(found.items())[:_MAX_SHOWN]
    ]
    more = f"\n  … and {len(found) - _MAX_SHOWN:,} more" if len(found) > _MAX_SHOWN else ""
    raise CommandError(
        f"{prefix!r} is ambiguous: {len(found):,} ids begin with it. Add characters:\n"
        + "\n".join(shown)
        + more
    )


def find_breadcrumb(client: Client, text: str) -> str:
    """Return the id of a breadcrumb from its beginning. A whole id is returned as it is."""
    if not is_id_prefix(text):
        check_encodable(text)
        if len(text) < _ID_LENGTH:
            raise UsageError(
                f"{text!r} is not an id: use a whole id, or its beginning with at least 4 characters"
            )
        return text
    found = client.list(include_context=False, limit=MAX_CANDIDATES)
    return choose_id(text, ((crumb.id, crumb.title) for crumb in found), "breadcrumb")


def find_session(client: Client, text: str) -> str:
    """Return the id of a session from its beginning. A complete id has priority over longer ids."""
    from breadcrumbs.client.errors import NotFound

    try:
        client.request("GET", path_of("sessions", text))
    except NotFound:
        found = client.sessions(limit=MAX_CANDIDATES)
        return choose_id(text, ((one.id, one.title or one.summary or "") for one in found), "session")
    return text


def find_message(client: Client, session: str, text: str | None) -> str | None:
    """Return the id of a message of a session from its beginning."""
    if text is None or not is_id_prefix(text):
        return text
    found = client.session(session).messages(last=MAX_CANDIDATES)
    return choose_id(text, ((message.id, message.text) for message in found), "message of this session")
