"""ADK's own Runner with our service: lessons A1 to A3."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest
from google.adk.cli import service_registry
from google.adk.cli.utils.service_factory import create_session_service_from_options
from google.genai import types

from breadcrumbs.adk import BreadcrumbSessionService
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from tests.adk.support import APP, Parrot, crumb_serve, runner_on, say, spoken, unique
from tests.support.process import Process
from tests.support.servers import free_port


async def test_A1_the_first_turn_sees_the_message_exactly_once_and_the_second_sees_the_history(
    service: BreadcrumbSessionService, user: str
) -> None:
    model = Parrot()
    runner = runner_on(service, model)
    session = await service.create_session(app_name=APP, user_id=user)
    assert await say(runner, user, session.id, "hello") == ["re: hello"]
    assert await say(runner, user, session.id, "again") == ["re: again"]
    assert model.shown == [
        [("user", "hello")],
        [("user", "hello"), ("model", "re: hello"), ("user", "again")],
    ]
    assert await spoken(service, user, session.id) == [
        ("user", "hello"),
        ("helper", "re: hello"),
        ("user", "again"),
        ("helper", "re: again"),
    ]


async def test_A1_a_turn_on_a_session_that_another_replica_created_sees_the_message_exactly_once(
    service: BreadcrumbSessionService, replica: BreadcrumbSessionService, user: str
) -> None:
    model = Parrot()
    session = await service.create_session(app_name=APP, user_id=user)
    await say(runner_on(replica, model), user, session.id, "hello")
    await say(runner_on(service, model), user, session.id, "again")
    assert [len(shown) for shown in model.shown] == [1, 3]


async def test_A3_two_replicas_answer_in_one_session_at_once_and_nothing_is_lost(
    service: BreadcrumbSessionService, replica: BreadcrumbSessionService, user: str
) -> None:
    session = await service.create_session(app_name=APP, user_id=user)
    runners = [runner_on(on, Parrot()) for on in (service, replica)]
    await asyncio.gather(
        *(
            say(runner, user, session.id, f"{number} to {place}")
            for number in range(5)
            for place, runner in enumerate(runners)
        )
    )
    said = await spoken(service, user, session.id)
    assert said == await spoken(replica, user, session.id)
    texts = {f"{number} to {place}" for number in range(5) for place in range(2)}
    assert sorted(said) == sorted(
        [("user", text) for text in texts] + [("helper", f"re: {text}") for text in texts]
    )


async def test_state_of_an_agent_is_available_in_the_next_turn_on_every_replica(
    service: BreadcrumbSessionService, replica: BreadcrumbSessionService, user: str, app: str
) -> None:
    for name in ("answer", "user:answer", "app:answer", "temp:answer"):
        runner = runner_on(service, Parrot(), app=app, output_key=name)
        session = await service.create_session(app_name=app, user_id=user)
        await say(runner, user, session.id, name)
        seen = await replica.get_session(app_name=app, user_id=user, session_id=session.id)
        assert seen is not None
        assert seen.state.get(name) == (None if name.startswith("temp:") else f"re: {name}")


def test_A3_direct_and_over_http_a_conversation_survives_a_restart_of_everything(tmp_path: Path) -> None:
    """The Redis server, the API and all their clients are restarted."""
    model = Parrot()
    with EmbeddedServer(tmp_path / "data") as redis, crumb_serve(tmp_path, redis.url) as api:
        addresses = [redis.url, api.url]

        async def turn(address: str, text: str, *, new: bool = False) -> list[tuple[str, str]]:
            async with BreadcrumbSessionService(address) as service:
                if new:
                    await service.create_session(app_name=APP, user_id="ann", session_id=f"s {address}")
                await say(runner_on(service, model), "ann", f"s {address}", text)
                return await spoken(service, "ann", f"s {address}")

        for address in addresses:
            asyncio.run(turn(address, "hello", new=True))
        api.kill()
        assert redis.process is not None
        redis.process.kill()
        redis.process.wait()
        redis.start()
        api.start()
        for address in addresses:
            said = asyncio.run(turn(address, "again"))
            assert said == [
                ("user", "hello"),
                ("helper", "re: hello"),
                ("user", "again"),
                ("helper", "re: again"),
            ]
    assert model.shown[-1] == [("user", "hello"), ("model", "re: hello"), ("user", "again")]


def test_a_service_works_on_one_event_loop_after_the_other_and_in_the_synchronous_runner(
    embedded_server: EmbeddedServer, namespace: str, served: str, user: str
) -> None:
    for address in (f"{embedded_server.url}?namespace={namespace}", served):
        service = BreadcrumbSessionService(address)
        session = asyncio.run(service.create_session(app_name=APP, user_id=user))
        runner = runner_on(service, Parrot())
        message = types.Content(role="user", parts=[types.Part(text="hello")])
        for _ in range(2):
            events = list(runner.run(user_id=user, session_id=session.id, new_message=message))
            assert [event.author for event in events] == ["helper"]
        assert len(asyncio.run(spoken(service, user, session.id))) == 4
        assert not service._by_loop


AGENT = """
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types

class Parrot(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        said = [part.text for content in llm_request.contents for part in content.parts]
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=" | ".join(said))]))

root_agent = LlmAgent(name="parrot", model=Parrot(model="parrot"))
"""
SERVICES_PY = "from breadcrumbs.adk import register\n\nregister()\n"
SERVICES_YAML = """
services:
  - scheme: crumb
    type: session
    class: breadcrumbs.adk.BreadcrumbSessionService
"""


def test_A3_a_conversation_continues_after_adk_api_server_is_killed(tmp_path: Path, served: str) -> None:
    agents = tmp_path / "agents"
    (agents / "parrot").mkdir(parents=True)
    (agents / "parrot" / "agent.py").write_text(AGENT)
    (agents / "parrot" / "__init__.py").write_text("from . import agent\n")
    (agents / "services.py").write_text(SERVICES_PY)
    port = free_port()
    argv = [
        *(sys.executable, "-m", "google.adk.cli", "api_server", "--port", str(port)),
        *("--session_service_uri", served.replace("http://", "crumb://"), str(agents)),
    ]
    session = unique("s")
    with Process(tmp_path, argv, port=port, ready="/list-apps") as adk:
        path = f"{adk.url}/apps/parrot/users/ann/sessions"

        def run(text: str) -> list[str]:
            body = {
                "appName": "parrot",
                "userId": "ann",
                "sessionId": session,
                "newMessage": {"role": "user", "parts": [{"text": text}]},
            }
            ran = httpx.post(f"{adk.url}/run", json=body, timeout=60)
            assert ran.status_code == 200, ran.text
            return [part["text"] for event in ran.json() for part in event["content"]["parts"]]

        created = httpx.post(path, json={"sessionId": session, "state": {"a": 1}}, timeout=60)
        assert created.status_code == 200, created.text
        assert run("hello") == ["hello"]
        adk.kill()
        adk.start()
        assert run("again") == ["hello | hello | again"]
        kept = httpx.get(f"{path}/{session}", timeout=60).json()
    # The same conversation through our own server.
    assert httpx.get(f"{served}/apps/parrot/users/ann/sessions/{session}").json() == kept
    assert [event["author"] for event in kept["events"]] == ["user", "parrot", "user", "parrot"]
    assert kept["state"] == {"a": 1}


@pytest.mark.parametrize(("name", "text"), [("services.py", SERVICES_PY), ("services.yaml", SERVICES_YAML)])
def test_adk_finds_the_service_by_its_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: str, name: str, text: str
) -> None:
    monkeypatch.setattr(service_registry, "_service_registry_instance", None)
    monkeypatch.delitem(sys.modules, "services", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / name).write_text(text)
    service_registry.load_services_module(str(tmp_path))
    found = create_session_service_from_options(
        base_dir=tmp_path, session_service_uri=served.replace("http://", "crumb://")
    )
    sys.modules.pop("services", None)
    assert isinstance(found, BreadcrumbSessionService)
    assert asyncio.run(found.list_sessions(app_name=unique("app"))).sessions == []
