"""Measures lists of sessions, and an API with several processes on one port.

    python -m bench api [--quick] [--json] [--only ab]

(a) `GET /sessions?user_id=` in a store of 10,000 sessions of 100 users, against `GET /sessions`
(b) creates per second of `crumb serve --workers 2`, against one process
"""

from __future__ import annotations

import argparse
import asyncio
import time
from functools import partial
from typing import Any

from bench import _common, http
from bench._common import Found, Report, Side, as_json, embedded, interleaved, percentile, posted
from bench._processes import Requests, Running, crumb, has_option
from bench.targets import TARGETS

SESSIONS, USERS = 10_000, 100
ALL, OF_A_USER = "all sessions", "sessions of a user"
ONE, TWO = "one process", "two processes"
CONNECTIONS = 50


async def sessions_of_a_user(quick: bool) -> Found:
    """Compare the list of the sessions of a user with the list of all sessions."""
    sessions, rounds = (1_000, 9) if quick else (SESSIONS, 31)
    with embedded() as server, crumb("serve", "--redis", server.url, "--port", "0") as running:
        documents = [
            {"id": f"chat-{number}", "user_id": f"user-{number % USERS}"} for number in range(sessions)
        ]
        requests = [http.post("/sessions", document) for document in documents]
        loaded: Any = running
        await http.post_all(loaded, requests, CONNECTIONS)
        client = Requests(running.url)

        async def listed(path: str) -> dict[str, float]:
            return {"ms": percentile([client.get(path) for _ in range(5)], 0.5) * 1e3}

        sides: dict[str, Side] = {
            ALL: partial(listed, "/sessions"),
            OF_A_USER: partial(listed, "/sessions?user_id=user-7"),
        }
        found = await interleaved(rounds, sides, seconds=10 if quick else 30)
        client.close()
        return found


async def processes(quick: bool) -> Found:
    """Compare creates of an API with two processes with one. Raise LookupError if there is no such option."""
    if not has_option("serve", "--workers"):
        raise LookupError("crumb serve has no option --workers")
    count, rounds = (1_000, 5) if quick else (2_500, 21)
    with (
        embedded() as server,
        crumb("serve", "--redis", server.url, "--port", "0") as one,
        crumb("serve", "--redis", server.url, "--port", "0", "--workers", "2") as two,
    ):
        await asyncio.sleep(1)
        turns = [http.post("/breadcrumbs", posted(f"chat-{n % CONNECTIONS}")) for n in range(count)]

        def side(running: Running) -> Side:
            loaded: Any = running
            return lambda: http.post_all(loaded, turns, CONNECTIONS)

        return await interleaved(rounds, {ONE: side(one), TWO: side(two)}, seconds=15 if quick else 60)


def _show(report: Report, key: str, title: str, found: Found, what: str) -> None:
    report.section(key, title, as_json(found))
    form = "{:,.1f}"
    report.table(
        ["", what, "low – high"],
        [[side, got[what].text(form), got[what].spread(form)] for side, got in found.items()],
    )


async def bench(chosen: argparse.Namespace) -> None:
    report, began = Report("api", chosen), time.monotonic()
    wanted = chosen.only or "ab"
    if "a" in wanted:
        found = await sessions_of_a_user(chosen.quick)
        _show(report, "a", "lists of sessions", found, "ms")
        ratio = found[OF_A_USER]["ms"].per(found[ALL]["ms"]).median
        report.verdict(TARGETS["user_sessions"].verdict(ratio))
    if "b" in wanted:
        try:
            found = await processes(chosen.quick)
        except LookupError as error:
            report.say(f"not available: {error}")
        else:
            _show(report, "b", f"creates per second, {CONNECTIONS} connections", found, "per_second")
            ratio = found[TWO]["per_second"].per(found[ONE]["per_second"]).median
            report.verdict(TARGETS["workers"].verdict(ratio))
    report.finish(began)


def main() -> None:
    chosen = _common.options(__doc__ or "", only="a").parse_args()
    _common.run(lambda: bench(chosen))


if __name__ == "__main__":
    main()
