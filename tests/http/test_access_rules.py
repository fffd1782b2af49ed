"""Rules of the access policy that need more than one request, or more than one way to try them.

The table in access_table.py covers every operation once. Here each rule has its own test: naming users, session
records, selectors in streams, agents of API keys, deleted sessions, and the user of a source of scope `user`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import anyio
import httpx
import pytest

from breadcrumbs.context_builder.http.contexts import routes as CONTEXTS
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from tests.contexts.support import MESSAGES, book_of, building, document
from tests.http.access_table import readers_of
from tests.http.access_world import (
    ADK_ANN,
    AGENT,
    APP,
    BY_AGENT,
    CLIENT_ROLES,
    CURATOR,
    MARKER,
    Template,
    World,
    copied,
    marker,
    pings,
    read_stream,
    written_template,
)
from tests.http.conftest import KEY, OTHER, OTHER_KEY, OWNER, MakeSite, Site, problem

Headers = dict[str, str]


@pytest.fixture(scope="module")
async def template(embedded_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Template:
    return await written_template(embedded_server.url, tmp_path_factory.mktemp("world"))


@pytest.fixture
async def world(embedded_server: EmbeddedServer, template: Template) -> AsyncIterator[World]:
    async with copied(embedded_server.url, template) as world:
        yield world


async def token(world: World, **wanted: Any) -> Headers:
    answer = await world.client.post(
        "/auth/token", json={"roles": CLIENT_ROLES, **wanted}, headers={"X-API-Key": KEY}
    )
    assert answer.status_code == 200, answer.text
    return {"Authorization": f"Bearer {answer.json()['token']}"}


async def crumb(world: World, id: str) -> dict[str, Any]:
    answer = await world.client.get(f"/breadcrumbs/{id}/full", headers=CURATOR)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def post(world: World, who: Headers, **fields: Any) -> str:
    answer = await world.client.post("/breadcrumbs", json=fields, headers=who)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def record_of(world: World, session: str) -> str:
    query = {"schema_name": "session.v1", "session_id": session}
    (record,) = (await world.client.get("/breadcrumbs", params=query, headers=CURATOR)).json()
    return str(record["id"])


def ids_of(world: World, target: str, kind: str = "crumb") -> str:
    return world.template.targets[target][kind]


# Naming users


@dataclass(frozen=True)
class Naming:
    """One way to name a user in a request."""

    method: str
    path: str
    body: Callable[[str], Any]
    """User -> the body of the request."""
    merge: bool = False


def _note(**fields: Any) -> dict[str, Any]:
    return {"schema_name": "note.v1", "title": "new", **fields}


NAMINGS = {
    "tag": Naming("POST", "/breadcrumbs", lambda user: _note(tags=[f"user:{user}"])),
    "tag among others": Naming("POST", "/breadcrumbs", lambda user: _note(tags=["user:message", f"user:{user}"])),
    "context.user_id": Naming("POST", "/breadcrumbs", lambda user: _note(context={"user_id": user})),
    "session record": Naming(
        "POST", "/breadcrumbs", lambda user: {"schema_name": "session.v1", "context": {"user_id": user}}
    ),
    "tag of a message": Naming(
        "POST", "/sessions/s-own/messages", lambda user: {"message": "new", "tags": [f"user:{user}"]}
    ),
    "user_id of a message": Naming(
        "POST", "/sessions/s-own/messages", lambda user: {"message": "new", "context": {"user_id": user}}
    ),
    "PATCH of tags": Naming(
        "PATCH", "/breadcrumbs/{crumb}", lambda user: {"tags": ["session:s-own", f"user:{user}"]}
    ),
    "PATCH of context.user_id": Naming(
        "PATCH", "/breadcrumbs/{crumb}", lambda user: {"context": {"user_id": user}}
    ),
    "merge patch of context.user_id": Naming(
        "PATCH", "/breadcrumbs/{crumb}", lambda user: {"context": {"user_id": user}}, merge=True
    ),
    "PATCH into a session record": Naming(
        "PATCH",
        "/breadcrumbs/{crumb}",
        lambda user: {"schema_name": "session.v1", "context": {"user_id": user}},
    ),
    "PATCH of the session record": Naming(
        "PATCH", "/breadcrumbs/{record}", lambda user: {"context": {"user_id": user}}
    ),
    "merge patch of the session record": Naming(
        "PATCH", "/breadcrumbs/{record}", lambda user: {"context": {"user_id": user}}, merge=True
    ),
}  # fmt: skip

NAMERS = [("session", "bob"), ("session", "ann"), ("s+cur", "bob"), ("user", "bob"), ("s+user", "bob")]
"""Kinds of principals, and a user that they must not name. A session token cannot name the session's user."""


async def named(world: World, who: Headers, way: Naming, user: str, target: str) -> httpx.Response:
    path = way.path.replace("{crumb}", target).replace("{record}", await record_of(world, "s-own"))
    kind = "application/merge-patch+json" if way.merge else "application/json"
    return await world.client.request(
        way.method, path, json=way.body(user), headers={**who, "content-type": kind}
    )


@pytest.mark.parametrize("way", NAMINGS.values(), ids=NAMINGS)
async def test_a_narrowed_token_cannot_name_another_user(world: World, way: Naming) -> None:
    wrong = []
    for principal, user in NAMERS:
        # A user token does not see the breadcrumb without its tag. The other breadcrumb already names ann.
        target = ids_of(world, "own" if "user" in principal else "untagged")
        if way.path.endswith("{record}") and user == "ann":
            continue  # the record names ann already
        before = world.snapshot()
        answer = await named(world, world.template.principals[principal], way, user, target)
        if answer.status_code != 403 or world.snapshot() != before:
            changed = "" if world.snapshot() == before else " and changed the store"
            wrong.append(f"{principal} names {user}: got {answer.status_code}{changed} {answer.text[:160]}")
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


@pytest.mark.parametrize("narrowing", [{}, {"user_id": "ann"}], ids=["session", "session and user"])
async def test_a_token_for_a_new_session_cannot_begin_it_for_another_user(
    world: World, narrowing: dict[str, str]
) -> None:
    who = await token(world, session_id="s-fresh", **narrowing)
    before = world.snapshot()
    refused = await world.client.post("/sessions", json={"user_id": "bob"}, headers=who)
    problem(refused, 403, "forbidden")
    assert world.snapshot() == before
    begun = await world.client.post("/sessions", json={}, headers=who)
    assert begun.status_code == 201
    assert begun.json().get("user_id") == narrowing.get("user_id")


@pytest.mark.parametrize("spelling", ["", "/api"])
@pytest.mark.parametrize("with_id", [True, False], ids=["id in the path", "id in the body"])
async def test_a_session_token_cannot_create_an_adk_session_because_it_names_a_user(
    world: World, spelling: str, with_id: bool
) -> None:
    sessions = f"{spelling}/apps/{APP}/users/bob/sessions"
    path, body = (f"{sessions}/b9", {}) if with_id else (sessions, {"sessionId": "b9"})
    for narrowing in ({}, {"user_id": "ann"}):
        who = await token(world, session_id=f"adk:{APP}:bob:b9", **narrowing)
        before = world.snapshot()
        problem(await world.client.post(path, json=body, headers=who), 403, "forbidden")
        assert world.snapshot() == before
    who = await token(world, session_id=f"adk:{APP}:bob:b9", user_id="bob")
    assert (await world.client.post(path, json=body, headers=who)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/sessions", {}),
        ("/sessions", {"id": f"adk:{APP}:bob:b9"}),
        ("/breadcrumbs", {"schema_name": "note.v1"}),
        (f"/sessions/adk:{APP}:bob:b9/messages", {"message": "new"}),
    ],
    ids=["POST /sessions", "POST /sessions with the id", "POST /breadcrumbs", "POST messages"],
)
async def test_a_session_token_cannot_begin_a_session_with_the_name_of_an_adk_session(
    world: World, path: str, body: dict[str, str]
) -> None:
    """Such a name contains a user."""
    who = await token(world, session_id=f"adk:{APP}:bob:b9")
    before = world.snapshot()
    refused = await world.client.post(path, json=body, headers=who)
    assert refused.status_code in (403, 404), f"got {refused.status_code} {refused.text[:160]}"
    assert world.snapshot() == before


async def test_a_session_token_works_in_its_existing_adk_session(world: World) -> None:
    path = f"/apps/{APP}/users/ann/sessions/a1"
    event = {"author": "user", "content": {"role": "user", "parts": [{"text": "new"}]}}
    assert (await world.send("adk", "POST", f"{path}/events", json=event)).status_code == 200
    assert (await world.send("adk", "PATCH", path, json={"stateDelta": {"step": 2}})).status_code == 200
    assert (await world.send("adk", "GET", path)).json()["state"]["step"] == 2
    assert (await world.send("adk", "DELETE", path)).status_code == 200


@pytest.mark.parametrize("key", ["user:city", "app:motto"])
@pytest.mark.parametrize("way", ["state", "event", "record"])
async def test_a_session_token_cannot_change_shared_state(world: World, key: str, way: str) -> None:
    path = f"/apps/{APP}/users/ann/sessions/a1"
    delta = {key: "new"}
    before = world.snapshot()
    if way == "state":
        answer = await world.send("adk", "PATCH", path, json={"stateDelta": delta})
    elif way == "event":
        event = {"author": "agent", "actions": {"stateDelta": delta}}
        answer = await world.send("adk", "POST", f"{path}/events", json=event)
    else:
        body = {"context": {"shared_state_delta": {"app": delta, "user": delta}}}
        answer = await world.send("adk", "PATCH", f"/breadcrumbs/{ids_of(world, 'adkrecord')}", json=body)
    problem(answer, 403, "forbidden")
    assert world.snapshot() == before


async def test_a_user_token_changes_the_state_of_its_user_and_not_of_the_app(world: World) -> None:
    path = f"/apps/{APP}/users/ann/sessions/a1"
    changed = await world.send("user", "PATCH", path, json={"stateDelta": {"user:city": "Oslo"}})
    assert changed.status_code == 200 and changed.json()["state"]["user:city"] == "Oslo"
    problem(
        await world.send("user", "PATCH", path, json={"stateDelta": {"app:motto": "x"}}), 403, "forbidden"
    )


async def test_the_tag_of_every_message_is_not_a_user(world: World) -> None:
    for principal in ("session", "s+cur", "user", "s+user"):
        who = world.template.principals[principal]
        await post(world, who, schema_name="user.message.v1", tags=["user:message"], context={"message": "x"})


async def test_the_runtime_adds_the_stored_user_to_a_message(world: World) -> None:
    said = await world.send("session", "POST", "/sessions/s-own/messages", json={"message": "new"})
    assert "user:ann" in (await crumb(world, said.json()["message"]["id"]))["tags"]
    free = await token(world, session_id="s-nouser")
    said = await world.client.post("/sessions/s-nouser/messages", json={"message": "new"}, headers=free)
    tags = (await crumb(world, said.json()["message"]["id"]))["tags"]
    assert [tag for tag in tags if tag.startswith("user:") and tag != "user:message"] == []


@pytest.mark.parametrize("principal", ["user", "s+user"])
async def test_a_user_token_can_name_its_own_user(world: World, principal: str) -> None:
    who = world.template.principals[principal]
    await post(world, who, **_note(tags=["user:ann"], context={"user_id": "ann"}))
    body = {"message": "new", "tags": ["user:ann"]}
    assert (await world.send(principal, "POST", "/sessions/s-own/messages", json=body)).status_code == 201


async def test_an_unnarrowed_token_can_name_any_user(world: World) -> None:
    for who in (CURATOR, BY_AGENT):
        await post(world, who, **_note(tags=["user:bob", "session:s-own"], context={"user_id": "bob"}))
        begun = await world.client.post("/sessions", json={"user_id": "bob"}, headers=who)
        assert begun.json()["user_id"] == "bob"


async def test_a_fork_keeps_the_user_of_its_origin(world: World) -> None:
    fork = await world.send("user", "POST", "/sessions/s-own/fork", json={"id": "s-fork"})
    assert fork.status_code == 201 and fork.json()["user_id"] == "ann"
    problem(await world.send("session", "POST", "/sessions/s-own/fork", json={}), 403, "forbidden")


# Session records and state

NARROWED = ("session", "s+cur", "user", "s+user")


@pytest.mark.parametrize("principal", NARROWED)
async def test_a_narrowed_token_cannot_write_a_session_record(world: World, principal: str) -> None:
    record, own = await record_of(world, "s-own"), ids_of(world, "own")
    before = world.snapshot()
    wrong = []
    for method, path, body in (
        ("POST", "/breadcrumbs", {"schema_name": "session.v1", "context": {"title": "new"}}),
        ("PATCH", f"/breadcrumbs/{own}", {"schema_name": "session.v1"}),
        ("PATCH", f"/breadcrumbs/{record}", {"title": "new"}),
        ("PATCH", f"/breadcrumbs/{record}", {"context": {"title": "new"}}),
        ("PATCH", f"/breadcrumbs/{record}", {"schema_name": "note.v1"}),
    ):
        answer = await world.send(principal, method, path, json=body)
        if answer.status_code != 403:
            wrong.append(f"{method} {path} {body}: got {answer.status_code} {answer.text[:120]}")
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
    assert world.snapshot() == before


@pytest.mark.parametrize("schema", ["session.state.v1", "adk.event.v1", "agent.response.v1"])
@pytest.mark.parametrize("principal", ["user", "s+user"])
async def test_a_user_token_cannot_post_a_change_of_state(world: World, principal: str, schema: str) -> None:
    body = {"schema_name": schema, "tags": ["session:s-own"], "context": {"state_delta": {"x": 1}}}
    before = world.snapshot()
    problem(await world.send(principal, "POST", "/breadcrumbs", json=body), 403, "forbidden")
    assert world.snapshot() == before


@pytest.mark.parametrize("principal", ["session", "user", "s+user"])
async def test_a_change_by_a_narrowed_token_keeps_every_user_tag(world: World, principal: str) -> None:
    tags = ["session:s-own", "user:ann", "user:bob", "old"]
    id = await post(world, CURATOR, **_note(tags=tags))
    for changed in (["new"], [], ["session:s-own", "user:bob"]):
        answer = await world.send(principal, "PATCH", f"/breadcrumbs/{id}", json={"tags": changed})
        assert answer.status_code == 200, answer.text
        kept = (await crumb(world, id))["tags"]
        assert {"session:s-own", "user:ann", "user:bob"} <= set(kept) and "old" not in kept


async def test_a_token_for_a_foreign_session_and_a_user_cannot_change_it(world: World) -> None:
    """The breadcrumb carries both tags of the token, but its session belongs to bob."""
    who = await token(world, session_id="s-bob", user_id="ann")
    path = f"/breadcrumbs/{ids_of(world, 'annbob')}"
    assert (await world.client.get(path, headers=who)).status_code == 200
    before = world.snapshot()
    problem(await world.client.patch(path, json={"title": "new"}, headers=who), 403, "forbidden")
    problem(await world.client.delete(path, headers=who), 403, "forbidden")
    assert (await world.client.get("/sessions/s-bob", headers=who)).status_code == 404
    posted = await world.client.post("/sessions/s-bob/messages", json={"message": "x"}, headers=who)
    assert posted.status_code == 404
    assert world.snapshot() == before


@pytest.mark.parametrize("forker", ["curator", "agent", "user"])
async def test_a_fork_shows_no_more_than_its_origin(world: World, forker: str) -> None:
    made = await world.send(forker, "POST", "/sessions/s-own/fork", json={"id": "s-fork"})
    assert made.status_code == 201, made.text
    views = (
        "/sessions/s-fork",
        "/sessions/s-fork/messages",
        "/breadcrumbs?session_id=s-fork&include_context=true",
    )
    wrong = []
    for reader in ("curator", "subscr", "agent", "user"):
        for view in views:
            answer = await world.send(reader, "GET", view)
            assert answer.status_code == 200, answer.text
            wrong += [
                f"{reader} reads {kind} of {target} in {view}"
                for kind, target in dict.fromkeys(MARKER.findall(answer.text))
                if reader not in readers_of(kind, target)
            ]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


# Selectors in streams


@pytest.mark.parametrize("principal", ["session", "user", "s+user"])
async def test_a_narrowed_token_streams_with_its_own_selectors_only(world: World, principal: str) -> None:
    own = {"session": "selses", "user": "selusr", "s+user": "selsu"}[principal]
    unknown = await world.stream(principal, {"selector_id": str(uuid4())})
    assert unknown.status_code == 404
    for name in {"selcur", "selagt", "selses", "selusr", "selsu", "selfar"} - {own}:
        answer = await world.stream(principal, {"selector_id": ids_of(world, name, "selector")})
        assert (answer.status_code, answer.text) == (404, unknown.text), name
    used = await world.stream(principal, {"selector_id": ids_of(world, own, "selector")})
    assert used.status_code == 200 and marker("crumb", "own") not in used.text  # the selector matches nothing


@pytest.mark.parametrize("principal", ["session", "user", "s+user"])
async def test_selectors_of_another_agent_do_not_filter_the_stream_of_a_narrowed_token(
    world: World, principal: str
) -> None:
    for agent in (AGENT, uuid4()):
        answer = await world.stream(principal, {"agent_id": str(agent)})
        assert answer.status_code == 200 and marker("crumb", "own") in answer.text


# Agents of API keys

FIRST, SECOND = UUID(int=1, version=4), UUID(int=2, version=4)
PLAIN, FIXED, SEVERAL = "a-key-without-an-agent", "a-key-with-one-agent", "a-key-with-several-agents"


async def site_with_agents(make_site: MakeSite, **settings: Any) -> Site:
    keys: list[dict[str, Any]] = [
        {"key": PLAIN, "owner_id": str(OWNER)},
        {"key": FIXED, "owner_id": str(OWNER), "agent_id": str(FIRST)},
        {"key": SEVERAL, "owner_id": str(OWNER), "agent_id": str(AGENT), "agent_ids": [str(SECOND)]},
        {"key": OTHER_KEY, "owner_id": str(OTHER)},
    ]
    return await make_site(api_keys=keys, **settings)


async def agent_for(site: Site, key: str, **wanted: Any) -> UUID | int:
    """Return the agent of a token for this key, or the status of the refusal."""
    answer = await site.client.post("/auth/token", json=wanted, headers={"X-API-Key": key})
    if answer.status_code != 200:
        problem(answer, answer.status_code, "forbidden")
        return answer.status_code
    return UUID(answer.json()["agent_id"])


async def test_an_api_key_can_act_only_as_its_own_agents(make_site: MakeSite) -> None:
    site = await site_with_agents(make_site)
    derived = await agent_for(site, PLAIN)
    assert isinstance(derived, UUID)
    own = {PLAIN: {derived}, FIXED: {FIRST}, SEVERAL: {AGENT, SECOND}}
    for key, agents in own.items():
        for agent in (derived, FIRST, SECOND, AGENT, uuid4()):
            expected = agent if agent in agents else 403
            assert await agent_for(site, key, agent_id=str(agent)) == expected, (key, agent)


async def test_an_api_key_cannot_request_another_owner(make_site: MakeSite) -> None:
    site = await site_with_agents(make_site)
    for key in (PLAIN, FIXED, SEVERAL):
        assert isinstance(await agent_for(site, key, owner_id=str(OWNER)), UUID)
        assert await agent_for(site, key, owner_id=str(OTHER)) == 403
        assert await agent_for(site, key, owner_id=str(uuid4())) == 403


async def test_a_key_cannot_read_private_breadcrumbs_of_another_keys_agent(make_site: MakeSite) -> None:
    site = await site_with_agents(make_site)
    made = await site.post({"X-API-Key": FIXED}, title="private", visibility="private")
    for key in (PLAIN, SEVERAL):
        answer = await site.client.post(
            "/auth/token", json={"agent_id": str(FIRST), "roles": CLIENT_ROLES}, headers={"X-API-Key": key}
        )
        assert answer.status_code == 403
        reader = await site.token(key, roles=CLIENT_ROLES)
        assert (await site.client.get(f"/breadcrumbs/{made['id']}", headers=reader)).status_code == 404
    own = await site.token(FIXED, roles=CLIENT_ROLES, agent_id=str(FIRST))
    assert (await site.client.get(f"/breadcrumbs/{made['id']}", headers=own)).status_code == 200


async def test_the_agents_of_a_key_share_its_rate_limit(make_site: MakeSite) -> None:
    off = {"per_token": "off", "per_owner": "off"}
    limits = {"posting": off, "managing": off, "reading": {"per_token": "6/1h", "per_owner": "off"}}
    site = await site_with_agents(make_site, rate_limits=limits)
    tokens = [await site.token(SEVERAL, agent_id=str(agent)) for agent in (AGENT, SECOND)]
    statuses = [
        (await site.client.get("/breadcrumbs", headers=who)).status_code for _ in range(4) for who in tokens
    ]
    assert statuses == [200] * 6 + [429] * 2
    assert (await site.client.get("/breadcrumbs", headers={"X-API-Key": FIXED})).status_code == 200


# Deleted sessions


def session_requests(message: str, crumb: str) -> dict[str, list[tuple[str, str, Any]]]:
    """Return the requests of a client of the session s-old: reads of the session, lists and writes."""
    return {
        "read": [
            ("GET", "/sessions/s-old", None),
            ("GET", "/sessions/s-old/messages", None),
            ("GET", f"/sessions/s-old/messages/{message}", None),
            ("GET", f"/breadcrumbs/{crumb}", None),
            ("GET", f"/breadcrumbs/{crumb}/full", None),
            ("GET", f"/breadcrumbs/{crumb}/history", None),
        ],
        "list": [
            ("GET", "/sessions", None),
            ("GET", "/breadcrumbs?include_context=true", None),
            ("GET", "/breadcrumbs?session_id=s-old", None),
        ],
        "write": [
            ("POST", "/sessions", {}),
            ("POST", "/sessions/s-old/messages", {"message": "new"}),
            ("PATCH", "/sessions/s-old", {"title": "new"}),
            ("POST", "/sessions/s-old/retry", {}),
            ("POST", "/breadcrumbs", {"schema_name": "note.v1"}),
            ("PATCH", f"/breadcrumbs/{crumb}", {"title": "new"}),
            ("DELETE", f"/breadcrumbs/{crumb}", None),
            ("DELETE", "/sessions/s-old", None),
        ],
    }


async def begin_old(world: World, text: str, user: str) -> tuple[str, str]:
    """Begin the session s-old. Return the ids of a message and of a breadcrumb in it."""
    body = {"id": "s-old", "title": text, "user_id": user}
    assert (await world.client.post("/sessions", json=body, headers=CURATOR)).status_code == 201
    said = await world.client.post("/sessions/s-old/messages", json={"message": text}, headers=CURATOR)
    note = await post(
        world, CURATOR, **_note(title=text, tags=["session:s-old", f"user:{user}"], context={"text": text})
    )
    return said.json()["message"]["id"], note


async def delete_old(world: World) -> None:
    assert (await world.client.delete("/sessions/s-old", headers=CURATOR)).status_code == 200


NARROWINGS: dict[str, dict[str, Any]] = {
    "session": {},
    "session and curator": {"roles": ["curator"]},
    "session and user": {"user_id": "ann"},
}


@pytest.mark.parametrize("narrowing", NARROWINGS.values(), ids=NARROWINGS)
async def test_a_token_of_a_deleted_session_finds_nothing_and_writes_nothing(
    world: World, narrowing: dict[str, Any]
) -> None:
    ids = await begin_old(world, "first", "ann")
    who = await token(world, session_id="s-old", **narrowing)
    assert (await world.client.get("/sessions/s-old", headers=who)).status_code == 200
    await delete_old(world)
    before = world.snapshot()
    wrong = []
    for kind, requests in session_requests(*ids).items():
        for method, path, body in requests:
            answer = await world.client.request(method, path, json=body, headers=who)
            right = {"read": (401,), "list": (200, 401), "write": (401,)}[kind]
            if answer.status_code not in right or "first" in answer.text:
                wrong.append(f"{method} {path}: got {answer.status_code} {answer.text[:120]}")
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
    assert world.snapshot() == before


@pytest.mark.parametrize("narrowing", NARROWINGS.values(), ids=NARROWINGS)
@pytest.mark.parametrize("user", ["ann", "bob"])
async def test_a_token_of_a_deleted_session_is_refused_once_the_name_is_used_again(
    world: World, narrowing: dict[str, Any], user: str
) -> None:
    await begin_old(world, "first", "ann")
    who = await token(world, session_id="s-old", **narrowing)
    await delete_old(world)
    ids = await begin_old(world, "second", user)
    before = world.snapshot()
    sees = user == "ann" or "user_id" not in narrowing
    wrong = []
    for kind, requests in session_requests(*ids).items():
        # The new session is 404 for a token of another user in any case.
        right = (401,) if sees or kind != "read" else (401, 404)
        for method, path, body in requests:
            answer = await world.client.request(method, path, json=body, headers=who)
            if answer.status_code not in right or "second" in answer.text:
                wrong.append(f"{method} {path}: got {answer.status_code} {answer.text[:120]}")
    streamed = await read_stream(world.parts.app, who, "", lambda said: pings(said) >= 1)
    if streamed.status_code != 401:
        wrong.append(f"GET /events/stream: got {streamed.status_code}")
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
    assert world.snapshot() == before
    new = await token(world, session_id="s-old", **narrowing)
    assert (await world.client.get("/sessions/s-old", headers=new)).status_code == (200 if sees else 404)


async def test_a_token_of_a_user_stays_valid_after_its_sessions_are_deleted(world: World) -> None:
    await begin_old(world, "first", "ann")
    await delete_old(world)
    await begin_old(world, "second", "ann")
    assert (await world.send("user", "GET", "/sessions/s-old")).json()["title"] == "second"


async def test_deleting_an_adk_session_invalidates_its_tokens(world: World) -> None:
    path = f"/apps/{APP}/users/ann/sessions"
    assert (await world.send("curator", "DELETE", f"{path}/a1")).status_code == 200
    assert (await world.send("adk", "GET", f"{path}/a1")).status_code == 401
    again = await world.send("curator", "POST", path, json={"sessionId": "a1", "state": {"new": 1}})
    assert again.status_code == 200
    event = {"author": "user", "content": {"role": "user", "parts": [{"text": "new"}]}}
    for method, route, body in (
        ("GET", f"{path}/a1", None),
        ("GET", path, None),
        ("GET", f"/sessions/{ADK_ANN}", None),
        ("PATCH", f"{path}/a1", {"stateDelta": {"step": 2}}),
        ("POST", f"{path}/a1/events", event),
        ("DELETE", f"{path}/a1", None),
    ):
        answer = await world.send("adk", method, route, json=body)
        assert answer.status_code == 401, f"{method} {route}: {answer.status_code} {answer.text[:120]}"


async def while_streaming(
    world: World, who: Headers, act: Callable[[], Awaitable[None]], *, seconds: float = 5
) -> tuple[bool, str]:
    """Run `act` while a stream is open. Return whether the stream ended, and its text."""
    heard: list[bytes] = [b""]
    joined, ended = anyio.Event(), anyio.Event()

    def listen(said: bytes) -> bool:
        heard[0] = said
        if pings(said):
            joined.set()
        return False

    async def stream() -> None:
        await read_stream(world.parts.app, who, "", listen, limit=60)
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream)
        with anyio.fail_after(10):
            await joined.wait()
        await act()
        with anyio.move_on_after(seconds):
            await ended.wait()
        tasks.cancel_scope.cancel()
    return ended.is_set(), heard[0].decode()


async def test_a_stream_of_a_session_token_ends_when_the_session_is_deleted(world: World) -> None:
    await begin_old(world, "first", "ann")
    who = await token(world, session_id="s-old")

    async def replace_session() -> None:
        await delete_old(world)
        await begin_old(world, "second", "bob")

    ended, heard = await while_streaming(world, who, replace_session)
    assert "second" not in heard
    assert ended, "the stream is still open"


async def test_a_stream_of_another_session_stays_open(world: World) -> None:
    await begin_old(world, "first", "ann")

    async def act() -> None:
        await delete_old(world)
        await world.send("curator", "POST", "/sessions/s-own/messages", json={"message": "still here"})

    ended, heard = await while_streaming(world, world.template.principals["session"], act, seconds=1)
    assert not ended and "still here" in heard


# Sources of scope `user`

BY_USER: list[dict[str, Any]] = [
    MESSAGES,
    {"key": "mine", "schema_name": "user.message.v1", "fetch": {"conversation_scope": "user", "limit": 50}},
]


async def context_text(site: Site, session: str, sources: list[dict[str, Any]]) -> str:
    """Build the context of a message that a curator tags with bob. Return it as text."""
    config, tags = document(sources=sources), ("user:message", "user:bob")
    async with building(site.store, book_of(site.store, config)) as builder:
        made = await builder.say("the trigger", session, owner=OWNER, tags=tags)
    preview = await site.client.post(
        "/contexts/preview", json={"session_id": session, "config": config}, headers=CURATOR
    )
    assert preview.status_code == 200, preview.text
    return str(made.context["parts"]) + preview.text


@pytest.fixture
async def talking(make_site: MakeSite) -> Site:
    """Ann and bob each have a session."""
    site = await make_site(api_keys=[{"key": KEY, "owner_id": str(OWNER)}], extra=CONTEXTS)
    for user in ("ann", "bob"):
        begun = await site.client.post(
            "/sessions", json={"id": f"old-{user}", "user_id": user}, headers=CURATOR
        )
        assert begun.status_code == 201
        said = {"message": f"words of {user}"}
        await site.client.post(f"/sessions/old-{user}/messages", json=said, headers=CURATOR)
    return site


OWNERS = pytest.mark.parametrize("user", ["ann", None])


async def begin_for(site: Site, user: str | None) -> None:
    body = {"id": "s", **({} if user is None else {"user_id": user})}
    assert (await site.client.post("/sessions", json=body, headers=CURATOR)).status_code == 201


@OWNERS
async def test_a_source_of_scope_user_uses_the_user_stored_for_the_session(
    talking: Site, user: str | None
) -> None:
    await begin_for(talking, user)
    text = await context_text(talking, "s", BY_USER)
    assert "the trigger" in text and "words of bob" not in text
    assert ("words of ann" in text) == (user == "ann")


async def test_a_change_does_not_reveal_the_fields_of_a_secret_breadcrumb(world: World) -> None:
    """An equal value is usually not a change and would be accepted, which would confirm a guess."""
    fields = _note(tags=["session:s-own"], context={"user_id": "bob"})
    id = await post(world, CURATOR, **fields, sensitivity="secret")
    for guess in ("bob", "eve"):
        answer = await world.send(
            "session", "PATCH", f"/breadcrumbs/{id}", json={"context": {"user_id": guess}}
        )
        problem(answer, 403, "forbidden")
