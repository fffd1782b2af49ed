"""Shared parts of tool tests: a call context, parameter and result types, a counting tool."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, Field

from breadcrumbs.agents.models.base import ModelReply, ToolCall
from breadcrumbs.agents.tools import Tool, ToolContext

CONTEXT = ToolContext(UUID(int=1), "abc", "assistant", "trigger-1", None)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Place(BaseModel):
    """Position of the sign."""

    city: str
    title: Annotated[str, Field(description="What it says on the sign")] = "none"


def use(name: str, arguments: str = "{}", number: int = 1) -> ModelReply:
    return ModelReply("", tuple(ToolCall(f"call-{place}", name, arguments) for place in range(number)))


class Counting:
    """A tool that says how often it was run."""

    def __init__(self, **options: Any) -> None:
        self.runs = 0

        async def count_me(word: str = "") -> str:
            """Count."""
            self.runs += 1
            return f"run {self.runs} {word}"

        self.tool = Tool(count_me, name="count_me", **options)
