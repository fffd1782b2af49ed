"""Capacity model: computes the size of a deployment from a load and from the constants of `capacity.py`.

docs/scale.md explains the formulas. Costs of a turn have a fixed part and a part per byte of a message.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
CONSTANTS = RESULTS / "capacity.json"
CONTEXT_LIFETIME_SECONDS = 3_600
"""A context is kept whole for this time. `output.ttl_seconds` of the context config."""
GIGABYTE = 1e9


@dataclass(frozen=True)
class Load:
    """The load of a deployment. The defaults are those of docs/scale.md."""

    sessions: int = 1_000_000
    turns_per_second: float = 10_000
    message_bytes: int = 1_000
    stored_turns: int = 20
    """Turns per session that the store keeps, on average."""
    streams: int = 100_000
    tenants: int = 1_000
    model_seconds: float = 2.0
    skew: float = 0.8
    """Exponent of the Zipf distribution of turns over sessions. 0: all sessions are equally active."""


@dataclass(frozen=True)
class Machines:
    """The machines of a deployment."""

    utilisation: float = 0.6
    """Share of a core to plan with. The rest is for peaks and for the time after a failure."""
    node_gigabytes: float = 32.0
    """Memory for data per node. A rewrite of the append-only file can need as much again."""
    node_failover_seconds: float = 15.0
    """Until a replica has replaced a node: `cluster-node-timeout` and an election."""


@dataclass(frozen=True)
class Costs:
    """Costs of one turn, for messages of one size. Times are in seconds of one core."""

    api: float
    builder: float
    runner: float
    server: float
    network_bytes: float
    file_bytes: float
    memory_bytes: float
    kept_bytes: float
    events: float

    @classmethod
    def of(cls, constants: dict[str, Any], message_bytes: int) -> Costs:
        def cost(name: str) -> float:
            part = constants["turn"][name]
            return float(part["fixed"] + part["per_byte"] * message_bytes)

        return cls(
            api=cost("api_ms") / 1e3,
            builder=cost("builder_ms") / 1e3,
            runner=cost("runner_ms") / 1e3,
            server=cost("server_ms") / 1e3,
            network_bytes=cost("received_bytes") + cost("sent_bytes"),
            file_bytes=cost("file_bytes"),
            memory_bytes=cost("memory_bytes"),
            kept_bytes=cost("kept_bytes"),
            events=cost("events"),
        )


@dataclass(frozen=True)
class Plan:
    """A deployment for a load."""

    nodes: int
    nodes_for_cpu: int
    nodes_for_memory: int
    builders: int
    runners: int
    api_processes: int | None
    """None: no number is enough, because each process reads all events."""
    max_turns_per_second_with_streams: float
    """Turns per second at which reading the events fills an API process."""
    memory_gigabytes: float
    growth_gigabytes_per_day: float
    network_megabytes_per_node: float
    """Per second."""
    file_megabytes_per_node: float
    """Per second, written to the append-only file."""
    max_turns_per_session: float
    """Per second, in one session: its turns run one after the other."""


def load_constants(path: Path = CONSTANTS) -> dict[str, Any]:
    constants: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return constants


def turn_seconds(constants: dict[str, Any], load: Load) -> float:
    """Return the time of a turn without queues."""
    return float(constants["turn_p50_ms"]) / 1e3 + load.model_seconds


def plan(constants: dict[str, Any], load: Load, machines: Machines) -> Plan:
    """Return the smallest deployment for a load, if lanes and sessions divide it evenly.

    The simulation finds out what uneven lanes and sessions need in addition.
    """
    costs, usable, rate = Costs.of(constants, load.message_bytes), machines.utilisation, load.turns_per_second
    kept = load.sessions * load.stored_turns * costs.kept_bytes
    contexts = rate * CONTEXT_LIFETIME_SECONDS * max(0.0, costs.memory_bytes - costs.kept_bytes)
    memory = kept + contexts
    for_cpu = math.ceil(rate * costs.server / usable)
    for_memory = math.ceil(memory / GIGABYTE / machines.node_gigabytes)
    nodes = max(1, for_cpu, for_memory)
    api = _api_processes(constants, costs, load, machines)
    read = rate * costs.events * constants["stream"]["bytes_per_event_read"] * (api or 1)
    return Plan(
        nodes=nodes,
        nodes_for_cpu=for_cpu,
        nodes_for_memory=for_memory,
        builders=max(1, math.ceil(rate * costs.builder / usable)),
        runners=max(1, math.ceil(rate * costs.runner / usable)),
        api_processes=api,
        max_turns_per_second_with_streams=usable / (costs.events * _reading(constants)),
        memory_gigabytes=memory / GIGABYTE,
        growth_gigabytes_per_day=rate * costs.kept_bytes * 86_400 / GIGABYTE,
        network_megabytes_per_node=(rate * costs.network_bytes + read) / nodes / 1e6,
        file_megabytes_per_node=rate * costs.file_bytes / nodes / 1e6,
        max_turns_per_session=1 / turn_seconds(constants, load),
    )


def _reading(constants: dict[str, Any]) -> float:
    """Return the seconds of an API process per event of the store, if it has a stream."""
    return float(constants["stream"]["cpu_us_per_event_read"]) / 1e6


def _api_processes(constants: dict[str, Any], costs: Costs, load: Load, machines: Machines) -> int | None:
    stream, events = constants["stream"], load.turns_per_second * costs.events
    # Each process reads all events. Requests, deliveries and streams are divided among the processes.
    left = machines.utilisation - (events * _reading(constants) if load.streams else 0.0)
    if left <= 0:
        return None
    checked: float = events * load.streams / load.tenants * stream["cpu_us_per_event_checked"] / 1e6
    delivered: float = (events if load.streams else 0.0) * stream["cpu_us_per_event"] / 1e6
    return max(1, math.ceil((load.turns_per_second * costs.api + checked + delivered) / left))
