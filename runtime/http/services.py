"""The services that handlers use, created once per application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from breadcrumbs.runtime.access.rate_limits import RateLimiter
from breadcrumbs.runtime.http.answering import LoadAgents
from breadcrumbs.runtime.http.auth import Authenticator
from breadcrumbs.runtime.http.middleware.metrics import Metrics
from breadcrumbs.runtime.http.middleware.unsent import UnsentReplies
from breadcrumbs.runtime.http.open_streams import OpenStreams
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.maintenance.store_values import StoreValues
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.sessions.open_turns import LoadTriggers
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.records import Registry
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.hub import EventHub
from breadcrumbs.runtime.streams.slots import Slots


@dataclass(frozen=True, slots=True)
class StaticDocuments:
    """Documents that do not change while the server runs. Each is built on first use."""

    openapi: Callable[[], bytes]
    docs: Callable[[], bytes]
    docs_policy: bytes
    """Content-Security-Policy of the docs page."""


@dataclass(frozen=True, slots=True)
class Services:
    """Dependencies of all handlers."""

    store: Store
    hub: EventHub
    settings: Settings
    auth: Authenticator
    registry: Registry
    hints: SchemaHints
    hygiene: Hygiene
    metrics: Metrics
    store_values: StoreValues
    pages: StaticDocuments
    streams: OpenStreams
    unsent: UnsentReplies
    searches: Slots
    """Searches that run at the same time. One search can read thousands of messages."""
    limiter: RateLimiter | None
    """None: requests are not rate limited."""
    answering_agents: LoadAgents
    chain_triggers: LoadTriggers
