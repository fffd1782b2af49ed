"""Fallback lists: if a model fails, the next one of the list is called with the same request.

The class of the error decides (`FALLS_BACK`). An error that is about the request or the answer fails at once: another
model must not get a prompt that a content filter refused. After a part of the answer was streamed, no other model is
called: the turn is attempted again, and its text begins anew. The circuit of the model opens then, so that the next
attempt begins with another model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from breadcrumbs.agents.models.base import (
    ErrorKind,
    FailedModel,
    Model,
    ModelError,
    ModelReply,
    ModelRequest,
    OnDelta,
)
from breadcrumbs.agents.models.circuits import Circuits
from breadcrumbs.agents.models.names import public_name
from breadcrumbs.runtime.telemetry import metrics
from breadcrumbs.runtime.telemetry.labels import BoundedLabels
from breadcrumbs.runtime.telemetry.redaction import hide_messages, shortened

_log = structlog.get_logger("breadcrumbs.models")

FALLS_BACK: Final[dict[ErrorKind, bool]] = {
    "connection": True,
    "timeout": True,
    "server": True,
    "rate limit": True,
    "credit": True,
    "key": True,
    "model": True,
    "context length": False,
}
"""Classes of errors after which the next model is called, and whether they count for the circuit of the model.

A prompt that is too long says nothing about the model: a shorter one works.
"""

_FALLBACKS: Final = BoundedLabels(metrics.MODEL_FALLBACKS.labels)


class FallbackModel:
    """The models of a list, for one turn.

    `name` is the model that is called next. A later call of the turn begins with the model that answered the call
    before: a model continues its own tool calls best.
    """

    def __init__(self, models: Sequence[Model], circuits: Circuits) -> None:
        """`models` has at least one model. The circuits are shared by all turns of the process."""
        self._models = list(models)
        self._circuits = circuits
        self._current = next(
            (number for number, model in enumerate(self._models) if not self._wait(model)), 0
        )
        self._skipped = self._models[: self._current]

    @property
    def current(self) -> Model:
        """The model that is called next."""
        return self._models[self._current]

    @property
    def name(self) -> str:
        return self.current.name

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Call the models in order until one answers. Raise the error of the last one if none does."""
        failed = [FailedModel(model.name, "circuit open") for model in self._skipped]
        errors: list[ModelError] = []
        order = range(self._current, len(self._models))
        for number in order:
            model = self._models[number]
            if number != self._current:
                self._switch(request, number, failed=failed[-1].kind != "circuit open")
            if not self._circuits.of(model.name).begin():
                failed.append(FailedModel(model.name, "circuit open"))
                continue
            try:
                reply = await self._call(model, request, on_delta)
            except _NextModel as next_model:
                errors.append(next_model.error)
                failed.append(FailedModel(model.name, next_model.error.kind))
                continue
            self._skipped = []  # they are recorded with the first call of the turn
            return replace(reply, model=reply.model or model.name, failed=tuple(failed))
        raise self._exhausted(errors, skipped=any(one.kind == "circuit open" for one in failed))

    async def close(self) -> None:
        for model in self._models:
            await model.close()

    async def _call(self, model: Model, request: ModelRequest, on_delta: OnDelta | None) -> ModelReply:
        circuit, streamed = self._circuits.of(model.name), False

        async def write(text: str) -> None:
            nonlocal streamed
            streamed = True
            if on_delta is not None:
                await on_delta(text)

        try:
            reply = await model.complete(request, write)
        except ModelError as error:
            counts = FALLS_BACK.get(error.kind)
            if counts:
                circuit.failed(error.kind, pause=error.retry_after, at_once=streamed)
            else:
                circuit.abandoned()
            if counts is None or streamed:
                raise
            self._report(model, error, request)
            raise _NextModel(error) from None
        except BaseException:  # the turn was cancelled
            circuit.abandoned()
            raise
        circuit.succeeded()
        return reply

    def _switch(self, request: ModelRequest, number: int, *, failed: bool) -> None:
        self._current = number
        if request.observer is not None:
            request.observer.switched(self.name, failed=failed)

    def _report(self, model: Model, error: ModelError, request: ModelRequest) -> None:
        name = public_name(model.name)
        _FALLBACKS.get(name, error.kind).inc()
        observer = request.observer
        # A provider can quote the prompt in its error.
        reason = shortened(hide_messages(error.reason, (message.content for message in request.messages)))
        _log.warning(
            "model failed, trying the next one",
            **({} if observer is None else observer.log_fields()),
            model=name,
            error_class=error.kind,
            reason=reason,
        )

    def _wait(self, model: Model) -> float:
        return self._circuits.of(model.name).wait_seconds

    def _exhausted(self, errors: list[ModelError], *, skipped: bool) -> ModelError:
        """Return the error of a call that no model answered. The next attempt begins with the first usable model."""
        pause = min(self._wait(model) for model in self._models)
        if not errors:
            names = ", ".join(public_name(model.name) for model in self._models)
            return ModelError(
                f"no model can be called now, because the last calls of all of them failed: {names}",
                retry=True,
                retry_after=pause or None,
            )
        last = errors[-1]
        if len(self._models) == 1:
            return last
        reasons = "; ".join(error.reason for error in errors)
        retries = [error for error in errors if error.retry]
        raised = ModelError(
            f"all models failed: {reasons}",
            retry=bool(retries) or skipped,  # a model that was skipped can work again
            retry_after=min((error.retry_after or 0.0 for error in retries), default=0.0) or None,
            kind=last.kind,
        )
        raised.status = last.status
        return raised


class _NextModel(Exception):
    """A model failed in a way that lets the next one answer."""

    def __init__(self, error: ModelError) -> None:
        super().__init__(error.reason)
        self.error = error


def current_model(model: Model) -> Model:
    """Return the model that is called next. A model that is no list is itself."""
    return model.current if isinstance(model, FallbackModel) else model
