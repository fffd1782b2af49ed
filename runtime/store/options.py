"""Options of a store and of its writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from uuid import UUID

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate, Content
from breadcrumbs.runtime.breadcrumb.json_input import MAX_BODY_BYTES
from breadcrumbs.runtime.breadcrumb.ttl import Expiry
from breadcrumbs.runtime.store.fence import Fence
from breadcrumbs.runtime.store.quotas import Quotas
from breadcrumbs.runtime.store.state import MAX_STATE_BYTES

SessionVersion: TypeAlias = int | Literal["*"] | None
"""The version that a session must have. 0: it must not exist. `*`: it must exist. None: any."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Limits and defaults of a store."""

    ttl_defaults: Mapping[str, Expiry] = field(default_factory=dict)
    """Schema name -> expiry of breadcrumbs without an expiry of their own."""
    idempotency_seconds: int = 86_400
    """Seconds for which idempotency keys are kept."""
    max_content_bytes: int = MAX_BODY_BYTES
    max_state_bytes: int = MAX_STATE_BYTES
    quotas: Quotas | None = None
    expected_identity: str | None = None
    """The identity that the store must have. None: any, and a server without a store gets one."""
    accept_losses: bool = False
    """Also open a store on a cluster of which some servers have lost their data."""


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """Conditions and additions of `Store.create`."""

    fence: Fence | None = None
    content: Content | None = None
    """The content of the new breadcrumb, if the caller has it already (see `Store.content`)."""
    counts: bool = True
    """The write increments the session's version and updates the time of its last activity."""
    session_version: SessionVersion = None
    session_began: int | None = None
    """Time when the session must have begun; else `AnotherSession` is raised. 0: it must not exist. None: any time."""
    along: Sequence[tuple[UUID, BreadcrumbCreate]] = ()
    """More breadcrumbs of the same session, written by the same script. An id that exists already is left as it is.

    All of them are written, or none: a refusal of the first refuses all.
    """


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """Variants of `Store.update`."""

    merge_context: bool = False
    """Merge the context (RFC 7396) instead of replacing it."""
    admit: Callable[[Breadcrumb, BreadcrumbUpdate], BreadcrumbUpdate] | None = None
    """Checks a change against the version that it is based on. Returns the change, possibly corrected."""
