"""The command `crumb audit isolation`: processes, interruption, continuation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest

from breadcrumbs.context_builder.audit import check_group, list_audited
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import home_lane
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.store.store import Store
from tests.contexts.support import OWNER, post

COUNT = 21_000
"""Enough breadcrumbs for several processes."""


class Audited:
    """A store with many breadcrumbs, two of them wrong, and the command that audits it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "breadcrumbs", "audit", "isolation", "--data", str(self.folder), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str, code: int = 1) -> tuple[str, str]:
        process = self.start(*options)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == code, errors
        assert "Traceback" not in errors
        return output, errors

    def report(self, *options: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.run(*options)[0])
        return report

    def checkpoints(self) -> list[Path]:
        return list((self.folder / "audits").glob("*.audit"))

    def wait_for_progress(self, process: subprocess.Popen[str]) -> Path:
        """Wait until an audit has checked some breadcrumbs."""
        while process.poll() is None:
            for path in self.checkpoints():
                with path.open("rb") as file:
                    if path.stat().st_size > len(file.readline()) + 32 * COUNT:
                        return path
            time.sleep(0.001)
        raise AssertionError(f"the audit ended before it could be interrupted: {process.communicate()}")


async def fill(store: Store) -> None:
    for start in range(0, COUNT, 1_000):
        news = [
            BreadcrumbCreate.parse(
                {"title": "t", "schema_name": "user.message.v1", "tags": [f"session:s{number % 300}"],
                 "context": {"message": "x", "session_id": f"s{number % 300}"}}
            )
            for number in range(start, start + 1_000)
        ]  # fmt: skip
        await asyncio.gather(*(store.create(OWNER, new) for new in news))
    for session in ("s7", "s170"):
        (crumb,) = (await store.list(OWNER, Query(session_id=session, limit=1))).items
        lane = home_lane(crumb.id, store.lanes)
        index = store.keys.by_session(lane, OWNER, session, "user.message.v1")
        await store.connection.call(lane, b"ZREM", index, crumb.id.bytes)


def on_store(url: str, work: Callable[[Store], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        store = await Store.open(url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(main())


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audited")
    with EmbeddedServer(folder) as server:
        on_store(server.url, fill)
        yield Audited(folder)


@pytest.fixture
def interrupted(audited: Audited) -> Iterator[Path]:
    """The checkpoint of an audit that was interrupted with Ctrl-C."""
    process = audited.start("--jobs", "2")
    path = audited.wait_for_progress(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors
    assert (
        f"of {COUNT:,} breadcrumbs" in errors
        and f"audit isolation --data {audited.folder} --resume {path}" in errors
    )
    yield path
    path.unlink(missing_ok=True)


def test_several_processes_report_the_same_as_one(audited: Audited) -> None:
    one, two = audited.report("--jobs", "1"), audited.report("--jobs", "2")
    assert one["breadcrumbs"] == COUNT and len(one["findings"]) == 2
    assert one | {"seconds": 0} == two | {"seconds": 0}
    assert audited.checkpoints() == []


def test_the_progress_is_not_written_into_a_pipe(audited: Audited) -> None:
    _, errors = audited.run("--jobs", "2")
    assert errors == ""


def test_an_interrupted_audit_continues_after_the_checked_breadcrumbs(
    audited: Audited, interrupted: Path
) -> None:
    report = audited.report("--resume", str(interrupted))
    assert 0 < report["resumed_after"] < COUNT
    assert report["breadcrumbs"] == COUNT and len(report["findings"]) == 2
    assert not interrupted.exists()


def test_a_killed_audit_continues_and_leaves_no_process(audited: Audited) -> None:
    process = audited.start("--jobs", "2")
    path = audited.wait_for_progress(process)
    workers = [
        int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while any(_is_alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "a process of a killed audit goes on"
        time.sleep(0.05)
    report = audited.report("--resume", str(path))
    assert report["breadcrumbs"] == COUNT and len(report["findings"]) == 2


def test_a_killed_process_ends_the_audit_with_an_error(audited: Audited) -> None:
    process = audited.start("--jobs", "2")
    path = audited.wait_for_progress(process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    # One child is the resource tracker of multiprocessing.
    worker = next(int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(worker, signal.SIGKILL)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and output == ""
    assert "ended unexpectedly" in errors and "--resume" in errors
    assert audited.report("--resume", str(path))["breadcrumbs"] == COUNT


def test_a_line_that_was_cut_off_is_checked_again(audited: Audited, interrupted: Path) -> None:
    content = interrupted.read_bytes()
    interrupted.write_bytes(content[:-20])
    report = audited.report("--resume", str(interrupted))
    assert report["breadcrumbs"] == COUNT and len(report["findings"]) == 2


def test_a_checkpoint_of_another_version_or_store_is_refused(
    audited: Audited, interrupted: Path, tmp_path: Path
) -> None:
    header, _, rest = interrupted.read_bytes().partition(b"\n")
    other = tmp_path / "other.audit"

    def refused(change: dict[str, Any]) -> str:
        other.write_bytes(orjson.dumps(orjson.loads(header) | change) + b"\n" + rest)
        return audited.run("--resume", str(other))[1]

    assert "version 0.0.1 wrote the checkpoint" in refused({"version": "0.0.1"})
    scope = orjson.loads(header)["scope"]
    assert "belongs to another store" in refused({"scope": scope | {"store": uuid4().hex}})
    assert "is not a checkpoint" in refused({"format": "other"})
    other.write_bytes(header + b"\n" + rest[:100])
    assert "is incomplete" in audited.run("--resume", str(other))[1]
    assert "cannot open" in audited.run("--resume", str(tmp_path / "missing"))[1]
    assert "omit them" in audited.run("--resume", str(interrupted), "--history", code=2)[1]


async def test_the_owner_limits_the_audit(audited: Audited) -> None:
    report = json.loads(audited.run("--owner", str(uuid4()), code=0)[0])
    assert (report["breadcrumbs"], report["owners"]) == (0, 0)


async def test_a_breadcrumb_that_was_deleted_meanwhile_is_skipped(store: Store) -> None:
    crumb, _ = await post(store, "x", session="a"), await post(store, "y", session="a")
    (group,) = await list_audited(store)
    await store.delete(OWNER, crumb.id)
    report = await check_group(store, group, history=False)
    assert report.breadcrumbs == 1 and report.is_clean


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
