"""Session names and tags for the sessions, apps and users of ADK.

ADK identifies a session by three arbitrary strings: app, user and session id. A session here has one name of limited
length. So the parts are percent-encoded and joined by colons. An encoded part contains no colon, so two sessions never
share a name. A name that is too long becomes a hash after a `#`, which no encoded part contains either.
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
    """Names and tags of one user of one app."""

    app: str
    user: str
    app_state: str
    """The session that stores the state of the app (`app:` keys)."""
    user_state: str
    """The session that stores the state of the user (`user:` keys)."""
    app_tag: str
    """Tag of the session records, for lookups by app."""
    user_tag: str
    """Tag of the session records, for lookups by app and user."""
    plain_user_tag: tuple[str, ...]
    """The usual `user:` tag. A token that is limited to a user can see breadcrumbs with this tag."""

    def session(self, id: str) -> SessionNames:
        """Return the names of a session of this user."""
        return SessionNames(self, id, _bounded_name(ADK_SESSION, self.app, self.user, id))


@dataclass(frozen=True, slots=True)
class SessionNames:
    """Names of one session."""

    of: UserNames
    id: str
    """The session id in ADK."""
    name: str
    """The session name in Breadcrumbs."""

    @property
    def tags(self) -> list[str]:
        return [SESSION + self.name, *self.of.plain_user_tag]


def user_names(app: str, user: str) -> UserNames:
    """Return the names of a user. Raises `InvalidInput` if the app or the user is not a valid name."""
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
    """Return the names of a new session. Its id must not contain invisible characters; apps and users may."""
    if hidden := hidden_character(id.strip()):
        raise InvalidInput(
            f"a session id must not contain invisible characters, and {hidden}: remove it", where="session id"
        )
    return session_names(app, user, id)


def app_tag(app: str) -> str:
    """Return the tag of the session records of an app."""
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
        raise InvalidInput(
            f"the {what} contains a lone surrogate, which is not valid text", where=what
        ) from None
