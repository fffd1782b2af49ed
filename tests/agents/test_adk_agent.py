"""Agents that live on an ADK server: the real `adk api_server`, and one that misbehaves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
import structlog
from pydantic import ValidationError

from breadcrumbs.agents.adk.servers import AdkServers
from breadcrumbs.agents.answer import parse_answer, product
from breadcrumbs.agents.book import Agent
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.cli.workers import agent_worker, context_worker, running
from breadcrumbs.context_builder.book import ConfigBook
from breadcrumbs.runtime.breadcrumb import Breadcrumb, BreadcrumbUpdate
from breadcrumbs.runtime.embedded import EmbeddedServer
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.sessions import Sessions
from breadcrumbs.runtime.settings import Settings
from breadcrumbs.runtime.store import Store
from tests.support.adk_backend import APP, AdkApiServer, Exchange, FakeAdk, fake_adk, said
from tests.support.turns import ALICE, BOB, Chat, Working, all_taken, config, eventually, opened

RECORD = "adk.session.v1"
PATIENT = 60.0
MESSAGES = {"schema_name": "user.message.v1", "any_tags": ["user:message"]}


def remote_agent(agent_id: str = "remote", **changes: Any) -> Agent:
    fields = {"agent_id": agent_id, "kind": "adk", "subscriptions": {"selectors": [MESSAGES]}, **changes}
    return Agent(AgentDefinition.model_validate(fields), trusted=True)


@pytest.fixture
async def store(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    async with opened(embedded_server.url) as store:
        yield store


@asynccontextmanager
async def chatting(
    store: Store,
    url: str,
    *,
    agents: tuple[Agent, ...] = (),
    configs: list[dict[str, Any]] | None = None,
    attempts: int = 3,
    backoff: float = 0.02,
    **adk: Any,
) -> AsyncIterator[Working]:
    """The runner as `crumb run-agents` makes it, with agents that live on the server at `url`."""
    settings = Settings(
        adk={"servers": {"house": {"url": url, "app": APP}}, "read_timeout": 20, "total_timeout": 40, **adk},
        turn_attempts=attempts,
    )
    book = ConfigBook(store, None, default=orjson.dumps(configs or [config("nobody")]))
    async with agent_worker(store, settings, book, agents or (remote_agent(),), kind="agents") as runner:
        workers = [runner, *([context_worker(store, settings, book)] if configs else [])]
        for worker in workers:
            worker._backoff = lambda _: backoff
        problem = None
        async with running(*workers):
            await eventually(lambda: all_taken(workers, store.lanes), "the lanes were not taken")
            try:
                yield Working(store, ALICE, workers=workers)
            except Exception as error:
                problem = error  # raised out of the group: a failed assertion reads better alone
        if problem is not None:
            raise problem


async def records(chat: Chat, session: str) -> list[Breadcrumb]:
    return await chat.all(session, RECORD)


def history(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Who said what, of events in either direction."""
    return [
        (event["author"], part["text"])
        for event in events
        for part in (event.get("content") or {}).get("parts", ())
        if part.get("text")
    ]


# The real server


@pytest.fixture(scope="module")
def adk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdkApiServer]:
    with AdkApiServer(tmp_path_factory.mktemp("adk") / "server.log") as server:
        yield server


async def test_P14_P18_a_conversation_goes_on_when_the_backend_died_and_nothing_is_lost_or_told_twice(
    store: Store, adk: AdkApiServer
) -> None:
    """P14, P15, P16, P18: create, use, the backend dies, recover, use; with the whole history checked."""
    async with chatting(store, adk.url) as chat:
        chat.limit = PATIENT
        texts = ["Hello", "remember colour=blue", "And now?"]
        messages = [await chat.say("one", texts[0])]
        assert (await chat.answer_to(messages[0])).context["message"] == "Hello (0 answers, in mind: )"
        messages.append(await chat.say("one", texts[1]))
        remembered = await chat.answer_to(messages[1])
        assert remembered.context["message"] == "Hello | remember colour=blue (1 answers, in mind: blue)"
        (before,) = await records(chat, "one")

        adk.kill()
        adk.start()

        messages.append(await chat.say("one", texts[2]))
        recovered = await chat.answer_to(messages[2])
        said_so_far = " | ".join(texts)
        assert recovered.context["message"] == f"{said_so_far} (2 answers, in mind: blue)"
        (after,) = await records(chat, "one")
        assert after.context["adk_session"] != before.context["adk_session"]

        texts.append("Once more")
        messages.append(await chat.say("one", texts[3]))
        assert (await chat.answer_to(messages[3])).context["message"] == (
            f"{' | '.join(texts)} (3 answers, in mind: blue)"
        )
        # Ours: each message once, each answer once, each with its own time.
        answers = await chat.answers("one")
        assert [crumb.context["message"] for crumb in await chat.all("one", "user.message.v1")] == texts
        assert [crumb.context["trigger_id"] for crumb in answers] == [str(message.id) for message in messages]
        assert not await chat.errors("one")
        assert await Sessions(store).state(ALICE, "one") == {"colour": "blue"}
        # Theirs: one session, the same conversation in it, with the same times.
        (theirs,) = adk.sessions(after.context["user"])
        conversation = [
            pair for message, answer in zip(messages, answers, strict=True) for pair in (message, answer)
        ]
        assert history(theirs["events"]) == [
            ("user" if crumb.schema_name == "user.message.v1" else "the_reciter", crumb.context["message"])
            for crumb in conversation
        ]
        restored = [event for event in theirs["events"] if event["invocationId"].startswith("crumb-")]
        assert [event["timestamp"] for event in restored] == [
            pytest.approx(crumb.created / 1e6) for crumb in conversation[:4]
        ]
        assert theirs["state"] == {"colour": "blue"}


async def test_an_answer_is_shown_while_it_is_being_made(store: Store, adk: AdkApiServer) -> None:
    pieces: list[dict[str, Any]] = []

    async def watch() -> None:
        await store.connection.listen(
            store.keys.deltas(), lambda payload: pieces.append(orjson.loads(payload))
        )

    async with chatting(store, adk.url) as chat, anyio.create_task_group() as tasks:
        chat.limit = PATIENT
        tasks.start_soon(watch)
        await anyio.sleep(0.2)
        message = await chat.say("shown", "one two three four five six seven")
        answer = await chat.answer_to(message)

        async def complete() -> bool:
            return bool("".join(piece["text"] for piece in pieces) == answer.context["message"])

        await eventually(complete, "the pieces do not add up to the answer")
        tasks.cancel_scope.cancel()
    assert {piece["breadcrumb_id"] for piece in pieces} == {str(answer.id)}
    assert {piece["session_id"] for piece in pieces} == {"shown"}


async def test_a_backend_that_dies_in_the_middle_of_a_turn_gets_the_message_once_more_and_answers_once(
    store: Store, adk: AdkApiServer
) -> None:
    async with chatting(store, adk.url, attempts=100, backoff=0.5) as chat:
        chat.limit = PATIENT
        first = await chat.say("middle", "Hello")
        await chat.answer_to(first)
        slow = await chat.say("middle", "wait 1.5")

        async def begun() -> bool:
            return any(crumb.context["trigger_id"] == str(slow.id) for crumb in await records(chat, "middle"))

        await eventually(begun, "the turn did not begin")
        await anyio.sleep(0.3)
        adk.kill()
        adk.start()
        answer = await chat.answer_to(slow)
        assert answer.context["message"] == "Hello | wait 1.5 (1 answers, in mind: )"
        assert len(await chat.answers("middle")) == 2
        assert not await chat.errors("middle")


async def test_users_have_their_own_state_on_the_server_and_owners_never_meet(
    store: Store, adk: AdkApiServer
) -> None:
    async with chatting(store, adk.url) as chat:
        chat.limit = PATIENT
        await chat.answer_to(await chat.say("a1", "remember user:colour=red", tags=["user:ann"]))
        same = await chat.say("a2", "Which?", tags=["user:ann"])
        assert (await chat.answer_to(same)).context["message"] == "Which? (0 answers, in mind: red)"
        bob = Chat(store, BOB, limit=PATIENT)
        other = await bob.say("b1", "Which?", tags=["user:ann"])
        assert (await bob.answer_to(other)).context["message"] == "Which? (0 answers, in mind: )"
        nobody = await chat.say("a3", "Which?")
        assert (await chat.answer_to(nobody)).context["message"] == "Which? (0 answers, in mind: )"


# One that does as it is told


@pytest.fixture
def fake() -> Iterator[FakeAdk]:
    with fake_adk() as backend:
        yield backend


async def talk(chat: Chat, session: str | None, *texts: str) -> list[Breadcrumb]:
    """Say things one after the other; their answers."""
    return [await chat.answer_to(await chat.say(session, text)) for text in texts]


async def test_P4_P15_P16_a_session_is_created_once_with_its_state_and_runs_carry_the_message_alone(
    store: Store, fake: FakeAdk
) -> None:
    """P4, P15, P16: the state travels at creation, and what the user said is what is sent."""
    async with chatting(store, fake.url) as chat:
        await chat.post("session.v1", ["session:s"], {"state_delta": {"plan": "gold", "app:price": 0}})
        first, second = await talk(chat, "s", "Hello", "[SESSION CONTEXT] is just text")
    (created,) = fake.paths("/sessions")
    assert created.body == {"state": {"plan": "gold"}}
    assert [asked.path for asked in fake.asked] == ["/list-apps", created.path, "/run_sse", "/run_sse"]
    assert [run.body for run in fake.paths("/run_sse")] == [
        {
            "appName": APP,
            "userId": created.path.split("/")[4],
            "sessionId": "made-1",
            "newMessage": {"role": "user", "parts": [{"text": text}]},
            "streaming": True,
        }
        for text in ("Hello", "[SESSION CONTEXT] is just text")
    ]
    assert (first.context["message"], second.context["message"]) == ("answer 1", "answer 2")
    assert [answer.context["adk"]["session"] for answer in (first, second)] == ["made-1", "made-1"]
    (record,) = await records(Chat(store), "s")
    assert record.context["adk_session"] == "made-1"
    assert "turn:internal" in record.tags


async def test_P2_P14_P19_a_forgotten_session_is_created_again_with_state_and_history_and_the_call_is_made_once_more(
    store: Store, fake: FakeAdk
) -> None:
    """P2, P14, P16, P19."""
    async with chatting(store, fake.url) as chat:
        (first,) = await talk(chat, "s", "Hello")
        await chat.post("session.state.v1", ["session:s"], {"state_delta": {"plan": "gold"}})
        await talk(chat, "s", "Second")  # with a new session, for the state has changed
        fake.asked.clear()

        def forget(exchange: Exchange) -> None:
            known = exchange.body["sessionId"] == f"made-{fake.made}" and fake.made > 2
            (fake._run_sse if known else _forgotten)(exchange)

        fake.behaviours["run_sse"] = forget
        (third,) = await talk(chat, "s", "Third")
        assert not await chat.errors("s")
        assert len(await chat.answers("s")) == 3
    assert [(asked.method, asked.path.rpartition("/")[2]) for asked in fake.asked if asked.method != "DELETE"] == [
        ("POST", "run_sse"), ("POST", "sessions"), ("POST", "run_sse"),
    ]  # fmt: skip
    (created,) = fake.paths("/sessions")
    assert created.body["state"] == {"plan": "gold"}
    assert history(created.body["events"]) == [
        ("user", "Hello"), ("the_reciter", "answer 1"), ("user", "Second"), ("the_reciter", "answer 2"),
    ]  # fmt: skip
    assert created.body["events"][1]["id"] == str(first.id)
    assert {run.body["newMessage"]["parts"][0]["text"] for run in fake.paths("/run_sse")} == {"Third"}
    assert third.context["adk"]["session"] == "made-3"


def _forgotten(exchange: Exchange) -> None:
    exchange.json(404, {"detail": f"Session not found: {exchange.body['sessionId']}"})


async def test_a_backend_that_always_forgets_is_asked_exactly_twice_and_no_more(
    store: Store, fake: FakeAdk
) -> None:
    async with chatting(store, fake.url) as chat:
        await talk(chat, "s", "Hello")
        fake.asked.clear()
        fake.behaviours["run_sse"] = _forgotten
        error = await chat.error_about(await chat.say("s", "Second"))
        assert "does not know the session" in error.context["error"]
        assert error.context["attempts"] == 1
    assert [run.body["sessionId"] for run in fake.paths("/run_sse")] == ["made-1", "made-2"]
    assert len(fake.paths("/sessions")) == 1


def _status(status: int, content: Any = None) -> Callable[[Exchange], None]:
    return lambda exchange: exchange.json(status, content)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_status(500, {"detail": "out of order"}), "could not create a session (500: out of order)"),
        (_status(400, {"detail": "no"}), "could not create a session (400: no)"),
        (_status(200, {"name": "no id"}), "did not say which"),
        (_status(200, {"id": None}), "did not say which"),
        (lambda exchange: exchange.reply(200, b"<html>", "text/html"), "did not say which"),
        (lambda exchange: exchange.cut(), "the connection broke"),
    ],
    ids=["500", "400", "no id", "null id", "web page", "cut"],
)
async def test_P5_where_no_session_can_be_created_there_is_an_error_and_no_run(
    store: Store, answer: Callable[[Exchange], None], reason: str
) -> None:
    """P5: no id, no call."""
    with fake_adk(sessions=answer) as fake:
        async with chatting(store, fake.url, attempts=2) as chat:
            error = await chat.error_about(await chat.say("s", "Hello"))
            assert error.context["error"].startswith("ADK server house: ")
            assert reason in error.context["error"]
            assert error.context["attempts"] == (2 if reason == "the connection broke" else 1)
            assert not await records(chat, "s")
        assert not fake.paths("/run_sse") and not fake.paths("/run")


async def test_a_failing_recovery_is_an_error_at_once_and_the_next_message_recovers(
    store: Store, fake: FakeAdk
) -> None:
    async with chatting(store, fake.url) as chat:
        await talk(chat, "s", "Hello")
        fake.behaviours |= {"run_sse": _forgotten, "sessions": _status(500, {"detail": "out of order"})}
        await chat.error_about(await chat.say("s", "Second"))
        del fake.behaviours["run_sse"], fake.behaviours["sessions"]
        fake.asked.clear()
        await talk(chat, "s", "Third")
    (created,) = fake.paths("/sessions")
    assert history(created.body["events"]) == [
        ("user", "Hello"),
        ("the_reciter", "answer 1"),
        ("user", "Second"),
    ]


async def test_a_run_that_came_to_nothing_leaves_no_message_behind_on_the_backend(
    store: Store, fake: FakeAdk
) -> None:
    """The backend has heard the message, and perhaps answered it. Here nothing happened: so it is asked anew."""

    def cut_after_the_answer(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("never seen")
        del fake.behaviours["run_sse"]
        exchange.cut()

    async with chatting(store, fake.url) as chat:
        await talk(chat, "s", "Hello")
        fake.behaviours["run_sse"] = cut_after_the_answer
        (second,) = await talk(chat, "s", "Second")
        assert second.context["message"] == "answer 3"
        assert [answer.context["message"] for answer in await chat.answers("s")] == ["answer 1", "answer 3"]
    made = fake.paths("/sessions")
    assert [history(asked.body.get("events", [])) for asked in made] == [
        [], [("user", "Hello"), ("the_reciter", "answer 1")],
    ]  # fmt: skip
    assert [run.body["sessionId"] for run in fake.paths("/run_sse")] == ["made-1", "made-1", "made-2"]
    assert [asked.path.rpartition("/")[2] for asked in fake.asked if asked.method == "DELETE"] == ["made-1"]


async def test_what_the_backend_does_not_know_yet_gets_to_it(store: Store, fake: FakeAdk) -> None:
    """Another agent's answer, a deleted message, a changed state: the breadcrumbs are the conversation."""
    async with chatting(store, fake.url) as chat:
        await talk(chat, "s", "Hello")
        other = {"message": "From the other one", "creator": {"type": "agent", "agent_id": "other"}}
        await chat.post("agent.response.v1", ["agent:response", "session:s"], other)
        await talk(chat, "s", "Second")
        (first, *_) = await chat.all("s", "user.message.v1")
        await store.delete(ALICE, first.id)
        await talk(chat, "s", "Third")
        await chat.post("session.state.v1", ["session:s"], {"state_delta": {"plan": "gold"}})
        await talk(chat, "s", "Fourth", "Fifth")
    _, with_other, without_first, with_state = [asked.body for asked in fake.paths("/sessions")]
    assert history(with_other["events"]) == [
        ("user", "Hello"), ("the_reciter", "answer 1"), ("other", "From the other one"),
    ]  # fmt: skip
    assert ("user", "Hello") not in history(without_first["events"])
    assert with_state["state"] == {"plan": "gold"}
    assert history(with_state["events"])[-2:] == [("user", "Third"), ("the_reciter", "answer 3")]


async def test_messages_that_wait_are_told_in_their_turn_and_once(store: Store, fake: FakeAdk) -> None:
    async with chatting(store, fake.url) as chat:
        messages = [await chat.say("s", text) for text in ("One", "Two", "Three")]
        answers = [await chat.answer_to(message) for message in messages]
        assert [answer.context["message"] for answer in answers] == ["answer 1", "answer 2", "answer 3"]
        assert len(fake.paths("/sessions")) == 1
        fake.behaviours["run_sse"] = lambda exchange: (
            _forgotten if exchange.body["sessionId"] == "made-1" else fake._run_sse
        )(exchange)
        await talk(chat, "s", "Four")
    created = fake.paths("/sessions")[-1]
    assert history(created.body["events"]) == [
        ("user", "One"), ("the_reciter", "answer 1"),
        ("user", "Two"), ("the_reciter", "answer 2"),
        ("user", "Three"), ("the_reciter", "answer 3"),
    ]  # fmt: skip


async def test_what_the_app_changes_of_the_state_is_written_with_its_answer(
    store: Store, fake: FakeAdk
) -> None:
    changes = {"plan": "gold", "user:name": "Ann", "temp:note": 1, "app:price": 3, "nothing": None}

    def change(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("Let me see.", actions={"stateDelta": changes})
        exchange.event("Done.")
        exchange.end()

    async with chatting(store, fake.url) as chat:
        fake.behaviours["run_sse"] = change
        (answer,) = await talk(chat, "s", "Hello")
        assert answer.context["message"] == "Let me see.\n\nDone."
        kept = {"plan": "gold", "user:name": "Ann", "nothing": None}
        assert answer.context["state_delta"] == kept
        assert await Sessions(store).state(ALICE, "s") == kept
        fake.behaviours["run_sse"] = lambda exchange: (
            _forgotten if exchange.body["sessionId"] == "made-1" else fake._run_sse
        )(exchange)
        await talk(chat, "s", "Second")
    created = fake.paths("/sessions")
    assert len(created) == 2, "what the app itself has changed is no reason for a new session"
    assert created[-1].body["state"] == {"plan": "gold", "nothing": None}
    (patched,) = [asked for asked in fake.asked if asked.method == "PATCH"]
    assert patched.body == {"stateDelta": {"user:name": "Ann"}}


async def test_a_backend_that_takes_no_events_gets_the_history_as_state(store: Store, fake: FakeAdk) -> None:
    def without_events(exchange: Exchange) -> None:
        fake.made += 1
        exchange.json(200, {"id": f"made-{fake.made}", "state": {}, "events": []})

    async with chatting(store, fake.url) as chat:
        fake.behaviours["sessions"] = without_events
        await talk(chat, "s", "Hello")
        fake.behaviours["run_sse"] = lambda exchange: (
            fake._run_sse if exchange.body["sessionId"] == "made-3" else _forgotten
        )(exchange)
        await talk(chat, "s", "Second")
    assert fake.paths("/sessions")[-1].body["state"]["breadcrumbs_history"] == [
        {"author": "user", "text": "Hello"},
        {"author": "the_reciter", "text": "answer 1"},
    ]


async def test_what_a_context_holds_besides_the_conversation_is_state_too(
    store: Store, fake: FakeAdk
) -> None:
    sources = [
        {"key": "conversation", "schema_name": "user.message.v1", "fetch": {"method": "recent", "limit": 5}},
        {"key": "rules", "schema_name": "rule.v1", "fetch": {"method": "latest"}},
    ]
    trigger = {"schema_name": "agent.context.v1", "all_tags": ["consumer:remote"]}
    agent = remote_agent(subscriptions={"selectors": [trigger]})
    async with chatting(
        store, fake.url, agents=(agent,), configs=[config("remote", sources=sources)]
    ) as chat:
        await chat.post("rule.v1", [], {"text": "Be brief"})
        await talk(chat, "s", "Hello", "Second")
    (created,) = fake.paths("/sessions")
    assert created.body["state"] == {"breadcrumbs_context": {"rules": ["Be brief"]}}
    assert [run.body["newMessage"]["parts"] for run in fake.paths("/run_sse")] == [
        [{"text": "Hello"}], [{"text": "Second"}],
    ]  # fmt: skip


async def test_secrets_do_not_leave_the_house(store: Store, fake: FakeAdk) -> None:
    async with chatting(store, fake.url) as chat:
        await talk(chat, "s", "Hello")
        new = {"message": "hush", "creator": {"agent_id": "other"}}
        secret = await chat.post("agent.response.v1", ["session:s"], new)
        await store.update(ALICE, secret.id, BreadcrumbUpdate.parse({"sensitivity": "secret"}))
        await talk(chat, "s", "Second")
    assert "hush" not in orjson.dumps([asked.body for asked in fake.asked]).decode()


async def test_a_message_of_no_session_is_a_conversation_of_its_own(store: Store, fake: FakeAdk) -> None:
    async with chatting(store, fake.url) as chat:
        await talk(chat, None, "Hello", "Second")
    assert [asked.body for asked in fake.paths("/sessions")] == [{"state": {}}, {"state": {}}]
    users = {run.body["userId"] for run in fake.paths("/run_sse")}
    assert len(users) == 2
    assert _deleted(fake) == ["made-1", "made-2"]


async def test_a_turn_of_no_session_leaves_none_on_the_server_however_it_ends(
    store: Store, fake: FakeAdk
) -> None:
    fake.behaviours["run_sse"] = _status(503, {"detail": "busy"})
    async with chatting(store, fake.url, attempts=2) as chat:
        await chat.error_about(await chat.say(None, "Hello"))
        assert _deleted(fake) == ["made-1", "made-2"] and fake.made == 2
        fake.behaviours["run_sse"] = _hang
        agents = (remote_agent(timeout_seconds=0.3),)
    async with chatting(store, fake.url, attempts=1, agents=agents) as chat:
        message = await chat.say(None, "Hello?")
        assert "no answer within 0.3 s" in (await chat.error_about(message)).context["error"]
    assert _deleted(fake) == ["made-1", "made-2", "made-3"]


def _deleted(fake: FakeAdk) -> list[str]:
    return [asked.path.rpartition("/")[2] for asked in fake.asked if asked.method == "DELETE"]


# Badly behaved servers


def _stream(*chunks: bytes, end: bool = True) -> Callable[[Exchange], None]:
    def behave(exchange: Exchange) -> None:
        exchange.stream()
        for chunk in chunks:
            exchange.chunk(chunk)
        if end:
            exchange.end()
        else:
            exchange.cut()

    return behave


def _event(text: str, **fields: Any) -> bytes:
    return b"data: " + orjson.dumps(said(text, **fields)) + b"\n\n"


def _endless(piece: bytes, pause: float = 0.0) -> Callable[[Exchange], None]:
    def behave(exchange: Exchange) -> None:
        exchange.stream()
        while True:
            exchange.chunk(piece)
            time.sleep(pause)

    return behave


def _hang(exchange: Exchange) -> None:
    time.sleep(6)


BAD: dict[str, tuple[Callable[[Exchange], None], str]] = {
    "garbage": (_stream(b"\x00\xff garbage\n\n"), "this is no stream of events"),
    "no JSON": (_stream(b"data: {oops\n\n"), "is not JSON"),
    "no event": (_stream(b"data: [1]\n\n"), "this is no event of an ADK server"),
    "nothing": (_stream(), "the app ran and said nothing"),
    "no words": (_stream(_event("  ")), "the app ran and said nothing"),
    "half an answer": (_stream(_event("Hel", partial=True)), "ended in the middle"),
    "half an utterance more": (_stream(_event("Let me look."), _event("It is", partial=True)), "ended in the middle"),
    "an error code after words": (
        _stream(_event("Let me look."), b'data: {"author": "a", "errorCode": "SAFETY", "errorMessage": "blocked"}\n\n'),
        "the app failed: SAFETY blocked",
    ),
    "cut": (_stream(_event("Hel", partial=True), end=False), "the connection broke in the middle"),
    "an exception": (_stream(b'data: {"error": "ValueError: no luck"}\n\n'), "the app failed: ValueError: no luck"),
    "an error code": (
        _stream(b'data: {"author": "a", "errorCode": "SAFETY", "errorMessage": "blocked"}\n\n'),
        "the app failed: SAFETY blocked",
    ),
    "10 MB": (_stream(_event("x" * (10 << 20))), "a single line of the answer is longer than"),
    "endless words": (_endless(_event("word " * 1000, partial=True)), "cut off"),
    "endless pings": (_endless(b": ping\n\n", 0.05), "cut off after 3 s"),
    "an endless line": (_endless(b"data: " + b"x" * 65536), "a single line"),
    "silence": (_hang, "no answer began within 2 s"),
    "500": (lambda exchange: exchange.reply(500, b"Internal Server Error", "text/plain"), "500: Internal Server"),
    "401": (_status(401, {"detail": "who are you?"}), "it wants a key"),
    "a web page": (lambda exchange: exchange.reply(200, b"<html>hi", "text/html"), "is no list of events: <html>"),
    "a redirect": (lambda exchange: exchange.reply(307, b"", Location="http://127.0.0.1:1/"), "redirects"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_answer_is_a_visible_error_with_a_reason(store: Store, name: str) -> None:
    behaviour, reason = BAD[name]
    special: dict[str, dict[str, Any]] = {
        "silence": {"read_timeout": 2},
        "endless pings": {"total_timeout": 3},
    }
    limits = special.get(name, {})
    with fake_adk(run_sse=behaviour) as fake:
        async with chatting(store, fake.url, attempts=1, max_answer_bytes=100_000, **limits) as chat:
            error = await chat.error_about(await chat.say("s", "Hello"))
            assert error.context["error"].startswith("ADK server house: ")
            assert reason in error.context["error"]
            assert len(error.context["error"]) < 500
            assert not await chat.answers("s")
            # The session is not lost with it.
            del fake.behaviours["run_sse"]
            await talk(chat, "s", "Again")


@pytest.mark.parametrize(
    "events",
    [
        (b'data: {"author": "a", "errorCode": "MALFORMED_FUNCTION_CALL"}\n\n', _event("All the same.")),
        (_event("All the ", partial=True), _event("All the same."), _event("\n", partial=True), _event("\n")),
        (_event("All the same.", errorCode="MAX_TOKENS"),),
    ],
    ids=["recovered", "blank", "cut short"],
)
async def test_words_after_an_error_or_with_one_are_an_answer(
    store: Store, fake: FakeAdk, events: tuple[bytes, ...]
) -> None:
    fake.behaviours["run_sse"] = _stream(*events)
    async with chatting(store, fake.url) as chat:
        (answer,) = await talk(chat, "s", "Hello")
        assert answer.context["message"] == "All the same."


async def test_a_server_that_is_busy_is_asked_again(store: Store, fake: FakeAdk) -> None:
    def busy(exchange: Exchange) -> None:
        del fake.behaviours["run_sse"]
        exchange.json(503, {"detail": "starting"})

    async with chatting(store, fake.url) as chat:
        fake.behaviours["run_sse"] = busy
        (answer,) = await talk(chat, "s", "Hello")
        assert answer.context["message"] == "answer 2"


async def test_a_server_that_is_not_there_is_named_and_its_agents_say_so(store: Store) -> None:
    with fake_adk() as fake:
        url = fake.url
    with structlog.testing.capture_logs() as logs:
        async with chatting(store, url, attempts=2) as chat:
            error = await chat.error_about(await chat.say("s", "Hello"))
            assert f"cannot connect to {url}" in error.context["error"]
            assert error.context["attempts"] == 2
    problem = next(line for line in logs if line["event"] == "an ADK agent cannot answer")
    assert problem["agent"] == "remote" and "cannot connect" in problem["problem"]


async def test_a_server_that_cannot_stream_is_asked_without(store: Store, fake: FakeAdk) -> None:
    async with chatting(store, fake.url) as chat:
        fake.behaviours["run_sse"] = _status(404, {"detail": "Not Found"})
        answers = await talk(chat, "s", "Hello", "Second")
        assert [answer.context["message"] for answer in answers] == ["a whole answer"] * 2
        fake.behaviours["run"] = lambda exchange: (
            _forgotten if exchange.body["sessionId"] == "made-1" else fake._run
        )(exchange)
        await talk(chat, "s", "Third")
    assert len(fake.paths("/run_sse")) == 1
    assert len(fake.paths("/run")) == 4
    assert len(fake.paths("/sessions")) == 2


async def test_a_cancelled_turn_stops_reading(store: Store, fake: FakeAdk) -> None:
    async with chatting(store, fake.url) as chat:
        fake.behaviours["run_sse"] = _endless(_event("and ", partial=True), 0.02)
        message = await chat.say("s", "Talk for ever")
        await eventually(lambda: _was_run(fake), "the app was not asked")
        await chat.cancel("s")
        error = await chat.error_about(message)
        assert error.context["cancelled"] is True
        assert await anyio.to_thread.run_sync(fake.gone.wait, 10), "the connection was kept"
        del fake.behaviours["run_sse"]
        await talk(chat, "s", "Next")
    assert history(fake.paths("/sessions")[-1].body["events"]) == [("user", "Talk for ever")]


async def _was_run(fake: FakeAdk) -> bool:
    return bool(fake.paths("/run_sse"))


async def test_thoughts_are_not_said(store: Store, fake: FakeAdk) -> None:
    def think(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event(
            "", content={"parts": [{"text": "hm", "thought": True}, {"text": "Yes"}]}, partial=True
        )
        exchange.event("", content={"parts": [{"text": "hm", "thought": True}, {"text": "Yes."}]})
        exchange.end()

    async with chatting(store, fake.url) as chat:
        fake.behaviours["run_sse"] = think
        (answer,) = await talk(chat, "s", "Hello")
        assert answer.context["message"] == "Yes."


# Settings and definitions


async def test_P22_an_app_that_is_not_on_the_server_is_said_in_the_log_at_start_and_in_the_session(
    store: Store, fake: FakeAdk
) -> None:
    """P22."""
    with structlog.testing.capture_logs() as logs:
        async with chatting(store, fake.url, agents=(remote_agent(adk={"app": "reciters"}),)) as chat:
            (problem,) = [line for line in logs if line["event"] == "an ADK agent cannot answer"]
            error = await chat.error_about(await chat.say("s", "Hello"))
    for words in (problem["problem"], error.context["error"]):
        assert words == f"ADK server house: there is no app 'reciters', only: another, {APP}"
    assert problem["log_level"] == "error"
    assert {asked.path for asked in fake.asked} == {"/list-apps"}


async def test_a_server_that_lists_no_apps_is_believed(store: Store, fake: FakeAdk) -> None:
    fake.behaviours["list-apps"] = _status(404, {"detail": "Not Found"})
    async with chatting(store, fake.url) as chat:
        await talk(chat, "s", "Hello")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"servers": {"a": {}}}, "adk.servers.a.url"),
        ({"servers": {"a": {"url": "shop:8000"}}}, "adk.servers.a.url: the URL of an ADK server looks like"),
        ({"servers": {"a": {"url": "http://me:secret@shop"}}}, "key_env"),
        ({"servers": {"a": {"url": "http://shop", "ap": "x"}}}, "adk.servers.a.ap"),
        ({"servers": {"a": {"url": "http://shop", "key_env": "NO_SUCH_KEY"}}}, "NO_SUCH_KEY is not set"),
        ({"server": {}}, "adk.server"),
    ],
)
def test_P21_settings_are_checked_at_start(settings: dict[str, Any], complaint: str) -> None:
    """P21."""
    with pytest.raises(StartupError, match=complaint) as caught:
        AdkServers(settings, environment={})
    assert "secret" not in str(caught.value)


async def test_P21_P22_an_agent_without_a_server_or_an_app_is_refused_at_start(store: Store) -> None:
    """P21, P22."""
    book = ConfigBook(store, None, default=orjson.dumps([config("nobody")]))
    for adk, complaint in (
        ({}, "The settings have none"),
        ({"servers": {"a": {"url": "http://127.0.0.1:1"}}}, "which app of a"),
        (
            {"servers": {"a": {"url": "http://127.0.0.1:1"}, "b": {"url": "http://127.0.0.1:2"}}},
            "which ADK server",
        ),
    ):
        with pytest.raises(StartupError, match=complaint):
            async with agent_worker(store, Settings(adk=adk), book, [remote_agent()], kind="agents"):
                pass


async def test_a_definition_of_a_client_cannot_name_a_server_of_its_own() -> None:
    servers = AdkServers({"servers": {"house": {"url": "http://127.0.0.1:1/prefix/", "app": APP}}})
    definition = remote_agent(adk={"server": "http://evil.example", "app": "x"}).definition
    with pytest.raises(InvalidInput, match="only these may be used"):
        servers.resolve(Agent(definition))
    with pytest.raises(InvalidInput, match="There is house"):
        servers.resolve(remote_agent(adk={"server": "horse"}))
    assert servers.resolve(Agent(definition, trusted=True)).server.name == "http://evil.example"
    by_url = remote_agent(adk={"server": "http://127.0.0.1:1/prefix", "app": "x"}).definition
    assert servers.resolve(Agent(by_url)).server.name == "house"
    assert servers.resolve(remote_agent()).app == APP
    await servers.close()


async def test_a_definition_that_is_posted_answers_and_one_that_cannot_says_so_in_the_session(
    store: Store, fake: FakeAdk, tmp_path: Path
) -> None:
    servers = {"house": {"url": fake.url, "app": APP}}
    settings = Settings(adk={"servers": servers}, agents=tmp_path, turn_attempts=1)
    book = ConfigBook(store, None, default=orjson.dumps([config("nobody")]))
    chat = Chat(store)
    for name, adk in (
        ("good", {}),
        ("lost", {"server": "elsewhere"}),
        ("evil", {"server": "http://127.0.0.1:1"}),
    ):
        trigger = {**MESSAGES, "any_tags": [f"for:{name}"]}
        fields = {"agent_id": name, "kind": "adk", "adk": adk, "subscriptions": {"selectors": [trigger]}}
        await chat.post("agent.def.v1", [], fields)
    async with agent_worker(store, settings, book) as worker, running(worker):
        await chat.answer_to(await chat.say("s", "Hello", tags=["for:good"]))
        lost = await chat.error_about(await chat.say("s", "Hello", tags=["for:lost"]))
        evil = await chat.error_about(await chat.say("s", "Hello", tags=["for:evil"]))
    assert lost.context["error"] == "lost: there is no ADK server 'elsewhere'. There is house"
    assert "only these may be used" in evil.context["error"]


def test_no_model_gets_to_change_a_sessions_state_or_to_speak_for_a_server() -> None:
    answer = parse_answer(
        '{"action": "create", "breadcrumb": {"context": {"message": "Hi", "state_delta": {"a": 1}, "adk": {}}}}'
    )
    new = product(answer, remote_agent().definition, ["session:s"], {"session_id": "s"}, ("session",))
    assert new.context == {"message": "Hi", "content": "Hi", "session_id": "s"}


@pytest.mark.parametrize(
    "changes",
    [{"model": "offline"}, {"tools": ["calculator"]}, {"system_prompt": "Be nice"}, {"temperature": 0.0}],
)
def test_an_adk_agent_has_no_model_of_its_own(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="an ADK app has its own"):
        remote_agent(**changes)


def test_only_an_adk_agent_lives_on_an_adk_server() -> None:
    with pytest.raises(ValidationError, match="is for agents with"):
        remote_agent(kind="model", adk={"app": "x"})


async def test_a_key_goes_with_every_call_and_into_no_error(store: Store) -> None:
    key = "sk-adk-0123456789abcdef"
    seen: list[str | None] = []

    def refuse(exchange: Exchange) -> None:
        seen.append(exchange.headers.get("Authorization"))
        exchange.json(500, {"detail": f"I do not like {key}"})

    with fake_adk(run_sse=refuse) as fake:
        servers = {"house": {"url": fake.url, "app": APP, "key": key}}
        async with chatting(store, fake.url, servers=servers) as chat:
            error = await chat.error_about(await chat.say("s", "Hello"))
            assert "500" in error.context["error"] and key not in error.context["error"]
    assert seen == [f"Bearer {key}"]
