"""The values of streams: shared by all who may see the same, without anything that a subscriber may not see."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from uuid import UUID

import orjson
import pytest

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import LARGE_BYTES, Breadcrumb
from breadcrumbs.runtime.events.deltas import Delta
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.http.routes.stream_filter import StreamFilter
from breadcrumbs.runtime.http.routes.stream_frames import FrameRenderer
from breadcrumbs.runtime.sse import Parser
from breadcrumbs.runtime.streams.stream_event import OutgoingEvent, StreamValue, queued_bytes

OWNER, ID = UUID(int=1), UUID(int=9)
EVENT = Event("created", OWNER, ID, 1, "note.v1", ["session:s"], None, 0, 7)
CURATOR = Principal(OWNER, UUID(int=2))
READER = Principal(OWNER, UUID(int=3), roles=frozenset(("subscriber",)))
HERE = (7, 0)


def crumb(text: str = "hidden", **fields: str) -> Breadcrumb:
    document = {"title": "t", "tags": ["session:s"], "context": {"text": text}, **fields}
    return Breadcrumb(ID, OWNER, 1, 7, 7, 0, 0, None, None, orjson.dumps(document))


class Renderer:
    """Renders values, and counts positions that are encoded."""

    def __init__(self) -> None:
        self.encoded = 0
        self.frames = FrameRenderer(self._encode, rcrt_events=False)

    def _encode(self, owner: UUID, position: Sequence[int]) -> str:
        self.encoded += 1
        return f"{owner.int}-{position[0]}"

    def data(self, value: StreamValue) -> dict[str, object]:
        (event,) = Parser().feed(self.frames.render([value]))
        found: dict[str, object] = orjson.loads(event.text)
        return found


def test_subscribers_with_equal_rights_share_one_value_and_one_frame() -> None:
    outgoing, renderer = OutgoingEvent(EVENT, crumb()), Renderer()
    values = [outgoing.view_for(StreamFilter(CURATOR, [], []), HERE) for _ in range(3)]
    assert values[0] is values[1] is values[2]
    frames = [renderer.frames.render([value]) for value in values]
    assert frames[0] is frames[1] is frames[2]
    assert renderer.encoded == 1


def test_a_frame_is_kept_no_longer_than_its_value() -> None:
    renderer = Renderer()
    value = OutgoingEvent(EVENT, crumb()).view_for(StreamFilter(CURATOR, [], []), HERE)
    renderer.frames.render([value])
    assert len(renderer.frames._frames) == 1
    del value
    gc.collect()
    assert not len(renderer.frames._frames)


@pytest.mark.parametrize("size", [10, LARGE_BYTES + 1])
def test_a_subscriber_receives_only_readable_values(size: int) -> None:
    outgoing, renderer = OutgoingEvent(EVENT, crumb("x" * size, sensitivity="secret")), Renderer()
    curators, readers = (
        outgoing.view_for(StreamFilter(principal, [], []), HERE) for principal in (CURATOR, READER)
    )
    assert renderer.data(curators)["context"] == {"text": "x" * size}
    assert readers.breadcrumb is not None and b"xxx" not in readers.breadcrumb.json
    shown = renderer.data(readers)
    assert shown["title"] == "t" and "context" not in shown
    assert "title" not in renderer.data(outgoing.undecided_view(HERE))


def test_a_queued_value_is_counted_by_its_stored_json_and_keeps_nothing_parsed() -> None:
    stored = crumb("x" * 1_000)
    value = OutgoingEvent(EVENT, stored).view_for(StreamFilter(CURATOR, [], []), HERE)
    Renderer().frames.render([value])
    assert value.breadcrumb is not None and "document" not in value.breadcrumb.__dict__
    assert len(stored.json) <= queued_bytes(value) <= len(stored.json) + 1_024
    piece = Delta(OWNER, "s", (), "agent", str(ID), ID, 0, "y" * 500)
    assert 500 <= queued_bytes(piece) <= 1_524
