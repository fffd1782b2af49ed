"""The printed explanation of a context."""

from __future__ import annotations

from typing import Any

import pytest

from breadcrumbs.cli.explanations import print_explanation
from breadcrumbs.context_builder.explanation import Explanation


def explanation(sources: list[dict[str, Any]], unread: list[str]) -> Explanation:
    return Explanation(
        consumer_id="tester",
        session_id="s",
        trigger_id="0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b",
        trigger_version=1,
        as_of="2026-01-01T00:00:00.000000Z",
        config="abc",
        tokens=1,
        budget=10,
        counted_by="estimate",
        sources=sources,
        items=[],
        left_out=[],
        unread_schemas=unread,
    )


def test_breadcrumbs_that_no_source_fetched_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    sources: list[dict[str, Any]] = [
        {"key": "conversation", "schema_name": "user.message.v1", "limit": 10, "found": 10, "more": True},
        {"key": "notes", "any_tags": ["note"], "limit": 5, "found": 0},
        {"key": "all", "schema_name": "note.v1", "limit": 5, "found": 2},
        {"key": "tools", "schema_name": "tool.catalog.v1", "found": 0},
    ]
    print_explanation(explanation(sources, ["agent.response.v1"]))
    printed = capsys.readouterr().out
    assert "! conversation (user.message.v1): older ones are left out, limit 10" in printed
    assert "! notes (any schema): found nothing" in printed
    assert "! no source reads agent.response.v1, which this session has" in printed
    assert "note.v1" not in printed and "tool.catalog.v1" not in printed


def test_an_explanation_without_gaps_reports_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_explanation(explanation([{"key": "all", "schema_name": "note.v1", "limit": 5, "found": 2}], []))
    assert "!" not in capsys.readouterr().out
