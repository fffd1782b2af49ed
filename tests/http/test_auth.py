"""Tokens and API keys: authentication, principals and roles."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey
from starlette.requests import HTTPConnection

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.errors import Unauthenticated
from breadcrumbs.runtime.http import auth
from breadcrumbs.runtime.http.auth import DEVELOPER_AGENT, Authenticator
from breadcrumbs.runtime.settings.settings import DEVELOPER, Settings
from tests.http.conftest import KEY, KEYS, OTHER, OTHER_KEY, OWNER, WEAK_KEY, MakeSite, Site, problem

SECRET = "a secret that signs tokens, long enough"
AGENT = UUID("cccccccc-0000-4000-8000-000000000003")
EVERYTHING = ["curator", "emitter", "subscriber"]


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _signed(secret: str = SECRET, **claims: Any) -> str:
    whole: dict[str, Any] = {
        "sub": str(AGENT),
        "owner_id": str(OWNER),
        "roles": EVERYTHING,
        "iat": int(time.time()),
        "exp": int(time.time()) + 60,
        **claims,
    }
    whole = {name: value for name, value in whole.items() if value is not ...}
    return jwt.encode({"alg": "HS256"}, whole, OctKey.import_key(secret))


@pytest.fixture
async def secured(make_site: MakeSite) -> Site:
    """Site with API keys and a known token secret."""
    return await make_site(api_keys=KEYS, token_secret=SECRET)


# The development mode


async def test_without_keys_requests_need_no_token_and_act_as_the_developer(site: Site) -> None:
    id = (await site.post(title="x"))["id"]
    full = (await site.client.get(f"/breadcrumbs/{id}/full")).json()
    assert (full["owner_id"], full["created_by"]) == (str(DEVELOPER), str(DEVELOPER_AGENT))


@pytest.mark.parametrize("content", [None, b"{}"])
async def test_in_the_development_mode_an_empty_request_gets_a_token_for_everything(
    site: Site, content: bytes | None
) -> None:
    headers = {"Content-Type": "application/json"} if content else {}
    answer = await site.client.post("/auth/token", content=content, headers=headers)
    assert answer.status_code == 200
    token = answer.json()
    assert set(token) == {"token", "owner_id", "agent_id", "roles", "exp"}
    assert (token["owner_id"], token["agent_id"], token["roles"]) == (
        str(DEVELOPER),
        str(DEVELOPER_AGENT),
        EVERYTHING,
    )
    assert 86_000 < token["exp"] - time.time() < 87_000
    assert (await site.client.get("/breadcrumbs", headers=_bearer(token["token"]))).status_code == 200


async def test_a_token_for_another_owner_sees_only_that_owners_breadcrumbs(site: Site) -> None:
    """RCRT's clients write ids in upper case."""
    owner = "00000000-0000-0000-0000-000000000EEE"
    headers = await site.token(owner_id=owner, agent_id=str(AGENT))
    id = (await site.post(headers, title="x"))["id"]
    full = (await site.client.get(f"/breadcrumbs/{id}/full", headers=headers)).json()
    assert (full["owner_id"], full["created_by"]) == (owner.lower(), str(AGENT))
    assert (await site.client.get("/breadcrumbs")).json() == []


async def test_in_the_development_mode_a_bad_token_is_still_refused(site: Site) -> None:
    for headers in (_bearer("nonsense"), _bearer("a.b.c"), {"X-API-Key": "nonsense"}):
        problem(await site.client.get("/breadcrumbs", headers=headers), 401, "unauthenticated")


async def test_a_client_whose_token_has_expired_gets_a_new_one(site: Site) -> None:
    """The development mode ignores the old token in the request."""
    answer = await site.client.post("/auth/token", json={}, headers=_bearer("expired"))
    assert answer.status_code == 200


async def test_a_token_of_the_development_mode_is_refused_by_a_server_with_keys(
    make_site: MakeSite, embedded_server: Any
) -> None:
    open_site = await make_site(token_secret=SECRET)
    mine = await open_site.token(owner_id=str(OWNER))
    keyed = await make_site(token_secret=SECRET, api_keys=KEYS)
    problem(await keyed.client.get("/breadcrumbs", headers=mine), 401, "unauthenticated")


async def test_issuing_a_token_registers_its_agent(site: Site) -> None:
    await site.token(agent_id=str(AGENT), roles=["emitter"])
    agent = (await site.client.get(f"/agents/{AGENT}")).json()
    assert (agent["id"], agent["roles"]) == (str(AGENT), ["emitter"])
    await site.token(agent_id=str(AGENT), roles=["subscriber"])
    again = (await site.client.get(f"/agents/{AGENT}")).json()
    assert (again["roles"], again["created_at"]) == (["subscriber"], agent["created_at"])


@pytest.mark.parametrize(
    "body",
    [
        {"owner_id": "me"},
        {"agent_id": ""},
        {"agent_id": 5},
        {"roles": []},
        {"roles": "curator"},
        {"roles": ["admin"]},
        {"ttl_sec": 0},
        {"ttl_sec": -1},
        {"ttl_sec": 30 * 86_400 + 1},
        {"ttl_sec": 1.5},
        {"ttl_sec": "60"},
        {"ttl_sec": True},
        {"session_id": ""},
        {"session_id": "a\nb"},
        {"session_id": "x" * 300},
        {"user_id": " "},
        {"user_id": "x" * 300},
        {"owner": "x"},
        [],
        None,
        "x",
    ],
)
async def test_a_bad_token_request_is_422(site: Site, body: Any) -> None:
    answer = await site.client.post(
        "/auth/token", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    problem(answer, 422, "invalid-input")
    assert (await site.client.get("/agents")).json() == []


async def test_a_token_request_that_is_not_json_is_refused(site: Site) -> None:
    problem(
        await site.client.post("/auth/token", content=b"{", headers={"Content-Type": "application/json"}),
        400,
        "malformed",
    )
    problem(await site.client.post("/auth/token", content=b"{}"), 415, "unsupported-media-type")
    problem(
        await site.client.post("/auth/token", headers={"Content-Type": "text/plain"}),
        415,
        "unsupported-media-type",
    )


async def test_nulls_in_a_token_request_are_ignored(site: Site) -> None:
    body = dict.fromkeys(("owner_id", "agent_id", "roles", "ttl_sec", "session_id", "user_id"))
    answer = await site.client.post("/auth/token", json=body)
    assert answer.status_code == 200
    assert "session_id" not in answer.json()


# With API keys

PROTECTED = [
    ("GET", "/models"),
    ("GET", "/agents/answering"),
    ("GET", "/sessions"),
    ("POST", "/sessions"),
    ("GET", f"/sessions/{DEVELOPER}"),
    ("PATCH", f"/sessions/{DEVELOPER}"),
    ("DELETE", f"/sessions/{DEVELOPER}"),
    ("GET", f"/sessions/{DEVELOPER}/messages"),
    ("POST", f"/sessions/{DEVELOPER}/messages"),
    ("GET", f"/sessions/{DEVELOPER}/messages/{DEVELOPER}"),
    ("GET", f"/sessions/{DEVELOPER}/messages/{DEVELOPER}/chain"),
    ("GET", "/usage"),
    ("POST", f"/sessions/{DEVELOPER}/fork"),
    ("POST", f"/sessions/{DEVELOPER}/retry"),
    ("GET", "/dlq"),
    ("GET", "/operations"),
    ("GET", "/operations/history"),
    ("GET", "/operations/workers"),
    ("POST", f"/operations/workers/{DEVELOPER}/drain"),
    ("GET", "/workers"),
    ("POST", f"/dlq/{DEVELOPER}/retry"),
    ("DELETE", f"/dlq/{DEVELOPER}"),
    ("POST", "/breadcrumbs"),
    ("GET", "/breadcrumbs"),
    ("GET", f"/breadcrumbs/{DEVELOPER}"),
    ("GET", f"/breadcrumbs/{DEVELOPER}/full"),
    ("GET", f"/breadcrumbs/{DEVELOPER}/history"),
    ("PATCH", f"/breadcrumbs/{DEVELOPER}"),
    ("DELETE", f"/breadcrumbs/{DEVELOPER}"),
    ("PUT", f"/breadcrumbs/{DEVELOPER}/feedback"),
    ("GET", f"/breadcrumbs/{DEVELOPER}/feedback"),
    ("DELETE", f"/breadcrumbs/{DEVELOPER}/feedback"),
    ("GET", "/feedback"),
    ("GET", "/feedback/counts"),
    ("GET", "/events/stream"),
    ("POST", "/subscriptions/selectors"),
    ("GET", "/subscriptions/selectors"),
    ("PUT", f"/subscriptions/selectors/{DEVELOPER}"),
    ("DELETE", f"/subscriptions/selectors/{DEVELOPER}"),
    ("GET", "/agents"),
    ("GET", f"/agents/{DEVELOPER}"),
    ("POST", f"/agents/{DEVELOPER}"),
    ("DELETE", f"/agents/{DEVELOPER}"),
    ("GET", "/tenants"),
    ("GET", f"/tenants/{DEVELOPER}"),
    ("POST", f"/tenants/{DEVELOPER}"),
    ("PUT", f"/tenants/{DEVELOPER}"),
    ("DELETE", f"/tenants/{DEVELOPER}"),
    ("POST", "/hygiene/run"),
    ("GET", "/hygiene/stats"),
    ("POST", "/auth/token"),
]


@pytest.mark.parametrize(("method", "path"), PROTECTED)
async def test_with_keys_every_route_needs_a_token_and_explains_how_to_get_one(
    keyed: Site, method: str, path: str
) -> None:
    answer = await keyed.client.request(method, path)
    assert "X-API-Key" in problem(answer, 401, "unauthenticated")["detail"]
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_the_list_of_protected_routes_is_complete(keyed: Site) -> None:
    found = {
        (method.upper(), re.sub(r"{(message_)?id}", str(DEVELOPER), path))
        for path, methods in keyed.app.document["paths"].items()
        for method, operation in methods.items()
        if operation["security"]
    }
    assert found == set(PROTECTED)


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/openapi.json", "/docs", "/"])
async def test_some_routes_need_no_token(keyed: Site, path: str) -> None:
    assert (await keyed.client.get(path)).status_code == 200
    assert (await keyed.client.get(path, headers=_bearer("nonsense"))).status_code == 200


async def test_a_key_is_accepted_in_both_headers_and_decides_the_owner(keyed: Site) -> None:
    for headers in ({"X-API-Key": KEY}, _bearer(KEY), {"Authorization": f"bearer  {KEY}"}):
        id = (await keyed.post(headers, title="x"))["id"]
        full = (await keyed.client.get(f"/breadcrumbs/{id}/full", headers=headers)).json()
        assert full["owner_id"] == str(OWNER)


async def test_a_key_without_an_agent_is_always_the_same_agent(keyed: Site) -> None:
    agents = set()
    for key in (KEY, KEY, OTHER_KEY):
        answer = await keyed.client.post("/auth/token", json={}, headers={"X-API-Key": key})
        agents.add((answer.json()["owner_id"], answer.json()["agent_id"]))
    assert {owner for owner, _ in agents} == {str(OWNER), str(OTHER)}
    assert len(agents) == 2


@pytest.mark.parametrize("key", ["", "x", KEY[:-1], KEY + "x", KEY.upper(), "é" * 20])
async def test_a_wrong_key_is_401(keyed: Site, key: str) -> None:
    for name in ("X-API-Key", "Authorization"):
        value = key.encode() if name == "X-API-Key" else b"Bearer " + key.encode()
        for method, path in (("GET", "/breadcrumbs"), ("POST", "/auth/token")):
            answer = await keyed.client.request(method, path, headers=[(name.encode(), value)])
            problem(answer, 401, "unauthenticated")


async def test_a_wrong_key_is_refused_with_advice_for_keys_and_not_for_tokens(keyed: Site) -> None:
    told = problem(
        await keyed.client.get("/breadcrumbs", headers={"X-API-Key": KEY[:-1]}), 401, "unauthenticated"
    )
    assert told["detail"] == (
        "this server has no such API key: check that it is complete, and that the setting api_keys contains it"
    )


@pytest.mark.parametrize("value", ["Basic dXNlcjpwYXNz", "Bearer", "Bearer ", "", "Token x", "Bearer\tx"])
async def test_another_kind_of_authorization_is_401(keyed: Site, value: str) -> None:
    problem(await keyed.client.get("/breadcrumbs", headers={"Authorization": value}), 401, "unauthenticated")


async def test_a_key_cannot_get_a_token_for_another_owner(keyed: Site) -> None:
    answer = await keyed.client.post("/auth/token", json={"owner_id": str(OTHER)}, headers={"X-API-Key": KEY})
    problem(answer, 403, "forbidden")
    same = await keyed.client.post(
        "/auth/token", json={"owner_id": str(OWNER).upper()}, headers={"X-API-Key": KEY}
    )
    assert same.status_code == 200


async def test_a_key_cannot_issue_roles_that_it_does_not_have(keyed: Site) -> None:
    answer = await keyed.client.post(
        "/auth/token", json={"roles": ["curator"]}, headers={"X-API-Key": WEAK_KEY}
    )
    problem(answer, 403, "forbidden")
    assert (await keyed.client.get("/agents", headers={"X-API-Key": KEY})).json() == []
    default = await keyed.client.post("/auth/token", json={}, headers={"X-API-Key": WEAK_KEY})
    assert default.json()["roles"] == ["emitter"]


async def test_a_key_of_one_agent_cannot_issue_a_token_for_another(make_site: MakeSite) -> None:
    """Private breadcrumbs are visible to their agent. A key that could choose any agent could read them all."""
    fixed = {"key": KEY, "owner_id": str(OWNER), "agent_id": str(AGENT), "roles": ["emitter", "subscriber"]}
    site = await make_site(api_keys=[fixed])
    answer = await site.client.post(
        "/auth/token", json={"agent_id": str(uuid4())}, headers={"X-API-Key": KEY}
    )
    problem(answer, 403, "forbidden")
    own = await site.client.post("/auth/token", json={"agent_id": str(AGENT)}, headers={"X-API-Key": KEY})
    assert own.status_code == 200


async def test_a_token_cannot_get_another_token(keyed: Site) -> None:
    for narrowing in ({}, {"session_id": "a"}, {"roles": ["emitter"]}):
        token = await keyed.token(KEY, **narrowing)
        problem(await keyed.client.post("/auth/token", json={}, headers=token), 403, "forbidden")


async def test_a_token_has_the_requested_lifetime(secured: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await secured.token(KEY, ttl_sec=60)
    assert (await secured.client.get("/breadcrumbs", headers=token)).status_code == 200
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)  # the token is verified and cached
    document = problem(await secured.client.get("/breadcrumbs", headers=token), 401, "unauthenticated")
    assert "expired" in document["detail"]


async def test_the_lifetime_of_a_token_is_a_setting(make_site: MakeSite) -> None:
    site = await make_site(token_ttl="5m")
    exp = (await site.client.post("/auth/token", json={})).json()["exp"]
    assert 290 < exp - time.time() <= 300


async def test_a_valid_token_from_another_issuer_process_is_accepted(secured: Site) -> None:
    id = (await secured.post(_bearer(_signed()), title="x"))["id"]
    full = (await secured.client.get(f"/breadcrumbs/{id}/full", headers=_bearer(_signed()))).json()
    assert (full["owner_id"], full["created_by"]) == (str(OWNER), str(AGENT))


def _unsigned() -> str:
    def part(document: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")

    claims = {"sub": str(AGENT), "owner_id": str(OWNER), "roles": EVERYTHING, "exp": 9_999_999_999}
    return f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(claims)}."


def _tampered() -> str:
    header, _, seal = _signed().split(".")
    _, claims, _ = _signed(owner_id=str(OTHER)).split(".")
    return f"{header}.{claims}.{seal}"


def _deep() -> str:
    header = base64.urlsafe_b64encode(b"[" * 3_000).decode().rstrip("=")
    return f"{header}.{header}.x"


BAD_TOKENS: dict[str, Callable[[], str]] = {
    "alg none": _unsigned,
    "another key": lambda: _signed("another secret that is long enough"),
    "the claims of another token": _tampered,
    "another algorithm": lambda: jwt.encode(
        {"alg": "HS512"}, {"sub": str(AGENT)}, OctKey.import_key(SECRET), algorithms=["HS512"]
    ),
    "a header that nests": _deep,
    "a cut seal": lambda: _signed()[:-2],
    "no seal": lambda: _signed().rpartition(".")[0] + ".",
    "dots": lambda: "..",
    "not base64": lambda: "é.ü.ß",
    "far too long": lambda: _signed() + "x" * 10_000,
    "expired": lambda: _signed(exp=int(time.time()) - 1),
    "no expiry": lambda: _signed(exp=...),
    "an expiry that is text": lambda: _signed(exp="tomorrow"),
    "an expiry that is true": lambda: _signed(exp=True),
    "an expiry that is null": lambda: _signed(exp=None),
    "an endless expiry": lambda: _signed(exp=float("inf")),
    "not valid yet": lambda: _signed(nbf=int(time.time()) + 60),
    "no agent": lambda: _signed(sub=...),
    "an agent that is no UUID": lambda: _signed(sub="bob"),
    "an agent that is a number": lambda: _signed(sub=5),
    "no owner": lambda: _signed(owner_id=...),
    "an owner that is no UUID": lambda: _signed(owner_id="acme"),
    "an owner in braces": lambda: _signed(owner_id=f"{{{OWNER}}}"),
    "no roles": lambda: _signed(roles=...),
    "roles that are text": lambda: _signed(roles="curator"),
    "an unknown role": lambda: _signed(roles=["emitter", "root"]),
    "a role that is a list": lambda: _signed(roles=[["curator"]]),
    "a session that is null": lambda: _signed(session_id=None),
    "a session that is a number": lambda: _signed(session_id=5),
    "an empty session": lambda: _signed(session_id=""),
    "a session that never ends": lambda: _signed(session_id="x" * 300),
    "a user that is a list": lambda: _signed(user_id=["ann"]),
    "an empty user": lambda: _signed(user_id=""),
}


@pytest.mark.parametrize("name", BAD_TOKENS)
async def test_an_invalid_token_is_401_with_instructions(secured: Site, name: str) -> None:
    header = [(b"Authorization", b"Bearer " + BAD_TOKENS[name]().encode())]
    for method, path in (("GET", "/breadcrumbs"), ("POST", "/auth/token"), ("GET", "/events/stream")):
        answer = await secured.client.request(method, path, headers=header)
        document = problem(answer, 401, "unauthenticated")
        assert "/auth/token" in document["detail"] or "clock" in document["detail"]
        assert SECRET not in answer.text


async def test_only_the_stream_accepts_a_token_in_the_query(secured: Site) -> None:
    for name in ("token", "access_token"):
        for path in ("/agents", "/tenants", "/hygiene/stats", "/subscriptions/selectors"):
            answer = await secured.client.get(f"{path}?{name}={_signed()}")
            problem(answer, 401, "unauthenticated")
        authenticator = secured.app.auth
        scope = {"type": "http", "headers": [], "query_string": f"{name}={_signed()}".encode()}
        assert authenticator.authenticate(HTTPConnection(scope), query_token=True).owner_id == OWNER
        with pytest.raises(Unauthenticated):
            authenticator.authenticate(HTTPConnection(scope))


async def test_two_different_tokens_in_the_query_are_refused(secured: Site) -> None:
    query = f"token={_signed()}&access_token={_signed(owner_id=str(OTHER))}".encode()
    with pytest.raises(Unauthenticated, match="two"):
        secured.app.auth.identify({}, query)
    assert secured.app.auth.identify({}, f"token={KEY}&access_token={KEY}".encode()).owner_id == OWNER


async def test_a_header_wins_over_the_query(secured: Site) -> None:
    headers = {b"authorization": f"Bearer {_signed()}".encode()}
    principal = secured.app.auth.identify(headers, f"token={_signed(owner_id=str(OTHER))}".encode())
    assert principal.owner_id == OWNER


# Roles

ROUTES_BY_ROLE = [
    ("emitter", "POST", "/breadcrumbs"),
    ("emitter", "PATCH", f"/breadcrumbs/{DEVELOPER}"),
    ("emitter", "DELETE", f"/breadcrumbs/{DEVELOPER}"),
    ("subscriber", "GET", "/breadcrumbs"),
    ("subscriber", "GET", f"/breadcrumbs/{DEVELOPER}"),
    ("subscriber", "GET", f"/breadcrumbs/{DEVELOPER}/full"),
    ("subscriber", "GET", f"/breadcrumbs/{DEVELOPER}/history"),
    ("subscriber", "GET", "/subscriptions/selectors"),
    ("subscriber", "POST", "/subscriptions/selectors"),
    ("subscriber", "GET", "/agents"),
    ("curator", "DELETE", f"/agents/{DEVELOPER}"),
    ("curator", "GET", "/tenants"),
    ("curator", "GET", f"/tenants/{OWNER}"),
    ("curator", "POST", f"/tenants/{OWNER}"),
    ("curator", "DELETE", f"/tenants/{OWNER}"),
    ("curator", "POST", "/hygiene/run"),
    ("curator", "GET", "/hygiene/stats"),
]


@pytest.mark.parametrize(("role", "method", "path"), ROUTES_BY_ROLE)
async def test_each_route_needs_its_role_and_a_curator_has_them_all(
    secured: Site, role: str, method: str, path: str
) -> None:
    def roles_without(missing: str) -> list[str]:
        return [known for known in ("emitter", "subscriber") if known != missing]

    body: dict[str, Any] = {"json": {}} if method in ("POST", "PATCH") else {}
    refused = await secured.client.request(
        method, path, headers=_bearer(_signed(roles=roles_without(role))), **body
    )
    assert role in problem(refused, 403, "forbidden")["detail"]
    for roles in ([role], ["curator"]):
        answer = await secured.client.request(method, path, headers=_bearer(_signed(roles=roles)), **body)
        assert answer.status_code not in (401, 403), answer.text


async def test_a_token_without_roles_is_refused_everywhere(secured: Site) -> None:
    problem(await secured.client.get("/breadcrumbs", headers=_bearer(_signed(roles=[]))), 403, "forbidden")


# The cache


async def test_verified_tokens_are_cached_and_the_cache_is_bounded(
    secured: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "MAX_CACHED_TOKENS", 3)
    verified: list[bytes] = []
    real = Authenticator._verify

    def counted(self: Authenticator, token: bytes) -> tuple[Principal, float]:
        verified.append(token)
        return real(self, token)

    monkeypatch.setattr(Authenticator, "_verify", counted)
    tokens = [_signed(sub=str(uuid4())) for _ in range(5)]
    for _ in range(3):
        await secured.client.get("/breadcrumbs", headers=_bearer(tokens[0]))
    assert len(verified) == 1
    for token in tokens[1:]:
        await secured.client.get("/breadcrumbs", headers=_bearer(token))
    assert len(secured.app.auth._verified) == 3
    for _ in range(2):
        await secured.client.get("/breadcrumbs", headers=_bearer("a.b.c"))
    assert len(secured.app.auth._verified) == 3


async def test_the_repr_of_an_authenticator_contains_no_secret(secured: Site) -> None:
    shown = repr(vars(secured.app.auth)) + repr(Settings(api_keys=KEYS, token_secret=SECRET))
    for secret in (SECRET, KEY, OTHER_KEY, WEAK_KEY):
        assert secret not in shown


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("sesion_id", "did you mean 'session_id'?"),
        ("ttl", "did you mean 'ttl_sec'?"),
        ("user", "did you mean 'user_id'?"),
        ("x" * 1000, "use one of owner_id, agent_id, roles, ttl_sec, session_id, user_id"),
    ],
)
async def test_a_misspelt_field_of_a_token_request_suggests_the_right_one(
    site: Site, field: str, says: str
) -> None:
    refused = problem(await site.client.post("/auth/token", json={field: "x"}), 422, "invalid-input")
    (error,) = refused["errors"]
    assert error["where"] == field and says in error["message"]
