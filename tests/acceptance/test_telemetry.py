"""Metrics and log lines of real turns: answered, retried, failed, and with a waiting client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import httpx
import orjson
import pytest

from breadcrumbs.runtime.store.opening import DEFAULT_LANES
from tests.support.commands import ask
from tests.support.logs import LoggedProcess, Samples, logged, scrape, until, value
from tests.support.model_server import ModelServer

AGENT = "default-chat-assistant"
PRIVATE = "my blood type is zero negative"


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@contextmanager
def started(folder: Path, model: str, **extra: str) -> Iterator[LoggedProcess]:
    with logged(folder, "up", "--port", "0", "--data", "data", CRUMB_MODEL=model, **extra) as up:
        yield up


def turns(samples: Samples, what: str) -> float:
    return value(samples, f"breadcrumbs_turns_{what}_total", kind="agents", agent=AGENT, model="big")


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_an_answered_turn_is_one_line_and_shows_in_the_metrics(
    models: ModelServer, tmp_path: Path, log_format: str
) -> None:
    slow = models.scenario("slow_first_byte", delay=1.5)
    with started(tmp_path, f"{slow.url}#big", CRUMB_LOG_FORMAT=log_format) as up:
        url = up.ready["url"]
        asked = ask(url, PRIVATE, session="s-1")
        samples = scrape(url)
        assert turns(samples, "started") == turns(samples, "answered") == 1
        assert turns(samples, "failed") == turns(samples, "retried") == 0
        assert value(samples, "breadcrumbs_turns_answered_total", kind="contexts", agent=AGENT) == 1
        assert 1.5 < value(samples, "breadcrumbs_turn_duration_seconds_sum", kind="agents") < 30
        assert value(samples, "breadcrumbs_turn_queue_seconds_count", kind="agents") >= 1
        assert 1.5 < value(samples, "breadcrumbs_turn_first_token_seconds_sum", model="big") < 30
        assert value(samples, "breadcrumbs_model_tokens_total", model="big", type="input") == 12
        assert value(samples, "breadcrumbs_model_tokens_total", model="big", type="output") == 7
        assert value(samples, "breadcrumbs_model_calls_total", model="big") == 1
        assert value(samples, "breadcrumbs_leases_held", kind="agents") == DEFAULT_LANES
        assert value(samples, "breadcrumbs_workers", kind="agents") == 1
        assert value(samples, "breadcrumbs_event_backlog") >= 3
        assert value(samples, "breadcrumbs_store_call_duration_seconds_count") > 10
        assert value(samples, "breadcrumbs_cache_hits_total", cache="context_configs") > 0
        assert value(samples, "breadcrumbs_cache_misses_total", cache="context_configs") > 0
        # The client waited for the model, and the server did not work in that time.
        route = {"route": "/sessions/{id}/messages", "method": "POST"}
        assert value(samples, "breadcrumbs_http_requests_total", **route) == 1
        assert value(samples, "breadcrumbs_http_request_seconds_sum", **route) < 1.0

        expected = {
            "kind": "agents", "session": "s-1", "agent": AGENT, "model": "big", "attempt": "1", "model_calls": "1",
            "input_tokens": "12", "output_tokens": "7", "message_id": asked["message"]["id"],
        }  # fmt: skip
        until(lambda: up.text.count("turn answered") == 1, lambda: up.text)
        (line,) = [line for line in up.text.splitlines() if "turn answered" in line]
        if log_format == "json":
            fields = {name: str(given) for name, given in orjson.loads(line).items()}
            assert fields["level"] == "info"
        else:
            fields = dict(re.findall(r"(\w+)=(\S+)", line))
        assert expected.items() <= fields.items()
        assert {"owner", "queue_ms", "duration_ms", "first_token_ms"} <= fields.keys()
        assert 1500 < float(fields["duration_ms"]) < 30_000
        assert UUID(fields["owner"])
    assert "blood" not in up.text


def test_a_retried_turn_is_counted_and_logged_with_its_agent(models: ModelServer, tmp_path: Path) -> None:
    breaks_once = models.scenario("half_closed", times=1)
    with started(tmp_path, f"{breaks_once.url}#big") as up:
        ask(up.ready["url"], PRIVATE, session="s-2")
        samples = scrape(up.ready["url"])
        assert turns(samples, "started") == turns(samples, "retried") == turns(samples, "answered") == 1
        assert turns(samples, "failed") == 0
        assert value(samples, "breadcrumbs_turn_attempts_total", kind="agents", result="retry") == 1
        assert value(samples, "breadcrumbs_model_calls_total", model="big") == 2
        assert value(samples, "breadcrumbs_model_call_failures_total", model="big") == 1
        (retry,) = up.wait_for("turn failed, retrying")
        assert (retry["session"], retry["agent"], retry["attempt"]) == ("s-2", AGENT, 1)
        assert "connection ended" in retry["reason"] and retry["wait"] == 0.5
        (answered,) = up.wait_for("turn answered")
        assert answered["attempt"] == 2 and answered["duration_ms"] > 500
    assert "blood" not in up.text


def test_a_failed_turn_names_session_and_agent_and_hides_what_the_provider_quotes(
    models: ModelServer, tmp_path: Path
) -> None:
    error = {
        "error": {"message": f"Invalid content {PRIVATE!r} in your request", "type": "invalid_request_error"}
    }
    refusing = models.scenario("raw", status=400, body=orjson.dumps(error))
    with started(tmp_path, f"{refusing.url}#big") as up:
        url = up.ready["url"]
        answer = ask(url, PRIVATE, session="s-3")
        assert "blood" in answer["error"]["text"]  # the session has the whole reason
        (failed,) = up.wait_for("turn failed")
        assert (failed["session"], failed["agent"], failed["model"]) == ("s-3", AGENT, "big")
        assert failed["level"] == "warning" and "Invalid content" in failed["reason"]
        samples = scrape(url)
        assert turns(samples, "started") == turns(samples, "failed") == 1
        assert turns(samples, "answered") == 0
        assert value(samples, "breadcrumbs_dead_letters_stored_total", kind="agents") == 1
        assert value(samples, "breadcrumbs_dead_letters", kind="agents") == 1
        httpx.post(f"{url}/breadcrumbs", headers={"origin": "https://elsewhere.example"}, trust_env=False)
        (refused,) = up.wait_for("origin refused")
        assert refused["origin"] == "https://elsewhere.example"
    assert "blood" not in up.text


def test_a_config_reload_names_what_changed_and_an_override_names_its_breadcrumb(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    config = orjson.loads((root / "config" / "context-builder-config.json").read_bytes())
    entries = config if isinstance(config, list) else [config]
    file = tmp_path / "context.json"
    file.write_bytes(orjson.dumps(entries))
    with started(tmp_path, "offline", CRUMB_CONTEXT_CONFIG=str(file)) as up:
        url, consumer = up.ready["url"], entries[0]["consumer_id"]
        formatting = entries[0].setdefault("formatting", {})
        formatting["max_tokens"] = formatting.get("max_tokens", 8000) - 1000
        file.write_bytes(orjson.dumps(entries))
        (reloaded,) = up.wait_for("context config reloaded")
        assert reloaded["changed"] == {consumer: ["formatting.max_tokens"]}
        assert reloaded["file"] == str(file) and "added" not in reloaded
        posted = httpx.post(
            f"{url}/breadcrumbs",
            json={"schema_name": "context.config.v1", "title": "mine", "tags": [], "context": entries[0]},
            trust_env=False,
        )
        assert posted.status_code == 201, posted.text
        ask(url, "hello")
        (overridden,) = up.wait_for("context config of the file overridden")
        assert (overridden["consumer"], overridden["breadcrumb"]) == (consumer, posted.json()["id"])
        ask(url, "hello again")
        assert len(up.lines("context config of the file overridden")) == 1
