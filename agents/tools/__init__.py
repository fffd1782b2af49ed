"""Tools of agents: `@tool`, the toolbox, the built-in tools, and the tools of the settings."""

from __future__ import annotations

from breadcrumbs.agents.tools.base import Tool, Toolbox, ToolContext, ToolResult, tool
from breadcrumbs.agents.tools.definition import ToolDefinition
from breadcrumbs.agents.tools.loading import load_tools
from breadcrumbs.agents.tools.shipped import SHIPPED, shipped_tools

__all__ = [
    "SHIPPED",
    "Tool",
    "ToolContext",
    "ToolDefinition",
    "ToolResult",
    "Toolbox",
    "load_tools",
    "shipped_tools",
    "tool",
]
