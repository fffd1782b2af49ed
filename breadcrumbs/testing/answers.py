"""Answers with assertions on the prompt, the tool calls, the posted breadcrumbs and the receipt of their turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

import orjson

from breadcrumbs.proofs.requests import RebuiltTurn, load_receipt, rebuild_request
from breadcrumbs.proofs.verification import verify_answer
from breadcrumbs.runtime.schema_names import (
    AGENT_CONTEXT,
    AGENT_STEP,
    TOOL_REQUEST,
    TOOL_RESPONSE,
    TOOL_STARTED,
)
from breadcrumbs.testing.differences import (
    Message,
    as_list,
    difference,
    indent,
    message_text,
    nearest_line,
    show_json,
    show_prompt,
)

if TYPE_CHECKING:
    from breadcrumbs.client.values import Answer, Breadcrumb
    from breadcrumbs.testing.crumbs import Crumbs

_RECORDS: Final = frozenset((AGENT_CONTEXT, AGENT_STEP, TOOL_STARTED))
"""Schemas that the runtime writes for itself during a turn."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call of a turn, with its result."""

    name: str
    arguments: Any
    output: Any = None
    error: str | None = None
    """Reason of a failure. None: the tool succeeded."""

    def __str__(self) -> str:
        result = f"error: {self.error}" if self.error is not None else show_json(self.output)
        return f"{self.name}({show_json(self.arguments)}) -> {result}"


class CheckedAnswer:
    """The answer of an agent. The assertions return the answer, so that they can be chained."""

    def __init__(self, crumbs: Crumbs, answer: Answer) -> None:
        self._crumbs = crumbs
        self.answer = answer
        """The answer as the client returned it."""

    @property
    def text(self) -> str:
        return self.answer.text

    @property
    def id(self) -> str:
        return self.answer.id

    @property
    def agent_id(self) -> str | None:
        return self.answer.agent_id

    @property
    def context(self) -> dict[str, Any]:
        return self.answer.context

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<CheckedAnswer of {self.agent_id}: {self.text!r}>"

    # Facts

    @property
    def prompts(self) -> list[list[Message]]:
        """The messages of each request to the model, exactly as they were sent."""
        return [list(orjson.loads(body)["messages"]) for body in self._turn.bodies]

    @property
    def prompt(self) -> list[Message]:
        """The messages of the first request to the model."""
        return self.prompts[0]

    @property
    def tool_schemas(self) -> list[Mapping[str, Any]]:
        """The tools that the model was offered, as the request contains them."""
        return list(orjson.loads(self._turn.bodies[0]).get("tools", []))

    @property
    def receipt(self) -> Mapping[str, Any]:
        """The receipt, as it is stored with the answer."""
        return self._turn.receipt.fields

    @cached_property
    def posted_breadcrumbs(self) -> list[Breadcrumb]:
        """The breadcrumbs that the turn wrote, oldest first, without its context and the records of its steps."""
        listed = self._crumbs.client.list(session=self.answer.session_id, sort="created_at")
        return [
            crumb
            for crumb in listed
            if crumb.context.get("trigger_id") == self.answer.trigger_id and crumb.schema_name not in _RECORDS
        ]

    @cached_property
    def tool_calls(self) -> list[ToolUse]:
        """The tool calls of the turn, in order."""
        posted = self.posted_breadcrumbs
        results = {
            crumb.context.get("request_id"): crumb.context
            for crumb in posted
            if crumb.schema_name == TOOL_RESPONSE
        }
        requests = [crumb.context for crumb in posted if crumb.schema_name == TOOL_REQUEST]
        return [
            ToolUse(
                request["tool"],
                request["input"],
                (result := results.get(request["request_id"], {})).get("output"),
                result.get("error"),
            )
            for request in requests
            if request.get("requestedBy") == self.agent_id
        ]

    # Assertions

    def saw(self, *texts: str) -> Self:
        """Assert that a message of the prompt contains each text, also after a tool call."""
        __tracebackhide__ = True
        read = self._read_by_model()
        for text in texts:
            if any(text in one for one in read):
                continue
            near = nearest_line(text, "\n".join(read))
            hint = "" if near is None else f"\nNearest line of the prompt:\n{indent(near)}"
            raise AssertionError(
                f"{self.agent_id} did not see {text!r}.{hint}\nThe prompt:\n{indent(show_prompt(self.prompts[-1]))}"
            )
        return self

    def did_not_see(self, *texts: str) -> Self:
        """Assert that no message of the prompt contains any of the texts."""
        __tracebackhide__ = True
        for text in texts:
            for message in self.prompts[-1]:
                if text in message_text(message):
                    raise AssertionError(
                        f"{self.agent_id} saw {text!r}, in this message:\n{indent(show_prompt([message]))}"
                    )
        return self

    def called(self, tool: str, /, **arguments: Any) -> Self:
        """Assert that the agent called a tool. Only the arguments that are given are compared."""
        __tracebackhide__ = True
        of_tool = [call for call in self.tool_calls if call.name == tool]
        if any(_has(call.arguments, arguments) for call in of_tool):
            return self
        if not of_tool:
            raise AssertionError(
                f"{self.agent_id} did not call {tool}. Its tool calls: {self._shown_calls()}"
            )
        expected = orjson.dumps(arguments, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()
        shown = [
            difference(expected, _selected(call.arguments, arguments)) or f"{call.arguments!r}"
            for call in of_tool
        ]
        raise AssertionError(
            f"{self.agent_id} called {tool}, but not with these arguments:\n{indent(chr(10).join(shown))}"
        )

    def did_not_call(self, tool: str | None = None, /) -> Self:
        """Assert that the agent did not call a tool, or no tool at all."""
        __tracebackhide__ = True
        found = [call for call in self.tool_calls if tool in (None, call.name)]
        if found:
            raise AssertionError(f"{self.agent_id} called {as_list([str(call) for call in found])}")
        return self

    def posted(self, schema_name: str, /, **context: Any) -> Self:
        """Assert that the turn wrote a breadcrumb of this schema, with these values in its context."""
        __tracebackhide__ = True
        of_schema = [crumb for crumb in self.posted_breadcrumbs if crumb.schema_name == schema_name]
        if any(_has(crumb.context, context) for crumb in of_schema):
            return self
        if not of_schema:
            schemas = as_list([crumb.schema_name or "(no schema)" for crumb in self.posted_breadcrumbs])
            raise AssertionError(f"the turn posted no {schema_name}. It posted: {schemas}")
        expected = orjson.dumps(context, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()
        shown = "\n".join(difference(expected, _selected(crumb.context, context)) for crumb in of_schema)
        raise AssertionError(
            f"the turn posted {schema_name}, but not with these values in its context:\n{indent(shown)}"
        )

    def has_valid_receipt(self) -> Self:
        """Assert that the requests can be rebuilt byte for byte, as `crumb verify` checks."""
        __tracebackhide__ = True
        server, owner = self._crumbs.server, self._crumbs.owner
        found = server.portal.call(verify_answer, server.store, owner, UUID(self.id))
        if found.outcome != "equal":
            raise AssertionError(f"the receipt of {self.id} does not match its requests: {found.as_dict()}")
        return self

    # Reading

    @cached_property
    def _turn(self) -> RebuiltTurn:
        store, owner = self._crumbs.server.store, self._crumbs.owner
        id = UUID(self.id)

        async def load() -> RebuiltTurn:
            return await rebuild_request(store, await load_receipt(store, owner, id))

        turn = self._crumbs.server.portal.call(load)
        if not turn.bodies:
            reasons = as_list([one.reason for one in turn.missing], "its server builds its own requests")
            raise AssertionError(f"the prompt of {self.agent_id} is not known: {reasons}")
        return turn

    def _read_by_model(self) -> list[str]:
        return [message_text(message) for prompt in self.prompts for message in prompt]

    def _shown_calls(self) -> str:
        return as_list([str(call) for call in self.tool_calls])


def _has(values: Any, wanted: Mapping[str, Any]) -> bool:
    return isinstance(values, dict) and all(
        name in values and values[name] == value for name, value in wanted.items()
    )


def _selected(values: Any, wanted: Mapping[str, Any]) -> str:
    """Return the values with the wanted names, as text that can be compared."""
    chosen = {name: values[name] for name in wanted if name in values} if isinstance(values, dict) else values
    return orjson.dumps(chosen, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()
