"""Who is asking, and what that lets them see and write. Every route and every stream asks here."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from uuid import UUID

from breadcrumbs.runtime.breadcrumb import (
    MAX_TAGS,
    SESSION,
    USER_MESSAGE,
    Breadcrumb,
    BreadcrumbCreate,
    session_of,
)
from breadcrumbs.runtime.breadcrumb import USER as USER
from breadcrumbs.runtime.errors import Forbidden, InvalidInput
from breadcrumbs.runtime.query import Query
from breadcrumbs.runtime.settings import ALL_ROLES, Role


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of a token. The owner comes from here and never from a request."""

    owner_id: UUID
    agent_id: UUID
    roles: frozenset[Role] = frozenset(ALL_ROLES)
    session_id: str | None = None
    """Narrowed to this session: nothing else exists for it."""
    user_id: str | None = None
    """Narrowed to what carries `user:<user_id>`."""
    expires: float = field(default=math.inf, compare=False)
    """When its token ends (seconds since 1970). What takes long ends with it."""

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.expires - time.time())

    def require(self, role: Role) -> None:
        if not self.has(role):
            raise Forbidden(f"this needs the role {role!r}: get a token that has it")

    def has(self, role: Role) -> bool:
        return role in self.roles or "curator" in self.roles

    @property
    def reads_secrets(self) -> bool:
        return "curator" in self.roles

    def may_see(self, crumb: Breadcrumb) -> bool:
        private_to = crumb.created_by if crumb.visibility == "private" else None
        return self.may_see_tags(crumb.tags, private_to)

    def may_see_tags(self, tags: list[str], private_to: UUID | None) -> bool:
        """The same decision without a body, for events."""
        return (
            (self.session_id is None or SESSION + self.session_id in tags)
            and (self.user_id is None or USER + self.user_id in tags)
            and (private_to is None or private_to == self.agent_id or "curator" in self.roles)
        )

    def may_read_context(self, crumb: Breadcrumb) -> bool:
        return crumb.sensitivity != "secret" or self.reads_secrets

    def narrowed(self, query: Query) -> Query:
        """The query, with what this token must not see taken out of it."""
        tags = query.all_tags
        if self.session_id is not None:
            tags += (SESSION + self.session_id,)
        if self.user_id is not None:
            tags += (USER + self.user_id,)
        return replace(query, all_tags=tuple(dict.fromkeys(tags)), keep=self.may_see)

    def admitted(self, new: BreadcrumbCreate) -> BreadcrumbCreate:
        """What this token writes carries its session and its user, and no other."""
        added = []
        if self.session_id is not None:
            claimed = (session_of(new.tags), new.context.get("session_id"))
            if any(session not in (None, self.session_id) for session in claimed):
                raise Forbidden(f"this token is for session {self.session_id!r} only")
            added.append(SESSION + self.session_id)
        if self.user_id is not None:
            others = {tag for tag in new.tags if tag.startswith(USER)} - {USER + self.user_id, USER_MESSAGE}
            if others:
                raise Forbidden(f"this token is for user {self.user_id!r} only")
            added.append(USER + self.user_id)
        missing = [tag for tag in added if tag not in new.tags]
        if len(new.tags) + len(missing) > MAX_TAGS:
            raise InvalidInput(f"at most {MAX_TAGS} tags, those of the token included", where="tags")
        return new.model_copy(update={"tags": [*new.tags, *missing]}) if missing else new
