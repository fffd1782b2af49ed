"""Checks agent definitions, and reports all problems at once with their positions.

An error makes a definition unusable. A warning is about a field that has no effect, or about something that does not
exist here: it can exist in another process, or later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from breadcrumbs.agents.definition import ERROR_PATH, AgentDefinition, AgentSelector, definition_fields
from breadcrumbs.runtime.breadcrumb.field_messages import error_message
from breadcrumbs.runtime.breadcrumb.json_positions import DocumentPath, LocatedJson, NotJson
from breadcrumbs.runtime.breadcrumb.nearest_names import field_names, nearest_name
from breadcrumbs.runtime.breadcrumb.tags import inherited_tags
from breadcrumbs.runtime.errors import Complaint

MAX_PROBLEMS: Final = 20
"""Maximum number of errors, and of warnings, that are reported."""

_RCRT_FIELDS: Final = frozenset(
    (
        "agent_name",
        "capabilities",
        "llm_config",
        "llm_config_comment",
        "llm_config_id",
        "llm_hints",
        "metadata",
    )
)
"""Fields of RCRT's definitions that are known to have another meaning or none here."""


@dataclass(frozen=True, slots=True)
class DefinitionProblem:
    """One error or warning about a definition."""

    path: DocumentPath
    message: str
    at_key: bool = False
    """The problem is the name of the field, not its value."""
    line: int | None = None
    column: int | None = None

    @property
    def where(self) -> str:
        return ".".join(str(part) for part in self.path)

    @property
    def pointer(self) -> str:
        """JSON pointer (RFC 6901) of the field. Empty: the whole document."""
        return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in self.path)

    def as_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"where": self.where, "pointer": self.pointer, "message": self.message}
        if self.line is not None:
            document |= {"line": self.line, "column": self.column}
        return document

    def as_complaint(self) -> Complaint:
        return Complaint(self.where, self.message, self.pointer, self.line, self.column)

    def __str__(self) -> str:
        position = "" if self.line is None else f"{self.line}:{self.column}: "
        return f"{position}{self.where}: {self.message}" if self.where else f"{position}{self.message}"

    def below(self, *prefix: str | int) -> DefinitionProblem:
        """Return the problem with a longer path, for a definition inside of another document."""
        return replace(self, path=(*prefix, *self.path))

    def located_in(self, text: LocatedJson) -> DefinitionProblem:
        """Return the problem with its line and column."""
        line, column = text.locate(self.path, key=self.at_key)
        return replace(self, line=line, column=column)


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Names to compare a definition with. None: unknown, nothing is compared."""

    tools: frozenset[str] | None = None
    schemas: frozenset[str] | None = None
    agents: Mapping[str, AgentDefinition] | None = None
    """Agents that run beside it, for cycles of triggers."""
    model_problem: Callable[[str], str | None] | None = None
    """Returns why a model cannot be used, or None."""


@dataclass(frozen=True, slots=True)
class CheckedDefinition:
    """A definition with its problems. Without errors there is a definition."""

    definition: AgentDefinition | None
    errors: tuple[DefinitionProblem, ...] = ()
    warnings: tuple[DefinitionProblem, ...] = ()

    @property
    def reason(self) -> str:
        """All errors in one line."""
        return "; ".join(str(error) for error in self.errors)


NOTHING_KNOWN: Final = KnownNames()


def check_definition(document: Any, known: KnownNames = NOTHING_KNOWN) -> CheckedDefinition:
    """Return the definition in a document, with all errors and warnings."""
    if not isinstance(document, Mapping):
        return CheckedDefinition(None, (DefinitionProblem((), "a definition must be an object { … }"),))
    fields = definition_fields(dict(document))
    warnings = list(_unknown_fields(fields))
    try:
        definition = AgentDefinition.model_validate(fields)
    except ValidationError as error:
        details = error.errors(include_url=False)
        errors = tuple(_as_problem(detail) for detail in details[:MAX_PROBLEMS])
        return CheckedDefinition(None, errors, tuple(warnings[:MAX_PROBLEMS]))
    warnings += find_warnings(definition, known)
    return CheckedDefinition(definition, (), tuple(warnings[:MAX_PROBLEMS]))


def check_text(raw: bytes, known: KnownNames = NOTHING_KNOWN) -> CheckedDefinition:
    """Check the text of a definition, or of a whole `agent.def.v1` breadcrumb. Problems have a line and a column."""
    try:
        text = LocatedJson(raw)
    except NotJson as error:
        line, column = error.location
        problem = DefinitionProblem((), f"not JSON: {error.message}", line=line, column=column)
        return CheckedDefinition(None, (problem,))
    document, prefix = text.value, tuple[str, ...]()
    if is_breadcrumb(document):
        document, prefix = document["context"], ("context",)
    checked = check_definition(document, known)
    repeated = [
        DefinitionProblem(path, f"duplicate field: it is already set in line {first.line}", at_key=True)
        for path, first, _ in text.repeated_keys
    ]
    errors = [*repeated, *(error.below(*prefix) for error in checked.errors)]
    return CheckedDefinition(
        None if errors else checked.definition,
        tuple(error.located_in(text) for error in errors),
        tuple(warning.below(*prefix).located_in(text) for warning in checked.warnings),
    )


def is_breadcrumb(document: Any) -> bool:
    """Return whether a document is a whole breadcrumb, as RCRT's files are."""
    return isinstance(document, dict) and isinstance(document.get("context"), dict)


def _as_problem(detail: Any) -> DefinitionProblem:
    context = detail.get("ctx", {})
    path: DocumentPath = (*detail["loc"], *context.get(ERROR_PATH, ()))
    if detail["type"] == "extra_forbidden":
        known = field_names(path[:-1], AgentDefinition)
        close = nearest_name(str(path[-1]), known)
        advice = f"use one of {', '.join(known)}" if close is None else f"did you mean {close!r}?"
        return DefinitionProblem(path, f"unknown field: {advice}", at_key=True)
    return DefinitionProblem(path, error_message(detail, context))


def _unknown_fields(fields: Mapping[str, Any]) -> Iterator[DefinitionProblem]:
    known = list(AgentDefinition.model_fields)
    for name in fields:
        if name in known or name in _RCRT_FIELDS or name.startswith("$"):
            continue
        close = nearest_name(name, known)
        advice = "it has no effect" if close is None else f"it has no effect. Did you mean {close!r}?"
        yield DefinitionProblem((name,), f"unknown field: {advice}", at_key=True)


# Warnings about valid definitions


def find_warnings(
    definition: AgentDefinition, known: KnownNames = NOTHING_KNOWN
) -> Iterator[DefinitionProblem]:
    """Yield problems of a valid definition: unknown tools, names that match nothing, cycles of triggers."""
    yield from _unknown_tools(definition, known)
    yield from _unknown_models(definition, known)
    yield from _odd_names(definition, known)
    yield from _cycles(definition, known)


def _unknown_tools(definition: AgentDefinition, known: KnownNames) -> Iterator[DefinitionProblem]:
    if known.tools is None:
        return
    for number, name in enumerate(definition.tools):
        if name not in known.tools:
            close = nearest_name(name, known.tools)
            advice = (
                f"available tools: {', '.join(sorted(known.tools)) or 'none'}"
                if close is None
                else f"did you mean {close!r}?"
            )
            yield DefinitionProblem(("tools", number), f"no agent runner has this tool: {advice}")


def _unknown_models(definition: AgentDefinition, known: KnownNames) -> Iterator[DefinitionProblem]:
    if known.model_problem is None:
        return
    for number, name in enumerate(definition.models):
        if (problem := known.model_problem(name)) is not None:
            yield DefinitionProblem(
                ("model",) if isinstance(definition.model, str) else ("model", number), problem
            )


def _odd_names(definition: AgentDefinition, known: KnownNames) -> Iterator[DefinitionProblem]:
    for number, selector in enumerate(definition.subscriptions.selectors):
        name = selector.schema_name
        if name is None:
            continue
        path: DocumentPath = ("subscriptions", "selectors", number, "schema_name")
        if any(character in name for character in "*?"):
            yield DefinitionProblem(path, "matches nothing: schema names have no wildcards")
        elif known.schemas is not None and name not in known.schemas:
            close = nearest_name(name, known.schemas)
            if close is not None:
                yield DefinitionProblem(path, f"no breadcrumb has this schema yet. Did you mean {close!r}?")


def _cycles(definition: AgentDefinition, known: KnownNames) -> Iterator[DefinitionProblem]:
    others = {**(known.agents or {}), definition.agent_id: definition}
    if (cycle := find_trigger_cycle(definition.agent_id, others)) is None:
        return
    path: DocumentPath = ("subscriptions",)
    limit = definition.hop_limit
    if len(cycle) == 1:
        message = "the agent triggers itself: its own answers match a trigger"
    else:
        names = " → ".join([*cycle, cycle[0]])
        message = f"these agents trigger each other: {names}"
    yield DefinitionProblem(path, f"{message}. hop_limit stops the loop after {limit} turns")


def find_trigger_cycle(start: str, agents: Mapping[str, AgentDefinition]) -> list[str] | None:
    """Return the agents of a shortest cycle of triggers through one of them, or None.

    Only the schema and the tags of `emits` are compared. A model can choose others, so a cycle can still occur.
    """
    paths: list[list[str]] = [[start]]
    visited: set[str] = set()
    while paths:
        path = paths.pop(0)
        for name in _triggered_by(agents[path[-1]], agents):
            if name == start:
                return path
            if name not in visited:
                visited.add(name)
                paths.append([*path, name])
    return None


def _triggered_by(writer: AgentDefinition, agents: Mapping[str, AgentDefinition]) -> Iterator[str]:
    for name, reader in agents.items():
        if any(_matches_answer(trigger, writer) for trigger in reader.triggers):
            yield name


def _matches_answer(trigger: AgentSelector, writer: AgentDefinition) -> bool:
    """Return whether a trigger matches each answer of an agent. Conditions on its content are unknown here."""
    if trigger.needs_context or trigger.session_id is not None:
        return False
    # The answer inherits some tags of its trigger. Count them only if the trigger of the writer names them.
    inherited: Sequence[str] = inherited_tags(
        [tag for own in writer.triggers for tag in (*(own.all_tags or ()), *(own.any_tags or ()))]
    )
    return trigger.matches_meta(writer.emits.schema_name, [*writer.emits.tags, *inherited], None)
