"""A model for the OpenAI Agents SDK that needs no network and repeats its input."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any
from uuid import uuid4

from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

_interface: Any = import_module("agents.models.interface")
_items: Any = import_module("agents.items")
_usage: Any = import_module("agents.usage")


class RecitingModel(_interface.Model):  # type: ignore[misc]
    """Model that answers with all user messages. `add 2 3` makes it call the tool `add` first."""

    def __init__(self) -> None:
        self.inputs: list[list[Any]] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        shown = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        self.inputs.append(shown)
        output: Any
        last = shown[-1]
        if last.get("role") == "user" and str(last["content"]).startswith("add "):
            _, left, right = str(last["content"]).split()
            output = ResponseFunctionToolCall(
                id=f"fc_{uuid4().hex}",
                call_id=f"call_{uuid4().hex}",
                type="function_call",
                name="add",
                arguments=f'{{"left": {left}, "right": {right}}}',
            )
        else:
            said = [str(item["content"]) for item in shown if item.get("role") == "user"]
            said += [f"= {item['output']}" for item in shown if item.get("type") == "function_call_output"]
            text = ResponseOutputText(text=" | ".join(said), type="output_text", annotations=[])
            output = ResponseOutputMessage(
                id=f"msg_{uuid4().hex}", type="message", role="assistant", content=[text], status="completed"
            )
        return _items.ModelResponse(output=[output], usage=_usage.Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
