"""The rules by which attempts are counted, suspects are isolated and events are given up."""

from __future__ import annotations

import pytest

from breadcrumbs.runtime.workers.attempts import NO_ATTEMPTS, Attempts, RunningMark


def lose(attempts: Attempts, *, alone: bool, stalled: bool = False) -> Attempts:
    """One more worker is lost while the event runs."""
    return attempts.started("worker", alone=alone).lost(stalled=stalled)


@pytest.mark.parametrize(
    "attempts",
    [
        NO_ATTEMPTS,
        Attempts(failures=2),
        Attempts(1, 2, 3, 4),
        Attempts(mark=RunningMark("host-1-abc", False)),
        Attempts(0, 3, 0, 1, RunningMark("a name with spaces", True)),
    ],
)
def test_attempts_are_stored_and_read_back(attempts: Attempts) -> None:
    assert Attempts.decode(attempts.encode()) == attempts


def test_the_number_that_earlier_versions_stored_counts_nothing() -> None:
    assert Attempts.decode(b"3") == NO_ATTEMPTS


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 20])
def test_an_event_that_kills_every_worker_fails_after_its_attempts_alone(limit: int) -> None:
    attempts, shared, alone = NO_ATTEMPTS, 0, 0
    while not attempts.exhausted(limit):
        alone += attempts.runs_alone
        shared += not attempts.runs_alone
        attempts = lose(attempts, alone=attempts.runs_alone)
    assert (shared, alone) == (3, limit)


def test_deaths_with_other_events_running_do_not_count_as_attempts() -> None:
    attempts = NO_ATTEMPTS
    for _ in range(50):
        attempts = lose(attempts, alone=False)
    assert not attempts.exhausted(1) and attempts.counted == 0 and attempts.runs_alone


def test_an_event_that_stalls_workers_fails_later_than_one_that_kills() -> None:
    attempts, stalls = NO_ATTEMPTS, 0
    while not attempts.exhausted(4):
        stalls += attempts.runs_alone
        attempts = lose(attempts, alone=attempts.runs_alone, stalled=True)
    assert stalls == 8


def test_three_kills_and_two_freezes_in_any_order_fail_no_event() -> None:
    for freezes in range(1 << 5):
        if freezes.bit_count() != 2:
            continue
        attempts = NO_ATTEMPTS
        for hit in range(5):
            attempts = lose(attempts, alone=attempts.runs_alone, stalled=bool(freezes >> hit & 1))
            assert not attempts.exhausted(4)


def test_events_run_together_after_two_losses_and_alone_after_three() -> None:
    attempts = NO_ATTEMPTS
    for expected in (False, False, True):
        attempts = lose(attempts, alone=False)
        assert attempts.runs_alone is expected


def test_failures_alone_do_not_make_an_event_a_suspect() -> None:
    assert not Attempts(failures=3).runs_alone


def test_an_attempt_without_a_mark_is_not_blamed() -> None:
    assert Attempts(failures=1).lost(stalled=False) == Attempts(failures=1)
    assert Attempts(failures=1).started("worker", alone=True).ended() == Attempts(failures=1)
