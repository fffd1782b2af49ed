"""Custom agents and tools that run next to those of `crumb up`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from breadcrumbs import AgentFailed, Call, Client, StartupError, agent, run_agents, running_agents, tool
from tests.client.support import CRUMB, LIMIT, CrumbUp, environment

USER_MESSAGES = {"schema_name": "user.message.v1", "any_tags": ["user:message"]}


@agent("shouter", triggers=[USER_MESSAGES])
async def shouter(call: Call) -> str:
    return call.text.upper()


@agent("breaker", triggers=[USER_MESSAGES], timeout_seconds=5)
async def breaker(call: Call) -> str:
    raise ValueError(f"cannot say {call.text}")


@agent("second-breaker", triggers=[USER_MESSAGES], timeout_seconds=5)
async def second_breaker(call: Call) -> str:
    raise ValueError("nor can I")


@pytest.fixture
def client(up: CrumbUp) -> Iterator[Client]:
    with Client(up.url) as made:
        yield made


def test_a_custom_agent_answers_every_session_instead_of_the_default_agent(
    up: CrumbUp, client: Client, name: str
) -> None:
    with running_agents([shouter], data=up.data):
        # Enough sessions to use every lane. No event of this agent must go to a runner that does not have it.
        sessions = [client.session(f"{name}-{number}") for number in range(24)]
        posted = [session.say("loud", wait=False).id for session in sessions]
        for session, message in zip(sessions, posted, strict=True):
            assert session.wait(message, agent="shouter", timeout=30).text == "LOUD"
        addressed = sessions[0].say("say: quiet", to="default-chat-assistant", timeout=30)
        assert (addressed.text, addressed.agent_id) == ("quiet", "default-chat-assistant")
    answered = sessions[0].say("say: alone", timeout=30)
    assert (answered.text, answered.agent_id) == ("alone", "default-chat-assistant")
    assert len(sessions[0].messages()) == 6 and len(sessions[1].messages()) == 2


def test_messages_posted_while_an_agent_is_stopped_are_answered_after_its_restart(
    up: CrumbUp, client: Client, name: str
) -> None:
    @agent(f"absent-{name}", triggers=[USER_MESSAGES])
    async def absent(call: Call) -> str:
        return f"back for {call.text}"

    session = client.session(name)
    before = session.say("too early", wait=False)
    with running_agents([absent], data=up.data):
        now = session.say("first", agent=absent.definition.agent_id, timeout=30)
    away = session.say("meanwhile", wait=False, to=absent.definition.agent_id)
    other = session.say("say: for anyone", timeout=30)
    with running_agents([absent], data=up.data):
        later = session.wait(away.id, agent=absent.definition.agent_id, timeout=30)
    # Another agent has answered this message, so it gets no second answer.
    assert [one.agent_id for one in session.messages() if one.trigger_id == other.trigger_id] == [
        "default-chat-assistant"
    ]
    assert (now.text, later.text) == ("back for first", "back for meanwhile")
    # A new agent does not answer messages that are older than its first start.
    mine = [
        message.trigger_id for message in session.messages() if message.agent_id == absent.definition.agent_id
    ]
    assert mine == [now.trigger_id, later.trigger_id]
    assert before.id not in mine


def test_two_runners_of_the_same_agent_answer_once(up: CrumbUp, client: Client, name: str) -> None:
    with running_agents([shouter], data=up.data), running_agents([shouter], data=up.data):
        session = client.session(name)
        for text in ("one", "two", "three"):
            assert session.say(text, agent="shouter", timeout=30).text == text.upper()
    answers = [message.text for message in session.messages() if message.agent_id == "shouter"]
    assert answers == ["ONE", "TWO", "THREE"]


def test_agents_that_fail_on_the_same_message_each_report_an_error(
    up: CrumbUp, client: Client, name: str
) -> None:
    session = client.session(name)
    with running_agents([breaker, second_breaker], data=up.data, turn_attempts=1):
        with pytest.raises(AgentFailed, match="cannot say hello"):
            session.say("hello", agent="breaker", timeout=30)
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            found = {
                crumb.context["error"] for crumb in client.list(session=name, schema_name="agent.error.v1")
            }
            if len(found) == 2:
                break
            time.sleep(0.05)
    assert found == {"cannot say hello", "nor can I"}


def test_a_model_can_call_a_custom_tool(up: CrumbUp, client: Client, name: str) -> None:
    @tool
    def double(number: int) -> int:
        """Return twice the number."""
        return 2 * number

    helper = {"agent_id": "helper", "tools": ["double"], "subscriptions": {"selectors": [USER_MESSAGES]}}
    with running_agents([helper], tools=[double], data=up.data):
        answer = client.session(name).say('use double {"number": 21}', agent="helper", timeout=30)
    assert "42" in answer.text


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([shouter, shouter], "two agents have the agent_id 'shouter'"),
        ([{"agent_id": "x"}], "the agent definition 'x' is invalid"),
        (
            [{"agent_id": "x", "tools": ["nope"], "subscriptions": {"selectors": [USER_MESSAGES]}}],
            "tool 'nope' not found",
        ),
        (
            [{"agent_id": "x", "model": "nope", "subscriptions": {"selectors": [USER_MESSAGES]}}],
            "model 'nope' not found",
        ),
    ],
)
def test_an_invalid_agent_is_refused_before_it_runs(up: CrumbUp, agents: list[object], message: str) -> None:
    with pytest.raises(StartupError, match=message), running_agents(agents, data=up.data):  # type: ignore[arg-type]
        pytest.fail("it began to run")


def test_two_tools_with_the_same_name_are_refused(up: CrumbUp) -> None:
    @tool(name="calculator")
    def mine(text: str) -> str:
        """Return the text. Has the name of a shipped tool."""
        return text

    with (
        pytest.raises(StartupError, match="calculator"),
        running_agents([shouter], tools=[mine], data=up.data),
    ):
        pytest.fail("it began to run")


def test_without_a_server_the_error_names_the_command_to_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="crumb up"), running_agents([shouter], data=tmp_path):
        pytest.fail("it began to run")
    with pytest.raises(StartupError, match="crumb up"):
        run_agents([shouter], data=tmp_path)


MODULE = '''
from breadcrumbs import Call, agent, tool
from breadcrumbs.agents.definition import AgentDefinition

@agent("{name}-loaded", triggers=[{{"schema_name": "user.message.v1", "any_tags": ["user:message"]}}])
async def loaded(call: Call) -> str:
    await call.say("from")
    return "from a module"

@tool
def spell(word: str) -> list[str]:
    """Letter by letter."""
    return list(word)

speller = AgentDefinition.model_validate({{
    "agent_id": "{name}-speller", "tools": ["spell"],
    "subscriptions": {{"selectors": [{{"schema_name": "user.message.v1", "any_tags": ["user:message"]}}]}},
}})
'''


def test_the_command_loads_a_module_and_runs_its_agents_until_sigterm(
    up: CrumbUp, client: Client, name: str, tmp_path: Path
) -> None:
    (tmp_path / "my_agents.py").write_text(MODULE.format(name=name))
    process = subprocess.Popen(
        [CRUMB, "run-agents", "--load", "my_agents", "--data", up.data],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        ready = {json.loads(process.stdout.readline())["kind"] for _ in range(2)}
        assert ready == {f"agents/{name}-loaded", f"agents/{name}-speller"}
        session = client.session(name)
        _say_until_answered(client, session.id, f"{name}-loaded")
        assert session.say("hello", agent=f"{name}-loaded", timeout=30).text == "from a module"
        spelt = session.say('use spell {"word": "abc"}', agent=f"{name}-speller", timeout=30).text
        assert "a" in spelt and "b" in spelt
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert "Traceback" not in errors


def _say_until_answered(client: Client, session: str, agent_id: str) -> None:
    """Post messages until the agent answers. A new agent answers only messages posted after its start."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        client.post("knock", session)
        time.sleep(0.3)
        if any(message.agent_id == agent_id for message in client.session(session).messages()):
            return
    pytest.fail("the agent does not answer")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "importing module 'broken_module' failed"),
        ("raise RuntimeError('oh no')", "oh no"),
        ("x = 1", "contains no agents, tools or hooks"),
    ],
)
def test_the_error_of_an_unloadable_module_contains_its_name_and_the_reason(
    up: CrumbUp, tmp_path: Path, source: str | None, message: str
) -> None:
    if source is not None:
        (tmp_path / "broken_module.py").write_text(source)
    ended = subprocess.run(
        [CRUMB, "run-agents", "--load", "broken_module", "--data", up.data],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ended.returncode == 1
    assert message in ended.stderr and "broken_module" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_module_without_agents_is_refused(up: CrumbUp, tmp_path: Path) -> None:
    (tmp_path / "only_tools.py").write_text(
        'from breadcrumbs import tool\n\n@tool\ndef add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n'
    )
    ended = subprocess.run(
        [CRUMB, "run-agents", "--load", "only_tools", "--data", up.data],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ended.returncode == 1
    assert "no agents to run" in ended.stderr and "Traceback" not in ended.stderr
    with pytest.raises(StartupError, match="no agents to run"), running_agents([], data=up.data):
        pass


def test_crumb_up_runs_agents_of_the_modules_in_its_settings(tmp_path: Path, name: str) -> None:
    (tmp_path / "my_agents.py").write_text(MODULE.format(name=name))
    (tmp_path / "crumb.toml").write_text('load = ["my_agents"]\n')
    with CrumbUp(tmp_path) as server, Client(server.url) as client:
        session = client.session(name)
        assert session.say("hello", agent=f"{name}-loaded", timeout=30).text == "from a module"
        assert session.say("say: hello", to="default-chat-assistant", timeout=30).text == "hello"


def test_a_stopped_agent_leaves_no_threads_running(up: CrumbUp) -> None:
    threads = len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 0
    for _ in range(3):
        with running_agents([shouter], data=up.data):
            pass
    if threads:
        assert len(os.listdir("/proc/self/task")) <= threads + 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"triggers": [{}]}, "a trigger without conditions would match the agent's own answers"),
        (
            {"triggers": [{"schema_nam": "note.v1"}]},
            "subscriptions.selectors.0.schema_nam: unknown field: did you mean 'schema_name'? "
            "use one of schema_name, any_tags, all_tags",
        ),
        ({"max_steps": 0}, "max_steps: Input should be greater than or equal to 1"),
    ],
)
def test_an_invalid_function_agent_is_refused_with_the_reason(options: dict[str, Any], says: str) -> None:
    with pytest.raises(StartupError, match=r"the agent 'wrong' is invalid:\n  ") as refused:
        agent("wrong", **options)
    assert says in str(refused.value) and "pydantic" not in str(refused.value)


def test_an_answer_without_text_is_stored_once(up: CrumbUp, client: Client, name: str) -> None:
    @agent("scorer", triggers=[USER_MESSAGES])
    async def scorer(call: Call) -> dict[str, Any]:
        return {"context": {"score": 3, "content": {"why": call.text}}}

    with running_agents([scorer], data=up.data):
        answer = client.session(name).say("good", agent="scorer", timeout=30)
    assert json.loads(answer.text) == {"score": 3, "content": {"why": "good"}}
    stored = client.get_full(answer.id).context
    assert (stored["score"], stored["content"], "message" in stored) == (3, {"why": "good"}, False)
    (message,) = [one for one in client.session(name).messages() if one.agent_id == "scorer"]
    assert json.loads(message.text) == json.loads(answer.text)
