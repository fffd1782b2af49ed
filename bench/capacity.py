"""Measures the constants of the capacity model, and checks the model on this machine. About two minutes.

    python -m bench capacity [--quick] [--json FILE]

The constants are CPU time and bytes per turn, message, stream and lane, of each kind of process. API, context builder
and agent runner run as separate processes on one server, with many sessions at once. Messages of two sizes give a fixed
part and a part per byte. Sessions begin with 60 messages, so that contexts have their usual size.

The check predicts the turns per second of other deployments from these constants, and then measures them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from bench import _common, http
from bench._common import RawLink, children_of, cpu_seconds_of, embedded, percentile
from bench._processes import Requests, Running, crumb
from bench.turn import CONFIG, CONNECTIONS, LEASE_WAIT_SECONDS, Chat, chats, fill_session
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.keys import Keys

SIZES = (200, 2_000)
"""Bytes of a message."""
SESSIONS, FILLED = 50, 60
NAMES = [f"chat-{number}" for number in range(SESSIONS)]
API, BUILDER, RUNNER = "api", "builder", "runner"
STREAMS = 300
NAMESPACE = "bc"
LANES = (16, 256)
CONTEXT_SECONDS = 5
"""Lifetime of contexts in the measurement of the memory that is left after it. The default is an hour."""


@dataclass
class Deployment:
    """Running processes of a system on one server."""

    redis: RawLink
    processes: dict[str, list[Running]]
    """By role."""

    @property
    def api(self) -> Running:
        return self.processes[API][0]

    def counters(self) -> dict[str, float]:
        """Return CPU times in ms and bytes so far, of all processes of each role."""
        found = {f"{role}_ms": sum(map(_cpu, running)) * 1e3 for role, running in self.processes.items()}
        traffic = self.redis.info("stats")
        return found | {
            "server_ms": self.redis.server_cpu() * 1e3,
            "client_ms": time.process_time() * 1e3,
            "received_bytes": float(traffic["total_net_input_bytes"]),
            "sent_bytes": float(traffic["total_net_output_bytes"]),
            "file_bytes": float(self.redis.info("persistence")["aof_current_size"]),
            "memory_bytes": _data_bytes(self.redis),
            "events": float(_events(self.redis)),
        }


def _cpu(running: Running) -> float:
    return cpu_seconds_of(running.pid)


def _events(redis: RawLink) -> int:
    """Return the number of events in all lanes."""
    keys = Keys(NAMESPACE, int(redis.call("HGET", f"{NAMESPACE}:meta", "lanes")))
    return sum(redis.call("XLEN", keys.events(lane)) for lane in range(keys.lanes))


def _data_bytes(redis: RawLink) -> float:
    memory = redis.info("memory")
    return (
        float(memory["used_memory"]) - float(memory["mem_aof_buffer"]) - float(memory["mem_clients_normal"])
    )


@asynccontextmanager
async def deployment(
    server: EmbeddedServer, *, workers: int = 1, **settings: str
) -> AsyncIterator[Deployment]:
    """Run an API and workers of both kinds on a server. `settings` are `CRUMB_…` variables."""
    redis = RawLink(server.url)
    redis.call(
        "CONFIG", "SET", "auto-aof-rewrite-percentage", 0
    )  # a rewrite would hide the growth of the file
    async with AsyncExitStack() as stack:
        stack.callback(redis.close)
        where = ("--redis", server.url)
        api = stack.enter_context(crumb("serve", *where, "--port", "0", **settings))
        builders = [stack.enter_context(crumb("build-contexts", *where, **settings)) for _ in range(workers)]
        runners = [stack.enter_context(crumb("run-agents", *where, **settings)) for _ in range(workers)]
        await asyncio.sleep(LEASE_WAIT_SECONDS + workers)
        yield Deployment(redis, {API: [api], BUILDER: builders, RUNNER: runners})


async def converse(opened: list[Chat], sessions: list[str], each: int, text: str) -> float:
    """Run turns in all sessions at once. Return the turns per second."""

    async def talk(number: int, session: str) -> None:
        for _ in range(each):
            await opened[number % len(opened)].turn(session, text)

    began = time.perf_counter()
    await asyncio.gather(*(talk(number, session) for number, session in enumerate(sessions)))
    return len(sessions) * each / (time.perf_counter() - began)


# Constants


def _turns_each(quick: bool) -> int:
    return 3 if quick else 10


def _text(size: int) -> str:
    return ("word " * size)[:size]


async def _fill(server: EmbeddedServer, size: int) -> None:
    for session in NAMES:
        await fill_session(server, session, FILLED, text=_text(size))


async def turn_costs(size: int, quick: bool) -> dict[str, float]:
    """Return CPU times and bytes of a turn with messages of a size."""
    each, text = _turns_each(quick), _text(size)
    with embedded() as server:
        await _fill(server, size)
        async with deployment(server) as system, chats(system.api.url, CONNECTIONS) as opened:
            await converse(opened, NAMES, 1, text)
            before = system.counters()
            rate = await converse(opened, NAMES, each, text)
            await asyncio.sleep(1.2)  # the server updates its figures once a second
            after = system.counters()
            turns = SESSIONS * each
            found = {name: (after[name] - before[name]) / turns for name in after}
            single = [await opened[0].turn(str(uuid4()), text) for _ in range(20 if quick else 60)]
            return found | {"turns_per_second": rate, "p50_ms": percentile(single, 0.5) * 1e3}


async def kept_bytes(size: int, quick: bool) -> float:
    """Return the memory that a turn needs after its context has expired and was reduced."""
    each, text = _turns_each(quick), _text(size)
    config = json.loads(CONFIG.read_text("utf-8"))
    config["output"]["ttl_seconds"] = CONTEXT_SECONDS
    with embedded() as server, tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        await _fill(server, size)
        running = deployment(server, context_config=file.name)
        async with running as system, chats(system.api.url, CONNECTIONS) as opened:
            await converse(opened, NAMES, 1, text)
            await _reduced(system)
            before = _data_bytes(system.redis)
            await converse(opened, NAMES, each, text)
            await _reduced(system)
            return (_data_bytes(system.redis) - before) / (each * SESSIONS)


async def _reduced(system: Deployment) -> None:
    """Wait until all contexts have expired, and let the API reduce them."""
    await asyncio.sleep(CONTEXT_SECONDS + 1)
    client = Requests(system.api.url)
    client.post("/hygiene/run")
    client.close()
    await asyncio.sleep(1.2)


async def message_costs(size: int, quick: bool) -> dict[str, float]:
    """Return CPU times and bytes of a message that no agent answers."""
    count = 1_000 if quick else 4_000
    document = {"schema_name": "note.v1", "title": "A note", "context": {"text": _text(size)}}
    requests = [
        http.post("/breadcrumbs", document | {"tags": [f"session:chat-{n % SESSIONS}"]}) for n in range(count)
    ]
    with embedded() as server:
        async with deployment(server) as system:
            api: Any = system.api
            await http.post_all(api, requests[:200], CONNECTIONS)
            before = system.counters()
            rate = await http.post_all(api, requests, CONNECTIONS)
            await asyncio.sleep(1.2)
            after = system.counters()
    found = {name: (after[name] - before[name]) / count for name in after}
    return found | {"messages_per_second": rate["per_second"]}


async def stream_costs(quick: bool) -> dict[str, float]:
    """Return the memory of an idle event stream, and the CPU time of the API per event and stream."""
    count, events = (100, 5) if quick else (STREAMS, 20)
    with embedded() as server, crumb("serve", "--redis", server.url, "--port", "0") as running:
        api: Any = running
        token = await http.token_from(api)
        request = http.post("/breadcrumbs", _common.posted("chat-0"), token=token)
        few = http.Crowd(api, 10, token=token)
        await few.gather()
        await few.hear(request)
        await few.leave()
        memory = http._private_bytes(running.pid)
        crowd = http.Crowd(api, count, token=token)
        await crowd.gather()
        grown = http._private_bytes(running.pid) - memory
        before = running.cpu()
        for _ in range(events):
            await crowd.hear(request)
        spent = running.cpu() - before
        await crowd.leave()
    return {"memory_bytes": max(0.0, grown / count), "cpu_us_per_event": spent / events / count * 1e6}


async def watch_costs(quick: bool) -> dict[str, float]:
    """Return the costs of an API process per event that none of its streams gets.

    An API process with an open stream reads the events of all lanes, and compares each with the streams of its owner.
    """
    count, streams = (500, 100) if quick else (2_000, STREAMS)
    with (
        embedded() as server,
        crumb("serve", "--redis", server.url, "--port", "0") as writing,
        crumb("serve", "--redis", server.url, "--port", "0") as watching,
    ):
        posting: Any = writing
        listening: Any = watching
        token = await http.token_from(posting)
        redis = RawLink(server.url)
        requests = [
            http.post("/breadcrumbs", _common.posted(f"c-{n % 50}"), token=token) for n in range(count)
        ]

        async def watched() -> tuple[float, float]:
            before = watching.cpu(), float(redis.info("stats")["total_net_output_bytes"])
            await http.post_all(posting, requests, CONNECTIONS)
            await asyncio.sleep(0.5)
            sent = float(redis.info("stats")["total_net_output_bytes"]) - before[1]
            return (watching.cpu() - before[0]) / count * 1e6, sent / count

        found = [await watched()]
        for more in (1, streams - 1):
            crowd = http.Crowd(listening, more, token=token)
            crowd.request = crowd.request.replace(b"/events/stream", b"/events/stream?session_id=another")
            await crowd.gather()
            found.append(await watched())
        redis.close()
    (idle, sent), (one, sent_to_one), (many, _) = found
    return {
        "cpu_us_per_event_read": max(0.0, one - idle),
        "cpu_us_per_event_checked": max(0.0, (many - one) / (streams - 1)),
        "bytes_per_event_read": max(0.0, sent_to_one - sent),
    }


async def idle_costs(lanes: int, quick: bool) -> dict[str, float]:
    """Return the CPU time in ms per second of an idle system, of Python and of the server."""
    seconds = 4 if quick else 10
    with crumb("up", "--port", "0", "--data", "data", "--lanes", str(lanes)) as running:
        await asyncio.sleep(2 * LEASE_WAIT_SECONDS)
        (server,) = children_of(running.pid)
        before = _cpu(running), cpu_seconds_of(server)
        await asyncio.sleep(seconds)
        return {
            "python_ms": (_cpu(running) - before[0]) / seconds * 1e3,
            "server_ms": (cpu_seconds_of(server) - before[1]) / seconds * 1e3,
        }


def line(small: dict[str, float], large: dict[str, float], name: str) -> dict[str, float]:
    """Return the fixed part of a cost and the part per byte of a message."""
    slope = max(0.0, (large[name] - small[name]) / (SIZES[1] - SIZES[0]))
    return {"fixed": max(0.0, small[name] - slope * SIZES[0]), "per_byte": slope}


COSTS = (
    "api_ms",
    "builder_ms",
    "runner_ms",
    "server_ms",
    "client_ms",
    "received_bytes",
    "sent_bytes",
    "file_bytes",
    "memory_bytes",
    "events",
)
"""Costs of a turn and of a message."""


# Check


async def one_process(quick: bool) -> float:
    """Return the turns per second of `crumb up`."""
    with embedded() as server:
        await _fill(server, SIZES[0])
        with crumb("up", "--redis", server.url, "--port", "0") as running:
            async with chats(running.url, CONNECTIONS) as opened:
                await asyncio.sleep(LEASE_WAIT_SECONDS)
                return await _turns_per_second(opened, quick)


async def two_workers(quick: bool) -> float:
    """Return the turns per second of one API process and two workers of each kind."""
    with embedded() as server:
        await _fill(server, SIZES[0])
        async with deployment(server, workers=2) as system, chats(system.api.url, CONNECTIONS) as opened:
            return await _turns_per_second(opened, quick)


async def _turns_per_second(opened: list[Chat], quick: bool) -> float:
    text = _text(SIZES[0])
    await converse(opened, NAMES, 1, text)
    rates = [await converse(opened, NAMES, 4, text) for _ in range(2 if quick else 5)]
    return percentile(rates, 0.5)


def predictions(turn: dict[str, float]) -> dict[str, float]:
    """Return the turns per second that the constants predict. `turn` has the costs at the size of the check.

    A process uses one core. All processes, the server and the client that generates the load share the cores.
    """
    cores = os.cpu_count() or 1
    roles = [turn["api_ms"], turn["builder_ms"], turn["runner_ms"]]
    everything = sum(roles) + turn["server_ms"] + turn["client_ms"]
    shared = cores * 1e3 / everything
    slowest_of_two_workers = max(turn["api_ms"], turn["builder_ms"] / 2, turn["runner_ms"] / 2)
    return {
        "one process": min(1e3 / sum(roles), shared),
        "one API process, two workers of each kind": min(1e3 / slowest_of_two_workers, shared),
    }


# All


async def measure(quick: bool) -> dict[str, Any]:
    """Return the constants and the check."""
    turn: dict[int, dict[str, float]] = {}
    message: dict[int, dict[str, float]] = {}
    for size in SIZES:
        say(f"  turns with messages of {size:,} bytes")
        turn[size] = await turn_costs(size, quick)
        turn[size]["kept_bytes"] = await kept_bytes(size, quick)
        say(f"  messages of {size:,} bytes")
        message[size] = await message_costs(size, quick)
    small, large = SIZES
    say("  streams")
    stream = await stream_costs(quick) | await watch_costs(quick)
    say("  lanes")
    few, many = [await idle_costs(lanes, quick) for lanes in LANES]
    lane = {name: max(0.0, (many[name] - few[name]) / (LANES[1] - LANES[0])) for name in few}
    say("  check")
    measured = {
        "one process": await one_process(quick),
        "one API process, two workers of each kind": await two_workers(quick),
    }
    predicted = predictions(turn[small])
    return {
        "mode": "quick" if quick else "default",
        "machine": _common.machine(),
        "lease_seconds": Settings().lease_seconds,
        "load": os.getloadavg()[0],
        "turn": {name: line(turn[small], turn[large], name) for name in (*COSTS, "kept_bytes")},
        "turn_p50_ms": turn[small]["p50_ms"],
        "message": {name: line(message[small], message[large], name) for name in COSTS},
        "stream": stream,
        "lane": lane,
        "idle": few,
        "check": [
            {
                "deployment": name,
                "predicted": predicted[name],
                "measured": measured[name],
                "error": predicted[name] / measured[name] - 1,
            }
            for name in measured
        ],
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(document: dict[str, Any]) -> None:
    rows = [["per turn", "fixed", "per KB"]]
    for kind in ("turn", "message"):
        rows += [
            [f"{kind}: {name}", f"{part['fixed']:,.2f}", f"{part['per_byte'] * 1000:,.2f}"]
            for name, part in document[kind].items()
        ]
    width = max(len(row[0]) for row in rows)
    for row in rows:
        print(f"{row[0]:{width}} {row[1]:>12} {row[2]:>12}")
    print(f"stream: {document['stream']}\nlane, ms per second: {document['lane']}")
    for row in document["check"]:
        print(
            f"{row['deployment']}: predicted {row['predicted']:.0f} turns per second, "
            f"measured {row['measured']:.0f} ({row['error']:+.0%})"
        )


async def bench(chosen: argparse.Namespace) -> None:
    document = await measure(chosen.quick)
    if chosen.json:
        _common.write_json(chosen.json, document)
    if chosen.json != "-":
        show(document)


def main() -> None:
    parser = _common.options(__doc__ or "", json_file=True)
    chosen = parser.parse_args()
    _common.run(lambda: bench(chosen))


if __name__ == "__main__":
    main()
