"""Each finding of `crumb doctor`, provoked on real servers and processes, and a healthy system without findings."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from breadcrumbs.cli.app import app
from breadcrumbs.runtime.maintenance.check_catalogue import CHECKS
from tests.acceptance.test_cli import CRUMB, LIMIT, Up, environment, on_a_terminal
from tests.support.model_server import ModelServer
from tests.support.servers import Server, free_port

LEASE = "3"
DEADLINE = 60.0


class Report:
    """Result of one run of the command."""

    def __init__(self, exit_code: int, document: dict[str, Any]) -> None:
        self.exit_code = exit_code
        self.document = document

    def find(self, id: str, subject: str = "") -> dict[str, Any]:
        found: list[dict[str, Any]] = [
            one for one in self.document["findings"] if (one["id"], one.get("subject", "")) == (id, subject)
        ]
        assert len(found) == 1, (id, subject, self.document)
        first: dict[str, Any] = found[0]
        return first

    @property
    def problems(self) -> dict[str, str]:
        """Status by id of everything that is not all right."""
        return {
            one["id"]: one["status"]
            for one in self.document["findings"]
            if one["status"] not in ("ok", "skipped")
        }


def run_doctor(folder: Path, *arguments: str, **extra: str) -> Report:
    ours = {name: None for name in os.environ if name.upper().startswith("CRUMB_")}
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, ["doctor", "--json", *arguments], env={**ours, **extra})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.stdout, done.stderr
    return Report(done.exit_code, json.loads(done.stdout))


class Installation:
    """A Redis server, an API, a context builder and an agent runner, each in its own process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.redis = Server(appendonly_dir=folder, options={"appendonly": "yes"})
        self.redis.start()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.api = Up("--redis", self.redis.url, command="serve", cwd=folder)
        for command in ("build-contexts", "run-agents"):
            self.start(command)
        self.wait_for(0)

    def start(self, command: str) -> None:
        with (self.folder / f"{command}.log").open("ab") as log:
            self._running[command] = subprocess.Popen(
                [CRUMB, command, "--redis", self.redis.url],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment(CRUMB_LEASE_SECONDS=LEASE),
            )

    def signal(self, command: str, sig: signal.Signals) -> None:
        self._running[command].send_signal(sig)
        if sig == signal.SIGKILL:
            self._running[command].wait(LIMIT)

    def doctor(self, *arguments: str, **extra: str) -> Report:
        """Run the command with access to the store."""
        return run_doctor(self.folder, "--redis", self.redis.url, *arguments, CRUMB_URL=self.api.url, **extra)

    def ask(self, *arguments: str) -> Report:
        """Let the API make the checks."""
        return run_doctor(self.folder, "--url", self.api.url, *arguments)

    def wait_for(self, exit_code: int, *arguments: str, remote: bool = False) -> Report:
        deadline = time.monotonic() + DEADLINE
        while True:
            report = self.ask(*arguments) if remote else self.doctor(*arguments)
            if report.exit_code == exit_code:
                return report
            assert time.monotonic() < deadline, report.document
            time.sleep(0.3)

    @contextlib.contextmanager
    def configured(self, **settings: str) -> Iterator[None]:
        """Change settings of the Redis server, and restore them."""
        names = [name.replace("_", "-") for name in settings]
        before = {name: self.redis.command("CONFIG", "GET", name) for name in names}
        try:
            for name, value in settings.items():
                self.redis.command("CONFIG", "SET", name.replace("_", "-"), value)
            yield
        finally:
            for name, reply in before.items():
                value = reply[name] if isinstance(reply, dict) else reply[1]
                self.redis.command("CONFIG", "SET", name, value)

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait(LIMIT)
        self.api.__exit__()
        self.redis.stop()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("installation"))
    try:
        yield installation
    finally:
        installation.stop()


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


# A healthy system


def test_a_healthy_system_has_no_findings_in_both_modes(system: Installation) -> None:
    direct, remote = system.wait_for(0), system.wait_for(0, remote=True)
    for report in (direct, remote):
        assert report.document["ok"] is True and report.problems == {}
        assert {one["id"] for one in report.document["findings"]} <= set(CHECKS)
        assert report.find("workers", "agents")["status"] == "ok"
        assert report.find("versions")["status"] == report.find("worker-clocks")["status"] == "ok"
    assert remote.document["server"]["url"] == system.api.url
    names = direct.find("versions")["details"]["versions"]
    (processes,) = names.values()
    assert len(processes) == 4  # this program, the API and two workers


# Workers


def test_a_killed_runner_is_an_error_until_another_one_runs(system: Installation) -> None:
    system.signal("run-agents", signal.SIGKILL)
    try:
        report = system.wait_for(2)
        assert report.problems["workers"] == "error"
        finding = report.find("workers", "agents")
        assert "no agent runner is running" in finding["message"] and "crumb run-agents" in finding["advice"]
        assert report.find("workers", "contexts")["status"] == "ok"
        remote = system.wait_for(2, remote=True).find("workers", "agents")
        assert remote == finding
    finally:
        system.start("run-agents")
    system.wait_for(0)


def test_a_frozen_runner_is_an_error_and_its_lag_grows(system: Installation) -> None:
    system.signal("run-agents", signal.SIGSTOP)
    try:
        assert system.wait_for(2).find("workers", "agents")["details"]["lost"]
        with httpx.Client(base_url=system.api.url, trust_env=False, timeout=LIMIT) as api:
            assert api.post("/sessions/frozen/messages", json={"message": "Hello"}).status_code == 201
        report = system.wait_for(1, "--only", "lag", "--lag-warning", "0.5", "--lag-error", "3600")
        lag = report.find("lag", "agents")
        assert (
            lag["status"] == "warning" and lag["details"]["seconds"] >= 0.5 and lag["details"]["events"] >= 1
        )
        assert "crumb run-agents" in lag["advice"]
        assert system.wait_for(2, "--only", "lag", "--lag-warning", "0.1", "--lag-error", "0.5")
        assert system.doctor("--only", "lag").exit_code == 0, "the default is a minute"
    finally:
        system.signal("run-agents", signal.SIGCONT)
    system.wait_for(0)


def test_a_store_without_workers_gets_a_warning(tmp_path: Path) -> None:
    with (
        Server(appendonly_dir=tmp_path) as redis,
        Up("--redis", redis.url, command="serve", cwd=tmp_path) as api,
    ):
        report = run_doctor(tmp_path, "--redis", redis.url, CRUMB_URL=api.url)
        assert (report.exit_code, report.problems) == (1, {"workers": "warning"})
        assert "none ever ran" in report.find("workers", "contexts")["message"]
        skipped = run_doctor(tmp_path, "--redis", redis.url, "--skip", "workers", CRUMB_URL=api.url)
        assert skipped.exit_code == 0


# The Redis server


def test_eviction_is_an_error_with_a_limit_and_a_warning_without(system: Installation) -> None:
    with system.configured(maxmemory_policy="allkeys-lru"):
        report = system.doctor()
        assert (report.exit_code, report.problems) == (1, {"eviction": "warning"})
        with system.configured(maxmemory="500mb"):
            report = system.doctor()
            assert (report.exit_code, report.problems) == (2, {"eviction": "error"})
            assert "noeviction" in report.find("eviction")["advice"]
            assert system.wait_for(2, remote=True).problems == {"eviction": "error"}
    assert system.doctor().exit_code == 0


def test_a_server_that_saves_nothing_is_an_error_and_snapshots_alone_a_warning(system: Installation) -> None:
    with system.configured(appendonly="no", save=""):
        report = system.doctor()
        assert (report.exit_code, report.problems) == (2, {"persistence": "error"})
        assert "appendonly yes" in report.find("persistence")["advice"]
        with system.configured(save="3600 1"):
            report = system.doctor()
            assert (report.exit_code, report.problems) == (1, {"persistence": "warning"})
            assert "snapshot" in report.find("persistence")["message"]
    system.wait_for(0)


def test_a_failed_snapshot_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    # Without `stop-writes-on-bgsave-error no`, the store could not be created.
    options = {"dir": str(folder), "save": "3600 1", "stop-writes-on-bgsave-error": "no"}
    with Server(options=options) as redis, Up("--redis", redis.url, command="serve", cwd=tmp_path) as api:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        redis.command("BGSAVE")
        deadline = time.monotonic() + DEADLINE
        while redis.command("INFO", "persistence")["rdb_last_bgsave_status"] == "ok":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        report = run_doctor(tmp_path, "--redis", redis.url, "--only", "persistence", CRUMB_URL=api.url)
        assert report.exit_code == 2
        assert "rdb_last_bgsave_status" in report.find("persistence")["message"]


@pytest.mark.parametrize(
    ("part", "status", "code"), [(0.7, "ok", 0), (0.87, "warning", 1), (0.98, "error", 2)]
)
def test_memory_near_its_limit_is_reported(system: Installation, part: float, status: str, code: int) -> None:
    used = system.redis.command("INFO", "memory")["used_memory"]
    with system.configured(maxmemory=str(int(used / part))):
        report = system.doctor("--only", "memory")
    assert (report.find("memory")["status"], report.exit_code) == (status, code)


def test_a_replica_is_an_error(system: Installation, tmp_path: Path) -> None:
    with Server() as replica:
        replica.command("REPLICAOF", system.redis.host, system.redis.port)
        deadline = time.monotonic() + DEADLINE
        while replica.command("INFO", "replication")["master_link_status"] != "up":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        report = run_doctor(tmp_path, "--redis", replica.url, "--only", "replica", CRUMB_URL=system.api.url)
        finding = report.find("replica")
        assert (report.exit_code, finding["status"]) == (2, "error")
        assert finding["details"]["primary"] == f"{system.redis.host}:{system.redis.port}"
        assert "address of the primary" in finding["advice"]


def test_a_server_that_does_not_allow_info_is_unknown(system: Installation) -> None:
    rights = ("on", ">a-password", "~*", "&*", "+@all", "-info", "-config")
    system.redis.command("ACL", "SETUSER", "limited", *rights)
    url = system.redis.url.replace("redis://", "redis://limited:a-password@")
    report = run_doctor(
        system.folder, "--redis", url, "--only", "memory,persistence", CRUMB_URL=system.api.url
    )
    assert (report.exit_code, report.problems) == (3, {"memory": "unknown", "persistence": "unknown"})
    assert "--skip memory" in report.find("memory")["advice"]


# A server that cannot be reached


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """Accept connections and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept: list[socket.socket] = []
        ended = threading.Event()

        def accept() -> None:
            listener.settimeout(0.1)
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    kept.append(listener.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            thread.join(LIMIT)
            for connection in kept:
                connection.close()


def unreachable(folder: Path, redis: str) -> dict[str, Any]:
    report = run_doctor(folder, "--redis", redis, "--no-models", CRUMB_URL="http://127.0.0.1:1")
    assert report.exit_code == 2
    finding = report.find("store")
    assert finding["status"] == "error" and finding["advice"]
    return finding


def test_an_unreachable_server_is_reported_with_the_likely_reason(
    system: Installation, tmp_path: Path
) -> None:
    assert "no server listens" in unreachable(tmp_path, f"redis://127.0.0.1:{free_port()}")["message"]
    assert "name of the host is unknown" in unreachable(tmp_path, "redis://no-such-host.invalid")["message"]
    assert "socket does not exist" in unreachable(tmp_path, f"unix://{tmp_path}/none")["message"]
    wrong = system.redis.url.replace("redis://", "redis://default:wrong@")
    with Server(password="right") as locked:
        assert "requires a password" in unreachable(tmp_path, f"redis://127.0.0.1:{locked.port}")["message"]
        refused = unreachable(tmp_path, locked.url.replace("right", "wrong"))
        assert "refuses the password" in refused["message"] and "wrong" not in json.dumps(refused)
    assert wrong not in json.dumps(refused)
    with silent_server() as port:
        began = time.monotonic()
        assert "did not answer in time" in unreachable(tmp_path, f"redis://127.0.0.1:{port}")["message"]
        assert time.monotonic() - began < 40


def test_an_api_that_cannot_be_reached_is_an_error_even_if_not_chosen(tmp_path: Path) -> None:
    report = run_doctor(tmp_path, "--url", f"http://127.0.0.1:{free_port()}", "--only", "workers")
    assert (report.exit_code, report.problems) == (2, {"api": "error"})


def test_a_token_without_the_role_is_unknown(tmp_path: Path) -> None:
    keys = json.dumps(
        [
            {
                "key": "a-key-that-may-write",
                "owner_id": "5f1c6f0e-0000-4000-8000-000000000009",
                "roles": ["emitter"],
            }
        ]
    )
    with Up("--data", str(tmp_path / "data"), cwd=tmp_path, CRUMB_API_KEYS=keys) as up:
        report = run_doctor(tmp_path, "--url", up.url, CRUMB_API_KEY="a-key-that-may-write")
        assert (report.exit_code, report.problems) == (3, {"store": "unknown"})
        assert "curator" in report.find("store")["advice"]


# Versions and clocks


def add_worker(
    system: Installation, name: str, *, version: str | None = None, late: float = 0, **more: Any
) -> None:
    """Store the record of a worker, as its heartbeat does."""
    (kind,) = system.redis.command("KEYS", "*}Ragents")
    stored = system.redis.command("HGETALL", kind)
    raw = next(iter(stored.values())) if isinstance(stored, dict) else stored[1]
    seconds, microseconds = system.redis.command("TIME")
    now = int(seconds) * 1_000_000 + int(microseconds)
    report = json.loads(raw.partition(" ")[2])
    report |= {"name": name, "lease_seconds": 60, "clock": now - int(late * 1e6), "state": "running"}
    report |= {"version": version or report["version"], **more}
    system.redis.command("HSET", kind, name, f"{now} {json.dumps(report)}")
    system.redis.command("ZADD", kind.replace("Ragents", "Wagents"), now + 60_000_000, name)


def remove_worker(system: Installation, name: str) -> None:
    (kind,) = system.redis.command("KEYS", "*}Ragents")
    system.redis.command("HDEL", kind, name)
    system.redis.command("ZREM", kind.replace("Ragents", "Wagents"), name)


def test_a_worker_of_another_version_gets_a_warning(system: Installation) -> None:
    add_worker(system, "old-one", version="0.0.7")
    try:
        report = system.doctor("--only", "versions")
        assert (report.exit_code, report.problems) == (1, {"versions": "warning"})
        finding = report.find("versions")
        assert "0.0.7: old-one" in finding["message"] and "restart" in finding["advice"]
        assert finding["details"]["versions"]["0.0.7"] == ["old-one"]
        assert system.wait_for(1, "--only", "versions", remote=True)
    finally:
        remove_worker(system, "old-one")


@pytest.mark.parametrize(
    ("late", "status"),
    [
        (2.0, "ok"),
        (4.0, "warning"),
        (-0.5, "ok"),
        (-1.5, "warning"),
        (61.5, "warning"),
        (63.0, "error"),
        (-61.0, "error"),
    ],
)
def test_the_clock_of_a_worker_is_compared_with_the_server(
    system: Installation, late: float, status: str
) -> None:
    add_worker(system, "clock-one", late=late)
    try:
        finding = system.doctor("--only", "worker-clocks").find("worker-clocks")
        assert finding["status"] == status, finding
        assert finding["details"]["skew_seconds"]["clock-one"] == -late
        assert status == "ok" or "NTP" in finding["advice"]
    finally:
        remove_worker(system, "clock-one")


# Models and dead letters


def check_model(folder: Path, model: str, *arguments: str, **extra: str) -> tuple[int, dict[str, Any]]:
    """Check a model without a store."""
    options = ("--only", "models", "--data", str(folder / "none"), *arguments)
    report = run_doctor(folder, *options, CRUMB_MODEL=model, CRUMB_URL="http://127.0.0.1:1", **extra)
    found = [one for one in report.document["findings"] if one["id"] == "models"]
    assert len(found) == 1, report.document
    return report.exit_code, found[0]


def test_a_model_that_answers_its_list_passes_without_a_prompt(models: ModelServer, tmp_path: Path) -> None:
    scenario = models.scenario("normal", models=["m", "n"])
    code, finding = check_model(tmp_path, f"{scenario.url}#m")
    assert (code, finding["status"]) == (0, "ok") and "no prompt was sent" in finding["message"]
    assert scenario.requests == []
    code, finding = check_model(tmp_path, f"{scenario.url}#m", "--try-models")
    assert code == 0 and "two short prompts" in finding["message"] and len(scenario.requests) == 2


def test_a_model_server_that_refuses_connections_is_an_error(tmp_path: Path) -> None:
    code, finding = check_model(tmp_path, f"http://127.0.0.1:{free_port()}/v1#m")
    assert (code, finding["status"]) == (2, "error") and "cannot be reached" in finding["message"]


def test_a_model_server_that_hangs_is_an_error_after_the_time_limit(
    models: ModelServer, tmp_path: Path
) -> None:
    scenario = models.scenario("normal", models=["m"], list_delay=30)
    began = time.monotonic()
    code, finding = check_model(tmp_path, f"{scenario.url}#m", "--model-timeout", "1")
    assert (code, finding["status"]) == (2, "error") and "within 1 s" in finding["message"]
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("status", "expected", "says"),
    [
        (401, "error", "rejects the key"),
        (403, "warning", "403"),
        (429, "warning", "429"),
        (503, "error", "503"),
        (404, "ok", "no list"),
    ],
)
def test_a_refused_list_of_models_is_explained(
    models: ModelServer, tmp_path: Path, status: int, expected: str, says: str
) -> None:
    scenario = models.scenario("normal", models=["m"], list_status=status)
    _, finding = check_model(tmp_path, f"{scenario.url}#m")
    assert finding["status"] == expected and says in finding["message"]


def test_a_model_that_its_server_does_not_list_gets_a_warning(models: ModelServer, tmp_path: Path) -> None:
    scenario = models.scenario("normal", models=["llama3.2:latest", "qwen3"])
    assert check_model(tmp_path, f"{scenario.url}#llama3.2")[0] == 0
    code, finding = check_model(tmp_path, f"{scenario.url}#qwen")
    assert (code, finding["status"]) == (1, "warning") and "such as qwen3" in finding["advice"]


def test_a_missing_key_is_an_error_for_the_default_and_a_warning_for_an_alias(tmp_path: Path) -> None:
    code, finding = check_model(tmp_path, "openai:gpt-4.1-mini", OPENAI_API_KEY="")
    assert (code, finding["status"]) == (2, "error") and "OPENAI_API_KEY" in finding["advice"]
    aliases = json.dumps({"aliases": {"other": "openai:gpt-4.1-mini"}})
    report = run_doctor(
        tmp_path,
        "--only",
        "models",
        "--data",
        str(tmp_path / "none"),
        CRUMB_MODELS=aliases,
        OPENAI_API_KEY="",
    )
    assert (report.exit_code, report.find("models", "other")["status"]) == (1, "warning")


def test_models_are_not_asked_with_no_models(models: ModelServer, tmp_path: Path) -> None:
    report = run_doctor(
        tmp_path, "--no-models", "--data", str(tmp_path / "none"), CRUMB_MODEL="http://127.0.0.1:1/v1#m"
    )
    assert not [one for one in report.document["findings"] if one["id"] == "models"]


def test_a_dead_letter_gets_a_warning_and_a_dead_model_an_error(models: ModelServer, tmp_path: Path) -> None:
    scenario = models.scenario("failing", status=400, models=["m"])
    settings = {"CRUMB_TURN_ATTEMPTS": "1", "CRUMB_MODEL": f"{scenario.url}#m"}
    with Up("--data", str(tmp_path / "data"), cwd=tmp_path, **settings) as up:
        with httpx.Client(base_url=up.url, trust_env=False, timeout=LIMIT) as api:
            api.post("/sessions/s/messages?wait=30", json={"message": "Hello"})
        arguments = ("--data", up.ready["data"], "--only", "dead-letters,models")
        report = run_doctor(tmp_path, *arguments, CRUMB_URL=up.url, **settings)
        assert (report.exit_code, report.problems) == (1, {"dead-letters": "warning"})
        finding = report.find("dead-letters")
        assert finding["details"]["kinds"] == {"agents": 1} and "crumb dead-letters" in finding["advice"]
        scenario.options["list_status"] = 500
        report = run_doctor(tmp_path, *arguments, CRUMB_URL=up.url, **settings)
        assert report.exit_code == 2 and report.problems["models"] == "error"
        remote = run_doctor(tmp_path, "--url", up.url)
        assert remote.exit_code == 2
        assert remote.problems == {"models": "error", "dead-letters": "warning"}
        # The curators of all tenants may read the reply of the API, but not the addresses of the installation.
        shown = json.dumps(remote.document["findings"])
        assert remote.find("models", "m")["status"] == "error"
        assert f":{models.port}" not in shown and str(tmp_path) not in shown


# The command line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "wrkers"), "did you mean workers?"),
        (("--only", "lag", "--skip", "lag"), "no check remains"),
        (("--no-models", "--try-models"), "exclude each other"),
        (("--url", "http://127.0.0.1:1", "--fix"), "--fix needs the store"),
        (("--url", "http://127.0.0.1:1", "--lag-error", "5"), "needs the store"),
        (("--bogus",), "No such option"),
        (("--model-timeout", "-1"), "greater than or equal to 0.1"),
    ],
)
def test_a_wrong_command_line_exits_with_3(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(app, ["doctor", *arguments], env={"CRUMB_URL": None})
    assert (done.exit_code, done.stdout) == (3, "") and says in done.stderr


def test_the_help_lists_every_id(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["doctor", "--help"], env={"COLUMNS": "80"}).stdout
    assert not [id for id in CHECKS if not re.search(rf"^  {id}\s", shown, re.MULTILINE)]


def test_the_report_on_a_terminal_is_grouped_and_fits_80_columns(system: Installation) -> None:
    with system.configured(maxmemory_policy="allkeys-lru", maxmemory="500mb", appendonly="no", save="3600 1"):
        shown = on_a_terminal(
            "doctor",
            "--redis",
            system.redis.url,
            cwd=system.folder,
            columns=80,
            CRUMB_URL=system.api.url,
            NO_COLOR="1",
        )
    # The progress is on the lines that end with a carriage return.
    lines = [
        line.split("\r")[-1]
        for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r\n", "\n").split("\n")
    ]
    groups = [
        line for line in lines if re.fullmatch(r"(Errors|Warnings|OK|Skipped|Could not check) \(\d+\)", line)
    ]
    assert [group.partition(" ")[0] for group in groups] == ["Errors", "Warnings", "OK"]
    assert lines.index(groups[0]) < next(n for n, line in enumerate(lines) if line.startswith("✗ eviction:"))
    assert [line for line in lines if len(line) > 80] == []
    assert "1 error, 1 warning" in shown
    assert "checking:" in shown, "long checks show their progress"
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown), "no colours with NO_COLOR"


def test_output_in_a_pipe_is_json_without_colours_and_ctrl_c_ends_it(system: Installation) -> None:
    done = subprocess.run(
        [CRUMB, "doctor", "--redis", system.redis.url],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        cwd=system.folder,
        env=environment(CRUMB_URL=system.api.url),
    )
    assert done.returncode == 0 and "\x1b" not in done.stdout + done.stderr and done.stderr == ""
    assert json.loads(done.stdout)["status"] == "ok"
    with silent_server() as port:
        running = subprocess.Popen(
            [CRUMB, "doctor", "--redis", f"redis://127.0.0.1:{port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=system.folder,
            env=environment(CRUMB_URL=system.api.url),
        )
        time.sleep(3)
        running.send_signal(signal.SIGINT)
        out, errors = running.communicate(timeout=LIMIT)
    assert (running.returncode, out) == (130, b"") and b"Traceback" not in errors


def test_every_check_has_a_section_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    sections = re.findall(r"^#### `([a-z-]+)`$", text, re.MULTILINE)
    assert sections == list(CHECKS)


# Models that only the runners know


def test_models_that_runners_offer_are_named(system: Installation, models: ModelServer) -> None:
    listed = models.scenario("normal", models=["here"])
    add_worker(
        system, "far", models=["openai:gpt-far", "small", "local:here", "local:gone"], host="elsewhere"
    )
    try:
        report = system.doctor(
            "--only", "models", CRUMB_MODELS=json.dumps({"endpoints": {"local": {"url": listed.url}}})
        )
        assert (report.exit_code, report.problems) == (0, {})
        for name in ("openai:gpt-far", "small"):  # no key, and a server whose URL only the runner knows
            finding = report.find("models", name)
            assert finding["status"] == "skipped"
            assert finding["message"] == "offered by runner far, not checked from here"
        assert report.find("models", "local:here")["status"] == "ok"
        assert report.find("models", "local:here")["message"].startswith("offered by runner far: ")
        assert report.find("models", "local:gone")["status"] == "skipped"
        # A new API process has no findings of earlier tests, which an API keeps for a minute.
        with Up("--redis", system.redis.url, command="serve", cwd=system.folder) as api:
            remote = run_doctor(system.folder, "--url", api.url, "--only", "models")
        assert "offered by runner far" in remote.find("models", "openai:gpt-far")["message"]
    finally:
        remove_worker(system, "far")


def test_a_model_that_a_runner_on_this_host_cannot_reach_gets_a_warning(system: Installation) -> None:
    local = {"endpoints": {"local": {"url": "http://127.0.0.1:1/v1"}}}
    add_worker(system, "near", models=["local:m"])
    try:
        report = system.doctor("--only", "models", CRUMB_MODELS=json.dumps(local))
        assert report.problems == {"models": "warning"}
        assert report.find("models", "local:m")["message"].startswith("offered by runner near: ")
    finally:
        remove_worker(system, "near")
