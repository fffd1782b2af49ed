"""Loads a user's own agents and tools, from Python modules or from objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from pydantic import ValidationError

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.definition import AgentDefinition, definition_fields
from breadcrumbs.agents.functions import FunctionAgent
from breadcrumbs.agents.hooks import Hook
from breadcrumbs.agents.tools import Tool
from breadcrumbs.agents.tools.output import error_text
from breadcrumbs.runtime.breadcrumb.validation import error_lines
from breadcrumbs.runtime.errors import StartupError

OwnAgent: TypeAlias = FunctionAgent | AgentDefinition | Mapping[str, Any]
"""Function with `@agent`, or a definition (as in an `agent.def.v1`) of an agent that uses a model."""


@dataclass(frozen=True, slots=True)
class OwnAgents:
    """A user's own agents, and the tools that are loaded with them."""

    agents: tuple[ActiveAgent, ...] = ()
    tools: tuple[Tool, ...] = ()
    hooks: tuple[Hook, ...] = ()


def load_agents(modules: Iterable[str]) -> OwnAgents:
    """Import modules, and collect their agents, tools and hooks.

    These are functions with `@agent`, `@tool` or `@hook`, and agent definitions.
    """
    found: dict[int, object] = {}
    for name in modules:
        matching = [value for value in vars(_import_module(name)).values() if _is_agent_or_tool(value)]
        if not matching:
            raise StartupError(
                f"module {name!r} contains no agents, tools or hooks: add a function with @agent, @tool or @hook"
            )
        # Use the identity as the key, so that an object imported into several modules counts once.
        found |= {id(value): value for value in matching}
    tools = [value for value in found.values() if isinstance(value, Tool)]
    agents = [value for value in found.values() if isinstance(value, FunctionAgent | AgentDefinition)]
    hooks = [value for value in found.values() if isinstance(value, Hook)]
    return collect_agents(agents, tools, hooks)


def load_hooks(modules: Iterable[str]) -> list[Hook]:
    """Import modules, and collect their hooks. Raise `StartupError` for a module without any."""
    found: dict[int, Hook] = {}
    for name in modules:
        own = {id(value): value for value in vars(_import_module(name)).values() if isinstance(value, Hook)}
        if not own:
            raise StartupError(f"module {name!r} contains no hooks: add a function with @hook")
        found |= own
    return list(found.values())


def collect_agents(
    agents: Iterable[OwnAgent], tools: Iterable[Tool] = (), hooks: Iterable[Hook] = ()
) -> OwnAgents:
    """Validate agents that are given as objects, and combine them with their tools and hooks.

    Raise `StartupError` for an invalid definition or a duplicate `agent_id`.
    """
    ready = tuple(_as_agent(one) for one in agents)
    names = [agent.definition.agent_id for agent in ready]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise StartupError(f"two agents have the agent_id {duplicates[0]!r}: change one of them")
    return OwnAgents(ready, tuple(tools), tuple(hooks))


def _as_agent(one: OwnAgent) -> ActiveAgent:
    if isinstance(one, FunctionAgent):
        return ActiveAgent(one.definition, one.function, trusted=True)
    if isinstance(one, AgentDefinition):
        return ActiveAgent(one, trusted=True)
    try:
        return ActiveAgent(AgentDefinition.model_validate(definition_fields(dict(one))), trusted=True)
    except ValidationError as error:
        name = one.get("agent_id", "(no agent_id)")
        lines = error_lines(error, model=AgentDefinition)
        raise StartupError(f"the agent definition {name!r} is invalid:\n{lines}") from None


def search_current_directory() -> None:
    """Let modules be imported from the current directory, in which users keep them.

    The search path of an installed command starts with the folder of its script instead.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)


def _is_agent_or_tool(value: object) -> bool:
    return isinstance(value, FunctionAgent | AgentDefinition | Tool | Hook)


def _import_module(name: str) -> Any:
    search_current_directory()
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # user code runs on import
        raise StartupError(f"importing module {name!r} failed: {error_text(error)}") from error
