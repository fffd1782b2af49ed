"""Which answer to wait for. This module does no I/O, so that the client can use it, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from breadcrumbs.runtime.errors import InvalidInput

_AGENT: Final = "agent:"
_MAX_AGENT_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class WaitFor:
    """The answer that ends a wait.

    `first`: the first answer to the message. `last`: the last answer of the chain that begins with the message.
    `agent`: the first answer of one agent in that chain.
    """

    which: Literal["first", "last", "agent"] = "first"
    agent: str | None = None

    @classmethod
    def parse(cls, text: str | None) -> WaitFor:
        """Parse `first`, `last` or `agent:NAME`. None means `first`."""
        if text in (None, "first"):
            return FIRST
        if text == "last":
            return LAST
        if text.startswith(_AGENT) and 0 < len(text) - len(_AGENT) <= _MAX_AGENT_NAME:
            return cls.of_agent(text.removeprefix(_AGENT))
        raise InvalidInput("wait_for must be first, last or agent:NAME", where="wait_for")

    @classmethod
    def of_agent(cls, name: str) -> WaitFor:
        return cls("agent", name)

    def __str__(self) -> str:
        return self.which if self.agent is None else _AGENT + self.agent


FIRST: Final = WaitFor()
LAST: Final = WaitFor("last")
