"""Keys and URLs of the HTTP model. No error and no log contains a key."""

from __future__ import annotations

import logging

import pytest
import structlog
from pydantic import SecretStr

from breadcrumbs.agents.models.endpoint import Endpoint
from breadcrumbs.runtime.errors import StartupError
from tests.support.model_calls import KEY, ask, failure, model_at
from tests.support.model_server import ModelServer


@pytest.mark.parametrize("key", [KEY, "0123456789abcdef"])
@pytest.mark.parametrize("behaviour", ["unauthorized", "raw"])
async def test_a_key_that_the_server_quotes_is_not_in_the_error(
    server: ModelServer, behaviour: str, key: str
) -> None:
    quoted = f'{{"choices": [], "you_sent": "{key}"}}'.encode()
    error = await failure(server.scenario(behaviour, body=quoted), key=key)
    assert not error.retry
    assert "***" in error.reason
    assert key not in error.reason
    assert error.__cause__ is None


async def test_a_shortened_error_contains_no_part_of_a_key(server: ModelServer) -> None:
    key = "0123456789abcdefghijklmnopqrstuvwxyz"
    for padding in range(300, 400, 9):
        body = f'{{"error": {{"message": "{"-" * padding}{key}"}}}}'.encode()
        error = await failure(server.scenario("raw", status=400, body=body), key=key)
        assert key[:4] not in error.reason


async def test_a_key_that_the_server_quotes_in_part_is_not_in_the_error(server: ModelServer) -> None:
    body = b'{"error": {"message": "Incorrect API key provided: sk-tes****cdef."}}'
    error = await failure(server.scenario("raw", status=401, body=body))
    assert "the key was rejected (401)" in error.reason
    assert "sk-tes" not in error.reason and "cdef" not in error.reason


async def test_a_key_is_not_logged(server: ModelServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    scenario = server.scenario(
        "error_in_200", times=1, error={"message": f"{KEY} is overloaded", "code": 503}
    )
    with structlog.testing.capture_logs() as entries:
        await ask(scenario)
    assert [entry["event"] for entry in entries] == ["model call failed, retrying"]
    assert KEY not in repr(entries) + caplog.text
    async with model_at(scenario) as model:
        assert KEY not in repr(model) + repr(model.endpoint) + repr(vars(model.endpoint))


@pytest.mark.parametrize("key", ["with space", "line\nbreak", "ümlaut-key"])
def test_an_invalid_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(StartupError) as caught:
        Endpoint("http://127.0.0.1:1/v1", key=SecretStr(key))
    assert key not in str(caught.value)


async def test_whitespace_around_a_key_is_removed(server: ModelServer) -> None:
    scenario = server.scenario("normal")
    await ask(scenario, key=f" {KEY}\n")
    assert scenario.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "url",
    ["ftp://host/v1", "file:///etc/passwd", "host/v1", "", "http://", "https://user:secret@host/v1",
     "http://host:99999/v1", "http://host/v1?key=secret"],
)  # fmt: skip
def test_an_endpoint_accepts_only_http_urls_without_secrets(url: str) -> None:
    with pytest.raises(StartupError) as caught:
        Endpoint(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://h/v1/", "http://h/v1/chat/completions", " http://h/v1 "])
def test_a_pasted_url_is_normalized(url: str) -> None:
    assert Endpoint(url).url == "http://h/v1"
