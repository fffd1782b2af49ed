"""The services of `deploy/compose/compose.yaml` as plain processes, with the files of `deploy/`.

Redis has the config and the users of the compose file, Caddy has the Caddyfile, and Prometheus has the alert rules.
Only addresses, ports and paths differ.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.servers import Server, free_port, redis_binary
from tests.unit.project.test_monitoring_files import PANELS, RULES

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text("utf-8"))["services"]
PATIENCE = 100.0
"""Seconds after which something has failed, and is not just slow."""
PROGRAMS = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"

pytestmark = [
    pytest.mark.skipif(shutil.which("caddy", path=PROGRAMS) is None, reason="caddy is not installed"),
    pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed"),
]


def until(condition: Callable[[], bool], complaint: Callable[[], str] | str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(complaint if isinstance(complaint, str) else complaint())
        time.sleep(0.1)


@dataclass
class Installation:
    """All processes, and a client that reaches them through the proxy."""

    folder: Path
    key: str
    https_port: int
    api_port: int
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    starts: dict[str, tuple[list[str], dict[str, str]]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.https_port}"

    def client(self) -> httpx.Client:
        """Return a client that trusts only the authority of Caddy."""
        root = self.folder / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        trust = ssl.create_default_context(cafile=str(root))
        return httpx.Client(
            base_url=self.url, verify=trust, headers={"x-api-key": self.key}, trust_env=False, timeout=60
        )

    def run(self, name: str, command: list[str], **environment: str) -> None:
        self.starts[name] = (command, environment)
        self.start(name)

    def start(self, name: str) -> None:
        command, environment = self.starts[name]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("CRUMB_")}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder, env=inherited | environment, stdout=log, stderr=log
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8")

    def answers(self, url: str) -> bool:
        try:
            return httpx.get(url, trust_env=False, timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def wait_ready(self, name: str) -> None:
        url = f"http://127.0.0.1:{self.ports[name]}/ready"
        until(lambda: self.answers(url), lambda: f"{name} is not ready:\n{self.log(name)}")

    def terminate(self, name: str) -> float:
        """Send SIGTERM and return the seconds until the process has ended with 0."""
        process = self.processes.pop(name)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, self.log(name)
        return time.monotonic() - began

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def make_secrets(folder: Path) -> str:
    """Create the secrets of the compose file and return the API key."""
    shutil.copy(DEPLOY / "compose" / "make-secrets.sh", folder)
    made = subprocess.run(
        ["sh", str(folder / "make-secrets.sh")], capture_output=True, text=True, check=True, timeout=60
    )
    key = re.search(r"API key.*:\s+(\w+)", made.stdout)
    assert key is not None
    return key[1]


def start_redis(stack: ExitStack, folder: Path) -> Server:
    """Start Redis with the config and the users of the compose file."""
    lines = (DEPLOY / "compose" / "redis.conf").read_text("utf-8").splitlines()
    options = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    options |= {"dir": str(folder), "aclfile": str(folder / "secrets" / "redis-users")}
    options |= {"bind": "127.0.0.1"}
    server = Server(
        binary=redis_binary(), options={name: value.strip('"') for name, value in options.items()}
    )
    server.launch()
    stack.callback(server.stop)
    return server


def start_crumb(installed: Installation, service: str, name: str, redis: Server) -> None:
    """Start a service with its command and its variables, on a free port."""
    definition = SERVICES[service]
    settings = installed.folder / "secrets" / "crumb.toml"
    port = installed.ports[name] = installed.api_port if service == "api" else free_port()
    replaced = {"0.0.0.0": "127.0.0.1", "/run/secrets/crumb.toml": str(settings), "9101": str(port)}
    command = [replaced.get(argument, argument) for argument in definition["command"]]
    environment = {
        key: replaced.get(value, value).replace("/etc/breadcrumbs", str(ROOT / "config"))
        for key, value in definition.get("environment", {}).items()
    }
    if service == "api":
        command += ["--port", str(port)]
    environment |= {"CRUMB_DATA": str(installed.folder / "data"), "CRUMB_PING_INTERVAL": "1s"}
    installed.run(name, [sys.executable, "-m", "breadcrumbs", *command], **environment)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("installed")
    installed = Installation(folder, make_secrets(folder), https_port=free_port(), api_port=free_port())
    with ExitStack() as stack:
        redis = start_redis(stack, folder)
        stack.callback(installed.end)
        settings = folder / "secrets" / "crumb.toml"
        settings.write_text(settings.read_text().replace("@redis:6379", f"@127.0.0.1:{redis.port}"))
        start_crumb(installed, "api", "api", redis)
        installed.wait_ready("api")
        start_crumb(installed, "context-builder", "builder", redis)
        for number in range(2):
            start_crumb(installed, "agent-runner", f"runner-{number}", redis)
        program = shutil.which("caddy", path=PROGRAMS)
        assert program is not None
        installed.run(
            "proxy",
            [program, "run", "--config", str(DEPLOY / "Caddyfile"), "--adapter", "caddyfile"],
            BREADCRUMBS_SITE="localhost",
            BREADCRUMBS_TLS="internal",
            BREADCRUMBS_UPSTREAM=f"127.0.0.1:{installed.api_port}",
            BREADCRUMBS_ADMIN=f"127.0.0.1:{free_port()}",
            BREADCRUMBS_GLOBAL=f"default_bind 127.0.0.1\nhttp_port {free_port()}\n"
            f"https_port {installed.https_port}",
            XDG_DATA_HOME=str(folder),
            XDG_CONFIG_HOME=str(folder),
        )
        for name in ("builder", "runner-0", "runner-1"):
            installed.wait_ready(name)
        until(lambda: proxy_answers(installed), lambda: installed.log("proxy"))
        yield installed


def proxy_answers(installed: Installation) -> bool:
    try:
        with installed.client() as client:
            return client.get("/workers").status_code == 200
    except (httpx.HTTPError, OSError):
        return False


def ask(client: httpx.Client, session: str, text: str) -> str:
    reply = client.post(f"/sessions/{session}/messages", params={"wait": "30"}, json={"message": text})
    assert reply.status_code == 200, reply.text
    return json.dumps(reply.json()["answers"] if "answers" in reply.json() else reply.json())


def test_a_turn_works_through_the_proxy(installed: Installation) -> None:
    with installed.client() as client:
        assert "Hello through TLS" in ask(client, "first", "Hello through TLS")
        reply = client.get("/breadcrumbs")
        assert reply.headers["strict-transport-security"] == "max-age=31536000"


def test_the_proxy_hides_paths_without_a_token_and_the_api_requires_a_key(installed: Installation) -> None:
    with installed.client() as client:
        for path in ("/metrics", "/health", "/ready"):
            assert client.get(path).status_code == 404, path
        del client.headers["x-api-key"]
        assert client.get("/breadcrumbs").status_code == 401


def test_the_log_of_the_proxy_contains_no_credentials(installed: Installation) -> None:
    with installed.client() as client:
        client.get("/breadcrumbs", params={"token": "a-secret-token", "access_token": "another-secret"})
    until(lambda: "REDACTED" in installed.log("proxy"), lambda: installed.log("proxy"))
    log = installed.log("proxy")
    assert "/breadcrumbs" in log
    assert not re.search(f"a-secret-token|another-secret|{installed.key}", log)


def test_streams_are_not_buffered(installed: Installation) -> None:
    """Pings arrive one by one, and an event arrives while the stream is open."""
    with installed.client() as client, client.stream("GET", "/events/stream") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        arrived: list[tuple[float, str]] = []

        def read() -> None:
            for line in stream.iter_lines():
                arrived.append((time.monotonic(), line))
                if "streamed at once" in line:
                    return

        reader = threading.Thread(target=read)
        reader.start()
        until(lambda: sum("ping" in line for _, line in arrived) >= 3, "no pings arrive")
        pings = [moment for moment, line in arrived if "ping" in line]
        assert pings[-1] - pings[0] > 0.5, "the pings arrived together"
        with installed.client() as other:
            other.post(
                "/breadcrumbs",
                json={
                    "schema_name": "note.v1",
                    "title": "streamed at once",
                    "tags": ["session:stream"],
                    "context": {},
                },
            ).raise_for_status()
        # The reader ends before the stream is closed, or it would read from a descriptor that has been reused.
        reader.join(PATIENCE)
        assert not reader.is_alive(), [line for _, line in arrived][-20:]


def test_a_runner_drains_on_sigterm_and_no_message_is_lost(installed: Installation) -> None:
    failures: list[str] = []

    def talk(session: str) -> None:
        with installed.client() as client:
            for number in range(5):
                text = f"message {number} of {session}"
                try:
                    if text not in ask(client, session, text):
                        failures.append(text)
                except (AssertionError, httpx.HTTPError) as error:
                    failures.append(f"{text}: {error}")

    threads = [threading.Thread(target=talk, args=(f"drain-{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    grace = float(SERVICES["agent-runner"]["stop_grace_period"].removesuffix("s"))
    assert installed.terminate("runner-0") < grace
    for thread in threads:
        thread.join(PATIENCE)
    assert failures == []
    with installed.client() as client:
        for number in range(6):
            found = client.get(
                "/breadcrumbs", params={"session_id": f"drain-{number}", "schema_name": "agent.response.v1"}
            )
            assert len(found.json()) == 5
    installed.start("runner-0")
    installed.wait_ready("runner-0")


def test_requests_wait_in_the_proxy_while_the_api_restarts(installed: Installation) -> None:
    grace = float(SERVICES["api"]["stop_grace_period"].removesuffix("s"))
    assert installed.terminate("api") < grace
    statuses: list[int] = []

    def request() -> None:
        with installed.client() as client:
            statuses.append(client.get("/breadcrumbs").status_code)

    thread = threading.Thread(target=request)
    thread.start()
    installed.start("api")
    thread.join(PATIENCE)
    # A loaded machine can need more than the ten seconds for which the proxy waits.
    assert statuses in ([200], [502], [503])
    installed.wait_ready("api")
    with installed.client() as client:
        until(lambda: client.get("/breadcrumbs").status_code == 200, lambda: installed.log("proxy"))


def families(installed: Installation, name: str) -> set[str]:
    text = httpx.get(f"http://127.0.0.1:{installed.ports[name]}/metrics", trust_env=False).text
    return set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))


def test_the_processes_serve_every_metric_of_the_rules_and_the_dashboard(installed: Installation) -> None:
    served = families(installed, "api") | families(installed, "builder") | families(installed, "runner-1")
    expressions = [rule["expr"] for rule in RULES]
    expressions += [target["expr"] for panel in PANELS for target in panel["targets"]]
    used = {name for text in expressions for name in re.findall(r"breadcrumbs_\w+", text)}
    assert len(used) > 20
    missing = {name for name in used if not {name, re.sub(r"_(bucket|count|sum)$", "", name)} & served}
    assert missing == set()


def test_prometheus_scrapes_all_processes_and_evaluates_all_rules(installed: Installation) -> None:
    program = shutil.which("prometheus", path=PROGRAMS)
    if program is None:
        pytest.skip("prometheus is not installed")
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.yml").read_text("utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "monitoring" / name) for name in config["rule_files"]]
    names = {"api": ["api"], "context-builder": ["builder"], "agent-runner": ["runner-0", "runner-1"]}
    jobs = []
    for job in config["scrape_configs"]:
        for found in job.pop("dns_sd_configs", ()):
            processes = names[found["names"][0]]
            targets = [f"127.0.0.1:{installed.ports[name]}" for name in processes]
            jobs.append(job | {"static_configs": [{"targets": targets}]})
    config["scrape_configs"] = jobs
    (installed.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    address = f"127.0.0.1:{port}"
    installed.run(
        "prometheus",
        [
            program,
            f"--config.file={installed.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={installed.folder / 'tsdb'}",
            f"--web.listen-address={address}",
        ],
    )

    def query(path: str) -> Any:
        return httpx.get(f"http://{address}/api/v1/{path}", trust_env=False, timeout=10).json()["data"]

    until(lambda: installed.answers(f"http://{address}/-/ready"), lambda: installed.log("prometheus"))

    def all_up() -> bool:
        return [target["health"] for target in query("targets")["activeTargets"]] == ["up"] * 4

    until(all_up, lambda: json.dumps(query("targets")))

    def rules() -> list[dict[str, Any]]:
        return [rule for group in query("rules")["groups"] for rule in group["rules"]]

    until(lambda: all(rule["health"] == "ok" for rule in rules()), lambda: json.dumps(rules()))
    assert {rule["name"] for rule in rules()} == {rule["alert"] for rule in RULES}

    def healthy() -> bool:
        return all(rule["state"] == "inactive" for rule in rules())

    # Before the first scrape, and while the workers share their lanes again, alerts are pending for a moment.
    until(healthy, lambda: json.dumps([rule for rule in rules() if rule["state"] != "inactive"]))
    installed.terminate("builder")

    def notices() -> bool:
        (rule,) = (rule for rule in rules() if rule["name"] == "BreadcrumbsNoWorker")
        return bool(rule["state"] == "pending" and rule["alerts"][0]["labels"]["kind"] == "contexts")

    until(notices, lambda: json.dumps(rules()))
    installed.terminate("prometheus")
