"""Retries of the HTTP model after temporary failures: delays, limits and timeouts."""

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
async def test_a_temporary_failure_is_retried(
    server: ModelServer, behaviour: str, options: dict[str, Any]
) -> None:
    scenario = server.scenario(behaviour, times=2, **options)
    assert (await ask(scenario)).text == "You asked: Hello there"
    assert len(scenario.requests) == 3


async def test_the_number_of_retries_is_limited(server: ModelServer) -> None:
    scenario = server.scenario("failing", status=503)
    error = await failure(scenario)
    assert error.retry
    assert "the provider failed (503): The server had an error" in error.reason
    assert len(scenario.requests) == 3


async def test_a_retry_waits_as_long_as_the_server_requests(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after="0.4")
    await ask(scenario)
    first, second = scenario.requests
    assert second.at - first.at >= 0.4


async def test_a_pause_above_the_cap_is_not_waited_for_even_with_time_left(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after="0.3")
    assert (await failure(scenario, max_wait=0.2)).retry_after == 0.3
    assert len(scenario.requests) == 1


async def test_a_pause_of_some_seconds_is_left_to_the_worker(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after="5")
    error = await failure(scenario, max_wait=EndpointLimits().max_wait, total=60)
    assert error.retry and error.retry_after == 5


async def test_a_pause_can_be_given_as_a_date(server: ModelServer) -> None:
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
async def test_an_invalid_pause_is_ignored(server: ModelServer, retry_after: str) -> None:
    scenario = server.scenario("rate_limited", times=1, retry_after=retry_after)
    assert (await ask(scenario)).text == "You asked: Hello there"


async def test_a_pause_beyond_the_total_timeout_is_left_to_the_caller(server: ModelServer) -> None:
    scenario = server.scenario("rate_limited", retry_after="0.9")
    began = time.monotonic()
    error = await failure(scenario, total=0.5)
    assert (error.retry, error.retry_after) == (True, 0.9)
    assert time.monotonic() - began < 0.5


async def test_an_exhausted_quota_is_not_retried(server: ModelServer) -> None:
    body = b'{"error": {"message": "Quota exceeded", "code": "insufficient_quota"}}'
    scenario = server.scenario("raw", status=429, body=body)
    assert not (await failure(scenario)).retry
    assert len(scenario.requests) == 1


async def test_a_refused_connection_is_a_retryable_error_with_the_address(server: ModelServer) -> None:
    scenario = Scenario(f"http://127.0.0.1:{free_port()}/v1", "", {})
    error = await failure(scenario)
    assert error.retry
    assert "cannot connect to" in error.reason and "is it running?" in error.reason


async def test_a_call_without_a_first_byte_in_time_is_retried(server: ModelServer) -> None:
    scenario = server.scenario("slow_first_byte", delay=3, times=1)
    assert (await ask(scenario, read=0.2)).text == "You asked: Hello there"
    assert len(scenario.requests) == 2


async def test_a_server_that_never_sends_a_first_byte_is_an_error(server: ModelServer) -> None:
    error = await failure(server.scenario("slow_first_byte", delay=5), read=0.2, retries=1)
    assert error.retry
    assert "no data within 0.2 s" in error.reason


async def test_the_total_timeout_includes_all_retries(server: ModelServer) -> None:
    began = time.monotonic()
    error = await failure(server.scenario("slow_first_byte", delay=9), read=0.3, total=1.0, retries=99)
    assert error.retry
    # On a busy machine, the time can run out between two retries. Then the reason is that of the last one.
    assert "no answer within 1 s" in error.reason or "no data within 0.3 s" in error.reason
    assert time.monotonic() - began < 5
