"""Readers of the values of a session's state."""

from __future__ import annotations

from uuid import UUID

import pytest

from breadcrumbs.runtime.store.state import StateReaders

ANN, BOB = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        (StateReaders(), StateReaders(), StateReaders()),
        (StateReaders(), StateReaders(private_to=ANN), StateReaders(private_to=ANN)),
        (StateReaders(private_to=ANN), StateReaders(private_to=ANN), StateReaders(private_to=ANN)),
        (StateReaders(secret=True), StateReaders(private_to=ANN), StateReaders(True, ANN)),
    ],
)
def test_joined_readers_have_both_restrictions(
    one: StateReaders, other: StateReaders, joined: StateReaders
) -> None:
    assert one.joined(other) == other.joined(one) == joined


def test_a_value_that_is_private_to_two_agents_is_secret() -> None:
    for one, other in ((ANN, BOB), (BOB, ANN)):
        assert StateReaders(private_to=one).joined(StateReaders(private_to=other)).secret


def test_readers_survive_the_stored_form() -> None:
    for readers in (
        StateReaders(),
        StateReaders(True),
        StateReaders(private_to=ANN),
        StateReaders(True, BOB),
    ):
        assert StateReaders.unwrap(readers.wrap(b'"x"')) == (readers, b'"x"')
