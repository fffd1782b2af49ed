"""Messages for a busy agent: wait, interrupt, reject, merge, cancel."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import anyio
import pytest

from breadcrumbs.agents.models.base import ModelError
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.maintenance.export_import import export_lines, import_lines
from breadcrumbs.runtime.schema_names import AGENT_CANCEL
from breadcrumbs.runtime.sessions.outcomes import find_outcome
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.written import Written
from breadcrumbs.runtime.workers.turn import INTERNAL
from tests.support.conversations import (
    ASSISTANT,
    CONTEXT,
    MESSAGE,
    RESPONSE,
    PacedModel,
    Working,
    agent,
    eventually,
    last_words,
    recite,
    spoken,
    working,
)


async def until_the_runner_knows(chat: Working, message: Breadcrumb) -> None:
    """Wait until the runner has read the context of a message."""

    async def look() -> bool:
        return any(
            crumb.context["trigger_id"] == str(message.id) and chat.has_read("agents", crumb)
            for crumb in await chat.all(message.session_id, CONTEXT)
        )

    await eventually(look, "the runner did not read of the message")


async def test_waiting_messages_do_not_displace_earlier_ones_from_the_context(store: Store) -> None:
    """There are more messages than the limit of a source. Each context has the messages before its own, none after."""
    model = PacedModel()
    model.allow("early")
    async with working(store, model) as chat:
        await chat.answer_to(await chat.say("s", "early"))
        first = await chat.say("s", "first")
        await model.begun("first")
        late = [await chat.say("s", f"late {number}") for number in range(12)]
        await until_the_runner_knows(chat, late[-1])
        model.allow("first", "late 0", "late 1")
        await model.begun("late 2")
        await chat.answer_to(first)
    said = [[text for role, text in spoken(request) if role == "user"] for request in model.requests]
    assert said[1:5] == [
        ["early", "first"],
        ["early", "first", "late 0"],
        ["early", "first", "late 0", "late 1"],
        ["early", "first", "late 0", "late 1", "late 2"],
    ]


async def test_an_agent_with_its_own_sources_does_not_see_messages_after_its_trigger(
    store: Store,
) -> None:
    model = PacedModel()
    source = {"schema_name": MESSAGE, "role": "context", "key": "said", "fetch": {"limit": 3}}
    own = agent("own", subscriptions={"selectors": [{"schema_name": MESSAGE}, source]})
    async with working(store, model, agents=[own]) as chat:
        messages = [await chat.say("s", f"message {number}") for number in range(5)]
        model.allow(*(f"message {number}" for number in range(5)))
        for message in messages:
            await chat.answer_to(message)
    said = [[text.removeprefix("message ") for _, text in spoken(request)] for request in model.requests]
    assert said == [["0"], ["0", "1"], ["0", "1", "2"], ["1", "2", "3"], ["2", "3", "4"]]


async def test_a_message_that_waits_for_a_busy_agent_has_the_earlier_answer_in_its_context(
    store: Store,
) -> None:
    model = PacedModel()
    async with working(store, model) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        second = await chat.say("s", "second")
        third = await chat.say("s", "third")
        elsewhere = await chat.say("another", "elsewhere")
        model.allow("elsewhere")
        await chat.answer_to(elsewhere)  # other sessions do not wait
        assert len(model.requests) == 2
        model.allow("first", "second", "third")
        for message in (first, second, third):
            await chat.answer_to(message)
        assert await chat.texts("s") == ["re: first", "re: second", "re: third"]
        of_session = [request for request in model.requests if last_words(request) != "elsewhere"]
        assert [spoken(request) for request in of_session] == [
            [("user", "first")],
            [("user", "first"), ("assistant", "re: first"), ("user", "second")],
            [
                ("user", "first"),
                ("user", "second"),  # posted before the first answer
                ("assistant", "re: first"),
                ("assistant", "re: second"),
                ("user", "third"),
            ],
        ]
        # The answer refers to the context that the model saw.
        answer = await chat.answer_to(third)
        context = await store.get_version(
            chat.owner, UUID(answer.context["context_id"]), answer.context["context_version"]
        )
        assert len(context.context["explain"]["items"]) == 5
        await chat.settled()
        assert len(model.requests) == 4
        assert await chat.errors("s") == []


async def test_reject_refuses_messages_that_arrive_during_an_answer(store: Store) -> None:
    model = PacedModel()
    async with working(store, model, agents=[agent(when_busy="reject")]) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        second = await chat.say("s", "second")
        await until_the_runner_knows(chat, second)
        model.allow("first", "second", "third")
        await chat.answer_to(first)
        error = await chat.error_about(second)
        assert "busy" in error.context["error"] and error.context["cancelled"] is True
        await chat.answer_to(await chat.say("s", "third"))
        assert await chat.texts("s") == ["re: first", "re: third"]
        assert await chat.dead_letters() == []


async def test_reject_reports_the_refusal_at_once(store: Store) -> None:
    model = PacedModel()
    async with working(store, model, agents=[agent(when_busy="reject")]) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        for text in ("second", "third"):
            error = await chat.error_about(await chat.say("s", text))
            assert "busy" in error.context["error"]
        assert await chat.answers("s") == []
        model.allow("first", "fourth")
        await chat.answer_to(first)
        await chat.answer_to(await chat.say("s", "fourth"))
        await chat.settled()
        assert await chat.texts("s") == ["re: first", "re: fourth"] and len(await chat.errors("s")) == 2


async def test_a_message_that_is_edited_while_it_is_answered_is_not_rejected(store: Store) -> None:
    model = PacedModel()
    async with working(store, model, agents=[agent(when_busy="reject")]) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        await store.update(chat.owner, first.id, BreadcrumbUpdate(context={"message": "first, mended"}))
        await eventually(lambda: chat.handled("contexts"), "the edit did not get its context")
        await chat.error_about(await chat.say("s", "second"))
        model.allow("first", "first, mended")
        await chat.answer_to(first)
        await chat.settled()
        assert await chat.texts("s") == ["re: first"] and len(await chat.errors("s")) == 1


async def test_a_message_waits_if_only_one_of_its_agents_rejects_it(store: Store) -> None:
    model = PacedModel()
    selectors = {"selectors": [{"schema_name": MESSAGE}]}
    agents = [
        agent("busy", when_busy="reject", subscriptions=selectors),
        agent("patient", subscriptions=selectors),
    ]
    async with working(store, model, agents=agents) as chat:
        await chat.say("s", "first")
        await model.begun("first")
        second = await chat.say("s", "second")
        await eventually(lambda: chat.read_all("agents"), "the runner did not read of the message")
        assert await chat.errors("s") == []
        model.allow("first", "second")
        error = await chat.error_about(second)
        assert error.context["agent_id"] == "busy"
        await chat.settled()
        assert await chat.texts("s") == ["re: first", "re: first", "re: second"]


async def test_interrupt_stops_the_turn_for_a_newer_message(store: Store) -> None:
    model = PacedModel()
    async with working(store, model, agents=[agent(when_busy="interrupt")]) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        second = await chat.say("s", "second")
        error = await chat.error_about(first)
        assert "interrupted" in error.context["error"] and error.context["cancelled"] is True
        model.allow("second")
        await chat.answer_to(second)
        assert await chat.texts("s") == ["re: second"]
        assert spoken(model.requests[-1]) == [("user", "first"), ("user", "second")]


async def test_merge_answers_all_waiting_messages_with_one_answer(store: Store) -> None:
    model = PacedModel()
    async with working(store, model, agents=[agent(when_busy="merge")]) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        piled = [await chat.say("s", text) for text in ("second", "third", "fourth")]
        await until_the_runner_knows(chat, piled[-1])
        model.allow("first", "fourth")
        await chat.answer_to(first)
        answer = await chat.answer_to(piled[-1])
        assert answer.context["answers"] == [str(message.id) for message in piled]
        await chat.settled()
        assert await chat.texts("s") == ["re: first", "re: fourth"]
        assert [text for _, text in spoken(model.requests[-1])] == [
            "first", "second", "third", "re: first", "fourth",
        ]  # fmt: skip


async def test_a_merged_answer_belongs_to_every_merged_message(store: Store) -> None:
    """This includes messages outside the limit of the context. Otherwise their senders would wait forever."""
    model = PacedModel()
    async with working(store, model, agents=[agent(when_busy="merge")]) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        piled = [await chat.say("s", f"piled {number}") for number in range(14)]
        await until_the_runner_knows(chat, piled[-1])
        model.allow("first", "piled 13")
        await chat.answer_to(first)
        answer = await chat.answer_to(piled[-1])
        assert answer.context["answers"] == [str(message.id) for message in piled]
        everybody = Principal(chat.owner, chat.owner)
        for message in piled:
            assert await find_outcome(store, everybody, message) == answer


async def test_an_agent_with_its_own_sources_merges_their_messages(
    store: Store,
) -> None:
    model = PacedModel()
    selectors = [
        {"schema_name": MESSAGE, "all_tags": ["for:own"]},
        {"schema_name": MESSAGE, "role": "context"},
    ]
    own = agent("own", when_busy="merge", subscriptions={"selectors": selectors})
    async with working(store, model, agents=[own]) as chat:
        first = await chat.say("s", "first", tags=("for:own",))
        await model.begun("first")
        await chat.say("s", "to nobody")
        piled = [await chat.say("s", text, tags=("for:own",)) for text in ("second", "third")]
        await eventually(lambda: chat.read_all("agents"), "the runner did not read of the messages")
        model.allow("first", "third")
        await chat.answer_to(first)
        answer = await chat.answer_to(piled[-1])
        assert answer.context["answers"] == [str(message.id) for message in piled]
        await chat.settled()
        assert await chat.texts("s") == ["re: first", "re: third"]


async def test_messages_outside_the_context_are_not_merged_but_answered(store: Store) -> None:
    model = PacedModel()
    deaf = agent("deaf", when_busy="merge", subscriptions={"selectors": [{"schema_name": MESSAGE}]})
    async with working(store, model, agents=[deaf]) as chat:
        messages = [await chat.say("s", "first")]
        await model.begun("first")
        messages += [await chat.say("s", text) for text in ("second", "third")]
        await eventually(lambda: chat.read_all("agents"), "the runner did not read of the messages")
        model.allow("first", "second", "third")
        for message in messages:
            answer = await chat.answer_to(message)
            assert answer.context["answers"] == [str(message.id)]


async def test_a_failed_merge_reports_an_error_for_every_merged_message(store: Store) -> None:
    model = PacedModel(refuses="third")
    async with working(store, model, agents=[agent(when_busy="merge")]) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        piled = [await chat.say("s", text) for text in ("second", "third")]
        await until_the_runner_knows(chat, piled[-1])
        model.allow("first", "third")
        await chat.answer_to(first)
        error = await chat.error_about(piled[-1])
        assert error.context["error"] == "I refuse"
        assert error.context["answers"] == [str(message.id) for message in piled]
        everybody = Principal(chat.owner, chat.owner)
        for message in piled:
            assert await find_outcome(store, everybody, message) == error


async def test_a_cancelled_merge_reports_it_for_every_merged_message(store: Store) -> None:
    model = PacedModel()
    async with working(store, model, agents=[agent(when_busy="merge")]) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        piled = [await chat.say("s", text) for text in ("second", "third")]
        await until_the_runner_knows(chat, piled[-1])
        await chat.cancel("s")
        await chat.error_about(first)
        error = await chat.error_about(piled[-1])
        assert error.context["cancelled"] is True
        assert set(error.context["answers"]) >= {str(message.id) for message in piled}


async def test_merge_ignores_edits_of_older_messages(store: Store) -> None:
    """The edit triggers its own context, which waits behind the newer message and does not answer it."""
    model = PacedModel()
    async with working(store, model, agents=[agent(when_busy="merge")]) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        second = await chat.say("s", "second")
        await until_the_runner_knows(chat, second)
        change = BreadcrumbUpdate.parse({"context": {"message": "first, mended"}})
        await store.update(chat.owner, first.id, change)
        await eventually(lambda: chat.handled("contexts"), "the edit did not get its context")
        (context,) = await chat.all("s", CONTEXT)
        assert context.context["trigger_id"] == str(first.id) and context.version == 3
        await eventually(lambda: chat.read_all("agents"), "the runner did not read of it")
        model.allow("first", "second", "first, mended")
        await chat.answer_to(second)
        await chat.settled()
        assert await chat.texts("s") == ["re: first", "re: second"]


@pytest.mark.parametrize("when_busy", ["queue", "interrupt", "reject", "merge"])
async def test_a_context_rebuilt_by_its_own_turn_is_not_a_newer_message(store: Store, when_busy: str) -> None:
    model = PacedModel()
    agents = [agent(when_busy=when_busy)]
    async with working(store, model, agents=agents, runners=0) as chat:
        message = await chat.say("s", "Hello")
        await eventually(lambda: chat.handled("contexts"), "no context was built")
        # The agent's last answer is newer than the context, so the context must be rebuilt.
        await chat.post(
            RESPONSE, ["session:s"], {"message": "By the way", "creator": {"agent_id": ASSISTANT}}
        )
        async with working(store, model, agents=agents, builders=0) as running:
            await model.begun("Hello")
            await eventually(lambda: running.read_all("agents"), "the runner did not read on")
            (context,) = await chat.all("s", CONTEXT)
            assert context.version == 2 and INTERNAL in context.tags
            model.allow("Hello")
            answer = await running.answer_to(message)
            await running.settled()
            assert answer.context["context_version"] == 2
            assert ("assistant", "By the way") in spoken(model.requests[0])
            assert len(model.requests) == 1
            assert await chat.errors("s") == []


async def test_an_interrupt_of_one_agent_does_not_stop_another(store: Store) -> None:
    """Both agents react to the same messages. Only one of them has the mode `interrupt`."""
    model = PacedModel()
    direct = {"subscriptions": {"selectors": [{"schema_name": MESSAGE}]}}
    patient = agent("a-patient", **direct)
    hasty = agent("b-hasty", when_busy="interrupt", **direct)
    async with working(store, model, agents=[patient, hasty]) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")  # by the patient agent, which is first
        await chat.say("s", "second")
        await eventually(lambda: chat.read_all("agents"), "the runner did not read of it")
        model.allow("first", "second")
        await chat.error_about(first)  # from the hasty agent, which had not begun
        await chat.settled()
        answers = [(crumb.context["creator"]["agent_id"], crumb.title) for crumb in await chat.answers("s")]
        assert answers == [("a-patient", "re: first"), ("a-patient", "re: second"), ("b-hasty", "re: second")]


async def test_a_stored_answer_is_not_interrupted(store: Store) -> None:
    """The newer message arrives during the commit of the answer. There is one answer and no error."""
    model = FunctionModel(recite)
    create = store.create
    arrived: list[Breadcrumb] = []

    async def slow_commit(owner: UUID, new: BreadcrumbCreate, **given: Any) -> Written:
        written = await create(owner, new, **given)
        options: CreateOptions = given.get("options", CreateOptions())
        if options.fence is not None and new.schema_name == RESPONSE and not arrived:
            arrived.append(await chat.say("s", "second"))
            await until_the_runner_knows(chat, arrived[0])
        return written

    async with working(store, model, agents=[agent(when_busy="interrupt")]) as chat:
        store.create = slow_commit  # type: ignore[method-assign]
        first = await chat.say("s", "first")
        await chat.answer_to(first)
        await eventually(lambda: _async(bool(arrived)), "the commit did not come")
        await chat.answer_to(arrived[0])
        await chat.settled()
        assert len(await chat.answers("s")) == 2
        assert await chat.errors("s") == []


async def _async(value: bool) -> bool:
    return value


async def test_cancel_stops_running_and_earlier_waiting_turns(store: Store) -> None:
    model = PacedModel()
    async with working(store, model) as chat:
        first = await chat.say("s", "first")
        await model.begun("first")
        second = await chat.say("s", "second")
        other = await chat.say("t", "other")
        await model.begun("other")
        await chat.cancel("s")
        for message in (first, second):
            error = await chat.error_about(message)
            assert error.context["error"] == "cancelled" and error.context["cancelled"] is True
        third = await chat.say("s", "third")
        model.allow("third", "other")
        await chat.answer_to(third)
        await chat.answer_to(other)
        assert await chat.texts("s") == ["re: third"]
        assert await chat.dead_letters() == []


async def test_cancel_ends_a_turn_that_waits_for_its_next_attempt(store: Store) -> None:
    model = ScriptedModel([ModelError("overloaded", retry=True), "too late"])
    async with working(store, model, backoff=lambda attempt: 60.0) as chat:
        message = await chat.say("s", "Hello")
        await eventually(lambda: _async(bool(model.requests)), "the model was not asked")
        await chat.cancel("s")
        assert (await chat.error_about(message)).context["cancelled"] is True
        assert len(model.requests) == 1


async def test_cancel_ends_a_pause_that_the_model_requested(store: Store) -> None:
    model = ScriptedModel([ModelError("too many requests", retry=True, retry_after=60), "too late"])
    async with working(store, model) as chat:
        message = await chat.say("s", "Hello")
        await eventually(lambda: _async(bool(model.requests)), "the model was not asked")
        await anyio.sleep(0.2)  # longer than the backoff of the workers
        await chat.cancel("s")
        assert (await chat.error_about(message)).context["cancelled"] is True
        assert len(model.requests) == 1


async def test_interrupt_does_not_wait_for_a_pause_that_the_model_requested(store: Store) -> None:
    model = ScriptedModel([ModelError("too many requests", retry=True, retry_after=60), "re: second"])
    async with working(store, model, agents=[agent(when_busy="interrupt")]) as chat:
        first = await chat.say("s", "first")
        await eventually(lambda: _async(bool(model.requests)), "the model was not asked")
        await anyio.sleep(0.2)
        second = await chat.say("s", "second")
        assert "interrupted" in (await chat.error_about(first)).context["error"]
        await chat.answer_to(second)
        assert await chat.texts("s") == ["re: second"]


@pytest.mark.parametrize("how", ["deleted", "changed"])
async def test_changes_of_an_old_cancellation_do_not_stop_later_turns(store: Store, how: str) -> None:
    model = PacedModel()
    async with working(store, model) as chat:
        cancel = await chat.cancel("s")
        message = await chat.say("s", "first")
        await model.begun("first")
        if how == "deleted":
            await store.delete(chat.owner, cancel.id)
        else:
            await store.update(chat.owner, cancel.id, BreadcrumbUpdate(title="corrected"))
        await _until_all_is_read(chat)
        model.allow("first")
        await chat.answer_to(message)
        assert await chat.errors("s") == []


@pytest.mark.parametrize("schema", [AGENT_CANCEL, MESSAGE])
async def test_an_import_during_a_turn_stops_nothing(store: Store, schema: str) -> None:
    model = PacedModel()
    hasty = agent(when_busy="interrupt", subscriptions={"selectors": [{"schema_name": MESSAGE}]})
    async with working(store, model, agents=[hasty]) as chat:
        model.allow("old")
        await chat.answer_to(await chat.say("s", "old"))
        await chat.cancel("s")
        history = [line async for line in export_lines(store, chat.owner, Query(schema_name=schema))]
        await Sessions(store).delete(chat.owner, "s")
        message = await chat.say("s", "first")
        await model.begun("first")
        counts = [count async for count in import_lines(store, history)]
        assert counts[-1].written == 1
        await _until_all_is_read(chat)
        model.allow("first")
        await chat.answer_to(message)
        assert await chat.errors("s") == []


async def test_a_deleted_message_interrupts_no_turn(store: Store) -> None:
    model = PacedModel()
    hasty = agent(when_busy="interrupt", subscriptions={"selectors": [{"schema_name": MESSAGE}]})
    async with working(store, model, agents=[hasty]) as chat:
        model.allow("old")
        old = await chat.say("s", "old")
        await chat.answer_to(old)
        message = await chat.say("s", "first")
        await model.begun("first")
        await store.delete(chat.owner, old.id)
        await _until_all_is_read(chat)
        model.allow("first")
        await chat.answer_to(message)
        assert await chat.errors("s") == []


async def _until_all_is_read(chat: Working) -> None:
    await eventually(lambda: chat.read_all("agents"), "not all was read")
