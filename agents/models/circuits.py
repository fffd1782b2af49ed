"""Circuit breakers: a model that keeps failing is not called for some time.

Only fallback lists use them (`fallback.py`). A circuit is closed while the model answers. After some failures in a row
it opens, and the model is skipped. When its pause is over, one call is let through as a probe. If the probe succeeds,
the circuit closes. Otherwise it opens again, for twice as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from breadcrumbs.agents.models.names import public_name
from breadcrumbs.runtime.telemetry import metrics
from breadcrumbs.runtime.telemetry.labels import BoundedLabels

_log = structlog.get_logger("breadcrumbs.models")

MAX_PAUSE_SECONDS: Final = 300.0
"""Longest pause of an open circuit, also if the model server requests a longer one."""
_MAX_CIRCUITS: Final = 1_000
"""Maximum number of models with a circuit. Above it, the closed circuits are forgotten."""

_OPEN: Final = BoundedLabels(metrics.MODEL_CIRCUIT_OPEN.labels)

CircuitState = Literal["closed", "open", "probing"]


@dataclass(frozen=True, slots=True)
class CircuitLimits:
    """When a circuit opens, and for how long."""

    failures: int = 3
    """Number of failures in a row after which a circuit opens."""
    seconds: float = 30.0
    """First pause. It doubles with each failed probe, up to `MAX_PAUSE_SECONDS`."""


class Circuit:
    """The circuit of one model."""

    __slots__ = ("_clock", "_failures", "_limits", "_open_until", "_pause", "_probing", "model")

    def __init__(self, model: str, limits: CircuitLimits, clock: Callable[[], float]) -> None:
        self.model = model
        self._limits = limits
        self._clock = clock
        self._failures = 0
        self._pause = 0.0
        """Current pause in seconds. 0: the circuit is closed."""
        self._open_until = 0.0
        self._probing = False

    @property
    def state(self) -> CircuitState:
        if not self._pause:
            return "closed"
        return "probing" if self._probing else "open"

    @property
    def wait_seconds(self) -> float:
        """Seconds until the model may be called. 0: now."""
        if not self._pause:
            return 0.0
        if self._probing:
            return self._limits.seconds
        return max(0.0, self._open_until - self._clock())

    def begin(self) -> bool:
        """Return whether a call may start. Every started call has to be ended."""
        if not self._pause:
            return True
        if self._probing or self._clock() < self._open_until:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        """End a call that was answered."""
        self._failures = 0
        self._probing = False
        if self._pause:
            self._pause = 0.0
            _OPEN.get(self.model).set(0)
            _log.info("model answers again, circuit closed", model=self.model)

    def failed(self, reason: str, *, pause: float | None = None, at_once: bool = False) -> None:
        """End a call that failed. `pause`: seconds that the server requested. `at_once`: open after this failure."""
        self._failures += 1
        was_probe, self._probing = self._probing, False
        if not (was_probe or at_once or self._failures >= self._limits.failures):
            return
        if self._pause and not was_probe:
            return  # a call that began before the circuit opened
        pause = max(pause or 0.0, 2 * self._pause if self._pause else self._limits.seconds)
        self._pause = min(MAX_PAUSE_SECONDS, pause)
        self._open_until = self._clock() + self._pause
        _OPEN.get(self.model).set(1)
        _log.warning(
            "model keeps failing, circuit opened",
            model=self.model,
            reason=reason,
            failures=self._failures,
            seconds=round(self._pause, 1),
        )

    def abandoned(self) -> None:
        """End a call whose result says nothing about the model. A probe leaves the circuit open for the next one."""
        self._probing = False


class Circuits:
    """The circuits of a process, by the name of the model."""

    def __init__(
        self, limits: CircuitLimits | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits or CircuitLimits()
        self._clock = clock
        self._circuits: dict[str, Circuit] = {}

    def of(self, model: str) -> Circuit:
        """Return the circuit of a model."""
        circuit = self._circuits.get(model)
        if circuit is None:
            if len(self._circuits) >= _MAX_CIRCUITS:
                self._circuits = {name: one for name, one in self._circuits.items() if one.state != "closed"}
            if len(self._circuits) >= _MAX_CIRCUITS:
                self._circuits.clear()
            circuit = self._circuits[model] = Circuit(public_name(model), self._limits, self._clock)
        return circuit

    def __iter__(self) -> Iterator[Circuit]:
        return iter(self._circuits.values())

    @property
    def open_models(self) -> tuple[str, ...]:
        """The public names of the models whose circuit is not closed."""
        return tuple(sorted(circuit.model for circuit in self if circuit.state != "closed"))
