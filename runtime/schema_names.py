"""Schema names and context keys that have a meaning to the runtime.

A schema name is the type of a breadcrumb. Clients may use any name. The runtime treats the names below specially.
"""

from __future__ import annotations

from typing import Final

# Conversations
USER_MESSAGE: Final = "user.message.v1"
AGENT_RESPONSE: Final = "agent.response.v1"
AGENT_ERROR: Final = "agent.error.v1"
TOOL_REQUEST: Final = "tool.request.v1"
TOOL_STARTED: Final = "tool.started.v1"
TOOL_RESPONSE: Final = "tool.response.v1"
PAGE_CONTENT: Final = "page.content.v1"
FEEDBACK: Final = "feedback.v1"

# Sessions and their state
SESSION_RECORD: Final = "session.v1"
STATE_CHANGE: Final = "session.state.v1"
ADK_EVENT: Final = "adk.event.v1"
ADK_SESSION: Final = "adk.session.v1"

# Agents and contexts
AGENT_CONTEXT: Final = "agent.context.v1"
AGENT_DEFINITION: Final = "agent.def.v1"
AGENT_CANCEL: Final = "agent.cancel.v1"
AGENT_STEP: Final = "agent.step.v1"
CONTEXT_CONFIG: Final = "context.config.v1"
CONTEXT_REQUEST: Final = "context.request.v1"
SCHEMA_DEFINITION: Final = "schema.def.v1"
TOOL_CATALOG: Final = "tool.catalog.v1"
USAGE_BUDGET: Final = "usage.budget.v1"

# Framework adapters
LANGCHAIN_MESSAGE: Final = "langchain.message.v1"
OPENAI_ITEM: Final = "openai.item.v1"

INTERNAL_SCHEMAS: Final = frozenset(
    (
        ADK_SESSION,
        AGENT_CONTEXT,
        AGENT_DEFINITION,
        AGENT_CANCEL,
        AGENT_STEP,
        CONTEXT_CONFIG,
        CONTEXT_REQUEST,
        FEEDBACK,
        SCHEMA_DEFINITION,
        TOOL_STARTED,
        USAGE_BUDGET,
    )
)
"""Schemas that the system writes for itself. Models never see them."""

PROTECTED_SCHEMAS: Final = INTERNAL_SCHEMAS | {SESSION_RECORD, STATE_CHANGE, ADK_EVENT, TOOL_CATALOG}
"""Schemas that control the runtime: owner and state of sessions, agents, contents of contexts.

An answer cannot have one of these schemas, unless the definition of its agent names it.
"""

SPEAKER_SCHEMAS: Final = frozenset((USER_MESSAGE, AGENT_ERROR, TOOL_RESPONSE, FEEDBACK))
"""Schemas that identify the author as a user, the runtime or a tool. An agent's answer never has one of these."""

ATTACHMENT_SCHEMAS: Final = frozenset((PAGE_CONTENT,))
"""Schemas that a user attaches to a message. An attachment belongs to the next message of its session."""

REASONING: Final = "model_reasoning"
"""Context key of an answer with the reasoning of the model. It is shown to people and never to models."""

RECEIPT: Final = "model_receipt"
"""Context key of an answer with its receipt, and of a tool request with the facts that its receipt needs."""

ADDRESSEE: Final = "addressed_to"
"""Context key of a message that is addressed to one agent: its `agent_id`. The context of the message has it, too."""

ROOT: Final = "root_id"
"""Context key with the id of the message that a breadcrumb follows from (see `breadcrumb/roots.py`)."""

STRUCTURED_OUTPUT: Final = "structured_output"
"""Context key of an answer with its parsed value, if the definition of its agent has an `output_schema`."""

RUNTIME_KEYS: Final = frozenset(
    (
        REASONING,
        RECEIPT,
        ADDRESSEE,
        ROOT,
        STRUCTURED_OUTPUT,
        "session_id",
        "trigger_id",
        "creator",
        "hops",
        "context_id",
        "context_version",
        "answers",
        "adk",
        "state_delta",
    )
)
"""Context keys that only the runtime sets. Models cannot set them, and they are not part of a message's text."""

HIDDEN_KEYS: Final = RUNTIME_KEYS | {"conversation_id", "llm_hints"}
"""Context keys that models do not see."""

TEXT_KEYS: Final = ("message", "content", "text", "response_text", "formatted")
"""Context keys that can contain the text of a message. The first one with a string value is used."""
