"""`@tool`, the toolbox and the loading of tools: what a model is told, and what becomes of what it writes."""

from __future__ import annotations

import asyncio
import datetime
import functools
import math
import subprocess
import sys
import textwrap
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional
from uuid import UUID

import anyio
import orjson
import pytest
from pydantic import AfterValidator, BaseModel, Field, SecretStr
from typing_extensions import TypedDict

from breadcrumbs.agents.models.base import ToolSpec
from breadcrumbs.agents.tools import Tool, Toolbox, ToolContext, load_tools, shipped_tools, tool
from breadcrumbs.agents.tools.base import MAX_THREADS
from breadcrumbs.agents.tools.output import MAX_OUTPUT_BYTES, as_json
from breadcrumbs.agents.tools.parameters import MAX_ARGUMENT_BYTES
from breadcrumbs.runtime.breadcrumb import BreadcrumbCreate, content_of
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.llm_view import apply_hints

CONTEXT = ToolContext(UUID(int=1), "abc", "assistant", "trigger-1", None)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Place(BaseModel):
    """Where it is."""

    city: str
    title: Annotated[str, Field(description="What it says on the sign")] = "none"


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


def takes(annotation: Any, **default: Any) -> Tool:
    """A tool with one parameter `value` of this type, which returns the type of what it was given."""
    parameter = default.get("default", ...)

    def function(value: Any) -> str:
        return f"{type(value).__name__}: {value!r}"

    function.__annotations__["value"] = annotation
    if parameter is not ...:
        function.__defaults__ = (parameter,)
    return tool(function)


# --- What a model is told ------------------------------------------------------------------------------

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
    assert takes(annotation).parameters == {
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
        "description": "Where it is.",
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


def test_a_default_that_is_no_json_is_left_out_of_the_schema() -> None:
    nothing = object()
    made = takes(Any, default=nothing)
    assert made.parameters["properties"] == {"value": {}}
    assert "required" not in made.parameters


@pytest.mark.parametrize(
    "name", ["schema", "json", "copy", "model_config", "_hidden", "title", "arg_1", "validate"]
)
async def test_a_parameter_may_have_any_name(name: str) -> None:
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


def test_types_that_are_local_to_the_defining_function_are_found() -> None:
    class Local(BaseModel):
        number: int

    @tool
    def take(value: Local) -> None: ...

    assert take.parameters["$defs"]["Local"]["required"] == ["number"]


def test_a_result_type_that_exists_for_type_checkers_only_does_no_harm() -> None:
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
    ("function", "told"),
    [
        (untyped, "parameter 'a' has no type: write for example `a: str`"),
        (variadic, "name every parameter"),
        (keywords, "name every parameter"),
        (unknown_type, "NotThere"),
        (callback, "a type cannot be described"),
        (an_object, "a type cannot be described"),
        (generator, "does not yield"),
        (async_generator, "does not yield"),
        (Holder.method, "parameter 'self' has no type"),
        (lambda: 1, "cannot be the name"),
    ],
)
def test_what_cannot_be_described_to_a_model_is_refused_when_it_becomes_a_tool(
    function: Callable[..., Any], told: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        tool(function)
    assert told in caught.value.message


@pytest.mark.parametrize("name", ["", "a b", "a.b", "é", "x" * 65])
def test_a_name_that_no_model_api_takes_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be the name"):
        tool(name=name)(Holder().method)


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan])
def test_a_time_limit_that_is_none_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidInput, match="time limit"):
        tool(timeout=timeout)(Holder().method)


# --- What becomes of what it writes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (int, 3, "int: 3"),
        (int, "3", "int: 3"),  # many models quote numbers
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
async def test_arguments_arrive_as_the_types_that_the_function_asks_for(
    annotation: Any, given: Any, expected: str
) -> None:
    made = takes(annotation)
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
    ("annotation", "arguments", "told"),
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
        (int, {"value": 1, "other": 2}, "there is no argument 'other'"),
        (int, {"value": 1, "arg_0": 2}, "there is no argument 'arg_0'"),
        (int, '{"value": 99999999999999999999999}', "does not fit into 64 bits"),
        (str, {"value": 3}, "'value': input should be a valid string"),
        (list[int], {"value": [1, "x"]}, "'value.1': input should be a valid integer"),
        (Colour, {"value": "green"}, "'red' or 'blue'"),
        (Literal["a", "b"], {"value": "c"}, "'a' or 'b'"),
        (Place, {"value": {}}, "'value.city' is missing"),
        (Annotated[int, Field(le=3)], {"value": 4}, "less than or equal to 3"),
        (Annotated[int, AfterValidator(_even)], {"value": 3}, "must be even"),
        (Annotated[int, AfterValidator(_explodes)], {"value": 3}, "RuntimeError: in the validator"),
        (str, {"value": "x" * MAX_ARGUMENT_BYTES}, "bytes, at most"),
        (Any, '{"value": ' + "[" * 100 + "]" * 100 + "}", "nests deeper"),
        (Any, "{" * 5000, "not valid JSON"),
    ],
)
async def test_wrong_arguments_come_back_as_one_sentence_that_a_model_can_act_on(
    annotation: Any, arguments: Any, told: str
) -> None:
    called = False

    def function(value: Any) -> None:
        nonlocal called
        called = True

    function.__annotations__["value"] = annotation
    result = await tool(function).run(arguments, CONTEXT)
    assert (result.ok, result.output, called) == (False, None, False)
    assert result.error is not None
    assert told in result.error
    assert "\n" not in result.error
    assert len(result.error) < 1000
    if "RuntimeError" not in told:
        assert 'expected {"value": ' in result.error


async def test_the_expectation_is_spelled_out() -> None:
    @tool
    def order(what: str, colour: Colour, where: Place, sizes: list[int], note: str | None = None) -> None: ...

    error = (await order.run({}, CONTEXT)).error or ""
    assert (
        'expected {"what": string, "colour": "red" or "blue", "where": {"city": string, "title": string}, '
        '"sizes": [integer, …], "note": string or null (optional)}'
    ) in error
    nothing = await tool(name="nothing")(lambda: 1).run({"a": 1}, CONTEXT)
    assert nothing.error == "nothing: there is no argument 'a'; expected no arguments: {}"


async def test_a_tool_that_takes_nothing_may_be_called_with_nothing() -> None:
    ping = tool(name="ping")(lambda: "pong")
    nothing: list[str | dict[str, Any]] = ["", "  ", "{}", "null", {}]
    for arguments in nothing:
        assert (await ping.run(arguments, CONTEXT)).output == "pong"


async def test_the_context_is_filled_in_and_unknown_to_the_model() -> None:
    @tool
    async def who(turn: ToolContext, name: str, same: ToolContext | None = None) -> list[Any]:
        return [turn.session_id, turn.agent_id, turn.trigger_id, name, same is turn]

    assert list(who.parameters["properties"]) == ["name"]
    assert (await who.run({"name": "Ada"}, CONTEXT)).output == ["abc", "assistant", "trigger-1", "Ada", True]
    forged = await who.run({"name": "Ada", "turn": {"session_id": "other"}}, CONTEXT)
    assert forged.error is not None
    assert "there is no argument 'turn'" in forged.error


async def test_functions_of_every_kind_can_be_tools() -> None:
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


async def test_a_default_that_a_call_changes_is_whole_again_in_the_next() -> None:
    @tool
    def collect(item: str, into: list[str] = []) -> list[str]:  # noqa: B006
        into.append(item)
        return into

    assert (await collect.run({"item": "a"}, CONTEXT)).output == ["a"]
    assert (await collect.run({"item": "b"}, CONTEXT)).output == ["b"]


# --- Tools that hang -----------------------------------------------------------------------------------


async def test_an_async_tool_that_hangs_is_stopped_at_its_time_limit() -> None:
    stopped = False

    @tool(timeout=0.05)
    async def hang() -> None:
        nonlocal stopped
        try:
            await anyio.sleep_forever()
        finally:
            stopped = True

    result = await hang.run("{}", CONTEXT)
    assert (result.ok, result.error) == (False, "hang: did not finish within 0.05 s")
    assert 45 < result.duration_ms < 5000
    assert stopped


async def test_an_async_tool_that_resists_being_stopped_is_late_all_the_same() -> None:
    @tool(timeout=0.05)
    async def answers_anyway() -> str:
        try:
            await anyio.sleep_forever()
        except BaseException:
            return "late"
        return ""

    @tool(timeout=0.05)
    async def complains() -> str:
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            raise RuntimeError("I was busy") from error
        return ""

    for made in (answers_anyway, complains):
        assert (await made.run({}, CONTEXT)).error == f"{made.name}: did not finish within 0.05 s"


async def test_a_sync_tool_that_hangs_holds_up_nobody() -> None:
    release = threading.Event()

    @tool(timeout=0.1)
    def hang() -> None:
        release.wait(30)

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.005)
            ticks += 1

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            result = await hang.run({}, CONTEXT)
            tasks.cancel_scope.cancel()
        assert result.error == "hang: did not finish within 0.1 s"
        assert ticks >= 3
    finally:
        release.set()


async def test_a_sync_tool_that_hangs_uses_up_its_own_threads_and_gets_them_back() -> None:
    release = threading.Event()
    before = threading.active_count()

    @tool(timeout=0.5)
    def hang(wait: bool) -> str:
        if wait:
            release.wait(30)
        return "done"

    @tool(timeout=20)
    def other() -> str:
        return "fine"

    async def call(results: list[str | None], arguments: dict[str, Any]) -> None:
        results.append((await hang.run(arguments, CONTEXT)).error)

    try:
        for _ in range(2):
            errors: list[str | None] = []
            async with anyio.create_task_group() as tasks:
                for _ in range(MAX_THREADS):
                    tasks.start_soon(call, errors, {"wait": True})
            assert errors == ["hang: did not finish within 0.5 s"] * MAX_THREADS
        assert threading.active_count() <= before + MAX_THREADS
        assert (await other.run({}, CONTEXT)).output == "fine"
        # Nothing of it can run while all of its threads hang.
        assert not (await hang.run({"wait": False}, CONTEXT)).ok
    finally:
        release.set()
    assert (await hang.run({"wait": False}, CONTEXT)).output == "done"


async def test_more_quick_calls_than_threads_all_get_their_turn() -> None:
    @tool
    def quick(number: int) -> int:
        time.sleep(0.001)
        return number

    outputs: list[int] = []

    async def call(number: int) -> None:
        outputs.append((await quick.run({"number": number}, CONTEXT)).output)

    async with anyio.create_task_group() as tasks:
        for number in range(3 * MAX_THREADS):
            tasks.start_soon(call, number)
    assert sorted(outputs) == list(range(3 * MAX_THREADS))


def test_a_tool_that_hangs_for_ever_does_not_keep_the_process_from_ending() -> None:
    program = """
        import asyncio, time
        from uuid import UUID
        from breadcrumbs.agents.tools import ToolContext, tool

        @tool(timeout=0.05)
        def hang() -> None:
            time.sleep(60)

        print(asyncio.run(hang.run({}, ToolContext(UUID(int=1), "s", "a", "t", None))).error)
    """
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ended.stdout == "hang: did not finish within 0.05 s\n"
    assert ended.stderr == ""


def test_a_tool_can_be_used_by_one_event_loop_after_another() -> None:
    ping = tool(name="ping")(lambda: "pong")
    for _ in range(3):
        assert asyncio.run(ping.run({}, CONTEXT)).output == "pong"


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_cancellation_from_outside_passes_through(kind: str, native: bool) -> None:
    release = threading.Event()
    started = anyio.Event()

    @tool
    def waits_in_a_thread() -> None:
        release.wait(30)

    @tool
    async def waits() -> None:
        await anyio.sleep_forever()

    made = waits if kind == "async" else waits_in_a_thread

    async def turn() -> None:
        started.set()
        await made.run({}, CONTEXT)
        raise AssertionError("went on")

    try:
        if native:
            task = asyncio.create_task(turn())
            await started.wait()
            await anyio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            with anyio.move_on_after(0.05) as scope:
                await turn()
            assert scope.cancelled_caught
    finally:
        release.set()


# --- Tools that raise ----------------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ValueError("too small"), "failed: ValueError: too small"),
        (KeyError("name"), "failed: KeyError: 'name'"),
        (RuntimeError(), "failed: RuntimeError"),
        (TimeoutError("of its own"), "failed: TimeoutError: of its own"),
        (StopIteration(3), "StopIteration"),
        (RuntimeError("one\ntwo\x00"), "failed: RuntimeError: one two"),
        (RuntimeError("x" * 1_000_000), "x…"),
        (RuntimeError("a://b:" * 200_000), "…"),
        (RuntimeError("a://" + ":" * 100_000), ":…"),
        (InvalidInput("give a city"), "failing: give a city"),
        (ExceptionGroup("many", [ExceptionGroup("some", [OSError("the one")])]), "failed: OSError: the one"),
        (SystemExit(3), "failed: SystemExit: 3"),
        (Unspeakable(), "failed: Unspeakable"),
        (RecursionError("deep"), "failed: RecursionError: deep"),
        (RuntimeError("lone \ud800"), "lone ?"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_what_a_tool_raises_comes_back_as_one_line(
    kind: str, failure: BaseException, told: str
) -> None:
    @tool(name="failing")
    def failing() -> None:
        raise failure

    @tool(name="failing")
    async def failing_async() -> None:
        raise failure

    result = await (failing if kind == "sync" else failing_async).run({}, CONTEXT)
    assert (result.ok, result.output) == (False, None)
    assert result.error is not None
    assert told in result.error
    assert "Traceback" not in result.error
    assert "\n" not in result.error
    assert len(result.error) < 700
    assert result.duration_ms < 2000
    orjson.dumps(result.error)


async def test_a_tool_that_awaits_something_cancelled_does_not_end_the_turn() -> None:
    @tool
    async def awaits_the_dead() -> None:
        task = asyncio.create_task(anyio.sleep(10))
        task.cancel()
        await task

    result = await awaits_the_dead.run({}, CONTEXT)
    assert result.error == "awaits_the_dead was cancelled from within"
    await anyio.sleep(0.001)


async def test_an_interrupt_passes_through() -> None:
    @tool
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await interrupted.run({}, CONTEXT)


async def test_errors_hold_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "or-v1-abcdef")
    monkeypatch.setenv("OTHER_SECRET", "or-v1-abcdef-and-more")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody")
    monkeypatch.setenv("SIGNING_KEY", "-----BEGIN\nabcdef\n")

    @tool
    def leak() -> None:
        raise RuntimeError(
            "401 for or-v1-abcdef, -----BEGIN\nabcdef\n, or-v1-abcdef-and-more of Somebody "
            "at redis://:hunter22@db:6379/0 and https://me:pw@host/x with Authorization: Bearer eyJhbGci.abc"
        )

    assert (await leak.run({}, CONTEXT)).error == (
        "leak failed: RuntimeError: 401 for [hidden], [hidden] , [hidden] of Somebody "
        "at redis://[hidden]@db:6379/0 and https://[hidden]@host/x with Authorization: Bearer [hidden]"
    )


# --- Results that are no JSON --------------------------------------------------------------------------


@dataclass
class Report:
    when: datetime.datetime
    where: Path
    places: list[Place] = field(default_factory=list)


class Account(BaseModel):
    number: Annotated[int, Field(serialization_alias="no")]
    password: SecretStr
    ratio: float = math.inf


NOON = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        ("text", "text"),
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset("a"), ["a"]),
        (deque([1]), [1]),
        (range(3), [0, 1, 2]),
        ({"b": 1}.keys(), ["b"]),
        ({"b": 1}.values(), [1]),
        (OrderedDict(a=1), {"a": 1}),
        ({1: "a", 2.5: "b", Colour.RED: "c", False: "d"}, {"1": "a", "2.5": "b", "red": "c", "false": "d"}),
        ({NOON.date(): 1, UUID(int=5): 2}, {"2026-11-16": 1, "00000000-0000-0000-0000-000000000005": 2}),
        (b"bytes", "bytes"),
        (math.nan, "NaN"),
        ([math.inf, -math.inf], ["Infinity", "-Infinity"]),
        (2**63, 2**63),
        (2**64, "18446744073709551616"),
        (-(2**63) - 1, "-9223372036854775809"),
        (Colour.BLUE, "blue"),
        (Level.HIGH, 2),
        (NOON, "2026-11-16T12:00:00Z"),
        (datetime.timedelta(minutes=1), "PT1M"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Path("a/b"), "a/b"),
        ("lone \ud800", "lone ?"),
        (
            Report(NOON, Path("x"), [Place(city="Ulm")]),
            {"when": "2026-11-16T12:00:00Z", "where": "x", "places": [{"city": "Ulm", "title": "none"}]},
        ),
        (
            Account(number=1, password=SecretStr("hunter22")),
            {"no": 1, "password": "**********", "ratio": "Infinity"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_results_with_a_sensible_json_form_are_converted(result: Any, expected: Any) -> None:
    @tool
    def give() -> Any:
        return result

    answer = await give.run({}, CONTEXT)
    assert (answer.output, answer.error) == (expected, None)
    orjson.dumps(answer.output)


def _recursive() -> Any:
    inside: list[Any] = []
    inside.append({"again": inside})
    return inside


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


class Anything(BaseModel):
    thing: Any


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (object, "holds a object, which is not JSON"),
        (lambda: [{"a": threading.Lock()}], "which is not JSON"),
        (lambda: b"\xff\xfe", "holds a bytes, which is not JSON"),
        (lambda: len, "which is not JSON"),
        (lambda: Place, "which is not JSON"),
        (lambda: (i for i in range(3)), "has to be read first"),
        (lambda: {"a": iter([1])}, "has to be read first"),
        (lambda: {(1, 2): 3}, "JSON keys are text"),
        (lambda: {None: 3}, "JSON keys are text"),
        (_recursive, "contains itself"),
        (lambda: _deep(33), "nests deeper than 32 levels"),
        (lambda: _deep(100_000), "nests deeper than 32 levels"),
        (lambda: Anything(thing=object()), "holds a Anything that is not JSON"),
        (lambda: 10**5000, "thousands of digits"),
        (lambda: ["x" * 1000] * 100, "more than 64 KiB"),
        (lambda: ["\x01" * 20_000], "more than 64 KiB"),
        (lambda: range(10**15), "more than 64 KiB"),
        (lambda: {str(i): i for i in range(100_000)}, "more than 64 KiB"),
    ],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_results_without_a_json_form_are_errors_that_say_so(
    kind: str, make: Callable[[], Any], told: str
) -> None:
    @tool
    def give() -> Any:
        return make()

    @tool
    async def give_async() -> Any:
        return make()

    answer = await (give if kind == "sync" else give_async).run({}, CONTEXT)
    assert (answer.ok, answer.output) == (False, None)
    assert answer.error is not None
    assert told in answer.error


def test_a_value_that_stands_twice_in_a_result_is_no_recursion() -> None:
    shared = [1]
    assert as_json({"a": shared, "b": [shared, shared]}) == {"a": [1], "b": [[1], [1]]}
    assert as_json(_deep(32)) == _deep(32)


@pytest.mark.parametrize("character", ["a", "é", "\x01", "🍞", '"'])
def test_a_text_that_is_too_long_is_cut_and_says_so(character: str) -> None:
    whole = character * 100_000
    cut = as_json(whole)
    size = len(orjson.dumps(cut))
    assert MAX_OUTPUT_BYTES - 200 < size <= MAX_OUTPUT_BYTES
    kept, _, note = cut.partition("\n… [cut: ")
    assert whole.startswith(kept)
    assert note == f"{len(kept):,} of 100,000 characters]"


def test_a_text_that_just_fits_is_left_alone() -> None:
    whole = "a" * (MAX_OUTPUT_BYTES - 2)
    assert as_json(whole) == whole
    assert as_json(whole + "a") != whole + "a"


# --- The toolbox ---------------------------------------------------------------------------------------


def test_a_toolbox_gives_only_what_is_allowed() -> None:
    box = shipped_tools()
    assert box.names == ["breadcrumb_search", "calculator", "clock", "random"]
    allowed = box.allowed(["clock", "calculator", "clock"])
    assert [one.name for one in allowed] == ["clock", "calculator"]
    assert [spec.name for spec in allowed.specs] == ["clock", "calculator"]
    assert "random" not in allowed
    assert len(box.allowed([])) == 0
    with pytest.raises(InvalidInput, match="there is no tool 'random'; there are: calculator, clock"):
        allowed.get("random")
    with pytest.raises(InvalidInput, match="there is no tool 'x', 'y'; there are: breadcrumb_search, calc"):
        box.allowed(["clock", "x", "y"])
    with pytest.raises(InvalidInput, match="there are: none"):
        Toolbox().get("clock")


def test_two_tools_cannot_have_one_name() -> None:
    box = shipped_tools()
    with pytest.raises(InvalidInput, match="already"):
        box.add(box.get("clock"))
    assert "clock" in shipped_tools()


def test_the_catalogue_is_a_breadcrumb_that_shows_a_model_names_and_descriptions() -> None:
    catalogue = shipped_tools().catalogue()
    content_of(BreadcrumbCreate.parse(catalogue))
    assert catalogue == Toolbox(reversed(list(shipped_tools()))).catalogue()
    entry = catalogue["context"]["tools"][1]
    assert entry["name"] == "calculator"
    assert entry["inputSchema"]["required"] == ["expression"]
    assert entry["capabilities"] == {"timeout": 5000, "return_to_llm": True}
    seen = apply_hints(catalogue["context"], catalogue["llm_hints"])
    assert [set(shown) for shown in seen["tools"]] == [{"name", "description"}] * 4
    assert set(seen) == {"tools"}


# --- Tools that settings name --------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    source = """
        from breadcrumbs.agents.tools import tool

        @tool(name="greet")
        def hello(name: str) -> str:
            return f"Hello {name}"

        def shout(text: str) -> str:
            "Say it louder."
            return text.upper()

        def untyped(text):
            return text

        class Group:
            @staticmethod
            def inner(number: int) -> int:
                return number

        number = 3
    """
    (tmp_path / "my_tools.py").write_text(textwrap.dedent(source))
    (tmp_path / "broken_tools.py").write_text("import not_installed_anywhere")
    (tmp_path / "leaving_tools.py").write_text("raise SystemExit(2)")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("my_tools", "broken_tools", "leaving_tools"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("module")
async def test_tools_named_in_settings_are_loaded() -> None:
    specs = ["my_tools:hello", "my_tools:shout", "my_tools:Group.inner", "my_tools:hello"]
    loaded = load_tools(specs)
    assert [one.name for one in loaded] == ["greet", "shout", "inner"]
    assert loaded[1].description == "Say it louder."
    assert (await loaded[1].run({"text": "hi"}, CONTEXT)).output == "HI"


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("my_tools", "not named like package.module:function"),
        ("my_tools:", "not named like"),
        (":hello", "not named like"),
        ("my tools:hello", "not named like"),
        ("../my_tools:hello", "not named like"),
        ("", "not named like"),
        ("my_tools:nothing", "my_tools has no nothing"),
        ("my_tools:number", "not a function, but a int"),
        ("my_tools:Group", "not a function, but a type"),
        ("my_tools:untyped", "parameter 'text' has no type"),
        ("no_such_package.tools:x", "No module named 'no_such_package'"),
        ("broken_tools:x", "No module named 'not_installed_anywhere'"),
        ("leaving_tools:x", "SystemExit: 2"),
    ],
)
def test_an_entry_that_names_no_tool_fails_at_the_start_and_says_why(spec: str, told: str) -> None:
    with pytest.raises(StartupError) as caught:
        load_tools([spec])
    assert told in str(caught.value)
    assert repr(spec) in str(caught.value)
