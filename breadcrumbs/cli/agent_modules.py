"""Python modules with agents and tools of somebody's own, as settings name them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from pydantic import ValidationError

from breadcrumbs.agents.agents_in_force import Agent
from breadcrumbs.agents.definition import AgentDefinition, definition_fields
from breadcrumbs.agents.functions import FunctionAgent
from breadcrumbs.agents.tools import Tool
from breadcrumbs.agents.tools.output import in_words
from breadcrumbs.runtime.breadcrumb.breadcrumb import complaints_of
from breadcrumbs.runtime.errors import StartupError

OwnAgent: TypeAlias = FunctionAgent | AgentDefinition | Mapping[str, Any]
"""A function with `@agent`, or a definition (as in an `agent.def.v1`) that a model answers for."""


@dataclass(frozen=True, slots=True)
class Loaded:
    agents: tuple[Agent, ...] = ()
    tools: tuple[Tool, ...] = ()


def load_agents(modules: Iterable[str]) -> Loaded:
    """Import modules and collect what they hold: functions with `@agent` and `@tool`, and definitions."""
    found: dict[int, object] = {}
    for name in modules:
        here = [value for value in vars(_imported(name)).values() if _is_ours(value)]
        if not here:
            raise StartupError(
                f"the module {name!r} holds no agent and no tool (a function with @agent, @tool)"
            )
        found |= {id(value): value for value in here}  # once, however many modules it was imported into
    tools = [value for value in found.values() if isinstance(value, Tool)]
    agents = [value for value in found.values() if isinstance(value, FunctionAgent | AgentDefinition)]
    return own_agents(agents, tools)


def own_agents(agents: Iterable[OwnAgent], tools: Iterable[Tool] = ()) -> Loaded:
    """The same, for who has them at hand."""
    ready = tuple(_agent(one) for one in agents)
    names = [agent.definition.agent_id for agent in ready]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise StartupError(f"there are two agents called {twice[0]!r}: give one of them another agent_id")
    return Loaded(ready, tuple(tools))


def _agent(one: OwnAgent) -> Agent:
    if isinstance(one, FunctionAgent):
        return Agent(one.definition, one.function, trusted=True)
    if isinstance(one, AgentDefinition):
        return Agent(one, trusted=True)
    try:
        return Agent(AgentDefinition.model_validate(definition_fields(dict(one))), trusted=True)
    except ValidationError as error:
        lines = "\n".join(f"  {c.where}: {c.message}" for c in complaints_of(error))
        raise StartupError(f"{one.get('agent_id', 'this')!r} is no agent definition:\n{lines}") from None


def _is_ours(value: object) -> bool:
    return isinstance(value, FunctionAgent | AgentDefinition | Tool)


def _imported(name: str) -> Any:
    # A command's path begins with the folder of the command; people's modules are where they are.
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # whatever its first lines do
        raise StartupError(f"the module {name!r} cannot be imported: {in_words(error)}") from error
