"""Limits of event streams, so that one client does not slow down others."""

from __future__ import annotations

import asyncio
import base64
import time
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

import anyio
import httpx
import orjson
import pytest

from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.streams import condition_queues
from tests.http.conftest import KEY, KEYS, OTHER, OTHER_KEY, OWNER
from tests.http.test_stream import Live, Stream, _token, live


def _deep(number: int) -> str:
    """Return a selector with sixteen recursive conditions that match nothing."""
    conditions = [{"path": f"$..x{number}..y{place}", "op": "ne", "value": place} for place in range(16)]
    return orjson.dumps({"context_match": conditions}).decode()


BIG = {"rows": [{"a": row, "b": [row, {"c": str(row)}]} for row in range(1_500)]}


async def test_deep_conditions_of_forty_streams_do_not_delay_the_events_of_others(
    standalone_server: Any,
) -> None:
    async with (
        live(standalone_server.url, api_keys=KEYS, max_streams_per_token=40) as site,
        AsyncExitStack() as stack,
    ):
        theirs, mine = await _token(site, OTHER_KEY), await _token(site, KEY)
        for number in range(40):
            await stack.enter_async_context(site.stream(token=theirs, filters=_deep(number)))
        plain = await stack.enter_async_context(site.stream(token=mine))
        delays = []
        for _ in range(15):
            await site.post("s", owner=OTHER, context=BIG)
            began = time.perf_counter()
            await site.post("s", owner=OWNER, title="mine")
            assert (await plain.next(within=10))["title"] == "mine"
            delays.append(time.perf_counter() - began)
        # At commit 1bd9899 each delay was about a second.
        assert sorted(delays)[len(delays) // 2] < 0.3, delays


async def test_streams_with_and_without_conditions_get_the_same_events_in_order(
    standalone_server: Any,
) -> None:
    selector = orjson.dumps({"context_match": [{"path": "$..n", "op": "gte", "value": 0}]}).decode()
    async with (
        live(standalone_server.url) as site,
        site.stream(filters=selector) as conditional,
        site.stream() as plain,
    ):
        for number in range(60):
            await site.post("s", title=str(number), context={"n": number})
        titles = [str(number) for number in range(60)]
        assert [event["title"] for event in await plain.take(60)] == titles
        first = [event["title"] for event in await conditional.take(30)]
        async with site.stream(filters=selector, last_event_id=conditional.last_id) as resumed:
            assert first + [event["title"] for event in await resumed.take(30)] == titles


async def test_a_client_is_notified_of_events_that_its_conditions_could_not_decide(site: Live) -> None:
    """This holds live and after a reconnect. Such an event is not omitted silently."""
    async with site.stream(filters=_deep(0)) as stream:
        start = stream.last_id
        id = await site.post("s", title="big", context=BIG)
        told = await stream.next(kind="undecided")
        assert (told["breadcrumb_id"], told["type"], told["version"]) == (id, "breadcrumb.undecided", 1)
        assert "context" not in told and "title" not in told
        small = await site.post("s", title="small", context={"n": 1})
        assert (await stream.next())["breadcrumb_id"] == small
    async with site.stream(filters=_deep(0), last_event_id=start) as stream:
        assert (await stream.next(kind="undecided"))["breadcrumb_id"] == id
        assert (await stream.next())["breadcrumb_id"] == small


async def test_streams_with_slow_conditions_are_disconnected_and_can_resume(
    standalone_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condition_queues, "_MAX_PENDING_EVENTS", 5)
    selector = orjson.dumps({"context_match": [{"path": "$..n", "op": "gte", "value": 0}]}).decode()
    async with live(standalone_server.url, ping_interval="0.05s") as site, site.stream() as plain:
        async with site.stream(filters=selector) as stream:
            await site.post("s", title="0", context={"n": 0})
            assert (await stream.next())["title"] == "0"
            position = stream.last_id
            async with site.hub._pacer._turn:  # as during the evaluation of other clients
                for number in range(1, 20):
                    await site.post("s", title=str(number), context={"n": number})
                with pytest.raises((AssertionError, httpx.RemoteProtocolError)):
                    while True:
                        await stream.next(kind="ping")
                        assert site.hub.clients == 2 or stream.last_id == position, (
                            "moved on without its events"
                        )
        assert len(await plain.take(20)) == 20
        async with site.stream(filters=selector, last_event_id=position) as stream:
            assert [event["title"] for event in await stream.take(19)] == [str(n) for n in range(1, 20)]


async def test_no_ping_moves_a_client_past_events_that_are_not_evaluated_yet(standalone_server: Any) -> None:
    selector = orjson.dumps({"context_match": [{"path": "$..n", "op": "gte", "value": 0}]}).decode()
    async with (
        live(standalone_server.url, ping_interval="0.05s") as site,
        site.stream(filters=selector) as stream,
    ):
        position = stream.last_id
        async with site.hub._pacer._turn:
            await site.post("s", title="late", context={"n": 1})
            await anyio.sleep(0.1)
            held = stream.last_id
            for _ in range(4):
                await stream.next(kind="ping")
            assert site.hub.decode_position(UUID(int=1), stream.last_id or "") == site.hub.decode_position(
                UUID(int=1), held or position or ""
            )
        assert (await stream.next())["title"] == "late"


async def test_the_number_of_streams_per_token_is_limited(standalone_server: Any) -> None:
    async with live(
        standalone_server.url, api_keys=KEYS, max_streams_per_token=3, max_streams_per_owner=5
    ) as site:
        token, other = await _token(site, KEY), await _token(site, OTHER_KEY)
        narrowed = await _token(site, KEY, session_id="s")
        async with (
            AsyncExitStack() as stack,
            httpx.AsyncClient(base_url=site.url, trust_env=False, timeout=5) as client,
        ):
            for _ in range(3):
                last = await stack.enter_async_context(AsyncExitStack())
                await last.enter_async_context(site.stream(token=token))
            refused = await client.get("/events/stream", params={"token": token})
            assert refused.status_code == 429, refused.text
            assert refused.headers["content-type"] == "application/problem+json"
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["limit"] == 3 and "event streams" in refused.json()["detail"]
            assert (await client.head("/events/stream", params={"token": token})).status_code == 200
            await last.aclose()
            with anyio.fail_after(5):
                while site.hub.clients > 2:  # noqa: ASYNC110 - the hub has no event for it
                    await anyio.sleep(0.01)
            for _ in range(2):
                await stack.enter_async_context(site.stream(token=narrowed))
            await stack.enter_async_context(site.stream(token=token))
            of_owner = await client.get("/events/stream", params={"token": narrowed})
            assert of_owner.status_code == 429 and of_owner.json()["limit"] == 5
            await stack.enter_async_context(site.stream(token=other))


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_requests_that_wait_for_an_answer_count_as_streams(standalone_server: Any, accept: str) -> None:
    async with (
        live(standalone_server.url, api_keys=KEYS, max_streams_per_token=2, max_streams_per_owner=4) as site,
        httpx.AsyncClient(base_url=site.url, trust_env=False, timeout=10) as client,
    ):
        narrowed, whole = await _token(site, KEY, session_id="s"), await _token(site, KEY)

        async def wait(token: str, seconds: float) -> httpx.Response:
            headers = {"authorization": f"Bearer {token}", "accept": accept}
            path = f"/sessions/s/messages?wait={seconds}"
            return await client.post(path, json={"message": "Hello"}, headers=headers)

        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(wait, narrowed, 5)
            await _until_clients(site, 2)
            refused = await wait(narrowed, 5)
            assert refused.status_code == 429 and refused.json()["limit"] == 2, refused.text
            assert int(refused.headers["retry-after"]) >= 1
            stream = await client.get("/events/stream", params={"token": narrowed})
            assert stream.status_code == 429, "streams and waits have one limit"
            for _ in range(2):
                tasks.start_soon(wait, whole, 5)
            await _until_clients(site, 4)
            refused = await wait(whole, 5)
            assert refused.status_code == 429 and refused.json()["limit"] == 4, "a limit of the owner"
            tasks.cancel_scope.cancel()
        await _until_clients(site, 0)
        assert len(await _messages(client, whole)) == 4, "a refused request posts nothing"
        assert (await wait(narrowed, 0.1)).status_code in (200, 202), "places are free again"


async def _until_clients(site: Live, count: int) -> None:
    with anyio.fail_after(5):
        while site.hub.clients != count:  # noqa: ASYNC110 - the hub has no event for it
            await anyio.sleep(0.01)


async def _messages(client: httpx.AsyncClient, token: str) -> list[Any]:
    answer = await client.get("/sessions/s/messages", headers={"authorization": f"Bearer {token}"})
    found: list[Any] = answer.json()["messages"]
    return found


async def test_a_token_for_a_new_session_sees_no_events_of_an_earlier_session_of_that_name(
    standalone_server: Any,
) -> None:
    async with live(standalone_server.url, api_keys=KEYS) as site:
        async with site.stream(token=await _token(site, KEY)) as stream:
            position = stream.last_id or ""
        await site.post("s", owner=OWNER, title="earlier")
        await Sessions(site.store).delete(OWNER, "s")
        await site.post("s", owner=OWNER, title="present")
        token = await _token(site, KEY, session_id="s")
        async with site.stream(token=token, last_event_id=position) as stream:
            assert (await stream.next())["title"] == "present"
            await site.post("s", owner=OWNER, title="next")
            assert (await stream.next())["title"] == "next"


async def test_the_default_limit_is_32_streams_per_token_and_thousands_for_local_programs(
    standalone_server: Any,
) -> None:
    async with live(standalone_server.url, api_keys=KEYS) as site, AsyncExitStack() as stack:
        token = await _token(site, KEY)
        for _ in range(32):
            await stack.enter_async_context(site.stream(token=token))
        async with httpx.AsyncClient(base_url=site.url, trust_env=False, timeout=5) as client:
            assert (await client.get("/events/stream", params={"token": token})).status_code == 429
    async with live(standalone_server.url) as site:
        assert site.settings.stream_limits == (4_096, 4_096)


async def test_a_stream_takes_a_limited_number_of_saved_selectors(site: Live) -> None:
    async with httpx.AsyncClient(base_url=site.url, trust_env=False, timeout=30) as client:
        for number in range(101):
            saved = await client.post("/subscriptions/selectors", json={"any_tags": [str(number)]})
            assert saved.status_code == 200
        agent = "00000000-0000-0000-0000-000000000002"
        refused = await client.get("/events/stream", params={"agent_id": agent})
        assert refused.status_code == 422 and "100" in refused.text


async def test_positions_do_not_reveal_the_activity_of_other_tenants(standalone_server: Any) -> None:
    """Two ids of a quiet stream differ equally with and without activity of others. Neither contains a time."""
    async with live(standalone_server.url, api_keys=KEYS, ping_interval="0.05s") as site:
        token = await _token(site, KEY)
        async with site.stream(token=token, session_id="quiet") as stream:
            quiet = await _ids(stream, 4)
            for number in range(40):
                await site.post(f"s{number}", owner=OTHER)
            busy = await _ids(stream, 4)
        times = await site.hub.log.end()
    for ids in (quiet, busy):
        assert len(set(ids)) == 4, "equal ids would tell that nothing happened"
    assert len({len(id) for id in (*quiet, *busy)}) == 1
    for id in busy:
        raw = base64.urlsafe_b64decode(id + "=" * (-len(id) % 4))
        assert not any(at.to_bytes(7)[:4] in raw for at in times if at)


async def _ids(stream: Stream, count: int) -> list[str]:
    found = []
    for _ in range(count):
        await stream.next(kind="ping")
        found.append(stream.last_id or "")
    return found


async def test_a_position_of_another_tenant_is_refused(standalone_server: Any) -> None:
    async with live(standalone_server.url, api_keys=KEYS) as site:
        async with site.stream(token=await _token(site, OTHER_KEY)) as stream:
            theirs = stream.last_id
        async with httpx.AsyncClient(base_url=site.url, trust_env=False, timeout=5) as client:
            token = await _token(site, KEY)
            refused = await client.get("/events/stream", params={"token": token, "last_event_id": theirs})
        assert refused.status_code == 422 and "Last-Event-ID" in refused.text


async def test_a_position_of_an_older_version_is_answered_with_a_gap(site: Live) -> None:
    """Clients that were connected during an upgrade reload their data, so they miss nothing silently."""
    times = await site.hub.log.end()
    old = base64.urlsafe_b64encode(b"".join(at.to_bytes(7) for at in times)).decode().rstrip("=")
    await site.post("s", title="missed")
    async with site.stream(last_event_id=old) as stream:
        assert (await stream.next(kind="gap"))["type"] == "gap"
        assert stream.last_id != old
        await site.post("s", title="new")
        assert (await stream.next())["title"] == "new"


@pytest.fixture
async def site(standalone_server: Any) -> Any:
    async with live(standalone_server.url) as site:
        yield site


async def test_many_clients_of_one_owner_share_the_encryption_of_a_position(
    site: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(site.stream()) for _ in range(10)]
        encoded = []
        real = site.hub._positions.encode

        def encode(owner: UUID, position: list[int]) -> str:
            encoded.append(owner)
            return real(owner, position)

        monkeypatch.setattr(site.hub._positions, "encode", encode)
        await site.post("s", title="one")
        await asyncio.gather(*(stream.next() for stream in streams))
        assert len({stream.last_id for stream in streams}) == 1
        assert len(encoded) == 1
