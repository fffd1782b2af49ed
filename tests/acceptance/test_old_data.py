"""A store that was written by commit 1bd9899 opens unchanged with this code.

`tests/fixtures/written_by_1bd9899/make.py` describes the fixtures and how they were made.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.client.support import CRUMB, LIMIT, CrumbUp, environment

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "written_by_1bd9899"
STORES = ("main", "five-lanes")

OPAQUE = {"before", "after", "next_cursor"}
"""Cursors, which are encrypted differently in each reply."""


class OldStore:
    """Fixture of an old store: its data, its export and the replies of the old code."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.expected: dict[str, Any] = json.loads(self._read("expected.json"))
        self.export = self._read("export.jsonl")
        self.tokens: dict[str, str | None] = self.expected["tokens"]
        self.replies: dict[str, dict[str, list[Any]]] = self.expected["replies"]

    def _read(self, kind: str) -> bytes:
        return gzip.decompress((FIXTURES / f"{self.name}.{kind}.gz").read_bytes())

    def unpack(self, data: Path) -> None:
        with tarfile.open(FIXTURES / f"{self.name}.data.tar.gz") as archive:
            archive.extractall(data, filter="data")


on_main_store = pytest.mark.parametrize("old", ["main"], indirect=True)
"""Marks tests that do not depend on the number of lanes."""


@pytest.fixture(params=STORES)
def old(request: pytest.FixtureRequest) -> OldStore:
    return OldStore(request.param)


@pytest.fixture
def up(old: OldStore, tmp_path: Path) -> Iterator[CrumbUp]:
    """The current code with a copy of the old data."""
    running = CrumbUp(tmp_path, **old.expected["settings"])
    old.unpack(running.data)
    with running:
        yield running


def api_for(up: CrumbUp, token: str | None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=up.url, headers=headers, timeout=LIMIT)


@pytest.fixture
def api(up: CrumbUp) -> Iterator[httpx.Client]:
    """Client of the developer, who owns most of the data."""
    with api_for(up, None) as client:
        yield client


def crumb(*arguments: str | Path, cwd: Path, **extra: str) -> bytes:
    done = subprocess.run(
        [CRUMB, *arguments],
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


# Comparison


ADDED = {"reuse"}
"""Fields that explanations of contexts have since the old code."""


def differences(before: Any, now: Any, where: str) -> Iterator[str]:
    """Yield every path at which two documents differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            if name in ADDED and name not in before:
                continue
            if name not in before or name not in now:
                yield f"{where}.{name}: only {'before' if name in before else 'now'}"
            elif name not in OPAQUE:
                yield from differences(before[name], now[name], f"{where}.{name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{where}[{number}]")
    elif before != now:
        yield f"{where}: {before!r} is now {now!r}"


def changed_replies(client: httpx.Client, replies: dict[str, list[Any]]) -> list[str]:
    """Read every path again and return the differences."""
    found: list[str] = []
    for path, before in replies.items():
        reply = client.get(path)
        now = [reply.status_code, None if reply.is_error else reply.json()]
        found += differences(before, now, path)
    return found


def without_shared_state(document: Any) -> Any:
    """Remove the `app:` state of ADK sessions from the breadcrumbs of a reply.

    All users of an app share it, so tokens for a user do not see it (docs/adk.md). The old code hid it on the routes
    of ADK only. `checksum` and `size_bytes` are those of the context that is shown.
    """
    if isinstance(document, list):
        return [without_shared_state(item) for item in document]
    if not isinstance(document, dict):
        return document
    shown = {name: without_shared_state(value) for name, value in document.items()}
    shown.pop("shared_state_delta", None)
    if "stateDelta" in shown:
        shown["stateDelta"] = {
            name: value for name, value in shown["stateDelta"].items() if not name.startswith("app:")
        }
    if "checksum" in document and shown["context"] != document["context"]:
        context = shown["context"]
        shown["checksum"] = hashlib.sha256(as_bytes(context, sort_keys=True)).hexdigest()
        shown["size_bytes"] = len(as_bytes(context))
    return shown


def as_bytes(document: Any, *, sort_keys: bool = False) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys).encode()


DOCUMENTED = {"ann": without_shared_state}
"""By principal, the change of replies since the old code (CHANGELOG.md, Security)."""


# The data directory


def test_every_reply_equals_that_of_the_old_code(old: OldStore, up: CrumbUp) -> None:
    for principal, token in old.tokens.items():
        replies = old.replies[principal]
        if principal in DOCUMENTED:
            replies = {path: DOCUMENTED[principal](reply) for path, reply in replies.items()}
        with api_for(up, token) as client:
            assert changed_replies(client, replies) == [], principal


def test_doctor_finds_no_fault(old: OldStore, up: CrumbUp, api: httpx.Client) -> None:
    hygiene = api.post("/hygiene/run").json()  # removes a breadcrumb without reads left from the indexes
    assert hygiene["ok"], hygiene
    settings = old.expected["settings"] | {"CRUMB_URL": up.url}
    # The old store has dead letters, which are a warning.
    arguments = ("doctor", "--json", "--data", up.data, "--skip", "dead-letters")
    found = json.loads(crumb(*arguments, cwd=up.folder, **settings))
    assert [finding for finding in found["findings"] if finding["status"] != "ok"] == []


def test_old_sessions_continue_and_old_messages_are_not_answered_again(
    old: OldStore, api: httpx.Client
) -> None:
    before = all_crumbs(api)
    letters = api.get("/dlq").json()
    sessions = [session for session in read_sessions(api) if session["active"]]
    said: set[str] = set()
    for session in sessions:
        path = f"{session_path(session['id'])}/messages"
        told = [message["id"] for message in read_messages(api, session["id"]) if message["role"] == "user"]
        reply = api.post(f"{path}?wait=60", json={"message": "How many messages?"})
        assert reply.status_code == 200, reply.text
        answer = reply.json()["answer"]
        messages = "message" if not told else "messages"
        assert answer["text"].startswith(f"I received {len(told) + 1} {messages} of yours"), session
        context = answer["context"]
        explained = api.get(f"/contexts/{context['context_id']}/explain").json()
        assert {item.get("id") for item in explained["items"]} >= {*told, reply.json()["message"]["id"]}
        said |= {reply.json()["message"]["id"], answer["id"], context["context_id"]}
    now = all_crumbs(api)
    assert now.keys() - before.keys() <= said
    assert {id for id in before if now[id] != before[id]} <= said, "only contexts have a new version"
    assert api.get("/dlq").json() == letters


def test_a_message_in_a_paused_session_is_answered_after_resuming(api: httpx.Client) -> None:
    before = [message["text"] for message in read_messages(api, "paused")]
    api.patch("/sessions/paused", json={"active": True}).raise_for_status()
    deadline = time.monotonic() + LIMIT
    while len(now := [message["text"] for message in read_messages(api, "paused")]) == len(before):
        assert time.monotonic() < deadline, now
        time.sleep(0.05)
    assert now == [*before, "this had to wait"]


@on_main_store
def test_a_fork_of_an_old_session_has_its_messages(api: httpx.Client) -> None:
    assert api.post("/sessions/trip/fork", json={"id": "new fork"}).status_code == 201
    fields = ("role", "text", "created_at")
    copied, originals = (
        [[message[field] for field in fields] for message in read_messages(api, name)]
        for name in ("new fork", "trip")
    )
    assert copied == originals
    assert api.get("/sessions/new%20fork").json()["state"] == api.get("/sessions/trip").json()["state"]
    reply = api.post(
        "/sessions/new%20fork/messages?wait=60", json={"message": "What did I say first?"}
    ).json()
    first = next(message["text"] for message in read_messages(api, "trip") if message["role"] == "user")
    assert first in reply["answer"]["text"]


@on_main_store
def test_requests_with_old_idempotency_keys_are_not_repeated(old: OldStore, api: httpx.Client) -> None:
    before = all_crumbs(api)
    for request in old.expected["replays"]:
        reply = api.post(request["path"], json=request["body"], headers={"Idempotency-Key": request["key"]})
        assert reply.headers["Idempotency-Replayed"] == "true"
        assert list(differences(request["reply"], reply.json(), request["path"])) == []
    assert all_crumbs(api) == before


@on_main_store
def test_an_old_stream_position_is_answered_with_a_gap(old: OldStore, api: httpx.Client) -> None:
    with api.stream("GET", "/events/stream", params={"last_event_id": old.expected["position"]}) as stream:
        events = (line for line in stream.iter_lines() if line.startswith("event:"))
        assert [next(events), next(events)] == ["event: ping", "event: gap"]


@on_main_store
def test_old_breadcrumbs_can_be_changed_and_deleted(api: httpx.Client) -> None:
    note = api.get("/breadcrumbs", params={"schema_name": "note.v1"}).json()[0]
    path = f"/breadcrumbs/{note['id']}"
    change = api.patch(path, json={"title": "new"}, headers={"If-Match": str(note["version"])})
    assert change.json()["version"] == note["version"] + 1
    history = api.get(f"{path}/history").json()
    assert [version["version"] for version in history] == list(range(note["version"] + 1, 0, -1))
    assert api.get("/breadcrumbs", params={"tag": "green"}).json()[0]["title"] == "new"
    sessions = {session["id"] for session in read_sessions(api)}
    for session in sessions:
        assert api.delete(session_path(session)).json()["ok"]
    assert read_sessions(api) == []
    assert api.get(path).status_code == 404
    assert not sessions & {crumb["context"].get("session_id") for crumb in all_crumbs(api).values()}


def session_path(session: str) -> str:
    return f"/sessions/{quote(session, safe='')}"


def read_sessions(api: httpx.Client) -> list[Any]:
    found: list[Any] = api.get("/sessions", params={"limit": 500}).json()["sessions"]
    return found


def read_messages(api: httpx.Client, session: str) -> list[Any]:
    found: list[Any] = api.get(f"{session_path(session)}/messages", params={"limit": 1000}).json()["messages"]
    return found


def all_crumbs(api: httpx.Client) -> dict[str, Any]:
    found = api.get("/breadcrumbs", params={"limit": 10_000, "include_context": "true"}).json()
    return {crumb["id"]: crumb for crumb in found}


# The export


def exported_data(data: Path, *, cwd: Path) -> bytes:
    """Export, without the lines that the old code did not write: manifest, records and states of sessions."""
    lines = crumb("export", "--data", data, cwd=cwd).splitlines(keepends=True)
    known = (b'{"breadcrumb":', b'{"history_of":', b'{"archived":')
    return b"".join(line for line in lines if line.startswith(known))


def test_an_export_of_the_old_data_equals_the_old_export(old: OldStore, tmp_path: Path) -> None:
    old.unpack(tmp_path / "data")
    assert exported_data(tmp_path / "data", cwd=tmp_path) == old.export


def test_the_old_export_is_imported_as_the_old_code_did(old: OldStore, tmp_path: Path) -> None:
    file = tmp_path / "old.jsonl"
    file.write_bytes(old.export)
    running = CrumbUp(tmp_path, **old.expected["settings"])
    done = json.loads(crumb("import", file, "--data", running.data, "--json", cwd=tmp_path))
    assert done["imported"] == done["lines"] == len(old.export.splitlines())
    assert exported_data(running.data, cwd=tmp_path) == old.export
    with running:
        for principal, imported in old.expected["imported"].items():
            replies = old.replies[principal] | imported
            # Agents are not exported. The token creates a new record of its agent.
            replies = {path: reply for path, reply in replies.items() if not path.startswith("/agents")}
            with api_for(running, owner_token(running, old, principal)) as client:
                assert changed_replies(client, replies) == [], principal


def owner_token(up: CrumbUp, old: OldStore, principal: str) -> str | None:
    if principal == "developer":
        return None
    token: str = httpx.post(f"{up.url}/auth/token", json=old.expected[principal]).json()["token"]
    return token
