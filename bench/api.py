"""Measures lists of sessions over HTTP.

    python -m bench api [--quick] [--json]

`GET /sessions?user_id=` is compared with `GET /sessions` in a store of 10,000 sessions of 100 users.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

from bench import _common, http
from bench._common import Found, Report, Side, as_json, embedded, interleaved, percentile
from bench._processes import Requests, crumb
from bench.targets import TARGETS

SESSIONS, USERS = 10_000, 100
ALL, OF_A_USER = "all sessions", "sessions of a user"
CONNECTIONS = 50


async def sessions_of_a_user(quick: bool) -> Found:
    """Compare the list of the sessions of a user with the list of all sessions."""
    rounds = 9 if quick else 31
    with embedded() as server, crumb("serve", "--redis", server.url, "--port", "0") as running:
        documents = [
            {"id": f"chat-{number}", "user_id": f"user-{number % USERS}"} for number in range(SESSIONS)
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


async def bench(chosen: argparse.Namespace) -> None:
    report, began = Report("api", chosen), time.monotonic()
    found = await sessions_of_a_user(chosen.quick)
    report.section("a", "lists of sessions", as_json(found))
    form = "{:,.1f}"
    report.table(
        ["", "ms", "low – high"],
        [[side, got["ms"].text(form), got["ms"].spread(form)] for side, got in found.items()],
    )
    ratio = found[OF_A_USER]["ms"].per(found[ALL]["ms"]).median
    report.verdict(TARGETS["user_sessions"].verdict(ratio))
    report.finish(began)


def main() -> None:
    chosen = _common.options(__doc__ or "").parse_args()
    _common.run(lambda: bench(chosen))


if __name__ == "__main__":
    main()
