"""What tests of tools share: a call's context, and types that parameters and results have."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, Field

from breadcrumbs.agents.tools import ToolContext

CONTEXT = ToolContext(UUID(int=1), "abc", "assistant", "trigger-1", None)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Place(BaseModel):
    """Where it is."""

    city: str
    title: Annotated[str, Field(description="What it says on the sign")] = "none"
