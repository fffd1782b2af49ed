"""Replies of scripted models that call tools."""

from __future__ import annotations

from typing import Any

import orjson

from breadcrumbs.agents.models.base import ModelReply, ToolCall


def call_tool(name: str, /, **arguments: Any) -> ModelReply:
    """Return the reply of a model that calls one tool."""
    return call_tools((name, arguments))


def call_tools(*calls: tuple[str, dict[str, Any]], text: str = "") -> ModelReply:
    """Return the reply of a model that calls several tools, each as name and arguments. `text` comes before them."""
    made = tuple(
        ToolCall(f"call-{number}", name, orjson.dumps(arguments).decode())
        for number, (name, arguments) in enumerate(calls, 1)
    )
    return ModelReply(text, made, finish_reason="tool_calls")
