"""Make a JSON Schema from a tool's signature, and validate arguments against it.

The signature is read once, when the function becomes a tool. A parameter that cannot be described to a model raises
an error then, not during a turn. Examples are a parameter without a type, `*args`, and a type without a JSON form.
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
    """Parameters that the runtime sets. They are not in the schema."""
    description: str
    """The docstring, without the descriptions of parameters."""
    _model: type[BaseModel]
    _fields: tuple[tuple[str, str, bool], ...]
    """Name of the parameter, field of the model, whether it is passed by position."""

    def read(self, arguments: str | Mapping[str, Any]) -> ToolArguments:
        """Validate the arguments that a model wrote. Raises InvalidInput with the expected parameters."""
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
        """The parameters as a model reads them, such as `{"a": integer, "b": string or null (optional)}`."""
        required = self.schema.get("required", ())
        parts = [
            f'"{name}": {_describe_type(part, self.schema)}{"" if name in required else " (optional)"}'
            for name, part in self.schema["properties"].items()
        ]
        return "{" + ", ".join(parts) + "}" if parts else "no arguments: {}"


def read_parameters(
    function: Callable[..., Any], *, injected: type, local_names: Mapping[str, Any] | None = None
) -> ToolParameters:
    """Read the parameters of a function. Parameters of the type `injected` are left out of the schema."""
    label = getattr(function, "__qualname__", repr(function))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise InvalidInput(f"the signature of {label} cannot be read: wrap it in a typed function") from None
    hints = _type_hints(function, signature, label, local_names)
    description, about = _parse_docstring(inspect.getdoc(function) or "")
    context_names: list[str] = []
    fields: list[tuple[str, str, bool]] = []
    definitions: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind in _VARIADIC:
            raise InvalidInput(
                f"{label}: {parameter} cannot be described to a model: declare every parameter with a type",
                where=name,
            )
        if name not in hints:
            raise InvalidInput(
                f"{label}: parameter {name!r} has no type: write, for example, `{name}: str`", where=name
            )
        by_position = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        if _is_injected(hints[name], injected):
            if by_position:
                raise InvalidInput(
                    f"{label}: parameter {name!r} is passed by name: put it after the `/`", where=name
                )
            context_names.append(name)
            continue
        # Numbered fields with aliases: a parameter can have the name `schema` or `json`, a field cannot.
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
    """Return the types of the parameters.

    The type of the result is not evaluated, because it can use names that only type checkers see.
    """
    target = inspect.unwrap(function)
    while hasattr(target, "func"):  # functools.partial
        target = inspect.unwrap(target.func)
    global_names = getattr(target, "__globals__", None) or getattr(type(target).__call__, "__globals__", {})
    empty = inspect.Parameter.empty
    written = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if parameter.annotation is not empty
    }
    annotated = SimpleNamespace(__annotations__=written)
    try:
        try:
            return get_type_hints(annotated, global_names, include_extras=True)
        except NameError:  # a type that is local to the function that defines the tool
            return get_type_hints(annotated, global_names, dict(local_names or {}), include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidInput(f"{label}: a type cannot be read: {error}") from None


def _is_injected(annotation: Any, injected: type) -> bool:
    return annotation is injected or any(_is_injected(part, injected) for part in get_args(annotation))


def _field_definition(annotation: Any, parameter: inspect.Parameter, name: str) -> tuple[Any, Any]:
    alias: Any = {"alias": name, "validation_alias": name}
    default = parameter.default
    if isinstance(default, FieldInfo):  # `limit: int = Field(10, ge=1)`
        return Annotated[annotation, default], Field(**alias)
    if default is inspect.Parameter.empty:
        return annotation, Field(**alias)
    return annotation, Field(default, **alias)


class _SchemaGenerator(GenerateJsonSchema):
    # A default without a JSON form is left out of the schema. The parameter is still optional.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


# Keywords of JSON Schema, by the form of their values.
_MAPS: Final = ("properties", "patternProperties", "$defs", "dependentSchemas")
_LISTS: Final = ("anyOf", "allOf", "oneOf", "prefixItems")
_ONE: Final = ("items", "additionalProperties", "contains", "not", "propertyNames", "if", "then", "else")


def _without_titles(schema: Any) -> Any:
    """Remove the titles that pydantic generates. Properties and default values named `title` are kept."""
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
    """Return the description of a function and of its parameters (Google or Sphinx style)."""
    description: list[str] = []
    parameters: dict[str, str] = {}
    # A block is an unindented line with the indented and empty lines below it.
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        if heading := _PARAMETERS.match(block):
            parameters |= _google_parameters(block[heading.end() :])
        elif field := _SPHINX.match(block):
            kind, words, field_text = field.groups()
            if kind == "param" and words.strip():
                parameters[words.split()[-1]] = _one_line(field_text)  # a type can come before the name
        elif not _RAISES.match(block):
            description.append(block)
    return "".join(description).strip(), {
        name: field_text for name, field_text in parameters.items() if field_text
    }


def _google_parameters(body: str) -> dict[str, str]:
    return {entry[1]: _one_line(entry[2]) for entry in _GOOGLE.finditer(dedent(body))}


def _one_line(text: str) -> str:
    return " ".join(text.split())


# --- Arguments -----------------------------------------------------------------------------------------


def _parse_object(arguments: str | Mapping[str, Any]) -> bytes:
    """Return the arguments as the bytes of a JSON object. Raises InvalidInput if they are too large or too deep."""
    try:
        raw = arguments.encode() if isinstance(arguments, str) else orjson.dumps(dict(arguments))
    except (UnicodeEncodeError, orjson.JSONEncodeError, TypeError, ValueError):
        raise InvalidInput("the arguments are not JSON") from None
    if len(raw) > MAX_ARGUMENT_BYTES:
        raise InvalidInput(f"the arguments have {len(raw):,} bytes, the limit is {MAX_ARGUMENT_BYTES:,}")
    if not raw.strip():
        return b"{}"  # some models call a tool without parameters like this
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
        # Leave out the parts that pydantic adds for the branches of a union.
        where = ".".join(part for part in detail.path if "[" not in part)
        match detail.kind:
            case "extra_forbidden":
                found.append(f"unknown argument {where!r}")
            case "missing":
                found.append(f"{where!r} is missing")
            case _:
                message = detail.message
                found.append(f"{where!r}: {message[:1].lower()}{message[1:]}" if where else message)
    if len(details) > MAX_COMPLAINTS:
        found.append(f"and {len(details) - MAX_COMPLAINTS} more")
    return "; ".join(found)


def _describe_type(part: Any, root: dict[str, Any], nesting: int = 0) -> str:
    """Return a JSON Schema as a short type, such as `[integer, …]`."""
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
