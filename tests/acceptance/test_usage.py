"""Usage and budgets of `crumb up`, counted from outside by the model server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from breadcrumbs import AgentFailed, Client
from tests.client.support import CRUMB, CrumbUp

MODEL = "counting:model"


class CountingModel(ThreadingHTTPServer):
    """A model server that gives each request a different number of tokens and names it in the reply."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Reply)
        self.requests = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def next_number(self) -> int:
        with self.lock:
            self.requests += 1
            return self.requests


class _Reply(BaseHTTPRequestHandler):
    server: CountingModel

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        number = self.server.next_number()
        reply = {
            "id": f"r{number}",
            "model": "model",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": f"reply {number}"},
                }
            ],
            "usage": {"prompt_tokens": 1000 + number, "completion_tokens": 1, "total_tokens": 1001 + number},
        }
        body = json.dumps(reply).encode()
        try:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # the worker was killed

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def counting_model() -> Iterator[CountingModel]:
    with CountingModel() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def up_with(folder: Path, model: CountingModel, **settings: str) -> CrumbUp:
    models = {
        "endpoints": {"counting": {"url": model.url, "streaming": False}},
        "prices": {MODEL: [1_000_000, 2_000_000]},
    }
    return CrumbUp(folder, CRUMB_MODEL=MODEL, CRUMB_MODELS=json.dumps(models), **settings)


def usage(client: Client, **params: str) -> dict[str, Any]:
    document: dict[str, Any] = client.request("GET", "/usage", params=params).json()
    return document


def test_usage_is_exact_although_the_server_is_killed(tmp_path: Path) -> None:
    """Each stored answer names its model call, so the expected tokens are known without the counters."""
    with counting_model() as model, up_with(tmp_path, model, CRUMB_LEASE_SECONDS="1") as up:
        answered: list[str] = []
        with Client(up.url, retries=60) as client:
            for round in range(2):
                session = client.session(f"s{round}")
                posted = [session.say(f"message {number}", wait=False).id for number in range(15)]
                assert up.process is not None
                os.killpg(up.process.pid, signal.SIGKILL)
                up.process.wait()
                assert up.process.stdout is not None
                up.process.stdout.close()
                up.start()
                answered += [session.wait(message, timeout=60).text for message in posted]
            counted = usage(client)
            by_agent = usage(client, by="agent")
            sessions = [usage(client, session_id=f"s{round}")["total"] for round in range(2)]
    numbers = [int(re.fullmatch(r"reply (\d+)", text)[1]) for text in answered]  # type: ignore[index]
    assert len(set(numbers)) == 30 and model.requests >= 30
    expected = sum(1000 + number for number in numbers)
    assert (counted["total"]["calls"], counted["total"]["input_tokens"]) == (30, expected)
    assert counted["total"]["cost"] == pytest.approx(expected + 2 * 30)
    assert by_agent["total"] == counted["total"]
    assert sum(total["input_tokens"] for total in sessions) == expected


def test_a_budget_stops_turns_with_an_error_and_without_a_model_call(tmp_path: Path) -> None:
    budgets = json.dumps([{"scope": "user", "period": "day", "tokens": 2000}])
    with (
        counting_model() as model,
        up_with(tmp_path, model, CRUMB_BUDGETS=budgets) as up,
        Client(up.url) as client,
    ):
        session = client.session("s")
        for _ in range(2):
            session.say("hello", tags=["user:ann"])
        with pytest.raises(
            AgentFailed, match=r"budget of this day .* of user 'ann' is used up: 2,005 of 2,000 tokens"
        ):
            session.say("hello", tags=["user:ann"])
        assert model.requests == 2
        assert client.session("t").say("hello", tags=["user:bob"]).text == "reply 3"
        (budget,) = usage(client, user_id="ann")["budgets"]
        assert (budget["used_tokens"], budget["used_up"], budget["source"]) == (2005, True, "settings")
        metrics = client.request("GET", "/metrics", headers={"accept": "text/plain"}).content.decode()
        assert 'breadcrumbs_turns_over_budget_total{scope="user"} 1.0' in metrics
        # A posted budget applies without a restart, and in money.
        client.create("usage.budget.v1", {"scope": "owner", "cost": 1})
        with pytest.raises(AgentFailed, match=r"budget of this owner is used up: cost [\d.e+]+ of 1"):
            for _ in range(60):
                client.session("u").say("hello")
                time.sleep(0.2)
        shown = subprocess.run(
            [CRUMB, "usage", "--by", "user", "--url", up.url], capture_output=True, text=True, check=True
        )
        assert json.loads(shown.stdout)["rows"][0]["user_id"] == "ann"
        # Deleting a session keeps the totals.
        before = usage(client)["total"]
        session.delete()
        assert usage(client)["total"] == before
