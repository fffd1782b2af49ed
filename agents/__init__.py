"""Agents: definitions, turns, models, tools, and agents on remote ADK servers.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "agents_in_force",
    "definition",
    "functions",
    "models",
    "remote_adk",
    "runner",
    "tool_steps",
    "tools",
    "turn",
]
