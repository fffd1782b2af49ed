"""Dead letters: failed events can be listed, retried and deleted."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import anyio
import pytest

from breadcrumbs.composition.workers import WorkerParts, agent_worker, context_worker, open_configs
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.sessions.retries import retry_letter
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.dead_letters import DeadLetter, DeadLetters
from tests.support.events import close_with_reader, reader_of

OWNER, OTHER = UUID(int=1), UUID(int=2)


@asynccontextmanager
async def chat_system(url: str, *, model: str) -> AsyncIterator[Store]:
    """Run workers whose agent has the given model."""
    settings = Settings(lease_seconds=1.0, turn_attempts=1, model="offline")
    store = await Store.open(url, namespace=secrets.token_hex(6))
    parts = WorkerParts(store, reader_of(store), settings, open_configs(store, settings))
    definition = {
        "agent_id": "default-chat-assistant",
        "model": model,
        "subscriptions": {
            "selectors": [
                {"schema_name": "agent.context.v1", "all_tags": ["consumer:default-chat-assistant"]}
            ]
        },
    }
    await store.create(OWNER, BreadcrumbCreate(schema_name="agent.def.v1", title="agent", context=definition))
    async with agent_worker(parts) as runner, anyio.create_task_group() as tasks:
        workers = [context_worker(parts), runner]
        for worker in workers:
            tasks.start_soon(worker.run)
        yield store
        for worker in workers:
            worker.stop()
    await close_with_reader(store)


async def _say(store: Store, session: str) -> UUID:
    new = BreadcrumbCreate(
        schema_name="user.message.v1",
        title="Hello",
        tags=["user:message", f"session:{session}"],
        context={"message": "Hello"},
    )
    return (await store.create(OWNER, new)).id


async def _until(found: Any, *, count: int = 1) -> list[Any]:
    with anyio.fail_after(15):
        while len(items := await found()) < count:  # noqa: ASYNC110 - the store has no event for it
            await anyio.sleep(0.02)
    return list(items)


@pytest.fixture
async def broken(embedded_server: Any) -> AsyncIterator[Store]:
    async with chat_system(embedded_server.url, model="no-such-model") as store:
        yield store


async def _letters(store: Store, count: int = 1) -> list[DeadLetter]:
    return await _until(lambda: DeadLetters(store).all(OWNER), count=count)


async def test_a_turn_that_failed_permanently_is_a_dead_letter_with_its_reason(broken: Store) -> None:
    await _say(broken, "one")
    (letter,) = await _letters(broken)
    assert letter.kind == "agents"
    assert letter.session_id == "one"
    assert "no-such-model" in letter.error
    assert letter.shown()["last_error"] == letter.error
    errors = await broken.recent(OWNER, "one", "agent.error.v1")
    assert "no-such-model" in errors[0].context["error"]


async def test_an_owner_can_see_and_change_only_its_own_dead_letters(broken: Store) -> None:
    await _say(broken, "one")
    (letter,) = await _letters(broken)
    assert await DeadLetters(broken).all(OTHER) == []
    with pytest.raises(NotFound):
        await DeadLetters(broken).get(OTHER, letter.id)
    assert await DeadLetters(broken).get(OWNER, letter.id) == letter


async def test_after_the_cause_is_removed_a_retry_answers_the_message_once(broken: Store) -> None:
    message = await _say(broken, "one")
    (letter,) = await _letters(broken)
    mended = {
        "agent_id": "default-chat-assistant",
        "model": "offline",
        "subscriptions": {
            "selectors": [
                {"schema_name": "agent.context.v1", "all_tags": ["consumer:default-chat-assistant"]}
            ]
        },
    }
    await broken.create(OWNER, BreadcrumbCreate(schema_name="agent.def.v1", title="mended", context=mended))
    await anyio.sleep(0.7)  # an edited definition takes effect within a second
    await retry_letter(broken, letter)
    (answer,) = await _until(lambda: broken.recent(OWNER, "one", "agent.response.v1"))
    assert answer.context["trigger_id"] == str(message)
    assert await DeadLetters(broken).all(OWNER) == []
    assert len(await broken.recent(OWNER, "one", "user.message.v1")) == 1
    with pytest.raises(NotFound):
        await retry_letter(broken, letter)


async def test_a_failed_retry_reports_the_error_and_becomes_a_dead_letter_again(broken: Store) -> None:
    await _say(broken, "one")
    (letter,) = await _letters(broken)
    await retry_letter(broken, letter)
    await _until(lambda: broken.recent(OWNER, "one", "agent.error.v1"), count=2)
    (again,) = await _letters(broken)
    assert again.id != letter.id


async def test_a_discarded_dead_letter_is_gone(broken: Store) -> None:
    await _say(broken, "one")
    (letter,) = await _letters(broken)
    await DeadLetters(broken).discard(letter)
    assert await DeadLetters(broken).all(OWNER) == []
    with pytest.raises(NotFound):
        await DeadLetters(broken).discard(letter)
