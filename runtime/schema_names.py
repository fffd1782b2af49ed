"""Classes of schema names that the runtime treats in a special way."""

from __future__ import annotations

from typing import Final

INTERNAL: Final = frozenset(
    (
        "adk.session.v1",
        "agent.context.v1",
        "agent.def.v1",
        "agent.cancel.v1",
        "context.config.v1",
        "context.request.v1",
        "schema.def.v1",
    )
)
"""Written by the system for the system. No model is shown one."""

CONTROL: Final = INTERNAL | {"session.v1", "session.state.v1", "adk.event.v1", "tool.catalog.v1"}
"""The runtime acts on these: the owner and state of a session, who answers, what an agent sees.

A model's answer cannot have one of these schemas, unless the definition of its agent names it.
"""

ATTRIBUTED: Final = frozenset(("user.message.v1", "agent.error.v1", "tool.response.v1"))
"""These say who is speaking: a user, the runtime, a tool. No answer of an agent has one of these schemas."""
