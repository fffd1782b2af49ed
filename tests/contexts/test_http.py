"""Explain and preview over HTTP: as documented, and within the rights of the token."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import httpx
import jsonschema_rs
import pytest

from breadcrumbs.context_builder.explain import explain
from breadcrumbs.context_builder.http.contexts import routes as CONTEXTS
from breadcrumbs.context_builder.rebuild import rebuild
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.selectors import parse_selector
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.http.app import Application, build_app
from breadcrumbs.runtime.http.routes.stream_filter import StreamFilter
from breadcrumbs.runtime.http.routes.stream_frames import FrameRenderer
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.conditions import Evaluation
from breadcrumbs.runtime.streams.hub import EventHub
from breadcrumbs.runtime.streams.subscription import Subscription
from tests.contexts.support import MESSAGES, OWNER, book_of, building, context_of, document, post
from tests.support.events import close_with_reader, reader_of

KEY = "a-key-of-the-owner-of-these-contexts"
ALL = {"key": "old", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "all", "limit": 50}}
WIDE = document(sources=[MESSAGES, ALL])


@dataclass
class Site:
    app: Application
    store: Store
    client: httpx.AsyncClient

    async def token(self, **wanted: Any) -> dict[str, str]:
        answer = await self.client.post("/auth/token", json=wanted, headers={"X-API-Key": KEY})
        assert answer.status_code == 200, answer.text
        return {"Authorization": f"Bearer {answer.json()['token']}"}

    async def explain(self, id: UUID, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
        answer = await self.client.get(
            f"/contexts/{id}/explain", params=query, headers=headers or {"X-API-Key": KEY}
        )
        return self._checked(answer, "/contexts/{id}/explain", "get")

    async def preview(self, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        answer = await self.client.post("/contexts/preview", json=body, headers=headers or {"X-API-Key": KEY})
        return self._checked(answer, "/contexts/preview", "post")

    def _checked(self, answer: httpx.Response, path: str, method: str) -> httpx.Response:
        """Check a response against the OpenAPI document and return it."""
        described = self.app.document["paths"][path][method]["responses"][str(answer.status_code)]
        schema = described["content"][answer.headers["content-type"]]["schema"]
        jsonschema_rs.validate({**schema, "components": self.app.document["components"]}, answer.json())
        return answer


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Site]:
    chosen = Settings(**settings)
    store = await Store.open(url, namespace=f"c{secrets.token_hex(6)}")
    hub = EventHub(store, reader_of(store))
    try:
        app = build_app(store, hub, Hygiene(store, chosen), chosen, tuple(CONTEXTS))
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8081") as client:
            yield Site(app, store, client)
    finally:
        await hub.close()
        await close_with_reader(store)


@pytest.fixture
async def site(embedded_server: EmbeddedServer) -> AsyncIterator[Site]:
    keys = (
        {"key": KEY, "owner_id": str(OWNER)},
        {"key": "of-somebody-else-entirely", "owner_id": str(uuid4())},
    )
    async with opened(embedded_server.url, api_keys=keys) as site:
        yield site


async def talk(store: Store, config: dict[str, Any] = WIDE) -> UUID:
    """Post in two sessions. Return the context of the second, which has items of the first."""
    async with building(store, book_of(store, config)) as builder:
        await builder.say("said in one", "one", tags=("user:ada",))
        await builder.say("first in two", "two", tags=("user:bob",))
        await builder.say("second in two", "two", tags=("user:bob",))
    return context_of(store, "two")


def excerpts(answer: httpx.Response) -> list[str | None]:
    assert answer.status_code == 200, answer.text
    return [item.get("excerpt") for item in answer.json()["items"]]


async def test_a_context_is_explained(site: Site) -> None:
    context = await talk(site.store)
    answer = await site.explain(context)
    assert excerpts(answer) == ["first in two", "said in one", "second in two"]
    told = answer.json()
    assert (told["context_id"], told["version"], told["session_id"]) == (str(context), 2, "two")
    assert [item["place"] for item in told["items"]] == ["conversation", "elsewhere", "conversation"]
    reuse = told["reuse"]
    assert (reuse["previous_version"], reuse["items"], reuse["bytes"]) == (1, 0, 0)
    assert (reuse["broken"]["item"]["title"], reuse["broken"]["before"]["title"]) == (
        "first in two",
        "said in one",
    )
    assert excerpts(await site.explain(context, version=1)) == ["said in one", "first in two"]


async def test_an_explanation_of_large_breadcrumbs_is_paged(embedded_server: EmbeddedServer) -> None:
    large = {"text": "x" * 20_000}
    keys = ({"key": KEY, "owner_id": str(OWNER)},)
    async with opened(embedded_server.url, api_keys=keys, max_response_bytes=50_000) as site:
        sources = [
            {**MESSAGES, "fetch": {"limit": 40}},
            {"key": "notes", "schema_name": "note.v1", "fetch": {"limit": 50, "conversation_scope": "all"}},
        ]
        wide = document(sources=sources, formatting={"max_tokens": 200_000})
        async with building(site.store, book_of(site.store, wide)) as builder:
            for number in range(30):
                await post(site.store, f"note {number}", session="other", schema="note.v1", context=large)
            await builder.say("first", "two")
            await builder.say("second", "two")
        context = context_of(site.store, "two")
        for version in (1, 2):
            pages = [(await site.explain(context, version=version, parts=True)).json()]
            while "next_cursor" in pages[-1]:
                pages.append(
                    (await site.explain(context, parts=True, cursor=pages[-1]["next_cursor"])).json()
                )
            assert len(pages) > 2
            items = [item for page in pages for item in page["items"] + page["left_out"]]
            explained = await explain(site.store, OWNER, context, version)
            ids = [item.id for item in explained.items] + [out.id for out in explained.left_out]
            assert [item["id"] for item in items] == ids
            assert len({item["id"] for item in items}) == len(items) == 30 + version
            shown = [item["id"] for page in pages for part in page["parts"] for item in part["items"]]
            rebuilt = await rebuild(site.store, OWNER, context, version)
            assert rebuilt.same
            assert sorted(shown) == sorted(item["id"] for part in rebuilt.parts for item in part["items"])
        for query in ({"cursor": "x"}, {"cursor": "1.0.0"}, {"cursor": "1.8", "version": 2}):
            answer = await site.explain(context, **query)
            assert (answer.status_code, answer.json()["type"]) == (422, "/docs#problem-invalid-cursor")


async def test_a_narrowed_token_sees_only_permitted_items_of_a_context(site: Site) -> None:
    context = await talk(site.store)
    for narrowed in ({"session_id": "two"}, {"user_id": "bob"}):
        answer = await site.explain(context, await site.token(**narrowed))
        assert excerpts(answer) == ["first in two", None, "second in two"]
        hidden = answer.json()["items"][1]
        assert hidden == {
            "source": "old",
            "number": 1,
            "place": "elsewhere",
            "rank": 2,
            "tokens": 3,
            "hidden": True,
        }
        assert answer.json()["reuse"]["broken"]["before"] == {
            "source": "old",
            "place": "elsewhere",
            "hidden": True,
        }
    for narrowed in ({"session_id": "one"}, {"user_id": "ada"}):
        assert (await site.explain(context, await site.token(**narrowed))).status_code == 404


async def raw_contexts(site: Site, context: UUID, token: dict[str, str]) -> dict[str, str]:
    """Read the breadcrumb of a context through every route."""
    answers = {
        path: await site.client.get(path, headers=token)
        for path in (
            f"/breadcrumbs/{context}",
            f"/breadcrumbs/{context}/full",
            f"/breadcrumbs/{context}/history",
            "/breadcrumbs?include_context=true&schema_name=agent.context.v1",
        )
    }
    assert all(answer.status_code == 200 for answer in answers.values()), answers
    principal = site.app.auth.identify({b"authorization": token["Authorization"].encode()})
    subscription = Subscription(StreamFilter(principal, [], []))
    renderer = FrameRenderer(site.app.hub.encode_position, rcrt_events=True)
    start = [0] * site.store.lanes
    replayed = [renderer.render([value]) async for value in site.app.hub.catch_up(subscription, start)]
    await site.store.update(OWNER, context, BreadcrumbUpdate(title="touched"))
    live = renderer.render(await subscription.take(5))
    site.app.hub.leave(subscription)
    found = {path: answer.text for path, answer in answers.items()}
    found["replay"] = b"".join(frame for frame in replayed if str(context).encode() in frame).decode()
    return found | {"stream": live.decode()}


async def test_a_narrowed_token_sees_the_same_items_in_the_context_breadcrumb(site: Site) -> None:
    """No route of breadcrumbs shows more than explain."""
    async with building(site.store, book_of(site.store, WIDE)) as builder:
        await builder.say("said in one", "one", tags=("user:ada",))
        await post(site.store, "kept by ada", tags=("user:ada",))
        await post(site.store, "for everybody")
        await builder.say("ada in two", "two", tags=("user:ada",))
        await builder.say("bob in one", "one", tags=("user:bob",))
        await builder.say("bob in two", "two", tags=("user:bob",))
    context = context_of(site.store, "two")
    texts = ("said in one", "kept by ada", "for everybody", "ada in two", "bob in one", "bob in two")
    may_see = {
        (): set(texts),
        (("session_id", "two"),): {"for everybody", "ada in two", "bob in two"},
        (("user_id", "bob"),): {"for everybody", "bob in one", "bob in two"},
        (("session_id", "two"), ("user_id", "bob")): {"for everybody", "bob in two"},
    }
    for narrowed, seen in may_see.items():
        for way, body in (await raw_contexts(site, context, await site.token(**dict(narrowed)))).items():
            assert {text for text in texts if text in body} == seen, (narrowed, way)


async def test_a_narrowed_token_cannot_disguise_a_context_to_read_it(site: Site) -> None:
    context = await talk(site.store)
    bob = await site.token(user_id="bob")
    change = {
        "schema_name": "a.note.v1",
        "tags": ["user:bob", "session:two"],
        "context": {"consumer_id": None, "explain": None},
    }
    headers = bob | {"Content-Type": "application/merge-patch+json"}
    changed = await site.client.patch(f"/breadcrumbs/{context}", json=change, headers=headers)
    assert changed.status_code == 200, changed.text
    for way in ("", "/full", "/history"):
        body = (await site.client.get(f"/breadcrumbs/{context}{way}", headers=bob)).text
        assert "second in two" in body and "said in one" not in body, way


async def test_filters_of_a_narrowed_token_do_not_use_hidden_content(site: Site) -> None:
    context = await site.store.get(OWNER, await talk(site.store))
    path = "$.parts[*].items[*].content.message"
    for text, told in (("said in one", False), ("second in two", True)):
        selector = parse_selector({"context_match": [{"path": path, "op": "eq", "value": text}]})
        principal = Principal(OWNER, UUID(int=1), session_id="two")
        event = Event("updated", OWNER, context.id, context.version, "x", context.tags, None, 0, 0)
        seen = Evaluation(context)  # one for all tokens, like in the hub
        assert StreamFilter(principal, [selector], []).accepts(event, seen) is told
        assert StreamFilter(Principal(OWNER, UUID(int=1)), [selector], []).accepts(event, seen)
        assert StreamFilter(principal, [selector], []).accepts(event, seen) is told


async def test_another_owner_sees_no_context(site: Site) -> None:
    context = await talk(site.store)
    assert (await site.explain(context, {"X-API-Key": "of-somebody-else-entirely"})).status_code == 404


async def test_items_that_became_secret_are_hidden_in_older_contexts(site: Site) -> None:
    context = await talk(site.store)
    told = (await site.explain(context)).json()
    await site.store.update(OWNER, UUID(told["items"][0]["id"]), BreadcrumbUpdate(sensitivity="secret"))
    reader = await site.token(roles=["subscriber"])
    for version in (1, 2):
        assert "first in two" not in (await site.explain(context, reader, version=version)).text
    assert "first in two" in (await site.explain(context)).text  # a curator can see it


@pytest.mark.parametrize(
    ("id", "query", "status"),
    [
        ("not-a-uuid", {}, 422),
        ("00000000-0000-4000-8000-000000000000", {}, 404),
        ("context", {"version": "0"}, 422),
        ("context", {"version": "x"}, 422),
        ("context", {"version": "99"}, 404),
        ("context", {"versoin": "1"}, 422),
        ("message", {}, 404),
    ],
)
async def test_an_impossible_explanation_is_refused(
    site: Site, id: str, query: dict[str, str], status: int
) -> None:
    context = await talk(site.store)
    message = (await site.explain(context)).json()["trigger_id"]
    named = {"context": str(context), "message": message}.get(id, id)
    assert (await site.explain(named, **query)).status_code == status  # type: ignore[arg-type]


async def test_a_preview_shows_the_context_of_the_given_config(site: Site) -> None:
    await talk(site.store)
    answer = await site.preview(session_id="two", config=document(formatting={"max_tokens": 3}))
    assert excerpts(answer) == ["second in two"]
    told = answer.json()
    assert told["left_out"][0] | {"id": "", "created_at": ""} == {
        "source": "conversation", "number": 0, "reason": "over budget", "tokens": 3, "id": "", "version": 1,
        "schema_name": "user.message.v1", "created_at": "", "title": "first in two",
    }  # fmt: skip
    assert told["parts"][0]["items"][0]["content"] == {"message": "second in two"}


async def test_a_preview_of_a_given_message_and_one_of_several_configs(site: Site) -> None:
    first = (await site.explain(await talk(site.store), version=1)).json()["trigger_id"]
    several = [document(), document(consumer_id="second")]
    answer = await site.preview(session_id="two", config=several, consumer_id="second", trigger_id=first)
    assert excerpts(answer) == ["first in two"] and answer.json()["consumer_id"] == "second"
    for consumer in (None, "third"):
        refused = await site.preview(session_id="two", config=several, consumer_id=consumer)
        assert refused.status_code == 422 and refused.json()["errors"][0]["where"] == "consumer_id"


async def test_a_preview_hides_items_that_the_token_cannot_see(site: Site) -> None:
    """The client chooses the config, which must not bypass the limits of its token."""
    await talk(site.store)
    mine, reader = UUID(int=7), {"roles": ["subscriber"]}
    await post(site.store, "private note", session="two", visibility="private", by=mine)
    await post(site.store, "secret note", session="two", sensitivity="secret")
    every = {
        "key": "x",
        "schema_name": "user.message.v1",
        "fetch": {"conversation_scope": "all", "limit": 50},
    }
    session = {"session_id": "two", "config": document(sources=[every])}
    told = await site.preview(await site.token(**reader), **session)
    assert "said in one" in told.text
    assert "private note" not in told.text and "secret note" not in told.text
    for narrowed in ({"session_id": "two"}, {"user_id": "bob"}):
        told = await site.preview(await site.token(**narrowed, **reader), **session)
        assert excerpts(told) == ["first in two", "second in two"]
        assert told.json()["sources"][0]["found"] == 2  # the number of hidden items is not shown
        assert "said in one" not in told.text
    other = await site.token(session_id="one", **reader)
    assert (await site.preview(other, **session)).status_code == 404
    elsewhere = await site.token(user_id="ada", **reader)
    assert (await site.preview(elsewhere, **session)).status_code == 404


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"session_id": "two"}, "config"),
        ({"config": document()}, "session_id"),
        ({"session_id": "two", "config": document(), "extra": 1}, "extra"),
        ({"session_id": "", "config": document()}, "session_id"),
        ({"session_id": "two", "config": document(), "trigger_id": "x"}, "trigger_id"),
        ({"session_id": "two", "config": 7}, "config"),
        ({"session_id": "two", "config": []}, "config"),
        ({"session_id": "two", "config": document(sourcs=[])}, "config.sourcs"),
        ({"session_id": "two", "config": document(update_triggers=[{}])}, "config.update_triggers.0"),
        (
            {"session_id": "two", "config": [document(formatting={"max_tokens": -1})]},
            "config.0.formatting.max_tokens",
        ),
    ],
)
async def test_an_invalid_request_is_refused_with_its_location(
    site: Site, body: dict[str, Any], where: str
) -> None:
    answer = await site.preview(**body)
    assert answer.status_code == 422 and where in [error["where"] for error in answer.json()["errors"]]


async def test_a_secret_message_has_no_preview(site: Site) -> None:
    secret = await post(site.store, "hush", session="s", sensitivity="secret")
    answer = await site.preview(session_id="s", config=document(), trigger_id=str(secret.id))
    assert answer.status_code == 422 and "must not be shown to a model" in answer.text


async def test_reading_needs_the_role_subscriber(site: Site) -> None:
    writer = await site.token(roles=["emitter"])
    assert (await site.explain(uuid4(), writer)).status_code == 403
    assert (await site.preview(writer, session_id="s", config=document())).status_code == 403
    assert (await site.client.post("/contexts/preview", json={})).status_code == 401


async def test_the_operations_are_in_the_document_and_on_the_docs_page(site: Site) -> None:
    document = (await site.client.get("/openapi.json")).json()
    assert {"/contexts/{id}/explain", "/contexts/preview"} <= set(document["paths"])
    example = document["paths"]["/contexts/preview"]["post"]["requestBody"]["content"]["application/json"]
    jsonschema_rs.validate({**example["schema"], "components": document["components"]}, example["example"])
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)
    page = (await site.client.get("/docs")).text
    assert "Explain a context" in page


def made_up(items: list[list[Any]]) -> dict[str, Any]:
    """Return a breadcrumb that looks like a context, with references of the client's choice."""
    explain = {"tokens": 1, "budget": 1, "counted_by": "estimate", "checksum": "x", "notes": []}
    explain |= {"sources": [{"key": "k"}], "items": items, "left_out": []}
    context = {
        "consumer_id": "z",
        "trigger_id": str(uuid4()),
        "trigger_version": 1,
        "as_of": 1,
        "config": "x",
    }
    return {"schema_name": "agent.context.v1", "context": {**context, "explain": explain}}


async def test_explain_reveals_nothing_about_invented_ids_to_a_narrowed_token(site: Site) -> None:
    foreign = await post(site.store, "foreign", session="other")
    narrowed = await site.token(session_id="mine")
    items = [
        [str(id), version, 0, "c", 0, 1] for id, version in ((foreign.id, 1), (foreign.id, 7), (uuid4(), 1))
    ]
    posted = await site.client.post("/breadcrumbs", json=made_up(items), headers=narrowed)
    explained = await site.client.get(f"/contexts/{posted.json()['id']}/explain", headers=narrowed)
    first, *others = explained.json()["items"]
    assert first["hidden"] and others == [first, first]


async def test_a_dangling_reference_counts_towards_the_page(site: Site) -> None:
    posted = await site.client.post(
        "/breadcrumbs",
        json=made_up([[str(uuid4()), 1, 0, "c", 0, 1] for _ in range(6_000)]),
        headers={"X-API-Key": KEY},
    )
    page = (
        await site.client.get(f"/contexts/{posted.json()['id']}/explain", headers={"X-API-Key": KEY})
    ).json()
    assert len(page["items"]) < 6_000 and page["next_cursor"]
