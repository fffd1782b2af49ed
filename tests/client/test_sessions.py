"""Sessions through both clients and `crumb sessions`, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from breadcrumbs import (
    AgentFailed,
    AlreadyExists,
    Client,
    NotFound,
    NothingToRetry,
    RateLimited,
    SessionInfo,
    VersionMismatch,
)
from breadcrumbs.cli.app import app
from tests.client.support import CRUMB, CrumbUp, Line, client_of, environment
from tests.support.conversations import eventually

pytestmark = pytest.mark.anyio

Crumb = Callable[..., Any]


@pytest.fixture
def crumb(up: CrumbUp) -> Crumb:
    """Run `crumb sessions` in a pipe. Returns its JSON output, or its errors if a failure is expected."""

    def run(*args: str, code: int = 0) -> Any:
        ended = CliRunner().invoke(app, ["sessions", *args], env={"CRUMB_URL": up.url})
        assert ended.exit_code == code, ended.output
        return json.loads(ended.stdout) if code == 0 else ended.stderr

    return run


async def collect(found: Any) -> list[Any]:
    return [one async for one in found]


async def test_a_session_is_created_changed_listed_and_deleted(client: Any, name: str) -> None:
    session = await client.create_session(name, title="T", user_id=f"u-{name}", state={"a": 1, "b": 2})
    assert session.id == name
    await session.say("say: hi")
    info = await session.info()
    assert isinstance(info, SessionInfo)
    assert (info.title, info.user_id, info.state, info.active) == ("T", f"u-{name}", {"a": 1, "b": 2}, True)
    assert info.counts["messages"] == info.counts["answers"] == 1 and info.returning
    assert info.created_at <= info.last_active_at
    changed = await session.change(title=None, state={"a": None}, expected_version=info.version)
    assert changed.title is None and changed.summary == "say: hi" and changed.state == {"b": 2}
    with pytest.raises(VersionMismatch) as raised:
        await session.change(title="U", expected_version=info.version)
    assert (raised.value.expected, raised.value.current) == (info.version, changed.version)
    (listed,) = await collect(client.sessions(user_id=f"u-{name}"))
    assert listed.id == name and listed.state is None
    with pytest.raises(AlreadyExists):
        await client.create_session(name)
    assert await session.delete() >= 4
    with pytest.raises(NotFound):
        await session.info()


async def test_the_list_of_sessions_reads_all_pages(
    client: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breadcrumbs.client.requests._SESSIONS_PER_PAGE", 2)
    names = [f"{name}-{number}" for number in range(5)]
    for one in names:
        await client.create_session(one, user_id=name)
    assert [one.id for one in await collect(client.sessions(user_id=name))] == names[::-1]
    assert [one.id for one in await collect(client.sessions(user_id=name, limit=3))] == names[:1:-1]


async def test_a_session_is_forked_paused_and_resumed(client: Any, name: str) -> None:
    session = client.session(name)
    first = await session.say("say: one")
    await session.say("say: two")
    fork = await session.fork(first.id, title="another way")
    assert [message.text for message in await fork.messages()] == ["say: one", "one"]
    assert (await fork.info()).title == "another way"
    earlier = await session.fork(before_id=(await session.messages())[2].id)
    assert [message.text for message in await earlier.messages()] == ["say: one", "one"]
    assert not (await fork.change(active=False)).active
    written = await fork.say("say: later", wait=False)
    await fork.change(active=True)
    assert (await fork.wait(written.id)).text == "later"
    with pytest.raises(NothingToRetry):
        await fork.retry()


async def test_a_cancelled_turn_can_be_retried(client: Any, name: str) -> None:
    session = client.session(name)
    words = " ".join(f"word{number}" for number in range(100))
    written = await session.say(f"say: {words}", wait=False)
    await session.cancel()
    with pytest.raises(AgentFailed) as raised:
        await session.wait(written.id)
    assert raised.value.cancelled
    assert await session.retry() == written.id == await session.retry(written.id)

    async def answered() -> bool:
        return [message.role for message in await session.messages()] == ["user", "agent"]

    await eventually(answered, "the turn was not run again")


async def test_waiting_for_a_retried_turn_does_not_raise_its_earlier_failure(client: Any, name: str) -> None:
    session = client.session(name)
    words = " ".join(f"word{number}" for number in range(100))
    written = await session.say(f"say: {words}", wait=False)
    await session.cancel()
    with pytest.raises(AgentFailed):
        await session.wait(written.id)
    again = await session.retry()
    assert again == written.id and again.retried_at > written.updated_at
    assert (await session.wait(again)).trigger_id == written.id


async def test_P3_a_session_or_a_fork_with_a_lost_reply_is_created_once(
    up: CrumbUp, kind: str, name: str
) -> None:
    with Line(up.url) as line:
        client = client_of(kind, line.url)
        line.answers_to_lose = 1
        session = await client.create_session(user_id=name)
        assert len(line.lost) == 1
        await session.say("say: hi")
        line.answers_to_lose = 1
        fork = await session.fork()
        assert len(line.lost) == 2
        assert {one.id for one in await collect(client.sessions(user_id=name))} == {session.id, fork.id}
        await client.close()


async def test_a_change_of_an_unknown_field_is_a_type_error(client: Any, name: str) -> None:
    with pytest.raises(TypeError, match="colour"):
        await client.session(name).change(colour="red")


async def test_a_rate_limited_request_is_raised_with_the_time_to_wait(
    kind: str, tmp_path_factory: Any
) -> None:
    limits = '{"enabled": true, "managing": {"per_token": "1/1h"}}'
    with CrumbUp(tmp_path_factory.mktemp("limited"), CRUMB_RATE_LIMITS=limits) as limited:
        client = client_of(kind, limited.url, retries=0)
        await client.create_session()
        with pytest.raises(RateLimited) as raised:
            await client.create_session()
        assert raised.value.retry_after > 3_000 and raised.value.limit == 1
        await client.close()


# The command


def test_the_command_shows_and_changes_sessions(up: CrumbUp, crumb: Crumb, name: str) -> None:
    made = crumb("new", name, "--title", "T", "--user", f"u-{name}", "--state", '{"a": 1}')
    assert made == crumb("show", name) and made["state"] == {"a": 1}
    with Client(up.url) as client:
        answer = client.session(name).say("say: hi")
    assert crumb("rename", name, "Another title")["title"] == "Another title"
    assert "title" not in crumb("rename", name, "")
    assert crumb("pause", name)["active"] is False and crumb("resume", name)["active"] is True
    assert [one["id"] for one in crumb("list", "--user", f"u-{name}")] == [name]
    assert [one["text"] for one in crumb("messages", name)] == ["say: hi", "hi"]
    assert [one["text"] for one in crumb("messages", name, "--limit", "1")] == ["hi"]
    fork = crumb("fork", name, "--message", answer.trigger_id, "--title", "F")
    assert [one["text"] for one in crumb("messages", fork["id"], "--all")] == ["say: hi"]
    assert "has no failed turn to retry" in crumb("retry", name, code=1)
    assert crumb("retry", fork["id"], "--message", crumb("messages", fork["id"])[0]["id"])["ok"] is True
    assert crumb("delete", name, fork["id"], "--yes")[0]["deleted"] >= 3
    assert f"session '{name}' not found" in crumb("show", name, code=1)


def test_the_errors_of_the_command_explain_the_next_step(crumb: Crumb, name: str) -> None:
    assert "--yes" in crumb("delete", name, code=2)
    assert "JSON object" in crumb("new", "--state", "[]", code=2)
    assert f"session '{name}' not found" in crumb("delete", name, "--yes", code=1)
    missing = f"a/b {uuid4()}"
    assert f"session '{missing}' not found" in crumb("messages", missing, code=1)
    crumb("new", f"{name} a/b")
    assert crumb("show", f"{name} a/b")["id"] == f"{name} a/b"


def run_on_terminal(up: CrumbUp, *args: str) -> str:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [CRUMB, *args],
        stdout=theirs,
        cwd=up.folder,
        env=environment(CRUMB_URL=up.url, TERM="dumb", COLUMNS="200"),
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # the process has closed the terminal
        pass
    finally:
        os.close(ours)
    assert process.wait(60) == 0
    return shown.decode()


def test_on_a_terminal_the_command_prints_tables(up: CrumbUp, name: str) -> None:
    with Client(up.url) as client:
        client.create_session(name, title="Holidays", user_id="ann")
        client.session(name).say("say: [red]hi[/red]")
    shown = [
        run_on_terminal(up, "sessions", *args) for args in (["list"], ["show", name], ["messages", name])
    ]
    table, one, said = shown
    assert name in table and "Holidays" in table and "ann" in table
    assert "title" in one and "Holidays" in one and "1 answers" in one
    assert "user: say: [red]hi[/red]" in said and "default-chat-assistant: [red]hi[/red]" in said
