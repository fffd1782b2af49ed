"""Lessons about the integrity of a conversation, one test per lesson."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from breadcrumbs.agents.models.base import ModelError
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.errors import IdempotencyMismatch, StoreUnavailable, VersionMismatch
from breadcrumbs.runtime.sessions.retries import retry_letter
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.dead_letters import DeadLetters
from tests.http.conftest import running_site
from tests.support.conversations import ALICE, MESSAGE, Chat, opened, recite, spoken, working


async def test_P1_the_version_returned_is_the_one_the_store_has(store: Store) -> None:
    """Thirty concurrent writers each get the version that the store assigned."""
    chat = Chat(store)
    message = await chat.say("s", "draft")

    async def write(number: int) -> tuple[int, int]:
        change = BreadcrumbUpdate.parse({"context": {"message": f"draft {number}"}})
        return number, (await store.update(ALICE, message.id, change)).version

    written = await asyncio.gather(*(write(number) for number in range(30)))
    assert sorted(version for _, version in written) == list(range(2, 32))
    for number, version in written:
        stored = await store.get_version(ALICE, message.id, version)
        assert stored.context["message"] == f"draft {number}"
    with pytest.raises(VersionMismatch) as stale:
        change = BreadcrumbUpdate.parse({"context": {"message": "too late"}})
        await store.update(ALICE, message.id, change, expected_version=3)
    assert stale.value.current == 31


async def test_P1_a_failed_append_is_an_error_for_its_caller(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*args: Any) -> Any:
        raise StoreUnavailable("gone")

    chat = Chat(store)
    with monkeypatch.context() as patch:
        patch.setattr(store.connection, "run", gone)
        with pytest.raises(StoreUnavailable):
            await chat.say("s", "Hello")
    assert await chat.all("s", MESSAGE) == []


async def test_P3_a_retry_leaves_one_message_and_one_answer_and_the_turn_can_be_run_again(
    store: Store,
) -> None:
    new = BreadcrumbCreate.parse(
        {
            "schema_name": MESSAGE,
            "title": "m",
            "tags": ["user:message", "session:s"],
            "context": {"message": "Hello"},
        }
    )
    model = ScriptedModel([ModelError("out of order", retry=False), "Hello!"])
    async with working(store, model) as chat:
        first = await store.create(ALICE, new, idempotency_key="request 1")
        again = await store.create(ALICE, new, idempotency_key="request 1")  # the client got no reply
        assert again.replayed and again.id == first.id
        other = new.model_copy(update={"context": {"message": "Goodbye"}})
        with pytest.raises(IdempotencyMismatch):
            await store.create(ALICE, other, idempotency_key="request 1")
        (message,) = await chat.all("s", MESSAGE)
        assert (await chat.error_about(message)).context["error"] == "out of order"
        await store.create(ALICE, new, idempotency_key="request 1")  # another retry, after the failure
        letters = DeadLetters(store)
        (letter,) = await letters.all(ALICE)
        await retry_letter(store, letter)
        assert (await chat.answer_to(message)).context["message"] == "Hello!"
        await chat.settled()
        assert len(await chat.all("s", MESSAGE)) == len(await chat.answers("s")) == 1
        assert await letters.all(ALICE) == []
        assert spoken(model.requests[-1]) == [("user", "Hello")]


async def test_P11_a_parameter_works_or_does_not_exist(embedded_server: EmbeddedServer) -> None:
    async with running_site(embedded_server.url) as site:
        ids = []
        for number in range(4):
            fields: dict[str, Any] = {
                "schema_name": f"n{number % 2}.v1",
                "title": str(number),
                "tags": [f"n:{number}"],
            }
            ids.append((await site.post(**fields, context={"session_id": f"s{number // 2}"}))["id"])

        async def listed(**parameters: Any) -> list[str]:
            answer = await site.client.get("/breadcrumbs", params=parameters)
            assert answer.status_code == 200, answer.text
            return [crumb["title"] for crumb in answer.json()]

        newest = (await site.client.get(f"/breadcrumbs/{ids[2]}/full")).json()["updated_at"]
        assert await listed() == ["3", "2", "1", "0"]
        assert await listed(sort="created_at") == ["0", "1", "2", "3"]
        assert await listed(limit=1, offset=1) == ["2"]
        assert await listed(schema_name="n1.v1") == ["3", "1"]
        assert await listed(session_id="s0") == ["1", "0"]
        assert await listed(tag="n:2") == await listed(all_tags="n:2") == ["2"]
        assert await listed(any_tags=["n:0", "n:3"]) == ["3", "0"]
        assert sorted(await listed(updated_since=newest)) == ["2", "3"]
        refused = await site.client.get(f"/breadcrumbs/{ids[0]}", params={"version": "3"})
        assert refused.status_code == 422 and refused.json()["errors"][0]["where"] == "version"
        assert (await site.client.get(f"/breadcrumbs/{ids[0]}?")).status_code == 200


async def test_P11_no_route_accepts_a_parameter_without_effect(
    embedded_server: EmbeddedServer,
) -> None:
    async with running_site(embedded_server.url) as site:
        document = (await site.client.get("/openapi.json")).json()
        tried = 0
        for template, methods in document["paths"].items():
            path = re.sub(r"\{\w+\}", str(ALICE), template)
            for method, operation in methods.items():
                answer = await site.client.request(method, path, params={"nonsense": "1"})
                if template in ("/", "/docs"):  # pages: other sites add parameters to links
                    assert answer.status_code == 200
                    continue
                assert answer.status_code == 422, f"{method} {path}: {answer.status_code}"
                parameters = [
                    given["name"] for given in operation.get("parameters", ()) if given["in"] == "query"
                ]
                assert all(name in answer.json()["detail"] for name in ("nonsense", *parameters))
                tried += 1
        assert tried > 20


async def test_P12_a_field_of_an_answer_is_real_or_absent(embedded_server: EmbeddedServer) -> None:
    async with running_site(embedded_server.url) as site:
        id = (await site.post(schema_name=MESSAGE, title="m", context={"session_id": "s"}))["id"]
        for path in (
            f"/breadcrumbs/{id}",
            f"/breadcrumbs/{id}/full",
            f"/breadcrumbs/{id}/history",
            "/breadcrumbs",
        ):
            answer = await site.client.get(path)
            assert answer.status_code == 200 and "null" not in answer.text, path


async def test_P13_any_replica_can_take_any_turn_of_any_session(embedded_server: EmbeddedServer) -> None:
    """Each turn runs on another set of workers with their own connections and caches."""
    async with opened(embedded_server.url, namespace="replicas") as first:
        for number in range(4):
            async with opened(embedded_server.url, namespace="replicas") as replica:
                model = FunctionModel(recite)
                async with working(replica, model):
                    for session in ("a", "b"):
                        message = await Chat(first).say(session, f"{session}{number}")
                        await Chat(first).answer_to(message)
                for session, request in zip(("a", "b"), model.requests, strict=True):
                    asked = [text for role, text in spoken(request) if role == "user"]
                    assert asked == [f"{session}{earlier}" for earlier in range(number + 1)]
