"""Functions that run a user's own agents, as a process or in a `with` block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from anyio.from_thread import start_blocking_portal

from breadcrumbs.agents.tools import Tool
from breadcrumbs.composition.own_agents import OwnAgent, collect_agents
from breadcrumbs.composition.processes import hosted_agents, run_own_agents
from breadcrumbs.runtime.settings.settings import load_settings


def run_agents(agents: Iterable[OwnAgent], *, tools: Iterable[Tool] = (), **settings: Any) -> None:
    """Run agents until Ctrl-C or SIGTERM. Running turns are finished first.

    The agents answer in addition to agents that are already running. Several processes that run the same agents share
    the work. `settings` are those of `crumb run-agents`. Without settings, the server of `crumb up` is used.

    An agent that runs for the first time answers only new messages. After that, it also answers messages that arrived
    while it was stopped, unless another agent has answered them.
    """
    run_own_agents(load_settings(**settings), collect_agents(agents, tools))


@contextmanager
def running_agents(
    agents: Iterable[OwnAgent], *, tools: Iterable[Tool] = (), **settings: Any
) -> Iterator[None]:
    """Run agents in a thread while the block runs.

    For scripts, notebooks and tests. The arguments are those of `run_agents`. Running turns are finished at the end of
    the block.
    """
    chosen, own = load_settings(**settings), collect_agents(agents, tools)
    if not structlog.is_configured():
        _log_through_logging()
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(hosted_agents(chosen, own)),
    ):
        yield


def _log_through_logging() -> None:
    """Send logs to the standard `logging` module, which the surrounding program configures."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
