"""Loads a user's own agents and tools, from Python modules or from objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeAlias

from pydantic import ValidationError

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.definition import AgentDefinition, definition_fields
from breadcrumbs.agents.functions import FunctionAgent
from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.models.given import as_model
from breadcrumbs.agents.tools import Tool
from breadcrumbs.agents.tools.output import error_text
from breadcrumbs.runtime.breadcrumb.validation import error_lines
from breadcrumbs.runtime.errors import StartupError

OwnAgent: TypeAlias = FunctionAgent | AgentDefinition | Mapping[str, Any]
"""Function with `@agent`, or a definition (as in an `agent.def.v1`) of an agent that uses a model.

In a dict, the model can also be an object: a function of a `ModelRequest`, or a model such as `ScriptedModel`.
"""


@dataclass(frozen=True, slots=True)
class OwnAgents:
    """A user's own agents, and the tools that are loaded with them."""

    agents: tuple[ActiveAgent, ...] = ()
    tools: tuple[Tool, ...] = ()


def load_agents(modules: Iterable[str]) -> OwnAgents:
    """Import modules, and collect their agents and tools.

    These are functions with `@agent` or `@tool`, and agent definitions.
    """
    found: dict[int, object] = {}
    for name in modules:
        matching = [value for value in vars(_import_module(name)).values() if _is_agent_or_tool(value)]
        if not matching:
            raise StartupError(
                f"module {name!r} contains no agents or tools: add a function with @agent or @tool"
            )
        # Use the identity as the key, so that an object imported into several modules counts once.
        found |= {id(value): value for value in matching}
    tools = [value for value in found.values() if isinstance(value, Tool)]
    agents = [value for value in found.values() if isinstance(value, FunctionAgent | AgentDefinition)]
    return collect_agents(agents, tools)


def collect_agents(
    agents: Iterable[OwnAgent], tools: Iterable[Tool] = (), model: Model | None = None
) -> OwnAgents:
    """Validate agents that are given as objects, and combine them with their tools.

    `model` is the model of agents that name none. Raise `StartupError` for an invalid definition or a duplicate
    `agent_id`.
    """
    ready = tuple(_with_default(_as_agent(one), model) for one in agents)
    names = [agent.definition.agent_id for agent in ready]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise StartupError(f"two agents have the agent_id {duplicates[0]!r}: change one of them")
    return OwnAgents(ready, tuple(tools))


def _with_default(agent: ActiveAgent, model: Model | None) -> ActiveAgent:
    names_one = agent.definition.model is not None or agent.given_model is not None
    return agent if model is None or names_one else replace(agent, given_model=model)


def _as_agent(one: OwnAgent) -> ActiveAgent:
    if isinstance(one, FunctionAgent):
        return ActiveAgent(one.definition, one.function, trusted=True)
    if isinstance(one, AgentDefinition):
        return ActiveAgent(one, trusted=True)
    fields = dict(one)
    if (model := as_model(fields.get("model"))) is not None:
        del fields["model"]
    try:
        definition = AgentDefinition.model_validate(definition_fields(fields))
        return ActiveAgent(definition, trusted=True, given_model=model)
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
    return isinstance(value, FunctionAgent | AgentDefinition | Tool)


def _import_module(name: str) -> Any:
    search_current_directory()
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # user code runs on import
        raise StartupError(f"importing module {name!r} failed: {error_text(error)}") from error
