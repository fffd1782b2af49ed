"""One event reader per store, as a process has it."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from breadcrumbs.runtime.events.log import EventLog
from breadcrumbs.runtime.events.reader import EventReader
from breadcrumbs.runtime.store.store import Store

_readers: WeakKeyDictionary[Store, EventReader] = WeakKeyDictionary()


def reader_of(store: Store) -> EventReader:
    """Return the reader that all followers on this store share. Its tasks end with its last follower."""
    reader = _readers.get(store)
    if reader is None:
        reader = _readers[store] = EventReader(store)
    return reader


def log_of(store: Store) -> EventLog:
    return EventLog(store.connection, store.keys)


async def close_with_reader(store: Store) -> None:
    """Close a store after its reader."""
    if store in _readers:
        await _readers.pop(store).close()
    await store.close()
