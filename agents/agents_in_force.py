"""The agents in force for an owner.

They come from files, from Python functions, and from the owner's `agent.def.v1` breadcrumbs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog

from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.definition_checks import check_definition, check_text
from breadcrumbs.agents.functions import AgentFunction
from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.other_agents import OtherAgents
from breadcrumbs.runtime.access.policy import find_restriction
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.schema_names import AGENT_DEFINITION
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.definitions import DefinitionType, OwnDefinitions

_log = structlog.get_logger("breadcrumbs.agents")


def _parse_definition(crumb: Breadcrumb) -> tuple[AgentDefinition | None, str]:
    checked = check_definition(crumb.context)
    return checked.definition, checked.reason


def _restriction_message(crumb: Breadcrumb) -> str:
    match find_restriction(crumb):
        case "narrowed":
            return "an agent applies to all sessions and users: post it without session: and user: tags"
        case "hidden":
            return "a private or secret agent is never used: change its visibility or sensitivity"
        case None:
            return ""


AGENT_DEFINITIONS: Final[DefinitionType[AgentDefinition]] = DefinitionType(
    schema_name=AGENT_DEFINITION,
    label="agent definition",
    parse=_parse_definition,
    key=lambda definition: definition.agent_id,
    restriction=_restriction_message,
)


@dataclass(frozen=True, slots=True)
class ActiveAgent:
    """An agent in force: its definition, and its Python function if it has one."""

    definition: AgentDefinition
    function: AgentFunction | None = None
    trusted: bool = False
    """Written by the operator. Only a trusted definition may name a model by a URL that is not in the settings."""
    fallback: bool = False
    """Leaves messages to other agents that match. True for the built-in assistant."""
    chosen_model: str | None = None
    """The model that was chosen for the session of a turn. It has priority over the model of the definition."""
    given_model: Model | None = None
    """A model that the program passed as an object. It has priority over all names."""


class AgentsInForce:
    """Returns the agents that are in force for an owner now."""

    def __init__(
        self,
        store: Store,
        agents: Iterable[ActiveAgent],
        *,
        breadcrumbs: bool = True,
        others: OtherAgents | None = None,
    ) -> None:
        """`agents` are the agents of all owners. `breadcrumbs`: also read the definitions of each owner.

        `others` are the agents of other processes.
        """
        self.others = others
        self._breadcrumbs = breadcrumbs
        self._shared = {agent.definition.agent_id: agent for agent in agents}
        self._own = OwnDefinitions(store, AGENT_DEFINITIONS)

    def is_definition(self, event: Event) -> bool:
        """Return whether an event is about a definition that is read here."""
        return self._breadcrumbs and event.schema_name == AGENT_DEFINITIONS.schema_name

    async def get(self, owner: UUID) -> list[ActiveAgent]:
        """Return the shared agents and those of the owner. On the same agent_id, the owner's agent wins."""
        return self._merge(await self._own.get(owner) if self._breadcrumbs else ())

    def invalidate(self, owner: UUID) -> None:
        """Drop the cached definitions of an owner, because they have changed."""
        self._own.invalidate(owner)

    def get_stale(self, owner: UUID) -> list[ActiveAgent]:
        """Return the agents as they were last loaded, without I/O."""
        return self._merge(self._own.get_stale(owner))

    def _merge(self, own: tuple[AgentDefinition, ...]) -> list[ActiveAgent]:
        agents = dict(self._shared)
        for definition in reversed(own):
            replaced = agents.get(definition.agent_id)
            # An edited copy of the built-in assistant is still the built-in assistant.
            fallback = replaced is not None and replaced.fallback
            agents[definition.agent_id] = ActiveAgent(definition, fallback=fallback)
        return list(agents.values())


def load_definitions(folder: Path | None, *, default: bool = True) -> list[ActiveAgent]:
    """Read the definitions in a folder, or the built-in ones if there is no folder and `default` is set.

    A built-in agent leaves messages to other agents that match. Raise `StartupError` for an invalid definition. Unknown
    fields are logged.
    """
    if folder is None and not default:
        return []
    directory = files("breadcrumbs.agents").joinpath("definitions") if folder is None else folder
    entries = sorted(directory.iterdir(), key=lambda path: path.name)
    return [
        ActiveAgent(parse_definition(entry.name, entry.read_bytes()), trusted=True, fallback=folder is None)
        for entry in entries
        if entry.name.endswith(".json")
    ]


def parse_definition(name: str, raw: bytes) -> AgentDefinition:
    """Parse the content of a definition file. Raise `StartupError` with the positions of all errors."""
    checked = check_text(raw)
    if checked.definition is None:
        lines = "\n".join(f"  {name}:{error}" for error in checked.errors)
        raise StartupError(f"{name} is not a valid agent definition:\n{lines}")
    for warning in checked.warnings:
        _log.warning("agent definition has a problem", file=name, problem=str(warning))
    return checked.definition
