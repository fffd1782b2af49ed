"""Structured output: answers that match the `output_schema` of a definition.

The model is told the schema, and servers that support it get it as `response_format`. The answer is validated here in
any case. If it does not match, the model gets one more call with the problems.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from breadcrumbs.agents.answer import Answer
from breadcrumbs.agents.models.base import PromptMessage
from breadcrumbs.agents.models.output_schema import find_problems
from breadcrumbs.agents.receipts import RecordedCall
from breadcrumbs.runtime.breadcrumb.json_input import parse_json
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.schema_names import STRUCTURED_OUTPUT
from breadcrumbs.runtime.workers.errors import TurnFailed

_FENCED: Final = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n\s*```\s*\Z", re.DOTALL)
_INSTRUCTION: Final = "Answer only with a JSON object that matches this JSON Schema, without any other text:"


def with_instruction(
    messages: tuple[PromptMessage, ...], schema: dict[str, Any] | None
) -> tuple[PromptMessage, ...]:
    """Add the schema to the system message of a prompt. Without a schema, return the prompt itself.

    There is one system message, because some servers accept no second one.
    """
    if schema is None:
        return messages
    text = f"{_INSTRUCTION}\n{orjson.dumps(schema).decode()}"
    if messages and messages[0].role == "system":
        first = messages[0]._replace(content=f"{messages[0].content}\n\n{text}")
        return (first, *messages[1:])
    return (PromptMessage("system", text), *messages)


class OutputCheck:
    """Checks the replies of one turn against the schema of the agent."""

    def __init__(self, schema: dict[str, Any] | None, *, max_calls: int) -> None:
        self._schema = schema
        self._max_calls = max_calls
        self._is_repaired = False

    def repair(self, call: RecordedCall, number: int) -> list[PromptMessage] | None:
        """Return the messages that ask for a corrected answer, or None if the reply is accepted.

        `number` is the number of the call in the turn, from 0. Raise `TurnFailed` if no further call is permitted.
        """
        if self._schema is None:
            return None
        problems = check_output(self._schema, call.reply.text)[1]
        if not problems:
            return None
        error = "; ".join(problems)
        if self._is_repaired or number + 1 >= self._max_calls:
            again = (
                ", also after one correction" if self._is_repaired else " (max_steps permits no correction)"
            )
            raise TurnFailed(f"the answer of the model does not match output_schema{again}: {error}")
        self._is_repaired = True
        call.repair = error
        return repair_messages(call.reply.text, error)


def repair_messages(text: str, error: str) -> list[PromptMessage]:
    """Return the messages that a repair adds to the prompt: the invalid answer, and its problems."""
    return [
        PromptMessage("assistant", text),
        PromptMessage(
            "user",
            f"This answer does not match the JSON Schema: {error}. Answer again, only with the corrected JSON object.",
            name="schema_check",
        ),
    ]


def check_output(schema: dict[str, Any], text: str) -> tuple[Any, list[str]]:
    """Return the value of an answer and its problems. The value is None if there are problems."""
    try:
        value = parse_json(_unfenced(text).encode("utf-8", "surrogatepass"))
    except InvalidInput as error:
        return None, [f"it is not JSON: {error.message}"]
    problems = find_problems(schema, value)
    return (None, problems) if problems else (value, [])


def structured_answer(schema: dict[str, Any], text: str) -> Answer:
    """Return the answer with its parsed value. Raise `TurnFailed` if a hook has changed it to an invalid one."""
    value, problems = check_output(schema, text)
    if problems:
        raise TurnFailed(f"a hook changed the answer, which no longer matches output_schema: {problems[0]}")
    return Answer(_unfenced(text), runtime_fields={STRUCTURED_OUTPUT: value})


def _unfenced(text: str) -> str:
    fenced = _FENCED.match(text)
    return (fenced[1] if fenced else text).strip()
