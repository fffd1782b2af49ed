"""Running agents of one's own: in a process of their own, or for the time of a `with`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from anyio.from_thread import start_blocking_portal

from breadcrumbs.agents.tools import Tool
from breadcrumbs.cli import workers
from breadcrumbs.cli.agent_modules import OwnAgent, own_agents
from breadcrumbs.runtime.settings.settings import load_settings


def run_agents(agents: Iterable[OwnAgent], *, tools: Iterable[Tool] = (), **settings: Any) -> None:
    """Run agents until Ctrl-C or SIGTERM; what they have begun is finished first.

    They answer beside whatever agents run already, and share the work with other processes that run them.
    `settings` are those of `crumb run-agents`; without any, the server of `crumb up` is found by itself. An
    agent that is run for the first time begins with what is said then; what is said while it is away later on
    is answered when it is back.
    """
    workers.run_own_agents(load_settings(**settings), own_agents(agents, tools))


@contextmanager
def running_agents(
    agents: Iterable[OwnAgent], *, tools: Iterable[Tool] = (), **settings: Any
) -> Iterator[None]:
    """The same beside other code, in a thread: for scripts, notebooks and tests."""
    chosen, loaded = load_settings(**settings), own_agents(agents, tools)
    if not structlog.is_configured():
        _log_through_logging()
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(workers.hosting(chosen, loaded)),
    ):
        yield


def _log_through_logging() -> None:
    """In somebody else's program, logs go where that program sends them."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
