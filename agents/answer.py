"""What a model said, turned into a breadcrumb under the runtime's rules.

A model may answer in plain words or in RCRT's JSON (`{"action": "create", "breadcrumb": {…}}`). Whatever it
says, the session is the trigger's: session tags it returns are dropped and noted, and the tags that carry
sessions, users and workspaces along are copied from the trigger. Nor does it write what steers the runtime.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.runtime.breadcrumb.breadcrumb import MAX_TAG_LENGTH, MAX_TAGS, BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags, without_session
from breadcrumbs.runtime.breadcrumb.text import find_text
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.schema_names import PROTECTED_SCHEMAS, RUNTIME_KEYS, SPEAKER_SCHEMAS

RESPONSE: Final = "agent.response.v1"

_FENCED = re.compile(r"^\s*```(?:json)?\s*\n(.*?)\n\s*```\s*$", re.DOTALL)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wants to say."""

    text: str
    schema_name: str | None = None
    title: str | None = None
    tags: list[str] = field(default_factory=list)
    context: dict[str, Any] = field(default_factory=dict)
    glue: dict[str, Any] = field(default_factory=dict)
    """What the runtime itself has to say about how it was made."""


def parse_answer(text: str) -> Answer:
    """RCRT's JSON where it is that, also a little broken; anything else is what it is: text."""
    document = _as_json(text)
    if not isinstance(document, dict):
        return Answer(text.strip())
    crumb = document.get("breadcrumb")
    if document.get("action") != "create" or not isinstance(crumb, dict):
        return Answer(text.strip())
    context = crumb.get("context")
    context = dict(context) if isinstance(context, dict) else {}
    tags = crumb.get("tags")
    said = find_text(context)
    return Answer(
        text=said if said is not None else orjson.dumps(context).decode(),
        schema_name=crumb.get("schema_name") if isinstance(crumb.get("schema_name"), str) else None,
        title=crumb.get("title") if isinstance(crumb.get("title"), str) else None,
        tags=[tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else [],
        context=context,
    )


def _as_json(text: str) -> Any:
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


def product(
    answer: Answer,
    agent: AgentDefinition,
    trigger_tags: Sequence[str],
    glue: dict[str, Any],
    inherited: tuple[str, ...],
) -> BreadcrumbCreate:
    """The breadcrumb that an answer becomes. `glue` is what the runtime adds to its context."""
    wanted, foreign = without_session(answer.tags)
    tags = [tag for tag in (*agent.emits.tags, *wanted) if 0 < len(tag) <= MAX_TAG_LENGTH]
    infrastructure = {tag for tag in tags if tag.partition(":")[0] in inherited}
    passed_on = inherited_tags(trigger_tags, inherited)
    tags = [tag for tag in dict.fromkeys(tags) if tag not in infrastructure]
    tags = [*tags[: MAX_TAGS - len(passed_on)], *passed_on]
    context = {key: value for key, value in answer.context.items() if key not in RUNTIME_KEYS}
    context |= {"message": answer.text, "content": answer.text, **glue}
    if foreign:
        context["dropped_tags"] = foreign
    schema_name, dropped = _schema_names(answer, agent)
    if dropped is not None:
        context["dropped_schema_name"] = dropped
    fields: dict[str, Any] = {
        "schema_name": schema_name,
        "title": _one_line(answer.title or answer.text),
        "tags": tags,
        "context": context,
    }
    try:
        return BreadcrumbCreate.parse(fields)
    except InvalidInput:
        # What the model chose beyond its words cannot be stored: keep the words.
        plain = {"message": answer.text, "content": answer.text, **glue}
        return BreadcrumbCreate.parse(
            {
                "schema_name": _schema_names(Answer(answer.text), agent)[0],
                "title": _one_line(answer.text),
                "tags": [*agent.emits.tags, *passed_on],
                "context": plain,
            }
        )


def _schema_names(answer: Answer, agent: AgentDefinition) -> tuple[str, str | None]:
    """The schema that an answer gets, and the one that was asked for where it must not have that one."""
    default = agent.emits.schema_name
    allowed_default = RESPONSE if default in SPEAKER_SCHEMAS else default
    wanted = answer.schema_name or default
    if wanted in SPEAKER_SCHEMAS or (wanted in PROTECTED_SCHEMAS and wanted != default):
        return allowed_default, wanted
    return wanted, None


def _one_line(text: str) -> str:
    words = " ".join("".join(c if c.isprintable() else " " for c in text[:400]).split())
    return words if len(words) <= 80 else words[:79] + "…"
