"""Agents: definitions, turns, models, tools, and agents on remote ADK servers.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "addressees",
    "agents_in_force",
    "answer",
    "chain_limits",
    "chosen_agent",
    "definition",
    "definition_checks",
    "external_calls",
    "functions",
    "hooks",
    "http",
    "models",
    "other_agents",
    "prompt",
    "prompt_cache",
    "prompt_images",
    "receipts",
    "remote_adk",
    "runner",
    "setups",
    "step_journal",
    "structured_output",
    "tool_runner",
    "tool_steps",
    "tool_use",
    "tools",
    "turn",
    "usage",
]
