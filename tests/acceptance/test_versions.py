"""`crumb version --server`, and warnings of unknown variables, with real processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import httpx
import pytest

from breadcrumbs import __version__
from tests.support.commands import CRUMB, environment, server
from tests.support.logs import logged, until
from tests.support.servers import Server


def crumb(folder: Path, *arguments: str, code: int = 0, **extra: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [CRUMB, *arguments],
        cwd=folder,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("up"), "--data", "data", CRUMB_LANES="5") as ready:
        yield ready["url"]


def test_the_version_of_a_server_its_store_and_its_workers_are_shown(url: str, tmp_path: Path) -> None:
    shown = json.loads(crumb(tmp_path, "version", "--server", "--url", url).stdout)
    assert shown["version"] == shown["server"]["version"] == __version__
    assert shown["server"]["store"] == {"format": "2", "lanes": 5}
    assert {worker["kind"] for worker in shown["server"]["workers"]} >= {"agents", "contexts"}
    assert shown["mismatches"] == []
    assert "server" not in json.loads(crumb(tmp_path, "version").stdout)


def test_a_token_without_the_rights_of_a_curator_sees_the_version_of_the_server(
    url: str, tmp_path: Path
) -> None:
    token = httpx.post(f"{url}/auth/token", json={"roles": ["emitter"]}, trust_env=False).json()["token"]
    shown = json.loads(crumb(tmp_path, "version", "--server", "--url", url, CRUMB_TOKEN=token).stdout)
    assert shown["server"]["version"] == __version__
    assert shown["server"]["store"] is None and shown["server"]["reason"]


def test_a_server_that_is_not_running_is_named(tmp_path: Path) -> None:
    done = crumb(tmp_path, "version", "--server", "--url", "http://127.0.0.1:9", code=1)
    assert "no server at http://127.0.0.1:9" in done.stderr


class _OtherVersion(BaseHTTPRequestHandler):
    """A server of another version, with a worker of a third one."""

    replies: ClassVar[dict[str, Any]] = {
        "/health": {"status": "ok", "version": "9.9.9"},
        "/operations": {
            "store": {"breadcrumbs": 0},
            "lanes": [{}] * 16,
            "workers": [
                {"kind": "agents", "name": "runner-1", "alive": True, "version": "9.9.8"},
                {"kind": "agents", "name": "runner-2", "alive": False, "version": "1.0.0"},
                {"kind": "contexts", "name": "builder-1", "alive": True},
            ],
        },
    }

    def do_GET(self) -> None:
        body = json.dumps(self.replies[self.path]).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


def test_processes_with_another_version_are_named(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OtherVersion) as other:
        thread = Thread(target=other.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{other.server_port}"
            shown = json.loads(crumb(tmp_path, "version", "--server", "--url", address).stdout)
        finally:
            other.shutdown()
            thread.join()
    assert shown["server"]["store"] == {"format": None, "lanes": 16}
    assert [worker["name"] for worker in shown["server"]["workers"]] == ["runner-1", "builder-1"]
    own, worker = shown["mismatches"]
    assert own == f"this program has version {__version__}, but the server has 9.9.9"
    assert "runner-1" in worker and "9.9.8" in worker


def test_a_running_worker_of_another_version_is_named(tmp_path: Path) -> None:
    """The worker is a real process of this code. Only the version of its installed package is another one."""
    package = tmp_path / "older" / "breadcrumbs-0.0.9.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: breadcrumbs\nVersion: 0.0.9\n", "utf-8")
    with (
        Server() as redis,
        logged(tmp_path, "serve", "--port", "0", CRUMB_REDIS=redis.url) as api,
        logged(tmp_path, "build-contexts", "--name", "new-builder", CRUMB_REDIS=redis.url),
        logged(
            tmp_path,
            *("run-agents", "--name", "old-runner"),
            CRUMB_REDIS=redis.url,
            PYTHONPATH=str(tmp_path / "older"),
        ) as runner,
    ):
        url = api.ready["url"]
        until(
            lambda: bool(runner.lines("worker started")), lambda: runner.text
        )  # lines are written in batches
        (started,) = runner.lines("worker started")
        assert started["version"] == "0.0.9"
        workers = f"{url}/operations/workers"
        until(lambda: "old-runner" in httpx.get(workers, trust_env=False).text, lambda: runner.text)
        mismatch = f"the worker old-runner (agents) has version 0.0.9, but the server has {__version__}"
        shown = json.loads(crumb(tmp_path, "version", "--server", "--url", url).stdout)
        assert shown["mismatches"] == [mismatch]
        only = ("--only", "versions", "--redis", redis.url, "--url", url)
        (finding,) = json.loads(crumb(tmp_path, "doctor", *only, code=1).stdout)["findings"]
        assert finding["status"] == "warning" and "0.0.9" in finding["message"] and finding["advice"]
        assert finding["details"]["versions"]["0.0.9"] == ["old-runner"]
        assert "new-builder" in finding["details"]["versions"][__version__]


def test_a_command_warns_of_an_unknown_variable_once(tmp_path: Path) -> None:
    done = crumb(tmp_path, "version", CRUMB_PROT="9000", CRUMB_LAUNCHER="./crumb", CRUMB_DATA="data")
    assert done.stderr.splitlines() == [
        "crumb: warning: CRUMB_PROT is not a setting and is ignored: did you mean CRUMB_PORT?"
    ]
    assert crumb(tmp_path, "version", CRUMB_LAUNCHER="./crumb").stderr == ""


def test_a_server_logs_an_unknown_variable_once_as_json(tmp_path: Path) -> None:
    with server(tmp_path, "--data", "data", CRUMB_LEASE_SECOND="2", CRUMB_LAUNCHER="./crumb"):
        pass
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    found = [line for line in lines if "variable" in line]
    assert [line["variable"] for line in found] == ["CRUMB_LEASE_SECOND"]
    assert "did you mean CRUMB_LEASE_SECONDS?" in found[0]["event"] and found[0]["level"] == "warning"
