"""What an ADK session, its app and its user are called here.

ADK names a session by three texts of any kind; a session here has one name of limited length. So the parts are
percent-encoded and joined by colons, which no encoded part holds: no two sessions share a name, whatever colons,
slashes or spaces are in their ids. A name that would be too long becomes a hash, marked by a `#`, which no encoded part
holds either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final
from urllib.parse import quote

from breadcrumbs.runtime.breadcrumb.names import hidden_character
from breadcrumbs.runtime.breadcrumb.session_rule import (
    MAX_TAG_LENGTH,
    SESSION,
    check_not_message_tag,
    user_tags,
)
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.store.state import ADK_SESSION, STATE_HOLDER

_READABLE: Final = "@+=,"
_MAX_NAME_LENGTH: Final = MAX_TAG_LENGTH - len(SESSION)


@dataclass(frozen=True, slots=True)
class UserNames:
    """What belongs to one user of one app."""

    app: str
    user: str
    app_state: str
    """The session that holds the state of the app (`app:` keys), for all of its users."""
    user_state: str
    """The session that holds the state of the user (`user:` keys)."""
    app_tag: str
    user_tag: str
    """On the records of the sessions, so that they are found by app, and by app and user."""
    plain_user_tag: tuple[str, ...]
    """The `user:` tag, as it is everywhere: tokens that are narrowed to a user go by it."""

    def session(self, id: str) -> SessionNames:
        return SessionNames(self, id, _bounded_name(ADK_SESSION, self.app, self.user, id))


@dataclass(frozen=True, slots=True)
class SessionNames:
    """One session."""

    of: UserNames
    id: str
    """As ADK has it."""
    name: str
    """As it is called here."""

    @property
    def tags(self) -> list[str]:
        return [SESSION + self.name, *self.of.plain_user_tag]


def user_names(app: str, user: str) -> UserNames:
    for what, text in (("app name", app), ("user id", user)):
        _check_text(what, text)
    check_not_message_tag(user)
    return _derive_names(app, user)


def session_names(app: str, user: str, id: str) -> SessionNames:
    """Return the names of a session. White space around its id is removed, as ADK does."""
    id = id.strip()
    _check_text("session id", id)
    return user_names(app, user).session(id)


def new_session_names(app: str, user: str, id: str) -> SessionNames:
    """Return the names of a new session. Its id holds no invisible characters; apps and users may."""
    if hidden := hidden_character(id.strip()):
        raise InvalidInput(
            f"a session id holds no invisible characters, and {hidden}: leave it out", where="session id"
        )
    return session_names(app, user, id)


def app_tag(app: str) -> str:
    _check_text("app name", app)
    return _bounded_name(f"{ADK_SESSION}app:", app)


@lru_cache(4_096)
def _derive_names(app: str, user: str) -> UserNames:
    return UserNames(
        app,
        user,
        app_state=_bounded_name(f"{STATE_HOLDER}{ADK_SESSION}app:", app),
        user_state=_bounded_name(f"{STATE_HOLDER}{ADK_SESSION}user:", app, user),
        app_tag=app_tag(app),
        user_tag=_bounded_name(f"{ADK_SESSION}user:", app, user),
        plain_user_tag=tuple(user_tags(user)),
    )


def _bounded_name(prefix: str, *parts: str) -> str:
    name = prefix + ":".join(quote(part, safe=_READABLE) for part in parts)
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    digest = blake2b(digest_size=32)
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8) + raw)
    return f"{prefix}#{digest.hexdigest()}"


def _check_text(what: str, text: str) -> None:
    if not text:
        raise InvalidInput(f"the {what} must not be empty", where=what)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"the {what} holds half a character, which is no text", where=what) from None
