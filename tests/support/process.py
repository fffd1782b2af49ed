"""Programs that tests talk to over HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx


class Process:
    """A program that listens on a port, and can be killed and started again there."""

    def __init__(self, folder: Path, argv: list[str], *, port: int, ready: str, **environment: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._argv = argv
        self._ready = self.url + ready
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                cwd=self._folder,
                env=os.environ | self._environment,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + 100
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=20)

    def _answers(self) -> bool:
        try:
            return httpx.get(self._ready, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False
