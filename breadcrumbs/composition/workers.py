"""Composition of workers: context builders and agent runners.

Creates their handlers with models, tools and configs, as the settings specify.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.resources import as_file, files
from pathlib import Path
from uuid import UUID

import anyio

from breadcrumbs.agents.agents_in_force import ActiveAgent, AgentsInForce, load_definitions
from breadcrumbs.agents.chain_limits import ChainLimits
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.hooks import Hook, Hooks
from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.models.offered import ModelChoices, public_name
from breadcrumbs.agents.models.prices import prices_in
from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.agents.other_agents import OtherAgents
from breadcrumbs.agents.remote_adk.servers import AdkServers
from breadcrumbs.agents.remote_adk.turn import AdkTurns
from breadcrumbs.agents.runner import AgentRunner
from breadcrumbs.agents.tool_runner import ToolRunner
from breadcrumbs.agents.tool_steps import ToolSteps
from breadcrumbs.agents.tools import Tool, Toolbox, load_tools, shipped_tools
from breadcrumbs.agents.turn import AgentTurns, Gathered
from breadcrumbs.agents.usage import UsageMeter
from breadcrumbs.composition.answering_agents import describe_agents, find_reacting, read_posted_agents
from breadcrumbs.composition.own_agents import OwnAgents, load_agents, load_hooks, search_current_directory
from breadcrumbs.composition.publishing import Publishing, wait_for_claims
from breadcrumbs.context_builder.builder import ContextBuilder, gather_parts
from breadcrumbs.context_builder.config_checks import ConfigError
from breadcrumbs.context_builder.config_file import ConfigFile
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.context_builder.published_configs import publishing
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.events.reader import EventReader
from breadcrumbs.runtime.retrieval.schema_hints import SchemaHints
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.offered_models import ModelOffer
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.budgets import BudgetGate
from breadcrumbs.runtime.workers.errors import TurnFailed
from breadcrumbs.runtime.workers.leases import start_at_newest_event
from breadcrumbs.runtime.workers.retries import TurnLimits
from breadcrumbs.runtime.workers.turn import Handler
from breadcrumbs.runtime.workers.worker import Worker
from breadcrumbs.runtime.workers.worker_info import WorkerInfo

# Context configs


def config_path(settings: Settings) -> Path:
    """Return the path of the context config: the configured file, or the built-in one."""
    if settings.context_config is not None:
        return settings.context_config
    with as_file(files("breadcrumbs.config").joinpath("context-builder-config.json")) as path:
        return path


def config_file(settings: Settings, *, builds: bool) -> ConfigFile | None:
    """Return the config file that the HTTP API shows and edits.

    The file is read-only if it is the built-in one, or if several owners share it. `builds` tells whether this process
    builds contexts. If it does not and no file is configured, return None.
    """
    if settings.context_config is None:
        return ConfigFile(config_path(settings), locked="this is the built-in config") if builds else None
    owners = {key.owner_id for key in settings.api_keys}
    shared = "several owners share this server, and the file applies to all of them"
    return ConfigFile(settings.context_config, locked=shared if len(owners) > 1 else "")


def open_configs(store: Store, settings: Settings) -> ConfigsInForce:
    """Load the context configs. Raise `StartupError` if the file is invalid."""
    configs = ConfigsInForce(store, config_path(settings))
    try:
        configs.load()
    except ConfigError as error:
        raise StartupError(f"the context config is invalid:\n{error}") from None
    return configs


# Single workers


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """Objects that all workers of a process share."""

    store: Store
    reader: EventReader
    settings: Settings
    configs: ConfigsInForce
    """Context configs in force."""
    info: WorkerInfo = field(init=False)
    """Identity that all workers of the process share."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "info", WorkerInfo.create(self.settings.worker_name))


def context_worker(parts: WorkerParts) -> Worker:
    """Create a worker that builds contexts."""
    return _make_worker(parts, _context_builder(parts))


def _context_builder(parts: WorkerParts) -> ContextBuilder:
    settings = parts.settings
    return ContextBuilder(
        parts.store, parts.configs, inherited=settings.inherited_tags, max_hops=settings.chain_hops
    )


@asynccontextmanager
async def watched_config(parts: WorkerParts, builder: Worker) -> AsyncIterator[None]:
    """Check the config file of a context builder regularly, and publish it for processes without a builder."""
    async with parts.configs.watched(), publishing(parts.store, parts.configs, builder.info.id):
        yield


@asynccontextmanager
async def agent_worker(
    parts: WorkerParts,
    agents: Iterable[ActiveAgent] = (),
    *,
    tools: Iterable[Tool] | Toolbox = (),
    hooks: Iterable[Hook] = (),
    kind: str | None = None,
) -> AsyncIterator[Worker]:
    """Create a worker that runs agents, and close its models at the end.

    Without `kind`, the worker runs the agents of the settings and of breadcrumbs, and also `agents`. With `kind`, it
    runs only `agents`, as a worker of this kind. `tools` are added to those of the settings. A `Toolbox` replaces them.
    """
    store, settings, configs = parts.store, parts.settings, parts.configs
    models = ModelPool({**settings.models, **({"default": settings.model} if settings.model else {})})
    adk = AdkServers(settings.adk)
    try:
        toolbox = tools if isinstance(tools, Toolbox) else open_toolbox(settings, tools)
        own_hooks = open_hooks(settings, hooks)
        configured = [*(shared_agents(settings) if kind is None else ()), *agents]
        for agent in configured:
            _check_agent(agent, models, toolbox, adk)
            _check_hooks(agent, own_hooks)
        await adk.check_apps(configured)
        builder = _context_builder(parts)
        hints = SchemaHints(store)

        choices = ModelChoices(models)
        offer = choices.offer(_common_model(configured))
        others = OtherAgents(
            store,
            kind=kind or AgentRunner.kind,
            answering=settings.answering,
            reacts=find_reacting(configs),
            posted=None if kind is None else read_posted_agents(store),
        )
        published = Publishing(
            store,
            kind or AgentRunner.kind,
            offer,
            describe_agents(configured),
            settings,
            tuple(toolbox.names),
        )
        await published.publish()
        await others.refresh()
        keeping = asyncio.create_task(published.keep(others))

        def model_of(agent: ActiveAgent) -> Model:
            chosen = agent.chosen_model
            if agent.given_model is not None:
                return agent.given_model
            try:
                # A user's own agents can have other models than the installation. Then they use their own.
                if chosen is not None and (kind is None or chosen in choices):
                    return choices.resolve(chosen)
                return models.resolve_list(agent.definition.models, trusted=agent.trusted)
            except (InvalidInput, StartupError) as error:
                raise TurnFailed(f"{agent.definition.agent_id}: {error}") from error

        async def gather(definition: AgentDefinition, trigger: Breadcrumb) -> Gathered:
            sources, triggers = definition.sources, definition.triggers
            return await gather_parts(store, sources, trigger, triggers=triggers, hints=hints)

        async def consumers(owner: UUID) -> set[str]:
            return {config.consumer_id for config in await configs.get(owner)}

        inherited = settings.inherited_tags
        meter = UsageMeter(prices_in(settings.models), BudgetGate(store, settings.budgets))
        turns = AgentTurns(
            store,
            ToolSteps(
                store, model_of=model_of, toolbox=toolbox, inherited=inherited, hooks=own_hooks, meter=meter
            ),
            gather=gather,
            refresh=builder.refresh,
            inherited=inherited,
            remote=AdkTurns(store, adk).answer,
        )
        turns.limits = ChainLimits(settings.chain_hops, settings.chain_turns)
        runner = AgentRunner(
            store,
            AgentsInForce(store, configured, breadcrumbs=kind is None, others=others),
            turns,
            consumers=consumers,
            inherited=settings.inherited_tags,
            kind=kind or AgentRunner.kind,
        )
        try:
            info = _agent_info(parts.info, configured, offer)
            yield _make_worker(
                parts, runner, replace(info, skipped_models=lambda: models.circuits.open_models)
            )
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            await published.withdraw()
    finally:
        await models.close()
        await adk.close()


def _common_model(agents: Iterable[ActiveAgent]) -> str | None:
    """Return the model that all agents name, or None if some use the default or another one."""
    named = {
        agent.definition.models[:1]
        for agent in agents
        if agent.function is None and agent.definition.kind == "model"
    }
    return next(iter(named.pop()), None) if len(named) == 1 else None


def _agent_info(info: WorkerInfo, agents: Iterable[ActiveAgent], offer: ModelOffer) -> WorkerInfo:
    """Return the identity of a worker with its agents, and with the models that they and the sessions can use."""
    definitions = [agent.definition for agent in agents]
    own = (public_name(model) for definition in definitions for model in definition.models)
    offered = (model.model for model in offer.models)
    ids = dict.fromkeys(definition.agent_id for definition in definitions)
    return info.running(tuple(ids), tuple(dict.fromkeys([*own, *offered])))


def _make_worker(parts: WorkerParts, handler: Handler, info: WorkerInfo | None = None) -> Worker:
    settings = parts.settings
    return Worker(
        parts.store,
        parts.reader,
        handler,
        lease_seconds=settings.lease_seconds,
        limits=TurnLimits(
            attempts=settings.turn_attempts, drain_seconds=settings.drain_timeout.total_seconds()
        ),
        info=info or parts.info,
    )


def shared_agents(settings: Settings) -> list[ActiveAgent]:
    """Return the agents of the settings, which apply to all owners."""
    return load_definitions(settings.agents, default=settings.default_agent)


def open_toolbox(settings: Settings, tools: Iterable[Tool] = ()) -> Toolbox:
    """Collect the built-in tools, those of the settings, and `tools`.

    Raise `StartupError` for duplicate names.
    """
    if settings.tools:
        search_current_directory()
    try:
        return Toolbox([*shipped_tools(), *load_tools(settings.tools), *tools])
    except InvalidInput as error:
        raise StartupError(f"the tools conflict: {error}") from None


def open_hooks(settings: Settings, hooks: Iterable[Hook] = ()) -> Hooks:
    """Collect the hooks of the settings, and `hooks`. Raise `StartupError` for duplicate names."""
    return Hooks({id(one): one for one in (*load_hooks(settings.hooks), *hooks)}.values())


def _check_hooks(agent: ActiveAgent, hooks: Hooks) -> None:
    try:
        hooks.check(agent.definition)
    except InvalidInput as error:
        raise StartupError(
            f"agent {agent.definition.agent_id!r}: {error.complaints[0].where}: {error}"
        ) from None


def _check_agent(agent: ActiveAgent, models: ModelPool, toolbox: Toolbox, adk: AdkServers) -> None:
    """Check an agent of the operator at startup, before it fails in a session.

    Raise `StartupError` if its model, its tools or its ADK server are invalid.
    """
    try:
        toolbox.allowed(agent.definition.tools)
        if agent.given_model is None:
            models.resolve_list(agent.definition.models, trusted=agent.trusted)
        if agent.definition.kind == "adk":
            adk.resolve(agent)
    except InvalidInput as error:
        raise StartupError(f"agent {agent.definition.agent_id!r}: {error}") from None


# Several workers


@asynccontextmanager
async def own_workers(parts: WorkerParts, own: OwnAgents) -> AsyncIterator[list[Worker]]:
    """Create one worker for each of a user's own agents.

    Each worker has its own kind and therefore its own progress. An agent that runs for the first time answers only new
    messages.
    """
    async with AsyncExitStack() as stack:
        workers, kinds = [], []
        for agent in own.agents:
            kind = f"{AgentRunner.kind}/{agent.definition.agent_id}"
            kinds.append(kind)
            await start_at_newest_event(parts.store, kind)
            one = agent_worker(parts, [agent], tools=own.tools, hooks=own.hooks, kind=kind)
            workers.append(await stack.enter_async_context(one))
        await wait_for_claims(parts.store, kinds)
        yield workers


def tool_workers(parts: WorkerParts, tools: Iterable[Tool]) -> list[Worker]:
    """Create one worker for each tool that this process runs for agents elsewhere.

    Each worker has its own kind and therefore its own progress, so processes with different tools can run side by side.
    """
    inherited = parts.settings.inherited_tags
    return [_make_worker(parts, ToolRunner(parts.store, one, inherited=inherited)) for one in tools]


@asynccontextmanager
async def running_workers(parts: WorkerParts) -> AsyncIterator[None]:
    """Run a context builder, an agent runner and the user's own agents as tasks.

    At the end the workers finish their running turns.
    """
    own = load_agents(parts.settings.load)
    builder = context_worker(parts)
    async with (
        agent_worker(parts, tools=own.tools, hooks=own.hooks) as runner,
        own_workers(parts, own) as others,
        watched_config(parts, builder),
        running(builder, runner, *others),
    ):
        yield


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[None]:
    """Run workers as tasks. At the end the workers finish their running turns."""
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(worker.run)
        try:
            yield
        finally:
            for worker in workers:
                worker.stop()
