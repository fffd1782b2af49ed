"""Prompts of real turns repeat the beginning of the previous prompt, so that providers can cache it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import pytest

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.models.base import Dialect, ModelReply, ModelRequest, OnDelta
from breadcrumbs.agents.models.chat_format import request_json
from breadcrumbs.agents.models.offline import OfflineModel
from breadcrumbs.agents.tools.shipped import SHIPPED as SHIPPED_TOOLS
from breadcrumbs.context_builder.prefix_reuse import shared_prefix
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import MESSAGE, working

SHIPPED = Path(__file__).parents[2] / "config" / "context-builder-config.json"
TURNS = 80
MEASURED = range(26, TURNS + 1)

OTHER_SESSIONS = {
    "key": "other",
    "schema_name": MESSAGE,
    "fetch": {"method": "recent", "limit": 3, "conversation_scope": "all"},
}
BEFORE = {"limits": [{"key": "conversation", "limit": 21}], "formatting": {"max_tokens": 4000}}
"""The settings of the shipped config before stepped windows existed."""


class Recording:
    """The offline model, with all requests."""

    name = "recording"

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self._model = OfflineModel()

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.requests.append(request)
        return await self._model.complete(request, on_delta)

    async def close(self) -> None:
        return None


def shipped(*more_sources: dict[str, Any], **changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(SHIPPED.read_bytes())
    del document["$schema"]
    return document | {"sources": [*document["sources"], *more_sources]} | changes


def shipped_agent() -> ActiveAgent:
    definition = files("breadcrumbs.agents") / "definitions" / "default-chat-assistant.json"
    return ActiveAgent(AgentDefinition.model_validate_json(definition.read_bytes()), trusted=True)


def body(request: ModelRequest) -> bytes:
    """Return the request as it is sent to a model server."""
    return request_json(Dialect("model", stream=True), request)


def question(turn: int, words: int) -> str:
    text = f"Question {turn} of this long conversation, please answer it."
    return " ".join([text, *["indeed"] * (words - len(text.split()))])


async def prompts_of(store: Store, config: dict[str, Any], words: int = 9) -> list[ModelRequest]:
    """Return the prompts of many turns in one session, while others write in other sessions."""
    model = Recording()
    async with working(store, model, configs=[config], agents=[shipped_agent()], tools=SHIPPED_TOOLS) as chat:
        await chat.post("tool.catalog.v1", [], {"message": "calculator, clock"})
        for turn in range(1, TURNS + 1):
            other = " ".join([f"something else, number {turn}", *["besides"] * (words - 4)])
            await chat.say(f"other {turn}", other, tags=["draft"])
            message = await chat.say("s", question(turn, words))
            await chat.answer_to(message)
    own = [request for request in model.requests if request.messages[-1].content.startswith("Question")]
    assert len(own) == TURNS
    return own


def reuse(prompts: list[ModelRequest]) -> float:
    """Return the share of the bytes that repeat the previous prompt."""
    bodies = [body(prompt) for prompt in prompts]
    shared = sum(shared_prefix([bodies[turn - 2]], [bodies[turn - 1]]) for turn in MEASURED)
    return shared / sum(len(bodies[turn - 1]) for turn in MEASURED)


@pytest.mark.parametrize(
    ("sources", "words"),
    [((), 9), ((), 150), ((), 300), ((OTHER_SESSIONS,), 9), ((OTHER_SESSIONS,), 150)],
    ids=["short", "long", "very long", "short with other sessions", "long with other sessions"],
)
async def test_most_of_a_prompt_of_the_shipped_config_repeats_the_previous_one(
    store: Store, sources: tuple[dict[str, Any], ...], words: int
) -> None:
    prompts = await prompts_of(store, shipped(*sources), words)
    share = reuse(prompts)
    assert share >= 0.85, share
    for turn, prompt in enumerate(prompts, 1):
        questions = [one.content for one in prompt.messages if one.content.startswith("Question")]
        first = int(questions[0].split()[1])
        assert first <= max(1, turn - 10), "less history than with the sliding window of 21"
        assert questions == [question(n, words) for n in range(first, turn + 1)]
        if sources and turn > 1:
            assert "something else" in prompt.messages[-2].content, "volatile items come before the trigger"


async def test_a_sliding_window_repeats_little(store: Store) -> None:
    share = reuse(await prompts_of(store, shipped(**BEFORE)))
    assert share < 0.6
