"""Computes and simulates a deployment from the constants that `python -m bench capacity` measured.

    python -m bench simulate --turns 500 --sessions 20000 --message-bytes 2000
    python -m bench simulate --turns 5000 --nodes 12 --lanes 256 --skew 1.0
    python -m bench simulate --table --json bench/results/simulation.json

The model computes nodes, workers, API processes, memory and network for a load that is divided evenly. The simulation
adds skewed sessions, lanes, queues and failures. `--table` computes all tables of docs/scale.md; about a minute.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench import _common
from bench.model import CONSTANTS, Costs, Load, Machines, load_constants, plan, turn_seconds
from bench.simulation import Deployment, divided, lane_loads, nodes_of_lanes, session_rates, simulate
from breadcrumbs.runtime.store.opening import DEFAULT_LANES

NODES = (3, 6, 12, 24, 48, 64)
LANES = (16, 64, 256, 1_024)
TURNS = (100, 300, 1_000, 3_000, 10_000, 30_000)
MAX_NODES = 1_024


def deployment_for(
    constants: dict[str, Any], load: Load, machines: Machines, *, nodes: int | None = None, lanes: int
) -> Deployment:
    """Return the deployment of the model. There are at most as many useful workers of a kind as lanes."""
    wanted = plan(constants, load, machines)
    costs = Costs.of(constants, load.message_bytes)
    requests_only = max(1, round(load.turns_per_second * costs.api / machines.utilisation + 0.5))
    return Deployment(
        nodes=nodes or wanted.nodes,
        lanes=lanes,
        builders=min(wanted.builders, lanes),
        runners=min(wanted.runners, lanes),
        api_processes=wanted.api_processes or requests_only,
    )


def smallest_nodes(constants: dict[str, Any], load: Load, machines: Machines, lanes: int) -> int | None:
    """Return the smallest number of nodes that keeps the hottest node below the planned utilisation.

    None: a single lane is too hot for a node, or there are more nodes than lanes.
    """
    costs = Costs.of(constants, load.message_bytes)
    rates = session_rates(load, 1 / turn_seconds(constants, load))
    loads = lane_loads(rates, lanes)
    for nodes in range(1, min(lanes, MAX_NODES) + 1):
        hottest = max(divided(loads, nodes_of_lanes(lanes, nodes, balanced=True), nodes))
        if hottest * costs.server <= machines.utilisation:
            return nodes
    return None


def tables(constants: dict[str, Any], load: Load, machines: Machines) -> dict[str, Any]:
    """Return the tables of docs/scale.md."""
    rows = []
    for nodes in NODES:
        for lanes in LANES:
            deployment = deployment_for(constants, load, machines, nodes=nodes, lanes=lanes)
            rows.append(simulate(constants, load, machines, deployment))
            say(f"  {nodes} nodes, {lanes} lanes")
    by_load = []
    for turns in TURNS:
        at = replace(load, turns_per_second=turns)
        needed = {str(lanes): smallest_nodes(constants, at, machines, lanes) for lanes in LANES}
        by_load.append(
            {"turns_per_second": turns, "nodes": needed, "plan": asdict(plan(constants, at, machines))}
        )
        say(f"  {turns:,} turns per second")
    return {
        "load": asdict(load),
        "machines": asdict(machines),
        "plan": asdict(plan(constants, load, machines)),
        "deployments": rows,
        "by_load": by_load,
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(found: dict[str, Any]) -> None:
    print("model, evenly divided")
    for name, value in found["plan"].items():
        print(f"  {name.replace('_', ' '):40} {_text(value):>14}")
    if found["plan"]["api_processes"] is None:
        print(
            "  API processes: each one reads all events of the store. With event streams, this load needs "
            "several stores, see docs/scale.md"
        )
    print("simulation")
    for name, value in found["simulation"].items():
        if isinstance(value, dict):
            parts = ", ".join(f"{part.replace('_', ' ')} {seconds:.1f} s" for part, seconds in value.items())
            print(f"  {name.replace('_', ' '):40} {parts}")
        else:
            print(f"  {name.replace('_', ' '):40} {_text(value):>14}")


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:,.2f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    load, machines = Load(), Machines()
    parser.add_argument("--sessions", type=int, default=load.sessions)
    parser.add_argument("--turns", type=float, default=load.turns_per_second, help="turns per second")
    parser.add_argument("--message-bytes", type=int, default=load.message_bytes)
    parser.add_argument("--stored-turns", type=int, default=load.stored_turns, help="per session, on average")
    parser.add_argument("--streams", type=int, default=load.streams, help="open event streams")
    parser.add_argument("--tenants", type=int, default=load.tenants)
    parser.add_argument(
        "--model-seconds", type=float, default=load.model_seconds, help="time of a model call"
    )
    parser.add_argument(
        "--skew", type=float, default=load.skew, help="Zipf exponent; 0: equally active sessions"
    )
    parser.add_argument("--nodes", type=int, help="default: as many as the model computes")
    parser.add_argument("--lanes", type=int, default=DEFAULT_LANES)
    parser.add_argument(
        "--utilisation", type=float, default=machines.utilisation, help="planned share of a core"
    )
    parser.add_argument("--node-gigabytes", type=float, default=machines.node_gigabytes, help="for data")
    parser.add_argument("--node-failover", type=float, default=machines.node_failover_seconds, help="seconds")
    parser.add_argument(
        "--constants", type=Path, default=CONSTANTS, help="result of python -m bench capacity"
    )
    parser.add_argument("--table", action="store_true", help="compute the tables of docs/scale.md")
    _common.add_json_file(parser)
    return parser


def main() -> None:
    parser = _parser()
    chosen = parser.parse_args()
    load = Load(
        chosen.sessions,
        chosen.turns,
        chosen.message_bytes,
        chosen.stored_turns,
        chosen.streams,
        chosen.tenants,
        chosen.model_seconds,
        chosen.skew,
    )
    machines = Machines(chosen.utilisation, chosen.node_gigabytes, chosen.node_failover)
    constants = load_constants(chosen.constants)
    began = time.monotonic()
    try:
        if chosen.table:
            found = tables(constants, load, machines)
        else:
            deployment = deployment_for(constants, load, machines, nodes=chosen.nodes, lanes=chosen.lanes)
            found = {
                "load": asdict(load),
                "plan": asdict(plan(constants, load, machines)),
                "simulation": simulate(constants, load, machines, deployment),
            }
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    say(f"  in {time.monotonic() - began:.0f} s")
    if chosen.json:
        _common.write_json(chosen.json, found)
    if chosen.json != "-" and not chosen.table:
        show(found)


if __name__ == "__main__":
    main()
