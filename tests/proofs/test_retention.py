"""Provenance ends with its answer: expiry and deletion of answers, and of whole sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import anyio

from breadcrumbs.agents.models.base import ModelReply, ModelRequest, ToolCall
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.agents.tools import Tool
from breadcrumbs.context_builder.audit import audit_isolation
from breadcrumbs.proofs.verification import Summary, verify_all, verify_answer
from breadcrumbs.runtime.access.principal import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.maintenance import checks
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.sessions.forks import ForkOptions, fork
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.reduction import is_reduced
from breadcrumbs.runtime.store.store import Store
from tests.support.conversations import ALICE, CONTEXT, agent, config, working

CURATOR = Principal(ALICE, UUID(int=7), frozenset(("curator",)))
NAME, TEXT, ARGUMENT, RESULT, REPLY = "quiet-room", "plugh", "xyzzy", "frobozz", "grue"
SHORT = config(output={"ttl_seconds": 1})


def reply(request: ModelRequest) -> ModelReply | str:
    if TEXT not in str(request.messages):
        return "no"
    if any(message.tool_calls for message in request.messages):
        return REPLY
    return ModelReply(REPLY, (ToolCall("c", "look", f'{{"at": "{ARGUMENT}"}}'),))


async def look(at: str) -> str:
    """Look at something."""
    return RESULT


async def everything(store: Store) -> AsyncIterator[tuple[bytes, str]]:
    """Yield all keys of a store with their values."""
    readers: dict[bytes, tuple[Any, ...]] = {
        b"string": (b"GET",),
        b"hash": (b"HGETALL",),
        b"set": (b"SMEMBERS",),
        b"list": (b"LRANGE", 0, -1),
        b"zset": (b"ZRANGE", 0, -1),
        b"stream": (b"XRANGE", b"-", b"+"),
    }
    call, cursor = store.connection.call, b"0"
    pattern = store.keys.meta.removesuffix(b"meta") + b"*"
    while True:
        cursor, keys = await call(0, b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000")
        for key in keys:
            kind = await call(0, b"TYPE", key)
            name, *options = readers[kind if isinstance(kind, bytes) else str(kind).encode()]
            yield key, repr(await call(0, name, key, *options))
        if cursor in (b"0", 0):
            return


async def test_a_deleted_session_leaves_no_text_behind(store: Store) -> None:
    agents = [agent(tools=["look"])]
    model, tools = FunctionModel(reply), [Tool(look, name="look")]
    async with working(store, model, agents=agents, configs=[SHORT], tools=tools) as chat:
        for _ in range(2):
            answer = await chat.answer_to(await chat.say(NAME, TEXT))
        change = BreadcrumbUpdate(context={**answer.context, "message": f"{REPLY} again"})
        await store.update(ALICE, answer.id, change)
        other = await chat.answer_to(await chat.say("other", "hello"))
        await chat.settled()
    await fork(store, CURATOR, NAME, f"{NAME} again", ForkOptions())
    await anyio.sleep(1.1)
    await Hygiene(store, Settings()).run_once()
    (context,) = [
        crumb async for crumb in store.walk(ALICE, Query(session_id=NAME)) if crumb.schema_name == CONTEXT
    ]
    assert is_reduced(context)
    assert (await verify_answer(store, ALICE, answer.id)).outcome == "equal"
    for session in (NAME, f"{NAME} again"):
        await Sessions(store).delete(ALICE, session)
    await Hygiene(store, Settings()).run_once()
    # Events and the list of deleted sessions keep names for a while.
    named = tuple(kind for lane in range(store.lanes) for kind in (b"{L%02d}e" % lane, b"{L%02d}y" % lane))
    left = [
        (key, word, value)
        async for key, value in everything(store)
        for word in (NAME, TEXT, ARGUMENT, RESULT, str(answer.id), str(context.id))
        if (word in value or word.encode() in key)
        and (word != NAME or not any(kind in key for kind in named))
    ]
    assert left == []
    assert (await verify_answer(store, ALICE, other.id)).outcome == "equal"
    await check_consistency(store)


async def test_the_checks_accept_reduced_contexts_forks_and_the_archive(store: Store) -> None:
    async with working(store, configs=[SHORT]) as chat:
        for session in ("one", "two"):
            for _ in range(2):
                await chat.answer_to(await chat.say(session, TEXT))
        await chat.settled()
    await anyio.sleep(1.1)
    await Hygiene(store, Settings()).run_once()
    await fork(store, CURATOR, "one", "three", ForkOptions())
    await check_consistency(store)


async def check_consistency(store: Store) -> None:
    """Run the checks of `crumb doctor` and `crumb audit isolation`."""
    findings = [
        await checks.check_indexes(store),
        await checks.check_sessions(store),
        await checks.check_expired(store, checks.HygieneSchedule(30, 1e9)),
        *await checks.check_quotas(store),
    ]
    assert [finding for finding in findings if finding.status != "ok"] == []
    assert (await audit_isolation(store, ALICE, history=True)).findings == []


async def test_a_deleted_or_expired_answer_is_named_where_it_was_shown(store: Store) -> None:
    async with working(store, FunctionModel(lambda _: REPLY), configs=[SHORT]) as chat:
        first = await chat.answer_to(await chat.say("s", "one"))
        second = await chat.answer_to(await chat.say("s", "two"))
        third = await chat.answer_to(await chat.say("s", "three"))
        await store.delete(ALICE, second.id)
        gone = BreadcrumbUpdate.parse({"ttl_type": "duration", "ttl_config": {"duration_seconds": 1}})
        await store.update(ALICE, first.id, gone)
        await anyio.sleep(1.1)
        await Hygiene(store, Settings()).run_once()
        summary = Summary()
        results = [result async for result in verify_all(store, ALICE, None, summary)]
        assert [result.answer_id for result in results] == [str(third.id)]
        assert {missing.id for missing in results[0].missing} == {str(first.id), str(second.id)}
