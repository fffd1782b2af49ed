"""The holder of a credential, as a value. It holds facts; `policy` decides what they allow."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from uuid import UUID

from breadcrumbs.runtime.settings.settings import ALL_ROLES, Role


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of an API key or a token. The owner comes from here and never from a request."""

    owner_id: UUID
    agent_id: UUID
    roles: frozenset[Role] = frozenset(ALL_ROLES)
    session_id: str | None = None
    """The only session that the token is for. None: it is not narrowed to a session."""
    user_id: str | None = None
    """The only user that the token is for. None: it is not narrowed to a user."""
    key_id: str | None = None
    """Names the API key behind the token, for rate limits. None in development mode."""
    issued: int = field(default=0, compare=False)
    """When the token was issued, in microseconds of the store's clock. 0: it is no token."""
    expires: float = field(default=math.inf, compare=False)
    """When the token expires, in seconds since 1970. Streams and waits end with it."""

    @property
    def is_narrowed(self) -> bool:
        return self.session_id is not None or self.user_id is not None

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.expires - time.time())
