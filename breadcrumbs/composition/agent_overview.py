"""The agents in force, the known names and the models, for the HTTP operations on agent definitions."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from breadcrumbs.agents.addressees import answers_users
from breadcrumbs.agents.agents_in_force import AGENT_DEFINITIONS
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.definition_checks import KnownNames
from breadcrumbs.agents.http.definitions import (
    AgentInForce,
    AgentOverview,
    DefinitionRoutes,
    DefinitionServices,
    LoadKnownNames,
    LoadOverview,
    TrialModels,
)
from breadcrumbs.agents.models.offered import public_name
from breadcrumbs.composition.model_checks import open_models
from breadcrumbs.composition.workers import shared_agents
from breadcrumbs.runtime.concurrency import gather
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.batched_reads import recent_shared
from breadcrumbs.runtime.store.published_agents import (
    RUNNERS,
    Publications,
    PublishedAgent,
    living_kinds,
    read_publications,
)
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.definitions import MAX_DEFINITIONS, PostedDefinition, resolve_definitions


def definition_routes(store: Store, settings: Settings, models: TrialModels | str) -> DefinitionRoutes:
    """Return the operations on agent definitions."""
    return DefinitionRoutes(
        DefinitionServices(
            _overview_loader(store, settings),
            _names_loader(store, settings),
            models,
        )
    )


def _overview_loader(store: Store, settings: Settings) -> LoadOverview:
    async def load(owner: UUID) -> AgentOverview:
        published, posted = await gather(read_publications(store), _posted(store, owner))
        kinds = list(published.by_kind)
        alive = await living_kinds(store, kinds) if kinds else set[str]()
        found = _published_agents(published, alive)
        for entry in reversed(posted):
            if entry.in_force and entry.definition is not None:
                replaced = found.get(entry.definition.agent_id)
                found[entry.definition.agent_id] = _posted_agent(
                    entry,
                    entry.definition,
                    running=RUNNERS in alive,
                    fallback=replaced is not None and replaced.fallback,
                )
        unusable = [(entry.crumb, entry.problem) for entry in posted if entry.definition is None]
        agents = sorted(found.values(), key=lambda agent: agent.agent_id)
        return AgentOverview(agents, unusable, published.answering or settings.answering)

    return load


def _published_agents(published: Publications, alive: set[str]) -> dict[str, AgentInForce]:
    found: dict[str, AgentInForce] = {}
    for kind, one in sorted(published.by_kind.items()):
        for agent in one.agents:
            found[agent.agent_id] = _published_agent(agent, kind, running=kind in alive)
    return found


def _published_agent(agent: PublishedAgent, kind: str, *, running: bool) -> AgentInForce:
    return AgentInForce(
        agent.agent_id,
        "file" if kind == RUNNERS else "program",
        agent.tools,
        agent.listed,
        agent.fallback,
        running,
        agent.description,
        agent.model,
    )


def _posted_agent(
    entry: PostedDefinition[AgentDefinition], definition: AgentDefinition, *, running: bool, fallback: bool
) -> AgentInForce:
    return AgentInForce(
        definition.agent_id,
        "breadcrumb",
        definition.tools,
        answers_users(definition),
        fallback,
        running,
        definition.description,
        next((public_name(model) for model in definition.models), None),
        entry.crumb,
        entry.problem,
    )


async def _posted(store: Store, owner: UUID) -> list[PostedDefinition[AgentDefinition]]:
    (shared,) = await store.read_batch(
        recent_shared(store, owner, AGENT_DEFINITIONS.schema_name, MAX_DEFINITIONS)
    )
    return await resolve_definitions(store, AGENT_DEFINITIONS, shared)


def _names_loader(store: Store, settings: Settings) -> LoadKnownNames:
    model_problem = _model_problems(settings)

    async def load(owner: UUID) -> KnownNames:
        published, schemas, posted = await gather(
            read_publications(store), store.schema_names(owner), _posted(store, owner)
        )
        runners = published.by_kind.get(RUNNERS)
        agents = _definitions(settings)
        agents |= {
            entry.definition.agent_id: entry.definition
            for entry in posted
            if entry.in_force and entry.definition is not None
        }
        # A runner of an earlier version does not publish its tools.
        tools = frozenset(runners.tools) if runners is not None and runners.tools else None
        return KnownNames(tools, schemas, agents, model_problem)

    return load


def _definitions(settings: Settings) -> dict[str, AgentDefinition]:
    try:
        return {agent.definition.agent_id: agent.definition for agent in shared_agents(settings)}
    except (StartupError, OSError):
        return {}  # an agent runner reports the reason when it starts


def _model_problems(settings: Settings) -> Callable[[str], str | None]:
    try:
        pool = open_models(settings)
    except StartupError:
        return lambda name: None

    def find(name: str) -> str | None:
        try:
            pool.resolve(name)
        except InvalidInput as error:
            return error.message
        except StartupError:
            return None  # only the key is missing here, and a runner can have it
        return None

    return find
