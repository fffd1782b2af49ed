"""Isolation of two tenants with two sessions each, on every route.

Every written text has a mark with its tenant and session. Random sequences of requests use all tokens on all ids.
Every response is searched for marks and ids that its reader must not see. All tokens have the same agent id, and all
tenants use the same session names, tags and idempotency keys. So only the owner and the session can separate them.

The second part has two users of one tenant. It tries every operation on data of the other user.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import anyio
import httpx
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from breadcrumbs.adk.http import OPERATIONS as ADK_SESSIONS
from breadcrumbs.context_builder.http.context_tests import routes as CONTEXT_TESTS
from breadcrumbs.context_builder.http.contexts import routes as CONTEXTS
from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.http.api.operations import Operation
from breadcrumbs.runtime.http.app import OPERATIONS
from breadcrumbs.runtime.http.auth import Authenticator
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store.session_store import Belonging
from tests.http.conftest import KEY, KEYS, OTHER, OTHER_KEY, OWNER, Site, running_site

AGENT = UUID("cccccccc-0000-4000-8000-000000000003")
OWNERS = {"a": OWNER, "b": OTHER}
API_KEYS = {"a": KEY, "b": OTHER_KEY}
SCHEMAS = ("user.message.v1", "note.v1", "schema.def.v1")


@dataclass(frozen=True)
class Scope:
    """Tenant and session of something written or of a reader.

    The session "none" means no session. The session "shared" is visible to every session of its tenant.
    """

    tenant: str
    session: str

    def is_visible_to(self, reader: Scope) -> bool:
        return self.tenant == reader.tenant and (
            reader.session in ("none", self.session) or self.session == "shared"
        )


READERS = [Scope(tenant, session) for tenant in "ab" for session in ("none", "one", "two")]
"""A reader in no session has a token for the whole tenant."""

MARK = re.compile(r"mark-([ab])-(none|one|two|shared)-\d+")


@dataclass
class World:
    """The written breadcrumbs, selectors and links with their scopes."""

    site: Site
    tokens: dict[Scope, dict[str, str]]
    crumbs: list[tuple[str, Scope]] = field(default_factory=list)
    selectors: list[tuple[str, Scope]] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    marks: int = 0

    def mark(self, scope: Scope) -> str:
        self.marks += 1
        return f"mark-{scope.tenant}-{scope.session}-{self.marks}"

    async def ask(self, reader: Scope, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request and check that the response shows nothing that the sender must not see."""
        headers = self.tokens[reader] | options.pop("headers", {})
        answer = await self.site.client.request(method, path, headers=headers, **options)
        assert answer.status_code < 500, answer.text
        seen = answer.text + repr(sorted(answer.headers.items()))
        for tenant, session in MARK.findall(seen):
            assert Scope(tenant, session).is_visible_to(reader), f"{method} {path} shows {reader}: {seen}"
        for id, owner in (*self.crumbs, *self.selectors):
            assert id not in seen or owner.is_visible_to(reader), (
                f"{method} {path} shows {reader} an id: {seen}"
            )
        foreign = OWNERS["b" if reader.tenant == "a" else "a"]
        assert str(foreign) not in seen
        return answer


# Actions. Each takes the world, the acting scope and a number that selects a variant.


async def create(world: World, who: Scope, n: int) -> None:
    session = who.session if who.session != "none" or n % 3 == 0 else ("one", "two")[n % 2]
    scope = Scope(who.tenant, session)
    schema = SCHEMAS[n % len(SCHEMAS)]
    body: dict[str, Any] = {"schema_name": schema, "tags": ["common", f"n:{n % 3}"]}
    if schema == "schema.def.v1":
        # A definition without a session applies to the whole tenant. Others apply only in their session.
        said = replace(scope, session="shared") if session == "none" else scope
        mark = world.mark(said)
        body["tags"].append("defines:note.v1")
        body["llm_hints"] = {"mode": "merge", "transform": {"said": {"type": "literal", "literal": mark}}}
    mark = world.mark(scope)
    body |= {"title": mark, "context": {"said": mark}, "description": mark}
    if n % 5 == 0:
        body["visibility"] = "private"
    if session != "none" and who.session == "none":
        body["tags"].append(f"session:{session}")
    headers = {"Idempotency-Key": f"key-{n % 2}"} if n % 4 == 0 else {}
    answer = await world.ask(who, "POST", "/breadcrumbs", json=body, headers=headers)
    if answer.status_code == 201 and "idempotency-replayed" not in answer.headers:
        world.crumbs.append((answer.json()["id"], scope))


async def post_into_another_session(world: World, who: Scope, n: int) -> None:
    if who.session == "none":
        return
    other = "two" if who.session == "one" else "one"
    body = {"title": world.mark(who), "tags": [f"session:{other}"]}
    answer = await world.ask(who, "POST", "/breadcrumbs", json=body)
    assert answer.status_code == 403


async def read(world: World, who: Scope, n: int) -> None:
    id, scope = world.crumbs[n % len(world.crumbs)]
    path = f"/breadcrumbs/{id}{('', '/full', '/history')[n % 3]}"
    answer = await world.ask(
        who, ("GET", "HEAD")[n % 7 == 0], path, headers={"If-None-Match": '"1"'} if n % 5 == 0 else {}
    )
    if not scope.is_visible_to(who):
        assert answer.status_code == 404


async def change(world: World, who: Scope, n: int) -> None:
    id, scope = world.crumbs[n % len(world.crumbs)]
    mark = world.mark(scope if scope.tenant == who.tenant else who)
    bodies: list[dict[str, Any]] = [
        {"title": mark},
        {"context": {"said": mark}},
        {"tags": ["common", "changed"]},
        {"context": {"said": mark}, "title": mark},
    ]
    headers = [{}, {"If-Match": '"1"'}, {"If-Match": "9"}, {"Content-Type": "application/merge-patch+json"}][
        n % 4
    ]
    answer = await world.ask(who, "PATCH", f"/breadcrumbs/{id}", json=bodies[n % 4], headers=headers)
    if not scope.is_visible_to(who):
        assert answer.status_code == 404


async def delete(world: World, who: Scope, n: int) -> None:
    id, scope = world.crumbs[n % len(world.crumbs)]
    answer = await world.ask(
        who, "DELETE", f"/breadcrumbs/{id}", headers={"If-Match": '"7"'} if n % 2 else {}
    )
    if not scope.is_visible_to(who):
        assert answer.status_code == 404


async def list_some(world: World, who: Scope, n: int) -> None:
    queries: list[dict[str, Any]] = [
        {},
        {"tag": "common"},
        {"any_tags": ["common", "session:one", "session:two"]},
        {"all_tags": '["common"]', "schema_name": SCHEMAS[n % 3]},
        {"session_id": "one"},
        {"session_id": "two", "tag": "n:1"},
        {"tag": "session:one"},
        {"updated_since": "2020-01-01T00:00:00Z"},
        {"sort": "updated_at", "offset": 1},
        {"owner_id": str(OWNERS["ab"[n % 2]])},
    ]
    query = queries[n % 10]
    query |= {"include_context": "true"} if n % 3 else {}
    query |= {"limit": 1 + n % 3} if n % 2 else {}
    answer = await world.ask(who, "GET", "/breadcrumbs", params=query)
    if "next" in answer.links:
        world.links.append(answer.links["next"]["url"])


async def follow_somebodys_link(world: World, who: Scope, n: int) -> None:
    if world.links:
        await world.ask(who, "GET", world.links[n % len(world.links)])


async def save_selector(world: World, who: Scope, n: int) -> None:
    answer = await world.ask(who, "POST", "/subscriptions/selectors", json={"any_tags": [world.mark(who)]})
    assert answer.status_code == 200
    world.selectors.append((answer.json()["id"], who))


async def use_selectors(world: World, who: Scope, n: int) -> None:
    await world.ask(who, "GET", "/subscriptions/selectors")
    if world.selectors:
        id, scope = world.selectors[n % len(world.selectors)]
        method = ("PUT", "DELETE")[n % 3 == 0]
        body = (
            {"json": {"any_tags": [world.mark(scope if scope.tenant == who.tenant else who)]}}
            if method == "PUT"
            else {}
        )
        answer = await world.ask(who, method, f"/subscriptions/selectors/{id}", **body)
        if not scope.is_visible_to(who):
            assert answer.status_code == 404


async def look_at_records(world: World, who: Scope, n: int) -> None:
    other = OWNERS["ab"[n % 2]]
    method, path = [
        ("GET", "/agents"),
        ("GET", f"/agents/{AGENT}"),
        ("GET", "/tenants"),
        ("GET", f"/tenants/{other}"),
        ("DELETE", f"/tenants/{other}" if other != OWNERS[who.tenant] else "/tenants/nobody"),
        ("GET", "/hygiene/stats"),
        ("POST", "/hygiene/run"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
        ("OPTIONS", "/breadcrumbs"),
        ("GET", "/nowhere"),
        ("DELETE", f"/agents/{other}"),
    ][n % 13]
    await world.ask(who, method, path)


async def write_records(world: World, who: Scope, n: int) -> None:
    owner = OWNERS["ab"[n % 2]]
    mark = world.mark(Scope(who.tenant, "none"))
    await world.ask(who, ("POST", "PUT")[n % 2], f"/tenants/{owner}", json={"name": mark})
    await world.ask(who, "POST", f"/agents/{owner}", json={"roles": ["emitter"]}) if owner == OWNERS[
        who.tenant
    ] else None


async def ask_for_a_token(world: World, who: Scope, n: int) -> None:
    other = OWNERS["b" if who.tenant == "a" else "a"]
    headers = {} if n % 2 else {"Authorization": f"Bearer {API_KEYS[who.tenant]}"}
    answer = await world.site.client.post(
        "/auth/token", json={"owner_id": str(other)}, headers=world.tokens[who] | headers
    )
    assert answer.status_code == 403


ACTIONS: list[Callable[[World, Scope, int], Any]] = [
    create,
    create,
    read,
    read,
    change,
    delete,
    list_some,
    list_some,
    follow_somebodys_link,
    save_selector,
    use_selectors,
    look_at_records,
    write_records,
    post_into_another_session,
    ask_for_a_token,
]

STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from(READERS), st.integers(0, 419)),
    min_size=5,
    max_size=40,
)


async def play(url: str, steps: list[tuple[Any, Scope, int]]) -> None:
    async with running_site(url, api_keys=KEYS) as site:
        tokens = {}
        for reader in READERS:
            session = None if reader.session == "none" else reader.session
            principal = Principal(OWNERS[reader.tenant], AGENT, session_id=session)
            token, _ = site.app.auth.issue(principal, 600)
            tokens[reader] = {"Authorization": f"Bearer {token}"}
        world = World(site, tokens)
        for n, reader in enumerate(READERS):
            await create(world, reader, n)
            await save_selector(world, reader, n)
            await write_records(world, reader, n)
        for action, reader, n in steps:
            await action(world, reader, n)
        for n, reader in enumerate(
            READERS * 3
        ):  # finally every reader uses several lists, and reads everything
            await list_some(world, reader, 1 + n)
        for reader in READERS:
            await use_selectors(world, reader, 1)
            for id in range(len(world.crumbs)):
                await read(world, reader, id)


def test_no_reply_contains_data_of_another_tenant_or_session(
    embedded_server: EmbeddedServer,
) -> None:
    @settings(max_examples=settings().max_examples // 3, suppress_health_check=[HealthCheck.too_slow])
    @given(STEPS)
    def check(steps: list[tuple[Any, Scope, int]]) -> None:
        anyio.run(play, embedded_server.url, steps)

    check()


# Mutations: each removes one check of the isolation, and the test must fail.


def _every_token_is_the_first_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Authenticator.identify
    monkeypatch.setattr(
        Authenticator, "identify", lambda self, *given: replace(real(self, *given), owner_id=OWNER)
    )


def _narrowing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Authenticator.identify
    monkeypatch.setattr(
        Authenticator, "identify", lambda self, *given: replace(real(self, *given), session_id=None)
    )


def _lists_are_not_narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "restrict_query", lambda principal, query: query)


def _reading_by_id_looks_at_the_owner_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "may_see", lambda principal, crumb: True)


def _lists_ignore_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    from breadcrumbs.runtime.store.store import Store

    real = Store.list

    async def list_of_the_first_tenant(self: Store, owner: UUID, query: Query) -> Any:
        return await real(self, OWNER, query)

    monkeypatch.setattr(Store, "list", list_of_the_first_tenant)


def _selectors_belong_to_the_agent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "owns_selector", lambda principal, *saved_by: True)


def _definitions_speak_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    from breadcrumbs.runtime.retrieval import schema_hints

    monkeypatch.setattr(schema_hints, "applies_to_all_sessions", lambda definition: True)


WALLS = [
    _every_token_is_the_first_tenants,
    _narrowing_is_forgotten,
    _lists_are_not_narrowed,
    _reading_by_id_looks_at_the_owner_only,
    _lists_ignore_the_owner,
    _selectors_belong_to_the_agent_alone,
    _definitions_speak_for_everybody,
]


@pytest.mark.parametrize("take_down", WALLS, ids=lambda wall: wall.__name__.strip("_"))
def test_the_isolation_test_fails_when_isolation_is_removed(
    embedded_server: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
    take_down: Callable[[pytest.MonkeyPatch], None],
) -> None:
    take_down(monkeypatch)

    @settings(
        max_examples=40, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(STEPS)
    def check(steps: list[tuple[Any, Scope, int]]) -> None:
        anyio.run(play, embedded_server.url, steps)

    with pytest.raises(AssertionError):
        check()


# Every operation on data of another user

HERS = "only-ann-may-see-this"
"""Text in everything that ann writes, except in names of sessions and users that requests contain."""

NARROWED = {
    "user": {"user_id": "eve"},
    "session": {"session_id": "eves"},
    "user and session": {"user_id": "eve", "session_id": "eves"},
    "user in her session": {"user_id": "eve", "session_id": "anns"},
}

QUERIES: dict[str, str] = {
    "session_id": "anns",
    "user_id": "ann",
    "tag": "user:ann",
    "any_tags": "user:ann,session:anns",
    "all_tags": "session:anns",
    "schema_name": "user.message.v1",
    "wait": "0.1",
    "whole": "true",
    "limit": "100",
}
"""Parameter -> a value that names data of ann."""
SHOWING_MORE = {"include_context": "true", "parts": "true"}


@dataclass
class Anns:
    """Ids of everything that ann has written."""

    crumbs: list[str] = field(default_factory=list)
    selector: str = ""

    def ids(self) -> list[str]:
        return [*self.crumbs, self.selector]

    def paths(self, operation: Operation) -> list[str]:
        path = operation.path
        for name, value in (("{app}", "app"), ("{user}", "ann"), ("{session}", "s1")):
            path = path.replace(name, value)
        if "{id}" not in path:
            return [path]
        if path.startswith("/sessions"):
            named = ["anns", "adk:app:ann:s1"]
        elif path.startswith("/subscriptions"):
            named = [self.selector]
        elif path.startswith(("/agents", "/tenants")):
            named = [str(OWNER)]
        else:
            named = self.crumbs
        return [path.replace("{id}", name) for name in named]


def aimed(example: Any) -> Any:
    """Return an example body with ann's session in place of the session abc."""
    if isinstance(example, dict):
        return {name: aimed(value) for name, value in example.items()}
    if isinstance(example, list):
        return [aimed(value) for value in example]
    return example.replace("abc", "anns") if isinstance(example, str) else example


def queries(operation: Operation) -> list[dict[str, str]]:
    names = operation.query_names
    more = {name: value for name, value in SHOWING_MORE.items() if name in names}
    return [more, *({name: value, **more} for name, value in QUERIES.items() if name in names)]


async def furnished(site: Site) -> Anns:
    """Write data of every kind for ann, and a session for eve."""
    ann, eve = await site.token(KEY, user_id="ann"), await site.token(KEY, user_id="eve")
    backend = {"X-API-Key": KEY}
    hers = Anns()

    async def made(method: str, path: str, who: dict[str, str], body: Any) -> Any:
        answer = await site.client.request(method, path, json=body, headers=who)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    await made("POST", "/sessions", ann, {"id": "anns", "title": HERS, "state": {"her": HERS}})
    await made("POST", "/sessions/anns/messages", ann, {"message": HERS})
    await made("PATCH", "/sessions/anns", ann, {"state": {"more": HERS}})
    for schema in ("agent.response.v1", "agent.error.v1", "agent.context.v1", "note.v1"):
        tags = ["session:anns", "user:ann", "consumer:x"]
        context = {"message": HERS, "error": HERS, "parts": [{"text": HERS}]}
        body = {"schema_name": schema, "title": HERS, "tags": tags, "context": context}
        await made("POST", "/breadcrumbs", backend, body)
    await made("POST", "/breadcrumbs", ann, {"title": HERS, "context": {"said": HERS}})
    hers.selector = (await made("POST", "/subscriptions/selectors", ann, {"any_tags": [HERS]}))["id"]
    sessions = "/apps/app/users/ann/sessions"
    state = {"sessionId": "s1", "state": {"her": HERS, "user:her": HERS}}
    await made("POST", sessions, ann, state)
    event = {"author": "user", "content": {"role": "user", "parts": [{"text": HERS}]}}
    await made("POST", f"{sessions}/s1/events", ann, event)
    hers.crumbs = [str(crumb.id) async for crumb in site.store.walk(OWNER, Query())]
    await made("POST", "/sessions/eves/messages", eve, {"message": "mine"})
    return hers


async def everything_of_hers(site: Site, hers: Anns) -> list[Any]:
    crumbs = [crumb async for crumb in site.store.walk(OWNER, Query(sort="created_at"))]
    mine = [(str(crumb.id), crumb.version, crumb.json) for crumb in crumbs if str(crumb.id) in hers.crumbs]
    facts = [await Sessions(site.store).get(OWNER, session) for session in ("anns", "adk:app:ann:s1")]
    return [mine, facts, await site.client.get("/subscriptions/selectors", headers={"X-API-Key": KEY})]


async def streamed(site: Site, headers: dict[str, str], query: str) -> str:
    """Return the text of an event stream while ann posts a message."""
    heard = b""
    joined = anyio.Event()

    async def send(message: Any) -> None:
        nonlocal heard
        heard += message.get("body", b"")
        if b"id:" in heard or message.get("status", 200) != 200:
            joined.set()

    async def receive() -> Any:
        await anyio.sleep_forever()

    given = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/events/stream",
        "raw_path": b"/events/stream",
        "root_path": "",
        "query_string": query.encode(),
        "headers": [*given, (b"host", b"127.0.0.1:8081")],
    }
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.app, scope, receive, send)
        with anyio.fail_after(10):
            await joined.wait()
        ann = await site.token(KEY, user_id="ann")
        for path, body in (
            ("/sessions/other/messages", {"message": HERS}),
            ("/breadcrumbs", {"title": HERS}),
        ):
            assert (await site.client.post(path, json=body, headers=ann)).status_code == 201
        assert (await site.client.delete("/sessions/other", headers=ann)).status_code == 200
        await anyio.sleep(0.3)
        tasks.cancel_scope.cancel()
    return heard.decode()


async def intrude(site: Site, narrowed: dict[str, str]) -> None:
    hers = await furnished(site)
    eve = await site.token(KEY, **narrowed)
    before = await everything_of_hers(site, hers)
    # Reads follow writes, to show their effects. Deletes are last, so that reads find data.
    order = ["POST", "PUT", "PATCH", "GET", "DELETE"]
    operations = (*OPERATIONS, *ADK_SESSIONS, *CONTEXTS, *CONTEXT_TESTS)
    for operation in sorted(operations, key=lambda operation: order.index(operation.method)):
        for path in hers.paths(operation):
            for query in queries(operation):
                if operation.handle is None:
                    said = await streamed(
                        site, eve, "&".join(f"{name}={value}" for name, value in query.items())
                    )
                else:
                    body = None if operation.body is None else aimed(operation.body.example)
                    sent = {} if body is None else {"json": body}
                    answer = await site.client.request(
                        operation.method, path, params=query, headers=eve, timeout=20, **sent
                    )
                    assert answer.status_code < 500, answer.text
                    said = answer.text + repr(answer.headers)
                what = f"{operation.method} {path} {query}"
                assert HERS not in said, f"{what} shows: {said}"
                assert not [id for id in hers.ids() if id in said and id not in path], (
                    f"{what} shows an id: {said}"
                )
    after = await everything_of_hers(site, hers)
    assert after[:2] == before[:2]
    assert hers.selector in after[2].text and orjson.loads(after[2].content)[0] == before[2].json()[0]


@pytest.mark.parametrize("narrowed", NARROWED.values(), ids=NARROWED)
async def test_no_operation_shows_or_changes_data_of_another_user(
    embedded_server: EmbeddedServer, narrowed: dict[str, str]
) -> None:
    async with running_site(
        embedded_server.url, api_keys=KEYS, extra=(*ADK_SESSIONS, *CONTEXTS, *CONTEXT_TESTS)
    ) as site:
        await intrude(site, narrowed)


def _every_session_is_eves(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Sessions.belonging

    async def belonging(self: Sessions, owner: UUID, session: str) -> Belonging | None:
        found = await real(self, owner, session)
        return None if found is None else replace(found, user="eve")

    monkeypatch.setattr(Sessions, "belonging", belonging)


def _sessions_are_shown_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "may_see_session", lambda principal, session, user: True)


def _streams_tell_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "may_see_event", lambda principal, tags, private_to: True)


@pytest.mark.parametrize(
    "take_down",
    [
        _every_session_is_eves,
        _sessions_are_shown_to_all,
        _streams_tell_everything,
        _lists_are_not_narrowed,
        _reading_by_id_looks_at_the_owner_only,
    ],
    ids=lambda wall: wall.__name__.strip("_"),
)
async def test_the_test_of_every_operation_fails_when_isolation_is_removed(
    embedded_server: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
    take_down: Callable[[pytest.MonkeyPatch], None],
) -> None:
    take_down(monkeypatch)
    async with running_site(
        embedded_server.url, api_keys=KEYS, extra=(*ADK_SESSIONS, *CONTEXTS, *CONTEXT_TESTS)
    ) as site:
        with pytest.raises(AssertionError):
            await intrude(site, NARROWED["user"])
