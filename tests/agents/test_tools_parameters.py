"""Parameters of `@tool`: the JSON schema for the model, and the conversion of its arguments."""

from __future__ import annotations

import datetime
import functools
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, Optional
from uuid import UUID

import anyio
import orjson
import pytest
from pydantic import AfterValidator, BaseModel, Field
from typing_extensions import TypedDict

from breadcrumbs.agents.models.base import ToolSpec
from breadcrumbs.agents.tools import Tool, ToolContext, tool
from breadcrumbs.agents.tools.parameters import MAX_ARGUMENT_BYTES
from breadcrumbs.runtime.errors import InvalidInput
from tests.support.tools import CONTEXT, Colour, Level, Place


class Options(TypedDict):
    loud: bool
    times: NotRequired[int]


@dataclass
class Point:
    x: int
    y: int = 0


class Tree(BaseModel):
    name: str
    below: list[Tree] = []


def tool_with(annotation: Any, **default: Any) -> Tool:
    """Return a tool with one parameter `value` of this type. It returns the type and repr of its argument."""
    parameter = default.get("default", ...)

    def function(value: Any) -> str:
        return f"{type(value).__name__}: {value!r}"

    function.__annotations__["value"] = annotation
    if parameter is not ...:
        function.__defaults__ = (parameter,)
    return tool(function)


# --- The schema for the model --------------------------------------------------------------------------

SCHEMAS: list[tuple[Any, dict[str, Any]]] = [
    (int, {"type": "integer"}),
    (str, {"type": "string"}),
    (bool, {"type": "boolean"}),
    (float, {"type": "number"}),
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
    (
        tuple[int, str],
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "minItems": 2,
            "maxItems": 2,
        },
    ),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
    (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    (datetime.date, {"type": "string", "format": "date"}),
    (UUID, {"type": "string", "format": "uuid"}),
    (Any, {}),
    (
        Annotated[int, Field(ge=1, le=9, description="One digit")],
        {"type": "integer", "minimum": 1, "maximum": 9, "description": "One digit"},
    ),
    (Annotated[str, Field(pattern="^a", max_length=5)], {"type": "string", "pattern": "^a", "maxLength": 5}),
    (Annotated[str, Field(title="Noise", alias="other")], {"type": "string"}),
]


@pytest.mark.parametrize(("annotation", "expected"), SCHEMAS, ids=lambda value: str(value)[:40])
def test_the_type_of_a_parameter_becomes_its_json_schema(annotation: Any, expected: dict[str, Any]) -> None:
    assert tool_with(annotation).parameters == {
        "type": "object",
        "properties": {"value": expected},
        "required": ["value"],
        "additionalProperties": False,
    }


def test_models_enums_dataclasses_and_typed_dicts_become_definitions() -> None:
    @tool
    def order(
        place: Place, colour: Colour, level: Level, options: Options, point: Point, tree: Tree
    ) -> None: ...

    definitions = order.parameters["$defs"]
    assert definitions["Colour"] == {"type": "string", "enum": ["red", "blue"]}
    assert definitions["Level"] == {"type": "integer", "enum": [1, 2]}
    assert definitions["Place"] == {
        "type": "object",
        "description": "Position of the sign.",
        "properties": {
            "city": {"type": "string"},
            "title": {"type": "string", "default": "none", "description": "What it says on the sign"},
        },
        "required": ["city"],
    }
    assert definitions["Options"]["required"] == ["loud"]
    assert definitions["Point"]["required"] == ["x"]
    assert definitions["Tree"]["properties"]["below"]["items"] == {"$ref": "#/$defs/Tree"}
    assert order.parameters["properties"]["place"] == {"$ref": "#/$defs/Place"}


def test_defaults_are_shown_and_make_a_parameter_optional() -> None:
    @tool
    def search(
        words: str,
        limit: int = 10,
        since: datetime.date | None = None,
        tags: list[str] = Field(["a"], description="All of these"),  # noqa: B008
        *,
        exact: bool = False,
    ) -> None: ...

    assert search.parameters["required"] == ["words"]
    properties = search.parameters["properties"]
    assert properties["limit"] == {"type": "integer", "default": 10}
    assert properties["since"]["default"] is None
    assert properties["tags"]["default"] == ["a"]
    assert properties["tags"]["description"] == "All of these"
    assert properties["exact"]["default"] is False


def test_a_default_that_is_not_json_is_left_out_of_the_schema() -> None:
    nothing = object()
    made = tool_with(Any, default=nothing)
    assert made.parameters["properties"] == {"value": {}}
    assert "required" not in made.parameters


@pytest.mark.parametrize(
    "name", ["schema", "json", "copy", "model_config", "_hidden", "title", "arg_1", "validate"]
)
async def test_a_parameter_can_have_any_name(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def echo({name}: int, last: int = 2): return [{name}, last]", namespace)
    made = tool(namespace["echo"])
    assert list(made.parameters["properties"]) == [name, "last"]
    assert (await made.run({name: 7}, CONTEXT)).output == [7, 2]


def test_the_docstring_describes_the_tool_and_its_parameters_in_googles_style() -> None:
    @tool
    def weather(city: str, days: Annotated[int, Field(description="From the type")], unit: str = "C") -> str:
        """Tell the weather.

        It is always an estimate: never rely on it.

        Args:
            city (str): Where, such as
                Berlin: the capital.
            days: From the docstring.
            unit: C or F.

        Returns:
            One sentence.

        Raises:
            OSError: never shown.
        """
        return ""

    properties = weather.parameters["properties"]
    assert properties["city"]["description"] == "Where, such as Berlin: the capital."
    assert properties["days"]["description"] == "From the type"
    assert properties["unit"]["description"] == "C or F."
    assert weather.description == (
        "Tell the weather.\n\nIt is always an estimate: never rely on it.\n\nReturns:\n    One sentence."
    )


def test_the_docstring_describes_the_parameters_in_sphinx_style() -> None:
    @tool
    def weather(city: str, days: int) -> str:
        """Tell the weather.

        :param city: Where it
            rains.
        :param int days: How many.
        :returns: One sentence.
        :raises OSError: never shown.
        """
        return ""

    assert weather.description == "Tell the weather."
    assert weather.parameters["properties"]["city"]["description"] == "Where it rains."
    assert weather.parameters["properties"]["days"]["description"] == "How many."


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    @tool(name="ping", description="Answer.", timeout=2.5, return_to_llm=False)
    def whatever() -> str:
        return "pong"

    assert whatever.spec == ToolSpec(
        "ping", "Answer.", {"type": "object", "properties": {}, "additionalProperties": False}
    )
    assert (whatever.timeout, whatever.return_to_llm) == (2.5, False)
    assert whatever() == "pong"


def test_types_local_to_the_defining_function_are_resolved() -> None:
    class Local(BaseModel):
        number: int

    @tool
    def take(value: Local) -> None: ...

    assert take.parameters["$defs"]["Local"]["required"] == ["number"]


def test_an_unresolvable_return_type_is_ignored() -> None:
    @tool
    def make(value: int) -> NotThere:  # type: ignore[name-defined]  # noqa: F821
        return value

    assert list(make.parameters["properties"]) == ["value"]


def untyped(a, b: int):  # type: ignore[no-untyped-def]
    ...


def variadic(*values: int) -> None: ...


def keywords(**values: int) -> None: ...


def unknown_type(value: NotThere) -> None:  # type: ignore[name-defined]  # noqa: F821
    ...


def callback(value: Callable[[int], int]) -> None: ...


def an_object(value: threading.Lock) -> None: ...


def generator(value: int) -> Iterator[int]:
    yield value


async def async_generator(value: int) -> AsyncIterator[int]:
    yield value


class Holder:
    def method(self, value: int) -> int:
        return value

    def __call__(self, value: int) -> int:
        return value + 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (untyped, "parameter 'a' has no type: write, for example, `a: str`"),
        (variadic, "declare every parameter"),
        (keywords, "declare every parameter"),
        (unknown_type, "NotThere"),
        (callback, "a type cannot be described"),
        (an_object, "a type cannot be described"),
        (generator, "cannot be a generator"),
        (async_generator, "cannot be a generator"),
        (Holder.method, "parameter 'self' has no type"),
        (lambda: 1, "invalid tool name"),
    ],
)
def test_a_function_without_a_json_schema_is_refused_by_the_decorator(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        tool(function)
    assert message in caught.value.message


@pytest.mark.parametrize("name", ["", "a b", "a.b", "é", "x" * 65])
def test_a_name_that_model_apis_reject_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="invalid tool name"):
        tool(name=name)(Holder().method)


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan])
def test_an_invalid_time_limit_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidInput, match="timeout must be"):
        tool(timeout=timeout)(Holder().method)


# --- Arguments from the model --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (int, 3, "int: 3"),
        (int, "3", "int: 3"),  # many models put numbers in quotes
        (float, 3, "float: 3.0"),
        (list[int], [1, 2], "list: [1, 2]"),
        (tuple[int, ...], [1, 2], "tuple: (1, 2)"),
        (set[str], ["a"], "set: {'a'}"),
        (Colour, "red", "Colour: <Colour.RED: 'red'>"),
        (Literal["x"], "x", "str: 'x'"),
        (int | None, None, "NoneType: None"),
        (Place, {"city": "Ulm"}, "Place: Place(city='Ulm', title='none')"),
        (Point, {"x": 1}, "Point: Point(x=1, y=0)"),
        (datetime.date, "2026-11-16", "date: datetime.date(2026, 11, 16)"),
        (Decimal, "0.1", "Decimal: Decimal('0.1')"),
        (list[Place], [{"city": "Ulm", "title": "Hi"}], "list: [Place(city='Ulm', title='Hi')]"),
    ],
)
async def test_arguments_are_converted_to_the_annotated_types(
    annotation: Any, given: Any, expected: str
) -> None:
    made = tool_with(annotation)
    for arguments in ({"value": given}, orjson.dumps({"value": given}).decode()):
        result = await made.run(arguments, CONTEXT)
        assert (result.ok, result.output, result.error) == (True, expected, None)
        assert result.duration_ms >= 0


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


def _explodes(value: int) -> int:
    raise RuntimeError("in the validator")


@pytest.mark.parametrize(
    ("annotation", "arguments", "message"),
    [
        (int, "not json", "the arguments are not valid JSON"),
        (int, '{"value": 1', "the arguments are not valid JSON"),
        (int, '{"value": NaN}', "the arguments are not valid JSON"),
        (int, '"{}"', "must be one JSON object"),
        (int, "[1]", "must be one JSON object"),
        (int, "1", "must be one JSON object"),
        (int, '{"value": "\ud800"}', "the arguments are not JSON"),
        (int, {"value": {1, 2}}, "the arguments are not JSON"),
        (int, "", "'value' is missing"),
        (int, "null", "'value' is missing"),
        (int, "{}", "'value' is missing"),
        (int, {"value": "many"}, "'value': input should be a valid integer"),
        (int, {"value": None}, "'value': input should be a valid integer"),
        (int, {"value": 1.5}, "'value': input should be a valid integer"),
        (int, {"value": 1, "other": 2}, "unknown argument 'other'"),
        (int, {"value": 1, "arg_0": 2}, "unknown argument 'arg_0'"),
        (int, '{"value": 99999999999999999999999}', "does not fit into 64 bits"),
        (str, {"value": 3}, "'value': input should be a valid string"),
        (list[int], {"value": [1, "x"]}, "'value.1': input should be a valid integer"),
        (Colour, {"value": "green"}, "'red' or 'blue'"),
        (Literal["a", "b"], {"value": "c"}, "'a' or 'b'"),
        (Place, {"value": {}}, "'value.city' is missing"),
        (Annotated[int, Field(le=3)], {"value": 4}, "less than or equal to 3"),
        (Annotated[int, AfterValidator(_even)], {"value": 3}, "must be even"),
        (Annotated[int, AfterValidator(_explodes)], {"value": 3}, "RuntimeError: in the validator"),
        (str, {"value": "x" * MAX_ARGUMENT_BYTES}, "bytes, the limit is"),
        (Any, '{"value": ' + "[" * 100 + "]" * 100 + "}", "nests deeper"),
        (Any, "{" * 5000, "not valid JSON"),
    ],
)
async def test_invalid_arguments_are_explained_to_the_model_in_one_sentence(
    annotation: Any, arguments: Any, message: str
) -> None:
    called = False

    def function(value: Any) -> None:
        nonlocal called
        called = True

    function.__annotations__["value"] = annotation
    result = await tool(function).run(arguments, CONTEXT)
    assert (result.ok, result.output, called) == (False, None, False)
    assert result.error is not None
    assert message in result.error
    assert "\n" not in result.error
    assert len(result.error) < 1000
    if "RuntimeError" not in message:
        assert 'expected {"value": ' in result.error


async def test_an_argument_error_contains_the_expected_arguments() -> None:
    @tool
    def order(what: str, colour: Colour, where: Place, sizes: list[int], note: str | None = None) -> None: ...

    error = (await order.run({}, CONTEXT)).error or ""
    assert (
        'expected {"what": string, "colour": "red" or "blue", "where": {"city": string, "title": string}, '
        '"sizes": [integer, …], "note": string or null (optional)}'
    ) in error
    nothing = await tool(name="nothing")(lambda: 1).run({"a": 1}, CONTEXT)
    assert nothing.error == "nothing: unknown argument 'a'; expected no arguments: {}"


async def test_a_tool_without_parameters_can_be_called_without_arguments() -> None:
    ping = tool(name="ping")(lambda: "pong")
    nothing: list[str | dict[str, Any]] = ["", "  ", "{}", "null", {}]
    for arguments in nothing:
        assert (await ping.run(arguments, CONTEXT)).output == "pong"


async def test_the_context_is_injected_and_hidden_from_the_model() -> None:
    @tool
    async def who(turn: ToolContext, name: str, same: ToolContext | None = None) -> list[Any]:
        return [turn.session_id, turn.agent_id, turn.trigger_id, name, same is turn]

    assert list(who.parameters["properties"]) == ["name"]
    assert (await who.run({"name": "Ada"}, CONTEXT)).output == ["abc", "assistant", "trigger-1", "Ada", True]
    forged = await who.run({"name": "Ada", "turn": {"session_id": "other"}}, CONTEXT)
    assert forged.error is not None
    assert "unknown argument 'turn'" in forged.error


async def test_any_kind_of_callable_can_be_a_tool() -> None:
    async def coroutine(value: int) -> int:
        await anyio.sleep(0.001)
        return value

    def hands_out_a_coroutine(value: int) -> Any:
        return coroutine(value)

    def positional(value: int, /, more: int = 1) -> int:
        return value * more

    def raised_by(amount: int, value: int) -> int:
        return value + amount

    cases: list[tuple[Tool, int]] = [
        (tool(coroutine), 5),
        (tool(hands_out_a_coroutine), 5),
        (tool(positional), 5),
        (tool(name="partial")(functools.partial(raised_by, 10)), 15),
        (tool(Holder().method), 5),
        (tool(name="object")(Holder()), 6),
    ]
    for made, expected in cases:
        result = await made.run('{"value": 5}', CONTEXT)
        assert (result.output, result.error) == (expected, None), made


async def test_a_mutable_default_is_fresh_for_every_call() -> None:
    @tool
    def collect(item: str, into: list[str] = []) -> list[str]:  # noqa: B006
        into.append(item)
        return into

    assert (await collect.run({"item": "a"}, CONTEXT)).output == ["a"]
    assert (await collect.run({"item": "b"}, CONTEXT)).output == ["b"]
