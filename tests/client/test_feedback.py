"""Feedback with both clients and the CLI, against a real server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from breadcrumbs import Feedback, InvalidInput, NotFound
from breadcrumbs.cli.app import app
from tests.client.support import CrumbUp, client_of

pytestmark = pytest.mark.anyio

MISSING = "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b"


async def test_feedback_is_given_changed_listed_counted_and_withdrawn(client: Any, name: str) -> None:
    answer = await client.session(name).say("Hello")
    assert await client.get_feedback(answer.id) is None
    given = await client.feedback(answer.id, "down", note="Too long.")
    assert isinstance(given, Feedback)
    assert (given.rating, given.note, given.answer_id) == ("down", "Too long.", answer.id)
    assert given.session_id == name and given.agent_id == answer.agent_id and given.config
    changed = await client.feedback(answer.id, "up")
    assert (changed.id, changed.version, changed.note) == (given.id, 2, None)
    assert await client.get_feedback(answer.id) == changed
    before = datetime.now(UTC) - timedelta(hours=1)
    (listed,) = [one async for one in client.list_feedback(session=name, rating="up", since=before, own=True)]
    assert (listed.question, listed.id) == ("Hello", given.id) and listed.answer
    assert [one async for one in client.list_feedback(session=name, rating="down")] == []
    counts = await client.count_feedback(session=name)
    assert (counts.up, counts.down, counts.complete) == (1, 0, True)
    assert [(row.name, row.up) for row in counts.configs] == [(given.config, 1)]
    assert [row.name for row in counts.agents] == [answer.agent_id]
    await client.withdraw_feedback(answer.id)
    assert await client.get_feedback(answer.id) is None


async def test_a_list_of_feedback_is_read_page_by_page_up_to_its_limit(client: Any, name: str) -> None:
    for number in range(3):
        written = await client.create(
            "agent.response.v1", {"message": str(number), "creator": {"agent_id": "a"}}, session=name
        )
        await client.feedback(written.id, "up")
    assert [one.answer async for one in client.list_feedback(session=name, limit=2)] == ["2", "1"]


async def test_wrong_feedback_raises_the_errors_of_the_api(client: Any, name: str) -> None:
    with pytest.raises(NotFound):
        await client.feedback(MISSING, "up")
    message = await client.post("Hello", session=name)
    with pytest.raises(InvalidInput, match="not an answer"):
        await client.feedback(message.id, "up")
    with pytest.raises(InvalidInput, match="rating"):
        await client.feedback(MISSING, "sideways")


async def test_each_user_has_their_own_feedback(up: CrumbUp, client: Any, kind: str, name: str) -> None:
    token = await client.token(user_id=name)
    ann = client_of(kind, up.url, token=token.token)
    answer = await ann.session(name).say("Hello")
    await ann.feedback(answer.id, "up")
    await client.feedback(answer.id, "down")
    assert (await ann.get_feedback(answer.id)).user == name
    assert len([one async for one in ann.list_feedback()]) == 1
    assert len([one async for one in client.list_feedback(session=name)]) == 2
    await ann.close()


async def test_the_commands_rate_list_count_and_withdraw(up: CrumbUp, client: Any, name: str) -> None:
    def crumb(*arguments: str, code: int = 0) -> str:
        ended = CliRunner().invoke(app, ["feedback", *arguments, "--url", up.url])
        assert ended.exit_code == code, ended.output
        return ended.stdout

    answer = await client.session(name).say("Hello")
    rated = json.loads(crumb(answer.id, "down", "--note", "Wrong."))
    assert (rated["rating"], rated["note"]) == ("down", "Wrong.")
    crumb("rate", answer.id, "up")
    crumb(answer.id[:23], "down", "-m", "By prefix.", "--user", "somebody-else", code=1)
    crumb(answer.id[:23], "down", "-m", "By prefix.")
    (listed,) = json.loads(crumb("list", "--down", "--session", name))
    assert (listed["note"], listed["version"]) == ("By prefix.", 3)
    assert json.loads(crumb("list", "--up", "--session", name)) == []
    assert json.loads(crumb("list", "--session", name, "--since", "1h", "--config", rated["config"][:12]))
    assert json.loads(crumb("counts", "--session", name))["total"] == {"up": 0, "down": 1}
    crumb("withdraw", answer.id)
    assert json.loads(crumb("list", "--session", name)) == []
    crumb(answer.id, "sideways", code=2)
    crumb(answer.id, code=2)
    crumb(MISSING, "up", code=1)
    crumb("list", "--since", "a while", code=2)


async def test_the_tables_are_readable_on_a_terminal(
    up: CrumbUp, client: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breadcrumbs.cli.feedback.for_people", lambda as_json: True)
    monkeypatch.setenv("COLUMNS", "80")
    answer = await client.session(name).say("Hello [bold]you[/bold]")
    await client.feedback(answer.id, "down", note="Bad \x1b[31m colours")
    shown = CliRunner().invoke(app, ["feedback", "list", "--down", "-s", name, "--url", up.url]).stdout
    assert answer.id in shown and "[bold]you[/bold]" in shown and "\\x1b[31m colours" in shown
    assert "\x1b" not in shown and max(len(line) for line in shown.splitlines()) <= 100
    counts = CliRunner().invoke(app, ["feedback", "counts", "-s", name, "--url", up.url]).stdout
    assert "all answers" in counts and "agent default-chat-assistant" in counts
