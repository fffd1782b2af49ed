"""The test kit: the fixture, models as objects, and assertions on prompts, tools, breadcrumbs and receipts."""

from __future__ import annotations

from typing import Any

import pytest

from breadcrumbs import AgentFailed, Call, StartupError, agent, running_agents, tool
from breadcrumbs.testing import (
    CheckedAnswer,
    Crumbs,
    ModelError,
    ModelRequest,
    ScriptedModel,
    call_tool,
    call_tools,
)

HELPER: dict[str, Any] = {
    "agent_id": "helper",
    "system_prompt": "Be kind.",
    "tools": ["double"],
    "subscriptions": {
        "selectors": [{"schema_name": "agent.context.v1", "all_tags": ["consumer:helper"], "role": "trigger"}]
    },
}


@tool
def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


@agent("shouter", triggers=[{"schema_name": "user.message.v1"}])
async def shouter(call: Call) -> str:
    return call.text.upper()


@pytest.fixture
def answer(crumbs: Crumbs) -> CheckedAnswer:
    crumbs.run(HELPER, tools=[double], replies=[call_tool("double", number=21), "It is 42."])
    return crumbs.say("What is twice 21?")


def test_assertions_that_hold_can_be_chained(answer: CheckedAnswer) -> None:
    answer.saw("Be kind.", "What is twice 21?", '"output":42').did_not_see("banana")
    answer.called("double", number=21).called("double").did_not_call("triple")
    answer.posted("tool.response.v1", output=42).posted("agent.response.v1", message="It is 42.")
    answer.has_valid_receipt()
    assert (answer.text, answer.agent_id, len(answer.receipt["calls"])) == ("It is 42.", "helper", 2)
    assert [str(call) for call in answer.tool_calls] == ['double({"number": 21}) -> 42']
    assert answer.prompt[0] == {"role": "system", "content": "Be kind."}
    assert [schema["function"]["name"] for schema in answer.tool_schemas] == ["double"]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (
            lambda answer: answer.saw("What is thrice 21?"),
            "Nearest line of the prompt:\n    What is twice 21?",
        ),
        (lambda answer: answer.saw("banana"), "system: Be kind.\n    user: What is twice 21?"),
        (lambda answer: answer.did_not_see("kind"), "in this message:\n    system: Be kind."),
        (lambda answer: answer.called("double", number=22), '-  "number": 22\n    +  "number": 21'),
        (lambda answer: answer.called("triple"), 'Its tool calls: double({"number": 21}) -> 42'),
        (lambda answer: answer.did_not_call(), 'helper called double({"number": 21}) -> 42'),
        (
            lambda answer: answer.posted("note.v1"),
            "It posted: tool.request.v1, tool.response.v1, agent.response.v1",
        ),
        (lambda answer: answer.posted("agent.response.v1", message="No"), '+  "message": "It is 42."'),
    ],
)
def test_a_failed_assertion_shows_the_difference(answer: CheckedAnswer, check: Any, message: str) -> None:
    with pytest.raises(AssertionError) as failed:
        check(answer)
    assert message in str(failed.value)


def test_a_plain_function_is_accepted_as_a_model(crumbs: Crumbs) -> None:
    def repeat(request: ModelRequest) -> str:
        return f"you wrote {request.messages[-1].content}"

    crumbs.run({**HELPER, "tools": [], "model": repeat})
    assert crumbs.say("hello").text == "you wrote hello"


def test_models_as_objects_are_accepted_by_running_agents(crumbs: Crumbs) -> None:
    server = crumbs.server
    named = {"agent_id": "named", "subscriptions": {"selectors": [{"schema_name": "user.message.v1"}]}}
    model = ScriptedModel(["From the script."])
    with running_agents([named], model=model, redis=server.redis_url, data=server.parts.settings.data):
        assert crumbs.say("hello", agent="named").text == "From the script."
    assert len(model.requests) == 1


def test_tests_do_not_see_each_other_and_sessions_stay_apart(crumbs: Crumbs) -> None:
    crumbs.run(HELPER, tools=[double], model=lambda request: "ok")
    crumbs.session("other").say("a secret")
    crumbs.say("hello").did_not_see("a secret", "twice 21")
    assert {info.id for info in crumbs.client.sessions()} == {"test", "other"}


def test_function_agents_attached_pages_and_several_tools(crumbs: Crumbs) -> None:
    crumbs.run(shouter)
    crumbs.say("hi").saw("hi").did_not_call()
    both = call_tools(("double", {"number": 1}), ("double", {"number": 2}), text="Let me see.")
    crumbs.run(HELPER, tools=[double], replies=[both, "2 and 4"])
    crumbs.post("page.content.v1", {"title": "News", "content": "It rains."})
    answer = crumbs.say("twice?", agent="helper")
    answer.saw("It rains.").called("double", number=2)
    assert answer.text == "Let me see.\n\n2 and 4"


def test_errors_are_raised_with_their_reason(crumbs: Crumbs) -> None:
    crumbs.run(HELPER, tools=[double], replies=[ModelError("overloaded", retry=False)])
    with pytest.raises(AgentFailed, match="overloaded"):
        crumbs.say("hi")
    with pytest.raises(StartupError, match=r"no agent 'nobody'. Its agents: default-chat-assistant"):
        crumbs.run("nobody")
    with pytest.raises(StartupError, match="not a model"):
        crumbs.run(HELPER, tools=[double], model=42)


def test_a_message_without_an_agent_fails_with_advice(crumbs: Crumbs) -> None:
    with pytest.raises(AssertionError, match=r"Running agents: none: call crumbs.run\(…\) first"):
        crumbs.say("hello", timeout=0.2)


def test_a_project_agent_never_calls_a_provider_by_accident(crumbs: Crumbs) -> None:
    crumbs.run({**HELPER, "tools": [], "model": "openai:gpt-4.1"})
    assert crumbs.say("hi").text.startswith("Hi!")
