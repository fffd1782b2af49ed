"""Measures how long expensive stream conditions of one tenant delay the events of another.

    python -m bench streams [--streams 40] [--conditions 16] [--events 20]

The server is a separate `crumb serve` process with two API keys. One tenant opens streams with conditions that search
the whole breadcrumb (`$..x..y`), and posts breadcrumbs of 9,000 values. The other tenant has one plain stream and posts
small breadcrumbs. The benchmark prints the time from a post of the second tenant to its event, first without and then
with the streams of the first tenant.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any
from uuid import UUID

import httpx

from bench import _common
from bench._common import embedded, percentile
from breadcrumbs.runtime.backend.embedded import end_process

HOST = "127.0.0.1"
HEAVY, PLAIN = ({"x-api-key": f"bench-key-of-tenant-{name}"} for name in ("a", "b"))
BIG = {"rows": [{"a": row, "b": [row, {"c": str(row)}]} for row in range(1_500)]}


async def main() -> None:
    options = _arguments()
    with embedded() as redis:
        port = _free_port()
        process = subprocess.Popen(  # noqa: ASYNC220 - blocks briefly, before the measurement
            [sys.executable, "-m", "breadcrumbs", "serve", "--port", str(port)],
            env={**os.environ, **_settings(redis.url, options.streams)},
            start_new_session=True,
        )
        try:
            async with httpx.AsyncClient(
                base_url=f"http://{HOST}:{port}", trust_env=False, timeout=60
            ) as client:
                await _until_ready(client)
                await _measure(client, options)
        finally:
            end_process(process)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench streams",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--conditions", type=int, default=16)
    parser.add_argument("--events", type=int, default=20)
    return parser.parse_args()


def _settings(redis: str, streams: int) -> dict[str, str]:
    keys = [
        {"key": headers["x-api-key"], "owner_id": str(UUID(int=number))}
        for number, headers in ((1, HEAVY), (2, PLAIN))
    ]
    return {
        "CRUMB_REDIS": redis,
        "CRUMB_API_KEYS": json.dumps(keys),
        "CRUMB_LOG_LEVEL": "error",
        "CRUMB_MAX_STREAMS_PER_TOKEN": str(streams + 1),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


async def _until_ready(client: httpx.AsyncClient) -> None:
    for _ in range(300):
        try:
            if (await client.get("/health")).is_success:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.1)
    raise RuntimeError("the server did not start")


async def _measure(client: httpx.AsyncClient, options: argparse.Namespace) -> None:
    arrived: asyncio.Queue[float] = asyncio.Queue()
    plain = await _opened(client, PLAIN, {}, arrived)
    _print("no other streams", await _delays(client, arrived, options.events))
    ignored: asyncio.Queue[float] = asyncio.Queue()
    heavy = [
        await _opened(client, HEAVY, {"filters": _deep(number, options.conditions)}, ignored)
        for number in range(options.streams)
    ]
    title = f"{options.streams} streams with {options.conditions} deep conditions each"
    _print(title, await _delays(client, arrived, options.events))
    for task in (plain, *heavy):
        task.cancel()
    await asyncio.gather(plain, *heavy, return_exceptions=True)


def _deep(number: int, conditions: int) -> str:
    found = [{"path": f"$..x{number}..y{place}", "op": "ne", "value": place} for place in range(conditions)]
    return json.dumps({"context_match": found})


async def _opened(
    client: httpx.AsyncClient, headers: dict[str, str], query: dict[str, str], arrived: asyncio.Queue[float]
) -> asyncio.Task[None]:
    """Open a stream that records the arrival time of each event."""
    ready = asyncio.Event()

    async def follow() -> None:
        async with client.stream("GET", "/events/stream", params=query, headers=headers) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith('data: {"type":"breadcrumb'):
                    arrived.put_nowait(time.perf_counter())
                elif line.startswith("data:"):
                    ready.set()

    task = asyncio.create_task(follow())
    await asyncio.wait_for(ready.wait(), 30)
    return task


async def _delays(client: httpx.AsyncClient, arrived: asyncio.Queue[float], events: int) -> list[float]:
    """Return the delays from a post of the second tenant to its event, in milliseconds.

    The first tenant posts a large breadcrumb before each post.
    """
    delays = []
    for number in range(events + 1):
        await _post(client, HEAVY, {"title": "big", "tags": ["session:a"], "context": BIG})
        began = time.perf_counter()
        await _post(client, PLAIN, {"title": "small", "tags": ["session:b"], "context": {}})
        at = await asyncio.wait_for(arrived.get(), 60)
        if number:  # the first one is a warm-up
            delays.append((at - began) * 1e3)
        await asyncio.sleep(0.1)
    return delays


async def _post(client: httpx.AsyncClient, headers: dict[str, str], document: dict[str, Any]) -> None:
    reply = await client.post("/breadcrumbs", json={"schema_name": "note.v1", **document}, headers=headers)
    reply.raise_for_status()


def _print(title: str, delays: list[float]) -> None:
    print(
        f"{title:45} p50 {percentile(delays, 0.5):7.1f} ms   p99 {percentile(delays, 0.99):7.1f} ms   "
        f"max {max(delays):7.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    _common.run(main)
