"""Calls of the HTTP model with short limits, and checks that apply to each call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from breadcrumbs.agents.models.base import (
    ModelError,
    ModelReply,
    ModelRequest,
    PromptMessage,
)
from breadcrumbs.agents.models.endpoint import Endpoint, EndpointLimits
from breadcrumbs.agents.models.openai_compatible import OpenAICompatibleModel
from tests.support.model_server import Scenario

KEY = "sk-test-0123456789abcdef"
ASK = ModelRequest(messages=(PromptMessage("system", "Be brief."), PromptMessage("user", "Hello there")))
QUICK = EndpointLimits(connect=2, read=2, total=5, retries=2, backoff=0.02, max_wait=1)


@asynccontextmanager
async def model_at(
    scenario: Scenario, *, key: str | None = KEY, streaming: bool = True, **limits: Any
) -> AsyncIterator[OpenAICompatibleModel]:
    endpoint = Endpoint(
        scenario.url,
        key=SecretStr(key) if key else None,
        limits=replace(QUICK, **limits),
        streaming=streaming,
    )
    model = OpenAICompatibleModel("test", endpoint)
    try:
        yield model
    finally:
        await model.close()


class Deltas(list[str]):
    async def __call__(self, piece: str) -> None:
        self.append(piece)


async def ask(scenario: Scenario, request: ModelRequest = ASK, **options: Any) -> ModelReply:
    """With deltas; they must add up to the reply."""
    deltas = Deltas()
    async with model_at(scenario, **options) as model:
        reply = await model.complete(request, deltas)
    assert "".join(deltas) == reply.text
    assert "" not in deltas
    return reply


async def failure(scenario: Scenario, **options: Any) -> ModelError:
    deltas = Deltas()
    async with model_at(scenario, **options) as model:
        with pytest.raises(ModelError) as caught:
            await model.complete(ASK, deltas)
    error = caught.value
    assert KEY not in repr(error) and KEY not in str(error.reason)
    assert error.reason.startswith(f"{scenario.url}#test: ")
    assert str(error) == error.reason
    return error
