"""Breadcrumbs: a tag-based breadcrumb blackboard runtime for agents.

    from breadcrumbs import Client

    with Client() as client:
        print(client.session("demo").say("Hello"))

`__all__` lists the public interface. Each name is imported when it is first used. So a program that only uses a client
does not load the agents, and the command line loads neither.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from breadcrumbs.agents.definition import AgentDefinition
    from breadcrumbs.agents.functions import Call, agent
    from breadcrumbs.agents.hooks import HookCall, Refuse, hook
    from breadcrumbs.agents.models.base import PromptMessage
    from breadcrumbs.agents.tools import ToolContext, ToolDefinition, tool
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
        StoreReplaced,
        StoreUnavailable,
        Unauthenticated,
        VersionMismatch,
    )
    from breadcrumbs.client.feedback import Feedback, FeedbackCounts, RatingCount
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
        RetryNotice,
        SessionInfo,
        Token,
        Version,
        Written,
    )
    from breadcrumbs.hosting import run_agents, running_agents
    from breadcrumbs.runtime.errors import BreadcrumbsError, StartupError

__version__: str
"""The version in `pyproject.toml`, read from the installed package when it is first used."""

__all__ = [  # noqa: RUF022 - by topic
    # Clients
    "Client",
    "AsyncClient",
    "Session",
    "AsyncSession",
    # Values returned by clients
    "Answer",
    "Breadcrumb",
    "ChatMessage",
    "Delta",
    "Event",
    "Feedback",
    "FeedbackCounts",
    "Gap",
    "RatingCount",
    "Reply",
    "Retried",
    "RetryNotice",
    "SessionInfo",
    "Token",
    "Version",
    "Written",
    # Agents and tools
    "agent",
    "tool",
    "hook",
    "Call",
    "AgentDefinition",
    "HookCall",
    "PromptMessage",
    "Refuse",
    "ToolContext",
    "ToolDefinition",
    "run_agents",
    "running_agents",
    # Errors
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
    "StoreReplaced",
    "StoreFull",
    "ServerUnreachable",
    "AgentFailed",
    "NoAnswer",
    "StartupError",
    # Package
    "__version__",
]

_MODULE_NAMES = {
    "breadcrumbs.client.sync": ("Client", "Session"),
    "breadcrumbs.client.aio": ("AsyncClient", "AsyncSession"),
    "breadcrumbs.client.feedback": ("Feedback", "FeedbackCounts", "RatingCount"),
    "breadcrumbs.client.replies": ("Reply",),
    "breadcrumbs.client.values": (
        *("Answer", "Breadcrumb", "ChatMessage", "Delta", "Event", "Gap", "Retried", "RetryNotice"),
        *("SessionInfo", "Token", "Version", "Written"),
    ),
    "breadcrumbs.agents.functions": ("Call", "agent"),
    "breadcrumbs.agents.definition": ("AgentDefinition",),
    "breadcrumbs.agents.hooks": ("HookCall", "Refuse", "hook"),
    "breadcrumbs.agents.models.base": ("PromptMessage",),
    "breadcrumbs.agents.tools": ("ToolContext", "ToolDefinition", "tool"),
    "breadcrumbs.hosting": ("run_agents", "running_agents"),
    "breadcrumbs.runtime.errors": ("BreadcrumbsError", "StartupError"),
    "breadcrumbs.client.errors": (
        *("ProblemError", "InvalidInput", "SessionConflict", "InvalidCursor", "Unauthenticated", "Forbidden"),
        *("NotFound", "AlreadyExists", "VersionMismatch", "IdempotencyMismatch", "StoreUnavailable"),
        *("StoreFull", "ServerUnreachable", "AgentFailed", "NoAnswer", "SessionGone", "NothingToRetry"),
        *("StoreReplaced", "RateLimited", "QuotaExceeded", "StateTooLarge"),
    ),
}
_MODULE_OF = {name: module for module, names in _MODULE_NAMES.items() for name in names}


def __getattr__(name: str) -> _typing.Any:
    """Import a public name when it is first used."""
    value: _typing.Any
    if name == "__version__":
        value = _importlib.import_module("importlib.metadata").version("breadcrumbs")
    elif module := _MODULE_OF.get(name):
        value = getattr(_importlib.import_module(module), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
