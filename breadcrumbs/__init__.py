"""Breadcrumbs: a tag-based breadcrumb blackboard runtime for agents.

    from breadcrumbs import Client

    with Client() as client:
        print(client.session("demo").say("Hello"))

What is listed in `__all__` is the public interface. Each name is imported when it is first used: who only
wants a client does not pay for the agents, and the command line pays for neither.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from breadcrumbs.agents.functions import Call, agent
    from breadcrumbs.agents.tools import ToolContext, tool
    from breadcrumbs.client.aio import AsyncClient, AsyncSession
    from breadcrumbs.client.errors import (
        AgentFailed,
        AlreadyExists,
        Forbidden,
        IdempotencyMismatch,
        InvalidCursor,
        InvalidInput,
        NoAnswer,
        NotFound,
        NothingToRetry,
        ProblemError,
        QuotaExceeded,
        RateLimited,
        ServerUnreachable,
        SessionConflict,
        SessionGone,
        StateTooLarge,
        StoreFull,
        StoreUnavailable,
        Unauthenticated,
        VersionMismatch,
    )
    from breadcrumbs.client.replies import Reply
    from breadcrumbs.client.sync import Client, Session
    from breadcrumbs.client.values import (
        Answer,
        Breadcrumb,
        ChatMessage,
        Delta,
        Event,
        Gap,
        Retried,
        SessionInfo,
        Token,
        Version,
        Written,
    )
    from breadcrumbs.hosting import run_agents, running_agents
    from breadcrumbs.runtime.errors import BreadcrumbsError, StartupError

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - by topic
    # Talking to a server
    "Client",
    "AsyncClient",
    "Session",
    "AsyncSession",
    # What comes back
    "Answer",
    "Breadcrumb",
    "ChatMessage",
    "Delta",
    "Event",
    "Gap",
    "Reply",
    "Retried",
    "SessionInfo",
    "Token",
    "Version",
    "Written",
    # Agents and tools
    "agent",
    "tool",
    "Call",
    "ToolContext",
    "run_agents",
    "running_agents",
    # What can go wrong
    "BreadcrumbsError",
    "ProblemError",
    "InvalidInput",
    "SessionConflict",
    "InvalidCursor",
    "Unauthenticated",
    "Forbidden",
    "NotFound",
    "AlreadyExists",
    "SessionGone",
    "NothingToRetry",
    "RateLimited",
    "QuotaExceeded",
    "StateTooLarge",
    "VersionMismatch",
    "IdempotencyMismatch",
    "StoreUnavailable",
    "StoreFull",
    "ServerUnreachable",
    "AgentFailed",
    "NoAnswer",
    "StartupError",
    # About the package
    "__version__",
]

_MODULE_NAMES = {
    "breadcrumbs.client.sync": ("Client", "Session"),
    "breadcrumbs.client.aio": ("AsyncClient", "AsyncSession"),
    "breadcrumbs.client.replies": ("Reply",),
    "breadcrumbs.client.values": (
        *("Answer", "Breadcrumb", "ChatMessage", "Delta", "Event", "Gap", "Retried", "SessionInfo"),
        *("Token", "Version", "Written"),
    ),
    "breadcrumbs.agents.functions": ("Call", "agent"),
    "breadcrumbs.agents.tools": ("ToolContext", "tool"),
    "breadcrumbs.hosting": ("run_agents", "running_agents"),
    "breadcrumbs.runtime.errors": ("BreadcrumbsError", "StartupError"),
    "breadcrumbs.client.errors": (
        *("ProblemError", "InvalidInput", "SessionConflict", "InvalidCursor", "Unauthenticated", "Forbidden"),
        *("NotFound", "AlreadyExists", "VersionMismatch", "IdempotencyMismatch", "StoreUnavailable"),
        *("StoreFull", "ServerUnreachable", "AgentFailed", "NoAnswer", "SessionGone", "NothingToRetry"),
        *("RateLimited", "QuotaExceeded", "StateTooLarge"),
    ),
}
_MODULE_OF = {name: module for module, names in _MODULE_NAMES.items() for name in names}


def __getattr__(name: str) -> _typing.Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
