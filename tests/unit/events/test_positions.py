"""Stream positions: they reveal nothing to clients, and invalid ones are refused."""

from __future__ import annotations

import base64
from uuid import UUID

import pytest

from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.events.positions import PositionCodec

OWNER, OTHER = UUID(int=1), UUID(int=2)
SECRET = b"secret of the store" * 2
POSITION = [1_794_915_319_436_650 + lane for lane in range(16)]


@pytest.fixture
def codec() -> PositionCodec:
    return PositionCodec(SECRET, 16)


def test_a_position_is_valid_in_any_process_of_the_store(codec: PositionCodec) -> None:
    assert PositionCodec(SECRET, 16).decode(OWNER, codec.encode(OWNER, POSITION)) == POSITION


def test_an_encoded_position_reveals_neither_times_nor_activity(codec: PositionCodec) -> None:
    texts = [codec.encode(OWNER, POSITION) for _ in range(50)]
    assert len(set(texts)) == 50
    assert {len(text) for text in (*texts, codec.encode(OWNER, [0] * 16))} == {192}
    for text in texts:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        assert all(at.to_bytes(7)[:4] not in raw for at in POSITION)


def test_positions_of_other_owners_stores_and_lanes_are_refused(codec: PositionCodec) -> None:
    text = codec.encode(OWNER, POSITION)
    for other, owner in (
        (codec, OTHER),
        (PositionCodec(b"another secret" * 3, 16), OWNER),
        (PositionCodec(SECRET, 8), OWNER),
    ):
        with pytest.raises(InvalidInput, match="Last-Event-ID"):
            other.decode(owner, text)


@pytest.mark.parametrize("forged", ["", "A", "made-up", "é", "A" * 149, "A" * 192, "A" * 10_000])
def test_forged_positions_are_refused(codec: PositionCodec, forged: str) -> None:
    with pytest.raises(InvalidInput, match="Last-Event-ID"):
        codec.decode(OWNER, forged)


def test_no_changed_character_passes(codec: PositionCodec) -> None:
    text = codec.encode(OWNER, POSITION)
    for at in range(0, len(text), 7):
        changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        with pytest.raises(InvalidInput):
            codec.decode(OWNER, changed)


def test_a_position_of_an_older_version_is_recognized(codec: PositionCodec) -> None:
    old = base64.urlsafe_b64encode(b"".join(at.to_bytes(7) for at in POSITION)).decode().rstrip("=")
    assert codec.decode(OWNER, old) is None
