"""Calls of both clients against a real server."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from breadcrumbs import (
    BreadcrumbsError,
    Client,
    Forbidden,
    IdempotencyMismatch,
    InvalidInput,
    NotFound,
    ServerUnreachable,
    SessionConflict,
    VersionMismatch,
)
from tests.client.support import CrumbUp, Line, client_of

pytestmark = pytest.mark.anyio

MISSING = "0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b"


async def test_a_breadcrumb_is_created_read_changed_and_deleted(client: Any, name: str) -> None:
    written = await client.create(
        "note.v1", {"text": "one", "list": []}, title="Note", tags=["blue"], session=name, ttl_type="never"
    )
    assert written.version == 1 and not written.replayed
    crumb = await client.get(written.id)
    assert (crumb.id, crumb.schema_name, crumb.title, crumb.text) == (written.id, "note.v1", "Note", "one")
    assert crumb.session_id == name and "blue" in crumb.tags
    assert crumb.context == {"text": "one", "list": [], "session_id": name}
    assert datetime.now(UTC) - crumb.created_at < timedelta(minutes=5)

    changed = await client.update(written.id, context={"text": "two"}, expected_version=1)
    assert changed.version == 2
    merged = await client.update(written.id, context={"more": 3}, merge_context=True)
    assert merged.version == 3
    full = await client.get_full(written.id)
    assert full.context == {"text": "two", "more": 3, "session_id": name}
    assert full.document["visibility"] == "team" and full.document["ttl_type"] == "never"
    versions = await client.history(written.id)
    assert [(one.version, one.context["text"]) for one in versions] == [(3, "two"), (2, "two"), (1, "one")]

    await client.delete(written.id, expected_version=3)
    with pytest.raises(NotFound) as raised:
        await client.get(written.id)
    assert raised.value.status == 404 and raised.value.type == "/docs#problem-not-found"


async def test_a_history_of_several_pages_is_read_completely(client: Any, name: str) -> None:
    written = await client.create("note.v1", session=name, context={"text": "x" * 900_000})
    for number in range(2, 9):
        await client.update(written.id, title=str(number))
    versions = await client.history(written.id)
    assert [one.version for one in versions] == list(range(8, 0, -1))


async def test_a_change_of_an_old_version_is_refused(client: Any, name: str) -> None:
    written = await client.create("note.v1", session=name)
    await client.update(written.id, title="first")
    for attempt in (
        client.update(written.id, title="second", expected_version=1),
        client.delete(written.id, expected_version=1),
    ):
        with pytest.raises(VersionMismatch) as raised:
            await attempt
        assert (raised.value.current, raised.value.expected) == (2, 1)
    assert (await client.get(written.id)).title == "first"


async def test_hints_apply_to_the_model_view_and_not_to_the_full_view(client: Any, name: str) -> None:
    written = await client.create(
        "note.v1", {"text": "x", "internal": 1}, session=name, llm_hints={"exclude": ["internal"]}
    )
    assert "internal" not in (await client.get(written.id)).context
    assert (await client.get_full(written.id)).context["internal"] == 1


async def test_the_same_key_returns_the_first_result_and_refuses_another_body(client: Any, name: str) -> None:
    first = await client.post("Hello", name, idempotency_key="k", tags=["x"], context={"extra": 1})
    again = await client.post("Hello", name, idempotency_key="k", tags=["x"], context={"extra": 1})
    assert (again.id, again.replayed) == (first.id, True)
    with pytest.raises(IdempotencyMismatch):
        await client.post("Other", name, idempotency_key="k")


async def test_a_raw_request_returns_the_reply_or_raises_its_problem(client: Any, name: str) -> None:
    document = {"schema_name": "note.v1", "title": "x", "tags": [f"session:{name}"]}
    made = await client.request("POST", "/breadcrumbs", json=document)
    assert made.status == 201 and made.headers["content-type"] == "application/json"
    path = f"/breadcrumbs/{made.json()['id']}"
    assert (await client.request("GET", path)).json()["title"] == "x"
    listed = await client.request("GET", "/breadcrumbs", params={"session_id": name})
    assert [crumb["id"] for crumb in listed.json()] == [made.json()["id"]]
    with pytest.raises(VersionMismatch) as raised:
        await client.request("PATCH", path, json={"title": "y"}, headers={"If-Match": '"7"'})
    assert (raised.value.current, raised.value.expected) == (1, 7)
    gone = await client.request("DELETE", path)
    assert gone.status < 300
    with pytest.raises(NotFound):
        await client.request("GET", path)
    metrics = await client.request("GET", "/metrics", headers={"Accept": "text/plain"})
    assert metrics.content.startswith(b"#")


async def test_a_posted_text_is_a_message_of_a_user(client: Any, name: str) -> None:
    written = await client.post("Hello\nyou", name)
    crumb = await client.get(written.id)
    assert crumb.schema_name == "user.message.v1" and crumb.title == "Hello you"
    assert set(crumb.tags) == {"user:message", f"session:{name}"}
    assert crumb.context["message"] == "Hello\nyou"


async def test_invalid_input_is_raised_with_the_invalid_fields(client: Any) -> None:
    with pytest.raises(InvalidInput) as raised:
        await client.create("note.v1", tags=["ok", "x" * 1000], nonsense=True)
    assert {error.where for error in raised.value.errors} == {"tags.1", "nonsense"}
    with pytest.raises(SessionConflict):
        await client.create("note.v1", tags=["session:a"], session="b")
    with pytest.raises(InvalidInput, match="UUID"):
        await client.get("nonsense")
    with pytest.raises(NotFound):
        await client.history(MISSING)


async def test_a_list_reads_all_pages_up_to_its_limit(
    client: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breadcrumbs.client.requests._BREADCRUMBS_PER_PAGE", 50)
    ids = [(await client.create("many.v1", {"n": number}, session=name)).id for number in range(120)]
    everything = [crumb async for crumb in client.list(session=name, schema_name="many.v1")]
    assert [crumb.id for crumb in everything] == ids[::-1]
    assert [crumb.context["n"] for crumb in everything] == list(range(120))[::-1]
    some = [
        crumb
        async for crumb in client.list(session=name, limit=110, sort="created_at", include_context=False)
    ]
    assert [crumb.id for crumb in some] == ids[:110]
    assert all(crumb.context == {} for crumb in some)
    assert len([crumb async for crumb in client.list(session=name, limit=100)]) == 100
    assert [crumb async for crumb in client.list(session=name, limit=0)] == []


async def test_lists_are_filtered_by_tags_time_and_schema(client: Any, name: str) -> None:
    began = datetime.now(UTC) - timedelta(minutes=1)
    for tags in (["red", 'odd,"tag'], ["blue"], ["red"]):
        await client.create("note.v1", tags=[f"{name}:{tag}" for tag in tags], session=name)
    await client.create("other.v1", session=name)

    async def count(**filters: Any) -> int:
        return len([crumb async for crumb in client.list(session=name, **filters)])

    assert await count() == 4
    assert await count(schema_name="note.v1") == 3
    assert await count(tags=[f"{name}:red"]) == 2
    assert await count(tags=f"{name}:red") == 2
    assert await count(tags=[f"{name}:red", f'{name}:odd,"tag']) == 1
    assert await count(any_tags=[f"{name}:blue", f'{name}:odd,"tag']) == 2
    assert await count(updated_since=began) == 4
    assert await count(updated_since=datetime.now(UTC) + timedelta(hours=1)) == 0
    with pytest.raises(ValueError, match="time zone"):
        await count(updated_since=datetime.now())


async def test_a_narrowed_token_works_only_in_its_session(client: Any, name: str, kind: str) -> None:
    issued = await client.token(session_id=name, roles=["emitter", "subscriber"], ttl_sec=60)
    assert issued.session_id == name and set(issued.roles) == {"emitter", "subscriber"}
    assert issued.expires_at - datetime.now(UTC) < timedelta(seconds=65)
    assert issued.token not in repr(issued)
    narrow = client_of(kind, client.url, token=issued.token)
    await narrow.create("note.v1", session=name)
    with pytest.raises(Forbidden):
        await narrow.create("note.v1", session=f"{name}-other")
    await narrow.close()


async def test_events_of_a_session_arrive_in_order_and_can_be_resumed(client: Any, name: str) -> None:
    seen: list[Any] = []
    async with anyio.create_task_group() as tasks, aclosing(client.events(session=name)) as events:
        tasks.start_soon(_write_when_connected, client, name, seen)
        with anyio.fail_after(30):
            async for event in events:
                seen.append(event)
                if event.operation == "deleted":
                    break
    kinds = [(event.type, event.version) for event in seen if event.schema_name == "note.v1"]
    assert kinds == [("breadcrumb.created", 1), ("breadcrumb.updated", 2), ("breadcrumb.deleted", 2)]
    assert {event.session_id for event in seen} == {name}
    assert [event.context.get("n") for event in seen if event.schema_name == "note.v1"] == [1, 2, None]

    after = seen[next(n for n, event in enumerate(seen) if event.schema_name == "note.v1")]
    replayed = []
    async with aclosing(client.events(session=name, last_event_id=after.event_id)) as events:
        with anyio.fail_after(30):
            async for event in events:
                replayed.append((event.type, event.version))
                if event.operation == "deleted":
                    break
    assert replayed == kinds[1:]


async def _write_when_connected(client: Any, name: str, seen: list[Any]) -> None:
    """Write events until the stream is connected, then create, update and delete a note."""
    while not seen:
        await client.create("knock.v1", session=name)
        await anyio.sleep(0.1)
    written = await client.create("note.v1", {"n": 1}, session=name)
    await client.update(written.id, context={"n": 2})
    await client.delete(written.id)


async def test_events_can_be_selected_by_their_context(client: Any, name: str) -> None:
    selector = {"context_match": [{"path": "$.n", "op": "gt", "value": 5}]}
    seen: list[Any] = []

    async def write() -> None:
        while not seen:
            await client.create("note.v1", {"n": 1}, session=name)
            await client.create("note.v1", {"n": 9}, session=name)
            await anyio.sleep(0.1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        async with aclosing(client.events(session=name, schema_name="note.v1", selector=selector)) as events:
            with anyio.fail_after(30):
                async for event in events:
                    seen.append(event)
                    break
    assert seen[0].context["n"] == 9


async def test_a_stream_with_an_invalid_position_is_refused(client: Any) -> None:
    with pytest.raises(InvalidInput, match="Last-Event-ID"):
        async for _ in client.events(last_event_id="AAAA"):
            pass


async def test_a_create_with_a_lost_reply_happens_once(up: CrumbUp, kind: str, name: str) -> None:
    with Line(up.url) as line:
        client = client_of(kind, line.url)
        line.answers_to_lose = 2
        written = await client.create("note.v1", {"n": 1}, session=name)
        assert line.lost == [b"POST /breadcrumbs HTTP/1.1"] * 2
        assert written.replayed
        found = [crumb async for crumb in client.list(session=name)]
        assert [crumb.id for crumb in found] == [written.id]
        await client.close()


async def test_a_post_without_a_key_is_not_repeated_after_a_lost_reply(up: CrumbUp, kind: str) -> None:
    with Line(up.url) as line:
        client = client_of(kind, line.url)
        line.answers_to_lose = 1
        with pytest.raises(ServerUnreachable):
            await client.token()  # a POST without a key
        assert len(line.lost) == 1
        await client.close()


async def test_an_unreachable_server_is_reported_with_its_address(kind: str) -> None:
    client = client_of(kind, "http://127.0.0.1:9", retries=1)
    with pytest.raises(ServerUnreachable, match=r"cannot connect to http://127\.0\.0\.1:9.*crumb up"):
        await client.get(MISSING)
    with pytest.raises(BreadcrumbsError):
        await client.session("x").say("Hello")
    await client.close()


def test_missing_arguments_are_read_from_the_environment(
    up: CrumbUp, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CRUMB_URL", up.url)
    with Client() as client:
        assert client.url == up.url
        issued = client.token(session_id=name)
    monkeypatch.setenv("CRUMB_TOKEN", issued.token)
    with Client() as client, pytest.raises(Forbidden):
        client.create("note.v1", session="elsewhere")
    with Client(token=issued.token, api_key="ignored") as client:
        assert client.create("note.v1", session=name).version == 1
