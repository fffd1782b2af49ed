"""The setting `connection_limits`: limits on HTTP connections.

The limits apply before a token is checked, so that a client without a token cannot exhaust memory, file descriptors or
time.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from breadcrumbs.runtime.breadcrumb.ttl import Duration


class ConnectionLimits(BaseModel):
    """Limits on the connections and requests of one HTTP server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_head_bytes: Annotated[int, Field(ge=1024, le=1 << 20)] = 64 << 10
    """Size of request line and headers together, and of the trailers of a chunked body."""
    max_url_bytes: Annotated[int, Field(ge=256, le=1 << 20)] = 8 << 10
    max_headers: Annotated[int, Field(ge=16, le=10_000)] = 128
    head_timeout: Duration = Field("10s", validate_default=True)
    """Time until the head is complete, from the start of the connection or the first byte of a later request."""
    keep_alive_timeout: Duration = Field("30s", validate_default=True)
    """Idle time between two requests on one connection."""
    min_body_rate: Annotated[int, Field(ge=1, le=1 << 30)] = 1 << 10
    """Minimum rate in bytes per second, averaged over the whole body. It applies after `body_grace`."""
    body_grace: Duration = Field("10s", validate_default=True)
    """Time during which a body can arrive at any rate."""
    send_timeout: Duration = Field("30s", validate_default=True)
    """Time after which a client that reads nothing of its response is disconnected."""

    max_connections: Annotated[int, Field(ge=8, le=1_000_000)] = 4096
    max_connections_per_address: Annotated[int, Field(ge=1, le=1_000_000)] = 3072
    reserved_connections: Annotated[int, Field(ge=0, le=1_000_000)] = 1024
    """Part of `max_connections` that is reserved for authenticated connections."""
    max_unauthenticated_bytes: Annotated[int, Field(ge=1 << 16, le=1 << 40)] = 16 << 20
    """Size of the heads and bodies of all unauthenticated connections together."""

    @model_validator(mode="after")
    def _leaves_unreserved_connections(self) -> Self:
        if self.reserved_connections >= self.max_connections:
            raise ValueError("reserved_connections must be smaller than max_connections")
        return self
