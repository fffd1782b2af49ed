"""Models and tools that misbehave, agents that set each other off: a visible outcome, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import Any
from uuid import UUID

import anyio
import anyio.lowlevel
import orjson
import pytest

from breadcrumbs.agents.book import Agent
from breadcrumbs.agents.functions import Call
from breadcrumbs.agents.functions import agent as decorated_as_agent
from breadcrumbs.agents.models.base import Message, ModelError, ModelReply, ModelRequest, ToolCall
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.agents.tools import Tool, tool
from breadcrumbs.runtime import worker
from breadcrumbs.runtime.breadcrumb import BreadcrumbUpdate
from breadcrumbs.runtime.errors import StoreFull, StoreUnavailable
from breadcrumbs.runtime.ids import derived_id, home_lane, new_id
from breadcrumbs.runtime.store import Store, Written
from tests.support.turns import (
    ASSISTANT,
    CONTEXT,
    ERROR,
    MESSAGE,
    RESPONSE,
    Working,
    agent,
    config,
    eventually,
    last_words,
    recite,
    working,
)


def use(name: str, arguments: str = "{}", number: int = 1) -> ModelReply:
    return ModelReply("", tuple(ToolCall(f"call-{place}", name, arguments) for place in range(number)))


class Counting:
    """A tool that says how often it was run."""

    def __init__(self, **options: Any) -> None:
        self.runs = 0

        async def count_me(word: str = "") -> str:
            """Count."""
            self.runs += 1
            return f"run {self.runs} {word}"

        self.tool = Tool(count_me, name="count_me", **options)


# Tools


async def test_P9_a_tool_call_leaves_request_and_response_with_ids_derived_from_trigger_and_step(
    store: Store,
) -> None:
    counting = Counting()
    model = ScriptedModel([use("count_me", '{"word": "tea"}'), "done"])
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        message = await chat.say("s", "Go")
        answer = await chat.answer_to(message)
        (request,), (response,) = (
            await chat.all("s", "tool.request.v1"),
            await chat.all("s", "tool.response.v1"),
        )
        assert request.context["input"] == {"word": "tea"} and request.context["requestedBy"] == ASSISTANT
        assert response.context["status"] == "success" and response.context["output"] == "run 1 tea"
        assert response.context["request_id"] == str(request.id)
        # Derived, and therefore equal on replay; unique, because trigger and step are.
        lane = home_lane(answer.id, store.lanes)
        place = (ASSISTANT, str(message.id), "0.0", "count_me", '{"word": "tea"}')
        assert request.id == derived_id(lane, "request", *place)
        assert response.id == derived_id(lane, "response", *place)
        assert answer.id == derived_id(lane, "answer", ASSISTANT, str(message.id))
        assert len({request.id, response.id, answer.id, message.id}) == 4
        assert message.id.version == 7 and answer.id.version == 8
        called, result = model.requests[1].messages[-2:]
        assert called.role == "assistant" and called.tool_calls[0].name == "count_me"
        assert result == Message(
            "tool", '{"output":"run 1 tea"}', tool_call_id=called.tool_calls[0].id, name="count_me"
        )


async def test_P9_new_ids_differ_however_many_are_made_in_one_moment() -> None:
    made = [new_id(number % 16) for number in range(20_000)]
    assert len(set(made)) == len(made)
    assert {id.version for id in made} == {7}


async def test_a_tool_is_not_run_again_when_its_turn_is(store: Store) -> None:
    counting = Counting()
    model = ScriptedModel([use("count_me"), ModelError("overloaded", retry=True), use("count_me"), "done"])
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        await chat.answer_to(await chat.say("s", "Go"))
        assert counting.runs == 1
        assert (
            len(await chat.all("s", "tool.request.v1")) == len(await chat.all("s", "tool.response.v1")) == 1
        )
        assert "run 1" in model.requests[-1].messages[-1].content


async def test_a_tool_is_not_run_again_when_the_store_was_away_for_its_result(store: Store) -> None:
    counting = Counting()
    model = ScriptedModel([use("count_me"), "done"])
    failing_for(store, "tool.response.v1", StoreUnavailable("gone"), times=3)
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        await chat.answer_to(await chat.say("s", "Go"))
        assert counting.runs == 1 and len(model.requests) == 2


async def test_several_calls_in_one_reply_are_run_in_order(store: Store) -> None:
    counting = Counting()
    model = ScriptedModel([use("count_me", number=3), "done"])
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        await chat.answer_to(await chat.say("s", "Go"))
        outputs = [crumb.context["output"].strip() for crumb in await chat.all("s", "tool.response.v1")]
        assert outputs == ["run 1", "run 2", "run 3"]


async def test_a_tool_outside_the_list_is_refused_and_the_model_is_told(store: Store) -> None:
    counting = Counting()
    other = Counting()
    other.tool.name = "other"
    model = ScriptedModel([use("count_me"), "then not"])
    tools = [counting.tool, other.tool]
    async with working(store, model, agents=[agent(tools=["other"])], tools=tools) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert counting.runs == 0
        (response,) = await chat.all("s", "tool.response.v1")
        assert response.context["status"] == "error"
        assert response.context["error"] == "count_me is not one of your tools (other)"
        assert "not one of your tools" in model.requests[1].messages[-1].content
        assert answer.context["message"] == "then not"


@pytest.mark.parametrize("name", ["", "\n\x00bad\u2028name", "x" * 1_000_000, "\ud800"])
async def test_a_tool_name_that_is_garbage_ends_like_any_other_unknown_one(store: Store, name: str) -> None:
    model = ScriptedModel([use(name, "no json"), "then not"])
    async with working(store, model) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert answer.context["message"] == "then not"
        assert len(await chat.all("s", "tool.request.v1")) == 1


async def test_a_model_that_never_stops_calling_tools_is_stopped(store: Store) -> None:
    counting = Counting()
    model = FunctionModel(
        lambda request: use("count_me", orjson.dumps({"word": str(len(request.messages))}).decode())
    )
    agents = [agent(tools=["count_me"], max_steps=3)]
    async with working(store, model, agents=agents, tools=[counting.tool]) as chat:
        error = await chat.error_about(await chat.say("s", "Go"))
        assert "asked for tools 3 times in a row" in error.context["error"]
        assert len(model.requests) == 3 == counting.runs
        assert len(await chat.dead_letters()) == 1


async def test_tools_that_raise_hang_or_return_what_is_no_json_are_told_to_the_model(store: Store) -> None:
    @tool
    async def raises() -> str:
        """Raise."""
        raise RuntimeError("broken")

    @tool(timeout=0.05)
    async def hangs() -> str:
        """Hang."""
        await anyio.sleep(60)
        return ""

    @tool
    def no_json() -> object:
        """Return an object."""
        return object()

    def nested() -> Any:
        """Return something deep."""
        deep: Any = 1
        for _ in range(300):
            deep = [deep]
        return deep

    deep = Tool(nested)
    names = ["raises", "hangs", "no_json", "nested"]
    replies = ModelReply("", tuple(ToolCall(name, name, "{}") for name in names))
    model = ScriptedModel([replies, "I see"])
    tools = [raises, hangs, no_json, deep]
    async with working(store, model, agents=[agent(tools=names)], tools=tools) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert answer.context["message"] == "I see"
        responses = await chat.all("s", "tool.response.v1")
        assert len(responses) == 4
        told = [message.content for message in model.requests[1].messages[-4:]]
        assert "broken" in told[0] and "did not finish within 0.05 s" in told[1]


async def test_the_output_of_a_tool_that_does_not_return_to_the_model_is_the_answer(store: Store) -> None:
    counting = Counting(return_to_llm=False)
    model = ScriptedModel([use("count_me")])
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert "run 1" in answer.context["message"]
        assert len(model.requests) == 1


async def test_what_a_model_says_beside_a_tool_call_is_shown_and_stored(store: Store) -> None:
    counting = Counting()
    calls = use("count_me").tool_calls
    model = ScriptedModel(
        [
            ModelReply("Let me look.\n", calls),
            ModelReply(" \n", calls),
            ModelReply("Hm.", calls),
            "It is four.",
        ]
    )
    async with (
        working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat,
        deltas_of(store) as shown,
    ):
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert answer.context["message"] == "Let me look.\n\nHm.\n\nIt is four."
        # White space at the end of a reply is shown as it comes.
        await eventually(
            lambda: _async(shown() == "Let me look.\n\n\nHm.\n\nIt is four."), f"it showed {shown()!r}"
        )


async def test_what_a_model_has_said_is_shown_while_it_pauses(store: Store) -> None:
    goes_on = anyio.Event()

    async def hesitating(call: Call) -> str:
        for word in ("One, ", "two, "):
            await call.say(word)
            await anyio.lowlevel.checkpoint()
        await goes_on.wait()
        await call.say("three.")
        return "One, two, three."

    async with working(store, agents=[function_agent(hesitating)]) as chat, deltas_of(store) as shown:
        message = await chat.say("s", "Count")
        await eventually(lambda: _async(shown() == "One, two, "), f"it showed {shown()!r}")
        goes_on.set()
        await chat.answer_to(message)
        await eventually(lambda: _async(shown() == "One, two, three."), f"it showed {shown()!r}")


async def test_what_a_model_says_before_an_answer_in_json_stands_before_its_words(store: Store) -> None:
    counting = Counting()
    last = '{"action": "create", "breadcrumb": {"tags": ["found"], "context": {"message": "four", "n": 4}}}'
    model = ScriptedModel([ModelReply("Let me look.", use("count_me").tool_calls), last])
    async with working(store, model, agents=[agent(tools=["count_me"])], tools=[counting.tool]) as chat:
        answer = await chat.answer_to(await chat.say("s", "Go"))
        assert answer.context["message"] == "Let me look.\n\nfour"
        assert answer.context["n"] == 4 and "found" in answer.tags


async def test_words_beside_a_tool_call_are_no_answer_where_none_follows(store: Store) -> None:
    counting = Counting()
    model = ScriptedModel([ModelReply("Let me look.", use("count_me").tool_calls), ""])
    agents = [agent(tools=["count_me"])]
    async with working(store, model, agents=agents, tools=[counting.tool], attempts=1) as chat:
        error = await chat.error_about(await chat.say("s", "Go"))
        assert error.context["error"] == "the model gave an empty answer"


async def _async(value: bool) -> bool:
    return value


@asynccontextmanager
async def deltas_of(store: Store) -> AsyncIterator[Callable[[], str]]:
    """All that was shown while answers were made."""
    pieces: list[str] = []

    async def listen() -> None:
        await store.connection.listen(
            store.keys.deltas(), lambda raw: pieces.append(orjson.loads(raw)["text"])
        )

    async def heard() -> bool:
        _, listeners = await store.connection.call(0, b"PUBSUB", b"NUMSUB", store.keys.deltas())
        return bool(listeners)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await eventually(heard, "nobody listens")
        yield lambda: "".join(pieces)
        tasks.cancel_scope.cancel()


# Functions


def function_agent(function: Callable[[Call], Awaitable[Any]]) -> Agent:
    return replace(agent(), function=function)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (None, "returned NoneType, not text"),
        (5, "returned int, not text"),
        (["a"], "returned list, not text"),
        ("", "gave an empty answer"),
        (" \n", "gave an empty answer"),
        ({"context": {"message": ""}}, "gave an empty answer"),
        ({"context": {"message": {1, 2}}}, "returned what is no JSON"),
        ("x" * 2_000_000, "'s answer has 2,000,000 bytes"),
    ],
)
async def test_a_function_that_returns_no_text_fails_in_words(store: Store, reply: Any, words: str) -> None:
    async def function(call: Call) -> Any:
        return reply

    async with working(store, agents=[function_agent(function)], attempts=2) as chat:
        error = await chat.error_about(await chat.say("s", "Go"))
        assert words in error.context["error"] and error.context["error"].startswith(ASSISTANT)
        assert await chat.answers("s") == []


async def test_a_time_limit_of_a_functions_own_is_not_taken_for_that_of_the_turn(store: Store) -> None:
    async def function(call: Call) -> str:
        raise TimeoutError("the shop did not answer within 5 s")

    async with working(store, agents=[function_agent(function)], attempts=2) as chat:
        error = await chat.error_about(await chat.say("s", "Go"))
        assert error.context["error"] == "the shop did not answer within 5 s"
        assert error.context["attempts"] == 2


@pytest.mark.parametrize(
    ("failure", "words"),
    [(SystemExit(3), "failed: SystemExit: 3"), (asyncio.CancelledError(), "cancelled from within")],
)
async def test_a_function_that_wants_to_end_everything_ends_its_turn_alone(
    store: Store, failure: BaseException, words: str
) -> None:
    async def function(call: Call) -> str:
        if call.text == "Go":
            raise failure
        return "still here"

    async with working(store, agents=[function_agent(function)], attempts=2) as chat:
        error = await chat.error_about(await chat.say("s", "Go"))
        assert words in error.context["error"] and error.context["attempts"] == 2
        for session in ("s", "another"):
            answer = await chat.answer_to(await chat.say(session, "Hello"))
            assert answer.context["message"] == "still here"


def test_a_function_that_is_not_async_is_refused_where_it_is_written() -> None:
    def plain(call: Call) -> str:
        return call.text

    with pytest.raises(TypeError, match="eve: an agent is an async function"):
        decorated_as_agent("eve")(plain)  # type: ignore[arg-type]  # what mypy would have said

    class Speaker:
        async def __call__(self, call: Call) -> str:
            return call.text

    async def speak(call: Call) -> str:
        return call.text

    @wraps(speak)
    def wrapped(call: Call) -> Awaitable[str]:
        return speak(call)

    for function in (Speaker(), speak, wrapped, partial(speak)):
        assert decorated_as_agent("eve")(function).definition.agent_id == "eve"


# What others have written


@pytest.mark.parametrize("when_busy", ["queue", "merge"])
@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({"as_of": "x", "parts": []}, "its as_of is no time"),
        ({"parts": 5}, "its parts are no list"),
        ({"parts": [5]}, "parts[0].place is none of conversation, shared, elsewhere"),
        ({"parts": [{"items": []}]}, "parts[0].place is none of"),
        ({"parts": [{"place": {}, "items": []}]}, "parts[0].place is none of"),
        ({"parts": [{"place": "shared", "items": []}]}, "parts[0] has no key"),
        ({"parts": [{"place": "conversation"}]}, "parts[0] has no items"),
        ({"parts": [{"place": "conversation", "items": ["x"]}]}, "parts[0].items[0] has no content"),
        ({"parts": [{"place": "conversation", "items": [{}]}]}, "parts[0].items[0] has no content"),
    ],
)
async def test_a_context_that_cannot_be_read_fails_once_and_in_words(
    store: Store, when_busy: str, context: dict[str, Any], words: str
) -> None:
    model = FunctionModel(recite)
    async with working(store, model, agents=[agent(when_busy=when_busy)]) as chat:
        await chat.post(CONTEXT, ["session:s", f"consumer:{ASSISTANT}"], context)
        await eventually(lambda: errors_are(chat, "s", 1), "it did not fail")
        (error,) = await chat.errors("s")
        assert words in error.context["error"] and error.context["attempts"] == 1
        assert not model.requests


async def errors_are(chat: Working, session: str, number: int) -> bool:
    return len(await chat.errors(session)) == number


@pytest.mark.parametrize(
    "creator", [{"type": "agent", "agent_id": ASSISTANT}, ASSISTANT, [], {"agent_id": []}]
)
async def test_an_answer_that_names_no_message_does_not_stand_in_the_way_of_others(
    store: Store, creator: Any
) -> None:
    async with working(store, agents=[agent(when_busy="merge")]) as chat:
        await chat.post(RESPONSE, ["session:s"], {"message": "forged", "trigger_id": {}, "creator": creator})
        message = await chat.say("s", "Hello")
        answer = await chat.answer_to(message)
        assert answer.context["answers"] == [str(message.id)]


@pytest.mark.parametrize("chosen_by", ["definition", "model"])
async def test_an_answer_with_another_schema_is_not_made_again_when_its_context_comes_again(
    store: Store, chosen_by: str
) -> None:
    said, emits = "a note", {"schema_name": "note.v1"}
    if chosen_by == "model":
        emits = {}
        said = '{"action":"create","breadcrumb":{"schema_name":"note.v1","context":{"message":"a note"}}}'
    model = FunctionModel(lambda request: said)
    agents = [agent(emits=emits)]
    async with working(store, model, agents=agents, runners=0) as chat:
        await chat.say("s", "Hello")
        await eventually(lambda: chat.handled("contexts"), "no context was built")
    for _ in range(2):
        async with working(store, model, agents=agents, builders=0) as chat:
            await eventually(lambda: notes_are(chat, 1), "no answer")
            await chat.settled()
        for lane in range(store.lanes):  # as if the worker had died before it could say that it is done
            await store.connection.call(lane, b"DEL", *progress_keys(store, lane))
    assert len(model.requests) == 1


def progress_keys(store: Store, lane: int) -> list[bytes]:
    return [store.keys.low(lane, "agents"), store.keys.done(lane, "agents")]


async def notes_are(chat: Working, number: int) -> bool:
    return len(await chat.all("s", "note.v1")) == number


# Models


async def test_a_model_that_is_overloaded_is_asked_again_with_pauses_and_then_answers(store: Store) -> None:
    pauses: list[int] = []

    def backoff(attempt: int) -> float:
        pauses.append(attempt)
        return 0.01

    model = ScriptedModel([ModelError("overloaded", retry=True)] * 2 + ["here I am"])
    async with working(store, model, backoff=backoff) as chat:
        answer = await chat.answer_to(await chat.say("s", "Hello"))
        assert answer.context["message"] == "here I am"
        assert pauses == [1, 2] and len(model.requests) == 3
        await chat.settled()
        assert await chat.errors("s") == [] and await chat.dead_letters() == []


async def test_P11_a_model_that_asks_for_a_pause_gets_it_before_it_is_asked_again(store: Store) -> None:
    asked: list[float] = []

    def answer(request: ModelRequest) -> str:
        asked.append(anyio.current_time())
        if len(asked) == 1:
            raise ModelError("too many requests", retry=True, retry_after=0.6)
        return "here I am"

    async with working(store, FunctionModel(answer), backoff=lambda attempt: 0.01) as chat:
        await chat.answer_to(await chat.say("s", "Hello"))
        assert 0.6 <= asked[1] - asked[0] < 3


async def test_of_several_agents_that_ask_for_a_pause_the_longest_counts(store: Store) -> None:
    asked: dict[str, list[float]] = {"a": [], "b": []}

    def model_of(one: Agent) -> FunctionModel:
        def answer(request: ModelRequest) -> str:
            asked[name].append(anyio.current_time())
            if len(asked[name]) == 1:
                raise ModelError("too many requests", retry=True, retry_after={"a": 0.1, "b": 0.6}[name])
            return "here I am"

        name = one.definition.agent_id
        return FunctionModel(answer)

    direct = {"subscriptions": {"selectors": [{"schema_name": MESSAGE}]}}
    agents = [agent("a", **direct), agent("b", **direct)]
    async with working(store, model_of, agents=agents, configs=()) as chat:
        await chat.say("s", "Hello")
        await eventually(lambda: answers_are(chat, "s", 2), "not both have answered")
        assert asked["b"][1] - asked["b"][0] >= 0.6 and len(asked["a"]) == 2


async def answers_are(chat: Working, session: str, number: int) -> bool:
    return len(await chat.answers(session)) == number


async def test_a_model_that_asks_for_a_very_long_pause_is_asked_again_before(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_LONGEST_PAUSE", 0.05)
    model = ScriptedModel([ModelError("come back tomorrow", retry=True, retry_after=86_400), "here I am"])
    async with working(store, model) as chat:
        answer = await chat.answer_to(await chat.say("s", "Hello"))
        assert answer.context["message"] == "here I am"


async def test_a_model_that_stays_away_ends_in_an_error_and_a_dead_letter(store: Store) -> None:
    model = FunctionModel(lambda request: (_ for _ in ()).throw(ModelError("overloaded", retry=True)))
    async with working(store, model, attempts=3) as chat:
        message = await chat.say("s", "Hello")
        error = await chat.error_about(message)
        assert error.context["error"] == "overloaded" and error.context["attempts"] == 3
        assert error.context["cancelled"] is False
        assert len(model.requests) == 3
        (letter,) = await chat.dead_letters()
        (context,) = await chat.all("s", CONTEXT)
        assert letter["breadcrumb_id"] == str(context.id) and letter["version"] == context.version
        assert letter["session_id"] == "s" and letter["owner_id"] == str(chat.owner)
        assert letter["error"] == "overloaded" and letter["attempts"] == 3 and letter["kind"] == "agents"


async def test_a_failure_for_good_is_not_tried_again_and_leaves_its_neighbours_alone(store: Store) -> None:
    def answer(request: ModelRequest) -> str:
        if "poison" in last_words(request):
            raise ModelError("I refuse", retry=False)
        return "fine"

    model = FunctionModel(answer)
    async with working(store, model) as chat:
        poison = [await chat.say(f"s{number}", "poison") for number in range(6)]
        good = [await chat.say(f"s{number}", "good") for number in range(12)]
        for message in good:
            assert (await chat.answer_to(message)).context["message"] == "fine"
        for message in poison:
            assert (await chat.error_about(message)).context["error"] == "I refuse"
        assert len(model.requests) == 18
        assert len(await chat.dead_letters()) == 6


@pytest.mark.parametrize("reason", ["", "\ud800 half a character", "x" * 3_000_000, "line\nbreak\x00\u2028"])
async def test_an_error_in_any_words_is_left_in_the_session_and_the_worker_goes_on(
    store: Store, reason: str
) -> None:
    model = ScriptedModel([ModelError(reason, retry=False), RuntimeError(reason), "still here"])
    async with working(store, model, attempts=1) as chat:
        for text in ("one", "two"):
            error = await chat.error_about(await chat.say("s", text))
            assert error.context["error"] and len(error.context["error"]) <= 4_000
        assert (await chat.answer_to(await chat.say("s", "three"))).context["message"] == "still here"
        assert len(await chat.dead_letters()) == 2


@pytest.mark.parametrize("empty", ["", "   \n\t "])
async def test_an_empty_answer_is_an_error_that_says_so(store: Store, empty: str) -> None:
    model = FunctionModel(lambda request: empty)
    async with working(store, model, attempts=2) as chat:
        error = await chat.error_about(await chat.say("s", "Hello"))
        assert error.context["error"] == "the model gave an empty answer"
        assert len(model.requests) == 2
        assert await chat.answers("s") == []


async def test_an_answer_of_ten_megabytes_is_an_error_that_says_so(store: Store) -> None:
    model = FunctionModel(lambda request: "x" * 10_000_000)
    async with working(store, model) as chat:
        message = await chat.say("s", "Hello")
        error = await chat.error_about(message)
        assert "10,000,000 bytes" in error.context["error"]
        assert len(model.requests) == 1
        assert await chat.answers("s") == []


def deep(levels: int) -> str:
    return (
        '{"action":"create","breadcrumb":{"context":{"message":"words","deep":'
        + "[" * levels
        + "]" * levels
        + "}}}"
    )


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("{ not json", "{ not json"),
        ('{"action": "create", "breadcrumb": 5}', '{"action": "create", "breadcrumb": 5}'),
        ('{"action": "delete_everything"}', '{"action": "delete_everything"}'),
        ('```json\n{"action":"create","breadcrumb":{"context":{"message":"hi",},}}\n```', "hi"),
        ('{"action":"create","breadcrumb":{"tags":["","\\n",5,"' + "t" * 300 + '"],"context":{"message":"m"}}}', "m"),
        ('{"action":"create","breadcrumb":{"schema_name":"\\n","title":"\\u2028","context":{"message":"m"}}}', "m"),
        (deep(300), "words"),
        ("half \ud800 a character", "half ? a character"),
        ("\x00\x01\x02", "\x00\x01\x02"),
    ],
)  # fmt: skip
async def test_garbage_from_a_model_is_taken_as_what_it_is(store: Store, said: str, text: str) -> None:
    model = ScriptedModel([said, "next"])
    async with working(store, model) as chat:
        answer = await chat.answer_to(await chat.say("s", "Hello"))
        assert answer.context["message"] == answer.context["content"] == text
        assert answer.session_id == "s" and answer.schema_name == RESPONSE
        assert (await chat.answer_to(await chat.say("s", "And?"))).context["message"] == "next"


async def test_an_agent_that_takes_too_long_is_stopped_and_others_are_answered_meanwhile(
    store: Store,
) -> None:
    async def slow(request: ModelRequest) -> str:
        if "slow" in last_words(request):
            await anyio.sleep(60)
        return "quick"

    model = FunctionModel(slow)
    agents = [agent(timeout_seconds=0.3)]
    async with working(store, model, agents=agents, attempts=2) as chat:
        slow_one = await chat.say("s", "slow")
        assert (await chat.answer_to(await chat.say("t", "fast"))).context["message"] == "quick"
        error = await chat.error_about(slow_one)
        assert error.context["error"] == "no answer within 0.3 s" and error.context["attempts"] == 2


# The store


def failing_for(store: Store, schema: str, error: Exception, *, times: int) -> list[str]:
    """Make the next commits of a schema fail before they reach the server."""
    create = store.create
    failed: list[str] = []

    async def sometimes(owner: UUID, new: Any, **options: Any) -> Written:
        if new.schema_name == schema and options.get("fence") is not None and len(failed) < times:
            failed.append(schema)
            raise error
        return await create(owner, new, **options)

    store.create = sometimes  # type: ignore[method-assign]
    return failed


@pytest.mark.parametrize("error", [StoreFull("full"), StoreUnavailable("away")])
async def test_an_answer_waits_for_a_store_that_is_full_or_away_and_the_model_is_not_asked_again(
    store: Store, error: Exception
) -> None:
    failed = failing_for(store, RESPONSE, error, times=3)
    model = FunctionModel(recite)
    async with working(store, model) as chat:
        await chat.answer_to(await chat.say("s", "Hello"))
        assert len(failed) == 3 and len(model.requests) == 1
        assert await chat.errors("s") == []


async def test_P2_an_answer_that_was_committed_is_in_the_history_once_though_its_confirmation_was_lost(
    store: Store,
) -> None:
    create = store.create
    lost: list[UUID] = []

    async def without_reply(owner: UUID, new: Any, **options: Any) -> Written:
        written = await create(owner, new, **options)
        if new.schema_name == RESPONSE and not lost:
            lost.append(written.id)
            raise StoreUnavailable("the reply was lost")
        return written

    store.create = without_reply  # type: ignore[method-assign]
    model = FunctionModel(recite)
    async with working(store, model) as chat:
        answer = await chat.answer_to(await chat.say("s", "Hello"))
        await chat.settled()
        assert [crumb.id for crumb in await chat.answers("s")] == lost == [answer.id]
        assert len(model.requests) == 1
        # What was shown is what the next turn knows.
        await chat.answer_to(await chat.say("s", "And?"))
        assert ("assistant", answer.context["message"]) in [
            (message.role, message.content) for message in model.requests[-1].messages
        ]


async def test_a_context_whose_confirmation_was_lost_is_not_built_twice(store: Store) -> None:
    put = store.put
    lost: list[str] = []

    async def without_reply(*args: Any, **options: Any) -> Any:
        written = await put(*args, **options)
        if not lost:
            lost.append("reply")
            raise StoreUnavailable("the reply was lost")
        return written

    store.put = without_reply  # type: ignore[method-assign]
    async with working(store, agents=[agent(when_busy="reject")]) as chat:
        await chat.answer_to(await chat.say("s", "Hello"))
        await chat.settled()
        (context,) = await chat.all("s", CONTEXT)
        assert context.version == 1 and lost
        assert await chat.errors("s") == []


async def test_a_context_that_has_expired_does_not_stand_in_the_way_of_the_next_message(store: Store) -> None:
    """Nobody has swept it yet: its key is taken, but nothing is there."""
    short = config(output={"schema_name": CONTEXT, "tags": ["agent:context"], "ttl_seconds": 1})
    async with working(store, configs=[short]) as chat:
        await chat.answer_to(await chat.say("one", "Hello"))
        for text in ("Hello", "Again"):
            await chat.answer_to(await chat.say("two", text))
        await anyio.sleep(1.1)
        await chat.answer_to(await chat.say("one", "Still there?"))
        await chat.answer_to(await chat.say("two", "Still there?"))
        await chat.settled()
        assert len(await chat.answers("one")) == 2 and len(await chat.answers("two")) == 3


async def test_what_was_imported_is_history_and_nobody_answers_it(store: Store) -> None:
    model = FunctionModel(recite)
    async with working(store, model) as chat:
        message = await chat.say("s", "Hello")
        await chat.answer_to(message)
        old = replace(message, id=new_id(0), created=message.created - 10**9, updated=message.created - 10**9)
        await store.restore(old, [])
        await chat.settled()
        assert len(model.requests) == 1 and await chat.errors("s") == []
        # It is part of the conversation all the same.
        await chat.answer_to(await chat.say("s", "And now?"))
        assert [text for text in (m.content for m in model.requests[-1].messages) if text == "Hello"] == [
            "Hello"
        ] * 2


async def test_a_message_that_was_deleted_while_it_waited_is_not_answered(store: Store) -> None:
    from tests.support.turns import PacedModel

    model = PacedModel()
    async with working(store, model) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        second = await chat.say("s", "second")
        await eventually(lambda: chat.handled("contexts"), "no context was built")
        await store.delete(chat.owner, second.id)
        model.allow("first", "second")
        await chat.answer_to(first)
        await chat.settled()
        assert await chat.texts("s") == ["re: first"] and await chat.errors("s") == []


# Agents among themselves


@pytest.mark.parametrize(
    ("session", "changes", "says"),
    [
        (None, {"max_steps": -1}, "max_steps: Input should be greater than or equal to 1"),
        (None, {"subscriptions": {"selectors": [{"schema_nam": "note.v1"}]}}, "schema_nam: there is no such field"),
        (None, {"subscriptions": {"selectors": [{"role": "trigger"}]}}, "not used: a trigger that matches everything"),
        ("mine", {}, "without session: and user: tags"),
    ],
)  # fmt: skip
async def test_a_definition_that_cannot_be_used_leaves_an_error_and_the_others_answer(
    store: Store, session: str | None, changes: dict[str, Any], says: str
) -> None:
    usable = {"agent_id": "eve", "subscriptions": {"selectors": [{"schema_name": "note.v1"}]}}
    tags = [] if session is None else [f"session:{session}"]
    async with working(store) as chat:
        posted = await chat.post("agent.def.v1", tags, {**usable, **changes})
        error = await chat.error_about(posted)
        assert error.context["error"].startswith("this agent definition is not used: ")
        assert says in error.context["error"]
        await chat.answer_to(await chat.say("s", "Hello"))
        if session is None:  # mended, it is silent
            change = BreadcrumbUpdate(context=usable)
            await store.update(chat.owner, posted.id, change)
        await chat.settled()
        assert len(await chat.errors(session)) == 1 and not await chat.dead_letters()


async def test_agents_that_trigger_each_other_stop_at_the_hop_limit(store: Store) -> None:
    def listens_to(name: str, other: str) -> Any:
        return agent(
            name,
            hop_limit=4,
            emits={"schema_name": f"{name}.said.v1", "tags": []},
            subscriptions={
                "selectors": [{"schema_name": f"{other}.said.v1"}, {"schema_name": f"{name}.start.v1"}]
            },
        )

    model = FunctionModel(lambda request: "and you?")
    async with working(store, model, agents=[listens_to("ping", "pong"), listens_to("pong", "ping")]) as chat:
        start = await chat.post("ping.start.v1", ["session:s"], {"message": "go"})
        await eventually(lambda: has_errors(chat, "s"), "they were not stopped")
        await chat.settled()
        said = await chat.all("s", "ping.said.v1") + await chat.all("s", "pong.said.v1")
        assert sorted(crumb.context["hops"] for crumb in said) == [1, 2, 3, 4]
        (error,) = await chat.errors("s")
        assert "4 times in a row" in error.context["error"] and "hop limit" in error.context["error"]
        assert len(model.requests) == 4 and start.session_id == "s"


async def has_errors(chat: Any, session: str) -> bool:
    return bool(await chat.errors(session))


@pytest.mark.parametrize("by_context", [False, True])
async def test_an_agent_that_reacts_to_errors_and_fails_comes_to_an_end(
    store: Store, by_context: bool
) -> None:
    trigger = {"schema_name": ERROR}
    selector = {"schema_name": CONTEXT, "all_tags": ["consumer:medic"]} if by_context else trigger
    medic = agent("medic", hop_limit=3, subscriptions={"selectors": [selector]})
    configs = [config(), config("medic", update_triggers=[trigger])]
    model = FunctionModel(lambda request: (_ for _ in ()).throw(ModelError("no", retry=False)))
    async with working(store, model, agents=[agent(), medic], configs=configs) as chat:
        await chat.say("s", "Hello")
        await eventually(lambda: has_errors(chat, "s"), "no error")
        await chat.settled()
        assert len(await chat.errors("s")) == (4 if by_context else 1)
        assert len(model.requests) == (3 if by_context else 2)


async def test_an_agent_that_reacts_to_its_own_tool_calls_comes_to_an_end(store: Store) -> None:
    counting = Counting()
    watcher = agent(
        "watcher",
        hop_limit=3,
        tools=["count_me"],
        subscriptions={"selectors": [{"schema_name": "tool.response.v1"}, {"schema_name": MESSAGE}]},
    )
    model = FunctionModel(lambda request: "seen" if request.messages[-1].role == "tool" else use("count_me"))
    async with working(store, model, agents=[watcher], tools=[counting.tool]) as chat:
        await chat.say("s", "Go")
        await eventually(lambda: has_errors(chat, "s"), "it was not stopped")
        await chat.settled()
        assert counting.runs == 3 and len(await chat.answers("s")) == 3


async def test_one_agent_that_fails_does_not_silence_another(store: Store) -> None:
    direct = {"subscriptions": {"selectors": [{"schema_name": MESSAGE}]}}

    def model_of(who: Any) -> Any:
        if who.definition.agent_id == "a-broken":
            return FunctionModel(lambda request: (_ for _ in ()).throw(ModelError("broken", retry=False)))
        return FunctionModel(lambda request: "fine")

    async with working(
        store, model_of, agents=[agent("a-broken", **direct), agent("b-well", **direct)]
    ) as chat:
        message = await chat.say("s", "Hello")
        assert (await chat.error_about(message)).context["error"] == "broken"
        assert (await chat.answer_to(message)).context["creator"]["agent_id"] == "b-well"


async def test_an_error_names_the_agent_that_failed_where_it_was_one(store: Store) -> None:
    """So that somebody who waits for one agent goes on waiting when another one fails."""

    def fail(request: ModelRequest) -> str:
        if last_words(request) in (request.messages[0].content, "all"):
            raise ModelError("out of order", retry=False)
        return "here"

    # Both react to the message itself, so that one turn is the work of both.
    said = {"selectors": [{"schema_name": MESSAGE}]}
    agents = [agent(name, system_prompt=name, subscriptions=said) for name in ("ann", "ben")]
    async with working(store, FunctionModel(fail), agents=agents, configs=()) as chat:
        message = await chat.say("s", "ben")
        assert (await chat.error_about(message)).context["agent_id"] == "ben"
        assert (await chat.answer_to(message)).context["creator"]["agent_id"] == "ann"
        both = await chat.error_about(await chat.say("s", "all"))
        assert both.context["error"] == "out of order" and "agent_id" not in both.context


async def test_an_edit_of_an_answered_message_is_not_answered_again(store: Store) -> None:
    model = FunctionModel(recite)
    async with working(store, model) as chat:
        message = await chat.say("s", "Hello")
        await chat.answer_to(message)
        change = BreadcrumbUpdate.parse({"context": {"message": "Hello!"}})
        await store.update(chat.owner, message.id, change)
        await chat.settled()
        assert len(model.requests) == 1 and len(await chat.answers("s")) == 1
