"""The models that a curator can choose: their names, their order, and their problems."""

from __future__ import annotations

from typing import Any

import pytest

from breadcrumbs.agents.models.offered import ModelChoices, public_name
from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.runtime.errors import InvalidInput, StartupError


def choices(**settings: Any) -> ModelChoices:
    return ModelChoices(ModelPool(settings, environment={}))


def test_the_default_comes_first_and_no_model_twice() -> None:
    offer = choices(
        default="house",
        aliases={"house": "ollama:llama3.2", "big": "vllm:big"},
        offered=["ollama:llama3.2", "big"],
    ).offer()
    assert offer.default == "house"
    assert [(model.name, model.model) for model in offer.models] == [
        ("house", "ollama:llama3.2"),
        ("big", "vllm:big"),
        ("ollama:llama3.2", "ollama:llama3.2"),
    ]


def test_a_model_that_all_agents_name_is_shown_as_the_default() -> None:
    assert choices().offer("ollama:llama3.2").default == "ollama:llama3.2"
    assert choices().offer().default == "offline"


def test_a_missing_key_is_a_problem_of_its_model_only() -> None:
    paid, free = choices(default="ollama:a", aliases={"paid": "openai:b"}).offer().models[::-1]
    assert paid.problem is not None and "OPENAI_API_KEY" in paid.problem
    assert free.problem is None


@pytest.mark.parametrize(
    ("name", "shown"),
    [("http://10.0.0.5:8000/v1#org/big", "org/big"), ("openai:x", "openai:x"), ("offline", "offline")],
)
def test_a_shown_name_contains_no_url(name: str, shown: str) -> None:
    assert public_name(name) == shown


def test_two_models_with_one_name_are_refused_at_start() -> None:
    with pytest.raises(StartupError, match="two offered models have the name 'm'"):
        choices(offered=["http://127.0.0.1:1/v1#m", "http://127.0.0.1:2/v1#m"])


def test_a_model_is_chosen_by_its_shown_name_and_others_are_refused() -> None:
    offered = choices(offered=["http://127.0.0.1:1/v1#m"])
    assert offered.resolve("m").name == "http://127.0.0.1:1/v1#m"
    for name in ("http://127.0.0.1:1/v1#m", "ollama:x", "n"):
        with pytest.raises(InvalidInput, match="no longer offered"):
            offered.resolve(name)


def test_an_invalid_offered_model_is_refused_at_start() -> None:
    with pytest.raises(StartupError, match="gpt-9"):
        choices(offered=["gpt-9"])
