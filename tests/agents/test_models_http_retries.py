"""The HTTP model when something passes: what is tried again, after which pause, and for how long."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from breadcrumbs.agents.models.endpoint import EndpointLimits
from tests.support.model_calls import ask, failure
from tests.support.model_server import ModelServer, Scenario
from tests.support.servers import free_port


@pytest.mark.parametrize(("behaviour", "options"), [("rate_limited", {"retry_after": "0"}), ("failing", {})])
async def test_what_passes_is_tried_again(
    server: ModelServer, behaviour: str, options: dict[str, Any]
) -> None:
    scenario = server.scenario(behaviour, times=2, **options)
    assert (await ask(scenario)).text == "You asked: Hello there"
    assert len(scenario.requests) == 3


async def test_retries_end(server: ModelServer) -> None:
    scenario = server.scenario("failing", status=503)
    error = await failure(scenario)
    assert error.retry
    assert "the provider failed (503): The server had an error" in error.reason
    assert len(scenario.requests) == 3


async def test_a_pause_that_the_server_asks_for_is_kept(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after="0.4")
    await ask(scenario)
    first, second = scenario.requests
    assert second.at - first.at >= 0.4


async def test_the_cap_holds_where_there_would_be_time_left(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after="0.3")
    assert (await failure(scenario, max_wait=0.2)).retry_after == 0.3
    assert len(scenario.requests) == 1


async def test_a_pause_of_some_seconds_is_left_to_the_worker_who_has_other_work(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after="5")
    error = await failure(scenario, max_wait=EndpointLimits().max_wait, total=60)
    assert error.retry and error.retry_after == 5


async def test_a_pause_may_be_given_as_a_date(server: ModelServer) -> None:
    scenario = server.scenario(
        "rate_limited", retry_after=format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    )
    error = await failure(scenario)
    assert error.retry_after is not None and 90 < error.retry_after <= 100
    assert len(scenario.requests) == 1


async def test_a_pause_longer_than_the_cap_is_left_to_the_caller(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", retry_after="120")
    began = time.monotonic()
    error = await failure(scenario)
    assert (error.retry, error.retry_after) == (True, 120.0)
    assert len(scenario.requests) == 1
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("retry_after", ["soon", "nan", "inf", "-5", ""])
async def test_a_pause_that_makes_no_sense_is_ignored(server: ModelServer, retry_after: str) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after=retry_after)
    assert (await ask(scenario)).text == "You asked: Hello there"


async def test_no_wait_goes_beyond_the_total_time(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", retry_after="0.9")
    began = time.monotonic()
    error = await failure(scenario, total=0.5)
    assert (error.retry, error.retry_after) == (True, 0.9)
    assert time.monotonic() - began < 0.5


async def test_an_exhausted_quota_is_not_tried_again(server: ModelServer) -> None:
    body = b'{"error": {"message": "Quota exceeded", "code": "insufficient_quota"}}'
    scenario = server.scenario("raw", status=429, body=body)
    assert not (await failure(scenario)).retry
    assert len(scenario.requests) == 1


async def test_nobody_listening_is_a_passing_error_that_says_where(server: ModelServer) -> None:
    scenario = Scenario(f"http://127.0.0.1:{free_port()}/v1", "", {})
    error = await failure(scenario)
    assert error.retry
    assert "cannot connect to" in error.reason and "is it running?" in error.reason


async def test_a_server_that_is_slow_to_begin_is_tried_again(server: ModelServer) -> None:
    scenario = server.scenario("slow_first_byte", delay=3, times=1)
    assert (await ask(scenario, read=0.2)).text == "You asked: Hello there"
    assert len(scenario.requests) == 2


async def test_a_server_that_never_begins_is_given_up(server: ModelServer) -> None:
    error = await failure(server.scenario("slow_first_byte", delay=5), read=0.2, retries=1)
    assert error.retry
    assert "no answer began within 0.2 s" in error.reason


async def test_the_total_time_holds_over_all_retries(server: ModelServer) -> None:
    began = time.monotonic()
    error = await failure(server.scenario("slow_first_byte", delay=5), read=0.3, total=0.5, retries=9)
    assert error.retry
    assert "no answer within 0.5 s" in error.reason
    assert time.monotonic() - began < 1.5
