"""The description of a tool, as models and other processes see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool without its function: name, description, parameters, and how the runtime treats its calls.

    `tool.definition` returns the one of a function with `@tool`.
    """

    name: str
    """Name by which a model calls the tool: letters, digits, `_` and `-`, at most 64 characters."""
    description: str = ""
    """Purpose of the tool, for the model."""
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of the arguments."""
    timeout: float = 30.0
    """Time limit of a call, in seconds."""
    return_to_llm: bool = True
    """Whether the model is called again with the result. Otherwise the result ends the turn."""
    idempotent: bool = False
    """Whether a second call with the same arguments has the same effect as one call."""
    external: bool = False
    """Whether another process runs the tool."""

    def as_dict(self) -> dict[str, Any]:
        """Return the definition as JSON, in the form of an entry of a `tool.catalog.v1`."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.parameters,
            "capabilities": {
                "timeout": round(self.timeout * 1000),
                "return_to_llm": self.return_to_llm,
                "idempotent": self.idempotent,
                "external": self.external,
            },
        }
