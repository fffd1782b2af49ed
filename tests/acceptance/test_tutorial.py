"""Runs every step of the tutorial and of the how-to pages as it is written, on real servers.

HTML comments in the document direct the test. Readers do not see them.

- `test: file NAME` writes the next block to a file.
- `test: start NAME` starts the next block as a process. `test: stop NAME` ends it as Ctrl-C does.
- `test: input TEXT` types a line into the next block.
- `test: proxy NAME` starts nginx or Caddy with the next block, if the test is about this proxy.
- `test: skip, because …` leaves out the next block.

All other `sh` blocks run in order, in one folder, and keep the variables that they export. Each line of a `text` block
must occur in the output of the block before it. Only ports, certificates and the address of Redis are replaced.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from markdown_it import MarkdownIt

from tests.support.servers import Cluster, Server, free_port

DOCS = Path(__file__).resolve().parents[2] / "docs"
TUTORIAL = DOCS / "tutorial.md"
HOW_TO = sorted(
    file for file in (DOCS / "how-to").glob("*.md") if "<!-- test: start" in file.read_text("utf-8")
)
BIN = Path(sys.executable).parent
DIRECTIVE = re.compile(r"<!-- test: (\w+),? ?(.*?) -->")
LIMIT = 60.0
EXAMPLE_KEY = "example-key-replace-me-0123456789"
"""The key whose hash is in the documents."""
OLD_DATA = Path(__file__).resolve().parents[1] / "fixtures" / "written_by_1bd9899" / "main.data.tar.gz"
"""Data that an old version wrote."""
NEEDS_SERVERS = {"proxy", "redis-cluster", "upgrade"}
"""Pages that need more than an empty folder and a Redis server."""
PROGRAMS = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"


@dataclass
class Step:
    """One instruction for the test: what to do, its argument, and the code and language of a block."""

    action: str
    argument: str
    language: str = ""
    code: str = ""
    line: int = 0


def steps(document: str) -> Iterator[Step]:
    """Yield the steps of a document in order."""
    waiting: Step | None = None
    for token in MarkdownIt("commonmark").parse(document):
        line = (token.map or [0])[0] + 1
        if token.type == "html_block":
            for action, argument in DIRECTIVE.findall(token.content):
                if action == "stop":
                    yield Step("stop", argument, line=line)
                else:
                    assert waiting is None, f"line {line}: two directives for one block"
                    waiting = Step(action, argument)
        elif token.type == "fence":
            step = waiting or Step("run" if token.info == "sh" else "expect", "")
            yield Step(step.action, step.argument, token.info, token.content, line)
            waiting = None
    assert waiting is None


class Reader:
    """Follows the tutorial in one folder, with the exported variables of one terminal."""

    def __init__(self, folder: Path, redis: Server | Cluster, proxy: str | None = None) -> None:
        self._folder = folder
        self._proxy = proxy
        self._state = folder.parent / "exported"
        self._port = free_port()
        self._model_port = free_port()
        self._replaced = {
            "127.0.0.1:8081": f"127.0.0.1:{self._port}",
            "redis://127.0.0.1:6379/0": redis.url,
            "redis+cluster://node-1.example.org:6379": redis.url,
            '("127.0.0.1", 8000)': f'("127.0.0.1", {self._model_port})',
            "http://127.0.0.1:8000/": f"http://127.0.0.1:{self._model_port}/",
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CRUMB_")}
        self._environment = inherited | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "CRUMB_PORT": str(self._port),
            "CRUMB_URL": f"http://127.0.0.1:{self._port}",
            "NO_PROXY": "127.0.0.1",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        if proxy is not None:
            self._prepare_proxy()
        self._output = ""
        self.outputs: list[tuple[str, str]] = []
        """All commands with their outputs."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def follow(self, step: Step) -> None:
        code = step.code
        for written, used in self._replaced.items():
            code = code.replace(written, used)
        match step.action:
            case "file":
                (self._folder / step.argument).parent.mkdir(exist_ok=True)
                (self._folder / step.argument).write_text(code)
            case "start":
                self._start(step.argument, code)
            case "stop":
                self._stop(step.argument)
            case "run" | "input":
                self._output = self._run(code, step.argument)
                self.outputs.append((code, self._output))
            case "proxy":
                if step.argument == self._proxy:
                    self._start_proxy(code)
            case "expect":
                for line in code.splitlines():
                    assert line.strip() in self._output, f"line {step.line}: {line!r} not in\n{self._output}"
            case "skip":
                assert step.argument.startswith("because "), (
                    f"line {step.line}: a skipped block needs a reason"
                )
            case unknown:
                raise AssertionError(f"line {step.line}: unknown directive {unknown}")

    def _run(self, code: str, typed: str) -> str:
        script = f'[ ! -f "{self._state}" ] || . "{self._state}"\n{code}\nexport -p > "{self._state}"\n'
        ended = subprocess.run(
            ["sh", "-ec", script],
            cwd=self._folder, env=self._environment, input=f"{typed}\n", text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT, check=False,
        )  # fmt: skip
        # The data of the upgraded store has a dead letter, of which doctor warns with the exit code 1.
        expected = 1 if code.rstrip().endswith("crumb doctor --fix") else 0
        assert ended.returncode == expected, f"{code}\n{ended.stdout}"
        return ended.stdout

    def _start(self, name: str, code: str) -> None:
        assert len(code.splitlines()) == 1, "a process is one line"
        with (self._folder.parent / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                ["sh", "-c", f'[ ! -f "{self._state}" ] || . "{self._state}"\nexec {code}'],
                cwd=self._folder, env=self._environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        ready = {
            "up": self._is_ready,
            "api": self._is_ready,
            "model": self._model_is_ready,
            "proxy": self._proxy_is_ready,
        }
        self._wait_until(ready.get(name, lambda: self._has_lanes(name)), name)

    def _wait_until(self, condition: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + LIMIT
        while True:
            assert self._processes[name].poll() is None and time.monotonic() < deadline, self._log(name)
            with suppress(httpx.HTTPError):
                if condition():
                    return
            time.sleep(0.1)

    def _get(self, path: str) -> httpx.Response:
        has_keys = "[[api_keys]]" in (self._folder / "crumb.toml").read_text()
        headers = {"X-API-Key": EXAMPLE_KEY} if has_keys else {}
        return httpx.get(f"http://127.0.0.1:{self._port}{path}", headers=headers, trust_env=False)

    def _is_ready(self) -> bool:
        return self._get("/ready").status_code == 200

    def _model_is_ready(self) -> bool:
        httpx.get(f"http://127.0.0.1:{self._model_port}", trust_env=False)
        return True

    # A proxy

    def _prepare_proxy(self) -> None:
        """Create a certificate, and make curl find the name of the example here."""
        self._tls_port, home = free_port(), self._folder.parent
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=chat.example.org",
             "-addext", "subjectAltName=DNS:chat.example.org", "-keyout", home / "tls.key", "-out", home / "tls.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
        (home / ".curlrc").write_text(
            f'resolve = "chat.example.org:{self._tls_port}:127.0.0.1"\ninsecure\nnoproxy = "*"\n'
        )
        self._environment |= {
            "CURL_HOME": str(home),
            "XDG_DATA_HOME": str(home),
            "XDG_CONFIG_HOME": str(home),
        }
        self._replaced |= {
            "https://chat.example.org/": f"https://chat.example.org:{self._tls_port}/",
            "listen 443 ssl": f"listen 127.0.0.1:{self._tls_port} ssl",
            "/etc/ssl/chat.example.org.": f"{home}/tls.",
        }

    def _start_proxy(self, block: str) -> None:
        """Start the proxy with a block of its configuration, on a free port."""
        home = self._folder.parent
        program = shutil.which(self._proxy or "", path=PROGRAMS)
        if self._proxy == "nginx":
            text = (
                f"daemon off;\npid {home}/nginx.pid;\nerror_log stderr;\nevents {{}}\n"
                f"http {{\naccess_log off;\n{block}}}\n"
            )
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
                text = text.replace("http {", f"http {{\n{kind}_temp_path {home}/{kind};", 1)
            (home / "nginx.conf").write_text(text)
            self._start("proxy", f"{program} -e stderr -p {home} -c {home}/nginx.conf")
        else:
            ports = f"http_port {free_port()}\nhttps_port {self._tls_port}"
            options = f"{ports}\nadmin off\nlocal_certs\nskip_install_trust"
            (home / "Caddyfile").write_text(f"{{\n{options}\ndefault_bind 127.0.0.1\n}}\n{block}")
            self._start("proxy", f"{program} run --config {home}/Caddyfile --adapter caddyfile")

    def _proxy_is_ready(self) -> bool:
        code = f"curl -s -o /dev/null https://chat.example.org:{self._tls_port}/"
        return subprocess.run(["sh", "-c", code], env=self._environment, check=False).returncode == 0

    def _has_lanes(self, name: str) -> bool:
        """Return whether the worker of a process has taken its lanes. A person is slower than that."""
        pid = f"-{self._processes[name].pid}-"
        lanes = self._get("/operations").json()["lanes"]
        holders = [one.get("holder") for lane in lanes for one in lane["kinds"]]
        return any(holder and pid in holder["worker"] for holder in holders)

    def _stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGINT)
        code = process.wait(LIMIT)
        if name not in ("model", "proxy"):  # Python's own server ends with a KeyboardInterrupt
            assert code in (0, 130), self._log(name)

    def _log(self, name: str) -> str:
        return f"{name} ended or did not start:\n{(self._folder.parent / f'{name}.log').read_text()}"

    def close(self) -> None:
        assert not self._processes, f"the tutorial never stops {', '.join(self._processes)}"

    def end_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(LIMIT)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial uses curl, and there is no curl")
@pytest.mark.timeout(600)
def test_every_step_of_the_tutorial_works_as_written(tmp_path: Path) -> None:
    follow(TUTORIAL, tmp_path)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages use curl, and there is no curl")
@pytest.mark.parametrize(
    "page", [page for page in HOW_TO if page.stem not in NEEDS_SERVERS], ids=lambda page: page.stem
)
def test_every_step_of_a_how_to_page_works_as_written(page: Path, tmp_path: Path) -> None:
    follow(page, tmp_path)


def test_how_to_pages_with_programs_are_run() -> None:
    assert {page.stem for page in HOW_TO} == {
        "backup", "change-lanes", "config-history", "custom-schema", "embed-chat", "feedback", "hooks", "memory",
        "own-agent", "prove-an-answer", "proxy", "redis-cluster", "replay", "test-a-config", "tools", "two-agents",
        "upgrade",
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl, and there is no curl")
@pytest.mark.parametrize("proxy", ["nginx", "caddy"])
def test_every_step_of_the_page_about_proxies_works_as_written(proxy: str, tmp_path: Path) -> None:
    if shutil.which(proxy, path=PROGRAMS) is None or shutil.which("openssl") is None:
        pytest.skip(f"{proxy} or openssl is not installed")
    reader = follow(DOCS / "how-to" / "proxy.md", tmp_path, proxy=proxy)
    assert any("Hello through the proxy" in output for _, output in reader.outputs)


def test_every_step_of_the_page_about_clusters_works_as_written(tmp_path: Path) -> None:
    with Cluster(options={"appendonly": "yes"}) as cluster:
        follow(DOCS / "how-to" / "redis-cluster.md", tmp_path, redis=cluster)


def test_every_step_of_the_page_about_upgrades_works_as_written(tmp_path: Path) -> None:
    """The data directory was written by an old version, and the backup is restored into an empty one."""
    folder = tmp_path / "my-agents"
    folder.mkdir()
    (folder / "crumb.toml").write_text('data = "./data"\n')
    with tarfile.open(OLD_DATA) as archive:
        archive.extractall(folder / "data", filter="data")
    reader = follow(DOCS / "how-to" / "upgrade.md", tmp_path)
    upgraded, restored = [
        {session["id"] for session in json.loads(output[output.index("[") :])}
        for code, output in reader.outputs
        if "sessions list" in code
    ]
    assert upgraded == restored and len(upgraded) > 10


def follow(
    document: Path, tmp_path: Path, *, redis: Cluster | None = None, proxy: str | None = None
) -> Reader:
    """Follow all steps of a document in one folder, and return its reader."""
    folder, redis_data = tmp_path / "my-agents", tmp_path / "redis"
    folder.mkdir(exist_ok=True)
    redis_data.mkdir()
    with Server(appendonly_dir=redis_data) as server:
        reader = Reader(folder, redis or server, proxy)
        try:
            for step in steps(document.read_text("utf-8")):
                reader.follow(step)
            reader.close()
        finally:
            reader.end_all()
    return reader


def test_the_tutorial_covers_its_topics_and_skips_little() -> None:
    found = list(steps(TUTORIAL.read_text("utf-8")))
    actions = [step.action for step in found]
    assert actions.count("skip") == 2
    assert actions.count("expect") >= 12
    code = "\n".join(step.code for step in found if step.action != "skip")
    for word in (
        "crumb up", "crumb chat", "curl -s", "context_config", "@agent", "@tool", "--model", "api_keys", "crumb token",
        "crumb serve", "crumb build-contexts", "crumb run-agents", "crumb export", "crumb import",
    ):  # fmt: skip
        assert word in code, word


def test_a_wrong_output_in_the_tutorial_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "my-agents"
    folder.mkdir()
    document = "```sh\nexport NAME=Ann\n```\n\n```sh\necho Hello $NAME\n```\n```text\nHello Bob\n```\n"
    with Server() as redis:
        reader = Reader(folder, redis)
        *fine, wrong = steps(document)
        for step in fine:
            reader.follow(step)
        with pytest.raises(AssertionError, match=r"'Hello Bob' not in\s+Hello Ann"):
            reader.follow(wrong)
