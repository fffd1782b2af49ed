"""An ADK agent whose model needs no network: it answers with its prompt.

`remember colour=blue` makes it use its tool, which changes the state of the session (or of the user, with
`user:colour=…`). The state is part of its instruction and of each answer. `wait 2` answers after two seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.genai import types


class RecitingModel(BaseLlm):
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = llm_request.contents
        last = contents[-1].parts[-1] if contents and contents[-1].parts else types.Part(text="")
        words = (last.text or "").split(" ", 1)
        if words[0] == "remember":
            name, _, value = words[1].partition("=")
            call = types.FunctionCall(name="remember", args={"name": name, "value": value})
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(function_call=call)]))
            return
        if words[0] == "wait":
            await asyncio.sleep(float(words[1]))
        text = _recited(llm_request)
        if stream:
            for word in text.split(" ")[:-1]:
                piece = types.Part(text=word + " ")
                yield LlmResponse(content=types.Content(role="model", parts=[piece]), partial=True)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))


def _recited(request: LlmRequest) -> str:
    """Return the texts of users in order, the number of answers, and the state."""
    parts = [(content.role, part.text) for content in request.contents for part in content.parts or ()]
    said = [text for role, text in parts if role == "user" and text]
    answers = sum(1 for role, text in parts if role == "model" and text)
    mind = str(request.config.system_instruction).partition("In mind:")[2].partition(";")[0]
    return f"{' | '.join(said)} ({answers} answers, in mind: {' '.join(mind.split())})"


def remember(name: str, value: str, tool_context: ToolContext) -> str:
    """Keep something in mind."""
    tool_context.state[name] = value
    return "done"


root_agent = LlmAgent(
    name="the_reciter",
    model=RecitingModel(model="reciting"),
    instruction="In mind: {colour?} {user:colour?} {breadcrumbs_context?};",
    tools=[remember],
)
