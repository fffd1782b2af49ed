"""Client commands without a server: requests, input and output."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs import Client
from breadcrumbs.cli import dead_letters, doctor
from breadcrumbs.cli.client import open_client
from breadcrumbs.cli.crumbs import Draft, changed_lines, read_context, read_ttl
from breadcrumbs.cli.options import read_since
from breadcrumbs.cli.output import CommandError, UsageError, one_line, visible
from breadcrumbs.client.errors import BreadcrumbsError, ProblemError
from breadcrumbs.client.requests import filter_params, segment, session_path
from breadcrumbs.composition.storage import shown_address

# post


def test_plain_text_is_posted_as_a_user_message_in_its_session() -> None:
    assert Draft("Hello", session="abc", tags=["x"]).document() == {
        "schema_name": "user.message.v1",
        "title": "Hello",
        "tags": ["x", "user:message", "session:abc"],
        "context": {"message": "Hello"},
    }


def test_a_custom_schema_gets_only_the_given_tags() -> None:
    document = Draft("Hello", schema="note.v1").document()
    assert (document["schema_name"], document["tags"]) == ("note.v1", [])


def test_a_long_text_is_shortened_only_in_the_title() -> None:
    text = "one two\nthree " * 50
    document = Draft(text).document()
    assert document["context"]["message"] == text
    assert len(document["title"]) == 80 and "\n" not in document["title"]


def test_the_text_can_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\nsecond line\n"))
    assert Draft("-").document()["context"]["message"] == "from a pipe\nsecond line"


def test_a_context_can_come_as_text_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"a": [1]}')
    assert read_context('{"a": 1}') == {"a": 1}
    assert read_context(f"@{file}") == {"a": [1]}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"text": None}, "nothing to post"),
        ({"text": "-", "context": "-"}, "standard input"),
        ({"text": "a", "context": '{"message": "b"}'}, "one of them"),
        ({"text": "a", "context": "[1]"}, "object"),
        ({"text": "a", "context": "{"}, "not valid JSON"),
    ],
)
def test_an_ambiguous_or_empty_post_is_a_usage_error(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Draft(**options).document()


def test_a_missing_context_file_is_reported_with_its_name() -> None:
    with pytest.raises(CommandError, match="nowhere"):
        read_context("@nowhere/at/all.json")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("1h", {"ttl_type": "duration", "ttl_config": {"duration": "1h"}}),
        ("never", {"ttl_type": "never"}),
        ("2026-11-16T09:00:00Z", {"ttl_type": "datetime", "ttl": "2026-11-16T09:00:00Z"}),
    ],
)
def test_a_ttl_is_a_duration_a_time_or_never(text: str, fields: dict[str, Any]) -> None:
    assert read_ttl(text) == fields


# list and tail


def test_tags_are_escaped_in_queries() -> None:
    found = dict(filter_params({"session": "s", "tags": ["a,b", '["c"]'], "any_tags": ["x:*"]}))
    assert found == {"all_tags": '["a,b","[\\"c\\"]"]', "any_tags": '["x:*"]', "session_id": "s"}


def test_since_accepts_a_duration() -> None:
    since = read_since("2h")
    assert timedelta(hours=2) <= datetime.now(UTC) - since < timedelta(hours=2, minutes=1)


def test_since_accepts_a_time_in_any_zone() -> None:
    assert read_since("2026-11-16T09:00:00+02:00") == datetime(2026, 11, 16, 7, tzinfo=UTC)


def test_since_lists_the_accepted_forms() -> None:
    with pytest.raises(UsageError, match=r"use a time .* or a duration"):
        read_since("a while")


# history


def test_a_difference_shows_only_changes() -> None:
    before = {"version": 1, "title": "a", "tags": ["x"], "context": {"same": 1, "old": 2}, "updated_at": "1"}
    after = {"version": 2, "title": "b", "tags": ["x"], "context": {"same": 1, "new": [3]}, "updated_at": "2"}
    assert changed_lines(before, after) == [
        '-title: "a"',
        '+title: "b"',
        "-context.old: 2",
        "+context.new: [3]",
    ]


def test_the_first_version_has_no_difference() -> None:
    assert changed_lines(None, {"version": 1}) == []


# Output


@given(st.text())
def test_text_of_a_breadcrumb_cannot_control_the_terminal(text: str) -> None:
    shown = visible(text)
    assert not any(ord(char) < 32 and char not in "\n\t" for char in shown)
    assert not any(0x7F <= ord(char) <= 0x9F for char in shown)
    assert "\n" not in one_line(text)


def test_an_escape_sequence_is_shown_as_text() -> None:
    assert visible("a\x1b[31mred") == "a\\x1b[31mred"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:hunter2@db:6379/0", "redis://db:6379/0"),
        ("rediss://:hunter2@[::1]:6380?password=hunter2", "rediss://[::1]:6380"),
        ("redis+cluster://node:7000", "redis+cluster://node:7000"),
        ("unix:///run/x.sock?password=hunter2", "unix:///run/x.sock"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert shown_address(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8081",
        "ftp://x",
        "",
        "http://",
        "http://localhost:80a",
        "http://localhost:99999",
        "http://[::1",
        "http://a\x7fb",
    ],
)
def test_an_invalid_server_address_is_refused(url: str) -> None:
    with pytest.raises(CommandError, match="is not an address"), open_client(url):
        pass
    if url:  # without one, the client takes the usual one
        with pytest.raises(ValueError, match="is not an address"):
            Client(url)


# A server that is something else


@contextmanager
def answering(body: bytes, media_type: str = "application/json") -> Iterator[str]:
    """A server with a fixed reply."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.send_header("content-type", media_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PATCH = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


PAGE = (b"<html>Welcome</html>", "text/html; charset=utf-8")


@pytest.mark.parametrize("said", [PAGE, (b'{"hello": 1}',), (b"[1]",), (b"<html>", "application/json")])
def test_the_client_detects_another_kind_of_server(said: tuple[Any, ...]) -> None:
    with answering(*said) as url, Client(url, retries=0) as client:
        session = client.session("s")
        for ask in (
            lambda: client.get("x"),
            lambda: client.history("x"),
            lambda: list(client.list()),
            lambda: client.create("x.v1"),
            lambda: client.token(),
            lambda: list(client.sessions()),
            lambda: session.info(),
            lambda: session.delete(),
            lambda: session.say("hello", timeout=2),
        ):
            with pytest.raises(BreadcrumbsError, match=r"is this a Breadcrumbs server|sent no event stream"):
                ask()
        if said == PAGE:
            with pytest.raises(ProblemError, match="is this a Breadcrumbs server"):
                client.delete("x")


def test_a_command_detects_another_kind_of_server() -> None:
    with (
        answering(*PAGE) as url,
        open_client(url) as client,
        pytest.raises(BreadcrumbsError, match="is this a Breadcrumbs"),
    ):
        client.request("GET", "/health")
    for said in (PAGE, (b'{"hello": 1}',), (b"[]",)):
        with answering(*said) as url:
            finding, _ = doctor._check_api(url)
        assert finding.status == "error"
        assert "Breadcrumbs server" in finding.message


@pytest.mark.parametrize("id", [".", "..", "a/../b", "...", "%2E"])
def test_an_id_is_escaped_to_one_path_segment(id: str) -> None:
    path = f"/sessions/{segment(id)}/fork"
    request = httpx.Client(base_url="http://127.0.0.1").build_request("GET", path)
    assert request.url.raw_path.decode() == path
    assert [unquote(part) for part in path.split("/")] == ["", "sessions", id, "fork"]
    assert session_path(id) == f"/sessions/{segment(id)}"


# Tables


def test_dead_letters_are_shown_unchanged(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(dead_letters, "for_people", lambda as_json: True)
    monkeypatch.setenv("COLUMNS", "300")
    letter = {
        "id": str(UUID(int=1)),
        "kind": "[agents",
        "session_id": "[/bold]",
        "attempts": 5,
        "last_error": "the model said [/INST] and [red]more",
        "created_at": "2026-11-16T09:00:00Z",
    }
    with answering(orjson.dumps([letter])) as url:
        assert dead_letters.list_letters(url) == 0
    shown = capsys.readouterr().out
    assert "[/bold]" in shown and "the model said [/INST] and [red]more" in shown
