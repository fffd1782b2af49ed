"""Reasoning of models: separated from the answer, in the fields of servers and in the text of local models."""

from __future__ import annotations

import random
from typing import Any

import pytest

from breadcrumbs.agents.models.base import ModelRequest, PromptMessage
from breadcrumbs.agents.models.reasoning import ThinkSplitter
from tests.support.model_calls import ask
from tests.support.model_server import ModelServer


class Observer:
    def __init__(self) -> None:
        self.reasoning = ""
        self.retries: list[tuple[str, float]] = []

    async def reason(self, text: str) -> None:
        self.reasoning += text

    def switched(self, model: str, *, failed: bool) -> None:
        raise AssertionError

    def retrying(self, reason: str, seconds: float) -> None:
        self.retries.append((reason, seconds))

    def log_fields(self) -> dict[str, str]:
        return {}


def split(text: str, seed: int, *, complete: bool = True) -> tuple[str, str]:
    """Split a text that arrives in random pieces."""
    dice, splitter, reasoning, answer = random.Random(seed), ThinkSplitter(), "", ""
    while text:
        size = dice.randint(1, 5)
        more_reasoning, more = splitter.feed(text[:size])
        reasoning, answer, text = reasoning + more_reasoning, answer + more, text[size:]
    return reasoning, answer + splitter.end(complete=complete)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>I wonder </thin k</think>\n\nHello", "I wonder </thin k", "Hello"),
        (" \n<think>a<b</think>Hello <think>x</think>", "a<b", "Hello <think>x</think>"),
        ("Hello <think>x</think>", "", "Hello <think>x</think>"),
        ("  <thin air>", "", "  <thin air>"),
        ("<", "", "<"),
        ("<think></think>Hi", "", "Hi"),
    ],
)
def test_only_a_think_tag_at_the_beginning_is_reasoning(
    text: str, reasoning: str, answer: str, seed: int
) -> None:
    assert split(text, seed) == (reasoning, answer)


def test_an_unclosed_tag_is_the_answer_unless_the_model_was_cut_off() -> None:
    assert split("<think> is a tag", 1)[1] == "<think> is a tag"
    assert split("<think>Let me", 1, complete=False) == ("Let me", "")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_the_reasoning_of_a_server_is_not_part_of_the_reply(server: ModelServer, field: str) -> None:
    pieces: list[dict[str, Any]] = [{field: "I "}, {field: "wonder"}, {"content": "Hel"}, {"content": "lo"}]
    scenario = server.scenario("chunks", deltas=pieces)
    observer = Observer()
    reply = await ask(scenario, ModelRequest((PromptMessage("user", "Hi"),), observer=observer))
    assert (reply.text, observer.reasoning) == ("Hello", "I wonder")


async def test_a_retry_is_reported_with_its_reason_and_pause(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after="0.1")
    observer = Observer()
    await ask(scenario, ModelRequest((PromptMessage("user", "Hi"),), observer=observer))
    ((reason, seconds),) = observer.retries
    assert "too many requests (429)" in reason and 0.1 <= seconds < 2
