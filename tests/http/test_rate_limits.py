"""Rate limits: budgets per class of routes, per token and per owner, for all processes together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import anyio
import httpx
import pytest

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.access.rate_limits import RateLimiter
from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.errors import RateLimited
from breadcrumbs.runtime.http.app import OPERATIONS
from breadcrumbs.runtime.settings.rates import Rate, RateBudget, RateLimits, parse_rate
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.store import Store
from tests.http.conftest import KEY, KEYS, OTHER_KEY, WEAK_KEY, MakeSite, Site, problem, running_site
from tests.support.servers import Cluster

MINE, THEIRS, WEAK = ({"X-API-Key": key} for key in (KEY, OTHER_KEY, WEAK_KEY))
OFF = {"per_token": "off", "per_owner": "off"}


def limits(**budgets: dict[str, str]) -> dict[str, Any]:
    return {"posting": OFF, "managing": OFF, "reading": OFF, **budgets}


async def post(site: Site, headers: dict[str, str], session: str = "s") -> httpx.Response:
    return await site.client.post("/breadcrumbs", json={"tags": [f"session:{session}"]}, headers=headers)


async def spent(site: Site, headers: dict[str, str], times: int = 1, session: str = "s") -> list[int]:
    return [(await post(site, headers, session)).status_code for _ in range(times)]


async def test_P20_an_exhausted_posting_budget_does_not_affect_reading_and_sessions(
    make_site: MakeSite,
) -> None:
    site = await make_site(
        api_keys=KEYS, rate_limits=limits(posting={"per_token": "3/1h"}, managing={"per_token": "2/1h"})
    )
    assert await spent(site, MINE, 3) == [201] * 3
    refused = await post(site, MINE)
    told = problem(refused, 429, "rate-limited")
    assert "posting" in told["detail"] and told["limit"] == 3
    assert told["retry_after"] == int(refused.headers["retry-after"]) in range(1190, 1201)
    assert refused.headers["ratelimit-limit"] == "3" and refused.headers["ratelimit-remaining"] == "0"
    said = await site.client.post("/sessions/s/messages", json={"message": "x"}, headers=MINE)
    problem(said, 429, "rate-limited")
    assert (await site.client.get("/sessions/s", headers=MINE)).json()["counts"]["breadcrumbs"] == 3
    assert (await site.client.post("/sessions", json={}, headers=MINE)).status_code == 201
    assert (await site.client.patch("/sessions/s", json={"title": "T"}, headers=MINE)).status_code == 200
    third = await site.client.delete("/sessions/s", headers=MINE)
    assert "managing" in problem(third, 429, "rate-limited")["detail"]
    for _ in range(10):
        assert (await site.client.get("/breadcrumbs", headers=MINE)).status_code == 200


async def test_an_exhausted_reading_budget_does_not_affect_posting(make_site: MakeSite) -> None:
    site = await make_site(api_keys=KEYS, rate_limits=limits(reading={"per_token": "2/1h"}))
    paths = ("/breadcrumbs", "/sessions")
    for path in paths:
        assert (await site.client.get(path, headers=MINE)).status_code == 200
    for path in (*paths, "/agents", "/sessions/s/messages", "/events/stream"):
        problem(await site.client.get(path, headers=MINE), 429, "rate-limited")
    assert await spent(site, MINE, 5) == [201] * 5


async def test_every_reply_contains_the_remaining_budget(make_site: MakeSite) -> None:
    site = await make_site(
        api_keys=KEYS, rate_limits=limits(posting={"per_token": "10/10s", "per_owner": "3/1h"})
    )
    left = []
    for _ in range(3):
        headers = (await post(site, MINE)).headers
        assert headers["ratelimit-limit"] == "3", "that of the budget that has the least left"
        assert int(headers["ratelimit-reset"]) > 0
        left.append(headers["ratelimit-remaining"])
    assert left == ["2", "1", "0"]
    assert "ratelimit-limit" not in (await site.client.get("/breadcrumbs", headers=MINE)).headers


async def test_tokens_have_their_own_budgets_and_share_the_owners_budget(make_site: MakeSite) -> None:
    site = await make_site(
        api_keys=KEYS, rate_limits=limits(posting={"per_token": "3/1h", "per_owner": "5/1h"})
    )
    assert await spent(site, MINE, 4) == [201] * 3 + [429]
    assert await spent(site, WEAK, 3) == [201] * 2 + [429], "the owner's are spent"
    assert await spent(site, THEIRS, 4) == [201] * 3 + [429]
    detail = problem(await post(site, WEAK), 429, "rate-limited")["detail"]
    assert "this owner" in detail


async def test_a_refusal_by_the_owners_budget_does_not_charge_the_token(make_site: MakeSite) -> None:
    site = await make_site(
        api_keys=KEYS, rate_limits=limits(posting={"per_token": "2/1h", "per_owner": "1/2s"})
    )
    assert await spent(site, MINE, 3) == [201, 429, 429]
    await anyio.sleep(2.1)
    assert await spent(site, MINE) == [201]


async def test_a_narrowed_token_has_its_own_budget(make_site: MakeSite) -> None:
    site = await make_site(api_keys=KEYS, rate_limits=limits(posting={"per_token": "1/1h"}))
    ann, eve = await site.token(KEY, user_id="ann"), await site.token(KEY, user_id="eve")
    other = await site.token(KEY, user_id="ann")  # another token for the same user
    for session, headers in (("s", MINE), ("anns", ann), ("eves", eve)):
        assert await spent(site, headers, 2, session) == [201, 429]
    assert await spent(site, other, session="anns") == [429]


async def test_a_budget_holds_for_all_replicas_together_and_to_the_last_request(
    embedded_server: EmbeddedServer,
) -> None:
    settings: dict[str, Any] = {"api_keys": KEYS, "rate_limits": limits(posting={"per_token": "20/1h"})}
    namespace = f"t{uuid4().hex[:8]}"
    statuses: list[int] = []
    async with (
        running_site(embedded_server.url, namespace=namespace, **settings) as one,
        running_site(embedded_server.url, namespace=namespace, **settings) as two,
        anyio.create_task_group() as tasks,
    ):

        async def ask(site: Site) -> None:
            statuses.append((await post(site, MINE)).status_code)

        for number in range(60):
            tasks.start_soon(ask, (one, two)[number % 2])
    assert sorted(statuses) == [201] * 20 + [429] * 40


async def test_a_spent_budget_fills_up_evenly(make_site: MakeSite) -> None:
    site = await make_site(api_keys=KEYS, rate_limits=limits(posting={"per_token": "4/8s"}))
    assert await spent(site, MINE, 5) == [201] * 4 + [429]
    await anyio.sleep(2.1)
    assert await spent(site, MINE, 2) == [201, 429], "one every two seconds"


async def test_a_refused_request_has_no_effect_and_sends_no_command(make_site: MakeSite) -> None:
    site = await make_site(api_keys=KEYS, rate_limits=limits(posting={"per_token": "1/1h"}))
    assert await spent(site, MINE, 2) == [201, 429]
    asked = 0
    connection: Any = site.store.connection
    run = connection.run

    async def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return await run(*args)

    connection.run = counted
    assert await spent(site, MINE, 20) == [429] * 20
    assert asked == 0
    assert len((await site.client.get("/breadcrumbs", headers=MINE)).json()) == 1


async def test_a_large_budget_is_reserved_in_batches_without_exceeding_it(store: Store) -> None:
    """Two processes reserve at the same time. Together they do not exceed the budget."""
    rates = RateLimits(posting=RateBudget(per_token=Rate(2_000, 3_600), per_owner=Rate(1_600, 3_600)))
    processes = [RateLimiter(store, rates) for _ in range(2)]
    principal = Principal(uuid4(), uuid4())
    asked = allowed = 0
    connection: Any = store.connection
    run = connection.run

    async def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return await run(*args)

    connection.run = counted
    lefts = []
    for number in range(2_000):
        try:
            left = await processes[number % 2].spend(principal, "posting")
        except RateLimited as error:
            assert error.limit == 1_600
        else:
            allowed += 1
            assert left is not None and left.limit == 1_600
            lefts.append(left.remaining)
    assert 1_600 - 2 * 8 <= allowed <= 1_600
    assert asked < allowed / 4
    assert lefts[0] == 1_599 and lefts[-1] < 20


async def test_concurrent_requests_reserve_no_more_than_they_need(store: Store) -> None:
    limiter = RateLimiter(store, RateLimits(posting=RateBudget(per_token=Rate(2_000, 3_600))))
    principal = Principal(uuid4(), uuid4())
    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(limiter.spend, principal, "posting")
    left = await RateLimiter(store, RateLimits(posting=RateBudget(per_token=Rate(2_000, 3_600)))).spend(
        principal, "posting"
    )
    assert left is not None and 2_000 - 100 - 20 <= left.remaining < 2_000 - 100


async def test_without_keys_there_are_no_limits_and_no_budget_commands(site: Site) -> None:
    scripts = []
    connection: Any = site.store.connection
    run = connection.run

    async def noted(lane: int, script: Any, *rest: Any) -> Any:
        scripts.append(script.name)
        return await run(lane, script, *rest)

    connection.run = noted
    answer = await site.client.post("/breadcrumbs", json={})
    assert answer.status_code == 201 and "ratelimit-limit" not in answer.headers
    assert scripts == ["create"]


async def test_limits_can_be_enabled_without_keys_and_disabled_with_keys(
    make_site: MakeSite,
) -> None:
    small = {"posting": {"per_token": "1/1h"}}
    limited = await make_site(rate_limits={"enabled": True, **small})
    assert await spent(limited, {}, 2) == [201, 429]
    free = await make_site(api_keys=KEYS, rate_limits={"enabled": False, **small})
    assert await spent(free, MINE, 3) == [201] * 3


async def test_open_routes_are_never_limited(make_site: MakeSite) -> None:
    tiny = {"per_token": "1/1d", "per_owner": "1/1d"}
    site = await make_site(api_keys=KEYS, rate_limits=dict.fromkeys(("posting", "managing", "reading"), tiny))
    for _ in range(5):
        for path in ("/health", "/ready", "/metrics", "/docs", "/openapi.json"):
            assert (await site.client.get(path, headers=MINE)).status_code == 200
        assert await site.token(KEY)
    assert {operation.path for operation in OPERATIONS if operation.budget is None} == {
        "/health", "/ready", "/metrics", "/openapi.json", "/docs", "/", "/auth/token",
    }  # fmt: skip


def test_every_route_uses_the_budget_of_its_class() -> None:
    posting = {(one.method, one.path) for one in OPERATIONS if one.budget == "posting"}
    assert posting == {
        ("POST", "/breadcrumbs"),
        ("PATCH", "/breadcrumbs/{id}"),
        ("DELETE", "/breadcrumbs/{id}"),
        ("PUT", "/breadcrumbs/{id}/feedback"),
        ("DELETE", "/breadcrumbs/{id}/feedback"),
        ("POST", "/sessions/{id}/messages"),
    }
    for one in OPERATIONS:
        if one.method == "GET" and one.rule.access == "token":
            assert one.budget == "reading", one.path
        if one.path.startswith("/sessions") and one.method != "GET" and "messages" not in one.path:
            assert one.budget == "managing", one.path
        if one.budget is not None:
            assert "rate-limited" in {kind.name for kind in one.problems}


async def test_the_headers_can_be_read_by_pages(make_site: MakeSite) -> None:
    site = await make_site(api_keys=KEYS)
    answer = await post(site, {**MINE, "Origin": "http://127.0.0.1:8081"})
    assert "RateLimit-Remaining" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("text", ["1/1s", " 600 / 1m ", "5/12h", "1000000000/1d", "10/1.5s"])
def test_a_rate_is_a_number_and_a_time(text: str) -> None:
    rate = parse_rate(text)
    assert rate is not None and parse_rate(str(rate)) == rate
    assert parse_rate("off") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "/1s",
        "5/",
        "0/1s",
        "-1/1s",
        "5/0s",
        "5/2d",
        "5/0.1s",
        "1.5/1s",
        "x/1s",
        "5/x",
        "٣/1s",
        "5 1s",
    ],
)
def test_an_invalid_rate_is_refused_at_start(text: str) -> None:
    with pytest.raises(ValueError, match="rate"):
        Settings(rate_limits={"posting": {"per_token": text}})
    with pytest.raises(ValueError, match="posts"):
        Settings(rate_limits={"posts": {"per_token": "1/1s"}})


@pytest.fixture(params=["embedded_server", "cluster_server"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    server: EmbeddedServer | Cluster = request.getfixturevalue(request.param)
    store = await Store.open(server.url, lanes=6, namespace=f"r{uuid4().hex[:8]}")
    yield store
    await store.close()


async def test_budgets_of_many_owners_work_on_any_node_and_expire(store: Store) -> None:
    few = Rate(2, 2)
    limiter = RateLimiter(store, RateLimits(posting=RateBudget(per_token=few, per_owner=few)))
    for _ in range(12):
        principal = Principal(uuid4(), uuid4())
        for _ in range(2):
            await limiter.spend(principal, "posting")
        with pytest.raises(RateLimited):
            await limiter.spend(principal, "posting")
    pattern = store.keys.meta.removesuffix(b"meta") + b"{*g*"
    await anyio.sleep(2.2)
    for lane in range(store.lanes):
        assert await store.connection.call(lane, b"KEYS", pattern) == []
