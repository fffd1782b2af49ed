"""The share of a prompt that repeats the previous prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.context_builder.prefix_reuse import shared_prefix

PIECES = st.lists(st.binary(max_size=4), max_size=6)


def test_equal_pieces_at_the_beginning_count_and_later_ones_do_not() -> None:
    assert shared_prefix([b"one", b"two", b"three"], [b"one", b"two", b"four", b"three"]) == 6
    assert shared_prefix([b"one", b"two"], [b"0ne", b"two"]) == 0
    assert shared_prefix([], [b"one"]) == shared_prefix([b"one"], []) == 0


def test_a_piece_that_only_grew_counts_up_to_its_old_end() -> None:
    assert shared_prefix([b"system", b"catalog"], [b"system", b"catalog and more"]) == 13


@given(PIECES, PIECES)
def test_the_result_is_the_common_prefix_of_the_joined_bytes(
    previous: list[bytes], current: list[bytes]
) -> None:
    before, now = b"".join(previous), b"".join(current)
    shared = shared_prefix(previous, current)
    assert before[:shared] == now[:shared]
    assert shared == min(len(before), len(now)) or before[shared] != now[shared]
