"""Selectors: conditions that choose breadcrumbs. The wire format is RCRT's, plus `session_id`.

All conditions must hold. For `any_tags` one of the tags is enough. Tags are compared literally, and `*` and `:` have no
special meaning. A selector therefore never matches more than it names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias
from uuid import UUID, uuid4

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from breadcrumbs.runtime.errors import Complaint, InvalidInput
from breadcrumbs.runtime.hints.jsonpath import JsonPath, OverBudget, SearchBudget, compile_path

__all__ = ["ContextMatch", "Matchable", "Op", "Selector", "json_equal", "parse_selector"]

MAX_TAGS = 64
MAX_TAG_LENGTH = 256
MAX_CONTEXT_MATCHES = 32
MAX_CHOICES = 64
MAX_COMPLAINTS = 20

_CHARACTERS_PER_UNIT: Final = 256  # comparing this many characters costs about as much as visiting one value

Op = Literal["eq", "ne", "gt", "lt", "gte", "lte", "contains", "contains_any"]


class Matchable(Protocol):
    """The attributes that a selector reads, for example those of a breadcrumb."""

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
    """One condition on the context: compares the values at `path` with `value`.

    If the path matches no value, only `ne` is satisfied. If it matches several values, one that satisfies the condition
    is enough. For `ne`, all of them must differ from `value`. `gt`, `lt`, `gte` and `lte` compare two numbers or two
    strings.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[str, AfterValidator(_check_path)]
    op: Op
    value: Any
    _compiled: JsonPath = PrivateAttr()
    _key: bytes = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._compiled = compile_path(self.path)
        try:
            self._key = orjson.dumps([self.path, self.op, self.value], option=orjson.OPT_SORT_KEYS)
        except TypeError:  # nested too deeply to encode: treat it as different from all other conditions
            self._key = uuid4().bytes

    @property
    def key(self) -> bytes:
        """Equal for conditions with equal path, operator and value."""
        return self._key

    @field_validator("value")
    @classmethod
    def _choices_are_a_short_list(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("op") == "contains_any" and not (
            isinstance(value, list) and len(value) <= MAX_CHOICES
        ):
            raise PydanticCustomError("choices", f"contains_any needs a list of at most {MAX_CHOICES} values")
        return value

    def matches(self, context: Mapping[str, Any]) -> bool:
        """Return whether the context satisfies this condition. False also if `decide` returns None."""
        return self.decide(context, SearchBudget()) is True

    def decide(self, context: Mapping[str, Any], budget: SearchBudget) -> bool | None:
        """Return whether the context satisfies this condition. None: the budget is too small to decide."""
        test = _TESTS["eq" if self.op == "ne" else self.op]
        try:
            for value in self._compiled.walk(context, budget):
                if test(value, self.value, budget):
                    return self.op != "ne"
        except OverBudget:
            return None
        return self.op == "ne"


_SelectorTag = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TAG_LENGTH)]
_SelectorTags = Annotated[tuple[_SelectorTag, ...], Field(max_length=MAX_TAGS)]
_Level = Annotated[str, StringConstraints(min_length=1, max_length=64, to_lower=True)]
_Levels = Annotated[tuple[_Level, ...], Field(max_length=16)]


class Selector(BaseModel):
    """Conditions that must all hold. A selector without conditions matches everything.

    null and an empty list mean that the condition is absent, because RCRT's clients send empty lists for unused
    filters. An empty string is refused, because it is probably a filter whose value was lost.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_name: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    any_tags: _SelectorTags | None = None
    all_tags: _SelectorTags | None = None
    session_id: Annotated[str, StringConstraints(min_length=1, max_length=MAX_TAG_LENGTH)] | None = None
    owner_id: UUID | None = None
    visibility_in: _Levels | None = None
    sensitivity_in: _Levels | None = None
    context_match: Annotated[tuple[ContextMatch, ...], Field(max_length=MAX_CONTEXT_MATCHES)] | None = None

    # Cached properties instead of private attributes: pydantic looks up private attributes by slow Python code.
    @cached_property
    def _required_tags(self) -> frozenset[str]:
        return frozenset(self.all_tags or ())

    @cached_property
    def _alternative_tags(self) -> frozenset[str]:
        return frozenset(self.any_tags or ())

    @field_validator("any_tags", "all_tags", "visibility_in", "sensitivity_in", "context_match")
    @classmethod
    def _empty_is_absent(cls, value: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        return value or None

    @property
    def is_empty(self) -> bool:
        """Whether the selector has no conditions."""
        # Subclasses can have other fields. Only the fields of this class are conditions.
        return all(getattr(self, name) is None for name in Selector.model_fields)

    @property
    def needs_context(self) -> bool:
        """Whether `matches_meta` cannot decide, so that the breadcrumb must be loaded.

        True also for conditions on owner, visibility and sensitivity, because `matches_meta` does not check them.
        """
        return any((self.context_match, self.owner_id, self.visibility_in, self.sensitivity_in))

    def matches_meta(self, schema_name: str | None, tags: Collection[str], session_id: str | None) -> bool:
        """Return whether schema, tags and session match. This is the final decision unless `needs_context`."""
        if self.schema_name is not None and self.schema_name != schema_name:
            return False
        if self.session_id is not None and self.session_id != session_id:
            return False
        if self.all_tags and not self._required_tags.issubset(tags):
            return False
        return not self.any_tags or not self._alternative_tags.isdisjoint(tags)

    def matches_header(self, view: Matchable) -> bool:
        """Return whether all conditions hold, except those on the context."""
        return (
            self.matches_meta(view.schema_name, view.tags, view.session_id)
            and (self.owner_id is None or self.owner_id == view.owner_id)
            and (self.visibility_in is None or view.visibility in self.visibility_in)
            and (self.sensitivity_in is None or view.sensitivity in self.sensitivity_in)
        )

    def matches(self, view: Matchable) -> bool:
        """Return whether all conditions hold."""
        return self.matches_header(view) and all(
            condition.matches(view.context) for condition in self.context_match or ()
        )


def json_equal(left: Any, right: Any, budget: SearchBudget | None = None) -> bool:
    """Compare two JSON values deeply. 1 equals 1.0, but true does not equal 1.

    Raises OverBudget if a budget is given and exceeded.
    """
    # Iterative, so that a deeply nested document cannot exhaust the stack.
    pairs = [(left, right)]
    while pairs:
        inner = _equal_pairs(*pairs.pop(), budget)
        if inner is None:
            return False
        pairs.extend(inner)
    return True


def _equal_pairs(a: Any, b: Any, budget: SearchBudget | None) -> Iterable[tuple[Any, Any]] | None:
    """Compare the outermost level of two values. Return the inner pairs left to compare, or None if they differ."""
    for kind, units in ((Mapping, 1), ((list, tuple), 1), (str, _CHARACTERS_PER_UNIT)):
        if isinstance(a, kind) and isinstance(b, kind):
            if len(a) != len(b):
                return None
            _charge(budget, len(a) // units)
            break
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return [(value, b[key]) for key, value in a.items()] if a.keys() == b.keys() else None
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return zip(a, b, strict=True)
    return () if isinstance(a, bool) is isinstance(b, bool) and a == b else None


def _charge(budget: SearchBudget | None, units: int) -> None:
    if budget is not None and units:
        budget.spend(units)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_Test: TypeAlias = Callable[[Any, Any, SearchBudget], bool]


def _order_test(compare: Callable[[Any, Any], bool]) -> _Test:
    def test(found: Any, value: Any, budget: SearchBudget) -> bool:
        if isinstance(found, str) and isinstance(value, str):
            _charge(budget, min(len(found), len(value)) // _CHARACTERS_PER_UNIT)
            return compare(found, value)
        return _is_number(found) and _is_number(value) and compare(found, value)

    return test


def _contains(found: Any, value: Any, budget: SearchBudget) -> bool:
    if isinstance(found, list | tuple):
        _charge(budget, len(found))
        return any(json_equal(element, value, budget) for element in found)
    if not isinstance(value, str):
        return False
    if isinstance(found, str):
        _charge(budget, len(found) // _CHARACTERS_PER_UNIT)
        return value in found
    return isinstance(found, Mapping) and value in found


def _contains_any(found: Any, value: Any, budget: SearchBudget) -> bool:
    return isinstance(value, list) and any(_contains(found, choice, budget) for choice in value)


_TESTS: Mapping[str, _Test] = {
    "eq": json_equal,
    "gt": _order_test(operator.gt),
    "lt": _order_test(operator.lt),
    "gte": _order_test(operator.ge),
    "lte": _order_test(operator.le),
    "contains": _contains,
    "contains_any": _contains_any,
}


def parse_selector(raw: bytes | str | dict[str, Any]) -> Selector:
    """Parse a selector from JSON or from a dict. Raises InvalidInput that names each invalid field."""
    data: Any = raw
    if isinstance(raw, bytes | str):
        try:
            data = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"the selector is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidInput('a selector must be a JSON object such as {"any_tags": ["user:message"]}')
    try:
        return Selector.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        complaints = [_selector_complaint(detail) for detail in details[:MAX_COMPLAINTS]]
    first = complaints[0]
    raise InvalidInput(f"invalid selector: {first.where}: {first.message}", complaints=complaints)


def _selector_complaint(detail: ErrorDetails) -> Complaint:
    where = ""
    for part in detail["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part[:64]}"
    if detail["type"] == "extra_forbidden":
        model = ContextMatch if len(detail["loc"]) > 1 else Selector
        return Complaint(where[1:], f"unknown field; use one of {', '.join(model.model_fields)}")
    # The fields are tuples, so that a selector is immutable. Clients send them as JSON lists.
    return Complaint(where[1:], detail["msg"].replace("Tuple", "List").replace("tuple", "list"))
