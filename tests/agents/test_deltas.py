"""Deltas of an answer. They are sent while the answer is written, and stop if it fails."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import orjson
import pytest

from breadcrumbs.runtime.events import deltas
from breadcrumbs.runtime.events.deltas import Delta, DeltaWriter
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.store.keys import Keys

SOME_ID = UUID(int=1)
EVENT = Event("created", SOME_ID, SOME_ID, 1, "user.message.v1", ["session:s"], None, 0, 7)


class FakeStore:
    """The part of a store that `DeltaWriter` uses. Records the text of sent deltas."""

    def __init__(self) -> None:
        self.connection = self
        self.keys = Keys("bc", 1)
        self.sent: list[str] = []

    def post(self, lane: int, *command: Any) -> None:
        self.sent.append(orjson.loads(command[2])["text"])


def delta_writer(store: Any) -> DeltaWriter:
    return DeltaWriter(store, EVENT, "assistant", str(SOME_ID), str(SOME_ID))


async def test_the_first_delta_is_sent_at_once_and_the_rest_at_the_end() -> None:
    store = FakeStore()
    async with delta_writer(store) as writer:
        await writer.write("one ")
        await asyncio.sleep(0.001)
        assert store.sent == ["one "]
        for text in ("two ", "three"):
            await writer.write(text)
    assert store.sent == ["one ", "two three"]


async def test_a_failed_answer_sends_no_more_deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt sends its text from the beginning, so late deltas of this one would mix with it."""
    monkeypatch.setattr(deltas, "_FLUSH_SECONDS", 0.01)
    store = FakeStore()
    with pytest.raises(RuntimeError):
        async with delta_writer(store) as writer:
            await writer.write("one ")
            await asyncio.sleep(0.001)
            await writer.write("two ")
            raise RuntimeError("on purpose")
    await asyncio.sleep(0.03)
    assert store.sent == ["one "]


def test_a_delta_survives_encoding_and_decoding() -> None:
    delta = Delta(SOME_ID, "s", ("session:s",), "assistant", str(SOME_ID), UUID(int=2), 3, "héllo")
    assert Delta.decode(delta.encode()) == delta
    assert "tags" not in delta.document()
