"""Budgets are checked before a turn starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.settings.settings import load_settings
from breadcrumbs.runtime.store.budgets import Budget, OwnerBudget, Spender
from breadcrumbs.runtime.store.fence import Fence, Lease
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.spending import COST_UNITS, Amounts, ModelUsage, Spending
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.workers.budgets import BudgetGate
from breadcrumbs.runtime.workers.errors import TurnFailed
from tests.support.conversations import ALICE

ANN = Spender(ALICE, "s", "ann")


@pytest.fixture
async def store(embedded_server: EmbeddedServer) -> AsyncIterator[Store]:
    store = await Store.open(embedded_server.url, namespace=f"b{token_hex(6)}")
    yield store
    await store.close()


async def spend(store: Store, tokens: int, cost: float = 0, user: str = "ann", session: str = "s") -> None:
    lane = store.keys.session_lane(ALICE, session)
    await store.connection.call(lane, b"SET", store.keys.lease(lane, "agents"), b"1")
    usage = ModelUsage("a", "m", user, Amounts(1, tokens, cost=round(cost * COST_UNITS)), 0)
    spending = Spending(ALICE, session, (usage,), store.now())
    new = {"schema_name": "agent.response.v1", "tags": [f"session:{session}"], "title": "", "context": {}}
    await store.create(
        ALICE,
        BreadcrumbCreate.parse(new),
        id=derived_id(lane, token_hex(8)),
        options=CreateOptions(fence=Fence(Lease(lane, "agents", b"1"), spent=spending)),
    )


async def post(store: Store, *, tags: tuple[str, ...] = (), **budget: Any) -> None:
    new = {"schema_name": "usage.budget.v1", "title": "Budget", "tags": list(tags), "context": budget}
    await store.create(ALICE, BreadcrumbCreate.parse(new))


async def refusal(gate: BudgetGate, spender: Spender = ANN, *, has_price: bool = True) -> str:
    """Return why a turn does not start, or an empty text."""
    try:
        await gate.check(spender, model="m", has_price=has_price)
    except TurnFailed as error:
        return str(error)
    return ""


@pytest.mark.parametrize("period", ["day", "month", "total"])
@pytest.mark.parametrize("scope", ["user", "owner"])
async def test_a_turn_starts_until_the_tokens_are_used_up(store: Store, scope: Any, period: Any) -> None:
    gate = BudgetGate(store, [OwnerBudget(scope=scope, period=period, tokens=100)])
    await spend(store, 99)
    assert await refusal(gate) == ""
    await spend(store, 1, session="t")
    assert "100 of 100 tokens" in await refusal(gate)
    other = await refusal(gate, Spender(ALICE, "s", "bob"))
    assert (other == "") == (scope == "user")


async def test_a_budget_of_sessions_counts_each_session_for_itself(store: Store) -> None:
    gate = BudgetGate(store, [OwnerBudget(scope="session", tokens=100)])
    await spend(store, 100)
    assert "the budget of session 's' is used up" in await refusal(gate)
    assert await refusal(gate, Spender(ALICE, "t", "ann")) == ""


async def test_a_budget_in_money_needs_the_price_of_the_model(store: Store) -> None:
    gate = BudgetGate(store, [OwnerBudget(scope="owner", cost=2.5)])
    await spend(store, 1, cost=2.4)
    assert await refusal(gate) == ""
    assert "the model m has no price" in await refusal(gate, has_price=False)
    await spend(store, 1, cost=0.1)
    assert "cost 2.5 of 2.5" in await refusal(gate)


async def test_posted_budgets_apply_and_unusable_ones_are_reported(store: Store) -> None:
    await post(store, scope="user", user_id="ann", tokens=0)
    await post(store, scope="owner", tokens=-1)
    await post(store, scope="owner", tokens=0, tags=("user:ann",))
    gate = BudgetGate(store)
    with capture_logs() as logs:
        assert "0 of 0 tokens" in await refusal(gate)
        assert await refusal(gate, Spender(ALICE, "s", "bob")) == ""
    events = sorted(entry["event"] for entry in logs if entry["log_level"] == "warning")
    assert events == ["budget is not used", "budget is not used", "budget is zero, no turn starts"]


async def test_without_a_budget_a_turn_reads_nothing_after_the_first(store: Store) -> None:
    gate = BudgetGate(store)
    await refusal(gate)
    sent: list[Any] = []
    call_all = store.connection.call_all

    async def counted(commands: Any) -> Any:
        sent.append(commands)
        return await call_all(commands)

    store.connection.call_all = counted  # type: ignore[method-assign]
    for _ in range(5):
        await refusal(gate)
    assert sent == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"scope": "owner"}, "tokens or cost"),
        ({"scope": "owner", "tokens": -1}, "greater than or equal to 0"),
        ({"scope": "owner", "cost": "much"}, "valid number"),
        ({"scope": "owner", "cost": float("nan")}, "finite"),
        ({"scope": "team", "tokens": 1}, "'session', 'user' or 'owner'"),
        ({"scope": "session", "period": "day", "tokens": 1}, "period total"),
        ({"scope": "owner", "user_id": "ann", "tokens": 1}, "scope user"),
        ({"scope": "owner", "tokens": 1, "limit": 1}, "Extra inputs"),
    ],
)
def test_an_invalid_budget_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Budget.model_validate(fields)


def test_an_invalid_budget_of_the_settings_stops_the_start() -> None:
    with pytest.raises(StartupError, match="budgets"):
        load_settings(budgets=[{"scope": "owner", "tokens": -1}])


async def test_a_zero_budget_of_the_settings_is_reported(store: Store) -> None:
    with capture_logs() as logs:
        BudgetGate(store, [OwnerBudget(scope="owner", tokens=0)])
    assert logs[0]["event"] == "a budget of the settings is zero, no turn starts"
