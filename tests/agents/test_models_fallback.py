"""Fallback lists with real HTTP servers: which errors call the next model, and which models are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from structlog.testing import capture_logs

from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.models.base import ModelError, ModelReply
from breadcrumbs.agents.models.circuits import Circuit, CircuitLimits, Circuits
from breadcrumbs.agents.models.fallback import FallbackModel
from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.agents.models.scripted import ScriptedModel
from breadcrumbs.runtime.errors import InvalidInput
from tests.support.model_calls import ASK, Deltas, model_at
from tests.support.model_server import ModelServer, Scenario

MODEL = {"agent_id": "a", "subscriptions": {"selectors": [{"schema_name": "user.message.v1"}]}}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


async def complete(circuits: Circuits, *scenarios: Scenario, deltas: Deltas | None = None) -> ModelReply:
    async with AsyncExitStack() as stack:
        models = [await stack.enter_async_context(model_at(one, retries=0)) for one in scenarios]
        return await FallbackModel(models, circuits).complete(ASK, Deltas() if deltas is None else deltas)


async def answer_after(server: ModelServer, behaviour: str, **options: Any) -> ModelReply:
    return await complete(Circuits(), server.scenario(behaviour, **options), server.scenario("normal"))


CONTEXT_TOO_LONG = (
    b'{"error": {"message": "maximum context length is 10", "code": "context_length_exceeded"}}'
)


@pytest.mark.parametrize(
    ("behaviour", "options", "error_class"),
    [
        ("failing", {}, "server"),
        ("rate_limited", {}, "rate limit"),
        ("unauthorized", {}, "key"),
        ("unknown_model", {}, "model"),
        ("slow_first_byte", {"delay": 4}, "timeout"),
        ("half_closed", {"before": 0}, "server"),
        ("empty", {}, "server"),
        ("raw", {"status": 400, "body": CONTEXT_TOO_LONG}, "context length"),
        ("raw", {"status": 402, "body": b"{}"}, "credit"),
    ],
)
async def test_the_next_model_answers_after_an_error_of_the_model(
    server: ModelServer, behaviour: str, options: dict[str, Any], error_class: str
) -> None:
    failing = server.scenario(behaviour, **options)
    second = server.scenario("normal")
    reply = await complete(Circuits(), failing, second)
    assert reply.text == "You asked: Hello there"
    assert reply.model == f"{second.url}#test"
    assert reply.failed == ((f"{failing.url}#test", error_class),)


async def test_the_next_model_answers_if_a_server_is_down(server: ModelServer) -> None:
    down = Scenario("http://127.0.0.1:9/v1", "", {})
    reply = await complete(Circuits(), down, server.scenario("normal"))
    assert reply.failed == ((f"{down.url}#test", "connection"),)


@pytest.mark.parametrize(
    ("behaviour", "options", "reason"),
    [
        ("raw", {"status": 400, "body": b'{"error": {"message": "bad request"}}'}, "bad request"),
        ("empty", {"finish": "content_filter"}, "content filter"),
        ("huge", {"size": 2_000_000}, "cut off"),
    ],
)
async def test_an_error_of_the_request_or_the_answer_fails_at_once(
    server: ModelServer, behaviour: str, options: dict[str, Any], reason: str
) -> None:
    second = server.scenario("normal")
    with pytest.raises(ModelError, match=reason):
        await complete(Circuits(), server.scenario(behaviour, **options), second)
    assert second.requests == []


async def test_after_streamed_text_no_other_model_is_called_and_the_next_attempt_skips_the_model(
    server: ModelServer,
) -> None:
    circuits, deltas = Circuits(), Deltas()
    broken, second = server.scenario("half_closed", before=2), server.scenario("normal")
    with pytest.raises(ModelError, match="ended during the answer") as caught:
        await complete(circuits, broken, second, deltas=deltas)
    assert caught.value.retry and second.requests == []
    assert "".join(deltas) == "and then and then "
    reply = await complete(circuits, broken, second)
    assert reply.text == "You asked: Hello there"
    assert reply.failed == ((f"{broken.url}#test", "circuit open"),)
    assert len(broken.requests) == 1


async def test_if_all_models_fail_the_error_names_all_reasons(server: ModelServer) -> None:
    first, second = server.scenario("unauthorized"), server.scenario("failing")
    with pytest.raises(ModelError, match="all models failed") as caught:
        await complete(Circuits(), first, second)
    assert "key was rejected" in caught.value.reason and "provider failed (500)" in caught.value.reason
    assert caught.value.retry  # the second can work later


async def test_a_model_that_keeps_failing_is_skipped_until_a_probe_succeeds(server: ModelServer) -> None:
    now = 0.0
    circuits = Circuits(CircuitLimits(failures=2, seconds=10), clock=lambda: now)
    first, second = server.scenario("failing", times=3), server.scenario("normal")
    with capture_logs() as lines:
        for _ in range(4):
            await complete(circuits, first, second)
        assert len(first.requests) == 2  # then its circuit is open
        assert list(circuits.open_models) == ["test"]
        now = 10.0
        await complete(circuits, first, second)  # a probe, which fails
        assert len(first.requests) == 3
        now = 25.0
        await complete(circuits, first, second)
        assert len(first.requests) == 3  # the pause has doubled
        now = 30.0
        reply = await complete(circuits, first, second)  # a probe, which succeeds
    assert reply.failed == () and reply.model == f"{first.url}#test"
    assert list(circuits.open_models) == []
    events = [line["event"] for line in lines if "circuit" in line["event"]]
    assert events == ["model keeps failing, circuit opened"] * 2 + ["model answers again, circuit closed"]


async def test_if_all_circuits_are_open_the_turn_is_retried_later() -> None:
    circuits = Circuits(CircuitLimits(failures=1, seconds=10), clock=lambda: 0.0)
    models = [ScriptedModel([ModelError("down", retry=True)], name=name) for name in "ab"]
    with pytest.raises(ModelError, match="all models failed"):
        await FallbackModel(models, circuits).complete(ASK)
    with pytest.raises(ModelError, match="no model can be called now") as caught:
        await FallbackModel(models, circuits).complete(ASK)
    assert caught.value.retry and caught.value.retry_after == 10


def test_only_one_call_probes_an_open_circuit() -> None:
    now = 0.0
    circuit = Circuit("m", CircuitLimits(failures=1, seconds=10), lambda: now)
    assert circuit.begin()
    circuit.failed("server")
    assert not circuit.begin()
    now = 10.0
    assert circuit.begin() and not circuit.begin()
    circuit.abandoned()  # the turn of the probe was cancelled
    assert circuit.begin()
    circuit.succeeded()
    assert circuit.state == "closed"


def test_a_circuit_stays_open_as_long_as_the_server_requests() -> None:
    now = 0.0
    circuit = Circuit("m", CircuitLimits(failures=1, seconds=10), lambda: now)
    circuit.failed("rate limit", pause=60)
    assert circuit.wait_seconds == 60
    now = 60.0
    assert circuit.begin()
    circuit.failed("rate limit", pause=86_400)
    assert circuit.wait_seconds == 300


async def test_a_later_call_of_the_turn_begins_with_the_model_that_answered() -> None:
    first = ScriptedModel([ModelError("down", retry=True), "never"], name="first")
    second = ScriptedModel(["one", "two"], name="second")
    model = FallbackModel([first, second], Circuits())
    assert model.name == "first"
    assert (await model.complete(ASK)).failed == (("first", "server"),)
    assert model.name == "second"
    reply = await model.complete(ASK)
    assert reply.text == "two" and reply.failed == ()


# Definitions and names


def test_a_definition_has_one_model_or_a_list() -> None:
    assert AgentDefinition.model_validate(MODEL).models == ()
    assert AgentDefinition.model_validate({**MODEL, "model": "offline"}).models == ("offline",)
    both = AgentDefinition.model_validate({**MODEL, "model": ["openai:a", "ollama:b"]})
    assert both.models == ("openai:a", "ollama:b")


@pytest.mark.parametrize(
    ("models", "complaint"),
    [
        ([], "at least 1"),
        (["a"] * 2, "repeats the model"),
        ([f"m{n}" for n in range(9)], "at most 8"),
        ([" "], "empty"),
    ],
)
def test_an_invalid_list_is_refused(models: list[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        AgentDefinition.model_validate({**MODEL, "model": models})


async def test_a_pool_resolves_a_list_and_refuses_unknown_names() -> None:
    async with ModelPool() as pool:
        assert pool.resolve_list(()).name == "offline"
        assert not isinstance(pool.resolve_list(("offline",)), FallbackModel)
        assert pool.resolve_list(("ollama:a", "offline")).name == "ollama:a"
        with pytest.raises(InvalidInput, match="not found"):
            pool.resolve_list(("offline", "nonsense"))
