"""Agents: definitions, turns, models, tools, and agents on remote ADK servers.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "addressees",
    "agents_in_force",
    "answer",
    "chosen_agent",
    "definition",
    "functions",
    "hooks",
    "models",
    "prompt",
    "prompt_cache",
    "prompt_images",
    "receipts",
    "remote_adk",
    "runner",
    "setups",
    "structured_output",
    "tool_steps",
    "tools",
    "turn",
]
