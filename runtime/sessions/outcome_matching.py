"""Decides whether a breadcrumb is the outcome of a message.

This module does no I/O, so that the client can use it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breadcrumbs.runtime.schema_names import AGENT_ERROR, AGENT_RESPONSE, ROOT


def is_outcome(
    schema_name: str | None, context: Mapping[str, Any], message_id: str, agent: str | None = None
) -> bool:
    """Return whether a breadcrumb is the outcome of a message.

    The outcome is an answer or an error. One answer can be the outcome of several messages. `agent` limits the result
    to outcomes of this agent, and also accepts its answers later in the chain of the message. An error without an agent
    counts for all agents.
    """
    if not _names_message(context, message_id) and (agent is None or context.get(ROOT) != message_id):
        return False
    if schema_name == AGENT_ERROR:
        return agent in (None, context.get("agent_id", agent))
    return (schema_name == AGENT_RESPONSE or is_by_agent(context)) and agent in (None, agent_of(context))


def is_answer_or_error(schema_name: str | None, context: Mapping[str, Any]) -> bool:
    """Return whether a breadcrumb ends a turn: it is the answer of an agent, or an error."""
    return schema_name in (AGENT_RESPONSE, AGENT_ERROR) or is_by_agent(context)


def agent_of(context: Mapping[str, Any]) -> str | None:
    """Return the id of the agent that wrote a breadcrumb, or None."""
    creator = context.get("creator")
    if isinstance(creator, dict):
        creator = creator.get("agent_id")
    agent = creator if creator is not None else context.get("requestedBy")
    return agent if isinstance(agent, str) else None


def _names_message(context: Mapping[str, Any], message_id: str) -> bool:
    merged = context.get("answers")
    return context.get("trigger_id") == message_id or (isinstance(merged, list) and message_id in merged)


def is_by_agent(context: Mapping[str, Any]) -> bool:
    """Return whether an agent wrote a breadcrumb."""
    # An agent can use another schema for its answers. Tool requests have no creator.
    creator = context.get("creator")
    return isinstance(creator, dict) and creator.get("type") == "agent"
