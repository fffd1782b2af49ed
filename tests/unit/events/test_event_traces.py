"""The trace in an event: absent by default, readable by earlier versions, no part of digests."""

from __future__ import annotations

from uuid import UUID

import orjson
import pytest

from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, build_content
from breadcrumbs.runtime.events.event import decode_event
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.keys import Keys
from breadcrumbs.runtime.store.script_calls import Creation, ScriptCalls
from breadcrumbs.runtime.telemetry.tracing import carried

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
AGENT = UUID(int=7)


def note(trace: str | None, private_to: UUID | None = None, **more: object) -> bytes:
    token = carried.set(trace)
    try:
        return record.event_note("a.v1", ["t"], private_to, **more)  # type: ignore[arg-type]
    finally:
        carried.reset(token)


def event_with(given: bytes) -> bytes:
    return b"c" + bytes(16) + bytes(16) + b"1 " + given


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, b'["a.v1",["t"]]'),
        ({"private_to": AGENT}, b'["a.v1",["t"],"00000000-0000-0000-0000-000000000007"]'),
        ({"only_for": "agents"}, b'["a.v1",["t"],null,"agents"]'),
        ({"imported": True}, b'["a.v1",["t"],null,null,true]'),
    ],
)
def test_without_a_trace_the_stored_bytes_are_those_of_earlier_versions(
    arguments: dict[str, object], expected: bytes
) -> None:
    assert note(None, **arguments) == expected  # type: ignore[arg-type]
    assert decode_event(0, b"5-0", event_with(expected)).trace is None


def test_a_trace_comes_after_all_that_earlier_versions_read() -> None:
    stored = note(TRACE, AGENT, only_for="agents")
    event = decode_event(3, b"5-0", event_with(stored))
    assert (event.trace, event.private_to, event.only_for, event.imported) == (TRACE, AGENT, "agents", False)
    assert orjson.loads(stored)[:5] == ["a.v1", ["t"], str(AGENT), "agents", False]
    assert orjson.loads(stored)[5] == TRACE


def test_an_imported_breadcrumb_carries_no_trace() -> None:
    assert note(TRACE, imported=True) == note(None, imported=True)


def test_a_trace_changes_neither_the_body_nor_the_idempotency_digest() -> None:
    new = BreadcrumbCreate.parse({"schema_name": "a.v1", "title": "t", "tags": ["x"], "context": {"a": 1}})
    calls = ScriptCalls(Keys("bc", 4), idempotency_seconds=60, max_state_bytes=1024)
    creation = Creation(0, AGENT, UUID(int=1), new, build_content(new), None, "key")
    without_keys, without = calls.create(creation)
    token = carried.set(TRACE)
    try:
        with_keys, with_trace = calls.create(creation)
    finally:
        carried.reset(token)
    assert without_keys == with_keys
    differing = [
        number for number, pair in enumerate(zip(without, with_trace, strict=True)) if pair[0] != pair[1]
    ]
    assert differing == [7], "only the event differs"
