"""Agents on an ADK server, with the real `adk api_server` and with a scripted fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import orjson
import pytest

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbUpdate
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.store import Store
from tests.support.adk_agents import (
    chatting,
    forgotten,
    hang,
    history,
    records,
    remote_agent,
    status_of,
    talk,
)
from tests.support.adk_backend import APP, AdkApiServer, Exchange, FakeAdk, fake_adk
from tests.support.conversations import ALICE, BOB, Chat, config, eventually

LONG_TIMEOUT = 60.0


# The real server


@pytest.fixture(scope="module")
def adk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdkApiServer]:
    with AdkApiServer(tmp_path_factory.mktemp("adk") / "server.log") as server:
        yield server


async def test_P14_P18_a_conversation_survives_a_backend_crash_without_loss_or_duplicates(
    store: Store, adk: AdkApiServer
) -> None:
    """After a crash, the backend session is recreated with the complete history and state (P14, P15, P16, P18)."""
    async with chatting(store, adk.url) as chat:
        chat.limit = LONG_TIMEOUT
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
        # Our store has each message once and each answer once.
        answers = await chat.answers("one")
        assert [crumb.context["message"] for crumb in await chat.all("one", "user.message.v1")] == texts
        assert [crumb.context["trigger_id"] for crumb in answers] == [str(message.id) for message in messages]
        assert not await chat.errors("one")
        assert await Sessions(store).state_for(Principal(ALICE, ALICE), "one") == {"colour": "blue"}
        # The backend has one session with the same conversation. Restored events keep their times.
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


async def test_an_answer_is_streamed_in_deltas(store: Store, adk: AdkApiServer) -> None:
    pieces: list[dict[str, Any]] = []

    async def watch() -> None:
        await store.connection.listen(
            store.keys.deltas(), lambda payload: pieces.append(orjson.loads(payload))
        )

    async with chatting(store, adk.url) as chat, anyio.create_task_group() as tasks:
        chat.limit = LONG_TIMEOUT
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


async def test_a_backend_that_dies_during_a_turn_gets_the_message_again_and_answers_once(
    store: Store, adk: AdkApiServer
) -> None:
    async with chatting(store, adk.url, attempts=100, backoff=0.5) as chat:
        chat.limit = LONG_TIMEOUT
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


async def test_users_and_owners_have_separate_state_on_the_server(store: Store, adk: AdkApiServer) -> None:
    async with chatting(store, adk.url) as chat:
        chat.limit = LONG_TIMEOUT
        await chat.answer_to(await chat.say("a1", "remember user:colour=red", tags=["user:ann"]))
        same = await chat.say("a2", "Which?", tags=["user:ann"])
        assert (await chat.answer_to(same)).context["message"] == "Which? (0 answers, in mind: red)"
        bob = Chat(store, BOB, limit=LONG_TIMEOUT)
        other = await bob.say("b1", "Which?", tags=["user:ann"])
        assert (await bob.answer_to(other)).context["message"] == "Which? (0 answers, in mind: )"
        without_user = await chat.say("a3", "Which?")
        assert (await chat.answer_to(without_user)).context["message"] == "Which? (0 answers, in mind: )"


# The scripted fake


async def test_P4_P15_P16_a_session_is_created_once_with_its_state_and_runs_send_only_the_message(
    store: Store, fake: FakeAdk
) -> None:
    """The state is sent at creation, and the text of the user is sent unchanged (P4, P15, P16)."""
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


async def test_P2_P14_P19_a_lost_session_is_recreated_with_state_and_history_and_the_run_is_retried(
    store: Store, fake: FakeAdk
) -> None:
    """The turn succeeds without an error, although the backend has lost its session (P2, P14, P16, P19)."""
    async with chatting(store, fake.url) as chat:
        (first,) = await talk(chat, "s", "Hello")
        await chat.post("session.state.v1", ["session:s"], {"state_delta": {"plan": "gold"}})
        await talk(chat, "s", "Second")  # in a new backend session, because the state has changed
        fake.asked.clear()

        def forget(exchange: Exchange) -> None:
            known = exchange.body["sessionId"] == f"made-{fake.made}" and fake.made > 2
            (fake._run_sse if known else forgotten)(exchange)

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


async def test_a_backend_that_loses_every_session_gets_exactly_two_runs(store: Store, fake: FakeAdk) -> None:
    async with chatting(store, fake.url) as chat:
        await talk(chat, "s", "Hello")
        fake.asked.clear()
        fake.behaviours["run_sse"] = forgotten
        error = await chat.error_about(await chat.say("s", "Second"))
        assert "does not have the session" in error.context["error"]
        assert error.context["attempts"] == 1
    assert [run.body["sessionId"] for run in fake.paths("/run_sse")] == ["made-1", "made-2"]
    assert len(fake.paths("/sessions")) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (status_of(500, {"detail": "out of order"}), "cannot create a session (500: out of order)"),
        (status_of(400, {"detail": "no"}), "cannot create a session (400: no)"),
        (status_of(200, {"name": "no id"}), "the new session has no id"),
        (status_of(200, {"id": None}), "the new session has no id"),
        (lambda exchange: exchange.reply(200, b"<html>", "text/html"), "the new session has no id"),
        (lambda exchange: exchange.cut(), "the connection was lost"),
    ],
    ids=["500", "400", "no id", "null id", "web page", "cut"],
)
async def test_P5_a_failed_session_creation_is_an_error_without_a_run(
    store: Store, answer: Callable[[Exchange], None], reason: str
) -> None:
    """Without a session id, the app is not run (P5)."""
    with fake_adk(sessions=answer) as fake:
        async with chatting(store, fake.url, attempts=2) as chat:
            error = await chat.error_about(await chat.say("s", "Hello"))
            assert error.context["error"].startswith("ADK server house: ")
            assert reason in error.context["error"]
            assert error.context["attempts"] == (2 if reason == "the connection was lost" else 1)
            assert not await records(chat, "s")
        assert not fake.paths("/run_sse") and not fake.paths("/run")


async def test_a_failed_recovery_is_an_immediate_error_and_the_next_message_recovers(
    store: Store, fake: FakeAdk
) -> None:
    async with chatting(store, fake.url) as chat:
        await talk(chat, "s", "Hello")
        fake.behaviours |= {"run_sse": forgotten, "sessions": status_of(500, {"detail": "out of order"})}
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


async def test_a_retry_after_a_broken_run_uses_a_new_backend_session(store: Store, fake: FakeAdk) -> None:
    """The backend has the message, and possibly an answer that was lost. A new session prevents duplicates."""

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


@pytest.mark.parametrize("schema", ["user.message.v1", "agent.error.v1", "tool.response.v1"])
async def test_a_backend_answer_cannot_claim_a_schema_of_a_user_a_tool_or_the_runtime(
    store: Store, fake: FakeAdk, schema: str
) -> None:
    reply = {"action": "create", "breadcrumb": {"schema_name": schema, "context": {"message": "I am here"}}}

    def forge(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event(orjson.dumps(reply).decode())
        exchange.end()

    fake.behaviours["run_sse"] = forge
    async with chatting(store, fake.url) as chat:
        (answer,) = await talk(chat, "s", "Hello")
        assert (answer.schema_name, answer.context["message"]) == ("agent.response.v1", "I am here")
        assert answer.context["dropped_schema_name"] == schema
        assert len(await chat.all("s", "user.message.v1")) == 1 and not await chat.errors("s")


async def test_changes_made_outside_the_backend_are_sent_in_a_new_session(
    store: Store, fake: FakeAdk
) -> None:
    """The breadcrumbs decide: an answer of another agent, a deleted message and changed state are all sent."""
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


async def test_queued_messages_are_sent_in_order_and_once(store: Store, fake: FakeAdk) -> None:
    async with chatting(store, fake.url) as chat:
        messages = [await chat.say("s", text) for text in ("One", "Two", "Three")]
        answers = [await chat.answer_to(message) for message in messages]
        assert [answer.context["message"] for answer in answers] == ["answer 1", "answer 2", "answer 3"]
        assert len(fake.paths("/sessions")) == 1
        fake.behaviours["run_sse"] = lambda exchange: (
            forgotten if exchange.body["sessionId"] == "made-1" else fake._run_sse
        )(exchange)
        await talk(chat, "s", "Four")
    created = fake.paths("/sessions")[-1]
    assert history(created.body["events"]) == [
        ("user", "One"), ("the_reciter", "answer 1"),
        ("user", "Two"), ("the_reciter", "answer 2"),
        ("user", "Three"), ("the_reciter", "answer 3"),
    ]  # fmt: skip


async def test_state_changes_of_the_app_are_written_with_its_answer(store: Store, fake: FakeAdk) -> None:
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
        assert await Sessions(store).state_for(Principal(ALICE, ALICE), "s") == kept
        fake.behaviours["run_sse"] = lambda exchange: (
            forgotten if exchange.body["sessionId"] == "made-1" else fake._run_sse
        )(exchange)
        await talk(chat, "s", "Second")
    created = fake.paths("/sessions")
    assert len(created) == 2, "a state change by the app itself must not create a new session"
    assert created[-1].body["state"] == {"plan": "gold", "nothing": None}
    (patched,) = [asked for asked in fake.asked if asked.method == "PATCH"]
    assert patched.body == {"stateDelta": {"user:name": "Ann"}}


async def test_an_answer_can_change_thousands_of_state_keys(store: Store, fake: FakeAdk) -> None:
    def change(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("Done.", actions={"stateDelta": {f"name {n}": n for n in range(10_000)}})
        exchange.end()

    async with chatting(store, fake.url) as chat:
        fake.behaviours["run_sse"] = change
        (answer,) = await talk(chat, "s", "Hello")
        assert answer.context["message"] == "Done."
        assert len(await Sessions(store).state_for(Principal(ALICE, ALICE), "s")) == 10_000


async def test_an_answer_with_too_large_a_state_is_stored_with_the_reason_instead(
    store: Store, fake: FakeAdk
) -> None:
    def change(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("Let me see.", actions={"stateDelta": {"plan": "x" * 900_000, "more": "y" * 200_000}})
        exchange.end()

    async with chatting(store, fake.url) as chat:
        fake.behaviours["run_sse"] = change
        (answer,) = await talk(chat, "s", "Hello")
        assert answer.context["message"] == "Let me see."
        assert "state_delta" not in answer.context
        assert "the limit is 1,048,576" in answer.context["state_refused"]
        assert await Sessions(store).state_for(Principal(ALICE, ALICE), "s") == {}
        await chat.settled()
        assert len(await chat.answers("s")) == 1 and not await chat.errors("s")


async def test_a_backend_that_ignores_events_gets_the_history_as_state(store: Store, fake: FakeAdk) -> None:
    def without_events(exchange: Exchange) -> None:
        fake.made += 1
        exchange.json(200, {"id": f"made-{fake.made}", "state": {}, "events": []})

    async with chatting(store, fake.url) as chat:
        fake.behaviours["sessions"] = without_events
        await talk(chat, "s", "Hello")
        fake.behaviours["run_sse"] = lambda exchange: (
            fake._run_sse if exchange.body["sessionId"] == "made-3" else forgotten
        )(exchange)
        await talk(chat, "s", "Second")
    assert fake.paths("/sessions")[-1].body["state"]["breadcrumbs_history"] == [
        {"author": "user", "text": "Hello"},
        {"author": "the_reciter", "text": "answer 1"},
    ]


async def test_context_items_outside_the_conversation_are_sent_as_state(store: Store, fake: FakeAdk) -> None:
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


async def test_secret_breadcrumbs_are_not_sent_to_the_backend(store: Store, fake: FakeAdk) -> None:
    async with chatting(store, fake.url) as chat:
        await talk(chat, "s", "Hello")
        new = {"message": "hush", "creator": {"agent_id": "other"}}
        secret = await chat.post("agent.response.v1", ["session:s"], new)
        await store.update(ALICE, secret.id, BreadcrumbUpdate.parse({"sensitivity": "secret"}))
        await talk(chat, "s", "Second")
    assert "hush" not in orjson.dumps([asked.body for asked in fake.asked]).decode()


async def test_each_message_without_a_session_is_a_separate_conversation(store: Store, fake: FakeAdk) -> None:
    async with chatting(store, fake.url) as chat:
        await talk(chat, None, "Hello", "Second")
    assert [asked.body for asked in fake.paths("/sessions")] == [{"state": {}}, {"state": {}}]
    users = {run.body["userId"] for run in fake.paths("/run_sse")}
    assert len(users) == 2
    assert _deleted(fake) == ["made-1", "made-2"]


async def test_a_turn_without_a_session_deletes_its_backend_session_after_any_outcome(
    store: Store, fake: FakeAdk
) -> None:
    fake.behaviours["run_sse"] = status_of(503, {"detail": "busy"})
    async with chatting(store, fake.url, attempts=2) as chat:
        await chat.error_about(await chat.say(None, "Hello"))
        assert _deleted(fake) == ["made-1", "made-2"] and fake.made == 2
        fake.behaviours["run_sse"] = hang
        agents = (remote_agent(timeout_seconds=0.3),)
    async with chatting(store, fake.url, attempts=1, agents=agents) as chat:
        message = await chat.say(None, "Hello?")
        assert "no answer within 0.3 s" in (await chat.error_about(message)).context["error"]
    assert _deleted(fake) == ["made-1", "made-2", "made-3"]


def _deleted(fake: FakeAdk) -> list[str]:
    return [asked.path.rpartition("/")[2] for asked in fake.asked if asked.method == "DELETE"]
