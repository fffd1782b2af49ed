"""Two tenants, two sessions each, every route: nothing of one ever shows in an answer to another.

Whatever is written carries a mark that says whose it is. Random sequences of requests are made with the tokens
of all of them, on ids of all of them, and every answer is searched for marks and ids that its reader must not see.
All tokens carry the same agent id and all tenants use the same session names, tags and idempotency keys: what
keeps them apart must be the owner and the session, not luck.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import anyio
import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from breadcrumbs.runtime import registry
from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.embedded import EmbeddedServer
from breadcrumbs.runtime.http.auth import Authenticator
from breadcrumbs.runtime.query import Query
from tests.http.conftest import KEY, KEYS, OTHER, OTHER_KEY, OWNER, Site, running_site

AGENT = UUID("cccccccc-0000-4000-8000-000000000003")
OWNERS = {"a": OWNER, "b": OTHER}
API_KEYS = {"a": KEY, "b": OTHER_KEY}
SCHEMAS = ("user.message.v1", "note.v1", "schema.def.v1")


@dataclass(frozen=True)
class Scope:
    """Whose something is. Session "none" is in no session; "shared" is shown to every session of its tenant."""

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
    """What was written so far, and whose it is."""

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
        """Send a request, and look for what its sender must not see in the answer."""
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


# What can be done. Each takes the world, who does it, and a number to choose with.


async def create(world: World, who: Scope, n: int) -> None:
    session = who.session if who.session != "none" or n % 3 == 0 else ("one", "two")[n % 2]
    scope = Scope(who.tenant, session)
    schema = SCHEMAS[n % len(SCHEMAS)]
    body: dict[str, Any] = {"schema_name": schema, "tags": ["common", f"n:{n % 3}"]}
    if schema == "schema.def.v1":
        # A definition in no session speaks to the whole tenant; one in a session must not leave it.
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
        for n, reader in enumerate(READERS * 3):  # and at last everybody looks at everything
            await list_some(world, reader, 1 + n)
            await use_selectors(world, reader, 1)
            for id in range(len(world.crumbs)):
                await read(world, reader, id)


def test_nothing_of_a_tenant_or_session_shows_in_an_answer_to_another(
    embedded_server: EmbeddedServer,
) -> None:
    @settings(max_examples=settings().max_examples // 3, suppress_health_check=[HealthCheck.too_slow])
    @given(STEPS)
    def check(steps: list[tuple[Any, Scope, int]]) -> None:
        anyio.run(play, embedded_server.url, steps)

    check()


# Would it notice? Each of these takes one wall down.


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
    monkeypatch.setattr(Principal, "narrowed", lambda self, query: query)


def _reading_by_id_looks_at_the_owner_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Principal, "may_see", lambda self, crumb: True)


def _lists_ignore_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    from breadcrumbs.runtime.store import Store

    real = Store.list

    async def list_of_the_first_tenant(self: Store, owner: UUID, query: Query) -> Any:
        return await real(self, OWNER, query)

    monkeypatch.setattr(Store, "list", list_of_the_first_tenant)


def _selectors_belong_to_the_agent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_is_theirs", lambda principal, record: True)


def _definitions_speak_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    from breadcrumbs.runtime import schema_hints

    monkeypatch.setattr(schema_hints, "_speaks_for_all", lambda definition: True)


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
def test_the_test_above_fails_where_a_wall_is_missing(
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
