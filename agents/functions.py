"""Function agents: Python functions that `@agent(...)` makes into agents."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from pydantic import ValidationError

from breadcrumbs.agents.definition import CONSUMER, AgentDefinition
from breadcrumbs.agents.models.base import OnDelta, PromptMessage
from breadcrumbs.runtime.breadcrumb.validation import error_lines
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT


@dataclass(frozen=True, slots=True)
class Call:
    """The argument of a function agent: the message to answer, with the conversation before it."""

    text: str
    """The text of the message."""
    messages: tuple[PromptMessage, ...]
    """The whole prompt that a model would get, the message included."""
    session_id: str | None
    owner_id: UUID
    trigger_id: str
    """The id of the message."""
    say: OnDelta
    """Streams a piece of the answer to clients before the answer is stored."""


FunctionReply: TypeAlias = str | dict[str, Any]
AgentFunction: TypeAlias = Callable[[Call], Awaitable[FunctionReply]]


@dataclass(frozen=True, slots=True)
class FunctionAgent:
    """A function with the definition that `@agent` made for it. Calling it calls the function."""

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
    """Make an agent from an async function that takes a `Call`.

    The function returns text, or the fields of a breadcrumb as a dict. The agent answers the breadcrumbs that match
    `triggers` (selectors). Without triggers it answers the contexts for `consumer`, which defaults to its agent_id.
    Other options are fields of `AgentDefinition`. Raises `StartupError` for an invalid definition.
    """
    selectors = list(triggers) or [
        {"schema_name": AGENT_CONTEXT, "all_tags": [CONSUMER + (consumer or agent_id)], "role": "trigger"}
    ]
    try:
        definition = AgentDefinition.model_validate(
            {"agent_id": agent_id, "subscriptions": {"selectors": selectors}, **options}
        )
    except ValidationError as error:
        lines = error_lines(error, model=AgentDefinition)
        raise StartupError(f"the agent {agent_id!r} is invalid:\n{lines}") from None

    unused = [name for name in ("output_schema",) if getattr(definition, name) is not None]
    if definition.hooks is not None and definition.hooks.before_model:
        unused.append("hooks.before_model")
    if unused:
        raise StartupError(
            f"the agent {agent_id!r} is a function and calls no model: remove {', '.join(unused)}"
        )

    def decorate(function: AgentFunction) -> FunctionAgent:
        if not _is_async(function):
            # A plain function would block the event loop, and its result could not be awaited.
            raise TypeError(f"{agent_id}: an agent must be an async function: use async def")
        return FunctionAgent(definition, function)

    return decorate


def _is_async(function: AgentFunction) -> bool:
    inner = inspect.unwrap(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 (an object with an async __call__)
    )
