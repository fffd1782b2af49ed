"""Writes the pages in docs/reference from the code: models, settings, commands, docstrings and metrics.

    .venv/bin/python docs/generate_reference.py            # writes the pages
    .venv/bin/python docs/generate_reference.py --check    # fails if a page differs from the code

Run it after a change of a setting, a command, an agent definition, a context config, a metric or a public docstring.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.testing import CliRunner

import breadcrumbs
import breadcrumbs.testing
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.definition_checks import check_definition
from breadcrumbs.cli.app import app
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.runtime.http.middleware.metrics import Metrics
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.telemetry import metrics
from breadcrumbs.runtime.telemetry.fast import CounterFamily, HistogramFamily

DOCS = Path(__file__).resolve().parent
REFERENCE = DOCS / "reference"
UPDATE = ".venv/bin/python docs/generate_reference.py"
NOTE = f"<!-- Generated from the code. Do not edit: run {UPDATE} -->\n"

DESCRIPTIONS = {
    "Selector.schema_name": "The breadcrumb has this schema.",
    "Selector.any_tags": "The breadcrumb has at least one of these tags.",
    "Selector.all_tags": "The breadcrumb has all of these tags.",
    "Selector.session_id": "The breadcrumb belongs to this session.",
    "Selector.owner_id": "The breadcrumb belongs to this owner.",
    "Selector.visibility_in": "Its visibility is one of these: public, team, private.",
    "Selector.sensitivity_in": "Its sensitivity is one of these: low, pii, secret.",
    "Selector.context_match": "Conditions on its context. All of them must hold.",
    "ContextMatch.path": "JSONPath of the compared values, such as `$.order.total`.",
    "ContextMatch.op": "The comparison.",
    "ContextMatch.value": "The value to compare with. `contains_any` needs a list.",
    "Source.key": "Name of the part of the context that the source fills.",
    "Source.schema_name": "Fetch breadcrumbs with this schema.",
    "Source.any_tags": "Fetch breadcrumbs with at least one of these tags.",
    "Source.all_tags": "Fetch breadcrumbs with all of these tags.",
    "Source.fetch": "How many breadcrumbs to fetch, and from which sessions.",
    "ContextConfig.exclude": "Breadcrumbs that the context never contains.",
    "ContextConfig.output": "The breadcrumb that stores the context.",
    "ContextConfig.formatting": "Size limit of the context.",
    "ApiKey.key": "The secret, at least 16 characters.",
    "ApiKey.owner_id": "The tenant. Keys with the same id share all data.",
    "ApiKey.agent_id": "The agent that writes with this key. Default: an id that is derived from the key.",
    "ApiKey.roles": "Rights of the key and of its tokens.",
    "ApiKey.name": "A label for the operator.",
    "RateLimits.posting": "Writing breadcrumbs and messages.",
    "RateLimits.managing": "Writing sessions, selectors, agents, tenants and dead letters.",
    "RateLimits.reading": "All other routes.",
    "RateBudget.per_token": "Requests of one token, such as `600/1m`, or `off`.",
    "RateBudget.per_key": "Requests of one API key with all its tokens.",
    "RateBudget.per_owner": "Requests of one owner with all keys.",
    "Quota.bytes": "Size of all stored versions of all breadcrumbs.",
    "Quota.breadcrumbs": "Number of breadcrumbs.",
    "Quota.sessions": "Number of sessions.",
    "Quotas.owners": "Other limits for single owners, by their id.",
}
"""Descriptions of fields that have none in the code, because their names are conditions of a selector."""


# --- Fields of models ------------------------------------------------------------------------------------


def type_in_words(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return a JSON Schema type as text, such as `list of text`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        found = definitions[name]
        if name == "Rate":
            return "rate"  # written as text, such as 600/1m
        return f"[{name}](#{name.lower()})" if "properties" in found else type_in_words(found, definitions)
    if "anyOf" in schema:
        kinds = [type_in_words(part, definitions) for part in schema["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type")
    if kind == "array":
        return f"list of {type_in_words(schema.get('items', {}), definitions)}"
    names = {
        "string": "text",
        "integer": "integer",
        "number": "number",
        "boolean": "true or false",
        "null": "null",
    }
    if kind == "string" and schema.get("format") in ("uuid", "duration"):
        return str(schema["format"]).replace("uuid", "UUID")
    return names.get(str(kind), "object" if kind == "object" else "any JSON")


LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}


def limits_in_words(schema: dict[str, Any]) -> list[str]:
    """Return the bounds of a JSON Schema as text."""
    parts = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    found = []
    for part in parts:
        for name, text in LIMITS.items():
            number = part.get(name, 0)
            if name == "minLength" and number == 1:
                found.append("not empty")
            elif number or (name in part and not name.startswith("min")):
                found.append(text.format(f"{number:,}" if number >= 10_000 else f"{number:g}"))
    return ["; ".join(found)] if found else []


def default_in_words(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ((), "", {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def models_of(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return a model and the models of its fields, each once, in the order of the fields."""
    found: dict[type[BaseModel], None] = {model: None}
    for field in model.model_fields.values():
        for inner in _models_in(field.annotation):
            found.update(dict.fromkeys(models_of(inner)))
    return list(found)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models_in(part)


def description_of(model: type[BaseModel], name: str) -> str:
    """Return the description of a field. Raise LookupError if there is none."""
    given = model.model_fields[name].description
    if given:
        return given if given.endswith(".") else f"{given}."
    for base in model.__mro__:
        found = DESCRIPTIONS.get(f"{base.__name__}.{name}")
        if found:
            return found
    raise LookupError(f"{model.__name__}.{name} has no description: add one with Field(description=…)")


def fields_table(model: type[BaseModel], root: dict[str, Any]) -> Iterator[str]:
    """Yield the table of the fields of a model."""
    definitions = root.get("$defs", {})
    schema = definitions.get(model.__name__, root)
    yield "| Field | Type | Default | Description |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        shown = schema["properties"][name]
        kind = "; ".join(
            [type_in_words(shown, definitions).removesuffix(" or null"), *limits_in_words(shown)]
        )
        default = default_in_words(field.get_default(call_default_factory=True))
        yield f"| `{name}` | {kind} | {default} | {escaped(description_of(model, name))} |"


def escaped(text: str) -> str:
    """Return text for one cell of a table."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def model_page(title: str, introduction: str, model: type[BaseModel]) -> str:
    """Return the page of a model and all models of its fields."""
    root = model.model_json_schema()
    lines = [f"# {title}", "", NOTE, textwrap.fill(introduction, 110)]
    for one in models_of(model):
        lines += ["", f"## {one.__name__}", "", first_paragraph(one.__doc__), ""]
        lines += fields_table(one, root)
    return "\n".join(lines) + "\n"


def first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())


AGENT_EXAMPLES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "Model and prompt",
        "The agent answers all messages of users with a model. Only `agent_id` and one trigger are required.",
        {
            "agent_id": "poet",
            "description": "Answers in rhymes.",
            "system_prompt": "Answer in rhymes.",
            "model": "ollama:llama3.2",
            "temperature": 0.9,
            "max_tokens": 500,
            "subscriptions": {"selectors": [{"schema_name": "user.message.v1"}]},
        },
    ),
    (
        "Triggers and sources",
        "The first selector starts a turn for messages with a tag and a condition on their content. The second one "
        "adds the last five notes of all sessions of the user to the prompt. An agent whose trigger is "
        "`agent.context.v1` gets its prompt from a [context config](context-config.md) instead.",
        {
            "agent_id": "clerk",
            "subscriptions": {
                "selectors": [
                    {
                        "schema_name": "user.message.v1",
                        "any_tags": ["for:clerk"],
                        "context_match": [{"path": "$.order.total", "op": "gt", "value": 100}],
                        "comment": "large orders only",
                    },
                    {
                        "schema_name": "note.v1",
                        "role": "context",
                        "key": "notes",
                        "fetch": {"method": "recent", "limit": 5, "conversation_scope": "user"},
                    },
                ]
            },
        },
    ),
    (
        "Tools",
        "The model may call these tools. [Tools](../how-to/tools.md) shows how to write your own.",
        {
            "agent_id": "accountant",
            "tools": ["calculator", "clock"],
            "max_steps": 4,
            "subscriptions": {"selectors": [{"schema_name": "user.message.v1"}]},
        },
    ),
    (
        "Answers",
        "The agent takes notes beside the agent that answers. What it writes is no answer, so no rule for answers "
        "applies to it, and the chat does not show it.",
        {
            "agent_id": "note-taker",
            "system_prompt": "Summarize the message in one line.",
            "answers_users": False,
            "emits": {"schema_name": "note.v1", "tags": ["note"]},
            "subscriptions": {"selectors": [{"schema_name": "user.message.v1"}]},
        },
    ),
    (
        "Limits",
        "A new message interrupts the running answer. An attempt takes at most a minute. The agent stops after three "
        "agents in a row.",
        {
            "agent_id": "typist",
            "when_busy": "interrupt",
            "timeout_seconds": 60,
            "hop_limit": 3,
            "subscriptions": {"selectors": [{"schema_name": "agent.response.v1", "all_tags": ["draft"]}]},
        },
    ),
    (
        "ADK",
        "An app on an [ADK server](../adk.md) answers. It has its own model, prompt and tools.",
        {
            "agent_id": "planner",
            "kind": "adk",
            "adk": {"server": "main", "app": "planner"},
            "subscriptions": {"selectors": [{"schema_name": "user.message.v1", "any_tags": ["for:planner"]}]},
        },
    ),
]
"""Examples of groups of fields: title, explanation and definition."""


def agent_examples() -> str:
    """Return the examples. Raise `ValueError` if one is invalid or has a warning."""
    lines = ["## Examples", ""]
    for title, explanation, definition in AGENT_EXAMPLES:
        checked = check_definition(definition)
        if checked.errors or checked.warnings:
            raise ValueError(f"{title}: {[*checked.errors, *checked.warnings]}")
        text = json.dumps(definition, indent=2)
        lines += [f"### {title}", "", textwrap.fill(explanation, 110), "", "```json", text, "```", ""]
    return "\n".join(lines)


def agent_definition() -> str:
    page = model_page(
        "Agent definitions",
        "An agent definition is a JSON file in the folder of the setting `agents`, the `context` of an "
        "`agent.def.v1` breadcrumb, a dict or an `AgentDefinition` in Python, or the keyword arguments of the "
        "decorator `@agent`. [Write an agent](../how-to/own-agent.md) shows how to use it. Unknown fields of a "
        "definition are kept and have no effect, and checks warn about them. Unknown fields of `subscriptions`, "
        "`emits`, `adk` and of a selector are errors: without a misspelt one, the agent would match or show more than "
        "intended. "
        "`crumb agents check FILE` reports all problems with line and column.",
        AgentDefinition,
    )
    first, _, rest = page.partition("\n## AgentDefinition")
    return f"{first}\n{agent_examples()}\n## AgentDefinition{rest}"


def context_config() -> str:
    return model_page(
        "Context configs",
        "A context config decides what a model sees. It is a JSON file (setting `context_config`) or the `context` "
        "of a `context.config.v1` breadcrumb. The [guide](../context-config.md) explains how the parts work "
        "together. Unknown fields are errors. The key `$schema` is ignored, for editors.",
        ContextConfig,
    )


# --- Settings --------------------------------------------------------------------------------------------


def rows_of(document: str, columns: int) -> dict[str, list[str]]:
    """Return the rows of the tables of a document by their first cell."""
    rows = (
        re.split(r"\s*\|\s*", line.strip())[1:-1] for line in document.splitlines() if line.startswith("| `")
    )
    return {row[0].strip("`"): row for row in rows if len(row) == columns}


def settings() -> str:
    described = rows_of((DOCS / "operations.md").read_text("utf-8"), 3)
    limits = rows_of((DOCS / "operations.md").read_text("utf-8"), 4)
    root = Settings.model_json_schema()
    lines = [
        "# Settings", "", NOTE,
        "Each setting is a line in `crumb.toml` and an environment variable. The most used ones are also flags of",
        "[`crumb up`](cli.md#crumb-up). [Operating Breadcrumbs](../operations.md#settings) explains how they work",
        "together.",
        "", "| Setting | Variable | Type | Default | Description |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name in Settings.model_fields:
        if name not in described:
            raise LookupError(f"the setting {name} is missing in the table of docs/operations.md")
        shown = root["properties"][name]
        plain = type_in_words(shown, {**root.get("$defs", {})}).removesuffix(" or null")
        kind = "; ".join([plain, *limits_in_words(shown)])
        _, default, text = described[name]
        text = text.replace("](#", "](../operations.md#").replace("](http.md", "](../http.md")
        text = re.sub(r"\]\((python|design)\.md", r"](../\1.md", text).replace(
            "](../extension", "](../../extension"
        )
        lines.append(
            f"| `{name}` | `CRUMB_{name.upper()}` | {kind} | {default.replace('](#', '](../operations.md#')} | {text} |"
        )
    for model in [one for one in models_of(Settings) if one is not Settings]:
        lines += ["", f"## {model.__name__}", "", first_paragraph(model.__doc__), ""]
        if model.__name__ == "ConnectionLimits":
            lines += ["| Field | Default | Description |", "|---|---|---|"]
            lines += [f"| `{name}` | {limits[name][1]} | {limits[name][3]} |" for name in model.model_fields]
        else:
            lines += fields_table(model, root)
    return "\n".join(lines) + "\n"


# --- Commands --------------------------------------------------------------------------------------------


def commands() -> str:
    lines = [
        "# Commands", "", NOTE,
        "The help of every command of `crumb`. In a clone of the repository, write `./crumb` instead of `crumb`.",
        "Commands print tables on a terminal, and JSON in a pipe or with `--json`.",
    ]  # fmt: skip
    for path in command_paths(typer.main.get_command(app), ()):
        lines += ["", f"## {' '.join(('crumb', *path))}", "", "```text", help_of(path), "```"]
    return "\n".join(lines) + "\n"


def command_paths(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the names of every command, such as `("sessions", "list")`, in the order of the help."""
    if path:
        yield path
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from command_paths(inner, (*path, name))


def help_of(path: tuple[str, ...]) -> str:
    """Return the help of a command as a terminal with 100 columns shows it."""
    environment = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, [*path, "--help"], prog_name="crumb", env=environment)
    return "\n".join(line.rstrip() for line in result.output.strip().splitlines())


# --- Python API ------------------------------------------------------------------------------------------


def python_api() -> str:
    lines = [
        "# Python API", "", NOTE,
        "All public names of the package `breadcrumbs`, from their docstrings. The [guide](../python.md) shows how",
        "to use them. Other modules are not part of the public API.",
    ]  # fmt: skip
    for name in breadcrumbs.__all__:
        if name == "__version__":
            lines += ["", "## \\_\\_version\\_\\_", "", "The version of the installed package, as text."]
        else:
            lines += _public_name(name, getattr(breadcrumbs, name))
    lines += ["", "## breadcrumbs.testing", "", *_prose(_docstring(breadcrumbs.testing))]
    for name in breadcrumbs.testing.__all__:
        lines += _public_name(name, getattr(breadcrumbs.testing, name))
    return "\n".join(lines) + "\n"


def _model_name(name: str, documentation: str) -> Iterator[str]:
    """Yield the section of a pydantic model. Its fields have a page of their own."""
    yield from (
        "```python",
        f"{name}.model_validate(fields: dict[str, Any]) -> {name}",
        "```",
        "",
        documentation,
        "",
    )
    yield (
        "The [reference of definitions](agent-definition.md) lists the fields. `model_validate` raises a "
        "`pydantic.ValidationError` for invalid ones."
    )


def _public_name(name: str, value: Any) -> Iterator[str]:
    documentation = _docstring(value)
    if not documentation:
        raise LookupError(f"breadcrumbs.{name} has no docstring")
    yield from ("", f"## {name}", "")
    if inspect.isclass(value) and issubclass(value, BaseModel):
        yield from _model_name(name, documentation)
        return
    if inspect.isclass(value) and issubclass(value, BaseException):
        parents = [base.__name__ for base in value.__bases__ if base.__name__ in breadcrumbs.__all__]
        yield from (
            (f"Subclass of {', '.join(f'[{one}](#{one.lower()})' for one in parents)}.", "")
            if parents
            else ()
        )
    elif callable(value):
        yield from ("```python", f"{name}{_signature(value)}", "```", "")
    yield from _prose(documentation)
    if inspect.isclass(value):
        yield from _members(value)


def _docstring(value: Any) -> str:
    text = value.__doc__ or ""
    generated = inspect.isclass(value) and text.startswith(f"{value.__name__}(")
    return "" if generated else inspect.cleandoc(text)


def _prose(text: str) -> Iterator[str]:
    """Yield a docstring as Markdown. Indented blocks are code."""
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("    "):
            yield from ("```python", *textwrap.dedent(paragraph).splitlines(), "```", "")
        else:
            yield from (" ".join(paragraph.split()).replace("<", "\\<"), "")


def _signature(value: Any) -> str:
    """Return a signature with its types as they are written in the code."""
    signature = inspect.signature(value)
    given = [one for name, one in signature.parameters.items() if name != "self"]
    kept = [_parameter(one) for one in given]
    text = str(signature.replace(parameters=kept))
    return (
        re.sub(r"'([^']*)'(?=[,)\]]|$| =| \*)", r"\1", text)
        if len(text) < 100
        else _long_signature(signature, kept)
    )


def _parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    if isinstance(parameter.annotation, str):
        return parameter.replace(annotation=_Written(parameter.annotation))
    return parameter


class _Written:
    """An annotation that is shown as it is written."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.__module__ = "builtins"

    def __repr__(self) -> str:
        return self._text


def _long_signature(signature: inspect.Signature, parameters: list[inspect.Parameter]) -> str:
    lines = []
    starred = False
    for one in parameters:
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            lines.append("    *,")
        starred = starred or one.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        lines.append(f"    {one},")
    result = signature.return_annotation
    arrow = "" if result is inspect.Signature.empty else f" -> {result}"
    return "(\n" + "\n".join(lines) + f"\n){arrow}"


def _members(value: type) -> Iterator[str]:
    attributes = list(_attributes(value))
    if attributes:
        yield from ("| Attribute | Type | Description |", "|---|---|---|")
        yield from (f"| `{name}` | `{escaped(kind)}` | {escaped(text)} |" for name, kind, text in attributes)
        yield ""
    for name, member in _methods(value):
        documentation = inspect.getdoc(member)
        if not documentation:
            raise LookupError(f"{value.__name__}.{name} has no docstring")
        yield from (f"### {value.__name__}.{name}", "", "```python", f"{name}{_signature(member)}", "```", "")
        yield from _prose(documentation)
        yield from _keywords(member)


def _keywords(member: Callable[..., Any]) -> Iterator[str]:
    """Yield the table of the keyword arguments that a method declares with `Unpack`."""
    for parameter in inspect.signature(member).parameters.values():
        found = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if found:
            keywords = getattr(inspect.getmodule(member), found[1])
            yield from ("| Keyword | Type | Description |", "|---|---|---|")
            yield from (
                f"| `{name}` | `{escaped(kind)}` | {escaped(text)} |"
                for name, kind, text in _all_of(keywords)
            )
            yield ""


def _all_of(keywords: type) -> Iterator[tuple[str, str, str]]:
    """Yield the keys of a TypedDict. Its bases are only in the source, because they are not in its `__mro__`."""
    for base in _class_tree(keywords).bases:
        if isinstance(base, ast.Name) and base.id != "TypedDict":
            yield from _all_of(getattr(inspect.getmodule(keywords), base.id))
    yield from _attributes_of(keywords)


def _own_classes(value: type) -> list[type]:
    return [base for base in value.__mro__ if base.__module__.startswith("breadcrumbs.")]


def _methods(value: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    if issubclass(value, BaseException):
        return
    seen = set()
    for base in _own_classes(value):
        for name, member in vars(base).items():
            if not name.startswith("_") and name not in seen and isinstance(member, types.FunctionType):
                seen.add(name)
                yield name, member


def _attributes(value: type) -> Iterator[tuple[str, str, str]]:
    """Yield the annotated attributes and the properties of a class with the string below each of them."""
    seen = set()
    for base in _own_classes(value):
        for found in _attributes_of(base):
            if found[0] not in seen:
                seen.add(found[0])
                yield found


def _attributes_of(value: type) -> Iterator[tuple[str, str, str]]:
    body = _class_tree(value).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        found = _attribute(statement, following)
        if found and not found[0].startswith("_"):
            yield found


def _class_tree(value: type) -> ast.ClassDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return tree


def _attribute(statement: ast.stmt, following: ast.stmt | None) -> tuple[str, str, str] | None:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = str(following.value.value)
        return statement.target.id, ast.unparse(statement.annotation), text
    if isinstance(statement, ast.FunctionDef) and "property" in map(ast.unparse, statement.decorator_list):
        result = ast.unparse(statement.returns) if statement.returns else ""
        return statement.name, result, ast.get_docstring(statement) or ""
    return None


# --- Metrics ---------------------------------------------------------------------------------------------


def metrics_page() -> str:
    sections = [
        ("HTTP requests", "Only the API has these metrics.", [*Metrics().collect()], HTTP_LABELS),
        ("Processes", "Every process has these metrics.", _of_registry(metrics.REGISTRY), _labels()),
        (
            "The store",
            "Only the API has these values. It reads them at a scrape, at most every five seconds, and leaves them out "
            "while the store is unavailable. They are equal in all API processes: use `max`, not `sum`.",
            _of_registry(metrics.STORE_REGISTRY),
            _labels(),
        ),
    ]
    lines = [
        "# Metrics", "", NOTE,
        "Metrics in the Prometheus text format, at `/metrics` of the API. [Monitoring](../operations.md#monitoring)",
        "explains how to use them. Times are in seconds. A histogram has the series `_bucket`, `_sum` and `_count`.",
    ]  # fmt: skip
    for title, introduction, found, labels in sections:
        lines += ["", f"## {title}", "", introduction, ""]
        lines += ["| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
        for metric in found:
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            shown = ", ".join(f"`{label}`" for label in labels.get(metric.name, ())) or "–"
            lines.append(f"| `{name}` | {metric.type} | {shown} | {escaped(metric.documentation)} |")
    lines += [
        "", "Every process also has the metrics `process_…` of the Prometheus client: CPU time, memory, open files.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


HTTP_LABELS = dict.fromkeys(
    ("breadcrumbs_http_requests", "breadcrumbs_http_request_seconds"), ("method", "route", "status")
)


def _of_registry(registry: CollectorRegistry) -> list[Metric]:
    return [metric for metric in registry.collect() if metric.name.startswith("breadcrumbs_")]


def _labels() -> dict[str, tuple[str, ...]]:
    """Return the labels of the declared metrics by name."""
    return {
        next(iter(value.describe())).name: value._labelnames
        for value in vars(metrics).values()
        if isinstance(value, (MetricWrapperBase, CounterFamily, HistogramFamily))
    }


# --- Pages -----------------------------------------------------------------------------------------------

PAGES: dict[str, Callable[[], str]] = {
    "agent-definition.md": agent_definition,
    "context-config.md": context_config,
    "settings.md": settings,
    "cli.md": commands,
    "python-api.md": python_api,
    "metrics.md": metrics_page,
}


def finished(page: str) -> str:
    """Return a page without repeated empty lines."""
    return re.sub(r"\n{3,}", "\n\n", page)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the reference from the code.")
    parser.add_argument(
        "--check", action="store_true", help="only compare; exit with 1 if a page is outdated"
    )
    check = parser.parse_args().check
    outdated = []
    for name, make in PAGES.items():
        page = finished(make())
        file = REFERENCE / name
        if not file.is_file() or file.read_text("utf-8") != page:
            outdated.append(f"docs/reference/{name}")
            if not check:
                file.write_text(page, "utf-8")
    if check and outdated:
        print(f"outdated: {', '.join(outdated)}. Run: {UPDATE}", file=sys.stderr)
        return 1
    print("\n".join(f"written: {name}" for name in outdated) or "the reference agrees with the code")
    return 0


if __name__ == "__main__":
    sys.exit(main())
