"""Simulates a deployment: skewed sessions on lanes, lanes on nodes and workers, queues, and failures.

The same seed gives the same result. Sessions are divided over lanes by the hash of the store, and lanes over nodes by
the hash slots of Redis Cluster. Each process and each node is a queue with one server. A turn visits an API process,
its node, its builder, the node, its runner and the node again. Turns of a session run one after the other.
"""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import bisect
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from redis.crc import key_slot

from bench.model import Costs, Load, Machines, turn_seconds
from breadcrumbs.runtime.breadcrumb.ids import MAX_LANES, lane_for
from breadcrumbs.runtime.store.keys import Keys

OWNER = UUID("00000000-0000-0000-0000-000000000001")
SLOTS = 16_384
SEED = 1
SIMULATED_SECONDS = 4.0
SETTLE_SECONDS = 1.0
"""Turns that begin earlier are not counted, because the queues are still empty."""
NODE_VISITS = 3


# Sessions, lanes, nodes


@lru_cache(4)
def session_rates(load: Load, max_rate: float) -> tuple[float, ...]:
    """Return the turns per second of each session, the most active first.

    The rates follow a Zipf distribution, but no session has more than `max_rate`: its turns run one after the other.
    The rest of its turns goes to the other sessions.
    """
    if load.sessions * max_rate < load.turns_per_second:
        raise ValueError(
            f"{load.sessions:,} sessions can have at most {load.sessions * max_rate:,.0f} turns per second"
        )
    weights = [rank**-load.skew for rank in range(1, load.sessions + 1)]
    rest_weight, rest_rate, full = sum(weights), load.turns_per_second, 0
    while weights[full] / rest_weight * rest_rate > max_rate:
        rest_weight -= weights[full]
        rest_rate -= max_rate
        full += 1
    return (max_rate,) * full + tuple(weight / rest_weight * rest_rate for weight in weights[full:])


@lru_cache(4)
def session_lanes(sessions: int, lanes: int) -> tuple[int, ...]:
    """Return the lane of each session, as the store computes it."""
    return tuple(lane_for.__wrapped__(OWNER, "session", f"chat-{n}", lanes) for n in range(sessions))


def lanes_of_sessions(sessions: int, lanes: int) -> tuple[int, ...]:
    """Return the lane of each session. Divisors of the largest number of lanes share the hashes."""
    if MAX_LANES % lanes:
        return session_lanes(sessions, lanes)
    return tuple(lane % lanes for lane in session_lanes(sessions, MAX_LANES))


def lane_loads(rates: tuple[float, ...], lanes: int) -> list[float]:
    """Return the turns per second of each lane."""
    loads = [0.0] * lanes
    for lane, rate in zip(lanes_of_sessions(len(rates), lanes), rates, strict=True):
        loads[lane] += rate
    return loads


def nodes_of_lanes(lanes: int, nodes: int, *, balanced: bool) -> list[int]:
    """Return the node of each lane.

    By default a cluster gives each node the same number of hash slots. `balanced`: an operator has moved the slots, so
    that each node has the same number of lanes.
    """
    if balanced:
        return [lane % nodes for lane in range(lanes)]
    keys = Keys("bc", lanes)
    return [key_slot(keys.events(lane)) * nodes // SLOTS for lane in range(lanes)]


def divided(loads: list[float], places: list[int], count: int) -> list[float]:
    """Return the load of each place from the loads of its lanes."""
    total = [0.0] * count
    for load, place in zip(loads, places, strict=True):
        total[place] += load
    return total


# Queues


@dataclass
class Deployment:
    """Numbers of a simulated deployment."""

    nodes: int
    lanes: int
    builders: int
    runners: int
    api_processes: int
    balanced: bool = True


class Station:
    """A process that does one thing at a time, first in, first out."""

    __slots__ = ("busy_seconds", "free_at")

    def __init__(self) -> None:
        self.free_at = self.busy_seconds = 0.0

    def serve(self, now: float, seconds: float) -> float:
        """Return when a task that arrives now is done."""
        self.free_at = max(self.free_at, now) + seconds
        self.busy_seconds += seconds
        return self.free_at


def delays(costs: Costs, load: Load, deployment: Deployment, max_rate: float) -> list[float]:
    """Return the queueing delay of each turn in seconds, sorted.

    The time of the model and the wait for the previous turn of the same session are not part of it.
    """
    chance = random.Random(SEED)
    rates = session_rates(load, max_rate)
    lanes = lanes_of_sessions(load.sessions, deployment.lanes)
    node_of = nodes_of_lanes(deployment.lanes, deployment.nodes, balanced=deployment.balanced)
    nodes, builders, runners, apis = (
        [Station() for _ in range(count)]
        for count in (deployment.nodes, deployment.builders, deployment.runners, deployment.api_processes)
    )
    visit = costs.server / NODE_VISITS
    unloaded = costs.api + costs.server + costs.builder + costs.runner + load.model_seconds
    busy_until: dict[int, float] = {}
    found: list[float] = []
    order = itertools.count()
    events: list[tuple[float, int, int, int, float]] = []
    cumulated = list(itertools.accumulate(rates))
    now = chance.expovariate(load.turns_per_second)

    def push(at: float, stage: int, session: int, began: float) -> None:
        heapq.heappush(events, (at, next(order), stage, session, began))

    push(now, 0, bisect(cumulated, chance.random() * cumulated[-1]), now)
    while events:
        at, _, stage, session, began = heapq.heappop(events)
        lane = lanes[session]
        varied = 0.5 + chance.random()
        if stage == 0:
            now = at + chance.expovariate(load.turns_per_second)
            if now < SIMULATED_SECONDS:
                push(now, 0, bisect(cumulated, chance.random() * cumulated[-1]), now)
            push(chance.choice(apis).serve(at, costs.api * varied), 1, session, began)
        elif stage in (1, 3, 5):
            done = nodes[node_of[lane]].serve(at, visit * varied)
            if stage < 5:
                push(done, stage + 1, session, began)
            elif began >= SETTLE_SECONDS:
                found.append(max(0.0, done - began - unloaded))
        elif stage == 2:
            push(builders[lane % deployment.builders].serve(at, costs.builder * varied), 3, session, began)
        elif (waits := busy_until.get(session, 0.0)) > at:
            push(waits, 4, session, began + waits - at)  # no delay of the deployment
        else:
            # The runner waits for the model without using its core.
            done = runners[lane % deployment.runners].serve(at, costs.runner * varied) + load.model_seconds
            busy_until[session] = done
            push(done, 5, session, began)
    return sorted(found)


def outage(rate: float, service: float, seconds: float) -> dict[str, float]:
    """Simulate a queue that stands still for some seconds. Return the longest delay, and the time until it is over."""
    chance = random.Random(SEED)
    station, now, last_late = Station(), 0.0, 0.0
    station.free_at = seconds
    longest = 0.0
    usual = 10 * service
    while now < seconds * 20:
        now += chance.expovariate(rate)
        waited = station.serve(now, service * (0.5 + chance.random())) - now
        longest = max(longest, waited)
        if waited > usual:
            last_late = now
        elif now > seconds:
            break
    return {"longest_delay": longest, "over_after": last_late}


# Results


def share(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0.0


def simulate(
    constants: dict[str, Any], load: Load, machines: Machines, deployment: Deployment
) -> dict[str, Any]:
    """Return balance, utilisation, delays and recovery times of a deployment."""
    costs = Costs.of(constants, load.message_bytes)
    max_rate = 1 / turn_seconds(constants, load)
    rates = session_rates(load, max_rate)
    loads = lane_loads(rates, deployment.lanes)
    mean = load.turns_per_second / deployment.lanes
    found: dict[str, Any] = {
        "nodes": deployment.nodes,
        "lanes": deployment.lanes,
        "builders": deployment.builders,
        "runners": deployment.runners,
        "api_processes": deployment.api_processes,
        "hottest_lane_turns_per_second": max(loads),
        "hottest_lane": max(loads) / mean,
        "full_sessions": sum(rate >= max_rate for rate in rates),
    }
    for name, balanced in (("hashed", False), ("balanced", True)):
        places = nodes_of_lanes(deployment.lanes, deployment.nodes, balanced=balanced)
        by_node = divided(loads, places, deployment.nodes)
        found[f"hottest_node_{name}"] = max(by_node) / (load.turns_per_second / deployment.nodes)
        found[f"node_utilisation_{name}"] = max(by_node) * costs.server
    for kind, count, cost in (
        ("builder", deployment.builders, costs.builder),
        ("runner", deployment.runners, costs.runner),
    ):
        by_worker = divided(loads, [lane % count for lane in range(deployment.lanes)], count)
        found[f"{kind}_utilisation"] = max(by_worker) * cost
    overloaded = max(
        found["node_utilisation_balanced"], found["builder_utilisation"], found["runner_utilisation"]
    )
    found["overloaded"] = overloaded >= 1
    if not found["overloaded"]:
        waited = delays(costs, load, deployment, max_rate)
        found["delay_p50_ms"], found["delay_p99_ms"] = (share(waited, part) * 1e3 for part in (0.5, 0.99))
        hottest = found["node_utilisation_balanced"] / costs.server
        found["node_failure"] = outage(hottest, costs.server, machines.node_failover_seconds)
        worker_rate = found["runner_utilisation"] / costs.runner
        found["worker_frozen"] = outage(worker_rate, costs.runner, constants["lease_seconds"])
        found["worker_killed"] = outage(worker_rate, costs.runner, 1.0)
    return found
