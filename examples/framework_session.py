"""Framework session: an agent of the OpenAI Agents SDK that keeps its conversation in Breadcrumbs.

Shows: `BreadcrumbSession`. The second run reads the first one from the store, so it can be in another process. The
scripted model below needs no key and no network. Remove it and the `model` argument to use a real model.

Install the extra and run a server (`./crumb up`), then:

    .venv/bin/python -m pip install -c constraints.txt --editable '.[openai-agents]'
    .venv/bin/python examples/framework_session.py

`CRUMB_URL` is the address of the server, by default http://127.0.0.1:8081.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from breadcrumbs import AsyncClient
from breadcrumbs.openai_agents import BreadcrumbSession


class RecitingModel(Model):
    """Scripted model. It repeats all messages of the user that it was sent."""

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        said = [item["content"] for item in input if item.get("role") == "user"]
        text = ResponseOutputText(type="output_text", text="You said: " + ", ".join(said), annotations=[])
        message = ResponseOutputMessage(
            id=f"msg_{uuid4().hex}", type="message", role="assistant", status="completed", content=[text]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("this example does not stream")


async def main() -> None:
    set_tracing_disabled(True)  # tracing sends data to OpenAI
    assistant = Agent(name="Assistant", instructions="Answer briefly.", model=RecitingModel())
    name = f"trip-{uuid4()}"

    for message in ("I live in Oslo", "I like trains"):
        # A new session object each time: only the store connects the two runs.
        result = await Runner.run(assistant, message, session=BreadcrumbSession(name))
        print(result.final_output)
    assert result.final_output == "You said: I live in Oslo, I like trains"

    # The items of the conversation are breadcrumbs of the session.
    async with AsyncClient() as client:
        async for crumb in client.list(session=name, sort="created_at"):
            print(crumb.schema_name, crumb.context["entry"]["role"])


asyncio.run(main())
