"""Selectors: which breadcrumbs somebody wants to hear about or list. RCRT's wire form, plus `session_id`.

Every condition must hold; only `any_tags` is an OR, inside itself. A tag is compared as it is written: `*`
and `:` stand for themselves, so no selector can reach further than what it names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol
from uuid import UUID

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from breadcrumbs.runtime.errors import Complaint, InvalidInput
from breadcrumbs.runtime.jsonpath import compile_path

__all__ = ["ContextMatch", "Matchable", "Op", "Selector", "json_equal", "parse_selector"]

MAX_TAGS = 64
MAX_TAG_LENGTH = 256
MAX_CONTEXT_MATCHES = 32
MAX_CHOICES = 64
MAX_COMPLAINTS = 20

Op = Literal["eq", "ne", "gt", "lt", "gte", "lte", "contains", "contains_any"]


class Matchable(Protocol):
    """What a selector looks at. A breadcrumb is one; so is anything else with these attributes."""

    @property
    def owner_id(self) -> UUID: ...
    @property
    def schema_name(self) -> str | None: ...
    @property
    def session_id(self) -> str | None: ...
    @property
    def tags(self) -> Sequence[str]: ...
    @property
    def visibility(self) -> str: ...
    @property
    def sensitivity(self) -> str: ...
    @property
    def context(self) -> Mapping[str, Any]: ...


def _check_path(path: str) -> str:
    try:
        compile_path(path)
    except InvalidInput as error:
        # A custom error, because pydantic would put "Value error, " before a plain one.
        raise PydanticCustomError("json_path", "{why}", {"why": error.message}) from None
    return path


class ContextMatch(BaseModel):
    """One condition on the body: the values at `path`, compared with `value`.

    A path that leads nowhere satisfies only `ne`. If it leads to several values, one that matches is enough;
    for `ne`, none of them may be equal. Order is defined between two numbers and between two strings.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[str, AfterValidator(_check_path)]
    op: Op
    value: Any

    @field_validator("value")
    @classmethod
    def _choices_are_a_short_list(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("op") == "contains_any" and not (
            isinstance(value, list) and len(value) <= MAX_CHOICES
        ):
            raise PydanticCustomError("choices", f"contains_any needs a list of at most {MAX_CHOICES} values")
        return value

    def matches(self, context: Mapping[str, Any]) -> bool:
        """Whether the body satisfies this condition."""
        found, complete = compile_path(self.path).search(context)
        if self.op == "ne":
            # "None of them" cannot be claimed of a document that was not looked at to its end.
            return complete and not any(json_equal(value, self.value) for value in found)
        test = _TESTS[self.op]
        return any(test(value, self.value) for value in found)


_Tag = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TAG_LENGTH)]
_Tags = Annotated[tuple[_Tag, ...], Field(max_length=MAX_TAGS)]
_Level = Annotated[str, StringConstraints(min_length=1, max_length=64, to_lower=True)]
_Levels = Annotated[tuple[_Level, ...], Field(max_length=16)]


class Selector(BaseModel):
    """A set of conditions that must all hold. Without any it matches everything.

    null and an empty list mean that the condition is absent: RCRT's clients send empty lists for filters
    that nobody filled in. An empty string is refused, for it would be a filter that somebody lost.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_name: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    any_tags: _Tags | None = None
    all_tags: _Tags | None = None
    session_id: Annotated[str, StringConstraints(min_length=1, max_length=MAX_TAG_LENGTH)] | None = None
    owner_id: UUID | None = None
    visibility_in: _Levels | None = None
    sensitivity_in: _Levels | None = None
    context_match: Annotated[tuple[ContextMatch, ...], Field(max_length=MAX_CONTEXT_MATCHES)] | None = None

    @field_validator("any_tags", "all_tags", "visibility_in", "sensitivity_in", "context_match")
    @classmethod
    def _empty_is_absent(cls, value: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        return value or None

    @property
    def is_empty(self) -> bool:
        """Whether there is no condition at all."""
        # A kind of selector may have fields of its own; these are the conditions.
        return all(getattr(self, name) is None for name in Selector.model_fields)

    @property
    def needs_context(self) -> bool:
        """Whether `matches_meta` alone cannot decide, so that the breadcrumb itself must be looked at.

        True also for owner, visibility and sensitivity: a caller who skips the rest must not skip those.
        """
        return any((self.context_match, self.owner_id, self.visibility_in, self.sensitivity_in))

    def matches_meta(self, schema_name: str | None, tags: Collection[str], session_id: str | None) -> bool:
        """Whether schema, tags and session match: cheap, and final unless `needs_context`."""
        if self.schema_name is not None and self.schema_name != schema_name:
            return False
        if self.session_id is not None and self.session_id != session_id:
            return False
        if self.all_tags is not None and not all(tag in tags for tag in self.all_tags):
            return False
        return self.any_tags is None or any(tag in tags for tag in self.any_tags)

    def matches(self, view: Matchable) -> bool:
        """Whether every condition holds."""
        return (
            self.matches_meta(view.schema_name, view.tags, view.session_id)
            and (self.owner_id is None or self.owner_id == view.owner_id)
            and (self.visibility_in is None or view.visibility in self.visibility_in)
            and (self.sensitivity_in is None or view.sensitivity in self.sensitivity_in)
            and all(condition.matches(view.context) for condition in self.context_match or ())
        )


def json_equal(left: Any, right: Any) -> bool:
    """Deep equality as JSON sees it: 1 equals 1.0, but true is not 1."""
    # Not recursive, so that a deeply nested document cannot exhaust the stack.
    pairs = [(left, right)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if a.keys() != b.keys():
                return False
            pairs.extend((value, b[key]) for key, value in a.items())
        elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
            if len(a) != len(b):
                return False
            pairs.extend(zip(a, b, strict=True))
        elif isinstance(a, bool) is not isinstance(b, bool) or a != b:
            return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def test(found: Any, value: Any) -> bool:
        comparable = (isinstance(found, str) and isinstance(value, str)) or (
            _is_number(found) and _is_number(value)
        )
        return comparable and compare(found, value)

    return test


def _contains(found: Any, value: Any) -> bool:
    if isinstance(found, list | tuple):
        return any(json_equal(element, value) for element in found)
    return isinstance(found, str | Mapping) and isinstance(value, str) and value in found


def _contains_any(found: Any, value: Any) -> bool:
    return isinstance(value, list) and any(_contains(found, choice) for choice in value)


_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": json_equal,
    "gt": _ordered(operator.gt),
    "lt": _ordered(operator.lt),
    "gte": _ordered(operator.ge),
    "lte": _ordered(operator.le),
    "contains": _contains,
    "contains_any": _contains_any,
}


def parse_selector(raw: bytes | str | dict[str, Any]) -> Selector:
    """Read a selector from JSON or a parsed object. Raises InvalidInput that names each bad field."""
    data: Any = raw
    if isinstance(raw, bytes | str):
        try:
            data = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"the selector is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidInput('a selector is a JSON object such as {"any_tags": ["user:message"]}')
    try:
        return Selector.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        complaints = [_complaint(detail) for detail in details[:MAX_COMPLAINTS]]
    first = complaints[0]
    raise InvalidInput(f"bad selector: {first.where}: {first.message}", complaints=complaints)


def _complaint(detail: ErrorDetails) -> Complaint:
    where = ""
    for part in detail["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part[:64]}"
    if detail["type"] == "extra_forbidden":
        model = ContextMatch if len(detail["loc"]) > 1 else Selector
        return Complaint(where[1:], f"unknown field; the known ones are {', '.join(model.model_fields)}")
    # The fields are tuples so that a selector is immutable; who sent JSON knows them as lists.
    return Complaint(where[1:], detail["msg"].replace("Tuple", "List").replace("tuple", "list"))
