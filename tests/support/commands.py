"""Real `crumb` processes, requests to them, and commands in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from breadcrumbs.cli.app import app

CRUMB = Path(sys.executable).parent / "crumb"


def environment(**extra: str) -> dict[str, str]:
    """The environment without settings of the person who runs the tests."""
    plain = {name: value for name, value in os.environ.items() if not name.upper().startswith("CRUMB_")}
    return plain | {"NO_PROXY": "127.0.0.1", **extra}


def run_here(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, without the start of another one. It gets no terminal and no signals."""
    hidden = {name: None for name in os.environ if name.upper().startswith("CRUMB_")}
    with chdir(folder):
        done = CliRunner().invoke(app, arguments, env=hidden, prog_name="crumb")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(["crumb", *arguments], done.exit_code, done.stdout, done.stderr)


@contextmanager
def server(folder: Path, *arguments: str, command: str = "up", **extra: str) -> Iterator[dict[str, Any]]:
    """Run `crumb up` or `crumb serve` in a folder as a user would, and yield the facts of its ready line."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [CRUMB, command, "--port", "0", *arguments],
            cwd=folder,
            env=environment(**extra),
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (folder / "log").read_text("utf-8")
        yield json.loads(line)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def ask(url: str, text: str, session: str = "one", **headers: str) -> dict[str, Any]:
    """Post a message and wait for its outcome."""
    reply = httpx.post(
        f"{url}/sessions/{session}/messages",
        params={"wait": 30},
        json={"message": text},
        headers=headers,
        timeout=40,
        trust_env=False,
    )
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document
