"""The key for the prompt cache of a provider: who gets it, and what it reveals."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from breadcrumbs.agents.models.openai_compatible import OpenAICompatibleModel
from breadcrumbs.agents.models.registry import resolve_model
from breadcrumbs.agents.prompt_cache import prompt_cache_key
from tests.support.model_calls import ASK, model_at
from tests.support.model_server import ModelServer

OWNER = UUID(int=7)
KEYED = replace(ASK, cache_key="0123456789abcdef")


def test_the_key_depends_on_owner_session_and_agent_and_names_none_of_them() -> None:
    key = prompt_cache_key(OWNER, "ada@example.org", "assistant")
    others = [
        prompt_cache_key(uuid4(), "ada@example.org", "assistant"),
        prompt_cache_key(OWNER, "bob@example.org", "assistant"),
        prompt_cache_key(OWNER, "ada@example.org", "other"),
    ]
    assert len({key, *others}) == 4 and key == prompt_cache_key(OWNER, "ada@example.org", "assistant")
    assert len(key) == 32 and set(key) <= set("0123456789abcdef")
    assert prompt_cache_key(OWNER, None, "assistant") == ""


@pytest.mark.parametrize(
    ("spec", "settings", "is_sent"),
    [
        ("openai:gpt-4.1-mini", {}, True),
        ("openai:gpt-4.1-mini", {"openai": {"prompt_cache_key": False}}, False),
        ("openai:gpt-4.1-mini", {"openai": {"url": "http://127.0.0.1:1/v1", "key": "sk-12345678"}}, False),
        ("openrouter:a/b", {}, False),
        ("ollama:llama3.2", {}, False),
        ("azure:gpt", {"azure": {"url": "http://127.0.0.1:1/v1", "prompt_cache_key": True}}, True),
        ("http://127.0.0.1:1/v1#m", {}, False),
    ],
)
def test_the_key_is_sent_only_to_servers_that_are_known_to_accept_it(
    spec: str, settings: dict[str, object], is_sent: bool
) -> None:
    keys = {"OPENAI_API_KEY": "sk-12345678", "OPENROUTER_API_KEY": "sk-12345678"}
    model = resolve_model(spec, {"endpoints": settings}, environment=keys)
    assert isinstance(model, OpenAICompatibleModel)
    assert ("prompt_cache_key" not in model.endpoint.omit) == is_sent


async def test_a_server_that_refuses_the_key_gets_the_request_again_without_it(server: ModelServer) -> None:
    scenario = server.scenario("picky", refuses=("prompt_cache_key",))
    async with model_at(scenario) as model:
        model.endpoint.omit.clear()
        for _ in range(2):
            assert (await model.complete(KEYED)).text == "You asked: Hello there"
    assert [request.body.get("prompt_cache_key") for request in scenario.requests] == [
        KEYED.cache_key,
        None,
        None,
    ]


async def test_an_unknown_server_does_not_get_the_key(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    async with model_at(scenario) as model:
        await model.complete(KEYED)
    assert "prompt_cache_key" not in scenario.requests[0].body


async def test_messages_are_the_last_field_so_that_requests_begin_with_equal_bytes(
    server: ModelServer,
) -> None:
    scenario = server.scenario("normal")
    async with model_at(scenario) as model:
        await model.complete(replace(ASK, temperature=0.5, max_tokens=9))
    assert list(scenario.requests[0].body)[-1] == "messages"
