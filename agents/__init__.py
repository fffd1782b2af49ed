"""Agents: definitions, turns, models, tools, and agents on remote ADK servers.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "addressees",
    "agents_in_force",
    "answer",
    "chosen_agent",
    "definition",
    "external_calls",
    "functions",
    "models",
    "prompt",
    "prompt_cache",
    "receipts",
    "remote_adk",
    "runner",
    "setups",
    "step_journal",
    "tool_runner",
    "tool_steps",
    "tool_use",
    "tools",
    "turn",
]
