"""The scripted model and the function model, which are for tests."""

from __future__ import annotations

import pytest

from breadcrumbs.agents.models.base import (
    Model,
    ModelError,
    ModelReply,
    ModelRequest,
    PromptMessage,
    ToolCall,
)
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.agents.models.streaming import stream_words

ASK = ModelRequest((PromptMessage("user", "Hello"),))


async def test_replies_are_returned_in_order_and_requests_are_recorded() -> None:
    calls = ModelReply("", tool_calls=(ToolCall("1", "clock", "{}"),))
    model = ScriptedModel(["first", calls])
    other = ModelRequest((PromptMessage("user", "Again"),))
    assert model.remaining == 2
    assert await model.complete(ASK) == ModelReply("first", finish_reason="stop")
    assert await model.complete(other) is calls
    assert model.requests == [ASK, other]
    assert model.remaining == 0


async def test_a_scripted_exception_is_raised_in_order() -> None:
    model = ScriptedModel([ModelError("overloaded", retry=True), "fine"])
    with pytest.raises(ModelError, match="overloaded"):
        await model.complete(ASK)
    assert (await model.complete(ASK)).text == "fine"


async def test_a_call_after_the_last_scripted_reply_is_an_error() -> None:
    model = ScriptedModel([])
    with pytest.raises(ModelError, match="called 1 times, but the script has 0 replies") as caught:
        await model.complete(ASK)
    assert not caught.value.retry


async def test_a_scripted_reply_is_streamed() -> None:
    pieces: list[str] = []

    async def take(piece: str) -> None:
        pieces.append(piece)

    await ScriptedModel(["one two\nthree "]).complete(ASK, take)
    assert pieces == ["one", " two", "\nthree", " "]


@pytest.mark.parametrize("text", ["", " ", "\n\n", "a", " a b ", "x\u2003y" * 500])
async def test_streamed_words_add_up_to_the_text(text: str) -> None:
    pieces: list[str] = []

    async def take(piece: str) -> None:
        pieces.append(piece)

    await stream_words(text, take)
    assert "".join(pieces) == text
    assert "" not in pieces


async def test_a_function_can_be_a_model() -> None:
    model = FunctionModel(lambda request: f"you wrote {request.messages[-1].content}")
    assert (await model.complete(ASK)).text == "you wrote Hello"
    assert model.requests == [ASK]


async def test_the_function_can_be_async_and_can_raise() -> None:
    async def answer(request: ModelRequest) -> ModelReply:
        if len(request.messages) > 1:
            raise ValueError("too much")
        return ModelReply("fine")

    model = FunctionModel(answer)
    assert (await model.complete(ASK)).text == "fine"
    with pytest.raises(ValueError, match="too much"):
        await model.complete(ModelRequest(ASK.messages * 2))


async def test_scripted_and_function_models_implement_the_protocol() -> None:
    models: list[Model] = [ScriptedModel([]), FunctionModel(lambda _: "")]
    for model in models:
        await model.close()
        await model.close()
    assert [model.name for model in models] == ["scripted", "function"]
