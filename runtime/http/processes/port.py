"""State of all processes that serve the port of this process: their metrics, and a list of them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from breadcrumbs.runtime.http.middleware.metrics import Metrics, RouteTimes
from breadcrumbs.runtime.http.processes.group import Member
from breadcrumbs.runtime.http.processes.merging import Family, encode_families, merge_families
from breadcrumbs.runtime.telemetry.metrics import REGISTRY

STARTED: Final = time.time_ns() // 1000
"""Start of this process in microseconds since 1970. A forked process has that of its parent."""


@dataclass(frozen=True, slots=True)
class PortState:
    """All processes of a port at one time."""

    families: list[Family]
    """Metrics of all processes together, also of those that have ended."""
    processes: list[dict[str, Any]]
    """`number`, `pid`, `started_at` and `families` of each process that runs, by number."""
    restarts: list[int]
    """Restarts of each process, by number."""

    @property
    def in_flight(self) -> int:
        return int(_value(self.families, "breadcrumbs_http_in_flight"))

    def by_route(self) -> dict[tuple[str, str], RouteTimes]:
        """Return the response times by method and route, of all processes together."""
        return RouteTimes.of_samples(_samples(self.families, "breadcrumbs_http_request_seconds"))


def take_snapshot(metrics: Metrics, member: Member) -> dict[str, Any]:
    """Return the state of this process for the others."""
    return {
        "number": member.number,
        "pid": os.getpid(),
        "started_at": member.started_at,
        "families": encode_families([metrics.registry, REGISTRY]),
    }


async def read_port(metrics: Metrics, member: Member) -> PortState:
    """Read the state of all processes of the port."""
    own = take_snapshot(metrics, member)
    member.publish(own)  # if this process is killed, no counter goes back behind this reply
    processes = [own, *await member.read_others()]
    processes.sort(key=lambda process: int(process["number"]))
    ended = member.read_ended()
    families = merge_families([*(process["families"] for process in processes), ended.get("families", [])])
    return PortState(families, processes, ended.get("restarts", [0] * member.group.size))


def requests_of(process: dict[str, Any]) -> int:
    """Return the number of requests that a process has completed."""
    return int(sum(sample[2] for sample in _samples(process["families"], "breadcrumbs_http_requests")))


def in_flight_of(process: dict[str, Any]) -> int:
    """Return the number of requests that a process is handling."""
    return int(_value(process["families"], "breadcrumbs_http_in_flight"))


def _value(families: Sequence[Family], name: str) -> float:
    return float(sum(sample[2] for sample in _samples(families, name)))


def _samples(families: Sequence[Family], name: str) -> list[list[Any]]:
    return next((family["samples"] for family in families if family["name"] == name), [])
