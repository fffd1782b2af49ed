"""An ADK agent with a recording model, and servers that tests can kill."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import uuid4

from google.adk.agents import LlmAgent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService
from google.genai import types
from pydantic import Field

from tests.support.process import Process
from tests.support.servers import free_port

APP = "weather"


class Parrot(BaseLlm):
    """Model that answers `re: …` to the last message and records its prompts."""

    model: str = "parrot"
    shown: list[list[tuple[str, str]]] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        seen = [
            (content.role or "", part.text or "")
            for content in llm_request.contents
            for part in content.parts or ()
        ]
        self.shown.append(seen)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=f"re: {seen[-1][1]}")]))


def runner_on(service: BaseSessionService, model: Parrot, *, app: str = APP, **agent: Any) -> Runner:
    return Runner(app_name=app, agent=LlmAgent(name="helper", model=model, **agent), session_service=service)


async def say(runner: Runner, user: str, session: str, text: str) -> list[str]:
    """Run a turn and return the texts of the agent."""
    message = types.Content(role="user", parts=[types.Part(text=text)])
    said = []
    async for event in runner.run_async(user_id=user, session_id=session, new_message=message):
        said += [part.text or "" for part in (event.content and event.content.parts) or ()]
    return said


async def spoken(
    service: BaseSessionService, user: str, session: str, *, app: str = APP
) -> list[tuple[str, str]]:
    """Return the stored authors and texts of a conversation."""
    found = await service.get_session(app_name=app, user_id=user, session_id=session)
    assert found is not None
    return [
        (event.author, part.text or "")
        for event in found.events
        for part in (event.content and event.content.parts) or ()
    ]


def event(text: str | None = None, *, author: str = "user", **fields: Any) -> Event:
    """Return an event. `state` is its state delta."""
    state = fields.pop("state", None)
    content = None if text is None else types.Content(role="user", parts=[types.Part(text=text)])
    if state is not None:
        fields["actions"] = EventActions(state_delta=state)
    return Event(author=author, invocation_id="i1", content=content, **fields)


def unique(name: str = "u") -> str:
    return f"{name}-{uuid4()}"


def crumb_serve(folder: Path, redis: str, *, namespace: str = "bc") -> Process:
    port = free_port()
    argv = [sys.executable, "-m", "breadcrumbs", "serve", "--redis", redis, "--port", str(port)]
    return Process(folder, argv, port=port, ready="/ready", CRUMB_NAMESPACE=namespace)
