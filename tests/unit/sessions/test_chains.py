"""Roots and membership of chains, without a server."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.roots import root_of
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.sessions.chains import Chain, Membership
from breadcrumbs.runtime.sessions.open_turns import OpenTurn
from breadcrumbs.runtime.sessions.wait_for import FIRST, LAST, WaitFor

OWNER = UUID(int=1)
CLIENT = UUID(int=2)


def crumb(schema: str, context: dict[str, Any], *, by: UUID | None = None) -> Breadcrumb:
    document = {"schema_name": schema, "title": "", "tags": ["session:s"], "context": context}
    return Breadcrumb(uuid4(), OWNER, 1, 1, 1, 0, 0, by, by, orjson.dumps(document))


def answer(agent: str, trigger: Breadcrumb, **context: Any) -> Breadcrumb:
    creator = {"type": "agent", "agent_id": agent}
    return crumb("agent.response.v1", {"trigger_id": trigger.id_text, "creator": creator, **context})


MESSAGE = crumb("user.message.v1", {"message": "hello"}, by=CLIENT)


def test_a_root_counts_only_in_breadcrumbs_of_the_runtime() -> None:
    assert root_of(MESSAGE) == MESSAGE.id_text
    assert root_of(crumb("agent.response.v1", {"root_id": "r"})) == "r"
    forged = crumb("user.message.v1", {"root_id": "r"}, by=CLIENT)
    assert root_of(forged) == forged.id_text
    # Contexts and answers of earlier versions have no root.
    assert root_of(crumb("agent.context.v1", {"trigger_id": "m"})) == "m"
    assert root_of(old := crumb("agent.response.v1", {"trigger_id": "m"})) == old.id_text
    assert root_of(odd := crumb("agent.response.v1", {"root_id": 5})) == odd.id_text


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("value", ["another", None, {"deep": 1}])
def test_a_change_keeps_the_root_of_the_runtime(merge: bool, value: Any) -> None:
    stored = crumb("agent.response.v1", {"root_id": "r", "message": "old"})
    change = BreadcrumbUpdate(context={"root_id": value, "message": "new"})
    assert stored.apply_change(change, merge_context=merge).context["root_id"] == "r"
    without = crumb("agent.response.v1", {"message": "old"})
    assert without.apply_change(change, merge_context=merge).context.get("root_id") is None
    own = crumb("tree.v1", {"root_id": "r"}, by=CLIENT)  # a key of a client without a meaning
    changed = own.apply_change(BreadcrumbUpdate(context={"root_id": "another"}), merge_context=merge)
    assert changed.context["root_id"] == "another"


def test_followers_of_a_message_belong_to_its_chain_by_their_root_or_their_trigger() -> None:
    first = answer("a", MESSAGE)  # of an earlier version, without a root
    second = answer("b", first)
    hidden = answer("c", crumb("draft.v1", {}), root_id=MESSAGE.id_text)
    merged = crumb("agent.response.v1", {"trigger_id": "x", "answers": ["y", MESSAGE.id_text]})
    stranger = answer("d", crumb("user.message.v1", {}, by=CLIENT))
    forged = crumb("note.v1", {"root_id": MESSAGE.id_text}, by=CLIENT)
    membership = Membership(MESSAGE)
    found = [membership.add(one) for one in (first, second, hidden, merged, stranger, forged)]
    assert found == [True, True, True, True, False, False]
    middle = Membership(first)
    assert middle.add(second) and not middle.add(hidden)
    assert not Membership(MESSAGE).add(second), "the trigger is not known before"


def test_the_outcome_depends_on_the_wanted_answer_and_on_open_turns() -> None:
    first = answer("a", MESSAGE)
    second = answer("b", first)
    error = crumb("agent.error.v1", {"trigger_id": second.id_text, "agent_id": "c", "error": "no"})
    chain = Chain(MESSAGE, [first, second])
    assert chain.finished and chain.outcome(LAST) is second
    assert chain.outcome(WaitFor.of_agent("a")) is first and chain.outcome(WaitFor.of_agent("z")) is None
    assert chain.followers(MESSAGE) == ["a"] and chain.followers(first) == ["b"]
    open = Chain(MESSAGE, [first, second], [OpenTurn("agents", ("c",), second)])
    assert not open.finished and open.outcome(LAST) is None and open.waiting_for == ["c"]
    assert open.outcome(WaitFor.of_agent("b")) is second and open.followers(second) == ["c"]
    failed = Chain(MESSAGE, [first, second, error])
    assert failed.outcome(LAST) is error and failed.outcome(WaitFor.of_agent("z")) is error
    assert failed.outcome(WaitFor.of_agent("a")) is first and failed.agents == ["a", "b"]
    # A message that no agent has answered yet is not finished, even if no turn is open.
    assert not Chain(MESSAGE, []).finished and Chain(MESSAGE, []).outcome(LAST) is None


def test_the_wanted_answer_is_parsed_and_refused() -> None:
    assert WaitFor.parse(None) is WaitFor.parse("first") is FIRST and WaitFor.parse("last") is LAST
    named = WaitFor.parse("agent:a:b")
    assert named == WaitFor("agent", "a:b") and str(named) == "agent:a:b"
    for wrong in ("", "agent", "agent:", "LAST", "agent:" + "x" * 201):
        with pytest.raises(InvalidInput, match="wait_for must be first, last or agent:NAME"):
            WaitFor.parse(wrong)
