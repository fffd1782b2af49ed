"""Rules for names, session tags and user tags.

The session rule: a breadcrumb belongs to at most one session, and its tag and its `context.session_id` agree.
"""

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
"""Marks a user's message in RCRT. It does not name a user, so a user cannot have the id `message`."""
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check_name(text: str) -> str:
    """Return a name if it is not blank and has no control characters. Raises ValueError.

    Names are compared byte by byte and displayed on one line.
    """
    if text.isascii() and text.isprintable() and text.strip():
        return text  # nearly all names; avoids the regular expression
    if found := CONTROL_CHARACTERS.search(text):
        raise ValueError(
            f"must not contain control characters or line breaks, and contains U+{ord(found[0]):04X}"
        )
    if not text.strip():
        raise ValueError("must not be empty or only white space")
    return text


def session_of(tags: Sequence[str]) -> str | None:
    """Return the session named by the tags, or None. Raises SessionConflict if they name two."""
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
    """Return the tags that name users. `user:message` is not one of them."""
    return [tag for tag in tags if tag.startswith(USER) and tag != USER_MESSAGE_TAG]


def user_in(tags: Sequence[str]) -> str | None:
    """Return the first user named by the tags, or None."""
    return next((tag[len(USER) :] for tag in users_of(tags)), None)


def user_tags(user: str | None) -> list[str]:
    """Return the tag of a user as a list. It is empty if the user has no tag.

    ADK accepts any text as a user id. An id has no tag if it is too long, is not a valid name, or is `message`.
    """
    if user is None or USER + user == USER_MESSAGE_TAG or len(USER + user) > MAX_TAG_LENGTH:
        return []
    try:
        check_name(user)
    except ValueError:
        return []
    return [USER + user]


def check_not_message_tag(user: str) -> None:
    """Refuse the user id `message`, because its tag is on every user's message."""
    if USER + user == USER_MESSAGE_TAG:
        raise InvalidInput(
            f"the user id {user!r} is reserved, because every message has the tag {USER_MESSAGE_TAG!r}: choose another",
            where="user_id",
        )


def apply_session_rule(
    tags: list[str], context: dict[str, Any]
) -> tuple[list[str], dict[str, Any], str | None]:
    """Return tags and context with the session in both of them, and the session.

    Raises SessionConflict if they name different sessions.
    """
    tagged = session_of(tags)
    stated = context.get("session_id")
    if stated is not None:
        if not isinstance(stated, str):
            raise SessionConflict("context.session_id must be a string", where="context.session_id")
        if tagged is not None and stated != tagged:
            raise SessionConflict(
                f"the tag names session {tagged!r} and context.session_id names {stated!r}: send one of them",
                where="context.session_id",
            )
    session = tagged if tagged is not None else stated
    if session is None:
        return tags, context, None
    check_session_id(session)
    if tagged is None:
        if len(tags) >= MAX_TAGS:
            raise InvalidInput(
                f"at most {MAX_TAGS} tags are allowed, including the session tag", where="tags"
            )
        tags = [*tags, SESSION + session]
    if stated is None:
        context = {**context, "session_id": session}
    return tags, context, session


def check_session_id(session: str) -> str:
    """Return a session id if it is a valid name and fits into a tag. Raises InvalidInput."""
    try:
        check_name(session)
    except ValueError as error:
        raise InvalidInput(f"the session id is invalid: it {error}", where="session_id") from None
    if len(session) > MAX_TAG_LENGTH - len(SESSION):
        raise InvalidInput(
            f"a session id can have at most {MAX_TAG_LENGTH - len(SESSION)} characters", where="session_id"
        )
    return session


def check_new_session_id(session: str) -> str:
    """Check the id of a new session. Raises InvalidInput.

    `check_session_id` is less strict, because sessions in older stores can have invisible characters in their ids.
    """
    if hidden := hidden_character(session):
        raise InvalidInput(
            f"a session id must not contain invisible characters, and {hidden}: remove it", where="session_id"
        )
    return check_session_id(session)


def check_new_user_tags(tags: Sequence[str], existing: Sequence[str] = ()) -> None:
    """Refuse new user tags with invisible characters.

    `existing` are the tags that the breadcrumb already has. They are accepted, because older data can contain them.
    """
    for tag in users_of(tags):
        if tag not in existing and (hidden := hidden_character(tag[len(USER) :])):
            raise InvalidInput(
                f"a user id must not contain invisible characters, and {hidden}: remove it", where="tags"
            )
