"""The session service over REST: replies like those of ADK's own server, and access."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any
from uuid import UUID

import httpx
import pytest
import schemathesis
from google.adk.cli.fast_api import get_fast_api_app
from google.adk.events.event import Event
from hypothesis import HealthCheck, settings

from breadcrumbs.adk import BreadcrumbSessionService
from breadcrumbs.adk.http import OPERATIONS
from breadcrumbs.adk.wire import Json
from breadcrumbs.runtime.errors import StoreUnavailable
from breadcrumbs.runtime.http.api.openapi import build_document
from breadcrumbs.runtime.http.app import build_app
from breadcrumbs.runtime.maintenance.hygiene import Hygiene
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.streams.hub import EventHub
from tests.adk.support import unique
from tests.adk.test_service import everything
from tests.http.conftest import BASE, KEY, KEYS, OTHER_KEY, OWNER, WEAK_KEY, problem
from tests.support.events import reader_of
from tests.support.openapi import call_and_check

EXAMPLES = 30 if os.environ.get("CI") == "true" else 8


@pytest.fixture(scope="module")
def adk(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """ADK's own server, with its sessions in memory."""
    return get_fast_api_app(
        agents_dir=str(tmp_path_factory.mktemp("agents")), session_service_uri="memory://", web=False
    )


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE)


@pytest.fixture
async def theirs(adk: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(adk) as client:
        yield client


@pytest.fixture
async def ours(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    async with _site(store) as client:
        yield client


@pytest.fixture
async def keyed(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    async with _site(store, api_keys=KEYS) as client:
        yield client


def _site(store: Store, **chosen: Any) -> httpx.AsyncClient:
    configured = Settings(**chosen)
    return client_of(
        build_app(
            store, EventHub(store, reader_of(store)), Hygiene(store, configured), configured, OPERATIONS
        )
    )


# Comparison with ADK

CREDENTIAL = {
    "rawAuthCredential": {"authType": "oauth2", "oauth2": {"clientId": "c", "clientSecret": "hush"}},
    "authScheme": {"type": "oauth2", "flows": {}},
}
CALL = {"name": "adk_request_credential", "id": "f1", "args": {"authConfig": CREDENTIAL, "token": "kept"}}

SESSIONS = "/apps/{app}/users/ann/sessions"
EXCHANGES: list[tuple[str, str, Any]] = [
    ("GET", f"{SESSIONS}", None),
    ("GET", f"{SESSIONS}/none", None),
    ("DELETE", f"{SESSIONS}/none", None),
    ("PATCH", f"{SESSIONS}/none", {"stateDelta": {"a": 1}}),
    ("POST", f"{SESSIONS}", {"sessionId": "s1", "state": {"a_b": {"c_d": None}, "user:u": 1, "temp:t": 2}}),
    ("POST", f"{SESSIONS}", {"session_id": "s2", "state": None}),
    ("POST", f"{SESSIONS}", {"sessionId": "s1"}),
    ("POST", f"{SESSIONS}/s1", None),
    ("POST", f"{SESSIONS}/s3", {"step_one": 1, "app:x": [1]}),
    ("POST", f"{SESSIONS}/s4", None),
    ("POST", f"{SESSIONS}", {"sessionId": "s5", "unknown": 1}),
    ("POST", f"{SESSIONS}", {"state": {"generated": True}}),
    ("POST", f"{SESSIONS}", None),
    ("GET", f"{SESSIONS}/s1", None),
    ("PATCH", f"{SESSIONS}/s1", {"stateDelta": {"b": 2, "user:u": 3, "app:z": 4, "temp:q": 5}}),
    ("PATCH", f"{SESSIONS}/s1", {"state_delta": {"c": None}}),
    ("PATCH", f"{SESSIONS}/s1", {}),
    ("PATCH", f"{SESSIONS}/s1", {"stateDelta": 5}),
    ("PATCH", f"{SESSIONS}/s1", None),
    ("GET", f"{SESSIONS}/s1", None),
    ("GET", f"{SESSIONS}/s2", None),
    (
        "POST",
        f"{SESSIONS}",
        {
            "sessionId": "s6",
            "events": [
                {
                    "author": "user",
                    "invocation_id": "i1",
                    "timestamp": 5.5,
                    "content": {"role": "user", "parts": [{"text": "hello"}]},
                    "custom_metadata": {"my_key": 1, "__adk_internal_x": 1},
                },
                {
                    "author": "helper",
                    "invocationId": "i1",
                    "timestamp": 6.5,
                    "content": {
                        "role": "model",
                        "parts": [
                            {"function_call": {"name": "f", "args": {"snake_arg": 1}}},
                            {"inlineData": {"data": "__4APg==", "mimeType": "image/png"}},
                        ],
                    },
                },
            ],
        },
    ),
    ("GET", f"{SESSIONS}/s6", None),
    ("POST", f"{SESSIONS}", {"sessionId": 5}),
    ("POST", f"{SESSIONS}", {"state": []}),
    ("POST", f"{SESSIONS}", {"sessionId": "bad", "events": [{"longRunningToolIds": ["f"]}]}),
    ("POST", f"{SESSIONS}", {"sessionId": "bad", "events": [{"actions": {"stateDelta": {"a": 1}}}]}),
    (
        "POST",
        f"{SESSIONS}",
        {"sessionId": "bad", "events": [{"content": {"parts": [{"functionCall": CALL}]}}]},
    ),
    ("POST", f"{SESSIONS}", {"sessionId": "bad", "events": [5]}),
    ("GET", f"{SESSIONS}/bad", None),
    ("POST", f"{SESSIONS}", {"sessionId": "adk-eval-session-1"}),
    ("POST", f"{SESSIONS}", {"sessionId": "___eval___session___1"}),
    (
        "POST",
        f"{SESSIONS}",
        {"sessionId": "s7", "state": {"k": {"authType": "http", "token": "hush", "a": 1}}},
    ),
    ("GET", f"{SESSIONS}", None),
    ("DELETE", f"{SESSIONS}/s1", None),
    ("GET", f"{SESSIONS}/s1", None),
    ("GET", f"{SESSIONS}", None),
]


def _comparable(document: Any) -> Any:
    """Return a document without generated ids and current times."""
    if isinstance(document, list):
        return [_comparable(item) for item in document]
    if not isinstance(document, dict):
        return document
    found = {name: _comparable(value) for name, value in document.items()}
    for name in ("id", "invocationId"):
        if re.fullmatch(r"(p-)?[0-9a-f]{8}-[0-9a-f-]{27}", str(found.get(name))):
            found[name] = "generated"
    for name in ("timestamp", "lastUpdateTime"):
        if isinstance(found.get(name), float) and found[name] > 1e9:
            found[name] = "now"
    return found


@pytest.mark.filterwarnings("ignore:Please use create_session instead:DeprecationWarning")
async def test_every_route_replies_like_adks_own_server(
    ours: httpx.AsyncClient, theirs: httpx.AsyncClient
) -> None:
    """Two differences: 422 replaces ADK's 400, and errors are problem documents with the same `detail`."""
    app = unique("app")
    for method, path, body in EXCHANGES:
        sent: dict[str, Any] = {"url": path.format(app=app), "method": method}
        if body is not None:
            sent["json"] = body
        expected, answer = await theirs.request(**sent), await ours.request(**sent)
        about = f"{method} {path} {body}: {expected.text} | {answer.text}"
        if expected.status_code >= 400:
            assert answer.status_code == (422 if expected.status_code == 400 else expected.status_code), about
            assert answer.json()["detail"] and expected.json()["detail"], about
        else:
            assert answer.status_code == expected.status_code, about
            assert _comparable(answer.json()) == _comparable(expected.json()), about
            assert answer.headers["content-type"] == expected.headers["content-type"]


async def test_the_routes_below_api_serve_the_same_sessions(ours: httpx.AsyncClient) -> None:
    app = unique("app")
    created = await ours.post(f"/api/apps/{app}/users/ann/sessions/s1", json={"state": {"a": 1}})
    assert created.status_code == 200
    assert created.json()["state"] == {"a": 1}
    await ours.post(f"/api/apps/{app}/users/ann/sessions", json={"state": {"a": 2}})
    for base in ("", "/api"):
        assert (await ours.get(f"{base}/apps/{app}/users/ann/sessions/s1")).json() == created.json()
        for path in ("users/ann/sessions", "sessions"):
            assert len((await ours.get(f"{base}/apps/{app}/{path}")).json()) == 2
        assert (await ours.get(f"{base}/apps/{app}/users/ann/state")).json() == {}


async def test_a_long_session_with_large_events_is_complete_and_in_order(ours: httpx.AsyncClient) -> None:
    app = unique("app")
    path = f"/apps/{app}/users/ann/sessions"
    await ours.post(f"{path}/long")
    for number in range(130):
        size = 300_000 if number % 10 == 0 else 10
        event = {
            "id": f"e{number}",
            "author": "ann",
            "timestamp": 1_000.0 + number,
            "content": {"parts": [{"text": f"{number} " + "x" * size}]},
            "actions": {"stateDelta": {"last": number}},
        }
        assert (await ours.post(f"{path}/long/events", json=event)).status_code == 200
    whole = await ours.get(f"{path}/long")
    assert "content-length" not in whole.headers  # the response is streamed
    session = whole.json()
    assert [event["id"] for event in session["events"]] == [f"e{number}" for number in range(130)]
    assert (session["id"], session["state"], session["lastUpdateTime"]) == ("long", {"last": 129}, 1_129.0)
    for query, first in (
        ({"numRecentEvents": 120}, 10),
        ({"numRecentEvents": 3}, 127),
        ({"afterTimestamp": 1_005.0}, 5),
        ({"numRecentEvents": 200}, 0),
    ):
        found = (await ours.get(f"{path}/long", params=query)).json()["events"]
        assert [event["id"] for event in found] == [f"e{number}" for number in range(first, 130)], query
    assert (await ours.get(f"{path}/long", params={"numRecentEvents": 0})).json()["events"] == []
    for number in range(20):
        await ours.post(f"{path}/s{number}", json={"state": {"n": number}})
    listed = (await ours.get(path)).json()
    assert [one["id"] for one in listed] == ["long", *(f"s{number}" for number in range(20))]
    assert listed[-1]["state"] == {"n": 19}


async def test_state_that_is_too_large_is_refused_on_every_route(ours: httpx.AsyncClient) -> None:
    app = unique("app")
    path = f"/apps/{app}/users/ann/sessions"
    half = "x" * 600_000
    assert (
        await ours.post(f"{path}/s", json={"state": {"a": half, "user:a": "", "app:a": ""}})
    ).status_code == 200
    for prefix in ("user:", "app:"):
        delta = {"stateDelta": {f"{prefix}a": half}}
        assert (await ours.patch(f"{path}/s", json=delta)).status_code == 200
    before = (await ours.get(f"{path}/s")).json()
    for prefix in ("", "user:", "app:"):
        delta = {"stateDelta": {f"{prefix}b": half}}
        problem(await ours.patch(f"{path}/s", json=delta), 413, "state-too-large")
        event = {"id": f"of {prefix}", "author": "ann", "actions": delta}
        refused = problem(await ours.post(f"{path}/s/events", json=event), 413, "state-too-large")
        assert refused["limit"] == 1 << 20 < refused["size"]
    for prefix in ("user:", "app:"):
        wanted = {"state": {f"{prefix}b": half}}
        problem(await ours.post(f"{path}/another", json=wanted), 413, "state-too-large")
    assert (await ours.get(f"{path}/s")).json() == before  # no event is stored without its state
    assert (await ours.get(f"{path}/another")).status_code == 404


async def test_P3_a_repeated_creation_with_the_same_key_leaves_one_session(
    ours: httpx.AsyncClient,
) -> None:
    path = f"/apps/{unique('app')}/users/ann/sessions"
    for body in ({"state": {"a": 1, "user:b": 1}}, {"sessionId": "mine", "state": {"a": 2}}):
        key = {"Idempotency-Key": unique("key")}
        first, second = [(await ours.post(path, json=body, headers=key)).json() for _ in range(2)]
        assert first == second
    sessions = (await ours.get(path)).json()
    assert len(sessions) == 2
    problem(await ours.post(path, json={"sessionId": "mine"}), 409, "already-exists")


async def test_P3_a_repeated_creation_with_events_stores_each_once(
    ours: httpx.AsyncClient,
) -> None:
    path, key = f"/apps/{unique('app')}/users/ann/sessions", {"Idempotency-Key": unique("key")}
    events: list[Json] = [
        {"author": "user", "content": {"parts": [{"text": "one"}]}},
        {"id": "mine", "author": "user"},
        {"id": "timed", "timestamp": 5},
        {"author": "user", "content": {"parts": [{"text": "one"}]}},
    ]
    first, second = [await ours.post(path, json={"events": events}, headers=key) for _ in range(2)]
    assert first.status_code == second.status_code == 200 and first.json() == second.json()
    assert (await ours.get(f"{path}/{first.json()['id']}")).json() == first.json()
    ids = [one["id"] for one in first.json()["events"]]
    assert ids[1:3] == ["mine", "timed"] and len(set(ids)) == 4
    for others in (events[:3], [*events[:3], {"author": "x"}], None):
        answer = await ours.post(path, json={"events": others}, headers=key)
        problem(answer, 422, "idempotency-mismatch")


async def test_a_session_with_an_invalid_event_is_not_created(ours: httpx.AsyncClient) -> None:
    path = f"/apps/{unique('app')}/users/ann/sessions"
    deep: Any = "x"
    for _ in range(61):
        deep = {"a": deep}
    many: list[Json] = [{}] * 1_001
    for bad in (
        [{"id": "a"}, {"id": "a", "author": "b"}],
        [{}, {"customMetadata": deep}],
        [{}, {"id": 5}],
        many,
    ):
        problem(await ours.post(path, json={"sessionId": "s", "events": bad}), 422, "invalid-input")
    assert (await ours.get(path)).json() == []
    most = await ours.post(path, json={"sessionId": "s", "events": many[1:]})
    assert most.status_code == 200
    assert len((await ours.get(f"{path}/s")).json()["events"]) == 1_000


@pytest.mark.parametrize("partial", [0, 1, "true"])
async def test_partial_must_be_a_boolean(ours: httpx.AsyncClient, partial: Any) -> None:
    """Partial events are not stored, so the value must not be ambiguous."""
    path = f"/apps/{unique('app')}/users/ann/sessions/s"
    assert (await ours.post(path, json={})).status_code == 200
    problem(
        await ours.post(f"{path}/events", json={"author": "user", "partial": partial}), 422, "invalid-input"
    )
    assert (await ours.get(path)).json()["events"] == []


@pytest.mark.parametrize("keyed_by", [None, "key"])
async def test_P4_an_interrupted_creation_leaves_all_events_or_none(
    ours: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch, keyed_by: str | None
) -> None:
    path, run = f"/apps/{unique('app')}/users/ann/sessions", Store._run_create
    events: list[Json] = [{"author": str(number)} for number in range(4)]
    for survived in range(5):
        headers = {} if keyed_by is None else {"Idempotency-Key": unique("key")}
        state = {"app:a": survived, "own": 2}
        body, left = {"sessionId": f"s{survived}", "state": state, "events": events}, survived

        async def dies(self: Store, *args: Any) -> Any:
            nonlocal left
            if left == 0:
                raise StoreUnavailable("gone")
            left -= 1
            return await run(self, *args)

        monkeypatch.setattr(Store, "_run_create", dies)
        first = await ours.post(path, json=body, headers=headers)
        monkeypatch.undo()
        found = await ours.get(f"{path}/s{survived}")
        again = await ours.post(path, json=body, headers=headers)
        if survived == 0:
            assert (first.status_code, found.status_code, again.status_code) == (503, 404, 200)
            continue
        assert [one["author"] for one in found.json()["events"]] == ["0", "1", "2", "3"]
        assert found.json()["state"]["own"] == 2
        assert again.status_code == (409 if keyed_by is None else 200)
        if keyed_by is not None:
            assert again.json() == (await ours.get(f"{path}/s{survived}")).json()


async def test_the_user_id_message_is_refused_by_the_adk_routes(
    ours: httpx.AsyncClient,
) -> None:
    path = f"/apps/{unique('app')}/users/message/sessions"
    for answer in (await ours.post(path, json={}), await ours.get(path)):
        (complaint,) = problem(answer, 422, "invalid-input")["errors"]
        assert complaint["message"].startswith("the user id 'message' is reserved")


async def test_an_event_without_a_time_can_be_repeated(ours: httpx.AsyncClient) -> None:
    path = f"/apps/{unique('app')}/users/ann/sessions/s"
    await ours.post(path)
    body: Json = {"id": "e", "author": "user", "actions": {"stateDelta": {"a": 1}}}
    first = await ours.post(f"{path}/events", json=body)
    again = await ours.post(f"{path}/events", json=body)
    assert again.status_code == 200 and again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    for other in ({**body, "author": "eve"}, {**body, "timestamp": 5}):
        problem(await ours.post(f"{path}/events", json=other), 422, "idempotency-mismatch")
    same = {**body, "timestamp": first.json()["timestamp"]}
    assert (await ours.post(f"{path}/events", json=same)).json() == first.json()


async def test_events_are_accepted_in_both_cases_and_returned_in_camel_case(
    ours: httpx.AsyncClient, store: Store
) -> None:
    app = unique("app")
    path = f"/apps/{app}/users/ann/sessions/s"
    await ours.post(path)
    original = everything()
    cases = [
        original.model_dump(mode="json", by_alias=by_alias, exclude_none=True) | {"id": f"e{by_alias}"}
        for by_alias in (True, False)
    ]
    sent_as = deepcopy(cases)
    for sent in cases:
        answer = await ours.post(f"{path}/events", json=sent)
        assert answer.status_code == 200, answer.text
        assert answer.headers["etag"]
        again = await ours.post(f"{path}/events", json=sent)
        assert again.json() == answer.json()
        assert again.headers["idempotency-replayed"] == "true"
        assert "idempotency-replayed" not in answer.headers
    whole = (await ours.get(path, params={"whole": "true"})).json()
    # Auth schemes have fields that exist only in snake case, so they are stored unchanged.
    configs = [one["actions"].pop("requestedAuthConfigs") for one in (*whole["events"], cases[0])]
    assert configs[0] == configs[2] and configs[1] == cases[1]["actions"]["requested_auth_configs"]
    assert [one | {"id": ""} for one in whole["events"]] == [cases[0] | {"id": ""}] * 2
    service = BreadcrumbSessionService(store)
    read = await service.get_session(app_name=app, user_id="ann", session_id="s")
    assert read is not None
    # ADK parses the sent JSON to the same events.
    assert read.events == [Event.model_validate_json(json.dumps(sent)) for sent in sent_as]
    assert read.events[0].model_copy(update={"id": original.id}) == original


async def test_missing_fields_of_an_event_are_added_and_temporary_ones_removed(
    ours: httpx.AsyncClient,
) -> None:
    path = f"/apps/{unique('app')}/users/ann/sessions/s"
    await ours.post(path)
    body = {"content": {"parts": [{"text": "hello"}]}, "actions": {"state_delta": {"a": 1, "temp:b": 2}}}
    stored = (await ours.post(f"{path}/events", json=body)).json()
    assert UUID(stored["id"])
    assert stored["timestamp"] > 1e9
    assert stored["actions"]["stateDelta"] == {"a": 1}
    session = (await ours.get(path)).json()
    assert session["events"] == [stored]
    assert session["state"] == {"a": 1}
    assert session["lastUpdateTime"] == stored["timestamp"]
    partial = await ours.post(f"{path}/events", json={"author": "a", "partial": True})
    assert partial.status_code == 200
    assert (await ours.get(path)).json() == session


async def test_events_that_adk_cannot_parse_are_refused(ours: httpx.AsyncClient) -> None:
    path = f"/apps/{unique('app')}/users/ann/sessions/s"
    await ours.post(path)
    bodies: list[Any] = [
        5,
        [],
        {"id": 5},
        {"author": {}},
        {"content": "hello"},
        {"content": {"parts": "hello"}},
        {"content": {"parts": ["hello"]}},
        {"actions": []},
        {"actions": {"stateDelta": 5}},
        {"timestamp": "today"},
        {"timestamp": True},
        {"id": "x", "actions": {"stateDelta": {"\0title": "x"}}},
    ]
    for body in bodies:
        problem(await ours.post(f"{path}/events", json=body), 422, "invalid-input")
    assert (await ours.get(path)).json()["events"] == []
    missing = await ours.post(f"{path}x/events", json={"author": "user"})
    problem(missing, 404, "not-found")


async def test_events_can_be_limited_by_number_and_time_in_both_cases(
    ours: httpx.AsyncClient,
) -> None:
    path = f"/apps/{unique('app')}/users/ann/sessions/s"
    await ours.post(path)
    for number in range(4):
        await ours.post(f"{path}/events", json={"id": str(number), "timestamp": number})

    async def ids(**params: Any) -> str:
        return "".join(one["id"] for one in (await ours.get(path, params=params)).json()["events"])

    assert await ids() == "0123"
    assert await ids(numRecentEvents=2) == await ids(num_recent_events=2) == "23"
    assert await ids(numRecentEvents=0) == ""
    assert await ids(afterTimestamp=2) == await ids(after_timestamp="1.5") == "23"
    for params in ({"numRecentEvents": "-1"}, {"afterTimestamp": "nan"}, {"whole": "yes"}, {"num": "1"}):
        problem(await ours.get(path, params=params), 422, "invalid-input")


async def test_credentials_are_visible_only_to_curators_of_the_service(
    store: Store, keyed: httpx.AsyncClient
) -> None:
    app, key = unique("app"), {"X-API-Key": KEY}
    path = f"/apps/{app}/users/ann/sessions/s"
    await keyed.post(path, headers=key)
    body = {"id": "e", "content": {"parts": [{"functionCall": CALL}, {"text": "please"}]}}
    await keyed.post(f"{path}/events", json=body, headers=key)
    token = await keyed.post("/auth/token", json={"roles": ["subscriber", "emitter"]}, headers=key)
    weaker = {"Authorization": f"Bearer {token.json()['token']}"}
    for headers, params, shown in (
        (key, {"whole": "true"}, True),
        (key, {}, False),
        (weaker, {"whole": "true"}, False),
    ):
        found = await keyed.get(path, headers=headers, params=params)
        assert found.status_code == 200
        assert ("hush" in found.text) is shown
        assert "please" in found.text and "kept" in found.text
    listed = await keyed.get(
        "/breadcrumbs", params={"session_id": f"adk:{app}:ann:s", "include_context": "true"}, headers=weaker
    )
    assert len(listed.json()) == 2 and "hush" not in listed.text
    (crumb,) = await store.recent(OWNER, f"adk:{app}:ann:s", "adk.event.v1", 1)
    assert crumb.sensitivity == "secret"


# Access


async def test_every_adk_route_needs_a_token(keyed: httpx.AsyncClient) -> None:
    for operation in OPERATIONS:
        path = operation.path.format(app="a", user="u", session="s")
        problem(await keyed.request(operation.method, path), 401, "unauthenticated")


async def test_tenants_are_separate_on_the_adk_routes(keyed: httpx.AsyncClient) -> None:
    app = unique("app")
    path = f"/apps/{app}/users/ann/sessions"
    first, second = {"X-API-Key": KEY}, {"X-API-Key": OTHER_KEY}
    state = {"a": 1, "user:b": 1, "app:c": 1}
    await keyed.post(path, json={"sessionId": "s", "state": state}, headers=first)
    problem(await keyed.get(f"{path}/s", headers=second), 404, "not-found")
    problem(await keyed.post(f"{path}/s/events", json={"author": "x"}, headers=second), 404, "not-found")
    assert (await keyed.get(path, headers=second)).json() == []
    assert (await keyed.get(f"/apps/{app}/users/ann/state", headers=second)).json() == {}
    assert (await keyed.delete(f"{path}/s", headers=second)).status_code == 200
    theirs = await keyed.post(path, json={"sessionId": "s"}, headers=second)
    assert theirs.json()["state"] == {}
    assert (await keyed.get(f"{path}/s", headers=first)).json()["state"] == state


async def test_a_token_that_can_only_write_reads_nothing(keyed: httpx.AsyncClient) -> None:
    path = f"/apps/{unique('app')}/users/ann/sessions"
    weak = {"X-API-Key": WEAK_KEY}
    await keyed.post(path, json={"sessionId": "s"}, headers={"X-API-Key": KEY})
    assert (await keyed.post(f"{path}/s/events", json={"author": "a"}, headers=weak)).status_code == 200
    for method, place in (
        ("GET", path),
        ("GET", f"{path}/s"),
        ("POST", path),
        ("POST", f"{path}/new"),
        ("PATCH", f"{path}/s"),
    ):
        answer = await keyed.request(
            method, place, json=None if method == "GET" else {"stateDelta": {}}, headers=weak
        )
        problem(answer, 403, "forbidden")


async def test_a_user_token_can_access_only_its_own_sessions(keyed: httpx.AsyncClient) -> None:
    app, key = unique("app"), {"X-API-Key": KEY}
    base = f"/apps/{app}/users"
    for user in ("ann", "bob"):
        state = {"a": user, "user:b": user, "app:c": user}
        await keyed.post(f"{base}/{user}/sessions", json={"sessionId": "s", "state": state}, headers=key)
    issued = await keyed.post("/auth/token", json={"user_id": "ann"}, headers=key)
    ann = {"Authorization": f"Bearer {issued.json()['token']}"}

    found = (await keyed.get(f"{base}/ann/sessions/s", headers=ann)).json()
    assert found["state"] == {"a": "ann", "user:b": "ann"}
    for path in (f"{base}/ann/sessions", f"/apps/{app}/sessions"):
        assert [session["userId"] for session in (await keyed.get(path, headers=ann)).json()] == ["ann"]
    assert (await keyed.get(f"{base}/bob/sessions", headers=ann)).json() == []
    problem(await keyed.get(f"{base}/bob/sessions/s", headers=ann), 404, "not-found")
    problem(await keyed.get(f"{base}/bob/state", headers=ann), 404, "not-found")
    for method, path, body in (
        ("POST", "bob/sessions", {}),
        ("POST", "bob/sessions/new", {}),
        ("PATCH", "bob/sessions/s", {"stateDelta": {"a": 1}}),
        ("DELETE", "bob/sessions/s", None),
        ("POST", "bob/sessions/s/events", {"author": "ann"}),
        ("PATCH", "ann/sessions/s", {"stateDelta": {"app:c": 1}}),
        ("POST", "ann/sessions", {"state": {"app:c": 1}}),
    ):
        problem(await keyed.request(method, f"{base}/{path}", json=body, headers=ann), 403, "forbidden")
    changed = await keyed.patch(f"{base}/ann/sessions/s", json={"stateDelta": {"user:b": 2}}, headers=ann)
    assert changed.json()["state"] == {"a": "ann", "user:b": 2}
    assert (await keyed.get(f"{base}/bob/sessions/s", headers=key)).json()["state"] == {
        "a": "bob",
        "user:b": "bob",
        "app:c": "bob",
    }
    forged = {
        "schema_name": "adk.event.v1",
        "tags": [f"session:adk:{app}:bob:s"],
        "context": {"event": {"timestamp": 1}, "state_delta": {"a": "forged"}},
    }
    problem(await keyed.post("/breadcrumbs", json=forged, headers=ann), 403, "forbidden")


async def test_a_session_token_can_access_only_its_own_session(keyed: httpx.AsyncClient) -> None:
    app, key = unique("app"), {"X-API-Key": KEY}
    path = f"/apps/{app}/users/ann/sessions"
    for id in ("s1", "s2"):
        state = {"a": 1, "user:b": 1, "app:c": 1}
        await keyed.post(path, json={"sessionId": id, "state": state}, headers=key)
    issued = await keyed.post("/auth/token", json={"session_id": f"adk:{app}:ann:s1"}, headers=key)
    narrow = {"Authorization": f"Bearer {issued.json()['token']}"}
    assert (await keyed.get(f"{path}/s1", headers=narrow)).json()["state"] == {"a": 1}
    assert [session["id"] for session in (await keyed.get(path, headers=narrow)).json()] == ["s1"]
    problem(await keyed.get(f"{path}/s2", headers=narrow), 404, "not-found")
    problem(await keyed.get(f"/apps/{app}/users/ann/state", headers=narrow), 404, "not-found")
    for delta in ({"user:b": 2}, {"app:c": 2}):
        answer = await keyed.patch(f"{path}/s1", json={"stateDelta": delta}, headers=narrow)
        problem(answer, 403, "forbidden")
    problem(await keyed.delete(f"{path}/s2", headers=narrow), 403, "forbidden")
    assert (await keyed.post(f"{path}/s1/events", json={"author": "a"}, headers=narrow)).status_code == 200
    assert (await keyed.delete(f"{path}/s1", headers=narrow)).status_code == 200


# As documented

document = build_document(OPERATIONS, version="0", development_mode=True)
# The routes below /api are the same, so one of each is enough.
api = schemathesis.openapi.from_dict(document).include(path_regex="^/apps/")


@api.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_reply_matches_the_document(case: schemathesis.Case[Any], served: str) -> None:
    """Allowed input can still be refused: JSON Schema cannot express all rules of an event."""
    call_and_check(case, served)


def test_the_routes_need_no_google_adk() -> None:
    code = "import sys; sys.modules['google'] = None; import breadcrumbs.composition.http_server, breadcrumbs.adk.http"
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_an_unreachable_server_is_reported_with_advice() -> None:
    service = BreadcrumbSessionService("http://127.0.0.1:9")
    backend: Any = await service._backend()
    backend._client._connection.retries = 0
    with pytest.raises(Exception, match="crumb up"):
        await service.create_session(app_name="a", user_id="u")
    await service.close()


async def test_a_service_without_the_role_emitter_is_refused(served: str) -> None:
    async with BreadcrumbSessionService(served) as service:
        client = (await service._backend())._client  # type: ignore[attr-defined]
        token = (await client.token(roles=["subscriber"])).token
    async with BreadcrumbSessionService(served.replace("http://", f"crumb://{token}@")) as weak:
        with pytest.raises(PermissionError, match="emitter"):
            await weak.create_session(app_name="a", user_id="u")


async def test_credentials_in_the_state_need_the_right_to_read_secrets_on_every_route(
    keyed: httpx.AsyncClient,
) -> None:
    app, key = unique("app"), {"X-API-Key": KEY}
    path, name = f"/apps/{app}/users/ann/sessions", f"/sessions/adk:{app}:ann:q"
    credential = {"authType": "apiKey", "apiKey": "hush"}
    state = {"cred": credential, "step": 1}
    await keyed.post(path, json={"sessionId": "q", "state": state}, headers=key)
    issued = await keyed.post("/auth/token", json={"roles": ["emitter", "subscriber"]}, headers=key)
    plain = {"Authorization": f"Bearer {issued.json()['token']}"}
    shown = {"cred": {"authType": "apiKey"}, "step": 1}
    answers = [
        await keyed.get(name, headers=plain),
        await keyed.patch(name, json={"title": "T"}, headers=plain),
        await keyed.get(f"{path}/q", headers=plain),
        await keyed.get(f"{path}/q?whole=true", headers=plain),
        await keyed.post(f"{name}/fork", json={"id": "forked"}, headers=plain),
    ]
    assert [answer.json()["state"] for answer in answers] == [shown] * len(answers)
    assert (await keyed.get(name, headers=key)).json()["state"] == state
    # Secret state of an ADK session is also hidden on the ADK routes.
    kept = {"schema_name": "session.state.v1", "sensitivity": "secret", "tags": [f"session:adk:{app}:ann:q"]}
    await keyed.post("/breadcrumbs", json={**kept, "context": {"state_delta": {"pin": 1234}}}, headers=key)
    assert (await keyed.get(f"{path}/q?whole=true", headers=plain)).json()["state"] == shown
    assert (await keyed.get(f"{path}/q?whole=true", headers=key)).json()["state"] == {**state, "pin": 1234}


@pytest.mark.parametrize("narrowed_to", ["session", "user"])
async def test_a_narrowed_token_cannot_change_the_state_of_the_app(
    keyed: httpx.AsyncClient, narrowed_to: str
) -> None:
    app, key = unique("app"), {"X-API-Key": KEY}
    path, name = f"/apps/{app}/users/ann/sessions", f"adk:{app}:ann:q"
    wanted = {"session_id": name} if narrowed_to == "session" else {"user_id": "ann"}
    issued = await keyed.post("/auth/token", json=wanted, headers=key)
    narrow = {"Authorization": f"Bearer {issued.json()['token']}"}
    forged: dict[str, Any] = {"shared_state_delta": {"app": {"price": 0}, "user": {}}}
    record = {"schema_name": "session.v1", "tags": [f"session:{name}"], "context": forged}
    problem(await keyed.post("/breadcrumbs", json=record, headers=narrow), 403, "forbidden")

    await keyed.post(path, json={"sessionId": "q", "state": {"app:price": 5}}, headers=key)
    asked = {"session_id": name, "schema_name": "session.v1"}
    (found,) = (await keyed.get("/breadcrumbs", params=asked, headers=key)).json()
    place = f"/breadcrumbs/{found['id']}"
    problem(await keyed.patch(place, json={"context": forged}, headers=narrow), 403, "forbidden")
    assert "shared_state_delta" not in (await keyed.get(f"{place}/full", headers=narrow)).json()["context"]
    problem(await keyed.patch(place, json={"title": "mine"}, headers=narrow), 403, "forbidden")

    # A later change by a curator makes no difference: only the first version of the record counts.
    await keyed.patch(place, json={"context": forged}, headers=key)
    problem(await keyed.post(path, json={"sessionId": "q"}, headers=key), 409, "already-exists")
    assert (await keyed.get(f"{path}/q", headers=key)).json()["state"]["app:price"] == 5


@pytest.mark.parametrize("narrowed_to", ["session", "user"])
async def test_a_narrowed_token_cannot_set_shared_names_in_the_state_of_a_session(
    keyed: httpx.AsyncClient, narrowed_to: str
) -> None:
    app, key = unique("app"), {"X-API-Key": KEY}
    path, name = f"/apps/{app}/users/ann/sessions", f"adk:{app}:ann:q"
    await keyed.post(path, json={"sessionId": "q", "state": {"a": 1}}, headers=key)
    wanted = {"session_id": name} if narrowed_to == "session" else {"user_id": "ann"}
    issued = await keyed.post("/auth/token", json=wanted, headers=key)
    narrow = {"Authorization": f"Bearer {issued.json()['token']}"}
    names = ("app:price", "user:name") if narrowed_to == "session" else ("app:price",)
    for shared in names:
        changed = await keyed.patch(f"/sessions/{name}", json={"state": {shared: 0}}, headers=narrow)
        problem(changed, 403, "forbidden")
        event = {
            "schema_name": "adk.event.v1",
            "tags": [f"session:{name}"],
            "context": {"event": {"timestamp": 1}, "state_delta": {shared: 0}},
        }
        problem(await keyed.post("/breadcrumbs", json=event, headers=narrow), 403, "forbidden")
    # A curator can set any name. The ADK view of the session does not show it as shared state.
    await keyed.patch(f"/sessions/{name}", json={"state": {"app:price": 0, "b": 2}}, headers=key)
    assert (await keyed.get(f"{path}/q", headers=key)).json()["state"] == {"a": 1, "b": 2}
    (listed,) = (await keyed.get(path, headers=key)).json()
    assert listed["state"] == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("narrowed_to", "shown"),
    [("session", {"a": 1}), ("user", {"a": 1, "user:b": 1})],
    ids=["session", "user"],
)
async def test_events_hide_changes_of_shared_state_from_a_narrowed_token(
    keyed: httpx.AsyncClient, narrowed_to: str, shown: dict[str, Any]
) -> None:
    app, key = unique("app"), {"X-API-Key": KEY}
    path, name = f"/apps/{app}/users/ann/sessions", f"adk:{app}:ann:q"
    await keyed.post(path, json={"sessionId": "q"}, headers=key)
    event = {"author": "a", "actions": {"stateDelta": {"a": 1, "user:b": 1, "app:c": 1}}}
    await keyed.post(f"{path}/q/events", json=event, headers=key)
    wanted = {"session_id": name} if narrowed_to == "session" else {"user_id": "ann"}
    issued = await keyed.post("/auth/token", json=wanted, headers=key)
    narrow = {"Authorization": f"Bearer {issued.json()['token']}"}
    (read,) = (await keyed.get(f"{path}/q", headers=narrow)).json()["events"]
    assert read["actions"]["stateDelta"] == shown
    query = {"schema_name": "adk.event.v1", "session_id": name, "include_context": "true"}
    (listed,) = (await keyed.get("/breadcrumbs", params=query, headers=narrow)).json()
    assert listed["context"]["event"]["actions"]["stateDelta"] == shown


@pytest.mark.parametrize("shared", [{}, {"app": 1, "user": {}}, {"app": {}}, {"app": {}, "user": []}, 7])
async def test_a_record_with_invalid_shared_state_is_ignored(keyed: httpx.AsyncClient, shared: Any) -> None:
    app, key = unique("app"), {"X-API-Key": KEY}
    record = {
        "schema_name": "session.v1",
        "tags": [f"session:adk:{app}:ann:q"],
        "context": {"shared_state_delta": shared},
    }
    assert (await keyed.post("/breadcrumbs", json=record, headers=key)).status_code == 201
    answer = await keyed.post(f"/apps/{app}/users/ann/sessions", json={"sessionId": "q"}, headers=key)
    problem(answer, 409, "already-exists")
