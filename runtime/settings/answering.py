"""The rule for messages that several agents match."""

from __future__ import annotations

from typing import Literal, TypeAlias

Answering: TypeAlias = Literal["all", "first", "by_tag"]
"""Agents that answer a message if several match it.

`all`: each of them. `first`: the one whose `agent_id` comes first in the alphabet. `by_tag`: the one that a tag
`for:<agent_id>` of the message names, otherwise the first.
"""
