"""One line when the store is lost and one when it is back, however many links fail and reconnect."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from breadcrumbs.runtime.errors import CommandRefused, StoreError, StoreFull, StoreReplaced, StoreUnavailable
from breadcrumbs.runtime.telemetry import metrics, store_calls
from breadcrumbs.runtime.telemetry.store_calls import QUIET_SECONDS, StoreCalls, log_store_error

GONE = StoreUnavailable("cannot reach the server")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(store_calls, "time", clock)
    return clock


def test_an_outage_is_two_lines_with_its_duration(clock: Clock) -> None:
    calls = StoreCalls()
    calls.replied()
    with capture_logs() as lines:
        for _ in range(30):  # ten seconds
            calls.failed(GONE)
            clock.now += 1 / 3
        calls.replied()  # the first link is back
        clock.now += 0.5
        calls.failed(GONE)  # and another one fails once more
        clock.now += 0.1
        calls.replied()
        assert metrics.STORE_UP._value.get() == 0
        clock.now += QUIET_SECONDS
        calls.replied()
    assert [line["event"] for line in lines] == ["store lost", "store back"]
    assert lines[1]["seconds"] == pytest.approx(10.6) and lines[1]["failed_calls"] == 31
    assert metrics.STORE_UP._value.get() == 1


def test_a_second_outage_is_logged_again(clock: Clock) -> None:
    calls = StoreCalls()
    calls.replied()
    with capture_logs() as lines:
        for _ in range(2):
            calls.failed(GONE)
            clock.now += 5
            calls.replied()
    assert [line["event"] for line in lines] == ["store lost", "store back"] * 2


def test_an_emptied_server_is_an_outage_until_the_store_is_verified(clock: Clock) -> None:
    calls = StoreCalls()
    calls.replied()
    with capture_logs() as lines:
        for _ in range(5):
            calls.replied()  # the server replies, it only has no store
            calls.replaced(StoreReplaced("the store is gone"))
            clock.now += 2 * QUIET_SECONDS
            assert metrics.STORE_UP._value.get() == 0
        calls.replied()
        assert len(lines) == 1
        calls.verified()
        calls.replied()
    assert [line["event"] for line in lines] == ["store replaced, nothing is written any more", "store back"]
    assert lines[0]["reason"] == "the store is gone" and "--new-store" in lines[0]["advice"]
    assert metrics.STORE_UP._value.get() == 1


def test_a_server_that_comes_back_empty_is_lost_once_and_back_once(clock: Clock) -> None:
    calls = StoreCalls()
    calls.replied()
    with capture_logs() as lines:
        calls.failed(GONE)
        clock.now += 5
        calls.replaced(StoreReplaced("the store is gone"))
        clock.now += 5
        calls.failed(GONE)  # the server is stopped again to restore its data
        clock.now += 5
        calls.replied()
        calls.verified()
        calls.replied()
    lost, replaced, back = (line["event"] for line in lines)
    assert (lost, replaced, back) == (
        "store lost",
        "store replaced, nothing is written any more",
        "store back",
    )
    assert lines[2]["seconds"] == pytest.approx(15)


def test_a_full_store_is_logged_once_a_minute(clock: Clock) -> None:
    calls = StoreCalls()
    with capture_logs() as lines:
        for _ in range(90):
            calls.failed(StoreFull("no memory left"))
            clock.now += 1
    assert [line["event"] for line in lines] == ["store full"] * 2


@pytest.mark.parametrize("error", [CommandRefused("NOPERM"), StoreError("WRONGTYPE")])
def test_other_errors_are_no_outage(clock: Clock, error: StoreError) -> None:
    calls = StoreCalls()
    calls.replied()
    with capture_logs() as lines:
        calls.failed(error)
    assert not lines


def test_a_store_that_was_never_reached_is_not_lost(clock: Clock) -> None:
    calls = StoreCalls()
    with capture_logs() as lines:
        calls.failed(GONE)
        clock.now += 5
        calls.replied()
    assert not lines


def test_tasks_log_an_outage_only_for_debugging() -> None:
    with capture_logs() as lines:
        log_store_error(store_calls._log, "renewing failed", GONE, kind="agents")
        log_store_error(store_calls._log, "renewing failed", StoreError("WRONGTYPE"), kind="agents")
    assert [line["log_level"] for line in lines] == ["debug", "warning"]
