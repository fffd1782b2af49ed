"""Tracing of real processes: one trace across all of them, export over OTLP, failing collectors, tracing off."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.support.servers import Server, free_port
from tests.support.traces import CLIENT_SPAN, TRACE_ID, TRACEPARENT, Collector, ExportedSpan, collecting, one

API, BUILDER, RUNNER = "breadcrumbs-api", "breadcrumbs-context-builder", "breadcrumbs-agent-runner"
AGENT = {
    "agent_id": "calculating-assistant",
    "tools": ["calculator"],
    "subscriptions": {
        "selectors": [{"schema_name": "agent.context.v1", "all_tags": ["consumer:default-chat-assistant"]}]
    },
}
LIMIT = 60.0


class Program:
    """A process of Breadcrumbs."""

    def __init__(self, folder: Path, *command: str, **environment: str) -> None:
        self._log = folder / f"{command[0]}-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "breadcrumbs", *command],
                cwd=folder,
                env={**os.environ, **environment},
                stdout=subprocess.PIPE,
                stderr=log,
            )

    @cached_property
    def ready(self) -> dict[str, Any]:
        """The line that the process prints when it is ready. Processes that start together are ready sooner."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log
        ready: dict[str, Any] = orjson.loads(line)
        return ready

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")

    def stop(self) -> float:
        """End the process and return how long that took."""
        if self.process.poll() is None:
            _ = self.ready  # a signal during the start would end the process in another way
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                assert self.process.wait(LIMIT) == 0, self.log
            finally:
                self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return time.monotonic() - began


@contextmanager
def program(folder: Path, *command: str, **environment: str) -> Iterator[Program]:
    running = Program(folder, *command, **environment)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "calculating.json").write_bytes(orjson.dumps(AGENT))
    return tmp_path


def settings(redis: Server, collector: Collector | None = None, **more: str) -> dict[str, str]:
    traced = {} if collector is None else {
        "CRUMB_TRACING": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }  # fmt: skip
    return (
        {"CRUMB_REDIS": redis.url, "CRUMB_LEASE_SECONDS": "1.5", "CRUMB_LOG_FORMAT": "json"} | traced | more
    )


def ask(url: str, text: str, session: str = "s", **headers: str) -> dict[str, Any]:
    answer = httpx.post(
        f"{url}/sessions/{session}/messages",
        params={"wait": "50"},
        json={"message": text},
        headers=headers,
        timeout=LIMIT,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    answered: dict[str, Any] = answer.json()
    return answered


def is_complete(spans: list[ExportedSpan]) -> bool:
    names = {span.name.split()[0] for span in spans}
    return {"POST", "retrieval", "invoke_agent", "chat", "execute_tool"} <= names


def test_a_turn_of_four_processes_is_one_trace(folder: Path) -> None:
    with collecting() as collector, Server() as redis, ExitStack() as stack:
        given = settings(redis, collector)
        api = stack.enter_context(program(folder, "serve", "--port", str(free_port()), **given))
        stack.enter_context(program(folder, "build-contexts", **given))
        for _ in range(2):
            stack.enter_context(program(folder, "run-agents", "--agents", "agents", **given))
        answer = ask(api.ready["url"], "what is 6 * 7?", traceparent=TRACEPARENT, tracestate="vendor=1")
        assert "42" in answer["answer"]["text"]
        spans = collector.wait_for(is_complete)
    spans = collector.spans
    assert {span.trace_id for span in spans} == {TRACE_ID}
    posted, retrieval = one(spans, "POST /sessions/{id}/messages"), one(spans, "retrieval")
    invoked, executed = one(spans, "invoke_agent"), one(spans, "execute_tool")
    chats = [span for span in spans if span.name.startswith("chat")]
    assert len(spans) == 4 + len(chats) and len(chats) == 2
    assert [(span.service, span.parent_id) for span in (posted, retrieval, invoked, executed, *chats)] == [
        (API, CLIENT_SPAN),
        (BUILDER, posted.span_id),
        (RUNNER, retrieval.span_id),
        (RUNNER, invoked.span_id),
        (RUNNER, invoked.span_id),
        (RUNNER, invoked.span_id),
    ]
    assert all(span.attributes.get("gen_ai.conversation.id", "s") == "s" for span in spans)
    assert not any(span.error or span.links for span in spans)
    shown = repr([span.attributes for span in spans])
    assert "6 * 7" not in shown and "offline model" not in shown, "content is off by default"


def test_a_trace_continues_behind_an_api_that_does_not_trace(folder: Path) -> None:
    with collecting() as collector, Server() as redis, ExitStack() as stack:
        api = stack.enter_context(program(folder, "serve", "--port", str(free_port()), **settings(redis)))
        stack.enter_context(program(folder, "build-contexts", **settings(redis)))
        stack.enter_context(
            program(folder, "run-agents", **settings(redis, collector, OTEL_SERVICE_NAME="mine"))
        )
        ask(api.ready["url"], "hello", traceparent=TRACEPARENT)
        collector.wait_for(lambda spans: any(span.name.startswith("invoke_agent") for span in spans))
    invoked = one(collector.spans, "invoke_agent")
    assert (invoked.trace_id, invoked.parent_id, invoked.service) == (TRACE_ID, CLIENT_SPAN, "mine")


def test_killing_a_runner_loses_no_answer_and_the_trace_continues(folder: Path) -> None:
    slow = {"CRUMB_MODELS": orjson.dumps({"offline_delay": 0.4}).decode()}
    with collecting() as collector, Server() as redis, ExitStack() as stack:
        given = settings(redis, collector)
        api = stack.enter_context(program(folder, "serve", "--port", str(free_port()), **given))
        stack.enter_context(program(folder, "build-contexts", **given))
        first = stack.enter_context(program(folder, "run-agents", **given, **slow))
        url = api.ready["url"]
        posted = httpx.post(
            f"{url}/sessions/s/messages",
            json={"message": "one two three four five six seven eight nine ten"},
            headers={"traceparent": TRACEPARENT},
            trust_env=False,
        ).json()
        id = posted["message"]["id"]
        # The retrieval is exported, so the runner has the context. It needs seconds to write the answer.
        collector.wait_for(lambda spans: any(span.name.startswith("retrieval") for span in spans))
        time.sleep(0.5)
        first.process.kill()
        first.process.wait()
        assert "outcome" not in httpx.get(f"{url}/sessions/s/messages/{id}", trust_env=False).json()
        stack.enter_context(program(folder, "run-agents", **given))
        deadline = time.monotonic() + LIMIT
        while True:
            answers = [
                message
                for message in httpx.get(f"{url}/sessions/s/messages", trust_env=False).json()["messages"]
                if message["role"] == "assistant"
            ]
            if answers:
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        collector.wait_for(lambda spans: any(span.name.startswith("invoke_agent") for span in spans))
    assert len(answers) == 1 and answers[0]["trigger_id"] == id
    invoked = one(collector.spans, "invoke_agent")
    assert (invoked.trace_id, invoked.parent_id) == (TRACE_ID, one(collector.spans, "retrieval").span_id)


@pytest.mark.parametrize("port", ["closed", "silent"])
def test_an_unreachable_collector_delays_neither_a_turn_nor_the_exit(folder: Path, port: str) -> None:
    with socket.socket() as silent, Server() as redis:
        silent.bind(("127.0.0.1", 0))
        if port == "silent":
            silent.listen()  # connections are accepted by the kernel, and nothing answers
        gone = Collector(f"http://127.0.0.1:{silent.getsockname()[1]}")
        more = {"OTEL_EXPORTER_OTLP_TIMEOUT": "2", "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with program(folder, "up", "--port", "0", **settings(redis, gone, **more)) as up:
            began = time.monotonic()
            for number in range(5):
                ask(up.ready["url"], f"message {number}")
                time.sleep(0.6)
            elapsed = time.monotonic() - began
            deadline = time.monotonic() + LIMIT
            while "trace export failed" not in up.log:
                assert time.monotonic() < deadline, up.log
                time.sleep(0.1)
            time.sleep(3)
            assert up.stop() < 20
        lines = [orjson.loads(line) for line in up.log.splitlines() if line.startswith("{")]
    assert elapsed < 5 * 0.6 + 20
    # The Redis server of the test saves nothing, which is a warning of its own.
    reported = [
        line
        for line in lines
        if line["level"] in ("warning", "error") and line["logger"] != "breadcrumbs.store"
    ]
    assert [line["event"] for line in reported] == [
        "trace export failed, spans are lost until it works again"
    ], up.log
    assert "Traceback" not in up.log


LOADED = "print(sorted(name for name in sys.modules if name.startswith('opentelemetry')), file=sys.stderr)"


def test_tracing_is_off_by_default_and_opentelemetry_is_not_imported(folder: Path) -> None:
    # redis-py imports a part of OpenTelemetry if it is installed, for its own metrics.
    alone = subprocess.run(
        [sys.executable, "-c", f"import sys, redis.asyncio\n{LOADED}"], capture_output=True, check=True
    )
    probe = (
        f"import sys, atexit\natexit.register(lambda: {LOADED})\n"
        "from breadcrumbs.cli import main\nsys.argv = ['crumb', 'up', '--port', '0']\nsys.exit(main())\n"
    )
    with Server() as redis:
        running = subprocess.Popen(
            [sys.executable, "-c", probe],
            cwd=folder,
            env={**os.environ, **settings(redis)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert running.stdout is not None
            url = orjson.loads(running.stdout.readline())["url"]
            assert ask(url, "hello", traceparent=TRACEPARENT)["answer"]
            running.send_signal(signal.SIGTERM)
            _, errors = running.communicate(timeout=LIMIT)
        finally:
            running.kill()
            running.wait()
    loaded = errors.decode().strip().splitlines()[-1]
    assert loaded == alone.stderr.decode().strip()
    assert "opentelemetry.sdk.trace" not in loaded and "opentelemetry.exporter" not in loaded


def refused(folder: Path, **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "breadcrumbs", "up", "--port", "0", "--data", "data"],
        cwd=folder,
        env={**os.environ, "CRUMB_TRACING": "true", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ended.returncode != 0 and "Traceback" not in ended.stderr
    return ended.stderr


def test_a_wrong_configuration_is_explained(folder: Path) -> None:
    assert "'nothing' is not installed" in refused(folder, OTEL_TRACES_EXPORTER="nothing")
    assert "use http/protobuf or grpc" in refused(folder, OTEL_EXPORTER_OTLP_PROTOCOL="carrier-pigeon")
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "opentelemetry.py").write_text("raise ModuleNotFoundError(name='opentelemetry')\n")
    assert "pip install 'breadcrumbs[otel]'" in refused(folder, PYTHONPATH=str(hidden))
