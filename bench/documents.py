"""Writes the results of the benchmarks into the documents, and draws the plots.

    python -m bench documents            # after new results were written to bench/results
    python -m bench documents --check    # only report outdated files

The results are the JSON files in bench/results. A generated table stands between `<!-- begin NAME -->` and
`<!-- end NAME -->`. The plots are SVG files in docs/img.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.growth import OURS, PEERS
from bench.model import RESULTS
from bench.plots import Axis, Series, chart, decades

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "img"
SCALE, BENCH = ROOT / "docs" / "scale.md", ROOT / "bench" / "README.md"
PROVISIONAL = "quick"
STYLES = [OURS, *PEERS]
"""Each system has the same colour in all plots."""

ROLES = {
    "api_ms": ("CPU of the API process", "ms"),
    "builder_ms": ("CPU of the context builder", "ms"),
    "runner_ms": ("CPU of the agent runner", "ms"),
    "server_ms": ("CPU of the server's main thread", "ms"),
    "received_bytes": ("bytes that the server receives", "B"),
    "sent_bytes": ("bytes that the server sends", "B"),
    "file_bytes": ("bytes in the append-only file", "B"),
    "memory_bytes": ("memory of the server, at first", "B"),
    "kept_bytes": ("memory of the server, after the context has expired", "B"),
    "events": ("events", ""),
}


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def table(rows: list[list[str]]) -> str:
    """Return a table in Markdown. The first row is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def machine_of(document: dict[str, Any]) -> str:
    machine = document["machine"]
    mode = " A quick run: the numbers are noisy." if document.get("mode") == PROVISIONAL else ""
    return f"{machine['cpus']} cores, {machine['system']} {machine['architecture']}, Python {machine['python']}.{mode}"


# docs/scale.md


def constants() -> str:
    found = result("capacity")

    def number(value: float, unit: str) -> str:
        return f"{value:,.2f}" if unit != "B" else f"{value:,.0f}"

    rows = [["", "turn", "per KB of a message", "message without an answer", "per KB"]]
    for name, (title, unit) in ROLES.items():
        row = [f"{title} ({unit})" if unit else title]
        for kind in ("turn", "message"):
            part = found[kind].get(name)
            if part is None:
                row += ["–", "–"]
            else:
                row += [number(part["fixed"], unit), number(part["per_byte"] * 1_000, unit)]
        rows.append(row)
    stream, lane = found["stream"], found["lane"]
    more = [["", "value"]]
    more += [
        ["memory of the API process per open event stream", f"{stream['memory_bytes'] / 1e3:,.0f} KB"],
        ["CPU of the API process per event that a stream gets", f"{stream['cpu_us_per_event']:,.0f} µs"],
        [
            "CPU of each API process with a stream, per event of the store",
            f"{stream['cpu_us_per_event_read']:,.0f} µs",
        ],
        [
            "CPU of an API process per event and stream of the same tenant that does not get it",
            f"{stream['cpu_us_per_event_checked']:,.2f} µs",
        ],
        [
            "bytes that the server sends to each API process per event",
            f"{stream['bytes_per_event_read']:,.0f} B",
        ],
        ["CPU of an idle `crumb up` per lane and second, Python", f"{lane['python_ms'] * 1e3:,.0f} µs"],
        ["CPU of an idle `crumb up` per lane and second, server", f"{lane['server_ms'] * 1e3:,.0f} µs"],
        ["a turn of one session without queues and without a model", f"{found['turn_p50_ms']:,.1f} ms"],
    ]
    return f"Measured on {machine_of(found)}\n\n{table(rows)}\n\n{table(more)}"


def check() -> str:
    rows = [["deployment", "predicted turns per second", "measured", "error"]]
    rows += [
        [
            row["deployment"],
            f"{row['predicted']:,.0f}",
            f"{row['measured']:,.0f}",
            f"{row['error']:+.0%}",
        ]
        for row in result("capacity")["check"]
    ]
    return table(rows)


def load() -> str:
    found = result("simulation")
    given, machines = found["load"], found["machines"]
    return (
        f"{given['sessions']:,} sessions, {given['turns_per_second']:,.0f} turns per second, messages of "
        f"{given['message_bytes']:,} bytes, {given['stored_turns']} stored turns per session, {given['streams']:,} "
        f"open event streams, {given['tenants']:,} tenants, model calls of {given['model_seconds']:g} s. The turns are "
        f"distributed over the sessions by Zipf's law with the exponent {given['skew']:g}. A core is planned with "
        f"{machines['utilisation']:.0%}, and a node with {machines['node_gigabytes']:g} GB for data."
    )


def plans() -> str:
    names = {
        "nodes_for_cpu": "nodes for CPU",
        "nodes_for_memory": "nodes for memory",
        "builders": "context builders",
        "runners": "agent runners",
        "api_processes": "API processes",
        "memory_gigabytes": "memory, GB",
        "growth_gigabytes_per_day": "growth per day, GB",
        "network_megabytes_per_node": "network per node, MB/s",
        "file_megabytes_per_node": "append-only file per node, MB/s",
    }
    by_load = result("simulation")["by_load"]
    rows = [["turns per second", *(f"{row['turns_per_second']:,}" for row in by_load)]]
    for key, title in names.items():
        values = [row["plan"][key] for row in by_load]
        rows.append([title, *("none is enough" if value is None else f"{value:,.0f}" for value in values)])
    return table(rows)


def deployments() -> str:
    rows = [
        [
            "nodes",
            "lanes",
            "builders",
            "runners",
            "hottest lane",
            "hottest node, as hashed",
            "hottest node, balanced",
            "its CPU",
            "busiest builder",
            "busiest runner",
            "delay p50",
            "delay p99",
        ]
    ]
    for row in result("simulation")["deployments"]:
        delays = (
            ["overloaded", "–"]
            if row["overloaded"]
            else [f"{row[name]:,.0f} ms" for name in ("delay_p50_ms", "delay_p99_ms")]
        )
        rows.append(
            [
                f"{row['nodes']}",
                f"{row['lanes']:,}",
                f"{row['builders']}",
                f"{row['runners']}",
                f"{row['hottest_lane']:.2f}",
                f"{row['hottest_node_hashed']:.2f}",
                f"{row['hottest_node_balanced']:.2f}",
                f"{row['node_utilisation_balanced']:.0%}",
                f"{row['builder_utilisation']:.0%}",
                f"{row['runner_utilisation']:.0%}",
                *delays,
            ]
        )
    return table(rows)


def failures() -> str:
    rows = [["nodes", "lanes", "failure", "turns that wait", "longest delay", "over after"]]
    found = [
        row for row in result("simulation")["deployments"] if not row["overloaded"] and row["lanes"] >= 256
    ]
    if not found:
        return "No simulated deployment has room for this load."
    for row in (found[0], found[-1]):
        shares = {
            "node_failure": row["hottest_node_balanced"] / row["nodes"],
            "worker_frozen": 1 / row["runners"],
            "worker_killed": 1 / row["runners"],
        }
        for name, part in shares.items():
            failure = row[name]
            rows.append(
                [
                    f"{row['nodes']}",
                    f"{row['lanes']:,}",
                    {
                        "node_failure": "a node is lost, a replica replaces it",
                        "worker_frozen": "a runner freezes, or its machine is lost",
                        "worker_killed": "a runner is killed",
                    }[name],
                    f"{part:.1%}",
                    f"{failure['longest_delay']:.0f} s",
                    f"{failure['over_after']:.0f} s",
                ]
            )
    return table(rows)


def limits() -> str:
    found = result("simulation")
    computed, given = found["plan"], found["load"]
    turn = result("capacity")["turn_p50_ms"]
    rows = [["limit", "value"]]
    rows += [
        [
            f"turns per second of one session, with model calls of {given['model_seconds']:g} s",
            f"{computed['max_turns_per_session']:.2f}",
        ],
        ["turns per second of one session, with a model that takes no time", f"{1e3 / turn:,.0f}"],
        ["workers of a kind that have something to do", "the number of lanes"],
        [
            "turns per second of one store with event streams",
            f"{computed['max_turns_per_second_with_streams']:,.0f}",
        ],
    ]
    return table(rows)


# bench/README.md


def targets() -> str:
    found = result("targets")
    rows = [["", found["reference"], "target", "measured", ""]]
    rows += [
        [row["title"].replace("|", "\\|"), row["reference"], row["bound"], row["text"], row["state"]]
        for row in found["targets"]
    ]
    reasons = [f"- {row['title']}: {row['reason']}." for row in found["targets"] if row["reason"]]
    not_measured = "\n\nNot measured:\n\n" + "\n".join(reasons) if reasons else ""
    return f"{machine_of(found)}\n\n{table(rows)}{not_measured}"


def growth() -> str:
    found = result("growth")
    parts = [machine_of(found)]
    for action, title in (("append", "append, p50 in ms"), ("turn", "turn, p50 in ms")):
        series = found[action]
        lengths = [point["length"] for point in series[OURS]]
        rows = [[title, *(f"{length:,} messages" for length in lengths)]]
        for name, points in series.items():
            rows.append(
                [
                    f"{name} ({found['versions'][name]})",
                    *(f"{point['p50_us'] / 1e3:,.2f}" for point in points),
                ]
            )
        parts.append(table(rows))
    parts += [f"Not measured: {name} ({reason})." for name, reason in found["missing"].items()]
    return "\n\n".join(parts)


BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    SCALE: {
        "constants": constants,
        "check": check,
        "load": load,
        "plans": plans,
        "deployments": deployments,
        "failures": failures,
        "limits": limits,
    },
    BENCH: {"targets": targets, "growth": growth},
}


def with_blocks(text: str, blocks: dict[str, Callable[[], str]]) -> str:
    """Return a document with new generated blocks. Raise LookupError if one is missing."""
    for name, made in blocks.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise LookupError(f"no block {name}")
        block = f"{begin}\n{made()}\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)  # type: ignore[misc]
    return text


# Plots


def growth_plot(action: str, title: str, description: str) -> str:
    found = result("growth")
    series = [
        Series(
            name,
            [(point["length"], point["p50_us"] / 1e3) for point in points],
            f"version {found['versions'][name]}",
            STYLES.index(name),
            name == OURS,
        )
        for name, points in found[action].items()
    ]
    values = [value for one in series for _, value in one.points]
    lengths = [length for length, _ in series[0].points]
    return chart(
        title,
        description,
        Axis("messages in the session (log scale)", *decades(lengths)),
        Axis("p50, milliseconds (log scale)", *decades(values)),
        series,
    )


def balance_plot() -> str:
    found = result("simulation")["deployments"]
    series = [
        Series(
            f"{nodes} nodes",
            [(row["lanes"], row["hottest_node_hashed"]) for row in found if row["nodes"] == nodes],
            style=style,
        )
        for style, nodes in enumerate((6, 12, 24, 48))
    ]
    high = max(value for one in series for _, value in one.points)
    return chart(
        "Balance: load of the hottest node, by the number of lanes",
        "Lines for 6, 12, 24 and 48 nodes. With more lanes, the hottest node comes closer to the average.",
        Axis("lanes (log scale)", 16, 1_024, text="{:,.0f}".format, marked=(16, 64, 256, 1_024)),
        Axis("hottest node, times the average", 0, max(2.0, -(-high // 2) * 2), logarithmic=False),
        series,
    )


def nodes_plot() -> str:
    found = result("simulation")["by_load"]
    lanes = [int(name) for name in found[0]["nodes"]]
    series = []
    for style, count in enumerate(lanes):
        points = [(row["turns_per_second"], row["nodes"][str(count)]) for row in found]
        known = [(turns, float(nodes)) for turns, nodes in points if nodes is not None]
        if known:
            note = f"not enough above {known[-1][0]:,} turns/s" if len(known) < len(points) else ""
            series.append(Series(f"{count:,} lanes", known, note, style))
    values = [value for one in series for _, value in one.points]
    return chart(
        "Nodes, by turns per second and number of lanes",
        "The smallest number of nodes that keeps the hottest node below the planned use of its core.",
        Axis("turns per second (log scale)", 100, found[-1]["turns_per_second"], text="{:,.0f}".format),
        Axis("nodes (log scale)", *decades(values)),
        series,
    )


PLOTS: dict[str, Callable[[], str]] = {
    "append-by-length.svg": lambda: growth_plot(
        "append",
        "Append of one message, by the length of the session",
        "Median time of an append in milliseconds against the number of messages in the session, of Breadcrumbs and "
        "other systems, both axes logarithmic.",
    ),
    "turn-by-length.svg": lambda: growth_plot(
        "turn",
        "One turn, by the length of the session",
        "Median time of a turn in milliseconds against the number of messages in the session, of Breadcrumbs and other "
        "systems, both axes logarithmic.",
    ),
    "scale-balance.svg": balance_plot,
    "scale-nodes.svg": nodes_plot,
}


def rendered() -> dict[Path, str]:
    """Return the generated files and their contents."""
    files = {path: with_blocks(path.read_text("utf-8"), blocks) for path, blocks in BLOCKS.items()}
    return files | {IMAGES / name: draw() for name, draw in PLOTS.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench documents",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a file is outdated")
    chosen = parser.parse_args()
    outdated = [
        path for path, text in rendered().items() if not path.exists() or path.read_text("utf-8") != text
    ]
    for path in outdated:
        print(f"{'outdated' if chosen.check else 'written'}: {path.relative_to(ROOT)}")
    if chosen.check:
        if outdated:
            print("Run: python -m bench documents", file=sys.stderr)
        return 1 if outdated else 0
    files = rendered()
    for path in outdated:
        path.write_text(files[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
