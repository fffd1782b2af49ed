"""The identity behind a request, as a value. It contains facts, and `policy` decides what they allow."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from uuid import UUID

from breadcrumbs.runtime.settings.settings import ALL_ROLES, Role


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of an API key or a token. The owner is always taken from here, never from the request."""

    owner_id: UUID
    agent_id: UUID
    roles: frozenset[Role] = frozenset(ALL_ROLES)
    session_id: str | None = None
    """The session that the token is narrowed to. None: not narrowed to a session."""
    user_id: str | None = None
    """The user that the token is narrowed to. None: not narrowed to a user."""
    key_id: str | None = None
    """Id of the API key, for rate limits. None in development mode."""
    issued: int = field(default=0, compare=False)
    """Time when the token was issued, in microseconds of the store's clock. 0 if there is no token."""
    expires: float = field(default=math.inf, compare=False)
    """Time when the token expires, in seconds since 1970. Streams and waiting requests end then."""

    @property
    def is_narrowed(self) -> bool:
        """Whether the token is narrowed to a session or a user."""
        return self.session_id is not None or self.user_id is not None

    @property
    def seconds_left(self) -> float:
        """Time until the token expires."""
        return max(0.0, self.expires - time.time())
