"""Loads a user's own agents and tools, from Python modules or from objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

import structlog

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.definition_checks import (
    CheckedDefinition,
    check_definition,
    find_trigger_cycle,
    is_breadcrumb,
)
from breadcrumbs.agents.functions import FunctionAgent
from breadcrumbs.agents.hooks import Hook
from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.models.given import as_model
from breadcrumbs.agents.tools import Tool, ToolDefinition
from breadcrumbs.agents.tools.output import error_text
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.schema_names import AGENT_DEFINITION

OwnAgent: TypeAlias = FunctionAgent | AgentDefinition | Mapping[str, Any]
"""Function with `@agent`, or a definition (as in an `agent.def.v1`) of an agent that uses a model.

In a dict, the model can also be an object: a function of a `ModelRequest`, or a model such as `ScriptedModel`.
"""

_log = structlog.get_logger("breadcrumbs.agents")


@dataclass(frozen=True, slots=True)
class OwnAgents:
    """A user's own agents, and the tools that are loaded with them."""

    agents: tuple[ActiveAgent, ...] = ()
    tools: tuple[Tool, ...] = ()
    hooks: tuple[Hook, ...] = ()


def load_agents(modules: Iterable[str]) -> OwnAgents:
    """Import modules, and collect their agents, tools and hooks.

    These are functions with `@agent`, `@tool` or `@hook`, definitions (`AgentDefinition`, or dicts with an `agent_id`),
    and lists of them. Raise `StartupError` for an object that looks like one of them and cannot be used.
    """
    found: dict[int, tuple[str, object]] = {}
    for name in modules:
        module = _import_module(name)
        matching = {id(value): (position, value) for position, value in _objects_in(module)}
        if not matching:
            raise StartupError(
                f"module {name!r} contains no agents, tools or hooks: add a function with @agent, @tool or @hook, or a "
                "definition with an agent_id"
            )
        # The identity is the key, so that an object imported into several modules counts once.
        found |= matching
    tools = [value for _, value in found.values() if isinstance(value, Tool)]
    hooks = [value for _, value in found.values() if isinstance(value, Hook)]
    agents = [
        _as_agent(value, position)
        for position, value in found.values()
        if isinstance(value, FunctionAgent | AgentDefinition | Mapping)
    ]
    return _combine(agents, tools, hooks)


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
    agents: Iterable[OwnAgent],
    tools: Iterable[Tool] = (),
    hooks: Iterable[Hook] = (),
    model: Model | None = None,
) -> OwnAgents:
    """Validate agents that are given as objects, and combine them with their tools and hooks.

    `model` is the model of agents that name none. Raise `StartupError` for an invalid definition or a duplicate
    `agent_id`.
    """
    given = [_with_default(_as_agent(one, f"agents[{number}]"), model) for number, one in enumerate(agents)]
    for number, one in enumerate(tools := list(tools)):
        if not isinstance(one, Tool):
            raise StartupError(
                f"tools[{number}] is no tool, but a {type(one).__name__}: use a function with @tool"
            )
    return _combine(given, tools, hooks)


def _with_default(agent: ActiveAgent, model: Model | None) -> ActiveAgent:
    names_one = agent.definition.model is not None or agent.given_model is not None
    return agent if model is None or names_one else replace(agent, given_model=model)


def _combine(agents: Iterable[ActiveAgent], tools: Iterable[Tool], hooks: Iterable[Hook]) -> OwnAgents:
    ready = tuple(agents)
    names = [agent.definition.agent_id for agent in ready]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise StartupError(f"two agents have the agent_id {duplicates[0]!r}: change one of them")
    _warn_of_cycles([agent.definition for agent in ready])
    return OwnAgents(ready, tuple(tools), tuple(hooks))


def _warn_of_cycles(definitions: list[AgentDefinition]) -> None:
    by_name = {definition.agent_id: definition for definition in definitions}
    reported: set[frozenset[str]] = set()
    for name in by_name:
        cycle = find_trigger_cycle(name, by_name)
        if cycle is not None and frozenset(cycle) not in reported:
            reported.add(frozenset(cycle))
            _log.warning(
                "agents trigger each other, the hop limit stops them",
                agents=" → ".join([*cycle, cycle[0]]),
            )


# Objects


def _objects_in(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the agents and tools of a module with their positions, also those in lists.

    Other objects of a module are its own business. A dict is a definition if it has an `agent_id`, or is a whole
    `agent.def.v1` breadcrumb.
    """
    for name, value in vars(module).items():
        if name.startswith("__"):
            continue
        position = f"{module.__name__}.{name}"
        if isinstance(value, list | tuple):
            for number, item in enumerate(value):
                if _is_agent_or_tool(item):
                    yield f"{position}[{number}]", item
                elif any(_is_agent_or_tool(other) for other in value):
                    raise StartupError(
                        f"{position}[{number}] is neither an agent nor a tool, but a {type(item).__name__}: remove it, "
                        "or add an agent_id"
                    )
        elif isinstance(value, ToolDefinition) and not isinstance(value, Tool):
            raise StartupError(f"{position} describes a tool that has no function: use a function with @tool")
        elif _is_agent_or_tool(value):
            yield position, value
        elif _is_unnamed_definition(value):
            raise StartupError(f"{position} looks like an agent definition, but it has no agent_id: add one")


def _is_agent_or_tool(value: object) -> bool:
    if isinstance(value, FunctionAgent | AgentDefinition | Tool | Hook):
        return True
    return isinstance(value, Mapping) and ("agent_id" in value or _is_definition_breadcrumb(value))


def _is_definition_breadcrumb(value: Mapping[Any, Any]) -> bool:
    return is_breadcrumb(value) and value.get("schema_name") == AGENT_DEFINITION


def _is_unnamed_definition(value: object) -> bool:
    return isinstance(value, Mapping) and "subscriptions" in value


def _as_agent(one: object, position: str) -> ActiveAgent:
    """Return the agent of an object. Raise `StartupError` with its position if it is unusable."""
    if isinstance(one, FunctionAgent):
        _log_warnings(one.definition.model_dump(exclude_unset=True), position)
        return ActiveAgent(one.definition, one.function, trusted=True)
    if isinstance(one, AgentDefinition):
        _log_warnings(one.model_dump(exclude_unset=True), position)
        return ActiveAgent(one, trusted=True)
    if not isinstance(one, Mapping):
        raise StartupError(
            f"{position} is no agent, but a {type(one).__name__}: use a function with @agent, or a definition"
        )
    fields = dict(one["context"] if _is_definition_breadcrumb(one) else one)
    if (model := as_model(fields.get("model"))) is not None:
        del fields["model"]
    checked = _log_warnings(fields, position)
    if checked.definition is None:
        lines = "\n".join(f"  {error}" for error in checked.errors)
        name = fields.get("agent_id", "(no agent_id)")
        raise StartupError(f"{position}: the agent definition {name!r} is invalid:\n{lines}")
    return ActiveAgent(checked.definition, trusted=True, given_model=model)


def _log_warnings(fields: Mapping[str, Any], position: str) -> CheckedDefinition:
    checked = check_definition(fields)
    for warning in checked.warnings:
        _log.warning("agent definition has a problem", position=position, problem=str(warning))
    return checked


# Modules


def search_current_directory() -> None:
    """Let modules be imported from the current directory, in which users keep them.

    The search path of an installed command starts with the folder of its script instead.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)


def _import_module(name: str) -> ModuleType:
    search_current_directory()
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # user code runs on import
        raise StartupError(f"importing module {name!r} failed: {error_text(error)}") from error
