"""Hooks in turns: changed prompts and answers, refusals, failures, and the proof of what they changed."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from typing import Any

import anyio
import pytest

from breadcrumbs import HookCall, Refuse, hook
from breadcrumbs.agents.functions import Call
from breadcrumbs.agents.hooks import Hook, Hooks
from breadcrumbs.agents.models.base import ModelReply, PromptMessage, ToolCall
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.agents.receipts import decode_digest
from breadcrumbs.agents.tools import tool
from breadcrumbs.proofs.receipt_view import ViewOptions, view_receipt
from breadcrumbs.proofs.replay import Changes, NotReplayable, prepare
from breadcrumbs.proofs.requests import load_receipt, rebuild_request
from breadcrumbs.proofs.verification import compare, verify_answer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.events import deltas
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import Working, agent, function_agent, last_words, recite, working

SECRET = "4111-1111"


@hook
def redact(call: HookCall) -> str | list[PromptMessage]:
    if call.stage == "before_answer":
        return call.text.replace(SECRET, "[card]")
    return call.map(lambda text: text.replace(SECRET, "[card]"))


@hook
async def moderate(call: HookCall) -> None:
    if "forbidden" in call.text:
        raise Refuse("This topic is not allowed here.")


@hook
def broken(call: HookCall) -> None:
    raise ValueError(f"cannot handle {call.text}")


@hook(name="slow", timeout=0.05)
def slow_thread(call: HookCall) -> None:
    time.sleep(1)


@hook(name="slow-async", timeout=0.05)
async def slow_task(call: HookCall) -> None:
    await anyio.sleep(60)


@hook
def wrong_type(call: HookCall) -> Any:
    return 7


OWN = (redact, moderate, broken, slow_thread, slow_task, wrong_type)


def hooked(*before_model: str, before_answer: tuple[str, ...] = (), **changes: Any) -> Any:
    return [agent(hooks={"before_model": before_model, "before_answer": before_answer}, **changes)]


async def told(chat: Working, text: str) -> Breadcrumb:
    return await chat.answer_to(await chat.say("s", text))


async def refused(chat: Working, text: str = "Hello") -> dict[str, Any]:
    error = await chat.error_about(await chat.say("s", text))
    assert await chat.answers("s") == []
    return error.context


# Changes


async def test_a_changed_prompt_is_what_the_model_gets_and_the_proof_accounts_for_it(store: Store) -> None:
    model = FunctionModel(recite)
    async with working(store, model, agents=hooked("moderate", "redact"), hooks=OWN) as chat:
        answer = await told(chat, f"My card is {SECRET}")
        assert last_words(model.requests[0]) == "My card is [card]"
        receipt = answer.context["model_receipt"]
        passed, changed = receipt["calls"][0]["hooks"]
        assert passed == ["moderate"] and changed[0] == "redact"
        assert changed[2] == receipt["calls"][0]["request"] != changed[1]
        assert SECRET not in str(receipt)
        result = await verify_answer(store, chat.owner, answer.id)
        assert result.outcome == "equal" and result.changed_by_hooks == ["redact"]
        view = await view_receipt(
            store, answer, await load_receipt(store, chat.owner, answer.id), ViewOptions(verifies=True)
        )
        assert [one["changed"] for one in view["calls"][0]["hooks"]] == [False, True]
        assert view["verification"]["changed_by_hooks"] == ["redact"]


@pytest.mark.parametrize("field", [1, 2])
async def test_a_changed_digest_of_a_hook_is_found(store: Store, field: int) -> None:
    async with working(store, agents=hooked("redact"), hooks=OWN) as chat:
        answer = await told(chat, f"My card is {SECRET}")
        other = await told(chat, f"Another: {SECRET}")
        stored = await load_receipt(store, chat.owner, answer.id)
        receipt = replace(stored, fields=deepcopy(dict(stored.fields)))
        entry = receipt.calls[0]["hooks"][0]
        entry[field] = other.context["model_receipt"]["calls"][0]["hooks"][0][field]
        assert compare(answer, await rebuild_request(store, receipt)).outcome == "different"


async def test_results_of_tools_pass_the_hooks_too(store: Store) -> None:
    @tool
    def lookup() -> str:
        """Look the card up."""
        return SECRET

    model = ScriptedModel([ModelReply("", (ToolCall("1", "lookup", "{}"),)), "done"])
    agents = hooked("redact", tools=["lookup"])
    async with working(store, model, agents=agents, tools=[lookup], hooks=OWN) as chat:
        answer = await told(chat, "Which card?")
        assert "[card]" in last_words(model.requests[1]) and SECRET not in str(model.requests[1].messages)
        assert (await verify_answer(store, chat.owner, answer.id)).outcome == "equal"


async def test_nothing_is_streamed_before_the_hooks_of_the_answer_have_passed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, str]] = []
    publish = deltas.publish

    def spy(store: Store, lane: int, delta: deltas.Delta) -> None:
        sent.append((delta.text, delta.reasoning))
        publish(store, lane, delta)

    monkeypatch.setattr(deltas, "publish", spy)

    class Thinking(FunctionModel):
        async def complete(self, request: Any, on_delta: Any = None) -> ModelReply:
            await request.observer.reason(f"the card is {SECRET}")
            await anyio.sleep(0.05)
            reply = await super().complete(request, on_delta)
            await anyio.sleep(0.05)
            return reply

    model = Thinking(lambda request: f"Your card is {SECRET}, I think")
    agents = hooked(before_answer=("moderate", "redact"))
    async with working(store, model, agents=agents, hooks=OWN) as chat:
        answer = await told(chat, "Hello")
        assert answer.context["message"] == "Your card is [card], I think"
        assert "".join(text for text, _ in sent) == "Your card is [card], I think"
        assert SECRET not in str(answer.context) and not any(reasoning for _, reasoning in sent)
        passed, changed = answer.context["model_receipt"]["answer_hooks"]
        assert passed == ["moderate"]
        assert decode_digest(changed[2]) == sha256(b"Your card is [card], I think").digest()
        assert (await verify_answer(store, chat.owner, answer.id)).changed_by_hooks == ["redact"]


async def test_the_hooks_of_an_answer_see_all_fields_of_a_functions_reply(store: Store) -> None:
    async def answer(call: Call) -> dict[str, Any]:
        await call.say(SECRET)
        return {"context": {"message": "yours", "card": SECRET}, "title": SECRET}

    one = function_agent(answer)
    definition = one.definition.model_copy(
        update={"hooks": hooked(before_answer=("redact",))[0].definition.hooks}
    )
    async with working(store, agents=[replace(one, definition=definition)], hooks=OWN) as chat:
        found = await told(chat, "Hello")
        assert found.context["card"] == "[card]" and SECRET not in found.title


# Refusals and failures


async def test_a_refusal_is_shown_with_its_reason_and_the_model_is_not_called(store: Store) -> None:
    model = ScriptedModel([])
    async with working(store, model, agents=hooked("moderate"), hooks=OWN) as chat:
        error = await refused(chat, "a forbidden question")
        assert error["error"] == "This topic is not allowed here."
        assert error["refused_by"] == "moderate" and error["cancelled"] is False
        assert model.requests == [] and await chat.dead_letters() == []


async def test_a_refused_answer_is_not_stored(store: Store) -> None:
    agents = hooked(before_answer=("moderate",))
    async with working(store, FunctionModel(recite), agents=agents, hooks=OWN) as chat:
        assert (await refused(chat, "forbidden"))["refused_by"] == "moderate"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "the hook 'broken' failed: ValueError"),
        ("slow", "the hook 'slow' did not finish within 0.05 s"),
        ("slow-async", "the hook 'slow-async' did not finish within 0.05 s"),
        ("wrong_type", "returned int"),
        ("redcat", "did you mean 'redact'?"),
    ],
)
@pytest.mark.parametrize("stage", ["before_model", "before_answer"])
async def test_a_hook_that_fails_is_slow_or_is_missing_fails_the_turn(
    store: Store, name: str, reason: str, stage: str
) -> None:
    agents = [agent(hooks={stage: [name]})]
    async with working(store, FunctionModel(recite), agents=agents, hooks=OWN) as chat:
        error = await refused(chat, "quoted?")
        assert reason in error["error"] and "quoted?" not in error["error"]


async def test_an_answer_of_an_agent_with_hooks_is_not_replayed(store: Store) -> None:
    async with working(store, agents=hooked("redact"), hooks=OWN) as chat:
        answer = await told(chat, "Hello")
        with pytest.raises(NotReplayable, match="hooks"):
            await prepare(store, answer, Changes(), lambda names: ())


# Definitions and names


def test_a_missing_hook_is_found_when_the_definition_is_loaded() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'redact'") as caught:
        Hooks(OWN).check(hooked("moderate", "redcat")[0].definition)
    assert caught.value.complaints[0].where == "hooks.before_model[1]"


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="before_modle"):
        agent(hooks={"before_modle": ["redact"]})


def test_two_hooks_cannot_have_the_same_name() -> None:
    with pytest.raises(StartupError, match="two hooks"):
        Hooks([redact, Hook("redact", moderate.function)])


@pytest.mark.parametrize(("name", "timeout"), [("a b", 1.0), ("", 1.0), ("a", 0.0), ("a", 301.0)])
def test_an_invalid_hook_is_refused(name: str, timeout: float) -> None:
    with pytest.raises(InvalidInput):
        Hook(name, moderate.function, timeout)
