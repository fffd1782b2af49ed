"""Reports turns: the only place that counts and logs their starts and ends.

The worker's turn runner creates a `TurnReport` for each event that it handles and tells it how each attempt ended. The
handler adds the facts that only it knows: which agents answer, with which model, and with how many tokens. One event
can have several answers, of different agents. Each of them is one turn in metrics and one line in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

import structlog

from breadcrumbs.runtime.telemetry import metrics
from breadcrumbs.runtime.telemetry.labels import BoundedLabels
from breadcrumbs.runtime.telemetry.redaction import log_reason

_log = structlog.get_logger("breadcrumbs.turns")


class TurnCounters:
    """Metrics of the turns of one agent with one model."""

    def __init__(self, kind: str, agent: str, model: str) -> None:
        labels = (kind, agent, model)
        self.started = metrics.TURNS_STARTED.labels(*labels)
        self.answered = metrics.TURNS_ANSWERED.labels(*labels)
        self.failed = metrics.TURNS_FAILED.labels(*labels)
        self.cancelled = metrics.TURNS_CANCELLED.labels(*labels)
        self.retried = metrics.TURNS_RETRIED.labels(*labels)
        self.abandoned = metrics.TURNS_ABANDONED.labels(*labels)
        self.duration = metrics.TURN_DURATION.labels(*labels)


class ModelCounters:
    """Metrics of the model calls of one agent with one model."""

    def __init__(self, agent: str, model: str) -> None:
        self.calls = metrics.MODEL_CALLS.labels(agent, model)
        self.failures = metrics.MODEL_CALL_FAILURES.labels(agent, model)
        self.first_token = metrics.FIRST_TOKEN.labels(agent, model)
        self.input, self.output, self.cached, self.reasoning = (
            metrics.MODEL_TOKENS.labels(agent, model, type)
            for type in ("input", "output", "cached", "reasoning")
        )


_MODELS: Final = BoundedLabels(ModelCounters)
_TOOLS: Final = BoundedLabels(
    lambda tool: {ok: metrics.TOOL_CALLS.labels(tool, "success" if ok else "error") for ok in (True, False)}
)


def count_tool_call(tool: str, *, ok: bool) -> None:
    """Count a tool call by its result."""
    _TOOLS.get(tool)[ok].inc()


class Tokens(NamedTuple):
    """Number of tokens of a model call, as the provider reports them. None: not reported."""

    input: int
    output: int
    cached: int | None = None
    reasoning: int | None = None


class AnswerFacts:
    """Facts about the turn of one agent, over all attempts. The handler sets them."""

    __slots__ = (
        "_began",
        "_counters",
        "_models",
        "agent",
        "answered",
        "cached_tokens",
        "first_token",
        "hidden",
        "input_tokens",
        "message",
        "model",
        "model_calls",
        "open",
        "output_tokens",
        "reasoning_tokens",
        "tool_calls",
    )

    def __init__(self, agent: str, model: str, message: object, counters: TurnCounters, began: float) -> None:
        self.agent = agent
        self.model = model
        self.message = message
        """Id of the message that is answered, a text or a UUID. It becomes text when it is logged."""
        self.open = True
        """The agent was started in the current attempt, and its end is not reported."""
        self.answered = False
        """The answer is stored."""
        self.hidden: Iterable[str] = ()
        """Texts that a reason must not quote in the log."""
        self.first_token: float | None = None
        self.input_tokens = self.output_tokens = 0
        self.cached_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.model_calls = self.tool_calls = 0
        self._counters = counters
        self._models: ModelCounters | None = None
        self._began = began
        counters.started.value += 1

    def call_started(self) -> None:
        """Count a model call."""
        if self._models is None:
            self._models = _MODELS.get(self.agent, self.model)
        self.model_calls += 1
        self._models.calls.value += 1

    def call_failed(self) -> None:
        """Count the failure of the model call that was started last."""
        if self._models is not None:
            self._models.failures.inc()

    def call_moved(self, model: str, *, failed: bool) -> None:
        """Go on with another model of a fallback list. `failed`: the call of the model before it failed."""
        if self._models is None or model == self.model:
            return
        if failed:
            self._models.failures.inc()
        self.model = model
        self._models = _MODELS.get(self.agent, model)
        self._models.calls.value += 1

    def call_ended(self, first_token: float | None, tokens: Tokens | None) -> None:
        """Count the reply to a model call. `first_token`: seconds until its first piece."""
        if self._models is None:
            return
        if first_token is not None and self.first_token is None:
            self.first_token = first_token
            self._models.first_token.record(first_token)
        if tokens is not None:
            self._add_tokens(self._models, tokens)

    def _add_tokens(self, models: ModelCounters, tokens: Tokens) -> None:
        # A provider can report anything. A counter must not decrease.
        input, output = max(0, tokens.input), max(0, tokens.output)
        self.input_tokens += input
        self.output_tokens += output
        models.input.value += input
        models.output.value += output
        if tokens.cached is not None:
            self.cached_tokens = (self.cached_tokens or 0) + max(0, tokens.cached)
            models.cached.inc(max(0, tokens.cached))
        if tokens.reasoning is not None:
            self.reasoning_tokens = (self.reasoning_tokens or 0) + max(0, tokens.reasoning)
            models.reasoning.inc(max(0, tokens.reasoning))

    def tool_called(self, tool: str, *, ok: bool) -> None:
        """Count a tool call of this turn."""
        self.tool_calls += 1
        count_tool_call(tool, ok=ok)

    def retried(self) -> None:
        """Count a failed attempt that another one follows."""
        self._counters.retried.inc()

    def end(self, how: str) -> float:
        """Count the end of the turn and return its seconds. `how`: answered, failed, cancelled or abandoned."""
        self.open = False
        seconds = time.perf_counter() - self._began
        counters = self._counters
        match how:
            case "answered":
                counters.answered.value += 1
                counters.duration.record(seconds)
            case "failed":
                counters.failed.inc()
                counters.duration.record(seconds)
            case "cancelled":
                counters.cancelled.inc()
            case _:
                counters.abandoned.inc()
        return seconds

    def counts(self) -> dict[str, Any]:
        """Return the counts as fields of a log line. Counts that are not known are left out."""
        fields: dict[str, Any] = {}
        if self.input_tokens or self.output_tokens:
            fields["input_tokens"] = self.input_tokens
            fields["output_tokens"] = self.output_tokens
        if self.model_calls:
            fields["model_calls"] = self.model_calls
        if self.first_token is not None:
            fields["first_token_ms"] = round(self.first_token * 1000, 1)
        if self.cached_tokens is not None:
            fields["cached_tokens"] = self.cached_tokens
        if self.reasoning_tokens is not None:
            fields["reasoning_tokens"] = self.reasoning_tokens
        if self.tool_calls:
            fields["tool_calls"] = self.tool_calls
        return fields


class TurnSubject(NamedTuple):
    """The event that a turn handles, in words of the log."""

    owner: UUID
    session: str | None
    breadcrumb: UUID
    queue_seconds: float
    """Seconds from the write of the event to the start of the turn."""


class TurnReport:
    """Reports the turns of one event, from the first attempt in this process to the end."""

    __slots__ = ("_answers", "_began", "_counters", "_kind", "_subject", "attempt")

    def __init__(self, kind: str, counters: BoundedLabels[TurnCounters], subject: TurnSubject) -> None:
        self._kind = kind
        self._counters = counters
        self._subject = subject
        self._answers: dict[str, AnswerFacts] = {}
        self._began = time.perf_counter()
        self.attempt = 1
        """Number of the current attempt."""

    def begin(self, agent: str, model: str = "", message: object = "") -> AnswerFacts:
        """Note that an agent begins to answer the event. In a later attempt, return the same facts again."""
        facts = self._answers.get(agent)
        if facts is None:
            # The first agent also gets the time that the handler needed to find it.
            began = time.perf_counter() if self._answers else self._began
            counters = self._counters.get(agent, model)
            facts = self._answers[agent] = AnswerFacts(agent, model, message, counters, began)
        elif not facts.answered:
            facts.open = True
        return facts

    def facts(self, agent: str) -> AnswerFacts:
        """Return the facts of an agent that has begun."""
        return self._answers[agent]

    # Ends of attempts, as the turn runner sees them

    def finished(self) -> None:
        """Report an event that is done. An agent without an answer lost its session or its message."""
        for facts in self._answers.values():
            if not facts.open:
                continue
            if facts.answered:
                self._report_answer(facts)
            else:
                self._log(_log.info, "turn cancelled", facts, facts.end("cancelled"), reason="deleted")

    def retrying(self, error: Exception, pause: float) -> None:
        """Report a failed attempt that another one follows after some seconds."""
        self._report_answers()
        for facts in [facts for facts in self._answers.values() if facts.open]:
            facts.open = False
            facts.retried()
            reason = log_reason(error, facts.hidden)
            self._log(_log.info, "turn failed, retrying", facts, None, reason=reason, wait=round(pause, 3))

    def failed(self, error: Exception, *, cancelled: bool) -> None:
        """Report an event that is done without an answer of each agent."""
        self._report_answers()
        write, event, how = (
            (_log.info, "turn cancelled", "cancelled")
            if cancelled
            else (_log.warning, "turn failed", "failed")
        )
        # An attempt can fail before the handler knows the agents, and after a pause none of them is open.
        waiting = [facts for facts in self._answers.values() if not facts.answered] or [self.begin("")]
        for facts in waiting:
            self._log(write, event, facts, facts.end(how), reason=log_reason(error, facts.hidden))

    def abandoned(self) -> None:
        """Report an event that another worker handles from now on."""
        self._report_answers()
        for facts in [facts for facts in self._answers.values() if not facts.answered]:
            self._log(_log.info, "turn abandoned", facts, facts.end("abandoned"))

    def _report_answers(self) -> None:
        for facts in self._answers.values():
            if facts.open and facts.answered:
                self._report_answer(facts)

    def _report_answer(self, facts: AnswerFacts) -> None:
        seconds = facts.end("answered")
        # A context is built for every message, and the line of the agent that answers it follows.
        level, write = (logging.INFO, _log.info) if facts.model else (logging.DEBUG, _log.debug)
        if _is_logged(level):  # otherwise the fields of the line would be made for nothing
            self._log(write, "turn answered", facts, seconds)

    def _log(self, write: Any, event: str, facts: AnswerFacts, seconds: float | None, **more: Any) -> None:
        # In the order of a reader of the text format: the ids, which are long, stand at the end.
        subject = self._subject
        fields: dict[str, Any] = {}
        if subject.session is not None:
            fields["session"] = subject.session
        fields["agent"] = facts.agent
        if facts.model:
            fields["model"] = facts.model
        if seconds is not None:
            fields["duration_ms"] = round(seconds * 1000, 1)
        fields |= more | facts.counts()
        fields["attempt"] = self.attempt
        fields["queue_ms"] = round(subject.queue_seconds * 1000, 1)
        fields["kind"], fields["owner"] = self._kind, str(subject.owner)
        if facts.message:
            fields["message_id"] = str(facts.message)
        if event != "turn answered":
            fields["breadcrumb"] = str(subject.breadcrumb)
        write(event, **fields)


def _is_logged(level: int) -> bool:
    # A program that hosts agents can configure structlog with other loggers, which may not have this method.
    is_enabled = getattr(_log, "is_enabled_for", None)
    return is_enabled is None or bool(is_enabled(level))
