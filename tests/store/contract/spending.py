"""Usage of models: recorded with a commit, once, and summed over the lanes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.store import spending
from breadcrumbs.runtime.store.fence import Fence, Lease, LeaseLost
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.session_deletion import close_session
from breadcrumbs.runtime.store.spending import Amounts, ModelUsage, Spending
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.store.usage import (
    UsageKey,
    forget_user,
    read_days,
    read_parts,
    read_session,
    read_total,
)
from tests.store.contract.base import ALICE, ANSWER, BOB, Contract, crumb

DAY = date(2026, 11, 30)
AT = int(datetime(2026, 11, 30, 23, 59, tzinfo=UTC).timestamp() * 1_000_000)
ONE_CALL = Amounts(1, 100, 20, 30, 5, 1_234_567, 0, 0)
KIND = "agents"


class SpendingUsage(Contract):
    async def test_a_repeated_commit_is_counted_once(self, store: Store) -> None:
        for _ in range(3):
            await _commit(store, "s", "answer")
        assert await read_days(store, ALICE, [DAY]) == {DAY: ONE_CALL}
        assert await read_session(store, ALICE, "s") == ONE_CALL

    async def test_a_refused_commit_counts_nothing(self, store: Store) -> None:
        with pytest.raises(LeaseLost):
            await _commit(store, "s", "answer", lease=b"another")
        assert await read_days(store, ALICE, [DAY]) == {}
        assert await read_session(store, ALICE, "s") == Amounts()

    async def test_usage_of_all_lanes_is_summed_by_day_agent_model_and_user(self, store: Store) -> None:
        for number in range(20):
            await _commit(store, f"s{number}", "answer", agent="a" if number % 2 else "b")
        await _commit(store, "other", "answer", owner=BOB)
        twenty = Amounts(*(20 * value for value in ONE_CALL))
        ten = Amounts(*(10 * value for value in ONE_CALL))
        assert await read_days(store, ALICE, [DAY]) == {DAY: twenty}
        assert await read_days(store, ALICE, [DAY], "ann") == {DAY: twenty}
        assert await read_parts(store, ALICE, DAY, DAY) == {
            UsageKey(DAY, "a", "openai:m"): ten,
            UsageKey(DAY, "b", "openai:m"): ten,
            UsageKey(DAY, user="ann"): twenty,
        }
        assert await read_total(store, ALICE, None, date(2026, 12, 3)) == twenty
        assert await read_total(store, ALICE, "ann", DAY) == Amounts(), "the month of the day is not included"

    async def test_the_totals_stay_when_a_session_is_deleted(self, store: Store) -> None:
        await _commit(store, "s", "answer")
        await close_session(store, ALICE, "s", tags=["session:s"], expected_version=None)
        assert await read_days(store, ALICE, [DAY]) == {DAY: ONE_CALL}

    async def test_the_name_of_an_erased_user_is_gone_and_the_totals_stay(self, store: Store) -> None:
        for number in range(8):
            await _commit(store, f"s{number}", "answer")
        before = await read_days(store, ALICE, [DAY])
        assert await forget_user(store, ALICE, "ann") > 0
        assert await forget_user(store, ALICE, "ann") == 0
        parts = await read_parts(store, ALICE, DAY, DAY)
        assert {key.user for key in parts} == {None, "(other)"}
        assert parts[UsageKey(DAY, user="(other)")] == before[DAY]
        assert await read_days(store, ALICE, [DAY]) == before

    async def test_new_names_above_the_limit_are_counted_together(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spending, "MAX_FIELDS", 4)
        for number in range(6):
            await _commit(store, "s", f"answer {number}", user=f"user{number}")
        parts = await read_parts(store, ALICE, DAY, DAY)
        users = {key.user: amounts.calls for key, amounts in parts.items() if key.user is not None}
        assert users == {"user0": 1, "user1": 1, "(other)": 4}
        assert (await read_days(store, ALICE, [DAY]))[DAY].calls == 6


async def _commit(
    store: Store,
    session: str,
    name: str,
    *,
    owner: UUID = ALICE,
    agent: str = "a",
    user: str = "ann",
    lease: bytes = b"1 0 worker",
) -> None:
    lane = store.keys.session_lane(owner, session)
    await store.connection.call(lane, b"SET", store.keys.lease(lane, KIND), b"1 0 worker")
    usage = ModelUsage(agent, "openai:m", user, ONE_CALL, AT)
    fence = Fence(Lease(lane, KIND, lease), spent=Spending(owner, session, (usage,), AT))
    new = crumb("an answer", schema=ANSWER, session=session)
    await store.create(owner, new, id=derived_id(lane, session, name), options=CreateOptions(fence=fence))
