"""Server-sent events: encoded events are parsed again, and the parser's memory is bounded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from breadcrumbs.runtime.sse import LineTooLong, Parser, ServerSentEvent, encode_comment, encode_event


def test_encoded_events_are_parsed_again() -> None:
    stream = (
        encode_event(b'{"n":1}', id="A1")
        + encode_comment("ping")
        + encode_event(b"{}", event="gap")
        + encode_event(b"[]", event="undecided", id="A2")
    )
    assert Parser().feed(stream) == [
        ServerSentEvent("message", b'{"n":1}', "A1"),
        ServerSentEvent("gap", b"{}", "A1"),
        ServerSentEvent("undecided", b"[]", "A2"),
    ]


def test_the_fields_are_written_in_a_fixed_order() -> None:
    assert encode_event(b"{}", event="x", id="7") == b"id: 7\nevent: x\ndata: {}\n\n"
    assert encode_comment("ping") == b": ping\n\n"


def test_an_event_without_data_only_sets_the_id() -> None:
    assert Parser().feed(b"id: 7\n\n: note\n\ndata:\n\n") == [
        ServerSentEvent("message", None, "7"),
        ServerSentEvent("message", b"", "7"),
    ]


def test_an_id_with_a_null_character_is_ignored() -> None:
    assert Parser().feed(b"id: 7\0\ndata: x\n\n") == [ServerSentEvent("message", b"x", None)]


def test_a_line_above_the_limit_is_refused() -> None:
    parser = Parser(max_line_bytes=10)
    assert parser.feed(b"data: 1234") == []
    with pytest.raises(LineTooLong) as caught:
        parser.feed(b"5")
    assert caught.value.limit == 10


def test_lines_that_are_not_fields_are_kept_up_to_a_limit() -> None:
    parser = Parser()
    assert parser.feed(b"<html>\n" * 20_000) == []
    assert parser.stray.startswith(b"<html>\n<html>") and len(parser.stray) == 64 << 10


def test_importing_the_module_loads_nothing_else_of_the_runtime() -> None:
    check = "import sys, breadcrumbs.runtime.sse; print(sorted(n for n in sys.modules if n.startswith('breadcrumbs.')))"
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "['breadcrumbs.runtime', 'breadcrumbs.runtime.sse']"
