"""Names, session tags and user tags, and the rule that a breadcrumb belongs to at most one session."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from breadcrumbs.runtime.breadcrumb.names import hidden_character
from breadcrumbs.runtime.errors import InvalidInput, SessionConflict

MAX_TAGS: Final = 64
MAX_TAG_LENGTH: Final = 256
SESSION: Final = "session:"
USER: Final = "user:"
USER_MESSAGE_TAG: Final = "user:message"
"""RCRT's mark of a user's message, and no user: a user cannot be called `message`."""
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check_name(text: str) -> str:
    """Check a name: names are compared byte by byte and shown in one line, so they hold nothing invisible."""
    if text.isascii() and text.isprintable() and text.strip():
        return text  # nearly all names, without the regular expression
    if found := CONTROL_CHARACTERS.search(text):
        raise ValueError(
            f"control characters and line breaks are not allowed here, and this holds U+{ord(found[0]):04X}"
        )
    if not text.strip():
        raise ValueError("must not be empty or only white space")
    return text


def session_of(tags: Sequence[str]) -> str | None:
    """The session that tags name; two different ones are a conflict."""
    session = None
    for tag in tags:
        if tag.startswith(SESSION):
            if session is not None and tag != session:
                raise SessionConflict(
                    "a breadcrumb belongs to at most one session: send one session: tag", where="tags"
                )
            session = tag
    return None if session is None else session[len(SESSION) :]


def users_of(tags: Sequence[str]) -> list[str]:
    """Return the tags that name users. `user:message` is RCRT's mark of a user's message, not a user."""
    return [tag for tag in tags if tag.startswith(USER) and tag != USER_MESSAGE_TAG]


def user_in(tags: Sequence[str]) -> str | None:
    """The user that tags name, the first if there are several."""
    return next((tag[len(USER) :] for tag in users_of(tags)), None)


def user_tags(user: str | None) -> list[str]:
    """The tag of a user; none where the id fits into no tag, as ADK takes any text, or would be RCRT's mark."""
    if user is None or USER + user == USER_MESSAGE_TAG or len(USER + user) > MAX_TAG_LENGTH:
        return []
    try:
        check_name(user)
    except ValueError:
        return []
    return [USER + user]


def check_not_message_tag(user: str) -> None:
    """Refuse the user id `message`: its tag would be that of every message."""
    if USER + user == USER_MESSAGE_TAG:
        raise InvalidInput(
            f"no user is called {user!r}: the tag {USER_MESSAGE_TAG!r} is on every message. Put something before it",
            where="user_id",
        )


def apply_session_rule(
    tags: list[str], context: dict[str, Any]
) -> tuple[list[str], dict[str, Any], str | None]:
    tagged = session_of(tags)
    stated = context.get("session_id")
    if stated is not None:
        if not isinstance(stated, str):
            raise SessionConflict("context.session_id must be text", where="context.session_id")
        if tagged is not None and stated != tagged:
            raise SessionConflict(
                f"the tag says session {tagged!r} and context.session_id says {stated!r}: send one of them",
                where="context.session_id",
            )
    session = tagged if tagged is not None else stated
    if session is None:
        return tags, context, None
    check_session_id(session)
    if tagged is None:
        if len(tags) >= MAX_TAGS:
            raise InvalidInput(f"at most {MAX_TAGS} tags, the session's included", where="tags")
        tags = [*tags, SESSION + session]
    if stated is None:
        context = {**context, "session_id": session}
    return tags, context, session


def check_session_id(session: str) -> str:
    try:
        check_name(session)
    except ValueError as error:
        raise InvalidInput(f"the session id is not usable: {error}", where="session_id") from None
    if len(session) > MAX_TAG_LENGTH - len(SESSION):
        raise InvalidInput(
            f"a session id has at most {MAX_TAG_LENGTH - len(SESSION)} characters", where="session_id"
        )
    return session


def check_new_session_id(session: str) -> str:
    """Check the name of a session that is to begin. Stricter than `check_session_id`: older stores have other names."""
    if hidden := hidden_character(session):
        raise InvalidInput(
            f"a session id holds no invisible characters, and {hidden}: leave it out", where="session_id"
        )
    return check_session_id(session)


def check_new_user_tags(tags: Sequence[str], known: Sequence[str] = ()) -> None:
    """Refuse users with invisible characters in their names. `known`: tags that the breadcrumb has already."""
    for tag in users_of(tags):
        if tag not in known and (hidden := hidden_character(tag[len(USER) :])):
            raise InvalidInput(
                f"a user id holds no invisible characters, and {hidden}: leave it out", where="tags"
            )
