"""Make a JSON Schema from the signature of a function, and arguments from the text of a model.

The signature is read once, when the function becomes a tool. A parameter that cannot be described to a model (without
a type, `*args`, a type that JSON cannot carry) is an error then, not in the middle of a turn.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from textwrap import dedent
from types import SimpleNamespace
from typing import Annotated, Any, Final, cast, get_args, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from breadcrumbs.runtime.breadcrumb.json_input import parse_json
from breadcrumbs.runtime.breadcrumb.validation import validation_details
from breadcrumbs.runtime.errors import InvalidInput

MAX_ARGUMENT_BYTES: Final = 64 * 1024
MAX_COMPLAINTS: Final = 4

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """The arguments for a function, without the injected ones."""

    positional: tuple[Any, ...]
    named: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolParameters:
    """The parameters of a tool."""

    schema: dict[str, Any]
    injected: tuple[str, ...]
    """Parameters that the runtime fills in and that no model knows of."""
    description: str
    """The docstring, without what it says about single parameters."""
    _model: type[BaseModel]
    _fields: tuple[tuple[str, str, bool], ...]
    """Parameter, field of the model, passed by position."""

    def read(self, arguments: str | Mapping[str, Any]) -> ToolArguments:
        """Check the arguments that a model wrote. Raises InvalidInput that says what is expected."""
        try:
            given = self._model.model_validate_json(_parse_object(arguments))
        except ValidationError as error:
            raise InvalidInput(f"{_validation_text(error)}; expected {self.description_text}") from None
        except InvalidInput as error:
            raise InvalidInput(f"{error.message}; expected {self.description_text}") from None
        positional = tuple(getattr(given, field) for _, field, by_position in self._fields if by_position)
        named = {name: getattr(given, field) for name, field, by_position in self._fields if not by_position}
        return ToolArguments(positional, named)

    @property
    def description_text(self) -> str:
        """`{"a": integer, "b": string or null (optional)}`"""
        required = self.schema.get("required", ())
        parts = [
            f'"{name}": {_describe_type(part, self.schema)}{"" if name in required else " (optional)"}'
            for name, part in self.schema["properties"].items()
        ]
        return "{" + ", ".join(parts) + "}" if parts else "no arguments: {}"


def read_parameters(
    function: Callable[..., Any], *, injected: type, local_names: Mapping[str, Any] | None = None
) -> ToolParameters:
    """Read a signature. `injected` is the type of parameters that are left out of the schema."""
    label = getattr(function, "__qualname__", repr(function))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{label} has no signature that can be read: wrap it in a typed function"
        ) from None
    hints = _type_hints(function, signature, label, local_names)
    description, about = _parse_docstring(inspect.getdoc(function) or "")
    context_names: list[str] = []
    fields: list[tuple[str, str, bool]] = []
    definitions: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind in _VARIADIC:
            raise InvalidInput(
                f"{label}: {parameter} cannot be described to a model: name every parameter, with a type",
                where=name,
            )
        if name not in hints:
            raise InvalidInput(
                f"{label}: parameter {name!r} has no type: write for example `{name}: str`", where=name
            )
        by_position = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        if _is_injected(hints[name], injected):
            if by_position:
                raise InvalidInput(
                    f"{label}: parameter {name!r} is filled in by name: put it after the `/`", where=name
                )
            context_names.append(name)
            continue
        # Numbered fields behind aliases: a parameter may be called `schema` or `json`, a field may not.
        field = f"arg_{len(fields)}"
        fields.append((name, field, by_position))
        definitions[field] = _field_definition(hints[name], parameter, name)
    try:
        config = ConfigDict(extra="forbid")
        model = cast("type[BaseModel]", create_model("Arguments", __config__=config, **definitions))
        schema = model.model_json_schema(schema_generator=_SchemaGenerator)
    except (PydanticUserError, TypeError, NameError) as error:
        first_line = str(error).partition("\n")[0]
        raise InvalidInput(f"{label}: a type cannot be described to a model: {first_line}") from None
    schema = _without_titles(schema)
    schema.setdefault("properties", {})
    for name, part in schema["properties"].items():
        if name in about:
            part.setdefault("description", about[name])
    return ToolParameters(schema, tuple(context_names), description, model, tuple(fields))


def _type_hints(
    function: Callable[..., Any],
    signature: inspect.Signature,
    label: str,
    local_names: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The types of the parameters. The result's may name what only type checkers see, so it is left alone."""
    target = inspect.unwrap(function)
    while hasattr(target, "func"):  # functools.partial
        target = inspect.unwrap(target.func)
    known = getattr(target, "__globals__", None) or getattr(type(target).__call__, "__globals__", {})
    empty = inspect.Parameter.empty
    written = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if parameter.annotation is not empty
    }
    holder = SimpleNamespace(__annotations__=written)
    try:
        try:
            return get_type_hints(holder, known, include_extras=True)
        except NameError:  # a type that is local to the function that defines the tool
            return get_type_hints(holder, known, dict(local_names or {}), include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidInput(f"{label}: a type cannot be read: {error}") from None


def _is_injected(annotation: Any, injected: type) -> bool:
    return annotation is injected or any(_is_injected(part, injected) for part in get_args(annotation))


def _field_definition(annotation: Any, parameter: inspect.Parameter, name: str) -> tuple[Any, Any]:
    alias: Any = {"alias": name, "validation_alias": name}
    default = parameter.default
    if isinstance(default, FieldInfo):  # `limit: int = Field(10, ge=1)`, as pydantic lets one write it
        return Annotated[annotation, default], Field(**alias)
    if default is inspect.Parameter.empty:
        return annotation, Field(**alias)
    return annotation, Field(default, **alias)


class _SchemaGenerator(GenerateJsonSchema):
    # A default that JSON cannot show is left out of the schema; the parameter is optional all the same.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


_MAPS: Final = ("properties", "patternProperties", "$defs", "dependentSchemas")
_LISTS: Final = ("anyOf", "allOf", "oneOf", "prefixItems")
_ONE: Final = ("items", "additionalProperties", "contains", "not", "propertyNames", "if", "then", "else")


def _without_titles(schema: Any) -> Any:
    """pydantic titles everything after its name. A property or a default called `title` stays."""
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in schema.items() if key != "title"}
    for key in _MAPS:
        if key in plain:
            plain[key] = {name: _without_titles(part) for name, part in plain[key].items()}
    for key in _LISTS:
        if key in plain:
            plain[key] = [_without_titles(part) for part in plain[key]]
    for key in _ONE:
        if key in plain:
            plain[key] = _without_titles(plain[key])
    return plain


# --- Docstrings ----------------------------------------------------------------------------------------

_PARAMETERS = re.compile(r"(?:Args|Arguments|Parameters):[ \t]*(?:\n|$)")
_RAISES = re.compile(r"Raises:[ \t]*(?:\n|$)")
_SPHINX = re.compile(r":(\w+)([^:\n]*):(?:\s+|$)(.*)", re.DOTALL)
# An entry with its indented lines.
_GOOGLE = re.compile(r"^\*{0,2}(\w+)(?:[ \t]*\(.*?\))?:(.*(?:\n(?:[ \t].*)?)*)", re.MULTILINE)


def _parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description of a function and those of its parameters (Google's or Sphinx's style)."""
    description: list[str] = []
    parameters: dict[str, str] = {}
    # A block is an unindented line with the indented and empty lines below it.
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        if heading := _PARAMETERS.match(block):
            parameters |= _google_parameters(block[heading.end() :])
        elif field := _SPHINX.match(block):
            kind, words, said = field.groups()
            if kind == "param" and words.strip():
                parameters[words.split()[-1]] = _one_line(said)  # a type may stand before the name
        elif not _RAISES.match(block):
            description.append(block)
    return "".join(description).strip(), {name: said for name, said in parameters.items() if said}


def _google_parameters(body: str) -> dict[str, str]:
    return {entry[1]: _one_line(entry[2]) for entry in _GOOGLE.finditer(dedent(body))}


def _one_line(text: str) -> str:
    return " ".join(text.split())


# --- What a model wrote --------------------------------------------------------------------------------


def _parse_object(arguments: str | Mapping[str, Any]) -> bytes:
    """Return the bytes of one JSON object. Raises InvalidInput if it is too large or too deep."""
    try:
        raw = arguments.encode() if isinstance(arguments, str) else orjson.dumps(dict(arguments))
    except (UnicodeEncodeError, orjson.JSONEncodeError, TypeError, ValueError):
        raise InvalidInput("the arguments are not JSON") from None
    if len(raw) > MAX_ARGUMENT_BYTES:
        raise InvalidInput(f"the arguments have {len(raw):,} bytes, at most {MAX_ARGUMENT_BYTES:,} are taken")
    if not raw.strip():
        return b"{}"  # how some models call a tool that takes nothing
    try:
        document = parse_json(raw)
    except InvalidInput as error:
        raise InvalidInput(error.message.replace("the body is", "the arguments are", 1)) from None
    if document is None:
        return b"{}"
    if not isinstance(document, dict):
        raise InvalidInput("the arguments must be one JSON object")
    return raw


def _validation_text(error: ValidationError) -> str:
    found = []
    details = list(validation_details(error))
    for detail in details[:MAX_COMPLAINTS]:
        # The parts that pydantic adds to tell the branches of a union apart are of no use to a model.
        where = ".".join(part for part in detail.path if "[" not in part)
        match detail.kind:
            case "extra_forbidden":
                found.append(f"there is no argument {where!r}")
            case "missing":
                found.append(f"{where!r} is missing")
            case _:
                message = detail.message
                found.append(f"{where!r}: {message[:1].lower()}{message[1:]}" if where else message)
    if len(details) > MAX_COMPLAINTS:
        found.append(f"and {len(details) - MAX_COMPLAINTS} more")
    return "; ".join(found)


def _describe_type(part: Any, root: dict[str, Any], nesting: int = 0) -> str:
    if not isinstance(part, dict) or nesting > 3:
        return "…"
    if "$ref" in part:
        name = part["$ref"].removeprefix("#/$defs/")
        return _describe_type(root["$defs"].get(name), root, nesting + 1)
    if "enum" in part or "const" in part:
        values = part.get("enum", [part.get("const")])
        return " or ".join(orjson.dumps(value).decode() for value in values[:20])
    for union in ("anyOf", "oneOf"):
        if union in part:
            return " or ".join(dict.fromkeys(_describe_type(branch, root, nesting) for branch in part[union]))
    match part.get("type"):
        case "array":
            inner = _describe_type(part["items"], root, nesting + 1) if "items" in part else "anything"
            return f"[{inner}, …]"
        case "object" if part.get("properties"):
            inside = (
                f'"{name}": {_describe_type(below, root, nesting + 1)}'
                for name, below in part["properties"].items()
            )
            return "{" + ", ".join(inside) + "}"
        case "string":
            return str(part.get("format", "string"))
        case None:
            return "anything"
        case kind:
            return str(kind)
