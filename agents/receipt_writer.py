"""Makes the receipt of an answer, and archives the setup that it names."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from breadcrumbs.agents.models.base import ModelRequest, PromptMessage
from breadcrumbs.agents.receipts import TurnRecord, encode_digest, local_request
from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.agents.setups import Setup, Setups
from breadcrumbs.runtime.retrieval.part_digests import new_parts_digest
from breadcrumbs.runtime.store.store import Store

FUNCTION = "function"
"""Name of the model in the request of a function agent. The function gets the prompt that a model would get."""


@dataclass(frozen=True, slots=True)
class ShownParts:
    """The parts of the prompt of a turn."""

    parts: list[dict[str, Any]]
    references: dict[str, Any] | None
    """References of the items. None: the context of the answer has them."""


class ReceiptWriter:
    """Makes the receipts of one process."""

    def __init__(self, store: Store) -> None:
        self._setups = Setups(store)

    async def of_model(self, request: AnswerRequest, shown: ShownParts, record: TurnRecord) -> dict[str, Any]:
        """Return the receipt of an answer of a model."""
        first = record.first
        dialect = first.sent.dialect
        setup = Setup(request.definition, "model", first.model, dialect, record.tools, _config_of(request))
        receipt = await self._start(request.owner, setup, shown)
        made_with = _with_context(request, receipt)
        receipt["calls"] = [call.entry(dialect, made_with) for call in record.calls]
        return receipt | _attempt(request)

    async def made_with(
        self, request: AnswerRequest, shown: ShownParts, record: TurnRecord
    ) -> dict[str, Any]:
        """Return the setup and the context of the model calls of a turn, for its steps."""
        first = record.first
        setup = Setup(
            request.definition, "model", first.model, first.sent.dialect, record.tools, _config_of(request)
        )
        return _with_context(request, await self._start(request.owner, setup, shown))

    async def of_function(
        self, request: AnswerRequest, shown: ShownParts, messages: tuple[PromptMessage, ...], began: float
    ) -> dict[str, Any]:
        """Return the receipt of an answer of a function. `began` is a time of `time.perf_counter`."""
        sent = local_request(FUNCTION, ModelRequest(messages))
        setup = Setup(request.definition, "function", None, sent.dialect, config=_config_of(request))
        receipt = await self._start(request.owner, setup, shown)
        receipt["calls"] = [{"request": encode_digest(sent.digest), "ms": _milliseconds(began)}]
        return receipt | _attempt(request)

    async def of_remote(self, request: AnswerRequest, shown: ShownParts, began: float) -> dict[str, Any]:
        """Return the receipt of an answer of an ADK server. The server builds its own requests to models."""
        setup = Setup(request.definition, "adk", config=_config_of(request))
        receipt = await self._start(request.owner, setup, shown)
        return {**receipt, "ms": _milliseconds(began), **_attempt(request)}

    async def _start(self, owner: UUID, setup: Setup, shown: ShownParts) -> dict[str, Any]:
        receipt: dict[str, Any] = {
            "setup": encode_digest(await self._setups.digest(owner, setup)),
            "context": encode_digest(new_parts_digest(shown.parts)),
        }
        if shown.references is not None:
            receipt["items"] = shown.references
        return receipt


def _with_context(request: AnswerRequest, start: dict[str, Any]) -> dict[str, Any]:
    """Return the beginning of a receipt together with the version of the context, as steps store it."""
    if not request.is_context:
        return dict(start)
    return {**start, "context_id": str(request.trigger.id), "context_version": request.trigger.version}


def _config_of(request: AnswerRequest) -> str | None:
    config = request.trigger.context.get("config") if request.is_context else None
    return config if isinstance(config, str) else None


def _attempt(request: AnswerRequest) -> dict[str, Any]:
    return {"attempt": request.turn.attempt} if request.turn.attempt > 1 else {}


def _milliseconds(began: float) -> int:
    return round((time.perf_counter() - began) * 1000)
