"""Running answers: the text so far of answers that are being written."""

from __future__ import annotations

from dataclasses import replace

import anyio

from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.breadcrumb.ids import derived_id
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.store import running_answers
from breadcrumbs.runtime.store.fence import Fence, Lease
from breadcrumbs.runtime.store.options import CreateOptions
from breadcrumbs.runtime.store.running_answers import Run, SavedAnswer, ended_answers, save_now
from breadcrumbs.runtime.store.session_deletion import close_session
from breadcrumbs.runtime.store.store import Store
from tests.store.contract.base import ALICE, BOB, Contract, crumb


class RunningAnswers(Contract):
    async def test_pieces_are_read_in_order_and_attempts_are_never_mixed(self, store: Store) -> None:
        answer = await _answer(store)
        for number in range(12):
            assert await save_now(store, answer, b"head", number, b"%d" % number)
        (found,) = await running_answers.read(store, ALICE, "s")
        assert found.pieces == [b"%d" % number for number in range(12)]
        assert (found.id, found.run, found.head) == (answer.id, Run(1, 1), b"head")
        again = replace(answer, run=Run(1, 2))
        assert await save_now(store, again, b"head 2", 0, b"new")
        (found,) = await running_answers.read(store, ALICE, "s")
        assert (found.run, found.head, found.pieces) == (Run(1, 2), b"head 2", [b"new"])
        assert await save_now(store, again, b"head 2", 2, b"after a gap")
        (found,) = await running_answers.read(store, ALICE, "s")
        assert found.pieces == [b"new"], "a piece after a gap must not be read"

    async def test_a_running_answer_is_visible_only_in_its_session_and_to_its_owner(
        self, store: Store
    ) -> None:
        await save_now(store, await _answer(store), b"head", 0, b"text")
        assert await running_answers.read(store, BOB, "s") == []
        assert await running_answers.read(store, ALICE, "other") == []

    async def test_the_commit_of_an_answer_ends_its_text_so_far(self, store: Store) -> None:
        answer = await _answer(store)
        other = replace(answer, id=derived_id(answer.lease.lane, "other"))
        for one in (answer, other):
            await save_now(store, one, b"head", 0, b"text")
        ended = ended_answers(ALICE, "s", answer.event, answer.lease.kind, answer.id)
        await _commit(store, answer, Fence(answer.lease, ended=ended))
        assert [found.id for found in await running_answers.read(store, ALICE, "s")] == [other.id]
        assert not await save_now(store, answer, b"head", 1, b"late"), "the answer is written already"
        turn = ended_answers(ALICE, "s", answer.event, answer.lease.kind)
        await _commit(store, other, Fence(answer.lease, answer.event, ended=turn))
        lane = answer.lease.lane
        assert await store.connection.call(lane, b"EXISTS", store.keys.running(lane, ALICE, "s")) == 0

    async def test_a_worker_without_the_lease_saves_nothing(self, store: Store) -> None:
        answer = await _answer(store)
        stale = replace(answer, lease=replace(answer.lease, value=b"0 0 another"))
        assert not await save_now(store, stale, b"head", 0, b"text")
        assert await running_answers.read(store, ALICE, "s") == []

    async def test_a_deleted_session_has_no_running_answer_and_gets_none(self, store: Store) -> None:
        answer = await _answer(store)
        await save_now(store, answer, b"head", 0, b"text")
        await close_session(store, ALICE, "s", tags=["session:s"], expected_version=None)
        assert await running_answers.read(store, ALICE, "s") == []
        assert not await save_now(store, answer, b"head", 1, b"late")

    async def test_a_running_answer_expires(self, store: Store) -> None:
        answer = replace(await _answer(store), keep_seconds=30)
        await save_now(store, answer, b"head", 0, b"text")
        lane = answer.lease.lane
        left = await store.connection.call(lane, b"PTTL", store.keys.running(lane, ALICE, "s"))
        assert 0 < left <= 30_000

    async def test_a_short_timeout_does_not_shorten_the_time_of_another_answer(self, store: Store) -> None:
        slow = await _answer(store)
        quick = replace(slow, id=derived_id(slow.lease.lane, "quick"), keep_seconds=5)
        for one in (slow, quick):
            await save_now(store, one, b"head", 0, b"text")
        lane = slow.lease.lane
        left = await store.connection.call(lane, b"PTTL", store.keys.running(lane, ALICE, "s"))
        assert 50_000 < left <= 60_000

    async def test_a_turn_without_an_answer_discards_only_its_own_text(self, store: Store) -> None:
        answer = await _answer(store)
        later = replace(answer, event=answer.event + 1, id=derived_id(answer.lease.lane, "later"))
        for one in (answer, later):
            await save_now(store, one, b"head", 0, b"text")
        ended = ended_answers(ALICE, "s", answer.event, answer.lease.kind)
        running_answers.discard(store, replace(answer.lease, value=b"0 0 another"), ended)
        await anyio.sleep(0.05)  # it does not wait for the reply
        assert len(await running_answers.read(store, ALICE, "s")) == 2
        running_answers.discard(store, answer.lease, ended)
        await anyio.sleep(0.05)
        assert [found.id for found in await running_answers.read(store, ALICE, "s")] == [later.id]

    async def test_text_that_an_earlier_version_did_not_remove_is_not_read(self, store: Store) -> None:
        answer = await _answer(store)
        lane, key = answer.lease.lane, store.keys.running(answer.lease.lane, ALICE, "s")
        await save_now(store, answer, b"head", 0, b"text")
        fields = await store.connection.call(lane, b"HGETALL", key)
        await _commit(store, answer, Fence(answer.lease))
        assert await running_answers.read(store, ALICE, "s") == [], "the answer is written"
        await Sessions(store).delete(ALICE, "s")
        await store.connection.call(lane, b"HSET", key, *fields)
        assert await running_answers.read(store, ALICE, "s") == [], "there is no session"
        await store.create(ALICE, _new("Hello again"))
        assert await running_answers.read(store, ALICE, "s") == [], "this is another session"


async def _answer(store: Store) -> SavedAnswer:
    """Begin a session, take the lease of its lane and return an answer in it."""
    message = await store.create(ALICE, _new("Hello"))
    lane = store.keys.session_lane(ALICE, "s")
    lease = Lease(lane, "agents", b"1 0 worker")
    await store.connection.call(lane, b"SET", store.keys.lease(lane, "agents"), lease.value)
    return SavedAnswer(lease, ALICE, "s", message.created, derived_id(lane, "answer"), Run(1, 1), 60)


async def _commit(store: Store, answer: SavedAnswer, fence: Fence) -> None:
    await store.create(ALICE, _new("answer"), id=answer.id, options=CreateOptions(fence=fence))


def _new(title: str) -> BreadcrumbCreate:
    return crumb(title=title, session="s")
