"""Pieces of an answer leave while it is being made, and no more once it has come to nothing."""

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

SOMEBODY = UUID(int=1)
EVENT = Event("created", SOMEBODY, SOMEBODY, 1, "user.message.v1", ["session:s"], None, 0, 7)


class Wire:
    """As much of a store as pieces need."""

    def __init__(self) -> None:
        self.connection = self
        self.keys = Keys("bc", 1)
        self.sent: list[str] = []

    def post(self, lane: int, *command: Any) -> None:
        self.sent.append(orjson.loads(command[2])["text"])


def writer_on(wire: Any) -> DeltaWriter:
    return DeltaWriter(wire, EVENT, "assistant", str(SOMEBODY), str(SOMEBODY))


async def test_the_first_piece_leaves_at_once_and_the_rest_with_the_end() -> None:
    wire = Wire()
    async with writer_on(wire) as writer:
        await writer.write("one ")
        await asyncio.sleep(0.001)
        assert wire.sent == ["one "]
        for text in ("two ", "three"):
            await writer.write(text)
    assert wire.sent == ["one ", "two three"]


async def test_nothing_leaves_of_an_answer_that_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt begins with its first word, and is shown from there."""
    monkeypatch.setattr(deltas, "_GATHER_SECONDS", 0.01)
    wire = Wire()
    with pytest.raises(RuntimeError):
        async with writer_on(wire) as writer:
            await writer.write("one ")
            await asyncio.sleep(0.001)
            await writer.write("two ")
            raise RuntimeError("on purpose")
    await asyncio.sleep(0.03)
    assert wire.sent == ["one "]


def test_a_published_delta_is_read_as_it_was_written() -> None:
    delta = Delta(SOMEBODY, "s", ("session:s",), "assistant", str(SOMEBODY), UUID(int=2), 3, "héllo")
    assert Delta.decode(delta.encode()) == delta
    assert "tags" not in delta.document()
