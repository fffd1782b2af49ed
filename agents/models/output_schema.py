"""JSON Schemas of structured answers: checked when a definition is loaded, and used to check answers.

A definition can come from a client. So a schema has a limited size, refers to no other documents, and its patterns are
matched in linear time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jsonschema_rs import ValidationError, Validator

MAX_SCHEMA_BYTES: Final = 64 << 10
_MAX_DEPTH: Final = 32
_MAX_PATTERN_BYTES: Final = 1 << 20
MAX_COMPLAINTS: Final = 8
"""Maximum number of problems of an answer that are named."""
_MAX_COMPLAINT_CHARACTERS: Final = 300


def _from_model(value: Any) -> Any:
    """Accept a pydantic model in Python code."""
    is_model = isinstance(value, type) and issubclass(value, BaseModel)
    return value.model_json_schema() if is_model else value


def _check(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type") != "object":
        raise PydanticCustomError(
            "schema", 'the schema needs "type": "object": providers accept no other answers'
        )
    if _depth(schema) > _MAX_DEPTH:
        raise PydanticCustomError("schema", f"the schema is nested deeper than {_MAX_DEPTH} levels")
    try:
        raw = orjson.dumps(schema)
    except TypeError as error:
        raise PydanticCustomError("schema", f"the schema is not JSON: {error}") from None
    if len(raw) > MAX_SCHEMA_BYTES:
        raise PydanticCustomError("schema", f"the schema has more than {MAX_SCHEMA_BYTES:,} bytes")
    _compile(raw)
    return schema


OutputSchema = Annotated[dict[str, Any], BeforeValidator(_from_model), AfterValidator(_check)]


def find_problems(schema: dict[str, Any], value: Any) -> list[str]:
    """Return how a value differs from a schema, each problem with its position. Empty: it matches."""
    problems: list[str] = []
    for error in _compile(orjson.dumps(schema)).iter_errors(value):
        if len(problems) == MAX_COMPLAINTS:
            problems.append("…")
            break
        problems.append(_described(error, "answer"))
    return problems


def is_strict(schema: Any) -> bool:
    """Return whether each object of a schema lists all its properties as required and permits no others.

    Only such a schema can be used with OpenAI's `strict` mode.
    """
    if isinstance(schema, list):
        return all(is_strict(one) for one in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        is_closed = schema.get("additionalProperties") is False
        if not (is_closed and isinstance(properties, dict) and set(required) == set(properties)):
            return False
        schema = {**schema, "properties": list(properties.values())}
    if isinstance(defs := schema.get("$defs"), dict):
        schema = {**schema, "$defs": list(defs.values())}
    return all(is_strict(value) for name, value in schema.items() if name not in ("enum", "const", "default"))


@lru_cache(maxsize=256)
def _compile(raw: bytes) -> Validator:
    # Imported here: most processes have no schema.
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(
            orjson.loads(raw),
            validate_formats=True,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN_BYTES),
            retriever=_refuse_document,
        )
    except jsonschema_rs.ValidationError as error:
        raise PydanticCustomError("schema", "{problem}", {"problem": _described(error, "")}) from None
    except ValueError as error:
        raise PydanticCustomError("schema", "{problem}", {"problem": str(error)[:300]}) from None


def _refuse_document(uri: str) -> Any:
    raise ValueError("a schema cannot refer to other documents")


def _described(error: ValidationError, root: str) -> str:
    path = _path(error.instance_path, root)
    text = error.message[:_MAX_COMPLAINT_CHARACTERS]
    return f"{path}: {text}" if path else text


def _path(parts: Sequence[str | int], root: str) -> str:
    path = root
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _depth(value: Any) -> int:
    """Return the depth of nested objects and lists, without recursion."""
    level, depth = [value], 0
    while level:
        children = [
            child
            for one in level
            for child in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
        ]
        depth += any(isinstance(one, dict | list) for one in level)
        if depth > _MAX_DEPTH:
            return depth
        level = [child for child in children if isinstance(child, dict | list)]
    return depth
