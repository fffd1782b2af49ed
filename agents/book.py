"""The agents in force: from files, from Python functions, and from an owner's `agent.def.v1` breadcrumbs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from uuid import UUID

import orjson
import structlog
from pydantic import ValidationError

from breadcrumbs.agents.definition import AgentDefinition, definition_fields
from breadcrumbs.agents.functions import AgentFunction
from breadcrumbs.runtime.access.policy import restriction_of
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, complaints_of
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.batched_reads import recent_shared
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.owner_cache import Remembered

_log = structlog.get_logger("breadcrumbs.agents")

DEFINITION = "agent.def.v1"

_MOST = 1_000
"""Definitions of an owner that count: the newest."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A definition, and the Python function that answers where there is one."""

    definition: AgentDefinition
    function: AgentFunction | None = None
    trusted: bool = False
    """Written by the operator: may name a model by any URL. A client's breadcrumb may not."""


class AgentBook:
    """Answers: which agents does this owner have now?"""

    def __init__(self, store: Store, agents: Iterable[Agent], *, breadcrumbs: bool = True) -> None:
        """`breadcrumbs`: owners' own definitions count too; not for who runs certain agents and no others."""
        self._store = store
        self._breadcrumbs = breadcrumbs
        self._everybodys = {agent.definition.agent_id: agent for agent in agents}
        self._own = Remembered(self._from_breadcrumbs)
        self._complained: set[tuple[UUID, int]] = set()
        self._warned: set[UUID] = set()

    def reads(self, event: Event) -> bool:
        """Whether an event speaks of a definition that may count here."""
        return self._breadcrumbs and event.schema_name == DEFINITION

    async def agents(self, owner: UUID) -> list[Agent]:
        """Everybody's agents, and the owner's own on top: the same agent_id replaces."""
        if not self._breadcrumbs:
            return list(self._everybodys.values())
        return list((self._everybodys | await self._own.get(owner)).values())

    def last(self, owner: UUID) -> list[Agent]:
        """The same, as it was last read; for decisions that cannot wait."""
        return list((self._everybodys | (self._own.last(owner) or {})).values())

    async def _from_breadcrumbs(self, owner: UUID) -> dict[str, Agent]:
        # Those in a session are nobody's agents.
        (newest,) = await self._store.read_batch(recent_shared(self._store, owner, DEFINITION, _MOST))
        if len(newest) == _MOST and owner not in self._warned:
            self._warned.add(owner)
            _log.warning(
                "an owner has more agent definitions than are read, or just as many: delete old ones",
                owner=str(owner),
                read=f"the newest {_MOST}",
            )
        read: list[tuple[int, AgentDefinition]] = []
        for crumb in newest:
            definition, problem = definition_in(crumb)
            if definition is not None:
                read.append((crumb.updated, definition))
                continue
            # A misspelt edit must not silence an agent, nor leave its place to another one.
            if not _withheld(crumb) and (earlier := await self._store.last_usable(crumb, _written)):
                read.append(earlier)
            if (crumb.id, crumb.version) not in self._complained:
                self._complained.add((crumb.id, crumb.version))
                _log.warning("an agent definition is not usable", breadcrumb=str(crumb.id), problem=problem)
        # Of two with one agent_id the one that was written last holds.
        return {
            definition.agent_id: Agent(definition)
            for _, definition in sorted(read, key=lambda entry: entry[0])
        }


def definition_in(crumb: Breadcrumb) -> tuple[AgentDefinition | None, str]:
    """The definition in an `agent.def.v1` breadcrumb, or why it cannot be used."""
    if withheld := _withheld(crumb):
        return None, withheld
    try:
        return AgentDefinition.model_validate(definition_fields(crumb.context)), ""
    except ValidationError as error:
        return None, "; ".join(
            f"{c.where}: {c.message}" if c.where else c.message for c in complaints_of(error)
        )


def _written(crumb: Breadcrumb) -> tuple[int, AgentDefinition] | None:
    definition = definition_in(crumb)[0]
    return None if definition is None else (crumb.updated, definition)


def _withheld(crumb: Breadcrumb) -> str:
    """Why a definition is there for nobody, whatever is in it; empty: it may count."""
    match restriction_of(crumb):
        case "narrowed":
            return "an agent is there for all sessions and users: post it without session: and user: tags"
        case "hidden":
            return "an agent that is private or secret is there for nobody"
        case None:
            return ""


def definitions_from(folder: Path | None) -> list[Agent]:
    """The definitions of a folder, or those that come with the package."""
    place = files("breadcrumbs.agents").joinpath("definitions") if folder is None else folder
    entries = sorted(place.iterdir(), key=lambda path: path.name)
    return [
        Agent(_read(entry.name, entry.read_bytes()), trusted=True)
        for entry in entries
        if entry.name.endswith(".json")
    ]


def _read(name: str, raw: bytes) -> AgentDefinition:
    try:
        document = orjson.loads(raw)
        # RCRT keeps definitions as whole breadcrumbs in its files.
        if isinstance(document, dict) and isinstance(document.get("context"), dict):
            document = document["context"]
        return AgentDefinition.model_validate(definition_fields(document))
    except orjson.JSONDecodeError as error:
        raise StartupError(f"{name}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except ValidationError as error:
        lines = "\n".join(f"  {c.where}: {c.message}" for c in complaints_of(error))
        raise StartupError(f"{name} is no agent definition:\n{lines}") from None
