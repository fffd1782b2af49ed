"""POST /breadcrumbs/{id}/replay: with the models of the server, within limits, and without writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.agents.tools import Toolbox
from breadcrumbs.proofs.replay_http import ReplayRoutes
from breadcrumbs.proofs.replay_models import ReplayModels
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.http.conftest import KEY, KEYS, OTHER_KEY, OWNER, WEAK_KEY, Site, problem, running_site
from tests.support.conversations import config, working
from tests.support.model_server import ModelServer


@pytest.fixture(scope="module")
def server() -> Any:
    with ModelServer() as running:
        yield running


@asynccontextmanager
async def serving(
    url: str, models: dict[str, Any] | str, **settings: Any
) -> AsyncIterator[tuple[Site, Breadcrumb]]:
    """A site with models, and an answer of the offline model."""
    pool = ModelPool(models) if isinstance(models, dict) else ModelPool()
    routes = ReplayRoutes(models if isinstance(models, str) else ReplayModels(pool, lambda: Toolbox(())))
    async with pool, running_site(url, extra=routes.operations, **settings) as site:
        owner = OWNER if "api_keys" in settings else DEVELOPER
        async with working(site.store, ModelPool().default, owner=owner) as chat:
            await chat.answer_to(await chat.say("s", "first words"))
            answer = await chat.answer_to(await chat.say("s", "hello"))
            await chat.settled()
        yield site, answer


async def replay(site: Site, answer: Breadcrumb, body: Any = None, **headers: str) -> Any:
    path = f"/breadcrumbs/{answer.id}/replay"
    return await site.client.post(path, json=body if body is not None else {}, headers=headers)


async def test_both_answers_come_with_tokens_and_nothing_is_written(
    embedded_server: EmbeddedServer, server: ModelServer
) -> None:
    scenario = server.scenario("normal", text="Other words")
    models = {"offered": [f"{scenario.url}#big"]}
    async with serving(embedded_server.url, models) as (site, answer):
        count = await site.count()
        reply = await replay(site, answer, {"model": "big", "times": 2})
        assert reply.status_code == 200, reply.text
        document = reply.json()
        assert document["original"]["text"] == answer.context["message"]
        assert [one["text"] for one in document["replays"]] == ["Other words"] * 2
        first = document["replays"][0]
        assert (first["model"], first["same"], first["same_request"]) == ("big", False, False)
        assert first["input_tokens"] > 0 and first["output_tokens"] > 0
        sent = scenario.requests[0].body["messages"]
        assert next(message["content"] for message in sent if message["role"] == "user") == "first words"
        same = (await replay(site, answer)).json()["replays"][0]
        assert (same["model"], same["same"], same["same_request"]) == ("offline", True, True)
        assert await site.count() == count


async def test_another_config_and_another_agent_change_the_prompt(
    embedded_server: EmbeddedServer, server: ModelServer
) -> None:
    scenario = server.scenario("normal", text="x")
    models = {"offered": [f"{scenario.url}#big"]}
    source = {"key": "conversation", "schema_name": "user.message.v1", "fetch": {"limit": 1}}
    selectors = [{"schema_name": "agent.context.v1", "all_tags": ["consumer:default-chat-assistant"]}]
    agent = {
        "agent_id": "default-chat-assistant",
        "system_prompt": "Be brief.",
        "subscriptions": {"selectors": selectors},
    }
    async with serving(embedded_server.url, models) as (site, answer):
        changes = {"model": "big", "config": config(sources=[source]), "agent": agent}
        assert (await replay(site, answer, changes)).status_code == 200
        system, *rest = scenario.requests[0].body["messages"]
        assert system["content"].startswith("Be brief.")
        assert [message["content"] for message in rest] == ["hello"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"times": 0}, "times"),
        ({"times": 11}, "times"),
        ({"times": "2"}, "times"),
        ({"model": ""}, "model"),
        ({"model": "http://127.0.0.1:9/v1#stolen"}, "model"),
        ({"model": "unknown"}, "model"),
        ({"modle": "big"}, "modle"),
        ({"config": {}}, "config"),
        ({"config": []}, "config"),
        ({"config": 5}, "config"),
        ({"agent": {"agent_id": "x"}}, "agent"),
        ({"agent": "x"}, "agent"),
        ([], ""),
    ],
)
async def test_invalid_requests_are_refused_before_a_model_is_called(
    embedded_server: EmbeddedServer, body: Any, where: str
) -> None:
    async with serving(embedded_server.url, {}) as (site, answer):
        document = problem(await replay(site, answer, body), 422, "invalid-input")
        assert any(error["where"].startswith(where) for error in document["errors"]), document


async def test_a_process_without_models_says_where_to_run_it(embedded_server: EmbeddedServer) -> None:
    async with serving(embedded_server.url, "this process has no models") as (site, answer):
        detail = problem(await replay(site, answer), 409, "not-replayable")["detail"]
        assert "no models" in detail and "crumb replay" in detail


async def test_a_failing_model_is_part_of_the_reply_and_ends_it(
    embedded_server: EmbeddedServer, server: ModelServer
) -> None:
    scenario = server.scenario("unauthorized")
    async with serving(embedded_server.url, {"offered": [f"{scenario.url}#big"]}) as (site, answer):
        replays = (await replay(site, answer, {"model": "big", "times": 3})).json()["replays"]
        assert len(replays) == 1 and "text" not in replays[0] and replays[0]["error"]


async def test_deleted_items_are_listed_and_other_breadcrumbs_are_not_found(
    embedded_server: EmbeddedServer,
) -> None:
    async with serving(embedded_server.url, {}) as (site, answer):
        async with working(site.store, ModelPool().default, owner=DEVELOPER) as chat:
            await chat.answer_to(await chat.say("s", "third"))
            first, *_ = await chat.all("s", "user.message.v1")
            await chat.settled()
        problem(await replay(site, first), 404, "not-found")
        await site.store.delete(DEVELOPER, first.id)
        document = problem(await replay(site, answer), 409, "not-replayable")
        assert [one["id"] for one in document["missing"]] == [str(first.id)]


async def test_only_a_curator_of_the_owner_without_narrowing_can_replay(
    embedded_server: EmbeddedServer,
) -> None:
    async with serving(embedded_server.url, {}, api_keys=KEYS) as (site, answer):
        assert (await replay(site, answer, **{"X-API-Key": KEY})).status_code == 200
        problem(await replay(site, answer, **{"X-API-Key": OTHER_KEY}), 404, "not-found")
        problem(await replay(site, answer, **{"X-API-Key": WEAK_KEY}), 403, "forbidden")
        for narrowing in ({"session_id": "s"}, {"user_id": "ann"}, {"session_id": "s", "user_id": "ann"}):
            token = await site.token(KEY, roles=["curator"], **narrowing)
            body = {"config": config(sources=[{"key": "all", "schema_name": "user.message.v1"}])}
            problem(await replay(site, answer, body, **token), 403, "forbidden")
