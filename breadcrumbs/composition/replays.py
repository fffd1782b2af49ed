"""The models and tools that replays use, as the settings configure them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from breadcrumbs.agents.agents_in_force import load_definitions
from breadcrumbs.agents.models.prices import prices_in
from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.composition.model_checks import default_model
from breadcrumbs.composition.workers import open_toolbox
from breadcrumbs.proofs.replay_models import ReplayModels
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.settings.settings import Settings


@asynccontextmanager
async def replay_models(settings: Settings) -> AsyncIterator[ReplayModels]:
    """Open the models of the settings for replays, and close them at the end.

    Raise `StartupError` if the settings are invalid.
    """
    async with ModelPool({**settings.models, "default": default_model(settings)}) as pool:
        agents = load_definitions(settings.agents, default=settings.default_agent)
        named = {model for agent in agents for model in agent.definition.models}
        yield ReplayModels(
            pool,
            partial(open_toolbox, settings),
            sorted(named),
            prices_in(settings.models),
        )


async def open_server_models(
    stack: AsyncExitStack, settings: Settings, *, workers: bool
) -> ReplayModels | str:
    """Open the models of a server, or return the reason why it has none.

    A process that only serves the API may have no model settings and no keys. It starts anyway.
    """
    if not (workers or settings.model or settings.models):
        return "this process has no models, because agents run in other processes"
    try:
        return await stack.enter_async_context(replay_models(settings))
    except StartupError as error:
        return f"this process cannot use its models: {error}"
