"""Chains of agents in real processes: waiting for the last answer, roots, limits, retries, kills and isolation."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from breadcrumbs import AgentFailed, Answer, Call, Client, NoAnswer, agent, running_agents
from breadcrumbs.client.values import Breadcrumb
from tests.client.support import CRUMB, LIMIT, CrumbUp, environment

START = {"schema_name": "user.message.v1", "any_tags": ["chain:start"]}


def after(tag: str) -> dict[str, Any]:
    return {"schema_name": "agent.response.v1", "all_tags": [tag]}


class Shared:
    """State of the agents of this module."""

    fails = False
    runs = 0


@agent("chain-drafter", triggers=[START], emits={"tags": ["chain:draft"]})
async def drafter(call: Call) -> Any:
    await asyncio.sleep(0.1)
    # A model that writes runtime keys cannot attach its answer to another chain.
    context = {"message": f"draft of {call.text}", "root_id": "forged", "hops": 0}
    return {"context": context}


@agent("chain-editor", triggers=[after("chain:draft")], emits={"tags": ["chain:text"]})
async def editor(call: Call) -> str:
    Shared.runs += 1
    await asyncio.sleep(0.15)
    if Shared.fails:
        raise ValueError("no ink")
    return f"edit of {call.text}"


@agent("chain-critic", triggers=[after("chain:draft")], emits={"tags": []})
async def critic(call: Call) -> str:
    await asyncio.sleep(0.05)
    return f"critique of {call.text}"


@agent("chain-printer", triggers=[after("chain:text")], emits={"tags": []})
async def printer(call: Call) -> str:
    await asyncio.sleep(0.3)
    return f"print of {call.text}"


@agent(
    "chain-ping",
    triggers=[{"schema_name": "user.message.v1", "any_tags": ["chain:loop"]}, after("chain:pong")],
    emits={"tags": ["chain:ping"]},
    hop_limit=9,
)
async def ping(call: Call) -> str:
    return "ping"


# A lower limit than that of its partner: it is passed by, and never met exactly.
@agent("chain-pong", triggers=[after("chain:ping")], emits={"tags": ["chain:pong"]}, hop_limit=4)
async def pong(call: Call) -> str:
    return "pong"


@agent(
    "chain-crowd",
    triggers=[{"schema_name": "user.message.v1", "any_tags": ["chain:crowd"]}, after("chain:crowd")],
    emits={"tags": ["chain:crowd"]},
    hop_limit=64,
)
async def crowd(call: Call) -> str:
    return "more"


@agent("chain-second-crowd", triggers=[after("chain:crowd")], emits={"tags": ["chain:crowd"]}, hop_limit=64)
async def second_crowd(call: Call) -> str:
    return "even more"


ALL = [drafter, editor, critic, printer, ping, pong]


@pytest.fixture(scope="module")
def agents(up: CrumbUp) -> Iterator[None]:
    with running_agents(ALL, data=up.data, turn_attempts=1):
        yield


@pytest.fixture
def client(up: CrumbUp, agents: None) -> Iterator[Client]:
    Shared.fails = False
    with Client(up.url) as made:
        yield made


def test_a_client_waits_for_the_last_answer_or_for_a_named_agent(client: Client, name: str) -> None:
    session = client.session(name)
    options: Any = {"tags": ["chain:start"], "timeout": 30}
    last = session.say("say: tea", wait_for="last", **options)
    assert (last.agent_id, last.text) == ("chain-printer", "print of edit of draft of say: tea")
    edit = session.say("say: tea", wait_for="agent:chain-editor", **options)
    assert edit.agent_id == "chain-editor"
    assert session.say("say: tea", agent="chain-printer", **options).agent_id == "chain-printer"
    # The wait for the first answer is the default. It does not wait for hand-overs.
    first = session.say("say: tea", **options)
    assert first.agent_id == "chain-drafter"
    # A later wait finds the stored answers, also from the middle of the chain.
    root = root_of(session.wait(edit.id, wait_for="last", timeout=30))
    assert session.wait(root, wait_for="last", timeout=30).agent_id == "chain-printer"
    with pytest.raises(ValueError, match="wait_for must be first, last or agent:NAME"):
        session.say("hello", wait_for="every")
    with pytest.raises(ValueError, match="pass agent or wait_for, not both"):
        session.say("hello", wait_for="last", agent="chain-editor")


def test_a_stream_yields_the_answers_of_all_agents_in_order(client: Client, name: str) -> None:
    session = client.session(name)
    items = [*session.stream("say: tea", tags=["chain:start"], wait_for="last", timeout=30)]
    answers = [item.agent_id for item in items if isinstance(item, Answer)]
    assert sorted(filter(None, answers)) == sorted(
        ["chain-drafter", "chain-critic", "chain-editor", "chain-printer"]
    )
    order = [answers.index(f"chain-{one}") for one in ("drafter", "critic", "editor", "printer")]
    assert order == sorted(order) and answers[-1] == "chain-printer"


def test_everything_that_follows_from_a_message_names_it_as_its_root(client: Client, name: str) -> None:
    session = client.session(name)
    session.say("say: tea", tags=["chain:start"], wait_for="last", timeout=30)
    crumbs = [*client.list(session=name)]
    (message,) = [crumb for crumb in crumbs if crumb.schema_name == "user.message.v1"]
    others = [crumb for crumb in crumbs if crumb.schema_name not in ("user.message.v1", "session.v1")]
    assert {crumb.schema_name for crumb in others} == {"agent.context.v1", "agent.response.v1"}
    assert {root_of(crumb) for crumb in others} == {message.id}
    assert "root_id" not in message.context


def test_the_chain_shows_every_hop_and_who_it_was_handed_over_to(client: Client, name: str) -> None:
    session = client.session(name)
    session.say("say: tea", tags=["chain:start"], wait_for="last", timeout=30)
    (message,) = client.list(session=name, schema_name="user.message.v1")
    chain = client.request("GET", f"/sessions/{name}/messages/{message.id}/chain").json()
    assert chain["root_id"] == message.id and chain["finished"] and chain["waiting_for"] == []
    assert set(chain["message"]["handed_over_to"]) == {"chain-drafter"}
    steps = {step["agent_id"]: step for step in chain["steps"]}
    assert len(chain["steps"]) == 4
    assert set(steps["chain-drafter"]["handed_over_to"]) == {"chain-editor", "chain-critic"}
    assert steps["chain-editor"]["handed_over_to"] == ["chain-printer"]
    assert "handed_over_to" not in steps["chain-printer"]
    assert {step["root_id"] for step in chain["steps"]} == {message.id}
    # From a message in the middle, only what follows from it is shown.
    middle = client.request("GET", f"/sessions/{name}/messages/{steps['chain-editor']['id']}/chain").json()
    assert [step["agent_id"] for step in middle["steps"]] == ["chain-printer"]
    assert middle["root_id"] == message.id


def test_a_post_waits_for_the_last_answer_and_a_stream_sends_each_hop(client: Client, name: str) -> None:
    path, body = f"/sessions/{name}/messages", {"message": "say: tea", "tags": ["chain:start"]}
    params = {"wait": "30", "wait_for": "last"}
    reply = client.request("POST", path, json=body, params=params)
    said = reply.json()
    assert reply.status == 200 and said["answer"]["agent_id"] == "chain-printer"
    assert said["chain"]["finished"] and "chain-critic" in said["chain"]["agents"]
    late = client.request("POST", path, json=body, params=params | {"wait": "0.35"})
    assert late.status == 202 and not late.json()["chain"]["finished"]
    assert late.json()["chain"]["waiting_for"]
    frames = client.request(
        "POST", path, json=body, params=params, headers={"accept": "text/event-stream"}
    ).content.decode()
    names = [line.removeprefix("event: ") for line in frames.splitlines() if line.startswith("event: ")]
    assert names.count("hop") == 4 and names[0] == "message" and names[-1] == "answer"
    for wrong in ("each", "agent:", f"agent:{'x' * 300}"):
        with pytest.raises(Exception, match="wait_for must be first, last or agent:NAME"):
            client.request("POST", path, json=body, params={"wait": "1", "wait_for": wrong})


def test_a_wait_for_an_agent_ends_when_the_chain_has_ended_without_it(client: Client, name: str) -> None:
    session, began = client.session(name), time.monotonic()
    with pytest.raises(NoAnswer, match=r"nobody has not answered \(default-chat-assistant did\)"):
        session.say("say: hello", wait_for="agent:nobody", timeout=60)
    Shared.fails = True
    with pytest.raises(AgentFailed, match="no ink"):
        session.say("say: hello", tags=["chain:start"], wait_for="agent:chain-printer", timeout=60)
    assert time.monotonic() - began < 30


def test_a_failed_hop_is_the_end_of_the_chain_until_it_is_retried(client: Client, name: str) -> None:
    session = client.session(name)
    Shared.fails, Shared.runs = True, 0
    with pytest.raises(AgentFailed, match="no ink") as failed:
        session.say("say: tea", tags=["chain:start"], wait_for="last", timeout=30)
    error = client.get(failed.value.breadcrumb_id)
    (message,) = client.list(session=name, schema_name="user.message.v1")
    assert root_of(error) == message.id and error.context["agent_id"] == "chain-editor"
    Shared.fails = False
    session.retry()
    last = session.wait(message.id, wait_for="last", timeout=30)
    assert last.agent_id == "chain-printer" and Shared.runs == 2
    assert count_answers(client, name) == 4


def test_a_loop_ends_with_one_error_that_names_its_agents(client: Client, name: str) -> None:
    session = client.session(name)
    with pytest.raises(AgentFailed, match="chain-ping → chain-pong → chain-ping → chain-pong") as failed:
        session.say("say: go", tags=["chain:loop"], wait_for="last", timeout=30)
    assert "hop limit of chain-pong is 4" in failed.value.reason
    (error,) = client.list(session=name, schema_name="agent.error.v1")
    assert error.context["agents"] == ["chain-ping", "chain-pong"] and error.context["hops"] == 6
    (message,) = client.list(session=name, schema_name="user.message.v1")
    assert root_of(error) == message.id
    assert count_answers(client, name) == 5


def test_the_number_of_turns_of_a_message_is_limited(up: CrumbUp, client: Client, name: str) -> None:
    turns = 12
    options: Any = {"chain_turns": turns, "chain_hops": 64}
    with (
        running_agents([crowd, second_crowd], data=up.data, turn_attempts=1, **options),
        pytest.raises(AgentFailed, match=f"led to {turns} turns of agents.*chain-crowd"),
    ):
        client.session(name).say("say: go", tags=["chain:crowd"], wait_for="last", timeout=50)
    # Two agents can pass the limit at the same time.
    assert turns <= count_answers(client, name) <= turns + 2


def test_a_client_cannot_attach_its_message_to_another_chain(client: Client, name: str) -> None:
    first, second = client.session(name), client.session(f"{name}-2")
    options: Any = {"tags": ["chain:start"], "wait_for": "last", "timeout": 30}
    victim = root_of(first.say("say: tea", **options))
    own = second.say("say: milk", context={"root_id": victim, "trigger_id": victim}, **options)
    same = first.say("say: water", context={"root_id": victim}, **options)
    (message,) = client.list(session=f"{name}-2", schema_name="user.message.v1")
    assert root_of(own) == message.id != victim and root_of(same) != victim
    chain = client.request("GET", f"/sessions/{name}/messages/{victim}/chain").json()
    assert {step["root_id"] for step in chain["steps"]} == {victim} and len(chain["steps"]) == 4
    assert not any("milk" in step["text"] or "water" in step["text"] for step in chain["steps"])
    # An edit cannot move an answer either.
    for merge in (False, True):
        client.update(own.id, context={"root_id": victim, "message": "mine"}, merge_context=merge)
        assert root_of(client.get(own.id)) == message.id


def test_chains_of_many_sessions_never_mix(client: Client, name: str, up: CrumbUp) -> None:
    def run(number: int) -> tuple[str, list[str]]:
        with Client(up.url) as own:
            last = own.session(f"{name}-{number}").say(
                f"say: {number}", tags=["chain:start"], wait_for="last", timeout=50
            )
            chain = own.request("GET", f"/sessions/{name}-{number}/messages/{root_of(last)}/chain").json()
            return last.text, [step["text"] for step in chain["steps"]]

    with ThreadPoolExecutor(8) as pool:
        results = [*pool.map(run, range(8))]
    for number, (last, texts) in enumerate(results):
        assert last == f"print of edit of draft of say: {number}"
        assert len(texts) == 4 and all(text.endswith(str(number)) for text in texts)


PROGRAM = """
import os, pathlib, time
from breadcrumbs import Call, agent

@agent("{name}-first", triggers=[{{"schema_name": "{name}.start.v1"}}], emits={{"tags": ["{name}:one"]}})
async def first(call: Call) -> str:
    return "one"

@agent("{name}-second", triggers=[{{"schema_name": "agent.response.v1", "all_tags": ["{name}:one"]}}],
       emits={{"tags": ["{name}:two"]}})
async def second(call: Call) -> str:
    marker = pathlib.Path("killed")
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), 9)
    return "two"

@agent("{name}-third", triggers=[{{"schema_name": "agent.response.v1", "all_tags": ["{name}:two"]}}])
async def third(call: Call) -> str:
    return "three"
"""


def test_a_chain_continues_after_its_runner_was_killed(
    up: CrumbUp, client: Client, name: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(name=name))

    def start() -> subprocess.Popen[str]:
        command = [str(CRUMB), "run-agents", "--load", "program", "--data", str(up.data)]
        started = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment(CRUMB_LEASE_SECONDS="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert started.stdout is not None
        assert {json.loads(started.stdout.readline())["kind"] for _ in range(3)}
        return started

    process = start()
    session = client.session(name)
    try:
        time.sleep(1)  # the workers take their lanes
        message = client.create(f"{name}.start.v1", {"message": "go"}, session=name)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(session.wait, message.id, wait_for="last", timeout=50)
            assert process.wait(LIMIT) == -signal.SIGKILL and process.stdout is not None
            process.stdout.close()
            time.sleep(1.5)
            assert not waiting.done(), "the chain is not finished while its runner is dead"
            process = start()
            assert waiting.result(LIMIT).text == "three"
        texts = [crumb.text for crumb in client.list(session=name, schema_name="agent.response.v1")]
        assert sorted(texts) == ["one", "three", "two"]
    finally:
        process.terminate()
        process.wait(LIMIT)
        assert process.stdout is not None
        process.stdout.close()


def root_of(found: Answer | Breadcrumb) -> str:
    return str(found.context["root_id"])


def count_answers(client: Client, session: str) -> int:
    return len([*client.list(session=session, schema_name="agent.response.v1")])
