"""Functions that decide which agent a message is for."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from breadcrumbs.agents.addressees import answers_users
from breadcrumbs.agents.chosen_agent import choice_at, matches_users_message
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.store.state import NO_CHOICES, Choices, decode_choices

CONTEXT = {"schema_name": "agent.context.v1", "all_tags": ["consumer:x"]}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({"schema_name": "user.message.v1"}, True),
        ({"any_tags": ["user:message", "other"]}, True),
        ({"schema_name": "user.message.v1", "all_tags": ["user:message"]}, True),
        ({"schema_name": "user.message.v1", "any_tags": ["for:drafter"]}, False),
        ({"schema_name": "user.message.v1", "all_tags": ["user:message", "urgent"]}, False),
        ({"schema_name": "user.message.v1", "session_id": "one"}, False),
        ({"schema_name": "agent.response.v1"}, False),
        (CONTEXT, False),
    ],
)
def test_a_selector_matches_messages_without_additional_tags(selector: dict[str, Any], matches: bool) -> None:
    assert matches_users_message(Selector.model_validate(selector)) is matches


@pytest.mark.parametrize(
    ("triggers", "answers"),
    [
        ([CONTEXT], True),
        ([{"schema_name": "order.v1"}, {"schema_name": "user.message.v1"}], True),
        ([{"schema_name": "order.v1"}], False),
        ([{"schema_name": "order.v1"}, {"schema_name": "user.message.v1", "role": "context"}], False),
    ],
)
def test_an_agent_answers_users_if_messages_or_their_contexts_trigger_it(
    triggers: list[dict[str, Any]], answers: bool
) -> None:
    fields = {"agent_id": "one", "subscriptions": {"selectors": triggers}}
    assert answers_users(AgentDefinition.model_validate(fields)) is answers


def test_the_choice_at_a_time_is_the_last_one_before_it() -> None:
    timeline = [(30, None), (20, "ben"), (10, "ann")]
    assert [choice_at(timeline, time) for time in (5, 10, 11, 20, 25, 31)] == [
        None, None, "ann", "ann", "ben", None,
    ]  # fmt: skip


def test_stored_choices_are_decoded() -> None:
    def stored(value: object, at: int) -> bytes:
        return b"%d %s" % (at, b"" if value is None else orjson.dumps(value))

    assert decode_choices([None, None]) is NO_CHOICES
    assert decode_choices([stored("big", 5), None]) == Choices("big")
    assert decode_choices([None, stored("poet", 7)]) == Choices(None, "poet", 7)
    assert decode_choices([stored(None, 8), stored(None, 9)]) == Choices(None, None, 9)
