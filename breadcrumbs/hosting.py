"""Functions that run a user's own agents, as a process or in a `with` block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from anyio.from_thread import start_blocking_portal

from breadcrumbs.agents.hooks import Hook
from breadcrumbs.agents.models.given import as_model
from breadcrumbs.agents.tools import Tool
from breadcrumbs.composition.logs import log_through_logging
from breadcrumbs.composition.own_agents import OwnAgent, OwnAgents, collect_agents
from breadcrumbs.composition.processes import hosted_agents, run_own_agents
from breadcrumbs.runtime.settings.settings import Settings, load_settings


def run_agents(
    agents: Iterable[OwnAgent], *, tools: Iterable[Tool] = (), hooks: Iterable[Hook] = (), **settings: Any
) -> None:
    """Run agents until Ctrl-C or SIGTERM. Running turns are finished first.

    The agents answer in addition to agents that are already running. Several processes that run the same agents share
    the work. `settings` are those of `crumb run-agents`. Without settings, the server of `crumb up` is used. `model` is
    a name, or an object: a function of a `ModelRequest`, or a model such as `ScriptedModel`.

    An agent that runs for the first time answers only new messages. After that, it also answers messages that arrived
    while it was stopped, unless another agent has answered them.
    """
    chosen, own = _load(agents, tools, hooks, settings)
    run_own_agents(chosen, own)


@contextmanager
def running_agents(
    agents: Iterable[OwnAgent], *, tools: Iterable[Tool] = (), hooks: Iterable[Hook] = (), **settings: Any
) -> Iterator[None]:
    """Run agents in a thread while the block runs.

    For scripts, notebooks and tests. The arguments are those of `run_agents`. Running turns are finished at the end of
    the block.
    """
    chosen, own = _load(agents, tools, hooks, settings)
    log_through_logging()
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(hosted_agents(chosen, own)),
    ):
        yield


def _load(
    agents: Iterable[OwnAgent], tools: Iterable[Tool], hooks: Iterable[Hook], settings: dict[str, Any]
) -> tuple[Settings, OwnAgents]:
    if (model := as_model(settings.get("model"))) is not None:
        settings = {name: value for name, value in settings.items() if name != "model"}
    return load_settings(**settings), collect_agents(agents, tools, hooks, model)
