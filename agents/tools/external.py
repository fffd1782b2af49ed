"""External tools: tools that another process runs.

The agent stores a `tool.request.v1` and waits for a `tool.response.v1` in the same session. A tool is external if its
function has `@tool(external=True)`, or if the agent definition declares it under `external_tools`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator

from breadcrumbs.agents.tools.base import EXTERNAL_TIMEOUT, Tool

_MAX_SCHEMA_BYTES: Final = 32_768


class ExternalToolDefinition(BaseModel):
    """A tool of an agent definition that another process runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")] = Field(
        description="Name of the tool: 1 to 64 letters, digits, _ or -"
    )
    description: Annotated[str, Field(max_length=8_000)] = Field(
        "", description="The description that the model reads"
    )
    parameters: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object", "properties": {}},
        description="JSON Schema of the arguments, an object",
    )
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = Field(
        EXTERNAL_TIMEOUT, description="Time limit for the response, in seconds from the request"
    )
    return_to_llm: bool = Field(
        True, description="`false`: the turn ends with the output of the tool. The model is not called again"
    )

    @field_validator("parameters")
    @classmethod
    def _check_parameters(cls, schema: dict[str, Any]) -> dict[str, Any]:
        if schema.get("type") != "object":
            raise ValueError('the parameters of a tool are a JSON Schema with "type": "object"')
        if len(orjson.dumps(schema)) > _MAX_SCHEMA_BYTES:
            raise ValueError(f"the schema of the parameters is larger than {_MAX_SCHEMA_BYTES:,} bytes")
        return schema


class DeclaredTool(Tool):
    """An external tool of an agent definition. It has no function."""

    def __init__(self, definition: ExternalToolDefinition) -> None:
        super().__init__(
            _not_here,
            name=definition.name,
            description=definition.description,
            timeout=definition.timeout_seconds,
            return_to_llm=definition.return_to_llm,
            external=True,
        )
        self._schema = definition.parameters

    @property
    def parameters(self) -> dict[str, Any]:
        return self._schema

    def check_arguments(self, arguments: str) -> None:
        """Accept all arguments. The process that runs the tool checks them against the schema."""


def _not_here() -> None:
    """Another process runs the tool."""
