"""Convert the reply of an agent to the breadcrumb of its answer.

A model can answer in plain text or in RCRT's JSON (`{"action": "create", "breadcrumb": {…}}`). The answer is always
stored in the session of the trigger. Session tags that the model writes are removed and listed in `dropped_tags`. The
tags of the session, the user and the workspace are copied from the trigger. A model cannot write the keys and schemas
that control the runtime.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import orjson

from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.session_rule import MAX_TAG_LENGTH, MAX_TAGS
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags, without_session
from breadcrumbs.runtime.breadcrumb.text import encodable_text, find_text, shorten_line
from breadcrumbs.runtime.errors import InvalidInput, StateTooLarge
from breadcrumbs.runtime.schema_names import AGENT_RESPONSE, PROTECTED_SCHEMAS, RUNTIME_KEYS, SPEAKER_SCHEMAS
from breadcrumbs.runtime.workers.errors import TurnFailed

_FENCED = re.compile(r"^\s*```(?:json)?\s*\n(.*?)\n\s*```\s*$", re.DOTALL)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")

_MAX_ANSWER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an agent before it becomes a breadcrumb."""

    text: str
    schema_name: str | None = None
    title: str | None = None
    tags: list[str] = field(default_factory=list)
    context: dict[str, Any] = field(default_factory=dict)
    runtime_fields: dict[str, Any] = field(default_factory=dict)
    """Fields that the runtime adds to the context of the answer."""


ParseAnswer: TypeAlias = Callable[[str], Answer]


def check_text(text: str, speaker: str = "the model") -> str:
    """Return the text in an encodable form. Raises `TurnFailed` if it is empty or too long."""
    if not text.strip():
        raise TurnFailed(f"{speaker} returned an empty answer", retry=True)
    text = encodable_text(text)
    if (size := len(text.encode())) > _MAX_ANSWER_BYTES:
        raise TurnFailed(
            f"{speaker} returned {size:,} bytes, and the limit of an answer is {_MAX_ANSWER_BYTES:,}"
        )
    return text


def function_text(agent_id: str, reply: object) -> tuple[str, ParseAnswer]:
    """Return the reply of a function agent as text, and the function that makes an answer from that text.

    The reply is text, or the fields of a breadcrumb as a dict. These become RCRT's JSON, so that hooks see all of it.
    """
    if isinstance(reply, str):
        return reply, lambda text: Answer(check_text(text, agent_id))
    if not isinstance(reply, dict):
        raise TurnFailed(f"{agent_id} returned {type(reply).__name__}: return a str or a dict")
    try:
        raw = orjson.dumps({"action": "create", "breadcrumb": reply}).decode()
    except TypeError as error:
        raise TurnFailed(f"{agent_id} returned a value that is not JSON: {error}") from error

    def parse(text: str) -> Answer:
        answer = parse_answer(text)
        return replace(answer, text=check_text(answer.text, agent_id))

    return raw, parse


def model_answer(text: str) -> Answer:
    """Return the answer of the text of a model. Raise `TurnFailed` if it is empty or too long."""
    return parse_answer(check_text(text))


def parse_answer(text: str) -> Answer:
    """Parse RCRT's JSON, tolerating a code fence and trailing commas. Other text is the answer itself."""
    document = _parse_json(text)
    if not isinstance(document, dict):
        return Answer(text.strip())
    crumb = document.get("breadcrumb")
    if document.get("action") != "create" or not isinstance(crumb, dict):
        return Answer(text.strip())
    context = crumb.get("context")
    context = dict(context) if isinstance(context, dict) else {}
    tags = crumb.get("tags")
    message = find_text(context)
    return Answer(
        text=message if message is not None else orjson.dumps(context).decode(),
        schema_name=crumb.get("schema_name") if isinstance(crumb.get("schema_name"), str) else None,
        title=crumb.get("title") if isinstance(crumb.get("title"), str) else None,
        tags=[tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else [],
        context=context,
    )


def _parse_json(text: str) -> Any:
    """Return the JSON value of a text that looks like an object, or None."""
    candidate = text.strip()
    if fenced := _FENCED.match(candidate):
        candidate = fenced[1].strip()
    if not candidate.startswith("{"):
        return None
    for attempt in (candidate, _TRAILING_COMMA.sub(r"\1", candidate)):
        try:
            return orjson.loads(attempt)
        except orjson.JSONDecodeError:
            continue
    return None


def answer_breadcrumb(
    answer: Answer,
    agent: AgentDefinition,
    trigger_tags: Sequence[str],
    runtime_fields: dict[str, Any],
    inherited: tuple[str, ...],
) -> BreadcrumbCreate:
    """Return the breadcrumb of an answer. `runtime_fields` are added to its context."""
    wanted, foreign = without_session(answer.tags)
    tags = [tag for tag in (*agent.emits.tags, *wanted) if 0 < len(tag) <= MAX_TAG_LENGTH]
    infrastructure = {tag for tag in tags if tag.partition(":")[0] in inherited}
    copied = inherited_tags(trigger_tags, inherited)
    tags = [tag for tag in dict.fromkeys(tags) if tag not in infrastructure]
    tags = [*tags[: MAX_TAGS - len(copied)], *copied]
    context = {key: value for key, value in answer.context.items() if key not in RUNTIME_KEYS}
    if not context or find_text(context) is not None:
        # The text of any other context is its JSON, which readers derive: storing it would double the answer.
        context |= {"message": answer.text, "content": answer.text}
    context |= runtime_fields
    if foreign:
        context["dropped_tags"] = foreign
    schema_name, dropped = _schema_names(answer, agent)
    if dropped is not None:
        context["dropped_schema_name"] = dropped
    fields: dict[str, Any] = {
        "schema_name": schema_name,
        "title": shorten_line(answer.title or answer.text),
        "tags": tags,
        "context": context,
    }
    try:
        return BreadcrumbCreate.parse(fields)
    except InvalidInput:
        # The model's tags, schema or context cannot be stored: keep only its text.
        plain = {"message": answer.text, "content": answer.text, **runtime_fields}
        return BreadcrumbCreate.parse(
            {
                "schema_name": _schema_names(Answer(answer.text), agent)[0],
                "title": shorten_line(answer.text),
                "tags": [*agent.emits.tags, *copied],
                "context": plain,
            }
        )


def without_state_change(answer: BreadcrumbCreate, error: StateTooLarge) -> BreadcrumbCreate:
    """Return an answer without its state change, which was refused. The context records the error."""
    context = {name: value for name, value in answer.context.items() if name != "state_delta"}
    return answer.model_copy(update={"context": {**context, "state_refused": str(error)}})


def _schema_names(answer: Answer, agent: AgentDefinition) -> tuple[str, str | None]:
    """Return the schema to store, and the requested schema if it was refused.

    An answer never has a schema of `SPEAKER_SCHEMAS`. It has a schema of `PROTECTED_SCHEMAS` only if the definition
    names it.
    """
    default = agent.emits.schema_name
    allowed_default = AGENT_RESPONSE if default in SPEAKER_SCHEMAS else default
    wanted = answer.schema_name or default
    if wanted in SPEAKER_SCHEMAS or (wanted in PROTECTED_SCHEMAS and wanted != default):
        return allowed_default, wanted
    return wanted, None
