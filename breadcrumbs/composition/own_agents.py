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
from breadcrumbs.agents.tools import Tool
from breadcrumbs.agents.tools.output import error_text
from breadcrumbs.runtime.breadcrumb.validation import error_lines
from breadcrumbs.runtime.errors import StartupError

OwnAgent: TypeAlias = FunctionAgent | AgentDefinition | Mapping[str, Any]
"""A function with `@agent`, or a definition (as in an `agent.def.v1`) that a model answers for."""


@dataclass(frozen=True, slots=True)
class OwnAgents:
    """A user's own agents, and the tools that they bring along."""

    agents: tuple[ActiveAgent, ...] = ()
    tools: tuple[Tool, ...] = ()


def load_agents(modules: Iterable[str]) -> OwnAgents:
    """Import modules and collect their functions with `@agent` and `@tool`, and their definitions."""
    found: dict[int, object] = {}
    for name in modules:
        here = [value for value in vars(_import_module(name)).values() if _is_agent_or_tool(value)]
        if not here:
            raise StartupError(
                f"the module {name!r} holds no agent and no tool (a function with @agent, @tool)"
            )
        found |= {id(value): value for value in here}  # an object imported into several modules counts once
    tools = [value for value in found.values() if isinstance(value, Tool)]
    agents = [value for value in found.values() if isinstance(value, FunctionAgent | AgentDefinition)]
    return collect_agents(agents, tools)


def collect_agents(agents: Iterable[OwnAgent], tools: Iterable[Tool] = ()) -> OwnAgents:
    """Check agents and tools that the caller already has as objects."""
    ready = tuple(_as_agent(one) for one in agents)
    names = [agent.definition.agent_id for agent in ready]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise StartupError(f"there are two agents called {twice[0]!r}: give one of them another agent_id")
    return OwnAgents(ready, tuple(tools))


def _as_agent(one: OwnAgent) -> ActiveAgent:
    if isinstance(one, FunctionAgent):
        return ActiveAgent(one.definition, one.function, trusted=True)
    if isinstance(one, AgentDefinition):
        return ActiveAgent(one, trusted=True)
    try:
        return ActiveAgent(AgentDefinition.model_validate(definition_fields(dict(one))), trusted=True)
    except ValidationError as error:
        raise StartupError(
            f"{one.get('agent_id', 'this')!r} is no agent definition:\n{error_lines(error)}"
        ) from None


def _is_agent_or_tool(value: object) -> bool:
    return isinstance(value, FunctionAgent | AgentDefinition | Tool)


def _import_module(name: str) -> Any:
    # The search path of a script starts with the folder of the script. Users keep their modules in the
    # current directory.
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # user code runs on import
        raise StartupError(f"the module {name!r} cannot be imported: {error_text(error)}") from error
