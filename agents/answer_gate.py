"""The way of an answer from the model to its users: structured output, hooks, and streaming.

If an answer is checked after the model has finished, nothing is streamed before: a text that is refused or changed must
not be seen. The complete text is then streamed in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from breadcrumbs.agents.answer import Answer, ParseAnswer, check_text, model_answer
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.hooks import Hooks
from breadcrumbs.agents.models.base import OnDelta
from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.agents.structured_output import structured_answer
from breadcrumbs.agents.tool_steps import PARAGRAPH

ANSWER_HOOKS = "answer_hooks"
"""Field of a receipt with the hooks of the answer, in the form of `calls[].hooks`."""


def has_answer_hooks(definition: AgentDefinition) -> bool:
    """Return whether hooks can change the answers. Then the reasoning of the model is not shown: it can quote them."""
    return definition.hooks is not None and bool(definition.hooks.before_answer)


class AnswerGate:
    """Checks one answer, and streams it when that is permitted."""

    def __init__(self, hooks: Hooks, request: AnswerRequest, write: OnDelta) -> None:
        definition = request.definition
        self._hooks = hooks
        self._request = request
        self._write = write
        self._runs_hooks = has_answer_hooks(definition)
        self._holds = self._runs_hooks or definition.output_schema is not None
        self.receipt: dict[str, Any] = {}
        """Fields of the receipt about the hooks that ran."""

    @property
    def on_delta(self) -> OnDelta:
        """The function that receives the pieces of the answer while it is generated."""
        return _hold_back if self._holds else self._write

    async def answer(self, texts: Sequence[str], parse: ParseAnswer = model_answer) -> Answer:
        """Return the answer of the texts of an agent, the last one last. Raise `TurnFailed` if it must not be used."""
        schema = self._request.definition.output_schema
        *before, last = texts
        if schema is not None:
            before = []
        if self._runs_hooks:
            raw, entries = await self._hooks.before_answer(self._request, PARAGRAPH.join([*before, last]))
            self.receipt = {ANSWER_HOOKS: entries}
            before, last = [], raw
        answer = parse(last) if schema is None else structured_answer(schema, check_text(last))
        # Store exactly the text that was streamed.
        answer = replace(answer, text=check_text(PARAGRAPH.join([*before, answer.text])))
        if self._holds:
            await self._write(answer.text)
        return answer


async def _hold_back(text: str) -> None:
    return None
