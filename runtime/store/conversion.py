"""Removes index entries that stores of format 1 have and format 2 does not need. Runs in the background.

The store stays usable. A script removes an entry only if its tag and schema are recorded as unindexed. Readers find the
breadcrumb in the index of its schema then. A listing that began before the record was made does not look there. So all
records are made first, and the removal begins `GRACE_SECONDS` later.

The work is done in small steps. If its process is killed, another process begins again and finds fewer entries. One
process works at a time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from typing import Final
from uuid import UUID

import anyio
import orjson

from breadcrumbs.runtime.backend.connection import Script
from breadcrumbs.runtime.store.formats import is_converted, mark_converted
from breadcrumbs.runtime.store.keys import BY_TAG
from breadcrumbs.runtime.store.scan import FoundKey, scan
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.tag_index import CHAT_SCHEMAS, is_indexed, unindexed_member

GRACE_SECONDS: Final = 60.0
"""Time between the records and the removal. A page of a listing takes less."""

_PIECE: Final = 200
"""Entries per script call. A script blocks the server, so it is short."""
_KEYS_PER_STEP: Final = 1_000
_PAUSE_SECONDS: Final = 0.002
"""Pause after each step, so that requests are served in between."""
_LEASE_MILLISECONDS: Final = 120_000
_CONVERT: Final = Script("convert")
_PROGRESS: Final = "conversion"


@dataclass(slots=True)
class Progress:
    """Progress of a conversion."""

    done: bool = False
    removed: int = 0
    """Index entries that the present process has removed."""
    indexes: int = 0
    """Indexes that contain entries to remove, or did."""
    indexes_done: int = 0


class TagConversion:
    """Removes the index entries of unindexed tags, step by step."""

    def __init__(self, store: Store, *, grace: float = GRACE_SECONDS) -> None:
        self._store = store
        self._grace = grace
        self._token = secrets.token_hex(8)
        self._steps: AsyncGenerator[float, None] | None = None
        self._finished = False
        self.progress = Progress()

    async def run(self, seconds: float) -> None:
        """Work for some seconds, unless the conversion is complete or another process works on it.

        An error ends this attempt. The next run begins again.
        """
        if self._finished or not await self._is_needed():
            return
        if self._steps is None:
            self.progress = Progress()
            self._steps = self._work()
        deadline = time.monotonic() + seconds
        try:
            async for pause in self._steps:
                if time.monotonic() + pause >= deadline:
                    break
                await anyio.sleep(pause)
            else:
                self._finished = True
        except BaseException:
            self._steps = None  # it has ended, so the next run begins again
            raise
        await _write_progress(self._store, self.progress)

    async def _is_needed(self) -> bool:
        if await is_converted(self._store):
            self._finished = True
            return False
        call, key = self._store.connection.call, self._store.keys.conversion()
        if await call(0, b"SET", key, self._token, b"NX", b"PX", _LEASE_MILLISECONDS) is not None:
            return True
        if await call(0, b"GET", key) != self._token.encode():
            return False
        await call(0, b"PEXPIRE", key, _LEASE_MILLISECONDS)
        return True

    async def _work(self) -> AsyncGenerator[float, None]:
        """Do all the work. Yields after each step the seconds to pause."""
        found: list[FoundKey] = []
        scanned = 0
        async for key in scan(self._store):
            scanned += 1
            if scanned % _KEYS_PER_STEP == 0:
                yield _PAUSE_SECONDS
            if key.kind == BY_TAG and _unindexed_schemas(key):
                found.append(key)
        self.progress.indexes = len(found)
        for key in found:
            async for _ in self._convert(key, remove=False):
                yield _PAUSE_SECONDS
        removal = time.monotonic() + self._grace
        while (left := removal - time.monotonic()) > 0:
            yield left
        for key in found:
            async for removed in self._convert(key, remove=True):
                self.progress.removed += removed
                yield _PAUSE_SECONDS
            self.progress.indexes_done += 1
        await mark_converted(self._store)
        await self._store.connection.call(0, b"DEL", self._store.keys.conversion())
        self.progress.done = True

    async def _convert(self, index: FoundKey, *, remove: bool) -> AsyncGenerator[int, None]:
        """Go through a tag index. Yields for each piece the number of entries that are not needed."""
        connection, keys, lane = self._store.connection, self._store.keys, index.lane
        owner, tag = UUID(bytes=index.name[:16]), index.name[16:].decode()
        stored = (await self._store.schemas(owner, [lane]))[lane]
        schemas = [schema for schema in _unindexed_schemas(index) if schema in stored]
        rank = 0
        while schemas:
            looked_at, unneeded = await connection.run(
                lane,
                _CONVERT,
                [
                    index.key,
                    keys.unindexed_tags(lane, owner),
                    *(keys.by_schema(lane, owner, schema) for schema in schemas),
                ],
                [rank, _PIECE, int(remove), *(unindexed_member(schema, tag) for schema in schemas)],
            )
            rank += looked_at - unneeded if remove else looked_at
            yield unneeded
            if looked_at < _PIECE:
                return


async def read_progress(store: Store) -> Progress | None:
    """Return the progress of the conversion. None: it has not begun."""
    if await is_converted(store):
        return Progress(done=True)
    stored = await store.connection.call(0, b"HGET", store.keys.hygiene(), _PROGRESS)
    return None if stored is None else Progress(**orjson.loads(stored))


async def _write_progress(store: Store, progress: Progress) -> None:
    await store.connection.call(0, b"HSET", store.keys.hygiene(), _PROGRESS, orjson.dumps(asdict(progress)))


def _unindexed_schemas(index: FoundKey) -> list[str]:
    """Return the schemas for which the tag of an index is not indexed."""
    tag = index.name[16:].decode()
    return sorted(schema for schema in CHAT_SCHEMAS if not is_indexed(schema, tag))
