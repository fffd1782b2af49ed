"""Entry point of all benchmarks: `python -m bench`.

    python -m bench                       measure all targets and print a table; about 20 minutes
    python -m bench --quick               smaller and noisier; about 5 minutes
    python -m bench --only turn,lanes     some measurements; --list shows all
    python -m bench --json result.json    also write a JSON document with every round
    python -m bench SECTION [options]     one section alone, with its own options; --help shows them

Results are ratios of two sides that run in alternating rounds, so that the speed of the machine does not matter. Paired
measurements compare with commit 1bd9899. The first run checks it out with `git worktree` into the cache folder of the
user and installs it there; `--reference` names a checkout that has a `.venv` instead.

Ctrl-C ends all servers, removes all temporary data and prints the results so far.
"""

from __future__ import annotations

import argparse
import functools
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from bench import _common
from bench.targets import REFERENCE, TARGETS

SECTIONS = {
    "turn": "a turn of the whole system; --against CHECKOUT compares with another checkout",
    "store": "creates, lists and memory of the store",
    "http": "creates over HTTP, event streams, and several API processes",
    "api": "lists of sessions over HTTP",
    "streams": "delay of one tenant's events by expensive stream conditions of another",
    "growth": "appends and turns against the length of a session, beside other systems",
    "peers": "reads and appends of openai-agents' sessions, compared with ours",
    "adk": "our session service for google-adk, compared with ADK's own",
    "telemetry": "cost of metrics, logs and traces",
    "audit": "crumb audit isolation in a large store",
    "kills": "workers killed and frozen under load, and the time to recover",
    "steps": "runners killed between the commits of turns with tools: repeated effects and paid replies",
    "attacks": "latency of other clients and memory during attacks without a token",
    "cache": "tokens and cost of prompts with sliding and stepped windows",
    "capacity": "constants of the capacity model in docs/scale.md",
    "simulate": "simulation of a deployment of any size from these constants",
    "documents": "write the results into the documents, and draw the plots",
}
"""Sections that run alone, with their descriptions."""


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in SECTIONS:
        return run_section(sys.argv[1], sys.argv[2:])
    parser = _parser()
    chosen = parser.parse_args()
    if chosen.section is not None:
        parser.error(f"unknown section {chosen.section!r}: choose from {', '.join(SECTIONS)}")
    # Imported here, because --help and the sections need less.
    from bench.measurements import MEASUREMENTS

    names = chosen.only.split(",") if chosen.only else list(MEASUREMENTS)
    if unknown := set(names) - set(MEASUREMENTS):
        parser.error(
            f"unknown measurement {', '.join(sorted(unknown))}: choose from {', '.join(MEASUREMENTS)}"
        )
    if chosen.list:
        _print_list()
        return 0
    results = Results(chosen)
    try:
        _common.run(lambda: results.measure(names))
    finally:
        results.finish()
    return 1 if results.failed else 0


def run_section(name: str, options: list[str]) -> int:
    """Run the module of a section as `python -m bench.NAME` does."""
    if not Path(__file__).with_name(f"{name}.py").exists():
        print(f"python -m bench: the section {name} is not part of this checkout", file=sys.stderr)
        return 2
    sys.argv = [name, *options]
    runpy.run_module(f"bench.{name}", run_name="__main__", alter_sys=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, SECTIONS))
    sections = "\n".join(f"  {name:{width}}  {text}" for name, text in SECTIONS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=(__doc__ or "").partition("\n\n")[2],
        epilog=f"sections:\n{sections}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("section", nargs="?", metavar="SECTION", help="run one section, see below")
    parser.add_argument("--quick", action="store_true", help="smaller and noisier, about 5 minutes")
    parser.add_argument(
        "--only", default="", metavar="NAMES", help="only these measurements, such as turn,lanes"
    )
    parser.add_argument("--list", action="store_true", help="list the targets and their measurements")
    _common.add_json_file(parser)
    parser.add_argument(
        "--reference", type=Path, metavar="CHECKOUT", help=f"a checkout of {REFERENCE} that has a .venv"
    )
    return parser


def _print_list() -> None:
    from bench.measurements import MEASUREMENTS

    by_target = {key: name for name, (keys, *_) in MEASUREMENTS.items() for key in keys}
    rows = [["measurement", "target", REFERENCE, "bound"]]
    rows += [[by_target[t.key], t.title, t.reference, t.bound()] for t in TARGETS.values()]
    _print_table(rows)


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


class Results:
    """Runs measurements one after the other, and keeps their results."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._chosen = chosen
        self._values: dict[str, float] = {}
        self._not_measured: dict[str, str] = {}
        self._numbers: dict[str, Any] = {}
        self._notes: dict[str, str] = {}
        self._began = time.monotonic()
        self.failed = False

    async def measure(self, names: list[str]) -> None:
        from bench.measurements import MEASUREMENTS, NotMeasured, Run
        from bench.reference import NoReference, reference_checkout

        find = functools.cache(lambda: reference_checkout(self._chosen.reference, self._say))
        run = Run(self._chosen.quick, find)
        for number, name in enumerate(names, 1):
            keys, seconds, measure = MEASUREMENTS[name]
            self._say(f"[{number}/{len(names)}] {name}: about {seconds[self._chosen.quick]} s")
            began = time.monotonic()
            try:
                measured = await measure(run)
            except (NotMeasured, NoReference) as reason:
                self._not_measured |= dict.fromkeys(keys, str(reason))
                self._say(f"      {reason}")
                continue
            except Exception as error:  # the other measurements go on
                traceback.print_exc()
                self._not_measured |= dict.fromkeys(keys, f"failed: {error!r}")
                self.failed = True
                continue
            self._values |= measured.values
            self._numbers[name] = measured.numbers
            if measured.note:
                self._notes |= dict.fromkeys(keys, f" ({measured.note})")
            for key, value in measured.values.items():
                target = TARGETS[key]
                self._say(f"      {target.title}: {target.form.format(value)} (bound: {target.bound()})")
            self._say(f"      in {time.monotonic() - began:.0f} s")

    def finish(self) -> None:
        """Print the table, and write the JSON document."""
        document: dict[str, Any] = {
            "mode": "quick" if self._chosen.quick else "default",
            "seconds": round(time.monotonic() - self._began, 1),
            "machine": _common.machine(),
            "reference": REFERENCE,
            "targets": self._targets(),
            "measurements": self._numbers,
        }
        if self._chosen.json:
            _common.write_json(self._chosen.json, document)
        if self._chosen.json != "-":
            rows = [["", REFERENCE, "target", "measured", ""]]
            rows += [
                [row["title"], row["reference"], row["bound"], row["text"], row["state"]]
                for row in document["targets"]
            ]
            _print_table(rows)
            for key, reason in self._not_measured.items():
                print(f"{key}: {reason}")

    def _targets(self) -> list[dict[str, Any]]:
        found = []
        for key, target in TARGETS.items():
            value = self._values.get(key)
            state = "" if value is None else "met" if target.is_met(value) else "MISSED"
            found.append(
                {
                    "key": key,
                    "title": target.title,
                    "reference": target.reference,
                    "bound": target.bound(),
                    "value": value,
                    "text": "not measured"
                    if value is None
                    else target.form.format(value) + self._notes.get(key, ""),
                    "state": state,
                    "reason": self._not_measured.get(key),
                }
            )
        return found

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
