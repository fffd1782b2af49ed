"""The offline model: what it can tell is what it was given, and nothing else."""

from __future__ import annotations

import json
import time
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.agents.models.base import (
    ModelReply,
    ModelRequest,
    PromptMessage,
    PromptRole,
    ToolCall,
    ToolSpec,
)
from breadcrumbs.agents.models.offline import OfflineModel
from breadcrumbs.agents.tools.shipped import shipped_tools

TOOLS = shipped_tools().specs


def user(text: str) -> PromptMessage:
    return PromptMessage("user", text)


def assistant(text: str) -> PromptMessage:
    return PromptMessage("assistant", text)


async def reply_to(*messages: PromptMessage, tools: tuple[ToolSpec, ...] = ()) -> ModelReply:
    deltas: list[str] = []

    async def take(piece: str) -> None:
        deltas.append(piece)

    request = ModelRequest((PromptMessage("system", "You are a helpful assistant."), *messages), tools=tools)
    reply = await OfflineModel().complete(request, take)
    assert "".join(deltas) == reply.text
    assert await OfflineModel().complete(request) == reply  # the same request, the same answer
    return reply


async def says(*messages: PromptMessage, tools: tuple[ToolSpec, ...] = ()) -> str:
    reply = await reply_to(*messages, tools=tools)
    assert reply.text and not reply.tool_calls and reply.finish_reason == "stop"
    return reply.text


async def calls(text: str, tools: tuple[ToolSpec, ...] = TOOLS) -> list[tuple[str, dict[str, Any]]]:
    reply = await reply_to(user(text), tools=tools)
    if reply.tool_calls:
        assert reply.finish_reason == "tool_calls"
    return [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]


# Reciting


@pytest.mark.parametrize(
    "question",
    [
        "What did I say?",
        "what did i say",
        "What have I said so far?",
        "what did I just tell you?",
        "What have we talked about?",
        "what did we discuss",
        "What was my last message?",
        "what is the first thing I said?",
        "Repeat",
        "repeat that, please",
        "repeat what I said",
        "history",
        "show me the chat history",
        "List my messages",
        "What do you remember?",
        "recap please",
        "Summarize",
    ],
)
async def test_it_recites_what_was_said_in_this_conversation(question: str) -> None:
    said = await says(user("Hello session 1"), assistant("Hello!"), user(question))
    assert '"Hello session 1"' in said
    assert question not in said


async def test_each_session_hears_its_own_words() -> None:
    first = await says(user("Hello session 1"), assistant("Hello!"), user("What did I say?"))
    second = await says(user("Hello session 2"), assistant("Hello!"), user("What did I say?"))
    assert first == 'You said: "Hello session 1"'
    assert second == 'You said: "Hello session 2"'


async def test_several_messages_are_quoted_exactly_and_in_order() -> None:
    odd = ['  "quoted"\nand\ttwo lines ', "😀 <b>ü</b>", "x" * 5000]
    said = await says(*(user(text) for text in odd), user("what did I say?"))
    places = [said.index(text) for text in odd]
    assert places == sorted(places)
    assert said.startswith("You said 3 things before this:")


async def test_with_nothing_before_it_says_so() -> None:
    assert "nothing before this" in await says(user("What did I say?"))


async def test_what_was_not_said_here_by_the_user_is_not_recited_as_if_it_were() -> None:
    said = await says(
        PromptMessage("user", "From other conversations: Hello session 2", name="background"),
        PromptMessage("user", "I am another agent", name="other_agent"),
        user("Hello session 1"),
        user("What did I say?"),
    )
    assert said == 'You said: "Hello session 1"'


async def test_it_recites_its_own_answers_too() -> None:
    said = await says(user("hi"), assistant("Good day"), user("What did you say?"))
    assert said == 'I said: "Good day"'


async def test_first_and_last_can_be_asked_for() -> None:
    before = [user("one"), user("two"), user("three")]
    assert await says(*before, user("What was the first thing I said?")) == 'You said first: "one"'
    assert await says(*before, user("What did I just say?")) == 'You said last: "three"'


async def test_it_counts() -> None:
    said = await says(user("a"), assistant("b"), user("How many messages have I sent?"))
    assert said == "I was given 2 messages of yours, this one included, and 1 answer of mine."


async def test_it_tells_what_it_sees() -> None:
    said = await says(
        PromptMessage("user", "note", name="background"), user("a"), user("What do you see?"), tools=TOOLS
    )
    assert "2 messages of yours, no answers of mine, 1 message from elsewhere and 1 instruction" in said
    assert "calculator" in said and '"a"' in said


# Talking


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello!", "Hello! I can tell"),
        ("hi", "Hi! I can tell"),
        ("Good morning", "Good morning! I can tell"),
        ("Hello session 1", 'Hello! You wrote: "Hello session 1"'),
        ("Thanks a lot", "You are welcome."),
        ("help", "I am the offline model"),
        ("Repeat after me: one two", "one two"),
        ("Tell me the history of Rome", 'You wrote: "Tell me the history of Rome"\nI am the offline model.'),
        ("historical facts are fun", 'You wrote: "historical'),
        ("", "Your message was empty"),
        (" \n", "Your message was empty"),
    ],
)
async def test_it_answers_simple_things(text: str, expected: str) -> None:
    assert (await says(user(text))).startswith(expected)


async def test_what_it_can_do_is_said_once_in_a_conversation() -> None:
    assert await says(user("a"), assistant("b"), user("The sky is blue")) == 'You wrote: "The sky is blue"'


async def test_a_very_long_message_is_not_said_back_whole() -> None:
    assert len(await says(user("word " * 20_000))) < 1000


async def test_an_event_that_is_no_message_is_told() -> None:
    said = await says(PromptMessage("user", 'sensor.reading.v1: {"t": 20}', name="data"))
    assert said == 'I was given this by data: "sensor.reading.v1: {"t": 20}"'


async def test_without_a_message_it_says_so() -> None:
    assert await says() == "I was given no message to answer."
    assert await says(PromptMessage("user", "tea", name="background")) == "I was given no message to answer."
    assert (await OfflineModel().complete(ModelRequest(()))).text == "I was given no message to answer."


# Tools


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("calculate 12*7", "12*7"),
        ("Please calculate: 12 * 7.", "12 * 7"),
        ("What is 12*7?", "12*7"),
        ("what's (3 + 4) / 2", "(3 + 4) / 2"),
        ("12*7", "12*7"),
        ("2+2=", "2+2"),
        ("how much is 1,000 × 3", "1000 * 3"),
        ("compute 2^10", "2**10"),
        ("calculate sqrt(16) + 1", "sqrt(16) + 1"),
        ("what is 6 x 7", "6 * 7"),
        ("calculate -3 + 5 please", "-3 + 5"),
    ],
)
async def test_it_lets_the_calculator_do_sums(text: str, expression: str) -> None:
    assert await calls(text) == [("calculator", {"expression": expression})]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("what time is it?", [("clock", {})]),
        ("What's the time", [("clock", {})]),
        ("what time is it in Europe/Berlin?", [("clock", {"zone": "Europe/Berlin"})]),
        ("what is the date today", [("clock", {})]),
        ("random number between 1 and 6", [("random", {"min": 1, "max": 6})]),
        ("Give me a random number from 10 to -3", [("random", {"min": -3, "max": 10})]),
        ("a random number please", [("random", {"min": 1, "max": 100})]),
        ("roll a die", [("random", {"min": 1, "max": 6})]),
        ("search for blue whales", [("breadcrumb_search", {"text": "blue whales"})]),
        ('Search this session for "tea"?', [("breadcrumb_search", {"text": "tea"})]),
        ('use random with {"min": 3, "max": 4}', [("random", {"min": 3, "max": 4})]),
        ("use the clock tool", [("clock", {})]),
        ("calculate 1+1 and what time is it", [("calculator", {"expression": "1+1"}), ("clock", {})]),
    ],
)
async def test_it_uses_a_tool_that_is_obviously_asked_for(
    text: str, expected: list[tuple[str, dict[str, Any]]]
) -> None:
    assert await calls(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "What is love?",
        "what is 42",
        "2024-01-02",
        "what is the time complexity of sorting",
        "I have 3 cats and 2 dogs",
        "use your head",
        "research is fun",
        "The finding was 7-3 in favour",
        "call me maybe",
    ],
)
async def test_it_uses_no_tool_that_was_not_asked_for(text: str) -> None:
    assert await calls(text) == []


@pytest.mark.parametrize(
    "text", ["calculate 12*7", "what time is it?", "roll a die", 'use delete_all {"x": 1}']
)
async def test_a_tool_that_was_not_offered_is_not_used(text: str) -> None:
    assert "I was offered none" in await says(user(text))


async def test_arguments_go_by_the_names_in_the_tools_schema() -> None:
    dice = ToolSpec("roll_dice", "", {"type": "object", "properties": {"low": {}, "high": {}}})
    web = ToolSpec("webSearch", "", {"type": "object", "properties": {"topic": {}}})
    bare = ToolSpec("math", "", {})
    assert await calls("roll a die", (dice,)) == [("roll_dice", {"low": 1, "high": 6})]
    assert await calls("search for tea", (web,)) == [("webSearch", {"topic": "tea"})]
    assert await calls("calculate 1+1", (bare,)) == [("math", {"expression": "1+1"})]


@pytest.mark.parametrize("text", ["calculate 12*7", "what time is it in UTC", "roll a die", "search for tea"])
async def test_the_shipped_tools_take_the_arguments_it_writes(text: str) -> None:
    (call,) = (await reply_to(user(text), tools=TOOLS)).tool_calls
    tool = shipped_tools().get(call.name)
    assert set(json.loads(call.arguments)) <= set(tool.parameters["properties"])


async def test_calls_in_one_conversation_have_different_ids() -> None:
    first = await reply_to(user("calculate 1+1"), tools=TOOLS)
    asked = PromptMessage("assistant", "", tool_calls=first.tool_calls)
    answered = PromptMessage("tool", "2", tool_call_id=first.tool_calls[0].id)
    second = await reply_to(
        user("calculate 1+1"), asked, answered, assistant("2"), user("calculate 2+2"), tools=TOOLS
    )
    assert first.tool_calls[0].id != second.tool_calls[0].id


@pytest.mark.parametrize(
    ("name", "arguments", "content", "expected"),
    [
        ("calculator", '{"expression": "12*7"}', '{"expression": "12*7", "result": 84}', "12*7 = 84"),
        ("calculator", '{"expression": "12*7"}', "84", "12*7 = 84"),
        ("calculator", "{}", '{"error": "division by zero"}', "The calculator failed: division by zero"),
        ("calculator", '{"expression": "1"}', '{"output": {"result": 1}, "error": null}', "1 = 1"),
        ("random", "{}", '{"number": 0}', "The random says: 0"),
        ("clock", "{}", '{"utc": "12:00:00Z", "zone": null}', "The clock says: utc: 12:00:00Z"),
        ("x", "{oops", "plain words", "The x says: plain words"),
        ("x", "{}", "null", "The x returned nothing."),
        ("x", "{}", "None", "The x returned nothing."),
        ("x", "{}", "undefined", "The x returned nothing."),
        ("x", "{}", "", "The x returned nothing."),
        ("x", "{}", '{"result": null}', "The x returned nothing."),
        ("x", "{}", '{"a": {"b": [null, 1, true]}}', "The x says: a: b: 1, yes"),
        ("x", "{}", '["a", null, "b"]', "The x found:\n- a\n- b"),
        ("breadcrumb_search", "{}", '{"found": [], "more": false}', "The breadcrumb_search found nothing."),
        (
            "breadcrumb_search",
            "{}",
            '{"found": [{"id": "1", "title": "t", "excerpt": "tea at five"}], "more": false}',
            "The breadcrumb_search found:\n- tea at five",
        ),
    ],
)  # fmt: skip
async def test_what_a_tool_said_is_put_into_words(
    name: str, arguments: str, content: str, expected: str
) -> None:
    said = await says(
        user("do it"),
        PromptMessage("assistant", "", tool_calls=(ToolCall("c1", name, arguments),)),
        PromptMessage("tool", content, tool_call_id="c1"),
        tools=TOOLS,
    )
    assert said == expected


async def test_a_tool_that_was_called_is_not_called_again() -> None:
    said = await says(
        user("calculate 12*7"),
        PromptMessage("assistant", "", tool_calls=(ToolCall("c1", "calculator", '{"expression": "12*7"}'),)),
        PromptMessage("tool", '{"error": "out of order"}', tool_call_id="c1", name="calculator"),
        tools=TOOLS,
    )
    assert said == "The calculator failed: out of order"


async def test_results_of_an_earlier_turn_are_not_told_again() -> None:
    said = await says(
        user("calculate 12*7"),
        PromptMessage("assistant", "", tool_calls=(ToolCall("c1", "calculator", "{}"),)),
        PromptMessage("tool", "84", tool_call_id="c1"),
        assistant("84"),
        user("The sky is blue"),
    )
    assert said == 'You wrote: "The sky is blue"'


# Properties

ROLES: list[PromptRole] = ["user", "assistant", "tool", "system"]
prompts = st.lists(
    st.builds(
        PromptMessage,
        role=st.sampled_from(ROLES),
        content=st.text(alphabet=st.characters(codec="utf-8"), max_size=40)
        | st.sampled_from(
            ["what did I say?", "calculate 1+1", "null", '{"result": null}', "history", "[[[["]
        ),
        tool_calls=st.just(()) | st.just((ToolCall("c", "calculator", "{}"),)),
        tool_call_id=st.none() | st.just("c"),
        name=st.none() | st.sampled_from(["background", "data"]),
    ),
    max_size=8,
)


@given(messages=prompts, offered=st.booleans())
def test_it_always_answers_and_never_with_a_missing_value(
    messages: list[PromptMessage], offered: bool
) -> None:
    request = ModelRequest(tuple(messages), tools=TOOLS if offered else ())
    reply = anyio.run(OfflineModel().complete, request)
    assert reply.text.strip() or reply.tool_calls
    given_text = "".join(message.content for message in messages)
    for word in ("None", "null", "undefined"):
        if word not in given_text:
            assert word not in reply.text


@given(
    ours=st.lists(st.integers(0, 10**9).map(lambda n: f"ours-{n}."), min_size=1, max_size=6),
    theirs=st.lists(st.integers(0, 10**9).map(lambda n: f"theirs-{n}."), min_size=1, max_size=6),
)
def test_one_model_keeps_nothing_between_two_sessions(ours: list[str], theirs: list[str]) -> None:
    async def both() -> tuple[str, str]:
        model = OfflineModel()
        question = user("What did I say?")
        first = await model.complete(ModelRequest((*map(user, theirs), question)))
        second = await model.complete(ModelRequest((*map(user, ours), question)))
        return first.text, second.text

    first, second = anyio.run(both)
    assert all(text in second for text in ours)
    assert "theirs" not in second and "ours" not in first


# Streaming


async def test_the_delay_is_between_the_words() -> None:
    times: list[float] = []

    async def take(_: str) -> None:
        times.append(time.monotonic())

    await OfflineModel(delay=0.02).complete(ModelRequest((user("Thanks"),)), take)
    assert len(times) == 3
    assert times[-1] - times[0] >= 0.03


async def test_no_pathological_message_takes_long() -> None:
    began = time.monotonic()
    for text in (
        "what did i " * 27,
        "(" * 300,
        "1" * 300,
        "1+" * 150,
        "use " + "a" * 290,
        "what " * 60,
        " " * 300,
    ):
        await reply_to(user(text), tools=TOOLS)
    assert time.monotonic() - began < 2
