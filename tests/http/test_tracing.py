"""Traces of requests: headers of clients, server spans, links of retries and forks."""

from __future__ import annotations

import httpx
import pytest

from breadcrumbs.agents.models.base import ModelError
from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
from breadcrumbs.runtime.settings.settings import DEVELOPER
from breadcrumbs.runtime.telemetry.tracing import carried
from tests.http.answering import answering, echo, has, patch, retry, say
from tests.http.conftest import KEY, KEYS, MakeSite, Site
from tests.support.conversations import events_of
from tests.support.traces import CLIENT_SPAN, TRACE_ID, TRACEPARENT, finished, one, recorded

MESSAGE = {"schema_name": "a.v1", "title": "t", "tags": ["session:s"], "context": {"text": "x"}}
HEADERS = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}


async def post(site: Site, **headers: str) -> httpx.Response:
    answer = await site.client.post("/breadcrumbs", json=MESSAGE, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer


async def traces(site: Site) -> list[str | None]:
    return [event.trace for event in await events_of(site.store, DEVELOPER)]


async def test_the_trace_of_a_client_is_carried_in_the_event_and_not_in_the_breadcrumb(site: Site) -> None:
    posted = await post(site, **HEADERS)
    await post(site)
    assert await traces(site) == [f"{TRACEPARENT} vendor=1", None]
    assert carried.get() is None
    read = await site.client.get(f"/breadcrumbs/{posted.json()['id']}/full")
    assert TRACE_ID not in read.text


@pytest.mark.parametrize(
    "header",
    ["", "x", "00-0-0-00", f"00-{TRACE_ID}-{'0' * 16}-01", "9" * 4_000, "\x01\x02", TRACEPARENT.upper()],
)
async def test_an_invalid_trace_is_ignored(site: Site, header: str) -> None:
    await post(site, traceparent=header)
    assert await traces(site) == [None]


async def test_a_replayed_request_keeps_the_first_trace(site: Site) -> None:
    other = TRACEPARENT.replace("b7", "c8")
    first = await post(site, traceparent=TRACEPARENT, **{"Idempotency-Key": "k"})
    again = await post(site, traceparent=other, **{"Idempotency-Key": "k"})
    assert first.json()["id"] == again.json()["id"]
    assert await traces(site) == [TRACEPARENT]


async def test_an_update_carries_its_own_trace(site: Site) -> None:
    id = (await post(site, traceparent=TRACEPARENT)).json()["id"]
    changed = await site.client.patch(
        f"/breadcrumbs/{id}",
        json={"title": "u"},
        headers={"traceparent": TRACEPARENT.replace("b7", "c8"), "if-match": '"1"'},
    )
    assert changed.status_code == 200, changed.text
    assert await traces(site) == [TRACEPARENT, TRACEPARENT.replace("b7", "c8")]


async def test_a_request_is_a_server_span_of_its_route(site: Site) -> None:
    with recorded() as exporter:
        await post(site, **HEADERS)
        assert (await site.client.get("/sessions/none/messages", params={"limit": "5"})).status_code == 404
        assert (await site.client.get("/health")).status_code == 200
    written, read = finished(exporter)
    assert (written.name, written.kind, written.trace_id, written.parent_id) == (
        "POST /breadcrumbs", "server", TRACE_ID, CLIENT_SPAN,
    )  # fmt: skip
    assert written.attributes == {
        "http.request.method": "POST",
        "http.route": "/breadcrumbs",
        "http.response.status_code": 201,
        "url.path": "/breadcrumbs",
        "url.scheme": "http",
    }
    assert read.name == "GET /sessions/{id}/messages"
    assert (read.attributes["http.response.status_code"], read.error) == (404, False)
    assert "limit" not in repr(read)
    assert await traces(site) == [f"00-{TRACE_ID}-{written.span_id}-01 vendor=1"]


async def test_a_failing_request_sets_the_status_and_a_refused_one_does_not(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await make_site(api_keys=KEYS)

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret details")

    with recorded() as exporter:
        assert (await site.client.post("/breadcrumbs", json=MESSAGE)).status_code == 401
        monkeypatch.setattr(site.store, "create", fail)
        headers = await site.token(KEY)
        assert (await site.client.post("/breadcrumbs", json=MESSAGE, headers=headers)).status_code == 500
    spans = {span.attributes["http.response.status_code"]: span for span in finished(exporter)}
    assert (spans[401].error, spans[500].error) == (False, True)
    assert spans[500].attributes["error.type"] == "500"
    assert "secret" not in repr([span.to_json() for span in exporter.get_finished_spans()])


async def test_a_retried_message_is_a_trace_of_its_own_that_links_to_the_first(site: Site) -> None:
    model = ScriptedModel([ModelError("out of order", retry=False), "fine"])
    with recorded() as exporter:
        async with answering(site, model) as team:
            await say(site, "s", "hello")
            await retry(site, "s")
            await has(site, "s", "fine")
            await team.settled()
    spans = finished(exporter)
    posted, retried = one(spans, "POST /sessions/{id}/messages"), one(spans, "POST /sessions/{id}/retry")
    assert posted.trace_id != retried.trace_id
    first, again = (span for span in spans if span.name.startswith("retrieval"))
    assert (first.parent_id, first.links) == (posted.span_id, [])
    assert (again.parent_id, again.links) == (retried.span_id, [(posted.trace_id, posted.span_id)])
    failed, answered = (span for span in spans if span.name.startswith("invoke_agent"))
    assert (failed.parent_id, answered.parent_id) == (first.span_id, again.span_id)
    assert (failed.error, answered.error) == (True, False)


async def test_a_fork_links_to_the_trace_of_its_last_message(site: Site) -> None:
    with recorded() as exporter:
        async with answering(site, FunctionModel(echo)) as team:
            await say(site, "s", "one")
            two = await say(site, "s", "two")
            await say(site, "s", "three")
            forked = await site.client.post(
                "/sessions/s/fork", json={"message_id": two["message"]["id"], "id": "f"}
            )
            assert forked.status_code == 201
            await say(site, "f", "four")
            await team.settled()
    spans = finished(exporter)
    fork = one(spans, "POST /sessions/{id}/fork")
    _, second, _, fourth = (span for span in spans if span.name == "POST /sessions/{id}/messages")
    assert fork.links == [(second.trace_id, second.span_id)]
    assert fork.trace_id not in {second.trace_id, fourth.trace_id}
    # The copies start no turn, and they belong to no trace.
    copies = [event for event in await events_of(site.store, DEVELOPER) if event.imported]
    assert len(copies) == 3 and {event.trace for event in copies} == {None}


async def test_a_message_that_waited_for_a_pause_links_to_its_own_trace(site: Site) -> None:
    with recorded() as exporter:
        async with answering(site, FunctionModel(echo)) as team:
            await say(site, "s", "one")
            await patch(site, "s", active=False)
            await team.settled()
            await say(site, "s", "two", wait=None)
            await team.settled()
            await patch(site, "s", active=True)
            await has(site, "s", "you said: one", "you said: two")
            await team.settled()
    spans = finished(exporter)
    *_, asked = (span for span in spans if span.name == "POST /sessions/{id}/messages")
    *_, resumed = (span for span in spans if span.name == "PATCH /sessions/{id}")
    *_, built = (span for span in spans if span.name.startswith("retrieval"))
    assert built.parent_id == resumed.span_id
    assert built.links == [(asked.trace_id, asked.span_id)]
