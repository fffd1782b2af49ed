"""Backups with the real command: increments, verification, restore, and files that are never half written."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.commands import CRUMB, ask, environment, run_here, server

LIMIT = 120.0


class Backups:
    """A running server, and the command in the same folder."""

    def __init__(self, folder: Path, url: str, data: str) -> None:
        self.folder, self.url, self.data = folder, url, data

    def run(self, *arguments: str, code: int = 0, **extra: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [CRUMB, *arguments],
            cwd=self.folder,
            env=environment(**extra),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done

    def run_here(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Like `run`, without a process. This is for errors and for lists of the content."""
        done = run_here(self.folder, *arguments)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done

    def export(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run("export", *arguments, "--data", self.data, code=code)

    def content(self, data: str) -> list[str]:
        """The data of a store: all lines of an export except its manifest."""
        lines = self.run_here("export", "-", "--data", data).stdout.splitlines()
        return sorted(line for line in lines if not line.startswith(('{"export', '{"index')))

    def imported(self, *arguments: str) -> dict[str, Any]:
        done: dict[str, Any] = json.loads(self.run("import", *arguments).stdout)
        return done


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backups]:
    folder = tmp_path_factory.mktemp("backup")
    with server(folder, "--data", "data") as ready:
        yield Backups(folder, ready["url"], "data")


def test_a_full_export_and_its_increments_restore_everything(running: Backups) -> None:
    ask(running.url, "untouched-text", "quiet")
    gone = ask(running.url, "second", "gone")["message"]["id"]
    running.export("full.jsonl")
    ask(running.url, "third", "kept")
    httpx.delete(f"{running.url}/sessions/gone", trust_env=False).raise_for_status()
    assert "since full.jsonl" in running.export("one.jsonl", "--since", "full.jsonl").stderr
    selector = {"any_tags": ["user:message"]}
    httpx.post(f"{running.url}/subscriptions/selectors", json=selector, trust_env=False).raise_for_status()
    ask(running.url, "fourth", "new")
    running.export("two.jsonl", "--since", "one.jsonl")
    assert gone in (running.folder / "full.jsonl").read_text()
    assert "untouched-text" not in (running.folder / "one.jsonl").read_text()

    checked = json.loads(running.run("export", "--verify", "two.jsonl", "full.jsonl", "one.jsonl").stdout)
    assert checked["ok"] is True
    assert [file["kind"] for file in checked["files"]] == ["full", "incremental", "incremental"]

    chain = ("full.jsonl", "two.jsonl", "one.jsonl", "--data", "copy")
    dry = running.imported(*chain, "--dry-run")
    assert (dry["imported"], dry["would_import"]) == (0, checked["breadcrumbs"])
    done = running.imported(*chain)
    assert (done["imported"], done["different"], done["bad_lines"]) == (checked["breadcrumbs"], 0, [])
    assert done["records"] > 0
    expected = running.content("data")
    assert any(gone in line for line in expected) is False
    assert running.content("copy") == expected
    again = running.imported(*chain)
    assert (again["imported"], again["different"], again["records"], again["states"]) == (0, 0, 0, 0)
    assert running.content("copy") == expected


def test_a_missing_or_damaged_file_is_refused_and_nothing_is_written(running: Backups) -> None:
    ask(running.url, "alpha", "broken")
    running.export("a.jsonl")
    ask(running.url, "beta", "broken")
    running.export("b.jsonl", "--since", "a.jsonl")
    ask(running.url, "gamma", "broken")
    running.export("c.jsonl", "--since", "b.jsonl")
    for files, message in (
        (("a.jsonl", "c.jsonl"), "an export is missing between a.jsonl and c.jsonl"),
        (("c.jsonl",), "c.jsonl is an increment"),
        (("b.jsonl", "c.jsonl"), "b.jsonl is an increment"),
    ):
        refused = running.run_here("import", *files, "--data", "empty", code=1)
        assert message in refused.stderr
        report = running.run_here("export", "--verify", *files, code=1)
        assert message in json.loads(report.stdout)["error"]
    damaged = (running.folder / "b.jsonl").read_bytes().replace(b"beta", b"bexa", 1)
    (running.folder / "damaged.jsonl").write_bytes(damaged)
    (running.folder / "cut.jsonl").write_bytes(damaged[: len(damaged) // 2])
    for name in ("damaged.jsonl", "cut.jsonl"):
        refused = running.run_here("import", "a.jsonl", name, "c.jsonl", "--data", "empty", code=1)
        assert f"{name} is damaged" in refused.stderr
        later = ("export", "d.jsonl", "--since", name, "--data", running.data)
        assert "damaged" in running.run_here(*later, code=1).stderr
    assert not (running.folder / "empty").exists()
    rescued = running.imported("a.jsonl", "damaged.jsonl", "--no-verify", "--data", "rescued")
    assert rescued["imported"] > 0


def test_an_export_through_a_pipe_is_checked_before_it_is_imported(running: Backups) -> None:
    ask(running.url, "piped", "pipe")
    whole = running.export("-").stdout
    cut = whole[: whole.rindex("\n", 0, -1) + 1]
    for text, code in ((cut, 1), (whole, 0)):
        done = subprocess.run(
            [CRUMB, "import", "-", "--data", "from-pipe"],
            cwd=running.folder,
            env=environment(),
            input=text,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert (running.folder / "from-pipe").exists() is (code == 0)
    assert running.content("from-pipe") == running.content("data")


def test_an_increment_by_time_continues_a_full_export(running: Backups) -> None:
    ask(running.url, "before", "by-time")
    running.export("day1.jsonl")
    ask(running.url, "after", "by-time")
    running.export("day2.jsonl", "--since", "1h")
    report = json.loads(running.run("export", "--verify", "day1.jsonl", "day2.jsonl").stdout)
    assert report["ok"] is True
    running.imported("day1.jsonl", "day2.jsonl", "--data", "by-time")
    assert running.content("by-time") == running.content("data")
    running.export("day3.jsonl", "--since", datetime.now(UTC).isoformat())
    report = json.loads(running.run("export", "--verify", "day1.jsonl", "day3.jsonl", code=1).stdout)
    assert "changes are missing between day1.jsonl and day3.jsonl" in report["error"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("x.jsonl", "y.jsonl"), 2, "--verify"),
        (("--verify",), 2, "name the files"),
        (("x.jsonl", "--since", "missing.jsonl"), 2, "the file of an earlier export"),
        (("x.jsonl", "--since", "2999-01-01T00:00Z"), 2, "in the future"),
        (("x.jsonl", "--since", "0001-01-01"), 2, "the file of an earlier export"),
        (("x.jsonl", "--since", "x" * 5_000), 2, "the file of an earlier export"),
        (("x" * 5_000,), 1, "File name too long"),
        (("x.jsonl", "--since", "plain.jsonl"), 1, "plain.jsonl has no manifest"),
        (("x.jsonl", "--since", "plain.jsonl", "--session", "s"), 2, "remove the filters"),
        (("--verify", "plain.jsonl"), 1, "plain.jsonl has no manifest"),
        (("--verify", "missing.jsonl"), 1, "cannot read missing.jsonl"),
    ],
)
def test_a_wrong_call_is_explained(
    running: Backups, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (running.folder / "plain.jsonl").write_text("")
    done = running.run_here("export", *arguments, "--data", running.data, code=code)
    assert message in done.stderr
    assert not (running.folder / "x.jsonl").exists()


def test_an_existing_file_is_replaced_only_with_force(running: Backups) -> None:
    target = running.folder / "mine.jsonl"
    target.write_text("precious")
    refused = running.export("mine.jsonl", code=1)
    assert "mine.jsonl exists: choose another name, or add --force" in refused.stderr
    assert target.read_text() == "precious"
    running.export("mine.jsonl", "--force")
    assert json.loads(running.run("export", "--verify", "mine.jsonl").stdout)["ok"] is True
    assert list(running.folder.glob(".*unfinished")) == []


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_export_leaves_no_file(tmp_path: Path, sig: signal.Signals) -> None:
    lines = [json.dumps({"breadcrumb": _document(number)}, separators=(",", ":")) for number in range(6_000)]
    (tmp_path / "many.jsonl").write_text("\n".join(lines) + "\n")
    backups = Backups(tmp_path, "", "data")
    backups.imported("many.jsonl", "--data", "data")
    process = subprocess.Popen(
        [CRUMB, "export", "big.jsonl", "--data", "data"],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + LIMIT
    while not any(file.stat().st_size for file in tmp_path.glob(".big.jsonl.*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(sig)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert [file.name for file in tmp_path.glob("*big*")] == []
    assert [file.name for file in tmp_path.glob(".*big*")] == []


def test_progress_is_shown_on_a_terminal_only(running: Backups) -> None:
    assert "\x1b" not in running.export("quiet.jsonl").stderr
    primary, secondary = pty.openpty()
    with subprocess.Popen(
        [CRUMB, "export", "-", "--data", "data"],
        cwd=running.folder,
        env=environment(TERM="xterm"),
        stdout=subprocess.DEVNULL,
        stderr=secondary,
    ) as process:
        os.close(secondary)
        shown = b""
        try:
            while part := os.read(primary, 1_000):
                shown += part
        except OSError:  # the other end is closed
            pass
        assert process.wait(LIMIT) == 0
    os.close(primary)
    assert b"exporting" in shown


def _document(number: int) -> dict[str, Any]:
    return {
        "id": f"00000000-0000-4000-8000-{number:012d}",
        "owner_id": "00000000-0000-0000-0000-000000000001",
        "version": 1,
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
        "title": "x" * 200,
        "schema_name": "note.v1",
        "tags": ["t"],
        "context": {"n": number},
    }
