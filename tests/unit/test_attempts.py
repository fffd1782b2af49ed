"""The rules by which attempts are counted, suspects are isolated and events are given up."""

from __future__ import annotations

import pytest

from breadcrumbs.runtime.attempts import NO_ATTEMPTS, Attempts, Company, Mark


def lose(attempts: Attempts, *, alone: bool, stalled: bool = False) -> Attempts:
    """One more worker is lost while the event runs."""
    return attempts.begun("worker", alone=alone).lost(stalled=stalled)


@pytest.mark.parametrize(
    "attempts",
    [
        NO_ATTEMPTS,
        Attempts(failures=2),
        Attempts(1, 2, 3, True),
        Attempts(mark=Mark("host-1-abc", False)),
        Attempts(0, 3, 0, False, Mark("a name with spaces", True)),
    ],
)
def test_attempts_are_stored_and_read_back(attempts: Attempts) -> None:
    assert Attempts.decode(attempts.encode()) == attempts


def test_the_number_that_earlier_versions_stored_counts_nothing() -> None:
    assert Attempts.decode(b"3") == NO_ATTEMPTS


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 20])
def test_an_event_that_kills_every_worker_is_given_up_after_its_attempts_and_the_last_one_ran_alone(
    limit: int,
) -> None:
    attempts, deaths, alone = NO_ATTEMPTS, 0, False
    while not attempts.exhausted(limit):
        alone = attempts.company(limit) is Company.NO_SUSPECTS
        attempts = lose(attempts, alone=alone)
        deaths += 1
    assert alone and deaths == max(2, limit)  # one death beside others does not prove anything


def test_deaths_beside_other_suspects_never_give_an_event_up() -> None:
    attempts = NO_ATTEMPTS
    for _ in range(50):
        attempts = lose(attempts, alone=False)
    assert not attempts.exhausted(4) and attempts.company(4) is Company.NO_SUSPECTS


def test_an_event_that_stalls_every_worker_is_given_up_later_than_one_that_kills() -> None:
    attempts, stalls = NO_ATTEMPTS, 0
    while not attempts.exhausted(4):
        attempts = lose(attempts, alone=attempts.company(4) is Company.NO_SUSPECTS, stalled=True)
        stalls += 1
    assert stalls == 8


def test_three_kills_and_two_freezes_in_any_order_give_nothing_up() -> None:
    for freezes in range(1 << 5):
        if freezes.bit_count() != 2:
            continue
        attempts = NO_ATTEMPTS
        for hit in range(5):
            alone = attempts.company(4) is Company.NO_SUSPECTS
            attempts = lose(attempts, alone=alone, stalled=bool(freezes >> hit & 1))
            assert not attempts.exhausted(4)


def test_two_deaths_leave_thirty_events_running_beside_each_other() -> None:
    once = lose(NO_ATTEMPTS, alone=False)
    assert once.company(4) is Company.ANY
    assert lose(once, alone=False).company(4) is Company.SOME_SUSPECTS


def test_failures_alone_make_no_suspect() -> None:
    assert Attempts(failures=3).company(4) is Company.ANY and not Attempts(failures=4).exhausted(4)


def test_an_attempt_without_a_mark_is_not_blamed() -> None:
    assert Attempts(failures=1).lost(stalled=False) == Attempts(failures=1)
    assert Attempts(failures=1).begun("worker", alone=True).ended() == Attempts(failures=1)
