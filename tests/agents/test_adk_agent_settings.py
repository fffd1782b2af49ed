"""What an agent on an ADK server may be told, by settings and by definitions, and what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from pydantic import ValidationError

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.answer import answer_breadcrumb, parse_answer
from breadcrumbs.agents.remote_adk.servers import AdkServers
from breadcrumbs.composition.workers import WorkerParts, agent_worker, running
from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from tests.support.adk_agents import (
    MESSAGES,
    chatting,
    remote_agent,
    status_of,
    talk,
)
from tests.support.adk_backend import APP, Exchange, FakeAdk, fake_adk
from tests.support.conversations import Chat, config
from tests.support.events import reader_of


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
    fake.behaviours["list-apps"] = status_of(404, {"detail": "Not Found"})
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
    book = ConfigsInForce(store, None, default=orjson.dumps([config("nobody")]))
    for adk, complaint in (
        ({}, "The settings have none"),
        ({"servers": {"a": {"url": "http://127.0.0.1:1"}}}, "which app of a"),
        (
            {"servers": {"a": {"url": "http://127.0.0.1:1"}, "b": {"url": "http://127.0.0.1:2"}}},
            "which ADK server",
        ),
    ):
        with pytest.raises(StartupError, match=complaint):
            async with agent_worker(
                WorkerParts(store, reader_of(store), Settings(adk=adk), book), [remote_agent()], kind="agents"
            ):
                pass


async def test_a_definition_of_a_client_cannot_name_a_server_of_its_own() -> None:
    servers = AdkServers({"servers": {"house": {"url": "http://127.0.0.1:1/prefix/", "app": APP}}})
    definition = remote_agent(adk={"server": "http://evil.example", "app": "x"}).definition
    with pytest.raises(InvalidInput, match="only these may be used"):
        servers.resolve(ActiveAgent(definition))
    with pytest.raises(InvalidInput, match="There is house"):
        servers.resolve(remote_agent(adk={"server": "horse"}))
    assert servers.resolve(ActiveAgent(definition, trusted=True)).server.name == "http://evil.example"
    by_url = remote_agent(adk={"server": "http://127.0.0.1:1/prefix", "app": "x"}).definition
    assert servers.resolve(ActiveAgent(by_url)).server.name == "house"
    assert servers.resolve(remote_agent()).app == APP
    await servers.close()


async def test_a_definition_that_is_posted_answers_and_one_that_cannot_says_so_in_the_session(
    store: Store, fake: FakeAdk, tmp_path: Path
) -> None:
    servers = {"house": {"url": fake.url, "app": APP}}
    settings = Settings(adk={"servers": servers}, agents=tmp_path, turn_attempts=1)
    book = ConfigsInForce(store, None, default=orjson.dumps([config("nobody")]))
    chat = Chat(store)
    for name, adk in (
        ("good", {}),
        ("lost", {"server": "elsewhere"}),
        ("evil", {"server": "http://127.0.0.1:1"}),
    ):
        trigger = {**MESSAGES, "any_tags": [f"for:{name}"]}
        fields = {"agent_id": name, "kind": "adk", "adk": adk, "subscriptions": {"selectors": [trigger]}}
        await chat.post("agent.def.v1", [], fields)
    async with agent_worker(WorkerParts(store, reader_of(store), settings, book)) as worker, running(worker):
        await chat.answer_to(await chat.say("s", "Hello", tags=["for:good"]))
        lost = await chat.error_about(await chat.say("s", "Hello", tags=["for:lost"]))
        evil = await chat.error_about(await chat.say("s", "Hello", tags=["for:evil"]))
    assert lost.context["error"] == "lost: there is no ADK server 'elsewhere'. There is house"
    assert "only these may be used" in evil.context["error"]


def test_no_model_gets_to_change_a_sessions_state_or_to_speak_for_a_server() -> None:
    answer = parse_answer(
        '{"action": "create", "breadcrumb": {"context": {"message": "Hi", "state_delta": {"a": 1}, "adk": {}}}}'
    )
    new = answer_breadcrumb(
        answer, remote_agent().definition, ["session:s"], {"session_id": "s"}, ("session",)
    )
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
