"""Receipts of answers: stored facts, rebuilt requests, and answers that have none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
import pytest

from breadcrumbs.agents.functions import Call
from breadcrumbs.agents.models.base import ModelError, ModelReply, ModelRequest, ToolCall
from breadcrumbs.agents.models.registry import resolve_model
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.agents.models.windows import window_of
from breadcrumbs.agents.receipts import decode_digest
from breadcrumbs.agents.tools import Tool
from breadcrumbs.context_builder.referenced import Reader
from breadcrumbs.proofs.receipt_view import ViewOptions, view_receipt
from breadcrumbs.proofs.requests import NotRebuildable, load_receipt, rebuild_request
from breadcrumbs.proofs.verification import Summary, Verification, verify_all, verify_answer
from breadcrumbs.runtime.access.principal import Principal
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.maintenance.archive_lines import WantedDocuments, archive_lines
from breadcrumbs.runtime.maintenance.export_import import export_lines, import_lines
from breadcrumbs.runtime.retrieval.model_view import model_content
from breadcrumbs.runtime.sessions.forks import ForkOptions, fork
from breadcrumbs.runtime.store.store import Store
from tests.proofs.test_replay import dump
from tests.support.adk_agents import chatting
from tests.support.adk_backend import fake_adk
from tests.support.conversations import ALICE, Working, agent, config, opened, recite, working
from tests.support.model_server import ModelServer
from tests.turns.test_one_turn import the_seeds_scenario

CURATOR = Principal(ALICE, UUID(int=7), frozenset(("curator",)))


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


async def ask(chat: Working, text: str, session: str = "s") -> Breadcrumb:
    return await chat.answer_to(await chat.say(session, text))


async def verified(chat: Working, answer: Breadcrumb) -> Verification:
    return await verify_answer(chat.store, chat.owner, answer.id)


def receipt_of(answer: Breadcrumb) -> dict[str, Any]:
    receipt: dict[str, Any] = answer.context["model_receipt"]
    return receipt


async def test_a_receipt_has_the_facts_that_the_server_reported(store: Store, server: ModelServer) -> None:
    usage = {
        "prompt_tokens": 12,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    reply = {
        "id": "chatcmpl-42",
        "model": "test-2026-01-01",
        "choices": [{"index": 0, "message": {"content": "Hi."}, "finish_reason": "length"}],
        "usage": usage,
    }
    scenario = server.scenario("raw", body=orjson.dumps(reply))
    model = resolve_model(f"{scenario.url}#test")
    async with working(store, model) as chat:
        answer = await ask(chat, "Hello")
        (call,) = receipt_of(answer)["calls"]
        assert call["id"] == "chatcmpl-42" and call["model"] == "test-2026-01-01"
        assert call["finish"] == "length" and call["tokens"] == [12, 7, 5, 2]
        assert call["ms"] >= call["first"] >= 0 and "attempts" not in call
        receipt = await load_receipt(store, ALICE, answer.id)
        turn = await rebuild_request(store, receipt)
        assert orjson.loads(turn.bodies[0]) == scenario.requests[0].body
        assert hashlib.sha256(turn.bodies[0]).digest() == decode_digest(call["request"])
        assert turn.setup.document["model"] == "test" and turn.setup.document["provider"] == "custom"
        assert (await verified(chat, answer)).outcome == "equal"
    await model.close()


async def test_a_refused_option_and_retries_are_part_of_the_receipt(
    store: Store, server: ModelServer
) -> None:
    scenario = server.scenario("picky", refuses=("stream_options", "max_tokens"))
    model = resolve_model(f"{scenario.url}#test")
    async with working(store, model, agents=[agent(max_tokens=50)]) as chat:
        answer = await ask(chat, "Hello")
        (call,) = receipt_of(answer)["calls"]
        assert call["attempts"] == 3
        turn = await rebuild_request(store, await load_receipt(store, ALICE, answer.id))
        assert orjson.loads(turn.bodies[0]) == scenario.requests[-1].body
        assert "stream_options" not in scenario.requests[-1].body
        assert (await verified(chat, answer)).outcome == "equal"
    await model.close()


async def test_a_repeated_turn_proves_the_requests_of_all_its_attempts(store: Store) -> None:
    """The second attempt replays the stored step of the first one."""

    async def word() -> str:
        """Return a word."""
        return "tea"

    model = ScriptedModel(
        [
            ModelReply("First.", (ToolCall("call-1", "word", "{ }"),)),
            ModelError("overloaded", retry=True),
            "Done.",
        ]
    )
    async with working(store, model, agents=[agent(tools=["word"])], tools=[Tool(word, name="word")]) as chat:
        answer = await ask(chat, "Hello")
        assert receipt_of(answer)["attempt"] == 2
        assert [call.get("replayed") for call in receipt_of(answer)["calls"]] == [True, None]
        result = await verified(chat, answer)
        assert (result.outcome, result.requests) == ("equal", 2), result
        turn = await rebuild_request(store, await load_receipt(store, ALICE, answer.id))
        assert b"call-1" in turn.bodies[1] and b"First." in turn.bodies[1]
        (step,) = await chat.all("s", "agent.step.v1")
        await store.delete(ALICE, step.id)
        result = await verified(chat, answer)
        assert result.outcome == "not rebuildable" and result.missing[0].kind == "step"


async def test_edits_do_not_change_a_rebuilt_request_and_a_deletion_is_named(store: Store) -> None:
    async with working(store) as chat:
        first = await chat.say("s", "tea, please")
        await chat.answer_to(first)
        answer = await ask(chat, "what did I say?")
        await ask(chat, "thanks")  # the context of the second answer is now stored as references
        await store.update(ALICE, first.id, BreadcrumbUpdate(context={"message": "coffee"}))
        await store.update(ALICE, answer.id, BreadcrumbUpdate(context={"message": "edited"}))
        assert (await verified(chat, answer)).outcome == "equal"
        await store.delete(ALICE, first.id)
        result = await verified(chat, answer)
        assert result.outcome == "not rebuildable"
        assert [missing.id for missing in result.missing] == [str(first.id)]
        assert str(first.id) in result.missing[0].reason


async def test_a_changed_item_is_found_and_its_cause_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(store) as chat:
        first = await chat.say("s", "tea, please")
        answer = await chat.answer_to(first)
        await ask(chat, "thanks")
        get = store.get

        async def tampered(owner: UUID, id: UUID, **more: Any) -> Breadcrumb:
            crumb = await get(owner, id, **more)
            if id != first.id:
                return crumb
            changed = crumb.document | {
                "context": {**crumb.context, "message": "ten kilograms of tea, please"}
            }
            return replace(crumb, json=orjson.dumps(changed))

        monkeypatch.setattr(store, "get", tampered)
        result = await verified(chat, answer)
        assert result.outcome == "different" and result.difference is not None
        assert str(first.id) in result.difference.where and "without a new version" in result.difference.cause
        receipt = await load_receipt(store, ALICE, answer.id)
        narrowed = Reader(lambda crumb: crumb.id != first.id, conceals_gone=True)
        view = await view_receipt(store, answer, receipt, ViewOptions(narrowed, verifies=True))
        assert view["verification"]["outcome"] == "different"
        assert str(first.id) not in str(view["verification"]), "this reader may not see the breadcrumb"


async def test_an_agent_with_its_own_sources_and_a_function_have_receipts(store: Store) -> None:
    async def count(call: Call) -> str:
        return f"{len(call.messages)} messages"

    selectors = [
        {"schema_name": "user.message.v1", "any_tags": ["ask:own"], "role": "trigger"},
        {"schema_name": "user.message.v1", "role": "context", "key": "log", "fetch": {"limit": 3}},
    ]
    agents = [agent("own", subscriptions={"selectors": selectors}), replace(agent(), function=count)]
    async with working(store, FunctionModel(recite), agents=agents) as chat:
        first = await chat.say("s", "one", tags=["ask:own"])
        await chat.settled()
        await store.update(ALICE, first.id, BreadcrumbUpdate(context={"message": "changed"}))
        answers = [crumb for crumb in await chat.answers("s") if crumb.context["trigger_id"] == str(first.id)]
        assert {crumb.context["creator"]["agent_id"] for crumb in answers} == {
            "own",
            agents[1].definition.agent_id,
        }
        for answer in answers:
            assert (await verified(chat, answer)).outcome == "equal"


async def test_the_context_of_an_answer_of_an_ADK_server_is_verified(store: Store) -> None:
    with fake_adk() as backend:
        async with chatting(store, backend.url) as chat:
            answer = await chat.answer_to(await chat.say("s", "Hello"))
            result = await verify_answer(store, chat.owner, answer.id)
            assert (result.outcome, result.requests) == ("equal", 0)


async def test_the_answer_in_a_fork_is_proven_by_the_original_answer(store: Store) -> None:
    async with working(store) as chat:
        answer = await ask(chat, "Hello")
        await fork(store, CURATOR, "s", "copy", ForkOptions())
        (copy,) = await chat.answers("copy")
        assert receipt_of(copy) == {"copy_of": str(answer.id)}
        assert (await verified(chat, copy)).outcome == "equal"
        await store.delete(ALICE, answer.id)
        result = await verified(chat, copy)
        assert result.outcome == "not rebuildable" and result.missing[0].id == str(answer.id)


async def test_a_client_cannot_invent_a_receipt(store: Store) -> None:
    async with working(store) as chat:
        answer = await ask(chat, "Hello")
        forged = {
            "schema_name": "agent.response.v1",
            "tags": ["session:s"],
            "title": "x",
            "context": answer.context,
        }
        written = await store.create(ALICE, BreadcrumbCreate.parse(forged), by=UUID(int=9))
        with pytest.raises(NotRebuildable, match="written by a client"):
            await load_receipt(store, ALICE, written.id)
        summary = Summary()
        assert [result.outcome async for result in verify_all(store, ALICE, None, summary)] == ["equal"]


async def test_an_edited_copy_cannot_name_another_answer_as_its_original(store: Store) -> None:
    async with working(store) as chat:
        answer, other = await ask(chat, "Hello"), await ask(chat, "Thanks")
        await fork(store, CURATOR, "s", "copy", ForkOptions())
        copy = (await chat.answers("copy"))[0]
        for crumb in (answer, copy):
            context = {**crumb.context, "model_receipt": {"copy_of": str(other.id)}}
            await store.update(ALICE, crumb.id, BreadcrumbUpdate(context=context), by=UUID(int=9))
        for origin in ("s", "copy"):
            await fork(store, CURATOR, origin, f"fork of {origin}", ForkOptions())
            forked = (await chat.answers(f"fork of {origin}"))[0]
            assert (await load_receipt(store, ALICE, forked.id)).answer.id == answer.id
            assert (await verified(chat, forked)).outcome == "equal"


async def test_an_import_for_another_owner_is_verified_also_with_a_prompt_cache_key(
    store: Store, server: ModelServer, embedded_server: EmbeddedServer
) -> None:
    scenario = server.scenario("normal")
    settings = {"endpoints": {"mine": {"url": scenario.url, "prompt_cache_key": True}}}
    async with (
        working(store, resolve_model("mine:test", settings)) as chat,
        opened(embedded_server.url, lanes=3) as other,
    ):
        answer = await ask(chat, "Hello")
        assert scenario.requests[0].body["prompt_cache_key"]
        lines = [line async for line in export_lines(store, ALICE, Query())]
        lines += [line async for line in archive_lines(store, ALICE, WantedDocuments(everything=True))]
        async for _ in import_lines(other, lines, owner=UUID(int=5)):
            pass
        assert (await verify_answer(other, UUID(int=5), answer.id)).outcome == "equal"


async def test_the_receipt_shows_the_definition_of_that_time_after_an_edit(store: Store) -> None:
    first = agent(system_prompt="Be brief.", model="http://secret.example/v1#small")
    async with working(store, agents=[first]) as chat:
        answer = await ask(chat, "Hello")
        definition = first.definition.model_dump(mode="json", exclude_none=True)
        await chat.post("agent.def.v1", [], definition | {"system_prompt": "Be long."})
        view = await view_receipt(
            store, answer, await load_receipt(store, ALICE, answer.id), ViewOptions(verifies=True)
        )
        assert view["agent"] == definition | {"model": "small"} and "secret" not in str(view)
        receipt = await load_receipt(store, ALICE, answer.id)
        assert "agent" not in await view_receipt(store, answer, receipt, ViewOptions(shows_setup=False))


async def test_verifying_and_viewing_write_nothing(store: Store) -> None:
    async with working(store) as chat:
        answers = [await ask(chat, text) for text in ("one", "two")]
        await store.delete(ALICE, answers[0].id)
        await chat.settled()
    before = await dump(store)
    summary = Summary()
    assert len([result async for result in verify_all(store, ALICE, None, summary)]) == 1
    receipt = await load_receipt(store, ALICE, answers[1].id)
    await view_receipt(store, answers[1], receipt, ViewOptions(verifies=True))
    with pytest.raises(NotFound):
        await verify_answer(store, ALICE, answers[0].id)
    assert await dump(store) == before


async def test_an_answer_without_its_first_version_is_not_proven(
    store: Store, embedded_server: EmbeddedServer
) -> None:
    """An edit can contain any receipt, so a newer version proves nothing."""
    async with working(store) as chat, opened(embedded_server.url) as other:
        answer = await ask(chat, "Hello")
        await store.update(ALICE, answer.id, BreadcrumbUpdate(context={**answer.context, "message": "x"}))
        lines = [line async for line in export_lines(store, ALICE, Query(), history=False)]
        async for _ in import_lines(other, lines):
            pass
        result = await verify_answer(other, ALICE, answer.id)
        assert result.outcome == "not rebuildable" and "first version" in result.missing[0].reason


async def test_models_never_see_a_receipt(store: Store) -> None:
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        seen.append(request)
        return (
            '{"action": "create", "breadcrumb": {"context": {"order": 7, "model_receipt": {"setup": "x"}}}}'
        )

    sources = [
        {"key": "conversation", "schema_name": schema, "fetch": {"limit": 9}}
        for schema in ("user.message.v1", "agent.response.v1")
    ]
    async with working(store, FunctionModel(answer), configs=[config(sources=sources)]) as chat:
        first = await ask(chat, "one")
        assert receipt_of(first)["setup"] != "x"
        await ask(chat, "two")
        assert "model_receipt" not in str(seen[-1].messages)
        assert "model_receipt" not in model_content(first, {"exclude": ["order"]})


async def test_the_view_counts_the_whole_prompt_against_the_window(store: Store) -> None:
    async def word() -> str:
        """Return a word."""
        return "tea"

    agents = [agent(tools=["word"])]
    async with working(store, agents=agents, tools=[Tool(word, name="word")]) as chat:
        answer = await ask(chat, "Hello")
        receipt = await load_receipt(store, ALICE, answer.id)
        view = await view_receipt(
            store, answer, receipt, ViewOptions(windows={"function": 1_000}, verifies=True)
        )
        tokens = view["tokens"]
        assert tokens["total"] == tokens["system_prompt"] + tokens["tools"] + tokens["items"]
        assert tokens["tools"] > 0 and tokens["window"] == 1_000
        assert view["prompt"]["system_prompt"] == "You are a test."
        assert [tool["function"]["name"] for tool in view["prompt"]["tools"]] == ["word"]
        assert view["verification"] == {"outcome": "equal", "requests": 1}
        hidden = await view_receipt(store, answer, receipt, ViewOptions(shows_setup=False))
        assert "You are a test." not in str(hidden) and hidden["prompt"]["setup_hidden"]


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("openai:gpt-4.1-mini", 1_047_576),
        ("openrouter:anthropic/claude-sonnet-4.5", 200_000),
        ("anthropic:claude-sonnet-4-5-20250929", 200_000),
        ("claude-3-5-haiku-20241022", 200_000),
        ("claude-opus-4-6", None),
        ("ollama:llama3.2:1b", None),
        ("gpt-4", 8_192),
        ("gpt-4-0613", 8_192),
        ("gpt-4-1106-preview", 128_000),
        ("gpt-4.5-preview", None),
        ("gpt-4o-mini", 128_000),
        ("openai:gpt-5-mini", 400_000),
        ("openai:gpt-5-chat-latest", 128_000),
        ("gpt-5.4", None),
        ("o1-mini", 128_000),
        ("gemini-2.5-flash-image", 32_768),
        ("offline", None),
    ],
)
def test_the_window_of_a_well_known_model_is_known(model: str, window: int | None) -> None:
    assert window_of(model) == window
    assert window_of(model, {model: 5}) == 5


async def test_all_answers_of_the_seeds_scenario_are_verified(store: Store) -> None:
    model = FunctionModel(recite)
    async with working(store, model) as chat:
        await the_seeds_scenario(chat, model)
        summary = Summary()
        assert [result.outcome async for result in verify_all(store, ALICE, None, summary)] == ["equal"] * 3
        assert summary == Summary(equal=3)
