"""History of the load, one sample per minute in lane 0. Its size is fixed: a new sample replaces the oldest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import orjson

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.store.store import Store

HISTORY_MINUTES: Final = 360
"""Length of the history."""
MAX_SAMPLED_KINDS: Final = 8
"""Maximum number of kinds of workers in a sample, so that the size is limited."""
MINUTE_MICROSECONDS: Final = 60_000_000

_HISTORY = Script("history")


@dataclass(frozen=True, slots=True)
class KindLoad:
    """Load of one kind of worker at the end of a minute."""

    answered: int
    """Turns that were ever answered, by all workers of this kind."""
    failed: int
    """Turns that ever failed."""
    lag_ms: float
    """Age of the oldest event that is not acknowledged."""
    waiting: int
    workers: int
    """Number of workers that are alive."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Load of all workers at the end of a minute."""

    minute: int
    """Minutes since 1970, by the server's clock."""
    events: int
    """Number of events ever written."""
    kinds: Mapping[str, KindLoad] = field(default_factory=dict)


async def claim_minute(store: Store, minute: int) -> bool:
    """Return whether this process has to write the sample of a minute. Only one process gets True."""
    return await _run(store, minute, b"")


async def write_sample(store: Store, sample: LoadSample) -> None:
    """Store the sample of a minute that this process has claimed."""
    kinds = {kind: asdict(load) for kind, load in sample.kinds.items()}
    await _run(store, sample.minute, orjson.dumps({"events": sample.events, "kinds": kinds}))


async def _run(store: Store, minute: int, sample: bytes) -> bool:
    slot = minute % HISTORY_MINUTES
    return bool(await store.connection.run(0, _HISTORY, [store.keys.load_history()], [slot, minute, sample]))


async def read_samples(store: Store) -> list[LoadSample]:
    """Return the samples of the last hours, oldest first. Minutes without a sample are missing."""
    since = store.now() // MINUTE_MICROSECONDS - HISTORY_MINUTES
    values = await store.connection.call(0, b"HVALS", store.keys.load_history())
    samples = []
    for value in values:
        minute, _, raw = value.partition(b" ")
        if raw and int(minute) > since:
            samples.append(_decode(int(minute), raw))
    return sorted(samples, key=lambda sample: sample.minute)


def _decode(minute: int, raw: bytes) -> LoadSample:
    document = orjson.loads(raw)
    kinds = {
        kind: KindLoad(**{name: load.get(name, 0) for name in KindLoad.__dataclass_fields__})
        for kind, load in document["kinds"].items()
    }
    return LoadSample(minute, document["events"], kinds)


async def read_turn_counters(store: Store, kinds: Sequence[str]) -> list[tuple[int, int]]:
    """Return the turns that the workers of each kind ever answered, and those that failed."""
    replies = await store.connection.call_all(
        [(0, (b"HMGET", store.keys.turn_counters(kind), b"answered", b"failed")) for kind in kinds]
    )
    return [(int(answered or 0), int(failed or 0)) for answered, failed in replies]
