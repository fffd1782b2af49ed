"""A token narrowed to a session that was deleted does not work in a later session of the same name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import orjson
import pytest

from breadcrumbs.context_builder.http.contexts import routes as CONTEXTS
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.events.event import Event, EventOperation
from breadcrumbs.runtime.http.routes.stream_filter import StreamFilter
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store import script_calls
from tests.contexts.support import document
from tests.http.conftest import KEY, OWNER, MakeSite, Site, problem
from tests.http.sessions import begin, say
from tests.http.test_stream import Live, live

EVERYTHING = {"X-API-Key": KEY}

READS = [
    "/sessions",
    "/sessions/s",
    "/sessions/s/messages",
    "/breadcrumbs?session_id=s&include_context=true",
    "/subscriptions/selectors",
    "/agents",
]
WRITES: list[tuple[str, str, Any]] = [
    ("POST", "/sessions", {}),
    ("PATCH", "/sessions/s", {"title": "taken over"}),
    ("POST", "/sessions/s/messages", {"message": "hi"}),
    ("POST", "/sessions/s/retry", {}),
    ("POST", "/breadcrumbs", {"tags": ["session:s"]}),
    ("DELETE", "/sessions/s", None),
]


@pytest.mark.parametrize("rate_limits", [True, False])
async def test_reads_and_writes_in_the_next_session_of_that_name_are_refused(
    make_site: MakeSite, rate_limits: bool
) -> None:
    site = await make_site(api_keys=_keys(), rate_limits={"enabled": rate_limits})
    await say(site, "s", "the first session", EVERYTHING)
    old = await site.token(KEY, session_id="s")
    assert (await site.client.get("/sessions/s", headers=old)).status_code == 200
    assert (await site.client.delete("/sessions/s", headers=EVERYTHING)).status_code == 200
    await say(site, "s", "not for the old token", EVERYTHING)
    for path in READS:
        answer = await site.client.get(path, headers=old)
        assert "new token" in problem(answer, 401, "unauthenticated")["detail"], path
    for method, path, body in WRITES:
        problem(await site.client.request(method, path, json=body, headers=old), 401, "unauthenticated")
    (message,) = (await site.client.get("/sessions/s/messages", headers=EVERYTHING)).json()["messages"]
    assert message["text"] == "not for the old token"


async def test_while_there_is_no_session_reads_and_writes_are_refused_alike(keyed: Site) -> None:
    await say(keyed, "s", "hi", EVERYTHING)
    old = await keyed.token(KEY, session_id="s")
    await keyed.client.delete("/sessions/s", headers=EVERYTHING)
    for path in READS:
        answer = await keyed.client.get(path, headers=old)
        assert "new token" in problem(answer, 401, "unauthenticated")["detail"], path
    for method, path, body in WRITES:
        problem(await keyed.client.request(method, path, json=body, headers=old), 401, "unauthenticated")
    assert await keyed.count(OWNER) == 0


async def test_a_token_for_a_new_session_lists_no_messages(keyed: Site) -> None:
    empty = {"messages": [], "has_more": False}
    for narrowing in ({}, {"user_id": "ann"}):
        new = await keyed.token(KEY, session_id="s", **narrowing)
        listed = await keyed.client.get("/sessions/s/messages", headers=new)
        assert (listed.status_code, listed.json()) == (200, empty)
        problem(await keyed.client.get("/sessions/other/messages", headers=new), 404, "not-found")
    problem(await keyed.client.get("/sessions/s/messages", headers=EVERYTHING), 404, "not-found")
    assert await keyed.count(OWNER) == 0
    await say(keyed, "s", "hi", new)
    assert len((await keyed.client.get("/sessions/s/messages", headers=new)).json()["messages"]) == 1
    await keyed.client.delete("/sessions/s", headers=EVERYTHING)
    problem(await keyed.client.get("/sessions/s/messages", headers=new), 401, "unauthenticated")
    renewed = await keyed.token(KEY, session_id="s")
    assert (await keyed.client.get("/sessions/s/messages", headers=renewed)).json() == empty


async def test_a_token_for_the_session_of_another_user_does_not_list_its_messages(keyed: Site) -> None:
    await say(keyed, "s", "hi", await keyed.token(KEY, session_id="s", user_id="ann"))
    bob = await keyed.token(KEY, session_id="s", user_id="bob")
    problem(await keyed.client.get("/sessions/s/messages", headers=bob), 404, "not-found")


async def test_a_token_issued_after_the_deletion_works_at_once(keyed: Site) -> None:
    await say(keyed, "s", "hi", EVERYTHING)
    await keyed.client.delete("/sessions/s", headers=EVERYTHING)
    renewed = await keyed.token(KEY, session_id="s")
    await begin(keyed, renewed)
    assert (await keyed.client.get("/sessions/s", headers=renewed)).status_code == 200


async def test_a_token_for_a_session_that_has_yet_to_begin_works(keyed: Site) -> None:
    early = await keyed.token(KEY, session_id="s")
    await say(keyed, "s", "hi", EVERYTHING)
    assert (await keyed.client.get("/sessions/s", headers=early)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/sessions/s", {"title": "taken over"}),
        ("POST", "/sessions/s/messages", {"message": "hi"}),
        ("POST", "/breadcrumbs", {"tags": ["session:s"]}),
        ("POST", "/contexts/preview", {"session_id": "s", "config": document()}),
    ],
)
async def test_a_session_that_is_replaced_while_a_body_arrives_is_neither_shown_nor_changed(
    make_site: MakeSite, method: str, path: str, body: dict[str, Any]
) -> None:
    """A client can send its body as slowly as it likes, so the check before the body is not enough."""
    site = await make_site(api_keys=_keys(), extra=CONTEXTS)
    await say(site, "s", "the first session", EVERYTHING)
    old = await site.token(KEY, session_id="s")

    async def slowly() -> AsyncIterator[bytes]:
        raw = orjson.dumps(body)
        yield raw[:1]
        await site.client.delete("/sessions/s", headers=EVERYTHING)
        await say(site, "s", "not for the old token", EVERYTHING)
        await anyio.sleep(0.1)
        yield raw[1:]

    headers = {**old, "Content-Type": "application/json"}
    answer = await site.client.request(method, path, content=slowly(), headers=headers)
    problem(answer, 401, "unauthenticated")
    session = (await site.client.get("/sessions/s", headers=EVERYTHING)).json()
    assert (session["counts"]["breadcrumbs"], session.get("title")) == (1, None)


async def test_a_stream_that_is_opened_while_there_is_no_session_is_refused(keyed: Site) -> None:
    """Otherwise it would show the next session of that name."""
    await say(keyed, "s", "hi", EVERYTHING)
    old = await keyed.token(KEY, session_id="s")
    await keyed.client.delete("/sessions/s", headers=EVERYTHING)
    problem(await keyed.client.get("/events/stream", headers=old), 401, "unauthenticated")


async def test_deletions_of_other_sessions_do_not_end_the_token_of_a_live_session(
    keyed: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_calls, "MAX_DELETIONS", 2)
    early = await keyed.token(KEY, session_id="s")
    await say(keyed, "s", "hi", early)
    other = await keyed.token(KEY, user_id="ann")
    keys = keyed.store.keys
    names = [
        name
        for name in map(str, range(200))
        if keys.session_lane(OWNER, name) == keys.session_lane(OWNER, "s")
    ]
    for name in names[:5]:
        await say(keyed, name, "hi", other)
        assert (await keyed.client.delete(f"/sessions/{name}", headers=other)).status_code == 200
    assert (await keyed.client.get("/sessions/s", headers=early)).status_code == 200
    await say(keyed, "s", "still here", early)


@pytest.mark.parametrize("query", [{}, {"schema_name": "user.message.v1"}], ids=["all", "filtered"])
async def test_a_stream_ends_with_the_session_of_its_token(
    standalone_server: Any, query: dict[str, Any]
) -> None:
    async with live(standalone_server.url, api_keys=_keys(), ping_interval="1s") as site:
        await site.post("s", owner=OWNER, title="before")
        token = await _token(site)
        async with site.stream(token=token, **query) as stream:
            await Sessions(site.store).delete(OWNER, "s")
            await site.post("s", owner=OWNER, title="in the next session")
            seen = []
            with pytest.raises(AssertionError, match="the stream ended"):
                while True:
                    seen.append(await stream.next(within=10))
        assert "in the next session" not in str(seen)
        async with httpx.AsyncClient(base_url=site.url, trust_env=False) as client:
            problem(await client.get("/events/stream", params={"token": token}), 401, "unauthenticated")


def test_a_stream_wants_no_event_after_the_deletion_even_if_it_is_still_open() -> None:
    """The next session can begin before the stream has sent its queue."""
    principal = Principal(OWNER, OWNER, session_id="s")
    stream = StreamFilter(principal, [], [])

    def event(operation: EventOperation, at: int) -> Event:
        return Event(operation, OWNER, OWNER, 1, "user.message.v1", ["session:s"], None, 0, at)

    assert stream.wants(event("created", 1)) and not stream.ended
    assert stream.wants(event("session_deleted", 2)) and stream.ended
    assert not stream.wants(event("created", 3))


async def test_a_stream_cannot_be_resumed_after_a_deletion(standalone_server: Any) -> None:
    async with live(standalone_server.url, api_keys=_keys()) as site:
        await site.post("s", owner=OWNER, title="before")
        token = await _token(site)
        async with site.stream(token=token) as stream:
            position = stream.last_id
        await Sessions(site.store).delete(OWNER, "s")
        resuming = {"token": token, "last_event_id": position}
        async with httpx.AsyncClient(base_url=site.url, trust_env=False) as client:
            problem(await client.get("/events/stream", params=resuming), 401, "unauthenticated")


def _keys() -> list[dict[str, str]]:
    return [{"key": KEY, "owner_id": str(OWNER)}]


async def _token(site: Live) -> str:
    async with httpx.AsyncClient(base_url=site.url, trust_env=False) as client:
        answer = await client.post("/auth/token", json={"session_id": "s"}, headers=EVERYTHING)
    return str(answer.json()["token"])
