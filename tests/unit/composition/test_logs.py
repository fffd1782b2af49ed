"""Logs: one JSON object per line outside of a terminal, and no secrets."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog

from breadcrumbs.composition.log_secrets import without_secrets
from breadcrumbs.composition.logs import configure_logs
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.telemetry.tracing import carried


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def logged(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_in_a_pipe_every_log_entry_is_a_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(Settings())
    structlog.get_logger("breadcrumbs.test").info("hello", lane=3)
    logging.getLogger("somebody.else").warning("from %s", "outside")
    ours, theirs = logged(capsys)
    assert (ours["event"], ours["lane"], ours["level"], ours["logger"]) == (
        "hello",
        3,
        "info",
        "breadcrumbs.test",
    )
    assert (theirs["event"], theirs["level"]) == ("from outside", "warning")


def test_text_keeps_the_order_of_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(Settings(log_format="text"))
    structlog.get_logger("breadcrumbs.test").info("hello", session="s", agent="a", kind="k")
    assert capsys.readouterr().err.rstrip().endswith("session=s agent=a kind=k")


def test_an_entry_names_the_trace_of_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(Settings())
    token = carried.set("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=1")
    structlog.get_logger("breadcrumbs.test").info("inside")
    carried.reset(token)
    structlog.get_logger("breadcrumbs.test").info("outside")
    inside, outside = logged(capsys)
    assert (inside["trace_id"], inside["span_id"]) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert not {"trace_id", "span_id"} & outside.keys()


def test_a_log_that_cannot_be_written_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logs(Settings())
    log = structlog.get_logger("breadcrumbs.test")
    full = Path("/dev/full")
    if full.exists():
        with full.open("w") as disk, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", disk)
            log.info("a full disk")
            patch.undo()
            with suppress(OSError):
                disk.close()
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    log.info("a closed stream")


def test_the_level_is_that_of_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(Settings(log_level="warning"))
    structlog.get_logger("breadcrumbs.test").info("quiet")
    structlog.get_logger("breadcrumbs.test").warning("loud")
    assert [entry["event"] for entry in logged(capsys)] == ["loud"]


def test_an_exception_is_logged_in_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(Settings())
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        structlog.get_logger("breadcrumbs.test").exception("it went wrong")
    (entry,) = logged(capsys)
    assert "RuntimeError: broken" in entry["exception"]


def test_the_text_format_is_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(Settings(log_format="text"))
    structlog.get_logger("breadcrumbs.test").info("hello", lane=3)
    shown = capsys.readouterr().err
    assert "hello" in shown and "lane=3" in shown and "\x1b" not in shown


@pytest.mark.parametrize(
    "entry",
    [
        {"token": "hunter2"},
        {"Authorization": "Bearer hunter2"},
        {"header": "Authorization: Bearer hunter2"},
        {"event": "GET /events/stream?session_id=a&token=hunter2&x=1"},
        {"url": "GET /events/stream?access_token=hunter2"},
        {"error": "cannot reach redis://me:hunter2@db:6379"},
        {"error": "rediss://:hunter2@db?x=1"},
        {"x-api-key": "hunter2"},
        {"password": "hunter2"},
    ],
)
def test_no_secret_is_logged(entry: dict[str, Any]) -> None:
    assert "hunter2" not in str(without_secrets(None, "info", dict(entry)))


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_traceback_contains_no_secret(
    capsys: pytest.CaptureFixture[str], log_format: Literal["text", "json"]
) -> None:
    configure_logs(Settings(log_format=log_format))
    try:
        raise RuntimeError("cannot reach redis://me:hunter2@db:6379")
    except RuntimeError:
        structlog.get_logger("breadcrumbs.test").exception("it went wrong")
    shown = capsys.readouterr().err
    assert "RuntimeError: cannot reach redis://me:" in shown
    assert "hunter2" not in shown


def test_values_that_are_not_secret_are_logged() -> None:
    entry = {"event": "GET /breadcrumbs?limit=5 at http://127.0.0.1:8081", "lane": 3}
    assert without_secrets(None, "info", dict(entry)) == entry
