"""The rule that decides which agents answer a message, and the claims of programs."""

from __future__ import annotations

import pytest

from breadcrumbs.agents.answer_rules import Candidate, is_claimed, select_answering
from breadcrumbs.agents.other_agents import CLAIM_DELAY, CLAIM_LENGTH, end_claims, extend_claims
from breadcrumbs.runtime.settings.answering import Answering

ASSISTANT = Candidate("assistant", fallback=True)
ANN, BEN = Candidate("ann"), Candidate("ben")
STOPPED = Candidate("ann", claimed=False)


@pytest.mark.parametrize(
    ("candidates", "rule", "tags", "selected"),
    [
        ([ASSISTANT], "all", [], {"assistant"}),
        ([ASSISTANT, ANN], "all", [], {"ann"}),
        ([ASSISTANT, BEN, ANN], "all", [], {"ann", "ben"}),
        ([ASSISTANT, BEN, ANN], "first", [], {"ann"}),
        ([BEN, ANN], "first", ["for:ben"], {"ann"}),
        ([BEN, ANN], "by_tag", ["for:ben"], {"ben"}),
        ([BEN, ANN], "by_tag", ["for:carl"], {"ann"}),
        ([ASSISTANT, BEN, ANN], "by_tag", ["for:assistant"], {"ann"}),
        ([ASSISTANT, STOPPED], "all", [], {"assistant"}),
        ([STOPPED], "all", [], {"ann"}),
        ([STOPPED, BEN], "all", [], {"ben"}),
        ([], "first", [], set()),
    ],
)
def test_the_rule_selects_the_same_agents_in_any_order(
    candidates: list[Candidate], rule: Answering, tags: list[str], selected: set[str]
) -> None:
    for given in (candidates, candidates[::-1]):
        assert select_answering(given, rule, tags) == selected


def test_a_new_claim_begins_after_every_runner_has_read_it_and_is_renewed_without_a_gap() -> None:
    claims = extend_claims((), 1_000)
    assert claims == ((1_000 + CLAIM_DELAY, 1_000 + CLAIM_DELAY + CLAIM_LENGTH),)
    later = claims[0][0] + 5_000_000
    renewed = extend_claims(claims, later)
    assert renewed == ((claims[0][0], later + CLAIM_LENGTH),)
    assert is_claimed(renewed, later) and not is_claimed(renewed, 1_000) and is_claimed((), 5)


def test_a_claim_that_ended_is_followed_by_another_one_and_keeps_its_messages() -> None:
    first = extend_claims((), 0)
    end = first[0][0] + 3_000_000
    stopped = end_claims(first, end)
    assert is_claimed(stopped, end - 1) and not is_claimed(stopped, end)
    again = extend_claims(stopped, end + 9_000_000)
    assert is_claimed(again, end - 1) and is_claimed(again, end + 9_000_000 + CLAIM_DELAY)
    assert not is_claimed(again, end + 9_000_000)
    assert len(extend_claims(tuple((n, n + 1) for n in range(50)), 10**9)) == 16


def test_a_program_that_stops_before_its_first_claim_begins_claims_nothing() -> None:
    stopped = end_claims(extend_claims((), 0), CLAIM_DELAY - 1)
    assert not any(is_claimed(stopped, time) for time in (0, CLAIM_DELAY - 1, CLAIM_DELAY, CLAIM_LENGTH))
    again = extend_claims(stopped, CLAIM_LENGTH)
    assert is_claimed(again, CLAIM_LENGTH + CLAIM_DELAY) and not is_claimed(again, CLAIM_LENGTH)


def test_a_claim_that_ends_soon_is_not_renewed_because_others_can_have_seen_its_end() -> None:
    claims = extend_claims((), 0)
    late = claims[0][1] - 1_000_000
    again = extend_claims(claims, late)
    assert again[0] == claims[0] and again[1][0] >= claims[0][1]
