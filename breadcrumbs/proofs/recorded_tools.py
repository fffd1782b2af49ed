"""The tool calls of a past turn with their stored responses, to answer the tool calls of a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from breadcrumbs.agents.tools.base import ToolResult
from breadcrumbs.proofs.requests import Missing, Receipt, load_call
from breadcrumbs.runtime.store.store import Store


@dataclass(frozen=True, slots=True)
class RecordedTool:
    """A tool call of the original turn that has a stored response."""

    step: str
    """Number of the model call and of the tool call in it, such as `0.1`."""
    name: str
    arguments: str
    result: ToolResult
    ends_turn: bool
    """The turn ended after this call, because the results of its step were not returned to the model."""


@dataclass(frozen=True, slots=True)
class RecordedTools:
    """The tool calls of a turn. Each finds its response by step, name and arguments."""

    calls: tuple[RecordedTool, ...] = ()

    def find(self, step: str, name: str, arguments: str) -> RecordedTool | None:
        """Return the recorded call that equals a call, or None.

        A call of the same step takes precedence. Another model can call the same tools in another order, so a call
        with the same name and arguments is found in any step. Arguments are compared as JSON values.
        """
        wanted = _value(arguments)
        found = [call for call in self.calls if call.name == name and _value(call.arguments) == wanted]
        return next((call for call in found if call.step == step), found[0] if found else None)


async def load_recorded_tools(store: Store, receipt: Receipt) -> RecordedTools:
    """Load the tool calls of an answer. Calls whose request or response was deleted are left out."""
    calls, last = [], len(receipt.calls) - 1
    for number, call in enumerate(receipt.calls):
        for place, entry in enumerate(call.get("tools", [])):
            step = f"{number}.{place}"
            id = entry if isinstance(entry, str) else entry[0]
            found = await load_call(store, receipt, UUID(id), step)
            if not isinstance(found, Missing):
                name, arguments = found.call.name, found.call.arguments
                calls.append(RecordedTool(step, name, arguments, found.result, number == last))
    return RecordedTools(tuple(calls))


def _value(arguments: str) -> tuple[bool, Any]:
    """Return the JSON value of arguments. Text that is not JSON is compared as text."""
    try:
        return True, orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return False, arguments
