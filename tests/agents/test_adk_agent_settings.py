"""Checks of settings and definitions of ADK agents."""

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


async def test_P22_a_missing_app_is_reported_in_the_log_at_start_and_in_the_session(
    store: Store, fake: FakeAdk
) -> None:
    """The log and the session contain the same message, with the existing apps (P22)."""
    with structlog.testing.capture_logs() as logs:
        async with chatting(store, fake.url, agents=(remote_agent(adk={"app": "reciters"}),)) as chat:
            (problem,) = [line for line in logs if line["event"] == "adk agent not available"]
            error = await chat.error_about(await chat.say("s", "Hello"))
    for words in (problem["problem"], error.context["error"]):
        assert words == f"ADK server house: app 'reciters' not found; available: another, {APP}"
    assert problem["log_level"] == "error"
    assert {asked.path for asked in fake.asked} == {"/list-apps"}


async def test_a_server_without_an_app_list_is_used_unchecked(store: Store, fake: FakeAdk) -> None:
    fake.behaviours["list-apps"] = status_of(404, {"detail": "Not Found"})
    async with chatting(store, fake.url) as chat:
        await talk(chat, "s", "Hello")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"servers": {"a": {}}}, "adk.servers.a.url"),
        (
            {"servers": {"a": {"url": "shop:8000"}}},
            "adk.servers.a.url: the URL of an ADK server is invalid: use",
        ),
        ({"servers": {"a": {"url": "http://me:secret@shop"}}}, "key_env"),
        ({"servers": {"a": {"url": "http://shop", "ap": "x"}}}, "adk.servers.a.ap"),
        (
            {"servers": {"a": {"url": "http://shop", "key_env": "NO_SUCH_KEY"}}},
            "set NO_SUCH_KEY in the environment",
        ),
        ({"server": {}}, "adk.server"),
    ],
)
def test_P21_settings_are_checked_at_start(settings: dict[str, Any], message: str) -> None:
    """The error contains the invalid setting and no secret (P21)."""
    with pytest.raises(StartupError, match=message) as caught:
        AdkServers(settings, environment={})
    assert "secret" not in str(caught.value)


async def test_P21_P22_an_agent_without_a_server_or_an_app_is_refused_at_start(store: Store) -> None:
    """The error explains which setting is missing (P21, P22)."""
    configs = ConfigsInForce(store, None, default=orjson.dumps([config("nobody")]))
    for adk, message in (
        ({}, "The settings have no ADK server"),
        ({"servers": {"a": {"url": "http://127.0.0.1:1"}}}, "no app for a: set adk.app"),
        (
            {"servers": {"a": {"url": "http://127.0.0.1:1"}, "b": {"url": "http://127.0.0.1:2"}}},
            "no ADK server given",
        ),
    ):
        with pytest.raises(StartupError, match=message):
            async with agent_worker(
                WorkerParts(store, reader_of(store), Settings(adk=adk), configs),
                [remote_agent()],
                kind="agents",
            ):
                pass


async def test_an_untrusted_definition_can_name_only_configured_servers() -> None:
    servers = AdkServers({"servers": {"house": {"url": "http://127.0.0.1:1/prefix/", "app": APP}}})
    definition = remote_agent(adk={"server": "http://evil.example", "app": "x"}).definition
    with pytest.raises(InvalidInput, match="may use only those in the settings"):
        servers.resolve(ActiveAgent(definition))
    with pytest.raises(InvalidInput, match="Use one of: house"):
        servers.resolve(remote_agent(adk={"server": "horse"}))
    assert servers.resolve(ActiveAgent(definition, trusted=True)).server.name == "http://evil.example"
    by_url = remote_agent(adk={"server": "http://127.0.0.1:1/prefix", "app": "x"}).definition
    assert servers.resolve(ActiveAgent(by_url)).server.name == "house"
    assert servers.resolve(remote_agent()).app == APP
    await servers.close()


async def test_a_posted_definition_answers_and_an_unusable_one_reports_an_error(
    store: Store, fake: FakeAdk, tmp_path: Path
) -> None:
    servers = {"house": {"url": fake.url, "app": APP}}
    settings = Settings(adk={"servers": servers}, agents=tmp_path, turn_attempts=1)
    configs = ConfigsInForce(store, None, default=orjson.dumps([config("nobody")]))
    chat = Chat(store)
    for name, adk in (
        ("good", {}),
        ("lost", {"server": "elsewhere"}),
        ("evil", {"server": "http://127.0.0.1:1"}),
    ):
        trigger = {**MESSAGES, "any_tags": [f"for:{name}"]}
        fields = {"agent_id": name, "kind": "adk", "adk": adk, "subscriptions": {"selectors": [trigger]}}
        await chat.post("agent.def.v1", [], fields)
    async with (
        agent_worker(WorkerParts(store, reader_of(store), settings, configs)) as worker,
        running(worker),
    ):
        await chat.answer_to(await chat.say("s", "Hello", tags=["for:good"]))
        lost = await chat.error_about(await chat.say("s", "Hello", tags=["for:lost"]))
        evil = await chat.error_about(await chat.say("s", "Hello", tags=["for:evil"]))
    assert lost.context["error"] == "lost: ADK server 'elsewhere' not found. Use one of: house"
    assert "may use only those in the settings" in evil.context["error"]


def test_a_model_answer_cannot_set_session_state_or_adk_metadata() -> None:
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
def test_an_adk_agent_refuses_model_settings(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="an ADK app has its own"):
        remote_agent(**changes)


def test_only_an_adk_agent_accepts_adk_settings() -> None:
    with pytest.raises(ValidationError, match="adk needs"):
        remote_agent(kind="model", adk={"app": "x"})


async def test_a_key_is_sent_with_every_run_and_is_in_no_error(store: Store) -> None:
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
