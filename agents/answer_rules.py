"""The rule that decides which agents answer a message that several agents match.

The decision is a pure function of stored data: the message, the agents in force, the published claims and the published
rule. All processes therefore come to the same decision, and each of them runs only its own share of the agents.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from breadcrumbs.runtime.settings.answering import Answering
from breadcrumbs.runtime.store.published_agents import Claims

FOR_AGENT: Final = "for:"
"""Prefix of the tag that names an agent, for the rule `by_tag`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent whose triggers match a message."""

    agent_id: str
    fallback: bool = False
    """Leaves the message to other candidates."""
    claimed: bool = True
    """Whether the agent was in force when the message was stored. An agent of a program that was stopped was not."""


def select_answering(
    candidates: Sequence[Candidate], rule: Answering, tags: Collection[str]
) -> frozenset[str]:
    """Return the agents that answer a message. `tags` are those of the message.

    Without candidates in force, the others answer: a program answers the messages that arrived while it was stopped,
    unless another agent has answered them.
    """
    present = [one for one in candidates if one.claimed] or list(candidates)
    regular = [one for one in present if not one.fallback] or present
    names = sorted(one.agent_id for one in regular)
    if rule == "all" or len(names) < 2:
        return frozenset(names)
    if rule == "by_tag" and (named := [name for name in names if FOR_AGENT + name in tags]):
        return frozenset(named)
    return frozenset(names[:1])


def is_claimed(claims: Claims, time: int) -> bool:
    """Return whether a message of this time is claimed. Without claims, all messages are."""
    return not claims or any(begin <= time < end for begin, end in claims)
