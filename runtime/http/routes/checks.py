"""Findings of the checks of `crumb doctor`, as the server makes them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias

import anyio
from pydantic import Field, with_config
from typing_extensions import TypedDict

from breadcrumbs.runtime.breadcrumb import times
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.listing import read_flag
from breadcrumbs.runtime.http.api.operations import Operation, Parameter, SuccessReply
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import Time
from breadcrumbs.runtime.maintenance.checks import CHECKS, Finding, verdict_of
from breadcrumbs.runtime.version import VERSION

SYSTEM_SECONDS: Final = 5.0
"""Age up to which the findings about the store and the workers are sent again."""
MODEL_SECONDS: Final = 60.0
"""Age up to which the findings about models are sent again. Their servers belong to others, so they are asked less."""

_closed = with_config(extra="forbid")

MakeFindings: TypeAlias = Callable[[], Awaitable[list[Finding]]]


@_closed
class FindingDocument(TypedDict):
    """Result of a check."""

    id: Annotated[str, Field(description="Stable id of the check, such as `workers`")]
    status: Annotated[
        Literal["ok", "warning", "error", "unknown", "skipped"],
        Field(description="`unknown`: the check could not be made. `skipped`: it does not apply here"),
    ]
    message: str
    advice: NotRequired[Annotated[str, Field(description="How to fix the problem")]]
    details: NotRequired[dict[str, Any]]
    subject: NotRequired[
        Annotated[str, Field(description="The server, kind of worker or model, if there are several")]
    ]


@_closed
class ChecksDocument(TypedDict):
    """Results of all checks, the worst status first of all."""

    status: Annotated[
        Literal["ok", "warning", "error", "unknown"], Field(description="The worst status of all findings")
    ]
    checked_at: Annotated[Time, Field(description="Time of the oldest finding")]
    version: Annotated[str, Field(description="Version of the process that made the checks")]
    findings: list[FindingDocument]


class CheckRoutes:
    """The operation that makes the checks. The composition provides them."""

    def __init__(self, check_system: MakeFindings, check_models: MakeFindings) -> None:
        self._system = _Recent(check_system, SYSTEM_SECONDS)
        self._models = _Recent(check_models, MODEL_SECONDS)

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation(
                id="checks",
                method="GET",
                path="/operations/checks",
                group="System",
                summary="Check the system",
                description=(
                    "Makes the checks of `crumb doctor` that this process can make: the Redis server, workers, lag, "
                    "dead letters, versions, clocks, models. Each problem comes with advice. Models are checked "
                    "without prompts, so it costs nothing. The findings are at most "
                    f"{SYSTEM_SECONDS:g} s old, those about models {MODEL_SECONDS:g} s. All tenants of the store share "
                    "them."
                ),
                handle=self.check,
                parameters=(
                    Parameter(
                        "models",
                        "query",
                        "`true` also asks the servers of the models, which can take some seconds.",
                        {"type": "boolean"},
                    ),
                ),
                successes=(
                    SuccessReply(
                        200, "The findings.", ChecksDocument, headers={"Cache-Control": "`no-store`"}
                    ),
                ),
            ),
        )

    async def check(self, call: HttpCall) -> Reply:
        with_models = read_flag(call.query(), "models")
        # A store that is down is a 503, as for all other routes.
        await call.services.store.ping()
        parts = [await self._system.get()]
        if with_models:
            parts.append(await self._models.get())
        order = {id: place for place, id in enumerate(CHECKS)}
        findings = sorted(
            (finding for part in parts for finding in part.findings), key=lambda one: order[one.id]
        )
        document = {
            "status": verdict_of(findings),
            "checked_at": times.to_text(min(part.made_at for part in parts)),
            "version": VERSION,
            "findings": [finding.as_public_dict() for finding in findings],
        }
        return Reply.json(document, headers=[(b"cache-control", b"no-store")])


@dataclass(frozen=True, slots=True)
class _Made:
    """Findings and the time when they were made, in microseconds."""

    made_at: int
    findings: list[Finding]


class _Recent:
    """Makes findings, and keeps them for some seconds. Concurrent requests share one run."""

    def __init__(self, make: MakeFindings, seconds: float) -> None:
        self._make = make
        self._microseconds = int(seconds * 1_000_000)
        self._made: _Made | None = None
        self._lock = anyio.Lock()

    async def get(self) -> _Made:
        async with self._lock:
            now = time.time_ns() // 1000
            # A clock that was set back must not keep old findings.
            if self._made is None or not 0 <= now - self._made.made_at <= self._microseconds:
                self._made = _Made(now, await self._make())
            return self._made
