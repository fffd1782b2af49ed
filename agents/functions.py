"""Function agents: `@agent(...)` makes an agent of a Python function."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from breadcrumbs.agents.definition import CONSUMER, AgentDefinition
from breadcrumbs.agents.models.base import OnDelta, PromptMessage
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT


@dataclass(frozen=True, slots=True)
class Call:
    """What a function agent gets: one message to answer, and what was said before."""

    text: str
    """The words of the message."""
    messages: tuple[PromptMessage, ...]
    """The whole prompt that a model would get."""
    session_id: str | None
    owner_id: UUID
    trigger_id: str
    say: OnDelta
    """Shows a piece of the answer while it is being made."""


FunctionReply: TypeAlias = str | dict[str, Any]
AgentFunction: TypeAlias = Callable[[Call], Awaitable[FunctionReply]]


@dataclass(frozen=True, slots=True)
class FunctionAgent:
    """What `@agent` makes of a function."""

    definition: AgentDefinition
    function: AgentFunction

    async def __call__(self, call: Call) -> FunctionReply:
        return await self.function(call)


def agent(
    agent_id: str,
    *,
    consumer: str | None = None,
    triggers: Sequence[dict[str, Any]] = (),
    **options: Any,
) -> Callable[[AgentFunction], FunctionAgent]:
    """Make an agent of an async function that takes a `Call` and returns text, or a breadcrumb's fields.

    It answers contexts of `consumer` (its own agent_id unless told otherwise), or whatever `triggers`
    (selectors) match. Other options are fields of `AgentDefinition`.
    """
    selectors = list(triggers) or [
        {"schema_name": AGENT_CONTEXT, "all_tags": [CONSUMER + (consumer or agent_id)], "role": "trigger"}
    ]
    definition = AgentDefinition.model_validate(
        {"agent_id": agent_id, "subscriptions": {"selectors": selectors}, **options}
    )

    def decorate(function: AgentFunction) -> FunctionAgent:
        if not _is_async(function):
            # It would hold up everybody else while it runs, and then have nothing to wait for.
            raise TypeError(
                f"{agent_id}: an agent is an async function: write async def, and await what takes time"
            )
        return FunctionAgent(definition, function)

    return decorate


def _is_async(function: AgentFunction) -> bool:
    inner = inspect.unwrap(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 (an object with an async __call__)
    )
